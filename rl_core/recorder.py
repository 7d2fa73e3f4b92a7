"""What a run writes down as it goes: progress.csv and curve.csv (deterministic), timing.csv (the clock's)."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_core import evaluation
from rl_core.arrays import AnyArray, Array
from rl_core.device import CPU
from rl_core.envs.task import Task
from rl_core.metrics import CsvFile, EpisodeWindow

_TIMES = ("wall_s", "active_s", "learner_wait_s", "evaluation_s")
_RATIO_DECAY = 0.9  # of the average write/read ratio, a log row

Row = dict[str, float | None]


class LossMeans:
    """Means of what the updates report between two log rows. Sums stay on the updates' device until they are read."""

    def __init__(self, device: torch.device = CPU) -> None:
        self._device = device
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}

    def add(self, info: Mapping[str, Tensor]) -> None:
        """Add one update's scalars."""
        for name, value in info.items():
            if name not in self._sums:
                self._sums[name], self._counts[name] = self._scalar(0), 0
            self._sums[name] += value
            self._counts[name] += 1

    def not_finite(self) -> str | None:
        """Return the name of a loss that is not finite, or None."""
        return next((name for name, total in self._read().items() if not math.isfinite(total)), None)

    def take(self) -> dict[str, float]:
        """Return the means and start anew."""
        means = {name: total / self._counts[name] for name, total in self._read().items()}
        self._sums, self._counts = {}, {}
        return means

    def state(self) -> dict[str, list[float]]:
        """Return sums and counts; float64 survives JSON bit for bit."""
        return {name: [total, self._counts[name]] for name, total in self._read().items()}

    def restore(self, state: Mapping[str, Sequence[float]]) -> None:
        """Continue from what `state` returned."""
        self._sums = {name: self._scalar(total) for name, (total, _) in state.items()}
        self._counts = {name: int(count) for name, (_, count) in state.items()}

    def _scalar(self, value: float) -> Tensor:
        return torch.tensor(value, dtype=torch.float64, device=self._device)

    def _read(self) -> dict[str, float]:
        """Return the sums; one transfer, and one wait for the device, for all."""
        if not self._sums:
            return {}
        return dict(zip(self._sums, torch.stack(list(self._sums.values())).tolist(), strict=True))


class Recorder:
    """The tables of a run and the statistics that feed them.

    Args:
        folder: where the tables are written.
        task: names the terms and yardsticks.
        losses: names of what the algorithm's updates report.
        lengths: table name -> bytes to keep, when a run is resumed.
        device: where the updates' losses are.
    """

    def __init__(
        self,
        folder: Path,
        task: type[Task],
        losses: Sequence[str],
        lengths: Mapping[str, int],
        device: torch.device = CPU,
    ) -> None:
        self.window = EpisodeWindow(tuple(task.terms))
        self.losses = LossMeans(device)
        self.best_return: float | None = None
        self.evaluation_returns: list[float] = []
        self.write_read_ratio: float | None = None  # transitions collected per transition drawn, exponential average
        self.edge_mass: float | None = None  # of categorical critics, mean since the last row but one
        self._logged = (0, 0)  # env steps and updates at the last row
        self._loss_names = tuple(losses)
        counters = ("env_steps", "updates", "episodes")
        losses_columns = (f"loss/{name}" for name in losses)
        columns = {
            "progress": ("iteration", *counters, "write_read_ratio", *self.window.means(), *losses_columns),
            "curve": (*counters, *evaluation.mean_columns(task)),
            "timing": ("env_steps", "updates", *_TIMES),
        }
        self._tables = {
            name: CsvFile(folder / f"{name}.csv", header, length=lengths.get(name, 0))
            for name, header in columns.items()
        }

    def add_episodes(self, rows: Array) -> None:
        """Take in finished training episodes."""
        self.window.extend(rows)
        mean = self.window.mean_return
        if mean is not None and len(rows):
            self.best_return = mean if self.best_return is None else max(mean, self.best_return)

    def log(self, *, iteration: int, env_steps: int, updates: int, batch_size: int, times: Mapping[str, float]) -> Row:
        """Write a row of progress.csv, which is returned, and one of timing.csv."""
        counters = {"iteration": iteration, "env_steps": env_steps, "updates": updates}
        self._average_ratio(env_steps, updates, batch_size)
        losses = self.losses.take()
        self.edge_mass = losses.get("edge_mass", self.edge_mass)
        named = {f"loss/{name}": losses.get(name) for name in self._loss_names}
        statistics = {"episodes": self.window.episodes, "write_read_ratio": self.write_read_ratio}
        row = {**counters, **statistics, **self.window.means(), **named}
        self._tables["progress"].append(row)
        clock = {name: times[name] for name in _TIMES}
        self._tables["timing"].append({"env_steps": env_steps, "updates": updates, **clock})
        return row

    def _average_ratio(self, env_steps: int, updates: int, batch_size: int) -> None:
        written, read = env_steps - self._logged[0], (updates - self._logged[1]) * batch_size
        self._logged = (env_steps, updates)
        if read:
            before, ratio = self.write_read_ratio, written / read
            self.write_read_ratio = ratio if before is None else _RATIO_DECAY * before + (1 - _RATIO_DECAY) * ratio

    def evaluated(self, result: evaluation.Episodes, *, env_steps: int, updates: int) -> dict[str, float]:
        """Write a row of curve.csv and return it."""
        means = result.means()
        counters = {"env_steps": env_steps, "updates": updates, "episodes": len(result.sums)}
        row = {**counters, **means}
        self._tables["curve"].append(row)
        self.evaluation_returns.append(means["return_mean"])
        return row

    def summary(self) -> dict[str, Any]:
        """Return what summary.json says of returns and episodes; None where no episode has ended."""
        return {
            "episodes": self.window.episodes,
            "episode_length": self.window.means()["length_mean"],
            "final_return": self.window.mean_return,
            "best_return": self.best_return,
            "final_evaluation_return": self.evaluation_returns[-1],
            "best_evaluation_return": max(self.evaluation_returns),
            **({} if self.edge_mass is None else {"edge_mass": self.edge_mass}),
        }

    def state(self) -> tuple[dict[str, AnyArray], dict[str, Any]]:
        """Return arrays and JSON values that `restore` continues from."""
        return {"episodes": self.window.rows}, {
            "episodes": self.window.episodes,
            "best_return": self.best_return,
            "evaluation_returns": self.evaluation_returns,
            "losses": self.losses.state(),
            "write_read_ratio": self.write_read_ratio,
            "edge_mass": self.edge_mass,
            "logged": list(self._logged),
            "lengths": {name: table.length for name, table in self._tables.items()},
            "digests": {name: table.digest for name, table in self._tables.items()},
        }

    def sync(self) -> None:
        """Have the operating system write the tables to the disk."""
        for table in self._tables.values():
            table.sync()

    def restore(self, arrays: Mapping[str, AnyArray], info: Mapping[str, Any]) -> None:
        """Continue from what `state` returned; the tables were opened with its lengths."""
        self.window.rows = np.array(arrays["episodes"], np.float64)
        self.window.episodes = info["episodes"]
        self.best_return = info["best_return"]
        self.evaluation_returns = list(info["evaluation_returns"])
        self.losses.restore(info["losses"])
        self.write_read_ratio, self.edge_mass = info["write_read_ratio"], info["edge_mass"]
        self._logged = (info["logged"][0], info["logged"][1])

    def close(self) -> None:
        """Close the tables; again is harmless."""
        for table in self._tables.values():
            table.close()
