"""InvertedDoublePendulum-v5: a cart that must keep two linked poles upright."""

import numpy as np

from rl_core.arrays import Array, Bool
from rl_core.envs.rewards import (
    ACTION_RATE,
    ENERGY,
    FALLS,
    Transition,
    Yardstick,
    cost_action_rate,
    cost_control,
    cost_power,
    named_terms,
    named_yardsticks,
    reward_alive,
)
from rl_core.envs.task import Mirror, Reflection, SimulationView, Task

_FALLEN_M = 1.0  # height of the upper pole's tip at which an episode ends


def _tip(site_xpos: Array) -> tuple[Array, Array]:
    return site_xpos[:, 0, 0], site_xpos[:, 0, 2]


def cost_position(step: Transition) -> Array:
    """Distance of the tip from the upright position: 0.01 x² + (y − 2)²."""
    x, y = _tip(step.derived["site_xpos"])
    return 0.01 * x**2 + (y - 2) ** 2


def cost_velocity(step: Transition) -> Array:
    """Angular speed of the poles: 0.001 v₁² + 0.005 v₂²."""
    return 1e-3 * step.qvel[:, 1] ** 2 + 5e-3 * step.qvel[:, 2] ** 2


def cart_offset(step: Transition) -> Array:
    """Mean distance of the cart from the middle of the rail."""
    return np.abs(step.qpos[:, 0])


class InvertedDoublePendulum(Task):
    """Gymnasium's InvertedDoublePendulum-v5; `standard` is its reward, `gentle` also charges for control."""

    name = "InvertedDoublePendulum-v5"
    model_file = "inverted_double_pendulum.xml"
    max_episode_steps = 1000
    settings = {"frame_skip": 5, "reset_noise_scale": 0.1}
    reads = ("site_xpos", "qfrc_constraint", "qfrc_actuator")
    terms = named_terms(
        reward_alive,
        cost_position,
        cost_velocity,
        cost_control,
        cost_power,
        cost_action_rate,
    )
    rewards = {
        "standard": {"reward_alive": 10.0, "cost_position": -1.0, "cost_velocity": -1.0},
        "gentle": {"reward_alive": 10.0, "cost_position": -1.0, "cost_velocity": -1.0, "cost_control": -5.0},
    }
    yardsticks = named_yardsticks(
        FALLS,
        Yardstick("cart_offset", cart_offset, unit="m", better="lower", reduce="mean"),
        ENERGY,
        ACTION_RATE,
    )
    headline = "falls"
    mirror = Mirror(observation=Reflection((-1, -1, -1, 1, 1, -1, -1, -1, -1)), action=Reflection((-1,)))  # left, right

    def observation(self, simulation: SimulationView) -> Array:
        qpos = simulation.qpos
        return np.concatenate(
            (
                qpos[:, :1],
                np.sin(qpos[:, 1:]),
                np.cos(qpos[:, 1:]),
                np.clip(simulation.qvel, -10, 10),
                np.clip(simulation.derived["qfrc_constraint"][:, :1], -10, 10),
            ),
            axis=1,
        )

    def terminated(self, simulation: SimulationView) -> Bool:
        _, height = _tip(simulation.derived["site_xpos"])
        return height <= _FALLEN_M

    def initial_state(self, rng: np.random.Generator, qpos0: Array, qvel0: Array) -> tuple[Array, Array]:
        scale = float(self.values["reset_noise_scale"])
        qpos = qpos0 + rng.uniform(-scale, scale, qpos0.shape)
        return qpos, qvel0 + scale * rng.standard_normal(qvel0.shape)
