"""What a task is: a MuJoCo model, an observation, a start, an end, reward terms and yardsticks."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from rl_core.arrays import Array, Bool
from rl_core.envs.rewards import Term, Yardstick
from rl_core.errors import SettingsError
from rl_core.wording import nearest, shown

Setting = bool | int | float

_LARGEST = 1e6  # of any setting: beyond it a simulation only fails later and less clearly
_MOST = 1_000  # of a whole number, such as the physics steps of a control step


class SimulationView(Protocol):
    """The live state of all simulations, as observations and termination read it."""

    qpos: Array  # (num_envs, nq)
    qvel: Array  # (num_envs, nv)
    derived: Mapping[str, Array]  # one array per name in `Task.reads`, (num_envs, ...)


@dataclass(frozen=True, slots=True)
class Reflection:
    """A signed permutation of coordinates: x'[i] = sign[i] · x[permutation[i]]. Applied twice it changes nothing."""

    signs: tuple[int, ...]
    permutation: tuple[int, ...] | None = None  # None: every coordinate stays where it is


@dataclass(frozen=True, slots=True)
class Mirror:
    """A symmetry of a task: mirrored observations and actions lead to mirrored observations and equal rewards."""

    observation: Reflection
    action: Reflection
    privileged: Reflection = Reflection(())


class Task(ABC):
    """One task. Subclasses are data and a few pure functions over the whole batch; they know nothing of learning.

    A task's settings are the constructor arguments of the Gymnasium original that shape dynamics, observation or
    termination. Its reward weights are not among them: they belong to the reward.
    """

    name: ClassVar[str]
    model_file: ClassVar[str]  # an XML file that ships with gymnasium
    max_episode_steps: ClassVar[int]  # control steps until an episode is truncated
    settings: ClassVar[Mapping[str, Setting]]  # name -> default
    reads: ClassVar[tuple[str, ...]]  # derived MjData fields that the functions below and the terms read
    terms: ClassVar[Mapping[str, Term]]
    rewards: ClassVar[Mapping[str, Mapping[str, float]]]  # reward name -> term name -> weight
    yardsticks: ClassVar[Mapping[str, Yardstick]]
    headline: ClassVar[str]  # the yardstick that compares arms with different rewards
    mirror: ClassVar[Mirror | None] = None  # for `symmetry: true`

    def __init__(self, **settings: Setting) -> None:
        self.values: dict[str, Setting] = resolve_settings(type(self), settings, where=self.name)

    @property
    def frame_skip(self) -> int:
        """Physics steps per control step."""
        return int(self.values["frame_skip"])

    @abstractmethod
    def observation(self, simulation: SimulationView) -> Array:
        """Return the observations of all environments, (num_envs, obs_dim) float64."""

    def privileged(self, simulation: SimulationView) -> Array:
        """Return what critics alone observe, (num_envs, privileged_dim) float64; nothing by default."""
        return np.zeros((len(simulation.qpos), 0))

    @abstractmethod
    def terminated(self, simulation: SimulationView) -> Bool:
        """Return which environments have reached a true end, (num_envs,)."""

    @abstractmethod
    def initial_state(self, rng: np.random.Generator, qpos0: Array, qvel0: Array) -> tuple[Array, Array]:
        """Draw one start: positions (nq,) and velocities (nv,), given the model's defaults."""


def resolve_settings(task: type[Task], given: Mapping[str, object], *, where: str) -> dict[str, Setting]:
    """Return the task's settings with `given` in place of the defaults.

    Raises:
        SettingsError: an unknown name, or a value of another type than the default's or out of range.
    """
    resolved = dict(task.settings)
    for name, value in given.items():
        if name not in resolved:
            raise SettingsError(f"{where}: {task.name} has no setting {shown(name)}{nearest(name, resolved)}")
        resolved[name] = _checked(value, task.settings[name], f"{where}.{name}")
    return resolved


def _checked(value: object, default: Setting, where: str) -> Setting:
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise SettingsError(f"{where}: expected true or false, got {shown(value)}")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SettingsError(f"{where}: expected a number, got {shown(value)}")
    if isinstance(default, int):
        if not isinstance(value, int) or not 1 <= value <= _MOST:
            raise SettingsError(f"{where}: expected a whole number in [1, {_MOST}], got {shown(value)}")
        return value
    if not 0 <= value <= _LARGEST:
        raise SettingsError(f"{where}: expected a number in [0, {_LARGEST:g}], got {shown(value)}")
    return float(value)
