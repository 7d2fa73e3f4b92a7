"""Reacher-v5: a two-joint planar arm whose fingertip must reach a target drawn anew in every episode."""

from collections.abc import Mapping

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
from rl_core.envs.task import Mirror, Reflection, SimulationView, Task

# Body numbers in reacher.xml (world, body0, body1, fingertip, target).
_FINGERTIP, _TARGET = 3, 4
_TARGET_RADIUS_M = 0.2
_REACHED_M = 0.02


def _offset(derived: Mapping[str, Array]) -> Array:
    xpos = derived["xpos"]  # (num_envs, nbody, 3)
    return xpos[:, _FINGERTIP] - xpos[:, _TARGET]


def cost_distance(step: Transition) -> Array:
    """Distance from fingertip to target, in m."""
    return np.sqrt(np.square(_offset(step.derived)).sum(axis=1))


def reward_reached(step: Transition) -> Array:
    """1 while the fingertip is within 2 cm of the target."""
    return (cost_distance(step) < _REACHED_M).astype(np.float64)


class Reacher(Task):
    """Gymnasium's Reacher-v5; `standard` is its reward, `sparse` pays only for being at the target."""

    name = "Reacher-v5"
    model_file = "reacher.xml"
    max_episode_steps = 50
    settings = {"frame_skip": 2}
    reads = ("xpos", "qfrc_actuator")
    terms = named_terms(cost_distance, cost_control, reward_reached, cost_power, cost_action_rate)
    rewards = {
        "standard": {"cost_distance": -1.0, "cost_control": -1.0},
        "sparse": {"reward_reached": 1.0, "cost_control": -0.1},
    }
    yardsticks = named_yardsticks(
        Yardstick("final_distance", cost_distance, unit="m", better="lower", reduce="last"),
        Yardstick("time_at_target", reward_reached, unit="share of steps", better="higher", reduce="mean"),
        ENERGY,
        ACTION_RATE,
    )
    headline = "final_distance"
    mirror = Mirror(  # at the x axis
        observation=Reflection((1, 1, -1, -1, 1, -1, -1, -1, 1, -1)), action=Reflection((-1, -1))
    )

    def observation(self, simulation: SimulationView) -> Array:
        angles = simulation.qpos[:, :2]
        target, velocity = simulation.qpos[:, 2:], simulation.qvel[:, :2]
        offset = _offset(simulation.derived)[:, :2]
        return np.concatenate((np.cos(angles), np.sin(angles), target, velocity, offset), axis=1)

    def terminated(self, simulation: SimulationView) -> Bool:
        return np.zeros(len(simulation.qpos), bool)

    def initial_state(self, rng: np.random.Generator, qpos0: Array, qvel0: Array) -> tuple[Array, Array]:
        qpos = qpos0 + rng.uniform(-0.1, 0.1, qpos0.shape)
        qpos[-2:] = _target_in_disc(rng)
        qvel = qvel0 + rng.uniform(-0.005, 0.005, qvel0.shape)
        qvel[-2:] = 0.0
        return qpos, qvel


def _target_in_disc(rng: np.random.Generator) -> Array:
    while True:
        target = rng.uniform(-_TARGET_RADIUS_M, _TARGET_RADIUS_M, 2)
        if np.linalg.norm(target) < _TARGET_RADIUS_M:
            return target
