"""HalfCheetah-v5: a planar two-legged runner with six torque motors."""

import numpy as np

from rl_core.arrays import Array, Bool
from rl_core.envs.rewards import (
    ACTION_RATE,
    ENERGY,
    Transition,
    Yardstick,
    cost_action_rate,
    cost_control,
    cost_power,
    named_terms,
    named_yardsticks,
)
from rl_core.envs.task import SimulationView, Task


def reward_forward(step: Transition) -> Array:
    """Forward velocity of the torso, in m/s."""
    return (step.qpos[:, 0] - step.qpos_before[:, 0]) / step.dt_s


def distance(step: Transition) -> Array:
    """Distance covered forward."""
    return step.qpos[:, 0] - step.qpos_before[:, 0]


class HalfCheetah(Task):
    """Gymnasium's HalfCheetah-v5; `standard` is its reward, `lean` also charges for mechanical power."""

    name = "HalfCheetah-v5"
    model_file = "half_cheetah.xml"
    max_episode_steps = 1000
    settings = {"frame_skip": 5, "reset_noise_scale": 0.1, "exclude_current_positions_from_observation": True}
    reads = ("qfrc_actuator",)
    terms = named_terms(reward_forward, cost_control, cost_power, cost_action_rate)
    rewards = {
        "standard": {"reward_forward": 1.0, "cost_control": -0.1},
        "lean": {"reward_forward": 1.0, "cost_control": -0.1, "cost_power": -0.001},
    }
    yardsticks = named_yardsticks(
        Yardstick("distance", distance, unit="m", better="higher", reduce="sum"),
        Yardstick("speed", reward_forward, unit="m/s", better="higher", reduce="mean"),
        ENERGY,
        ACTION_RATE,
    )
    headline = "distance"

    def observation(self, simulation: SimulationView) -> Array:
        first = 1 if self.values["exclude_current_positions_from_observation"] else 0
        return np.concatenate((simulation.qpos[:, first:], simulation.qvel), axis=1)

    def terminated(self, simulation: SimulationView) -> Bool:
        return np.zeros(len(simulation.qpos), bool)

    def initial_state(self, rng: np.random.Generator, qpos0: Array, qvel0: Array) -> tuple[Array, Array]:
        scale = float(self.values["reset_noise_scale"])
        qpos = qpos0 + rng.uniform(-scale, scale, qpos0.shape)
        return qpos, qvel0 + scale * rng.standard_normal(qvel0.shape)
