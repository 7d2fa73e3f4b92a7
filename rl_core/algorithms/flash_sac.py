"""FlashSAC: SAC on unit-norm residual networks with categorical critics (Kim et al. 2026).

The order of a step is the authors': actor, temperature, critics, target average. Batch norm sees both halves of
[(s, a); (s', a')] in one forward pass, so that they share statistics. Symbols as in the papers: α temperature, H̄
target entropy, γ discount, τ target average, z atoms, Π projection; `b` masks the bootstrap.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rl_core.critics import cross_entropy, edge_mass, expectation, project_categorical, support
from rl_core.device import CPU, moved
from rl_core.exploration import Exploration, HeldNoise
from rl_core.networks import (
    Params,
    TensorShapes,
    copy_of,
    gaussian_head,
    named,
    polyak_,
    require_grad,
    squashed_sample,
    standard_normal,
    twin_shapes,
)
from rl_core.optimizer import Adam, cosine
from rl_core.presets import FlashSacSettings
from rl_core.replay import Batch
from rl_core.shapes import Shapes
from rl_core.trace import span
from rl_core.unit_networks import UnitSize, init_unit, renormalize_, trainable, unit_net, unit_shapes

HEAD = "unit_gaussian"
LOSSES = ("critic_loss", "actor_loss", "alpha", "entropy", "q_mean", "edge_mass")  # what `update` can return
TARGETS = ("critic",)  # networks that have a target average
LOG_STD_MIN, LOG_STD_MAX = -10.0, 2.0
_TARGET_STD = 0.15  # of the policy that the default target entropy belongs to


@dataclass
class FlashSac:
    """Learner state: everything an update reads and writes."""

    settings: FlashSacSettings
    target_entropy: float
    total_updates: int
    atoms: Tensor
    actor: Params
    critic: Params
    target_critic: Params
    log_alpha: Params
    actor_optimizer: Adam
    critic_optimizer: Adam
    alpha_optimizer: Adam
    generator: torch.Generator
    updates: int = 0


def build(
    settings: FlashSacSettings, shapes: Shapes, *, network_seed: int, noise_seed: int, device: torch.device = CPU
) -> FlashSac:
    """Return a learner at its start; networks and noise come from their own seeds.

    Networks are made on the CPU, so that they start alike on every device.
    """
    init = torch.Generator().manual_seed(network_seed)
    actor = init_unit(shapes.obs, **_actor_size(settings, shapes), generator=init)
    critic = {
        f"{head}.{name}": tensor
        for head in ("q1", "q2")
        for name, tensor in init_unit(
            shapes.critic_obs + shapes.action, **_critic_size(settings), generator=init
        ).items()
    }
    log_alpha = moved({"log_alpha": torch.tensor(math.log(settings.initial_alpha))}, device)
    actor, critic = moved(actor, device), moved(critic, device)
    require_grad(trainable(actor), trainable(critic), log_alpha)
    default_entropy = shapes.action * 0.5 * math.log(2 * math.pi * math.e * _TARGET_STD**2)
    return FlashSac(
        settings=settings,
        target_entropy=default_entropy if settings.target_entropy is None else settings.target_entropy,
        total_updates=shapes.updates,
        atoms=support(settings.v_min, settings.v_max, settings.atoms).to(device),
        actor=actor,
        critic=critic,
        target_critic=copy_of(trainable(critic)),
        log_alpha=log_alpha,
        actor_optimizer=Adam(trainable(actor), settings.learning_rate),
        critic_optimizer=Adam(trainable(critic), settings.learning_rate),
        alpha_optimizer=Adam(log_alpha, settings.learning_rate),
        generator=torch.Generator(device).manual_seed(noise_seed),
    )


def network_shapes(settings: FlashSacSettings, shapes: Shapes) -> dict[str, TensorShapes]:
    """Return the shape of every tensor of the networks, without making one."""
    return {
        "actor": unit_shapes(shapes.obs, **_actor_size(settings, shapes)),
        "critic": twin_shapes(unit_shapes(shapes.critic_obs + shapes.action, **_critic_size(settings))),
        "alpha": {"log_alpha": ()},
    }


def _actor_size(settings: FlashSacSettings, shapes: Shapes) -> UnitSize:
    heads = {"mean": shapes.action, "std": shapes.action}
    return {"width": settings.actor_width, "blocks": settings.blocks, "heads": heads}


def _critic_size(settings: FlashSacSettings) -> UnitSize:
    return {"width": settings.critic_width, "blocks": settings.blocks, "heads": {"q": settings.atoms}}


def exploration(settings: FlashSacSettings, num_envs: int, action_dim: int) -> Exploration:
    """Return the collector's source of noise."""
    return HeldNoise(num_envs, action_dim, exponent=settings.noise_exponent, longest=settings.noise_repeats_max)


def act(_settings: FlashSacSettings, actor: Params, obs: Tensor, noise: Tensor) -> Tensor:
    """Return exploring actions, (num_envs, |A|) in (−1, 1), for held normal `noise` of that shape."""
    mean, x = unit_net(actor, obs, ("mean", "std"), training=False)
    _, log_std = gaussian_head(torch.cat((mean, x), dim=-1), LOG_STD_MIN, LOG_STD_MAX)
    return torch.tanh(mean + log_std.exp() * noise)


def update(flash: FlashSac, batch: Batch) -> dict[str, Tensor]:
    """Take one gradient update on a batch; return detached scalars to log."""
    return step(flash, batch, actor=begin(flash))


def begin(flash: FlashSac) -> bool:
    """Count an update, set its learning rate, return whether it moves the actor. `step` computes with tensors alone."""
    s = flash.settings
    rate = cosine(s.learning_rate, s.final_learning_rate, flash.updates / flash.total_updates)
    for optimizer in (flash.actor_optimizer, flash.critic_optimizer, flash.alpha_optimizer):
        optimizer.set_learning_rate(rate)
    flash.updates += 1
    return flash.updates % s.policy_delay == 0


def step(flash: FlashSac, batch: Batch, *, actor: bool) -> dict[str, Tensor]:
    """Do what `update` does once it has been counted."""
    info: dict[str, Tensor] = {}
    if actor:
        with span("actor"):
            info |= _update_actor_and_alpha(flash, batch)
    with span("critic"):
        info |= _update_critic(flash, batch, flash.log_alpha["log_alpha"].detach().exp())
    with span("target"):
        polyak_(flash.target_critic, trainable(flash.critic), flash.settings.tau)
    return info


def _update_actor_and_alpha(flash: FlashSac, batch: Batch) -> dict[str, Tensor]:
    half = len(batch.obs)
    log_alpha = flash.log_alpha["log_alpha"]
    alpha = log_alpha.detach().exp()
    both_actions, both_log_probs = _policy(flash, torch.cat((batch.obs, batch.next_obs)), training=True)
    action, log_prob = both_actions[:half], both_log_probs[:half]
    q = torch.minimum(*(expectation(p, flash.atoms) for p in _twin(flash.critic, batch.critic_obs, action)))
    actor_loss = (alpha * log_prob - q).mean()
    flash.actor_optimizer.step(actor_loss)
    renormalize_(flash.actor)
    entropy = -log_prob.detach().mean()
    flash.alpha_optimizer.step(log_alpha.exp() * (entropy - flash.target_entropy))
    return {"actor_loss": actor_loss.detach(), "alpha": alpha, "entropy": entropy}


def _update_critic(flash: FlashSac, batch: Batch, alpha: Tensor) -> dict[str, Tensor]:
    s, half = flash.settings, len(batch.obs)
    with torch.no_grad():
        next_action, next_log_prob = _policy(flash, batch.next_obs, training=False)
        x = torch.cat(
            (
                torch.cat((batch.critic_obs, batch.action), dim=-1),
                torch.cat((batch.next_critic_obs, next_action), dim=-1),
            )
        )
        p1, p2 = (_logits(flash.target_critic, head, x, training=True)[half:].softmax(-1) for head in ("q1", "q2"))
        lower = expectation(p1, flash.atoms) < expectation(p2, flash.atoms)
        soft_atoms = flash.atoms - (alpha * next_log_prob)[:, None]
        z = batch.reward[:, None] + s.gamma * batch.bootstrap[:, None] * soft_atoms
        m = project_categorical(z, torch.where(lower[:, None], p1, p2), flash.atoms)
    q1, q2 = (
        _logits(flash.critic, head, x, training=True, momentum=s.batch_norm_momentum)[:half] for head in ("q1", "q2")
    )
    loss = (cross_entropy(m, q1) + cross_entropy(m, q2)) / 2
    flash.critic_optimizer.step(loss)
    renormalize_(flash.critic)
    return {"critic_loss": loss.detach(), "q_mean": expectation(m, flash.atoms).mean(), "edge_mass": edge_mass(m)}


def _policy(flash: FlashSac, obs: Tensor, *, training: bool) -> tuple[Tensor, Tensor]:
    momentum = flash.settings.batch_norm_momentum if training else 0.0
    mean, x = unit_net(flash.actor, obs, ("mean", "std"), training=training, momentum=momentum)
    _, log_std = gaussian_head(torch.cat((mean, x), dim=-1), LOG_STD_MIN, LOG_STD_MAX)
    return squashed_sample(mean, log_std, standard_normal(mean.shape, flash.generator))


def _twin(critic: Params, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Return both heads' distributions with running batch statistics, (batch, atoms) each."""
    x = torch.cat((obs, action), dim=-1)
    return _logits(critic, "q1", x).softmax(-1), _logits(critic, "q2", x).softmax(-1)


def _logits(critic: Params, head: str, x: Tensor, *, training: bool = False, momentum: float = 0.0) -> Tensor:
    return unit_net(critic, x, ("q",), f"{head}.", training=training, momentum=momentum)[0]


def state(flash: FlashSac) -> Params:
    """Return every live tensor of the learner under a unique name; random streams and counters stand apart."""
    return named(
        {
            "actor": flash.actor,
            "critic": flash.critic,
            "target_critic": flash.target_critic,
            "alpha": flash.log_alpha,
            "actor_optimizer": flash.actor_optimizer.state(),
            "critic_optimizer": flash.critic_optimizer.state(),
            "alpha_optimizer": flash.alpha_optimizer.state(),
        }
    )
