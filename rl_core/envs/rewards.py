"""Rewards as named terms, and yardsticks that no reward can bend.

A term is a pure function of one control step of all environments. Its name starts with `reward_` or `cost_`, its
one-sentence docstring is its label, and its weight stands in the settings: positive for a reward, negative for a
cost. What the learner is fed is `float32(Σ weight · term)`; the rounding is kept as the residual.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rl_core.arrays import Array, Bool


@dataclass(frozen=True, slots=True)
class Transition:
    """One control step of all environments, as terms, yardsticks and termination see it. All rows are float64."""

    qpos_before: Array  # (num_envs, nq)
    qpos: Array  # (num_envs, nq)
    qvel: Array  # (num_envs, nv)
    derived: Mapping[str, Array]  # MjData fields that the task reads, one substep behind the state
    action: Array  # (num_envs, nu), the control that was applied
    previous_action: Array  # (num_envs, nu), equal to `action` in an episode's first step
    terminated: Bool  # (num_envs,)
    dt_s: float


TermFunction = Callable[[Transition], Array]


@dataclass(frozen=True, slots=True)
class Term:
    """A reward term: `function` maps a transition to one float64 per environment, (num_envs,)."""

    name: str
    function: TermFunction

    @property
    def doc(self) -> str:
        """The label that reports show."""
        return (self.function.__doc__ or self.name).strip()

    def __call__(self, transition: Transition) -> Array:
        return self.function(transition)


@dataclass(frozen=True, slots=True)
class Yardstick:
    """A reward-free measure of an episode: sum, mean or last value of `function` over its steps."""

    name: str
    function: TermFunction
    unit: str
    better: Literal["higher", "lower", "neither"]
    reduce: Literal["sum", "mean", "last"]

    @property
    def doc(self) -> str:
        """The label that reports show."""
        return (self.function.__doc__ or self.name).strip()


def named_terms(*functions: TermFunction) -> dict[str, Term]:
    """Return the functions as terms under their own names, in the order given."""
    return {name: Term(name, f) for f in functions for name in [getattr(f, "__name__", "")]}


def reward_alive(step: Transition) -> Array:
    """1 in every step that does not end in a fall."""
    return (~step.terminated).astype(np.float64)


def cost_control(step: Transition) -> Array:
    """Sum of squared actions."""
    return np.square(step.action).sum(axis=1)


def cost_power(step: Transition) -> Array:
    """Mechanical power of all actuators, in watts: the sum of |torque · joint velocity|."""
    return np.abs(step.derived["qfrc_actuator"] * step.qvel).sum(axis=1)


def cost_action_rate(step: Transition) -> Array:
    """Sum of squared changes of the action from one step to the next."""
    return np.square(step.action - step.previous_action).sum(axis=1)


def energy(step: Transition) -> Array:
    """Mechanical energy spent by the actuators, ∫ Σ|torque · joint velocity| dt."""
    return cost_power(step) * step.dt_s


def action_rate(step: Transition) -> Array:
    """Mean absolute change of an action from one step to the next."""
    return np.abs(step.action - step.previous_action).mean(axis=1)


def fall(step: Transition) -> Array:
    """1 if the episode ended in a fall."""
    return step.terminated.astype(np.float64)


ENERGY = Yardstick("energy", energy, unit="J", better="lower", reduce="sum")
ACTION_RATE = Yardstick("action_rate", action_rate, unit="1/step", better="lower", reduce="mean")
FALLS = Yardstick("falls", fall, unit="share of episodes", better="lower", reduce="sum")


def named_yardsticks(*items: Yardstick) -> dict[str, Yardstick]:
    """Return the yardsticks under their names, in the order given."""
    return {item.name: item for item in items}
