"""FastSAC: SAC with categorical critics, for many environments and large batches (Seo et al. 2025, arXiv:2512.01996).

Against `sac`: each critic is a distribution over returns and has a target of its own, the actor climbs the mean of the
pair instead of its minimum, networks have layer norm and SiLU, AdamW takes the steps. Symbols as in the papers: α
temperature, H̄ target entropy, γ discount, τ target average, z atoms, Π projection; `b` masks the bootstrap.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - torch's own customary name

from rl_core.critics import cross_entropy, edge_mass, expectation, project_categorical, support, twin
from rl_core.device import CPU, moved
from rl_core.exploration import Exploration, WhiteNoise
from rl_core.networks import (
    Params,
    TensorShapes,
    copy_of,
    gaussian_head,
    init_mlp,
    init_twin,
    mlp,
    mlp_shapes,
    named,
    polyak_,
    require_grad,
    squashed_sample,
    standard_normal,
    twin_shapes,
)
from rl_core.optimizer import Adam
from rl_core.presets import FastSacSettings
from rl_core.replay import Batch
from rl_core.shapes import Shapes
from rl_core.trace import span

HEAD = "gaussian_silu"
LOSSES = ("critic_loss", "actor_loss", "alpha", "entropy", "q_mean", "edge_mass")  # what `update` can return
TARGETS = ("critic",)  # networks that have a target average
LOG_STD_MIN, LOG_STD_MAX = -5.0, 0.0


@dataclass
class FastSac:
    """Learner state: everything an update reads and writes."""

    settings: FastSacSettings
    target_entropy: float
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
    settings: FastSacSettings, shapes: Shapes, *, network_seed: int, noise_seed: int, device: torch.device = CPU
) -> FastSac:
    """Return a learner at its start; networks and noise come from their own seeds. The policy's head starts at 0.

    Networks are made on the CPU, so that they start alike on every device.
    """
    init = torch.Generator().manual_seed(network_seed)
    actor_sizes, critic_sizes = _sizes(settings, shapes)
    actor = init_mlp(actor_sizes, layer_norm=True, generator=init)
    last = len(settings.actor_hidden)
    actor[f"{last}.weight"].zero_()
    actor[f"{last}.bias"].zero_()
    critic = init_twin(critic_sizes, layer_norm=True, generator=init)
    log_alpha = moved({"log_alpha": torch.tensor(math.log(settings.initial_alpha))}, device)
    actor, critic = moved(actor, device), moved(critic, device)
    require_grad(actor, critic, log_alpha)
    return FastSac(
        settings=settings,
        target_entropy=0.0 if settings.target_entropy is None else settings.target_entropy,
        atoms=support(settings.v_min, settings.v_max, settings.atoms).to(device),
        actor=actor,
        critic=critic,
        target_critic=copy_of(critic),
        log_alpha=log_alpha,
        actor_optimizer=_adamw(actor, settings),
        critic_optimizer=_adamw(critic, settings),
        alpha_optimizer=Adam(log_alpha, settings.learning_rate, beta2=settings.beta2),
        generator=torch.Generator(device).manual_seed(noise_seed),
    )


def network_shapes(settings: FastSacSettings, shapes: Shapes) -> dict[str, TensorShapes]:
    """Return the shape of every tensor of the networks, without making one."""
    actor_sizes, critic_sizes = _sizes(settings, shapes)
    return {
        "actor": mlp_shapes(actor_sizes, layer_norm=True),
        "critic": twin_shapes(mlp_shapes(critic_sizes, layer_norm=True)),
        "alpha": {"log_alpha": ()},
    }


def _sizes(settings: FastSacSettings, shapes: Shapes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return (
        (shapes.obs, *settings.actor_hidden, 2 * shapes.action),
        (shapes.critic_obs + shapes.action, *settings.critic_hidden, settings.atoms),
    )


def exploration(_settings: FastSacSettings, num_envs: int, action_dim: int) -> Exploration:
    """Return the collector's source of noise."""
    return WhiteNoise(num_envs, action_dim)


def act(_settings: FastSacSettings, actor: Params, obs: Tensor, noise: Tensor) -> Tensor:
    """Return exploring actions, (num_envs, |A|) in (−1, 1), for standard normal `noise` of that shape."""
    action, _ = squashed_sample(*_distribution(actor, obs), noise)
    return action


def update(fast: FastSac, batch: Batch) -> dict[str, Tensor]:
    """Take one gradient update on a batch; return detached scalars to log."""
    return step(fast, batch, actor=begin(fast))


def begin(fast: FastSac) -> bool:
    """Count an update; return whether it moves the actor. `step` computes with tensors alone."""
    fast.updates += 1
    return fast.updates % fast.settings.policy_delay == 0


def step(fast: FastSac, batch: Batch, *, actor: bool) -> dict[str, Tensor]:
    """Do what `update` does once it has been counted."""
    s = fast.settings
    alpha = fast.log_alpha["log_alpha"].detach().exp()
    with span("critic"):
        info = _update_critic(fast, batch, alpha)
    if actor:
        with span("actor"):
            info |= _update_actor_and_alpha(fast, batch, alpha)
    with span("target"):
        polyak_(fast.target_critic, fast.critic, s.tau)
    return info


def _update_critic(fast: FastSac, batch: Batch, alpha: Tensor) -> dict[str, Tensor]:
    with torch.no_grad():
        next_action, next_log_prob = _policy(fast, batch.next_obs)
        soft_reward = batch.reward - fast.settings.gamma * batch.bootstrap * alpha * next_log_prob
        z = soft_reward[:, None] + fast.settings.gamma * batch.bootstrap[:, None] * fast.atoms
        next_logits = twin(fast.target_critic, batch.next_critic_obs, next_action, activation=F.silu)
        m1, m2 = (project_categorical(z, logits.softmax(-1), fast.atoms) for logits in next_logits)
    q1, q2 = twin(fast.critic, batch.critic_obs, batch.action, activation=F.silu)
    loss = cross_entropy(m1, q1) + cross_entropy(m2, q2)
    fast.critic_optimizer.step(loss)
    return {
        "critic_loss": loss.detach(),
        "q_mean": expectation(m1, fast.atoms).mean(),
        "edge_mass": (edge_mass(m1) + edge_mass(m2)) / 2,
    }


def _update_actor_and_alpha(fast: FastSac, batch: Batch, alpha: Tensor) -> dict[str, Tensor]:
    action, log_prob = _policy(fast, batch.obs)
    q1, q2 = twin(fast.critic, batch.critic_obs, action, activation=F.silu)
    q = expectation((q1.softmax(-1) + q2.softmax(-1)) / 2, fast.atoms)
    actor_loss = (alpha * log_prob - q).mean()
    fast.actor_optimizer.step(actor_loss)
    log_alpha = fast.log_alpha["log_alpha"]
    alpha_loss = -(log_alpha * (log_prob.detach() + fast.target_entropy)).mean()
    fast.alpha_optimizer.step(alpha_loss)
    return {"actor_loss": actor_loss.detach(), "alpha": alpha, "entropy": -log_prob.detach().mean()}


def _policy(fast: FastSac, obs: Tensor) -> tuple[Tensor, Tensor]:
    mean, log_std = _distribution(fast.actor, obs)
    return squashed_sample(mean, log_std, standard_normal(mean.shape, fast.generator))


def _distribution(actor: Params, obs: Tensor) -> tuple[Tensor, Tensor]:
    return gaussian_head(mlp(actor, obs, activation=F.silu), LOG_STD_MIN, LOG_STD_MAX)


def _adamw(params: Params, settings: FastSacSettings) -> Adam:
    return Adam(params, settings.learning_rate, beta2=settings.beta2, weight_decay=settings.weight_decay)


def state(fast: FastSac) -> Params:
    """Return every live tensor of the learner under a unique name; random streams and counters stand apart."""
    return named(
        {
            "actor": fast.actor,
            "critic": fast.critic,
            "target_critic": fast.target_critic,
            "alpha": fast.log_alpha,
            "actor_optimizer": fast.actor_optimizer.state(),
            "critic_optimizer": fast.critic_optimizer.state(),
            "alpha_optimizer": fast.alpha_optimizer.state(),
        }
    )
