"""InvertedPendulum-v5: a cart that must keep one pole upright."""

import numpy as np

from rl_core.arrays import Array, Bool
from rl_core.envs.inverted_double_pendulum import cart_offset
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
from rl_core.envs.task import SimulationView, Task

_FALLEN_RAD = 0.2  # angle of the pole beyond which an episode ends


def lean(step: Transition) -> Array:
    """Mean angle between the pole and upright."""
    return np.abs(step.qpos[:, 1])


class InvertedPendulum(Task):
    """Gymnasium's InvertedPendulum-v5; `standard` is its reward, `gentle` also charges for control."""

    name = "InvertedPendulum-v5"
    model_file = "inverted_pendulum.xml"
    max_episode_steps = 1000
    settings = {"frame_skip": 2, "reset_noise_scale": 0.01}
    reads = ("qfrc_actuator",)
    terms = named_terms(reward_alive, cost_control, cost_power, cost_action_rate)
    rewards = {
        "standard": {"reward_alive": 1.0},
        "gentle": {"reward_alive": 1.0, "cost_control": -0.1},
    }
    yardsticks = named_yardsticks(
        FALLS,
        Yardstick("lean", lean, unit="rad", better="lower", reduce="mean"),
        Yardstick("cart_offset", cart_offset, unit="m", better="lower", reduce="mean"),
        ENERGY,
        ACTION_RATE,
    )
    headline = "falls"
    # No mirror: the model's pole leans by 1 mm.

    def observation(self, simulation: SimulationView) -> Array:
        return np.concatenate((simulation.qpos, simulation.qvel), axis=1)

    def terminated(self, simulation: SimulationView) -> Bool:
        finite = np.isfinite(self.observation(simulation)).all(axis=1)
        return ~finite | (np.abs(simulation.qpos[:, 1]) > _FALLEN_RAD)

    def initial_state(self, rng: np.random.Generator, qpos0: Array, qvel0: Array) -> tuple[Array, Array]:
        scale = float(self.values["reset_noise_scale"])
        qpos = qpos0 + rng.uniform(-scale, scale, qpos0.shape)
        return qpos, qvel0 + rng.uniform(-scale, scale, qvel0.shape)
