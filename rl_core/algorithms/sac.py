"""SAC: soft actor-critic with automatic temperature (Haarnoja et al. 2018, arXiv:1812.05905).

Symbols as in the paper: α temperature, H̄ target entropy, γ discount, τ target average. `b` masks the bootstrap: 0
after a true end, 1 otherwise, time-outs included.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rl_core.critics import twin_q
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
from rl_core.presets import SacSettings
from rl_core.replay import Batch
from rl_core.shapes import Shapes
from rl_core.trace import span

HEAD = "gaussian"
LOSSES = ("critic_loss", "actor_loss", "alpha", "entropy", "q_mean")  # what `update` can return
TARGETS = ("critic",)  # networks that have a target average


@dataclass
class Sac:
    """Learner state: everything an update reads and writes."""

    settings: SacSettings
    target_entropy: float
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
    settings: SacSettings, shapes: Shapes, *, network_seed: int, noise_seed: int, device: torch.device = CPU
) -> Sac:
    """Return a learner at its start; networks and noise come from their own seeds.

    Networks are made on the CPU, so that they start alike on every device.
    """
    init = torch.Generator().manual_seed(network_seed)
    actor_sizes, critic_sizes = _sizes(settings, shapes)
    actor = init_mlp(actor_sizes, generator=init)
    critic = init_twin(critic_sizes, layer_norm=settings.critic_layer_norm, generator=init)
    log_alpha = moved({"log_alpha": torch.tensor(math.log(settings.initial_alpha))}, device)
    actor, critic = moved(actor, device), moved(critic, device)
    require_grad(actor, critic, log_alpha)
    return Sac(
        settings=settings,
        target_entropy=-float(shapes.action) if settings.target_entropy is None else settings.target_entropy,
        actor=actor,
        critic=critic,
        target_critic=copy_of(critic),
        log_alpha=log_alpha,
        actor_optimizer=Adam(actor, settings.learning_rate),
        critic_optimizer=Adam(critic, settings.learning_rate),
        alpha_optimizer=Adam(log_alpha, settings.learning_rate),
        generator=torch.Generator(device).manual_seed(noise_seed),
    )


def network_shapes(settings: SacSettings, shapes: Shapes) -> dict[str, TensorShapes]:
    """Return the shape of every tensor of the networks, without making one."""
    actor_sizes, critic_sizes = _sizes(settings, shapes)
    return {
        "actor": mlp_shapes(actor_sizes),
        "critic": twin_shapes(mlp_shapes(critic_sizes, layer_norm=settings.critic_layer_norm)),
        "alpha": {"log_alpha": ()},
    }


def _sizes(settings: SacSettings, shapes: Shapes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return (
        (shapes.obs, *settings.actor_hidden, 2 * shapes.action),
        (shapes.critic_obs + shapes.action, *settings.critic_hidden, 1),
    )


def exploration(_settings: SacSettings, num_envs: int, action_dim: int) -> Exploration:
    """Return the collector's source of noise."""
    return WhiteNoise(num_envs, action_dim)


def act(_settings: SacSettings, actor: Params, obs: Tensor, noise: Tensor) -> Tensor:
    """Return exploring actions, (num_envs, |A|) in (−1, 1), for standard normal `noise` of that shape."""
    action, _ = squashed_sample(*gaussian_head(mlp(actor, obs)), noise)
    return action


def update(sac: Sac, batch: Batch) -> dict[str, Tensor]:
    """Take one gradient update on a batch; return detached scalars to log."""
    return step(sac, batch, actor=begin(sac))


def begin(sac: Sac) -> bool:
    """Count an update; return whether it moves the actor. `step` computes with tensors alone."""
    sac.updates += 1
    return sac.updates % sac.settings.policy_delay == 0


def step(sac: Sac, batch: Batch, *, actor: bool) -> dict[str, Tensor]:
    """Do what `update` does once it has been counted."""
    s = sac.settings
    alpha = sac.log_alpha["log_alpha"].detach().exp()
    with span("critic"):
        info = _update_critic(sac, batch, alpha)
    if actor:
        with span("actor"):
            info |= _update_actor_and_alpha(sac, batch, alpha)
    with span("target"):
        polyak_(sac.target_critic, sac.critic, s.tau)
    return info


def _update_critic(sac: Sac, batch: Batch, alpha: Tensor) -> dict[str, Tensor]:
    with torch.no_grad():
        next_action, next_log_prob = _policy(sac, batch.next_obs)
        next_q = torch.minimum(*twin_q(sac.target_critic, batch.next_critic_obs, next_action))
        y = batch.reward + sac.settings.gamma * batch.bootstrap * (next_q - alpha * next_log_prob)
    q1, q2 = twin_q(sac.critic, batch.critic_obs, batch.action)
    loss = (q1 - y).square().mean() + (q2 - y).square().mean()
    sac.critic_optimizer.step(loss)
    return {"critic_loss": loss.detach(), "q_mean": q1.detach().mean()}


def _update_actor_and_alpha(sac: Sac, batch: Batch, alpha: Tensor) -> dict[str, Tensor]:
    action, log_prob = _policy(sac, batch.obs)
    q = torch.minimum(*twin_q(sac.critic, batch.critic_obs, action))
    actor_loss = (alpha * log_prob - q).mean()
    sac.actor_optimizer.step(actor_loss)
    log_alpha = sac.log_alpha["log_alpha"]
    alpha_loss = -(log_alpha * (log_prob.detach() + sac.target_entropy)).mean()
    sac.alpha_optimizer.step(alpha_loss)
    return {"actor_loss": actor_loss.detach(), "alpha": alpha, "entropy": -log_prob.detach().mean()}


def _policy(sac: Sac, obs: Tensor) -> tuple[Tensor, Tensor]:
    mean, log_std = gaussian_head(mlp(sac.actor, obs))
    return squashed_sample(mean, log_std, standard_normal(mean.shape, sac.generator))


def state(sac: Sac) -> Params:
    """Return every live tensor of the learner under a unique name; random streams and counters stand apart."""
    return named(
        {
            "actor": sac.actor,
            "critic": sac.critic,
            "target_critic": sac.target_critic,
            "alpha": sac.log_alpha,
            "actor_optimizer": sac.actor_optimizer.state(),
            "critic_optimizer": sac.critic_optimizer.state(),
            "alpha_optimizer": sac.alpha_optimizer.state(),
        }
    )
