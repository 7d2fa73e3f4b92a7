"""TD3: twin delayed deep deterministic policy gradient (Fujimoto et al. 2018, arXiv:1802.09477).

Symbols as in the paper: γ discount, τ target average, σ̃ and c the target noise and its bound. `b` masks the
bootstrap: 0 after a true end, 1 otherwise, time-outs included.
"""

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
    init_mlp,
    init_twin,
    mlp,
    mlp_shapes,
    named,
    polyak_,
    require_grad,
    standard_normal,
    twin_shapes,
)
from rl_core.optimizer import Adam
from rl_core.presets import Td3Settings
from rl_core.replay import Batch
from rl_core.shapes import Shapes
from rl_core.trace import span

HEAD = "deterministic"
LOSSES = ("critic_loss", "actor_loss", "q_mean")  # what `update` can return
TARGETS = ("actor", "critic")  # networks that have a target average


@dataclass
class Td3:
    """Learner state: everything an update reads and writes."""

    settings: Td3Settings
    actor: Params
    target_actor: Params
    critic: Params
    target_critic: Params
    actor_optimizer: Adam
    critic_optimizer: Adam
    generator: torch.Generator
    updates: int = 0


def build(
    settings: Td3Settings, shapes: Shapes, *, network_seed: int, noise_seed: int, device: torch.device = CPU
) -> Td3:
    """Return a learner at its start; networks and noise come from their own seeds.

    Networks are made on the CPU, so that they start alike on every device.
    """
    init = torch.Generator().manual_seed(network_seed)
    actor_sizes, critic_sizes = _sizes(settings, shapes)
    actor = init_mlp(actor_sizes, generator=init)
    critic = init_twin(critic_sizes, layer_norm=settings.critic_layer_norm, generator=init)
    actor, critic = moved(actor, device), moved(critic, device)
    require_grad(actor, critic)
    return Td3(
        settings=settings,
        actor=actor,
        target_actor=copy_of(actor),
        critic=critic,
        target_critic=copy_of(critic),
        actor_optimizer=Adam(actor, settings.learning_rate),
        critic_optimizer=Adam(critic, settings.learning_rate),
        generator=torch.Generator(device).manual_seed(noise_seed),
    )


def network_shapes(settings: Td3Settings, shapes: Shapes) -> dict[str, TensorShapes]:
    """Return the shape of every tensor of the networks, without making one."""
    actor_sizes, critic_sizes = _sizes(settings, shapes)
    return {
        "actor": mlp_shapes(actor_sizes),
        "critic": twin_shapes(mlp_shapes(critic_sizes, layer_norm=settings.critic_layer_norm)),
    }


def _sizes(settings: Td3Settings, shapes: Shapes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return (
        (shapes.obs, *settings.actor_hidden, shapes.action),
        (shapes.critic_obs + shapes.action, *settings.critic_hidden, 1),
    )


def exploration(_settings: Td3Settings, num_envs: int, action_dim: int) -> Exploration:
    """Return the collector's source of noise."""
    return WhiteNoise(num_envs, action_dim)


def act(settings: Td3Settings, actor: Params, obs: Tensor, noise: Tensor) -> Tensor:
    """Return exploring actions, (num_envs, |A|) in [−1, 1], for standard normal `noise` of that shape."""
    return (torch.tanh(mlp(actor, obs)) + settings.exploration_noise * noise).clamp(-1, 1)


def update(td3: Td3, batch: Batch) -> dict[str, Tensor]:
    """Take one gradient update on a batch; return detached scalars to log."""
    return step(td3, batch, actor=begin(td3))


def begin(td3: Td3) -> bool:
    """Count an update; return whether it moves the actor. `step` computes with tensors alone."""
    td3.updates += 1
    return td3.updates % td3.settings.policy_delay == 0


def step(td3: Td3, batch: Batch, *, actor: bool) -> dict[str, Tensor]:
    """Do what `update` does once it has been counted."""
    s = td3.settings
    with span("critic"):
        info = _update_critic(td3, batch)
    if actor:
        with span("actor"):
            info |= _update_actor(td3, batch)
        with span("target"):
            polyak_(td3.target_critic, td3.critic, s.tau)
            polyak_(td3.target_actor, td3.actor, s.tau)
    return info


def _update_critic(td3: Td3, batch: Batch) -> dict[str, Tensor]:
    s = td3.settings
    with torch.no_grad():
        noise = s.target_noise * standard_normal(batch.action.shape, td3.generator)
        noise.clamp_(-s.target_noise_clip, s.target_noise_clip)
        next_action = (torch.tanh(mlp(td3.target_actor, batch.next_obs)) + noise).clamp(-1, 1)
        next_q = torch.minimum(*twin_q(td3.target_critic, batch.next_critic_obs, next_action))
        y = batch.reward + s.gamma * batch.bootstrap * next_q
    q1, q2 = twin_q(td3.critic, batch.critic_obs, batch.action)
    loss = (q1 - y).square().mean() + (q2 - y).square().mean()
    td3.critic_optimizer.step(loss)
    return {"critic_loss": loss.detach(), "q_mean": q1.detach().mean()}


def _update_actor(td3: Td3, batch: Batch) -> dict[str, Tensor]:
    action = torch.tanh(mlp(td3.actor, batch.obs))
    loss = -mlp(td3.critic, torch.cat((batch.critic_obs, action), dim=-1), "q1.").mean()
    td3.actor_optimizer.step(loss)
    return {"actor_loss": loss.detach()}


def state(td3: Td3) -> Params:
    """Return every live tensor of the learner under a unique name; random streams and counters stand apart."""
    return named(
        {
            "actor": td3.actor,
            "target_actor": td3.target_actor,
            "critic": td3.critic,
            "target_critic": td3.target_critic,
            "actor_optimizer": td3.actor_optimizer.state(),
            "critic_optimizer": td3.critic_optimizer.state(),
        }
    )
