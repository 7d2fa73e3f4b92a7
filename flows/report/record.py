"""What was planned and what came of it, at which cost, with which settings, on which machine."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np

from flows.report.data import Data, Exclusion, Run, State
from flows.report.measures import score_exclusions

STATES: tuple[State, ...] = get_args(State)


@dataclass(frozen=True, kw_only=True)
class ArmCount:
    """How far one arm is."""

    arm: str
    planned: int
    evaluated: int
    states: Mapping[State, int]


@dataclass(frozen=True, kw_only=True)
class Completeness:
    """The whole grid, and everything that is left out of the report."""

    planned: int
    finished: int
    evaluated: int
    failed: int
    stale: int  # trained, but not as the arm now asks
    arms: tuple[ArmCount, ...]
    cells: Mapping[str, tuple[tuple[int, State, bool], ...]]  # arm -> (seed, state, evaluated)
    exclusions: tuple[Exclusion, ...]

    @property
    def complete(self) -> bool:
        """Whether every planned run is trained and evaluated."""
        return self.evaluated == self.planned


@dataclass(frozen=True, kw_only=True)
class Spent:
    """One figure of an arm's budget over its seeds."""

    mean: float
    low: float
    high: float


BUDGET: Mapping[str, tuple[str, str]] = {  # key of timing.json -> (heading, unit)
    "env_steps_per_s": ("Env steps/s", "1/s"),
    "updates_per_s": ("Updates/s", "1/s"),
    "wall_s": ("Wall", "s"),
    "active_s": ("Training", "s"),
    "evaluation_s": ("Evaluating", "s"),
    "learner_wait_s": ("Waiting", "s"),
    "peak_memory_mb": ("Memory", "MB"),
}


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What one arm's seeds cost."""

    arm: str
    seeds: int
    figures: Mapping[str, Spent]


@dataclass(frozen=True, kw_only=True)
class Config:
    """Resolved settings as text; `differing` are the keys that are not the same in all arms."""

    differing: Mapping[str, tuple[str, ...]]  # key -> one value an arm
    full: Mapping[str, Mapping[str, str]]  # arm -> key -> value


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where the numbers come from."""

    shared: Mapping[str, str]  # the same in every run
    differing: Mapping[str, Mapping[str, str]]  # "arm/seed" -> key -> value, for what is not
    warnings: tuple[str, ...]
    runs: Mapping[str, Mapping[str, object]]  # "arm/seed" -> all of it
    hashes: Mapping[str, str]


def completeness(data: Data) -> Completeness:
    """Count every cell of the grid; a run counts as whole once it is trained and evaluated."""
    cells = {
        arm: tuple((run.seed, run.state, bool(run.evaluation)) for run in data.runs if run.arm == arm)
        for arm in data.arms
    }
    arms = tuple(
        ArmCount(
            arm=arm,
            planned=len(row),
            evaluated=sum(evaluated for _, _, evaluated in row),
            states={state: sum(found == state for _, found, _ in row) for state in STATES},
        )
        for arm, row in cells.items()
    )
    return Completeness(
        planned=len(data.runs),
        finished=sum(run.finished for run in data.runs),
        evaluated=sum(bool(run.evaluation) for run in data.runs),
        failed=sum(run.state == "failed" for run in data.runs),
        stale=sum(run.state == "stale" for run in data.runs),
        arms=arms,
        cells=cells,
        exclusions=(*data.exclusions, *score_exclusions(data)),
    )


def budgets(data: Data) -> list[Budget]:
    """One budget an arm, from the timing.json of its finished runs; units as in `BUDGET`."""
    return [_budget(arm, [run for run in data.finished(arm) if run.machine]) for arm in data.arms]


def _budget(arm: str, runs: Sequence[Run]) -> Budget:
    figures = {}
    for key in BUDGET:
        values = [value for run in runs if (value := _finite(run.machine.get(key))) is not None]
        if values:
            figures[key] = Spent(mean=float(np.mean(values)), low=min(values), high=max(values))
    return Budget(arm=arm, seeds=len(runs), figures=figures)


def _finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
        return None
    return float(value)


def flat(value: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested mappings as dotted keys, every value as text."""
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            yield from flat(inner, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", inner if isinstance(inner, str) else json.dumps(inner, ensure_ascii=False)


def config(data: Data) -> Config:
    """The resolved settings of every arm under dotted keys; a key that an arm lacks is empty text."""
    full = {arm: dict(sorted(flat(settings.to_dict()))) for arm, settings in data.arms.items()}
    return Config(
        differing={key: tuple(full[arm].get(key, "") for arm in full) for key in _differing(full)},
        full=full,
    )


def differing_keys(data: Data, arms: Sequence[str]) -> tuple[str, ...]:
    """The settings in which these arms differ; what only one of their algorithms has is not named beside it."""
    full = {arm: dict(flat(data.arms[arm].to_dict())) for arm in arms}
    found = [key for key in _differing(full) if "." in key or all(key in settings for settings in full.values())]
    return tuple(sorted(found, key=lambda key: _LEADING.index(key) if key in _LEADING else len(_LEADING)))


_LEADING = ("task", "algorithm", "reward")


def _differing(full: Mapping[str, Mapping[str, str]]) -> list[str]:
    keys = sorted({key for settings in full.values() for key in settings})
    return [key for key in keys if len({settings.get(key) for settings in full.values()}) > 1]


_NOT_PROVENANCE = {*BUDGET}


def provenance(data: Data) -> Provenance:
    """Everything the runs say about their machine and code; what all runs share is stated once."""
    runs = {
        f"{run.arm}/{run.seed}": {key: value for key, value in run.machine.items() if key not in _NOT_PROVENANCE}
        for run in data.runs
        if run.finished and run.machine
    }
    texts = {name: dict(flat(machine)) for name, machine in runs.items()}
    differing = _differing(texts)
    first = next(iter(texts.values()), {})
    return Provenance(
        shared={key: value for key, value in sorted(first.items()) if key not in differing},
        differing={name: {key: text.get(key, "") for key in differing} for name, text in texts.items()}
        if differing
        else {},
        warnings=(*_not_reproducible(data), *_warnings(texts)),
        runs=runs,
        hashes=data.hashes,
    )


def _not_reproducible(data: Data) -> Iterator[str]:
    reasons = {arm: settings.irreproducible_because for arm, settings in data.arms.items()}
    arms = [f"{arm} {reason}" for arm, reason in reasons.items() if reason is not None]
    if arms:
        yield f"Not reproducible, a rerun gives other numbers: {', '.join(arms)}."


def _warnings(texts: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    commits = {text.get("provenance.git_commit", "") for text in texts.values()}
    if len(commits) > 1:
        yield f"The runs were trained by {len(commits)} different commits."
    dirty = [name for name, text in texts.items() if text.get("provenance.git_dirty") == "true"]
    if dirty:
        yield f"Uncommitted changes were present when {len(dirty)} of {len(texts)} runs were trained."
    unknown = [name for name, text in texts.items() if text.get("provenance.git_commit", "null") in ("", "null")]
    if unknown:
        yield f"No commit is recorded for {len(unknown)} of {len(texts)} runs."
    if len({text.get("host") for text in texts.values()}) > 1:
        yield "The runs come from more than one machine, so their times are not comparable one to one."
