"""The settings of a run: presets as data, every field typed, with unit, range and source.

`resolve` turns one arm of `params.yaml` (or any mapping) into a frozen `RunSettings`. It fills what the arm leaves
out from the algorithm's preset and refuses what it does not know. Importing this module loads neither torch nor
MuJoCo.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from rl_core import envs
from rl_core.envs.task import Task, resolve_settings
from rl_core.errors import SettingsError
from rl_core.wording import nearest, shown

REWARD_KEYS = ("reward", "reward_weights")
TASK_KEYS = ("task", "task_settings")


@dataclass(frozen=True, slots=True, kw_only=True)
class SacSettings:
    """SAC with automatic temperature (Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications")."""

    gamma: float = 0.99  # discount; table 1
    tau: float = 0.005  # share of the online weights in each target average; table 1
    learning_rate: float = 3e-4  # Adam, for actor, critics and temperature; table 1
    policy_delay: int = 1  # critic updates per actor update, counted over the whole run
    actor_hidden: tuple[int, ...] = (256, 256)  # units per layer, ReLU; table 1
    critic_hidden: tuple[int, ...] = (256, 256)  # units per layer, ReLU, two critics; table 1
    critic_layer_norm: bool = False  # layer norm before each ReLU of the critics (not in the paper)
    initial_alpha: float = 1.0  # temperature at the start
    target_entropy: float | None = None  # nats; None means −|A|, section 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Td3Settings:
    """TD3 (Fujimoto et al. 2018, "Addressing Function Approximation Error in Actor-Critic Methods")."""

    gamma: float = 0.99  # discount; appendix C
    tau: float = 0.005  # share of the online weights in each target average; section 6.1
    learning_rate: float = 3e-4  # Adam, for actor and critics; the authors' code
    policy_delay: int = 2  # critic updates per actor and target update, counted over the whole run; section 5.2
    actor_hidden: tuple[int, ...] = (256, 256)  # units per layer, ReLU; the authors' code
    critic_hidden: tuple[int, ...] = (256, 256)  # units per layer, ReLU, two critics; the authors' code
    critic_layer_norm: bool = False  # layer norm before each ReLU of the critics (not in the paper)
    exploration_noise: float = 0.1  # standard deviation, in units of the action range ±1; section 6.1
    target_noise: float = 0.2  # standard deviation of the target policy's noise; section 5.3
    target_noise_clip: float = 0.5  # bound of that noise; section 5.3


AlgorithmSettings = SacSettings | Td3Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Everything that decides what a run computes, apart from its seed."""

    task: str
    task_settings: Mapping[str, bool | int | float]
    reward: str  # name of the reward that `weights` started from
    weights: Mapping[str, float]  # term -> weight; terms that are not named weigh nothing
    algorithm: str  # preset name
    learner: AlgorithmSettings

    env_steps: int  # budget, transitions over all environments
    num_envs: int = 1  # simulations stepped together
    vector_steps_per_chunk: int = 1  # vector steps between two hand-overs of collector and learner
    updates_per_vector_step: int | None = None  # gradient updates; None means one per transition, that is num_envs
    batch_size: int = 256  # transitions per update
    replay_capacity: int = 1_000_000  # transitions
    learning_starts: int = 10_000  # transitions collected with uniform random actions before the first update
    collection: str = "pipelined"  # pipelined: learner and collector overlap by one chunk; lockstep: they alternate
    eval_interval: int = 10_000  # env steps between two evaluations (and policy snapshots)
    eval_episodes: int = 10  # episodes per evaluation
    log_interval: int = 1_000  # env steps between two rows of progress.csv
    checkpoint_interval: int = 10_000  # env steps between two resumable checkpoints
    learner_threads: int = 1  # torch threads of the learner; never derived from the machine
    collector_threads: int = 1  # threads that step the simulations; results do not depend on it
    hang_timeout_s: float = 60.0  # the run fails if the collector takes longer for one vector step

    @property
    def vector_steps(self) -> int:
        """Vector steps in the whole run: the budget, rounded up to whole vector steps."""
        return math.ceil(self.env_steps / self.num_envs)

    @property
    def updates_each_vector_step(self) -> int:
        """Gradient updates per vector step once learning has started."""
        return self.num_envs if self.updates_per_vector_step is None else self.updates_per_vector_step

    @property
    def first_update_at(self) -> int:
        """Transitions in the ring before the first update."""
        return max(self.batch_size, self.learning_starts)

    def to_dict(self) -> dict[str, Any]:
        """Return all resolved fields as one flat, JSON-able dictionary with sorted weights."""
        flat = {**asdict(self), **asdict(self.learner)}
        del flat["learner"]
        flat["weights"] = dict(sorted(self.weights.items()))
        flat["task_settings"] = dict(sorted(self.task_settings.items()))
        return {name: list(value) if isinstance(value, tuple) else value for name, value in flat.items()}


def _td3_learning_starts(env_steps: int) -> int:
    # The authors start after 25 000 steps of 1M, or 1 000 on the short tasks; a tenth of the budget in between.
    return min(25_000, max(1_000, env_steps // 10))


PRESETS: dict[str, type[AlgorithmSettings]] = {"sac": SacSettings, "td3": Td3Settings}

_RUN_FIELDS = tuple(
    f.name for f in fields(RunSettings) if f.name not in (*TASK_KEYS, *REWARD_KEYS, "weights", "algorithm", "learner")
)
_COLLECTIONS = ("pipelined", "lockstep")

_LARGEST_WEIGHT = 1e20  # beyond it a float32 reward overflows sooner or later

# field -> (smallest, largest) value that makes sense
_RANGES: dict[str, tuple[float, float]] = {
    "env_steps": (1, 10**12),
    "num_envs": (1, 65_536),
    "vector_steps_per_chunk": (1, 10**6),
    "updates_per_vector_step": (0, 10**6),
    "batch_size": (1, 10**7),
    "replay_capacity": (1, 10**10),
    "learning_starts": (0, 10**12),
    "eval_interval": (1, 10**12),
    "eval_episodes": (1, 10_000),
    "log_interval": (1, 10**12),
    "checkpoint_interval": (1, 10**12),
    "learner_threads": (1, 1_024),
    "collector_threads": (1, 1_024),
    "hang_timeout_s": (0.1, 86_400),
    "gamma": (0, 1),
    "tau": (0, 1),
    "learning_rate": (0, 1),
    "policy_delay": (1, 1_000),
    "initial_alpha": (1e-12, 1e6),
    "target_entropy": (-1e6, 1e6),
    "exploration_noise": (0, 10),
    "target_noise": (0, 10),
    "target_noise_clip": (0, 10),
}


def resolve(arm: Mapping[str, object], *, where: str) -> RunSettings:
    """Return the settings of a run from an arm, its task, its reward and its algorithm's preset.

    Args:
        arm: keys as in `params.yaml`: task, task_settings, reward, reward_weights, algorithm, env_steps, and any
            field of `RunSettings` or of the algorithm's settings.
        where: what error messages begin with, for instance "params.yaml: arms.sac-speed".

    Raises:
        SettingsError: a key is missing or unknown, a value has the wrong type or range, or two do not go together.
    """
    algorithm = _required(arm, "algorithm", where)
    if not isinstance(algorithm, str) or algorithm not in PRESETS:
        raise SettingsError(f"{where}.algorithm: unknown algorithm {algorithm!r}{nearest(algorithm, PRESETS)}")
    preset = PRESETS[algorithm]
    _refuse_unknown_keys(arm, preset, where)
    task = envs.task(_required(arm, "task", where), where=f"{where}.task")
    _required(arm, "env_steps", where)
    learner = preset(**_read(preset, arm, [f.name for f in fields(preset)], where))
    run = _read(RunSettings, arm, _RUN_FIELDS, where)
    if algorithm == "td3":
        run.setdefault("learning_starts", _td3_learning_starts(run["env_steps"]))
    settings = RunSettings(
        task=task.name,
        task_settings=resolve_settings(task, _mapping(arm, "task_settings", where), where=f"{where}.task_settings"),
        reward=_reward_name(task, arm, where),
        weights=_weights(task, arm, where),
        algorithm=algorithm,
        learner=learner,
        **run,
    )
    _check_together(settings, where)
    return settings


def _required(arm: Mapping[str, object], key: str, where: str) -> object:
    if key not in arm:
        raise SettingsError(f"{where}: the key {key!r} is missing{nearest(key, map(str, arm)) if arm else ''}")
    return arm[key]


def _refuse_unknown_keys(arm: Mapping[str, object], preset: type[AlgorithmSettings], where: str) -> None:
    known = [*TASK_KEYS, *REWARD_KEYS, "algorithm", *_RUN_FIELDS, *(f.name for f in fields(preset))]
    for key in arm:
        if key not in known:
            raise SettingsError(f"{where}: unknown key {key!r}{nearest(key, known)}")


def _mapping(arm: Mapping[str, object], key: str, where: str) -> Mapping[str, object]:
    value = arm.get(key, {})
    if not isinstance(value, Mapping):
        raise SettingsError(f"{where}.{key}: expected a mapping of names to values, got {shown(value)}")
    return value


def _reward_name(task: type[Task], arm: Mapping[str, object], where: str) -> str:
    name = arm.get("reward", "standard")
    if not isinstance(name, str) or name not in task.rewards:
        raise SettingsError(f"{where}.reward: {task.name} has no reward {name!r}{nearest(name, task.rewards)}")
    return name


def _weights(task: type[Task], arm: Mapping[str, object], where: str) -> dict[str, float]:
    weights = dict(task.rewards[_reward_name(task, arm, where)])
    for term, value in _mapping(arm, "reward_weights", where).items():
        place = f"{where}.reward_weights.{term}"
        if term not in task.terms:
            raise SettingsError(f"{place}: {task.name} has no term {term!r}{nearest(term, task.terms)}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise SettingsError(f"{place}: expected a number, got {shown(value)}")
        if not -_LARGEST_WEIGHT <= value <= _LARGEST_WEIGHT:
            raise SettingsError(f"{place}: expected a number within ±{_LARGEST_WEIGHT:g}, got {shown(value)}")
        if value * (-1 if term.startswith("cost_") else 1) < 0:
            sign = "negative" if term.startswith("cost_") else "positive"
            raise SettingsError(f"{place}: the weight of {term} must be {sign} or 0, got {shown(value)}")
        weights[term] = float(value)
    weights = {term: weight for term, weight in weights.items() if weight != 0}
    if not weights:
        raise SettingsError(f"{where}.reward_weights: every term weighs 0, so there is nothing to learn")
    return weights


def _read(
    cls: type[AlgorithmSettings] | type[RunSettings], arm: Mapping[str, object], names: Any, where: str
) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {name: _typed(arm[name], hints[name], name, f"{where}.{name}") for name in names if name in arm}


def _typed(value: object, hint: Any, name: str, where: str) -> Any:
    if get_origin(hint) is UnionType:
        if value is None:
            return None
        hint = next(h for h in get_args(hint) if h is not type(None))
    if get_origin(hint) is tuple:
        return _layer_sizes(value, where)
    if hint is bool:
        if not isinstance(value, bool):
            raise SettingsError(f"{where}: expected true or false, got {shown(value)}")
        return value
    if hint is str:
        return _choice(value, _COLLECTIONS, where)
    return _number(value, hint, name, where)


def _number(value: object, hint: type, name: str, where: str) -> int | float:
    kind = "a whole number" if hint is int else "a number"
    if isinstance(value, bool) or not isinstance(value, int if hint is int else int | float):
        raise SettingsError(f"{where}: expected {kind}, got {shown(value)}")
    low, high = _RANGES[name]
    if not low <= value <= high:
        raise SettingsError(f"{where}: expected {kind} in [{low:g}, {high:g}], got {shown(value)}")
    return hint(value)


def _layer_sizes(value: object, where: str) -> tuple[int, ...]:
    sizes = value if isinstance(value, list | tuple) else ()
    if not sizes or not all(isinstance(n, int) and not isinstance(n, bool) and 1 <= n <= 65_536 for n in sizes):
        raise SettingsError(f"{where}: expected a list of layer sizes such as [256, 256], got {shown(value)}")
    return tuple(sizes)


def _choice(value: object, known: tuple[str, ...], where: str) -> str:
    if not isinstance(value, str) or value not in known:
        raise SettingsError(f"{where}: unknown value {shown(value)}{nearest(value, known)}")
    return value


def _check_together(settings: RunSettings, where: str) -> None:
    if settings.batch_size > settings.replay_capacity:
        raise SettingsError(
            f"{where}: batch_size ({settings.batch_size}) is larger than replay_capacity ({settings.replay_capacity})"
        )
    chunk = settings.num_envs * settings.vector_steps_per_chunk
    if chunk > settings.replay_capacity:
        raise SettingsError(
            f"{where}: one chunk (num_envs × vector_steps_per_chunk = {chunk}) is larger than replay_capacity "
            f"({settings.replay_capacity})"
        )
    if settings.first_update_at >= settings.env_steps:
        raise SettingsError(
            f"{where}: learning starts after {settings.first_update_at} env steps (the larger of batch_size and "
            f"learning_starts), but env_steps is {settings.env_steps}: nothing would be learned"
        )
