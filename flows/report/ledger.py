"""Rewards taken apart: where an arm's return came from, and what its policy would earn under the other rewards."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flows.report import statistics
from flows.report.data import Columns, Data, Run, Task
from flows.report.measures import Reward, key_of, points_for, rewards_of
from flows.report.statistics import Array, Interval


@dataclass(frozen=True, kw_only=True)
class LedgerTerm:
    """One term of an arm's reward at the end of training."""

    term: str
    text: str
    weight: float
    raw: float  # per episode
    weighted: float  # per episode
    per_step: float


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """Where an arm's training return came from."""

    arm: str
    task: str
    reward: str
    seeds: int
    grid: Array  # env steps
    terms: Mapping[str, Array]  # weighted, per episode, mean over seeds
    total: Array  # the return
    residual: Array
    length: Array
    rows: tuple[LedgerTerm, ...]
    final_return: float
    final_residual: float
    final_length: float
    discrepancy: float  # largest |return − Σ weight · term − residual| in any file of any seed
    discrepancy_share: float  # the same over max(1, Σ |weight · term|)
    discrepancy_file: str

    @property
    def balanced(self) -> bool:
        """Whether weighted terms and residual add up to the return in every row, to a share of 1e-6."""
        return bool(self.discrepancy_share <= 1e-6)


@dataclass(frozen=True, kw_only=True)
class CrossCell:
    """One policy's final evaluation scored under one reward."""

    mean: float
    interval: Interval | None
    shade: float  # 0 at the column's least, 1 at its greatest
    own: bool


@dataclass(frozen=True, kw_only=True)
class CrossMatrix:
    """Policies (rows) under every reward of their task (columns)."""

    task: str
    rewards: tuple[Reward, ...]
    rows: Mapping[str, tuple[CrossCell, ...]]
    seeds: Mapping[str, int]
    largest_residual: float


def ledgers(data: Data) -> list[Ledger]:
    """One ledger per arm that has training progress to show."""
    found = []
    for task in data.tasks:
        for reward in rewards_of(data, task):
            for arm in reward.arms:
                runs = [run for run in data.finished(arm) if "env_steps" in run.progress]
                if runs:
                    found.append(_ledger(task, reward, arm, runs, points=points_for(len(data.arms), total=1500)))
    return sorted(found, key=lambda ledger: list(data.arms).index(ledger.arm))


def _ledger(task: Task, reward: Reward, arm: str, runs: Sequence[Run], *, points: int) -> Ledger:
    grid = statistics.common_grid([run.progress["env_steps"] for run in runs], points=points)

    def over_training(column: str) -> Array:
        lines = [statistics.on_grid(grid, run.progress["env_steps"], _column(run.progress, column)) for run in runs]
        mean: Array = np.mean(np.stack(lines), axis=0)
        return mean

    def at_the_end(column: str) -> float:
        return float(np.mean([_column(run.progress, column)[-1] for run in runs]))

    length = at_the_end("length_mean")
    rows = []
    for term in sorted(reward.weights, key=list(task.text.terms).index):
        weight, raw = reward.weights[term], at_the_end(f"term/{term}")
        rows.append(
            LedgerTerm(
                term=term,
                text=task.text.terms[term],
                weight=weight,
                raw=raw,
                weighted=weight * raw,
                per_step=weight * raw / length if length else float("nan"),
            )
        )
    worst = max((_imbalance(run, reward.weights) for run in runs), key=lambda found: found[1])
    return Ledger(
        arm=arm,
        task=task.label,
        reward=reward.label,
        seeds=len(runs),
        grid=grid,
        terms={row.term: row.weight * over_training(f"term/{row.term}") for row in rows},
        total=over_training("return_mean"),
        residual=over_training("residual"),
        length=over_training("length_mean"),
        rows=tuple(rows),
        final_return=at_the_end("return_mean"),
        final_residual=at_the_end("residual"),
        final_length=length,
        discrepancy=worst[0],
        discrepancy_share=worst[1],
        discrepancy_file=worst[2],
    )


def _column(table: Columns, name: str) -> Array:
    some = next(iter(table.values()))
    return table.get(name, np.full(len(some), np.nan))


def _imbalance(run: Run, weights: Mapping[str, float]) -> tuple[float, float, str]:
    """The largest |return − Σ weight · term − residual| of a run, its share, and the file; NaN rows are skipped."""
    worst = (0.0, 0.0, "")
    for name, table, column in (
        ("progress.csv", run.progress, "return_mean"),
        ("curve.csv", run.curve, "return_mean"),
        ("evaluation.csv", run.evaluation, "return"),
    ):
        if column not in table:
            continue
        parts = np.stack([weight * _column(table, f"term/{term}") for term, weight in weights.items()])
        gap = np.abs(table[column] - parts.sum(axis=0) - _column(table, "residual"))
        share = gap / np.maximum(1.0, np.abs(parts).sum(axis=0))
        if np.isfinite(share).any():
            row = int(np.nanargmax(np.where(np.isfinite(share), share, -1.0)))
            if share[row] >= worst[1]:
                worst = (float(gap[row]), float(share[row]), f"{run.arm}/{run.seed}/{name}, line {row + 2}")
    return worst


def cross_rewards(data: Data) -> list[CrossMatrix]:
    """Score every policy's final evaluation under every reward of its task: the arms' own, then the named ones."""
    return [_cross(data, task) for task in data.tasks]


def _cross(data: Data, task: Task) -> CrossMatrix:
    rewards = rewards_of(data, task)
    taken = {key_of(reward.weights) for reward in rewards}
    for name, weights in task.text.rewards.items():
        if key_of(weights) not in taken:
            rewards.append(Reward(label=name, weights=dict(weights), arms=()))
    scores = {arm: [_scores_under(data, arm, reward) for reward in rewards] for arm in task.arms}
    means = {arm: [float(np.mean(s)) if len(s) else float("nan") for s in row] for arm, row in scores.items()}
    rows = {
        arm: tuple(
            CrossCell(
                mean=means[arm][j],
                interval=statistics.t_interval(scores[arm][j], confidence=data.confidence),
                shade=_shade(means[arm][j], [row[j] for row in means.values()]),
                own=arm in reward.arms,
            )
            for j, reward in enumerate(rewards)
        )
        for arm in task.arms
    }
    residuals = [
        _column(run.evaluation, "residual") for arm in task.arms for run in data.finished(arm) if run.evaluation
    ]
    return CrossMatrix(
        task=task.label,
        rewards=tuple(rewards),
        rows=rows,
        seeds={arm: len(row[0]) for arm, row in scores.items()},
        largest_residual=_largest(residuals),
    )


def _scores_under(data: Data, arm: str, reward: Reward) -> Array:
    """One score a seed: the mean over episodes of Σ weight · raw term; seeds without every term are left out."""
    scores = [score_under(run.evaluation, reward.weights) for run in data.finished(arm) if run.evaluation]
    return np.array([score for score in scores if np.isfinite(score)], dtype=np.float64)


def score_under(evaluation: Columns, weights: Mapping[str, float]) -> float:
    """Mean over episodes of Σ weight · raw term sum."""
    parts = [weight * _column(evaluation, f"term/{term}") for term, weight in sorted(weights.items())]
    return float(np.mean(np.sum(parts, axis=0)))


def _shade(value: float, column: Iterable[float]) -> float:
    known = [other for other in column if np.isfinite(other)]
    if not known or not np.isfinite(value):
        return float("nan")
    low, high = min(known), max(known)
    return (value - low) / (high - low) if high > low else 0.5


def _largest(arrays: Sequence[Array]) -> float:
    values = np.abs(np.concatenate(arrays)) if arrays else np.empty(0)
    values = values[np.isfinite(values)]
    return float(values.max()) if len(values) else 0.0
