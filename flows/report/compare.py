"""Pairs of arms: which is better, by how much, and what so few seeds could have found."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from flows.report import statistics
from flows.report.data import Data, Task
from flows.report.measures import ArmScores, Measure, arm_scores, return_measure, rewards_of, yardstick_measure
from flows.report.record import differing_keys
from flows.report.statistics import Interval
from flows.report.wording import join, quantity, seeds_text

MOST_ARMS_IN_ALL_PAIRS = 12

Parts = tuple[tuple[str, str], ...]  # ("arm" | "text", what to show)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """First minus second by one measure. Where `p` is None nothing can be tested, and `problem` says why."""

    task: str
    first: str
    second: str
    measure: Measure
    scores: tuple[ArmScores, ArmScores]
    difference: float
    interval: Interval | None  # at the report's confidence, unadjusted
    p: float | None
    smallest_detectable: float | None  # at 80 % power and the unadjusted level
    improvement: float  # probability that a seed of first scores better than one of second
    improvement_interval: Interval | None
    problem: str
    differs_in: tuple[str, ...]
    holm_p: float | None = None
    holm_level: float | None = None
    holm_interval: Interval | None = None
    holm_smallest_detectable: float | None = None
    decided: bool = False
    winner: str = ""
    parts: Parts = ()

    @property
    def sentence(self) -> str:
        """The verdict as plain text; empty until the pair is judged."""
        return "".join(text for _, text in self.parts)


def verdicts(data: Data) -> list[Comparison]:
    """Every pair of arms that share a task, judged together by Holm's procedure; the decided ones come first."""
    pairs = [
        compare(data, task, first, second, _deciding_measure(data, task, first, second))
        for task in data.tasks
        for first, second in _pairs(task.arms)
    ]
    judged = _judge(pairs, alpha=1 - data.confidence)
    return sorted(judged, key=lambda pair: not pair.decided)


def yardstick_differences(data: Data) -> list[Comparison]:
    """Every pair by every yardstick, unadjusted: to look into, not to decide by."""
    return [
        compare(data, task, first, second, yardstick_measure(data, task, name))
        for task in data.tasks
        for name in task.text.yardsticks
        for first, second in _pairs(task.arms)
    ]


def also_apart(pair: Comparison, differences: Iterable[Comparison]) -> list[Comparison]:
    """The other yardsticks by which a pair judged by a yardstick differs, its unadjusted interval excluding 0."""
    if pair.measure.is_return:
        return []
    return [
        other
        for other in differences
        if (other.task, other.first, other.second) == (pair.task, pair.first, pair.second)
        and other.measure.name != pair.measure.name
        and other.interval is not None
        and other.interval.low * other.interval.high > 0
    ]


def not_compared(data: Data) -> list[str]:
    """Tasks of one name whose settings differ: their arms face different problems."""
    names = [task.name for task in data.tasks]
    return [
        f"{join(task.label for task in data.tasks if task.name == name)} are different problems: no arm of one"
        " is compared with an arm of another."
        for name in dict.fromkeys(names)
        if names.count(name) > 1
    ]


def _pairs(arms: tuple[str, ...]) -> list[tuple[str, str]]:
    if len(arms) > MOST_ARMS_IN_ALL_PAIRS:
        return [(arm, arms[0]) for arm in arms[1:]]
    return list(combinations(arms, 2))


def _deciding_measure(data: Data, task: Task, first: str, second: str) -> Measure:
    shared = any({first, second} <= set(reward.arms) for reward in rewards_of(data, task))
    if shared or task.text.headline not in task.text.yardsticks:
        return return_measure(data)
    return yardstick_measure(data, task, task.text.headline)


def compare(data: Data, task: Task, first: str, second: str, measure: Measure) -> Comparison:
    """Compare two arms by one measure, on its own."""
    left, right = arm_scores(data, first, measure), arm_scores(data, second, measure)
    a, b = np.array(left.scores, dtype=np.float64), np.array(right.scores, dtype=np.float64)
    test = statistics.welch(a, b)
    sign = -1.0 if measure.better == "lower" else 1.0
    return Comparison(
        task=task.label,
        first=first,
        second=second,
        measure=measure,
        scores=(left, right),
        difference=left.mean - right.mean,
        interval=test.interval(data.confidence) if test else None,
        p=test.p if test else None,
        smallest_detectable=statistics.smallest_detectable(a, b, level=1 - data.confidence),
        improvement=statistics.probability_of_improvement(sign * a, sign * b),
        improvement_interval=statistics.improvement_interval(sign * a, sign * b, confidence=data.confidence),
        problem="" if test else _problem(left, right),
        differs_in=differing_keys(data, (first, second)),
    )


def _problem(left: ArmScores, right: ArmScores) -> str:
    for scores in (left, right):
        if len(scores.scores) < 2:
            return f"{scores.arm} has {seeds_text(len(scores.scores))}: no interval, and nothing to test"
    return "neither arm's seeds differ among themselves, so no test applies"


def _judge(pairs: list[Comparison], *, alpha: float) -> list[Comparison]:
    tested = [pair for pair in pairs if pair.p is not None]
    p_values = [pair.p for pair in tested if pair.p is not None]
    adjusted = dict(zip(map(id, tested), statistics.holm(p_values), strict=True))
    levels = dict(zip(map(id, tested), statistics.holm_levels(p_values, alpha=alpha), strict=True))
    return [
        _decide(pair, adjusted[id(pair)], levels[id(pair)], alpha) if id(pair) in adjusted else _worded(pair)
        for pair in pairs
    ]


def _decide(pair: Comparison, holm_p: float, level: float, alpha: float) -> Comparison:
    a, b = (np.array(scores.scores, dtype=np.float64) for scores in pair.scores)
    test = statistics.welch(a, b)
    higher, lower = (pair.first, pair.second) if pair.difference > 0 else (pair.second, pair.first)
    decided = holm_p < alpha
    judged = replace(
        pair,
        holm_p=holm_p,
        holm_level=level,
        holm_interval=test.interval(1 - level) if test else None,
        holm_smallest_detectable=statistics.smallest_detectable(a, b, level=level),
        decided=decided,
        winner=(lower if pair.measure.better == "lower" else higher) if decided else "",
    )
    return _worded(judged)


def _worded(pair: Comparison) -> Comparison:
    return replace(pair, parts=tuple(_sentence(pair)))


def _sentence(pair: Comparison) -> list[tuple[str, str]]:
    name = pair.measure.spoken
    if pair.holm_interval is None:
        both = [("arm", pair.first), ("text", " and "), ("arm", pair.second)]
        return [("text", "Undecided between "), *both, ("text", f" on {name}: {pair.problem}.")]
    if not pair.decided:
        return _undecided(pair, name)
    loser = pair.second if pair.winner == pair.first else pair.first
    values = {scores.arm: scores.mean for scores in pair.scores}
    verb = "differs from" if pair.measure.better == "neither" else "is better than"
    direction = "less" if pair.measure.better == "lower" else "more"
    lead = f"{quantity(abs(pair.difference), pair.measure.unit)} {direction} {_bracket(pair)}"
    against = f"{quantity(values[pair.winner])} against {quantity(values[loser], pair.measure.unit)}"
    return [
        ("arm", pair.winner),
        ("text", f" {verb} "),
        ("arm", loser),
        ("text", f" on {name}: {lead}, {against}."),
    ]


def _undecided(pair: Comparison, name: str) -> list[tuple[str, str]]:
    above, below = (pair.first, pair.second) if pair.difference >= 0 else (pair.second, pair.first)
    unit = pair.measure.unit
    found = pair.holm_smallest_detectable
    limit = f" So few seeds would usually miss a difference below {quantity(found, unit, 2)}." if found else ""
    return [
        ("text", "Undecided between "),
        ("arm", above),
        ("text", " and "),
        ("arm", below),
        ("text", f" on {name}: the first has {quantity(abs(pair.difference), unit)} more {_bracket(pair)}, "),
        ("text", f"an interval that includes 0.{limit}"),
    ]


def _bracket(pair: Comparison) -> str:
    """The adjusted interval, turned so that the difference it belongs to is positive."""
    interval = pair.holm_interval
    if interval is None:
        return ""
    low, high = (interval.low, interval.high) if pair.difference >= 0 else (-interval.high, -interval.low)
    return f"[{quantity(low)}, {quantity(high)}]"


def counts(pairs: list[Comparison]) -> Mapping[str, int]:
    """How many pairs there are, how many of them are decided and how many not."""
    decided = sum(pair.decided for pair in pairs)
    return {"pairs": len(pairs), "decided": decided, "undecided": len(pairs) - decided}
