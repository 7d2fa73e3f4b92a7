"""From tables to seed scores and learning curves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flows.report import statistics
from flows.report.data import Data, Exclusion, Run, Task
from flows.report.statistics import Array, Interval

POINTS = 300  # most points of a drawn line


def points_for(lines: int, *, total: int) -> int:
    """Fewer points a line where many lines share a chart, so that the page stays small enough to mail."""
    return max(25, min(POINTS, total // max(lines, 1)))


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One number per seed that arms can be compared by."""

    name: str  # "return", or a yardstick
    text: str
    unit: str
    better: str  # "higher" | "lower" | "neither"
    source: str

    @property
    def is_return(self) -> bool:
        """Whether arms under different rewards must not be compared by it."""
        return self.name == "return"

    @property
    def spoken(self) -> str:
        """The name within a sentence."""
        return self.name.replace("_", " ")

    @property
    def label(self) -> str:
        """The name and unit along an axis."""
        name = self.spoken[:1].upper() + self.spoken[1:]
        return f"{name} ({self.unit})" if self.unit else name


@dataclass(frozen=True, kw_only=True)
class Reward:
    """A set of term weights, named as the task names it, and the arms trained under it."""

    label: str
    weights: Mapping[str, float]
    arms: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ArmScores:
    """The scores of one arm's seeds and what they say together."""

    arm: str
    planned: int
    seeds: tuple[int, ...]
    scores: tuple[float, ...]
    mean: float
    std: float
    iqm: float
    iqm_scores: int  # how many scores survive the trimming
    median: float
    low: float
    high: float
    interval: Interval | None


@dataclass(frozen=True, kw_only=True)
class ScorePanel:
    """Arms that can be compared by one measure."""

    task: str
    reward: str  # empty where arms of all rewards are compared
    measure: Measure
    rows: tuple[ArmScores, ...]


@dataclass(frozen=True, kw_only=True)
class Line:
    """One arm's curve: its seeds as they are, and their mean and interval on a common grid."""

    arm: str
    seeds: Mapping[int, tuple[Array, Array]]
    grid: Array
    mean: Array
    low: Array
    high: Array


@dataclass(frozen=True, kw_only=True)
class CurvePanel:
    """Learning curves that share an axis of values; `axes` names what stands on the horizontal one."""

    task: str
    reward: str
    measure: Measure
    axes: Mapping[str, tuple[Line, ...]]  # "env_steps", "active_s", "updates"


def return_measure(data: Data) -> Measure:
    """The return over the last evaluations during training, without a unit: weights give it its scale."""
    return Measure(
        name="return",
        text="return under the reward the arms share",
        unit="",
        better="higher",
        source=f"mean of the last {data.final_evaluations} evaluations during training",
    )


def yardstick_measure(data: Data, task: Task, name: str) -> Measure:
    """A yardstick of the task in its declared unit; raises `KeyError` for a name the task does not declare."""
    yardstick = task.text.yardsticks[name]
    return Measure(
        name=name,
        text=yardstick.doc.rstrip("."),
        unit=yardstick.unit,
        better=yardstick.better,
        source=f"mean over the {data.evaluation_episodes} episodes of the final evaluation",
    )


def rewards_of(data: Data, task: Task) -> list[Reward]:
    """The distinct rewards of a task's arms, in the order of the arms."""
    groups: dict[tuple[tuple[str, float], ...], list[str]] = {}
    for arm in task.arms:
        groups.setdefault(key_of(data.arms[arm].weights), []).append(arm)
    return [
        Reward(label=_reward_label(task, dict(key), data.arms[arms[0]].reward), weights=dict(key), arms=tuple(arms))
        for key, arms in groups.items()
    ]


def key_of(weights: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    """Equal for equal rewards: (term, weight) sorted by term, without the terms of weight 0."""
    return tuple(sorted((term, float(weight)) for term, weight in weights.items() if weight))


def _reward_label(task: Task, weights: Mapping[str, float], base: str) -> str:
    for name, named in task.text.rewards.items():
        if key_of(named) == key_of(weights):
            return name
    start = task.text.rewards.get(base, {})
    changed = sorted(term for term in {*weights, *start} if weights.get(term, 0.0) != start.get(term, 0.0))
    return f"{base} with " + ", ".join(f"{term} × {weights.get(term, 0.0):g}".replace("-", "−") for term in changed)


def seed_score(run: Run, measure: Measure, *, final_evaluations: int) -> tuple[float, str]:
    """One run's score; where there is none, NaN and the reason."""
    if measure.is_return:
        column, file, table = "return_mean", "curve.csv", run.curve
    else:
        column, file, table = f"yardstick/{measure.name}", "evaluation.csv", run.evaluation
    if not table:
        return float("nan"), f"there is no usable {file}"
    if column not in table:
        return float("nan"), f"{file} has no column {column}"
    values = table[column][-final_evaluations:] if measure.is_return else table[column]
    if not np.isfinite(values).all():
        return float("nan"), f"{column} in {file} is not finite"
    return float(np.mean(values)), ""


def arm_scores(data: Data, arm: str, measure: Measure) -> ArmScores:
    """Score every finished seed of an arm; seeds without a score are left out (see `score_exclusions`)."""
    found = {
        run.seed: seed_score(run, measure, final_evaluations=data.final_evaluations)[0] for run in data.finished(arm)
    }
    found = {seed: score for seed, score in found.items() if np.isfinite(score)}
    scores = np.array(list(found.values()), dtype=np.float64)
    n = len(scores)
    mean, kept = statistics.iqm(scores)
    nothing = float("nan")
    return ArmScores(
        arm=arm,
        planned=len(data.seeds),
        seeds=tuple(found),
        scores=tuple(found.values()),
        mean=float(np.mean(scores)) if n else nothing,
        std=statistics.spread(scores),
        iqm=mean,
        iqm_scores=kept,
        median=float(np.median(scores)) if n else nothing,
        low=float(np.min(scores)) if n else nothing,
        high=float(np.max(scores)) if n else nothing,
        interval=statistics.t_interval(scores, confidence=data.confidence),
    )


def score_exclusions(data: Data) -> list[Exclusion]:
    """Every score that a finished run should have and has not; a missing file is named once, by the reader."""
    found = []
    for task in data.tasks:
        measures = [return_measure(data), *(yardstick_measure(data, task, name) for name in task.text.yardsticks)]
        for run in (run for arm in task.arms for run in data.finished(arm)):
            for measure in measures:
                _, reason = seed_score(run, measure, final_evaluations=data.final_evaluations)
                if reason and not reason.startswith("there is no usable"):
                    what = f"its score in {measure.name}"
                    found.append(Exclusion(arm=run.arm, seed=run.seed, what=what, reason=reason))
            count = len(run.curve["env_steps"]) if "env_steps" in run.curve else 0
            if count < data.final_evaluations:
                reason = f"{count} evaluations, fewer than the {data.final_evaluations} a score should average"
                found.append(Exclusion(arm=run.arm, seed=run.seed, what="nothing; its score rests on", reason=reason))
    return found


def final_scores(data: Data) -> list[ScorePanel]:
    """One panel per task and reward: returns of different rewards never share one."""
    measure = return_measure(data)
    return [
        ScorePanel(
            task=task.label,
            reward=reward.label,
            measure=measure,
            rows=tuple(arm_scores(data, arm, measure) for arm in reward.arms),
        )
        for task in data.tasks
        for reward in rewards_of(data, task)
    ]


def yardstick_scores(data: Data) -> list[ScorePanel]:
    """One panel per task and yardstick, over all arms of the task."""
    return [
        ScorePanel(
            task=task.label,
            reward="",
            measure=measure,
            rows=tuple(arm_scores(data, arm, measure) for arm in task.arms),
        )
        for task in data.tasks
        for measure in (yardstick_measure(data, task, name) for name in task.text.yardsticks)
    ]


def curves(data: Data) -> list[CurvePanel]:
    """Per task: the headline yardstick for all arms, then the return for each reward's arms."""
    panels = []
    for task in data.tasks:
        if task.text.headline in task.text.yardsticks:
            measure = yardstick_measure(data, task, task.text.headline)
            panels.append(_curve_panel(data, task.label, "", task.arms, measure))
        for reward in rewards_of(data, task):
            panels.append(_curve_panel(data, task.label, reward.label, reward.arms, return_measure(data)))
    return panels


def _curve_panel(data: Data, task: str, reward: str, arms: Sequence[str], measure: Measure) -> CurvePanel:
    column = "return_mean" if measure.is_return else f"yardstick/{measure.name}"
    axes = {
        axis: tuple(_line(data, arm, axis, column, arms=len(arms)) for arm in arms)
        for axis in ("env_steps", "active_s", "updates")
    }
    return CurvePanel(task=task, reward=reward, measure=measure, axes=axes)


def _line(data: Data, arm: str, axis: str, column: str, *, arms: int) -> Line:
    seeds: dict[int, tuple[Array, Array]] = {}
    for run in data.finished(arm):
        x = active_seconds(run) if axis == "active_s" else run.curve.get(axis, np.empty(0))
        y = run.curve.get(column, np.empty(0))
        if len(x) == len(y):
            x, y = _forward(x, y)
            if len(x):
                seeds[run.seed] = (x, y)
    grid = statistics.common_grid([x for x, _ in seeds.values()], points=points_for(arms, total=800))
    mean, low, high = _band([statistics.on_grid(grid, x, y) for x, y in seeds.values()], grid, data.confidence)
    most = points_for(arms * len(seeds), total=3000)
    thin = {seed: statistics.thinned(x, y, points=most) for seed, (x, y) in seeds.items()}
    return Line(arm=arm, seeds=thin, grid=grid, mean=mean, low=low, high=high)


def _forward(x: Array, y: Array) -> tuple[Array, Array]:
    """The points with a known place; of several at one place the last; nothing where the places run backwards."""
    known = np.isfinite(x)
    x, y = x[known], y[known]
    if (np.diff(x) < 0).any():
        return np.empty(0), np.empty(0)
    last = np.append(np.diff(x) > 0, True)[: len(x)]
    return x[last], y[last]


def _band(samples: Sequence[Array], grid: Array, confidence: float) -> tuple[Array, Array, Array]:
    if not samples or not len(grid):
        nothing = np.full(len(grid), np.nan)
        return nothing, nothing, nothing
    return statistics.t_band(np.stack(samples), confidence=confidence)


def active_seconds(run: Run) -> Array:
    """Active training time at each evaluation: 0 at step 0, NaN where timing.csv does not reach."""
    steps = run.curve.get("env_steps", np.empty(0))
    known, seconds = run.timing.get("env_steps", np.empty(0)), run.timing.get("active_s", np.empty(0))
    if not len(known) or len(known) != len(seconds) or not (np.diff(known) > 0).all():
        return np.full(len(steps), np.nan)
    if known[0] > 0:
        known, seconds = np.append(0.0, known), np.append(0.0, seconds)
    return statistics.on_grid(steps, known, seconds)
