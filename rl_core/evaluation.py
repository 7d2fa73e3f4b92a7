"""Policies rolled out deterministically under fixed seeds: raw sums of every term, and every yardstick."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from rl_core import policy as policies
from rl_core.arrays import Array, Bool
from rl_core.envs.rewards import Transition
from rl_core.envs.simulation import VectorEnv
from rl_core.envs.task import Task
from rl_core.files import write_atomic, write_json
from rl_core.metrics import EPISODE_COLUMNS, FIRST_TERM, EpisodeTracker, cell, under
from rl_core.policy import Policy


@dataclass(frozen=True, slots=True)
class Episodes:
    """Finished episodes of one policy, one row each."""

    task: Task
    sums: Array  # (episodes, 4 + terms), columns as in `metrics.EPISODE_COLUMNS` and then the raw terms
    yardsticks: Array  # (episodes, yardsticks)

    def column(self, name: str) -> Array:
        """Return one of `metrics.EPISODE_COLUMNS`, (episodes,)."""
        return self.sums[:, EPISODE_COLUMNS.index(name)]

    def measures(self) -> dict[str, Array]:
        """Return `term/<name>`, `residual` and `yardstick/<name>` by name, (episodes,) each."""
        columns = {f"term/{name}": self.sums[:, FIRST_TERM + i] for i, name in enumerate(self.task.terms)}
        columns["residual"] = self.column("residual")
        return columns | {f"yardstick/{name}": self.yardsticks[:, i] for i, name in enumerate(self.task.yardsticks)}

    def means(self) -> dict[str, float]:
        """Return the columns of curve.csv that describe episodes."""
        returns = self.column("return")
        return {
            "return_mean": float(returns.mean()),
            "return_std": float(returns.std()),
            "length_mean": float(self.column("length").mean()),
            "terminated_fraction": float(self.column("terminated").mean()),
            **{name: float(values.mean()) for name, values in self.measures().items()},
        }


def mean_columns(task: type[Task]) -> list[str]:
    """Return the names that `Episodes.means` gives for this task, in order."""
    names = ["return_mean", "return_std", "length_mean", "terminated_fraction"]
    names += [f"term/{name}" for name in task.terms]
    return [*names, "residual", *(f"yardstick/{name}" for name in task.yardsticks)]


def rollout(policy: Policy, *, episodes: int, streams: np.random.SeedSequence, threads: int = 1) -> Episodes:
    """Roll out one episode in each of `episodes` environments; episode i depends on the stream's i-th child alone."""
    env = VectorEnv(policy.task, weights=policy.weights, num_envs=episodes, streams=streams, threads=threads)
    tracker = EpisodeTracker(episodes, len(policy.task.terms))
    measure = _YardstickMeter(policy.task, episodes)
    sums = np.zeros_like(tracker.open)
    running = np.ones(episodes, bool)
    while running.any():
        step = env.step(policy.action(env.observation))
        measure.add(step.transition, running)
        ended = tracker.add(step)
        newly, rows = running & step.done, ended[running[step.done]]
        sums[newly] = rows
        running &= ~step.done
    return Episodes(policy.task, sums, measure.values(sums[:, EPISODE_COLUMNS.index("length")]))


class _YardstickMeter:
    def __init__(self, task: Task, episodes: int) -> None:
        self._yardsticks = tuple(task.yardsticks.values())
        self._totals = np.zeros((episodes, len(self._yardsticks)))

    def add(self, transition: Transition, running: Bool) -> None:
        for i, yardstick in enumerate(self._yardsticks):
            value = yardstick.function(transition)
            if yardstick.reduce != "last":
                value = self._totals[:, i] + value
            self._totals[:, i] = np.where(running, value, self._totals[:, i])

    def values(self, lengths: Array) -> Array:
        divisor = np.stack([lengths if y.reduce == "mean" else np.ones_like(lengths) for y in self._yardsticks], axis=1)
        return self._totals / divisor


def evaluate_run(policy_path: Path, run_dir: Path, *, episodes: int, seed: int) -> dict[str, object]:
    """Evaluate a policy file and write evaluation.csv and evaluation.json into `run_dir`, each atomically.

    Args:
        policy_path: a policy file; it names its task and its reward itself.
        run_dir: the folder to write to.
        episodes: how many episodes; each starts from a state of its own.
        seed: the starts depend on it alone, so that all policies face the same ones.

    Returns: the content of evaluation.json.

    Raises:
        SettingsError: the policy file is missing or damaged.
    """
    torch.set_num_threads(1)
    policy = policies.load(policy_path)
    result = rollout(policy, episodes=episodes, streams=np.random.SeedSequence(seed))
    measures = result.measures()
    run_dir.mkdir(parents=True, exist_ok=True)
    write_atomic(run_dir / "evaluation.csv", _episode_table(result, measures))
    means = {name: float(values.mean()) for name, values in measures.items()}
    summary: dict[str, object] = {
        "episodes": episodes,
        "seed": seed,
        "return_mean": float(result.column("return").mean()),
        "length_mean": float(result.column("length").mean()),
        "residual": means["residual"],
        "terms": under("term/", means),
        "yardsticks": under("yardstick/", means),
    }
    write_json(run_dir / "evaluation.json", summary)
    return summary


def _episode_table(result: Episodes, measures: Mapping[str, Array]) -> bytes:
    lines = [",".join(("episode", "length", "terminated", "truncated", "return", *measures))]
    lengths, ends, returns = (result.column(name) for name in ("length", "terminated", "return"))
    for i in range(len(result.sums)):
        head = (str(i), str(int(lengths[i])), str(int(ends[i])), str(int(1 - ends[i])), cell(float(returns[i])))
        lines.append(",".join((*head, *(cell(float(values[i])) for values in measures.values()))))
    return ("\n".join(lines) + "\n").encode()
