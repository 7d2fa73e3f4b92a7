"""The settings of a run: every field typed, with unit and range. Algorithms' settings and presets: `presets`.

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
from rl_core.presets import PRESETS, AlgorithmSettings, CategoricalSettings, FastTd3Settings, Preset
from rl_core.wording import nearest, shown

REWARD_KEYS = ("reward", "reward_weights")
TASK_KEYS = ("task", "task_settings")


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
    learning_starts: int = 10_000  # transitions collected before the first update
    warmup: str = "uniform"  # actions until learning starts: uniform random ones, or the untrained policy's
    collection: str = "pipelined"  # pipelined: overlap by one chunk; lockstep: alternate; async: run free
    max_updates_per_env_step: float | None = None  # async alone: the learner waits beyond this ratio; None: never
    normalize_observations: bool = False  # running mean and deviation of every observation acted on
    normalize_rewards: bool = False  # running deviation of discounted returns
    symmetry: bool = False  # half of each batch is drawn, the other half is its mirror image
    eval_interval: int = 10_000  # env steps between two evaluations (and policy snapshots)
    eval_episodes: int = 10  # episodes per evaluation
    log_interval: int = 1_000  # env steps between two rows of progress.csv
    checkpoint_interval: int = 10_000  # env steps between two resumable checkpoints
    device: str = "cpu"  # where the learner computes; never derived from the machine
    compile: bool = False  # cuda alone: torch compiles the update
    cuda_graph: bool = False  # cuda alone: the update is captured once and replayed
    bf16: bool = False  # cuda alone: the networks' products in bfloat16, where the algorithm allows it
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
    def total_updates(self) -> int:
        """Gradient updates of the whole run, for schedules; in `async` mode a nominal number."""
        chunk = self.num_envs * self.vector_steps_per_chunk
        skipped = math.ceil(self.first_update_at / chunk) - 1  # chunks that end below the threshold
        return (self.vector_steps - skipped * self.vector_steps_per_chunk) * self.updates_each_vector_step

    @property
    def most_updates(self) -> int:
        """The most gradient updates that the run can take: `total_updates`, within the limit of `async` mode."""
        limit = self.max_updates_per_env_step
        if limit is None:
            return self.total_updates
        return min(self.total_updates, int(limit * self.vector_steps * self.num_envs))

    @property
    def largest_value(self) -> float:
        """The largest discounted return that the critics can hold; infinite for scalar critics."""
        learner = self.learner
        return min(abs(learner.v_min), abs(learner.v_max)) if isinstance(learner, CategoricalSettings) else math.inf

    @property
    def reproducible(self) -> bool:
        """Whether the same seed gives the same bytes."""
        return self.irreproducible_because is None

    @property
    def irreproducible_because(self) -> str | None:
        """What it is that makes the same seed give other bytes, as the end of a sentence; None if it does not."""
        if self.collection == "async":
            return "collects asynchronously"
        return None if self.device == "cpu" else "trains on a GPU"

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


_RUN_FIELDS = tuple(
    f.name for f in fields(RunSettings) if f.name not in (*TASK_KEYS, *REWARD_KEYS, "weights", "algorithm", "learner")
)
_CHOICES = {
    "collection": ("pipelined", "lockstep", "async"),
    "warmup": ("uniform", "policy"),
    "device": ("cpu", "cuda"),
}
_CUDA_ALONE = ("compile", "cuda_graph", "bf16")

LARGEST_WEIGHT = 1e20  # beyond it a float32 reward overflows sooner or later

# field -> (smallest, largest) value that makes sense
_RANGES: dict[str, tuple[float, float]] = {
    "env_steps": (1, 10**12),
    "num_envs": (1, 65_536),
    "vector_steps_per_chunk": (1, 10**6),
    "updates_per_vector_step": (1, 10**6),
    "batch_size": (1, 10**7),
    "replay_capacity": (1, 10**10),
    "learning_starts": (0, 10**12),
    "max_updates_per_env_step": (1e-6, 1e6),
    "eval_interval": (1, 10**12),
    "eval_episodes": (1, 10_000),
    "log_interval": (1, 10**12),
    "checkpoint_interval": (1, 10**12),
    "learner_threads": (1, 128),
    "collector_threads": (1, 128),
    "hang_timeout_s": (0.1, 86_400),
    "gamma": (0, 1),
    "tau": (0, 1),
    "learning_rate": (1e-12, 1),
    "final_learning_rate": (0, 1),
    "beta2": (0, 1),
    "weight_decay": (0, 100),
    "policy_delay": (1, 1_000),
    "actor_width": (1, 65_536),
    "critic_width": (1, 65_536),
    "blocks": (0, 100),
    "batch_norm_momentum": (1e-6, 1),
    "atoms": (2, 10_000),
    "v_min": (-1e9, 1e9),
    "v_max": (-1e9, 1e9),
    "noise_exponent": (0, 100),
    "noise_repeats_max": (1, 10_000),
    "noise_scale_min": (1e-6, 10),
    "noise_scale_max": (1e-6, 10),
    "initial_alpha": (1e-12, 1e6),
    "target_entropy": (-1e6, 1e6),
    "exploration_noise": (0, 10),
    "target_noise": (0, 10),
    "target_noise_clip": (0, 10),
}

_ABOVE_LOWEST = ("tau",)  # at 0 nothing would be learned
_BELOW_HIGHEST = ("beta2",)  # at 1 Adam divides by zero

_FLOAT32_EPSILON = 2.0**-23
_NEAREST_ATOMS = 1e-30  # the projection divides by their distance, in float32


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
        raise SettingsError(f"{where}.algorithm: unknown algorithm {shown(algorithm)}{nearest(algorithm, PRESETS)}")
    preset = PRESETS[algorithm]
    _refuse_unknown_keys(arm, preset, where)
    task = envs.task(_required(arm, "task", where), where=f"{where}.task")
    _required(arm, "env_steps", where)
    names = [f.name for f in fields(preset.settings)]
    learner = preset.settings(**_read(preset.settings, arm, names, where))
    run = _with_defaults(preset, _read(RunSettings, arm, _RUN_FIELDS, where))
    settings = RunSettings(
        task=task.name,
        task_settings=resolve_settings(task, _mapping(arm, "task_settings", where), where=f"{where}.task_settings"),
        reward=_reward_name(task, arm, where),
        weights=_weights(task, arm, where),
        algorithm=algorithm,
        learner=learner,
        **run,
    )
    _check_together(settings, task, arm, where)
    return settings


def _with_defaults(preset: Preset, given: Mapping[str, Any]) -> dict[str, Any]:
    """Fill in what the preset fixes of a run; functions see the fields before them, and `num_envs` always."""
    run = {"num_envs": 1, **preset.run, **given}
    for name, value in preset.run.items():
        if name not in given and callable(value):
            run[name] = value(run)
    return run


def _required(arm: Mapping[str, object], key: str, where: str) -> object:
    if key not in arm:
        raise SettingsError(f"{where}: the key {shown(key)} is missing{nearest(key, map(str, arm)) if arm else ''}")
    return arm[key]


def _refuse_unknown_keys(arm: Mapping[str, object], preset: Preset, where: str) -> None:
    known = [*TASK_KEYS, *REWARD_KEYS, "algorithm", *_RUN_FIELDS, *(f.name for f in fields(preset.settings))]
    for key in arm:
        if key not in known:
            raise SettingsError(f"{where}: unknown key {shown(key)}{nearest(key, known)}")


def _mapping(arm: Mapping[str, object], key: str, where: str) -> Mapping[str, object]:
    value = arm.get(key, {})
    if not isinstance(value, Mapping):
        raise SettingsError(f"{where}.{key}: expected a mapping of names to values, got {shown(value)}")
    return value


def _reward_name(task: type[Task], arm: Mapping[str, object], where: str) -> str:
    name = arm.get("reward", "standard")
    if not isinstance(name, str) or name not in task.rewards:
        raise SettingsError(f"{where}.reward: {task.name} has no reward {shown(name)}{nearest(name, task.rewards)}")
    return name


def _weights(task: type[Task], arm: Mapping[str, object], where: str) -> dict[str, float]:
    weights = dict(task.rewards[_reward_name(task, arm, where)])
    for term, value in _mapping(arm, "reward_weights", where).items():
        place = f"{where}.reward_weights.{term}"
        if term not in task.terms:
            raise SettingsError(f"{place}: {task.name} has no term {shown(term)}{nearest(term, task.terms)}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise SettingsError(f"{place}: expected a number, got {shown(value)}")
        if not -LARGEST_WEIGHT <= value <= LARGEST_WEIGHT:
            raise SettingsError(f"{place}: expected a number within ±{LARGEST_WEIGHT:g}, got {shown(value)}")
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
        return _choice(value, _CHOICES[name], where)
    return _number(value, hint, name, where)


def _number(value: object, hint: type, name: str, where: str) -> int | float:
    kind = "a whole number" if hint is int else "a number"
    if isinstance(value, bool) or not isinstance(value, int if hint is int else int | float):
        raise SettingsError(f"{where}: expected {kind}, got {shown(value)}")
    low, high = _RANGES[name]
    above, below = name in _ABOVE_LOWEST, name in _BELOW_HIGHEST
    if not low <= value <= high or (above and value == low) or (below and value == high):
        span = f"{'(' if above else '['}{low:g}, {high:g}{')' if below else ']'}"
        raise SettingsError(f"{where}: expected {kind} in {span}, got {shown(value)}")
    return hint(value)


def _layer_sizes(value: object, where: str) -> tuple[int, ...]:
    sizes = value if isinstance(value, list | tuple) else ()
    if not sizes or not all(isinstance(n, int) and not isinstance(n, bool) and 1 <= n <= 65_536 for n in sizes):
        raise SettingsError(f"{where}: expected a list of layer sizes such as [256, 256], got {shown(value)}")
    return tuple(sizes)


def _choice(value: object, known: tuple[str, ...], where: str) -> str:
    if not isinstance(value, str) or value not in known:
        raise SettingsError(f"{where}: expected {' or '.join(known)}, got {shown(value)}")
    return value


def _check_together(settings: RunSettings, task: type[Task], arm: Mapping[str, object], where: str) -> None:
    _check_options(settings, task, where)
    _check_device(settings, where)
    batch, starts, capacity = (
        _with_source(name, value, settings, arm)
        for name, value in (
            ("batch_size", settings.batch_size),
            ("learning_starts", settings.learning_starts),
            ("replay_capacity", settings.replay_capacity),
        )
    )
    if settings.batch_size > settings.replay_capacity:
        raise SettingsError(f"{where}: {batch} is larger than {capacity}")
    chunk = settings.num_envs * settings.vector_steps_per_chunk
    if chunk > settings.replay_capacity:
        raise SettingsError(
            f"{where}: one chunk (num_envs × vector_steps_per_chunk = {chunk}) is larger than {capacity}"
        )
    if chunk > settings.env_steps:
        raise SettingsError(
            f"{where}: one chunk (num_envs × vector_steps_per_chunk = {chunk}) is longer than the run's "
            f"{settings.env_steps} env steps"
        )
    if settings.first_update_at >= settings.env_steps:
        raise SettingsError(
            f"{where}: learning starts after {settings.first_update_at} env steps, the larger of {batch} and "
            f"{starts}, but env_steps is {settings.env_steps}: nothing would be learned"
        )
    if settings.most_updates < settings.learner.policy_delay:
        raise SettingsError(
            f"{where}: the run takes {settings.most_updates} updates, fewer than policy_delay "
            f"({settings.learner.policy_delay}): its policy would not be learned"
        )


def _with_source(name: str, value: int, settings: RunSettings, arm: Mapping[str, object]) -> str:
    """Return `name (value)`, and where the value comes from if the arm does not name it."""
    source = "" if name in arm else " from the preset" if name in PRESETS[settings.algorithm].run else " by default"
    return f"{name} ({value}{source})"


def _check_options(settings: RunSettings, task: type[Task], where: str) -> None:
    learner = settings.learner
    if isinstance(learner, CategoricalSettings):
        _check_support(learner, settings, where)
    if isinstance(learner, FastTd3Settings) and not learner.noise_scale_min < learner.noise_scale_max:
        raise SettingsError(
            f"{where}: noise_scale_min ({learner.noise_scale_min:g}) must lie below noise_scale_max "
            f"({learner.noise_scale_max:g})"
        )
    if settings.symmetry and task.mirror is None:
        raise SettingsError(f"{where}.symmetry: {task.name} has no mirror, so its batches cannot be doubled")
    if settings.symmetry and settings.batch_size % 2:
        raise SettingsError(f"{where}: symmetry needs an even batch_size, got {settings.batch_size}")
    if settings.max_updates_per_env_step is not None and settings.collection != "async":
        raise SettingsError(f"{where}.max_updates_per_env_step: only `collection: async` has such a limit")


def _check_support(learner: CategoricalSettings, settings: RunSettings, where: str) -> None:
    low, high = learner.v_min, learner.v_max
    if not low < high:
        raise SettingsError(f"{where}: v_min ({low:g}) must lie below v_max ({high:g})")
    distance = (high - low) / (learner.atoms - 1)
    if distance < max(_NEAREST_ATOMS, 16 * _FLOAT32_EPSILON * max(abs(low), abs(high))):
        raise SettingsError(
            f"{where}: {learner.atoms} atoms from v_min ({low!r}) to v_max ({high!r}) lie closer than float32 can tell"
        )
    if settings.normalize_rewards and min(-low, high) < distance:
        raise SettingsError(
            f"{where}: normalize_rewards needs a support that reaches an atom beyond 0 on both sides, got v_min "
            f"{low:g} and v_max {high:g} with atoms {distance:g} apart"
        )


def _check_device(settings: RunSettings, where: str) -> None:
    asked = next((name for name in _CUDA_ALONE if getattr(settings, name)), None)
    if asked is not None and settings.device != "cuda":
        raise SettingsError(f"{where}.{asked}: needs `device: cuda`, got {shown(settings.device)}")
    if settings.bf16 and not PRESETS[settings.algorithm].bf16:
        allowed = ", ".join(sorted(name for name, preset in PRESETS.items() if preset.bf16))
        raise SettingsError(f"{where}.bf16: {settings.algorithm} computes in float32 alone; bf16 is for {allowed}")
