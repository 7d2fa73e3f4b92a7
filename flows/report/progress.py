"""What learning curves say beyond their end: how soon a level is reached, whether the yardstick follows the return."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from flows.report import statistics
from flows.report.data import Data, Run, Task
from flows.report.measures import Measure, active_seconds, return_measure, rewards_of, yardstick_measure
from flows.report.statistics import Array, Interval

SHARES = (0.5, 0.9)
LEAST_CHANGE = 0.05  # of a measure's range over training, for a flag


@dataclass(frozen=True, kw_only=True)
class Reached:
    """When the seeds of one arm first reach a level and hold it; None for a seed that never does."""

    env_steps: dict[int, float | None]
    seconds: dict[int, float | None]

    @property
    def count(self) -> int:
        """How many seeds get there."""
        return sum(value is not None for value in self.env_steps.values())

    @property
    def median_env_steps(self) -> float:
        """Over all seeds: infinite where at least half never get there, NaN without seeds."""
        return censored_median(self.env_steps.values())

    @property
    def median_seconds(self) -> float:
        """Active training seconds, censored like `median_env_steps`."""
        return censored_median(self.seconds.values())


@dataclass(frozen=True, kw_only=True)
class ArmEfficiency:
    """One arm's way to each level, and its mean over the training that all arms share."""

    arm: str
    reached: tuple[Reached, ...]  # one a level
    area: float  # mean over env steps, by trapezoids
    area_interval: Interval | None


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """Arms whose curves share a measure, and the levels they are judged by."""

    task: str
    reward: str
    measure: Measure
    levels: tuple[float, ...]  # empty where no arm ended above where the seeds began
    rows: tuple[ArmEfficiency, ...]


@dataclass(frozen=True, kw_only=True)
class Proxy:
    """Whether the headline yardstick follows the return of one arm over its evaluations."""

    arm: str
    task: str
    measure: Measure
    correlations: dict[int, float]  # seed -> Spearman's rho, signed so that 1 is agreement; NaN where undefined
    flagged: tuple[int, ...]  # seeds whose return rose while the yardstick got worse


def censored_median(values: Iterable[float | None]) -> float:
    """The median with None above every number: infinite once half of the values are None, NaN for none at all."""
    known = sorted(float("inf") if value is None else float(value) for value in values)
    if not known:
        return float("nan")
    middle = known[(len(known) - 1) // 2], known[len(known) // 2]
    return float("inf") if np.isinf(middle[1]) else (middle[0] + middle[1]) / 2


def efficiencies(data: Data) -> list[Efficiency]:
    """Per task: the headline yardstick over all arms, then the return over each reward's arms."""
    found = []
    for task in data.tasks:
        headline = task.text.yardsticks.get(task.text.headline)
        if headline is not None and headline.better != "neither":
            measure = yardstick_measure(data, task, task.text.headline)
            found.append(_efficiency(data, task, "", task.arms, measure))
        for reward in rewards_of(data, task):
            found.append(_efficiency(data, task, reward.label, reward.arms, return_measure(data)))
    return found


def _efficiency(data: Data, task: Task, reward: str, arms: Sequence[str], measure: Measure) -> Efficiency:
    runs = {arm: [run for run in data.finished(arm) if _usable(run, measure)] for arm in arms}
    levels = _levels(list(runs.values()), measure, k=data.final_evaluations)
    shared = _shared_range([run for found in runs.values() for run in found])
    rows = []
    for arm, found in runs.items():
        areas = np.array([_area(run, measure, shared) for run in found])
        rows.append(
            ArmEfficiency(
                arm=arm,
                reached=tuple(_reached(found, measure, level, k=data.final_evaluations) for level in levels),
                area=float(np.mean(areas)) if len(areas) else float("nan"),
                area_interval=statistics.t_interval(areas, confidence=data.confidence),
            )
        )
    return Efficiency(task=task.label, reward=reward, measure=measure, levels=levels, rows=tuple(rows))


def column_of(measure: Measure) -> str:
    """The column of curve.csv that holds the measure."""
    return "return_mean" if measure.is_return else f"yardstick/{measure.name}"


def _values(run: Run, measure: Measure) -> Array:
    return run.curve.get(column_of(measure), np.empty(0))


def _usable(run: Run, measure: Measure) -> bool:
    steps, values = run.curve.get("env_steps", np.empty(0)), _values(run, measure)
    return len(steps) == len(values) > 0 and bool(np.isfinite(values).all() and (np.diff(steps) > 0).all())


def _sign(measure: Measure) -> float:
    return -1.0 if measure.better == "lower" else 1.0


def _levels(arms: Sequence[Sequence[Run]], measure: Measure, *, k: int) -> tuple[float, ...]:
    """Shares of the way from where all seeds begin, on average, to the best arm's mean score."""
    firsts = [_values(run, measure)[0] for runs in arms for run in runs]
    ends = [float(np.mean([np.mean(_values(run, measure)[-k:]) for run in runs])) for runs in arms if runs]
    if not ends:
        return ()
    start, goal = float(np.mean(firsts)), max(ends, key=lambda end: _sign(measure) * end)
    if _sign(measure) * (goal - start) <= 0:
        return ()
    return tuple(start + share * (goal - start) for share in SHARES)


def _reached(runs: Sequence[Run], measure: Measure, level: float, *, k: int) -> Reached:
    places = {run.seed: first_held(_sign(measure) * _values(run, measure), _sign(measure) * level, k=k) for run in runs}
    steps, seconds = {}, {}
    for run in runs:
        place = places[run.seed]
        steps[run.seed] = None if place is None else float(run.curve["env_steps"][place])
        clock = active_seconds(run)
        seconds[run.seed] = None if place is None or not np.isfinite(clock[place]) else float(clock[place])
    return Reached(env_steps=steps, seconds=seconds)


def first_held(values: Array, level: float, *, k: int) -> int | None:
    """The first place from which k values in a row are at the level or above; None where there is none."""
    held = np.convolve(values >= level, np.ones(k, dtype=int), mode="valid") == k if len(values) >= k else np.empty(0)
    return int(np.argmax(held)) if held.any() else None


def _shared_range(runs: Sequence[Run]) -> tuple[float, float]:
    steps = [run.curve["env_steps"] for run in runs]
    return (max(float(x[0]) for x in steps), min(float(x[-1]) for x in steps)) if steps else (0.0, 0.0)


def _area(run: Run, measure: Measure, shared: tuple[float, float]) -> float:
    low, high = shared
    if low >= high:
        return float("nan")
    steps = run.curve["env_steps"]
    grid = np.unique(np.concatenate([[low], steps[(steps > low) & (steps < high)], [high]]))
    return float(np.trapezoid(statistics.on_grid(grid, steps, _values(run, measure)), grid) / (high - low))


def proxies(data: Data) -> list[Proxy]:
    """One entry per arm whose task declares which direction of its headline yardstick is better."""
    found = []
    for arm in data.arms:
        task = data.task_of(arm)
        headline = task.text.yardsticks.get(task.text.headline)
        if headline is None or headline.better == "neither":
            continue
        measure, returned = yardstick_measure(data, task, task.text.headline), return_measure(data)
        pairs = {
            run.seed: (_values(run, returned), _sign(measure) * _values(run, measure))
            for run in data.finished(arm)
            if _usable(run, measure) and _usable(run, returned)
        }
        found.append(
            Proxy(
                arm=arm,
                task=task.label,
                measure=measure,
                correlations={seed: rank_correlation(x, y) for seed, (x, y) in pairs.items()},
                flagged=tuple(seed for seed, (x, y) in pairs.items() if parted(x, y)),
            )
        )
    return found


def rank_correlation(x: Array, y: Array) -> float:
    """Spearman's rho; NaN for fewer than four points or where one of the two does not change."""
    if len(x) < 4 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return float("nan")
    return float(stats.spearmanr(x, y).statistic)


def parted(returns: Array, yardstick: Array) -> bool:
    """Whether, over the last half of training, a straight line through the return rises and one through the yardstick
    falls, each by at least a twentieth of what the measure ranged over in all of training.
    """
    half = len(returns) // 2
    if len(returns) - half < 3:
        return False
    return _trend(returns, half) >= LEAST_CHANGE and _trend(yardstick, half) <= -LEAST_CHANGE


def _trend(values: Array, start: int) -> float:
    tail = values[start:]
    span = float(np.ptp(values))
    slope = float(np.polyfit(np.arange(len(tail)), tail, 1)[0])
    return slope * (len(tail) - 1) / span if span else 0.0
