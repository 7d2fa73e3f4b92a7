"""FastTD3: TD3 with categorical critics, for many environments and large batches (Seo et al. 2025, arXiv:2505.22642).

Against `td3`: each critic is a distribution over returns, clipped double Q takes the whole distribution of the
lower-valued head, the actor climbs the minimum of both values, targets move at every update, every environment has a
noise scale of its own, AdamW takes the steps. Symbols as in the papers: γ discount, τ target average, z atoms, Π
projection; `b` masks the bootstrap.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rl_core.critics import cross_entropy, edge_mass, expectation, project_categorical, support, twin
from rl_core.device import CPU, moved
from rl_core.exploration import Exploration, ScaledNoise
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
from rl_core.presets import FastTd3Settings
from rl_core.replay import Batch
from rl_core.shapes import Shapes
from rl_core.trace import span

HEAD = "deterministic"
LOSSES = ("critic_loss", "actor_loss", "q_mean", "edge_mass")  # what `update` can return
TARGETS = ("actor", "critic")  # networks that have a target average
LAST_LAYER_STD = 0.01  # of the policy's initial last layer: it starts near zero torque


@dataclass
class FastTd3:
    """Learner state: everything an update reads and writes."""

    settings: FastTd3Settings
    atoms: Tensor
    actor: Params
    target_actor: Params
    critic: Params
    target_critic: Params
    actor_optimizer: Adam
    critic_optimizer: Adam
    generator: torch.Generator
    updates: int = 0


def build(
    settings: FastTd3Settings, shapes: Shapes, *, network_seed: int, noise_seed: int, device: torch.device = CPU
) -> FastTd3:
    """Return a learner at its start; networks and noise come from their own seeds.

    Networks are made on the CPU, so that they start alike on every device.
    """
    init = torch.Generator().manual_seed(network_seed)
    actor_sizes, critic_sizes = _sizes(settings, shapes)
    actor = init_mlp(actor_sizes, generator=init)
    last = len(settings.actor_hidden)
    actor[f"{last}.weight"].normal_(0, LAST_LAYER_STD, generator=init)
    actor[f"{last}.bias"].zero_()
    critic = init_twin(critic_sizes, layer_norm=False, generator=init)
    actor, critic = moved(actor, device), moved(critic, device)
    require_grad(actor, critic)
    return FastTd3(
        settings=settings,
        atoms=support(settings.v_min, settings.v_max, settings.atoms).to(device),
        actor=actor,
        target_actor=copy_of(actor),
        critic=critic,
        target_critic=copy_of(critic),
        actor_optimizer=_adamw(actor, settings),
        critic_optimizer=_adamw(critic, settings),
        generator=torch.Generator(device).manual_seed(noise_seed),
    )


def network_shapes(settings: FastTd3Settings, shapes: Shapes) -> dict[str, TensorShapes]:
    """Return the shape of every tensor of the networks, without making one."""
    actor_sizes, critic_sizes = _sizes(settings, shapes)
    return {
        "actor": mlp_shapes(actor_sizes),
        "critic": twin_shapes(mlp_shapes(critic_sizes, layer_norm=False)),
    }


def _sizes(settings: FastTd3Settings, shapes: Shapes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return (
        (shapes.obs, *settings.actor_hidden, shapes.action),
        (shapes.critic_obs + shapes.action, *settings.critic_hidden, settings.atoms),
    )


def exploration(settings: FastTd3Settings, num_envs: int, action_dim: int) -> Exploration:
    """Return the collector's source of noise."""
    return ScaledNoise(num_envs, action_dim, low=settings.noise_scale_min, high=settings.noise_scale_max)


def act(_settings: FastTd3Settings, actor: Params, obs: Tensor, noise: Tensor) -> Tensor:
    """Return exploring actions, (num_envs, |A|) in [−1, 1], for scaled normal `noise` of that shape."""
    return (torch.tanh(mlp(actor, obs)) + noise).clamp(-1, 1)


def update(fast: FastTd3, batch: Batch) -> dict[str, Tensor]:
    """Take one gradient update on a batch; return detached scalars to log."""
    return step(fast, batch, actor=begin(fast))


def begin(fast: FastTd3) -> bool:
    """Count an update; return whether it moves the actor. `step` computes with tensors alone."""
    fast.updates += 1
    return fast.updates % fast.settings.policy_delay == 0


def step(fast: FastTd3, batch: Batch, *, actor: bool) -> dict[str, Tensor]:
    """Do what `update` does once it has been counted."""
    s = fast.settings
    with span("critic"):
        info = _update_critic(fast, batch)
    if actor:
        with span("actor"):
            info |= _update_actor(fast, batch)
    with span("target"):
        polyak_(fast.target_critic, fast.critic, s.tau)
        polyak_(fast.target_actor, fast.actor, s.tau)
    return info


def _update_critic(fast: FastTd3, batch: Batch) -> dict[str, Tensor]:
    s = fast.settings
    with torch.no_grad():
        noise = s.target_noise * standard_normal(batch.action.shape, fast.generator)
        noise.clamp_(-s.target_noise_clip, s.target_noise_clip)
        next_action = (torch.tanh(mlp(fast.target_actor, batch.next_obs)) + noise).clamp(-1, 1)
        p1, p2 = (logits.softmax(-1) for logits in twin(fast.target_critic, batch.next_critic_obs, next_action))
        lower = expectation(p1, fast.atoms) < expectation(p2, fast.atoms)
        z = batch.reward[:, None] + s.gamma * batch.bootstrap[:, None] * fast.atoms
        m = project_categorical(z, torch.where(lower[:, None], p1, p2), fast.atoms)
    q1, q2 = twin(fast.critic, batch.critic_obs, batch.action)
    loss = cross_entropy(m, q1) + cross_entropy(m, q2)
    fast.critic_optimizer.step(loss)
    return {"critic_loss": loss.detach(), "q_mean": expectation(m, fast.atoms).mean(), "edge_mass": edge_mass(m)}


def _update_actor(fast: FastTd3, batch: Batch) -> dict[str, Tensor]:
    action = torch.tanh(mlp(fast.actor, batch.obs))
    q1, q2 = (expectation(logits.softmax(-1), fast.atoms) for logits in twin(fast.critic, batch.critic_obs, action))
    loss = -torch.minimum(q1, q2).mean()
    fast.actor_optimizer.step(loss)
    return {"actor_loss": loss.detach()}


def _adamw(params: Params, settings: FastTd3Settings) -> Adam:
    return Adam(params, settings.learning_rate, beta2=settings.beta2, weight_decay=settings.weight_decay)


def state(fast: FastTd3) -> Params:
    """Return every live tensor of the learner under a unique name; random streams and counters stand apart."""
    return named(
        {
            "actor": fast.actor,
            "target_actor": fast.target_actor,
            "critic": fast.critic,
            "target_critic": fast.target_critic,
            "actor_optimizer": fast.actor_optimizer.state(),
            "critic_optimizer": fast.critic_optimizer.state(),
        }
    )
