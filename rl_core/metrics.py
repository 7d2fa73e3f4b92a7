"""Episodes as rows of numbers, and CSV files whose bytes depend on nothing but those numbers."""

import hashlib
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TextIO, TypeVar

import numpy as np

from rl_core.arrays import Array
from rl_core.envs.simulation import StepResult

EPISODE_COLUMNS = ("return", "length", "terminated", "residual")  # then one column per term, raw sums
FIRST_TERM = len(EPISODE_COLUMNS)
WINDOW = 100  # episodes in a training mean


_Value = TypeVar("_Value")


def under(prefix: str, values: Mapping[str, _Value]) -> dict[str, _Value]:
    """Return the values whose names start with `prefix`, under the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}


class EpisodeTracker:
    """Sums of the open episode of every environment; hands out a row when an episode ends. No episode is dropped."""

    def __init__(self, num_envs: int, num_terms: int) -> None:
        self.open = np.zeros((num_envs, FIRST_TERM + num_terms))

    def add(self, step: StepResult) -> Array:
        """Add one vector step; return the rows of the episodes that ended, (ended, columns), by environment."""
        self.open[:, 0] += step.reward
        self.open[:, 1] += 1
        self.open[:, 2] = step.terminated
        self.open[:, 3] += step.residual
        self.open[:, FIRST_TERM:] += step.terms
        done = step.done
        ended = self.open[done]
        self.open[done] = 0
        return ended


class EpisodeWindow:
    """The newest 100 finished episodes, and how many there have been."""

    def __init__(self, term_names: Sequence[str]) -> None:
        self._term_names = tuple(term_names)
        self.rows: Array = np.zeros((0, FIRST_TERM + len(term_names)))
        self.episodes = 0

    def extend(self, rows: Array) -> None:
        """Take in finished episodes, oldest first."""
        self.episodes += len(rows)
        self.rows = np.concatenate((self.rows, rows))[-WINDOW:]

    @property
    def mean_return(self) -> float | None:
        """Mean return of the window; None, not 0, before the first episode has ended."""
        return float(self.rows[:, 0].mean()) if len(self.rows) else None

    def means(self) -> dict[str, float | None]:
        """Return the columns of progress.csv that describe episodes."""
        names = ["return_mean", "length_mean", "terminated_fraction", "residual"]
        names += [f"term/{name}" for name in self._term_names]
        if not len(self.rows):
            return dict.fromkeys(names)
        return dict(zip(names, map(float, self.rows.mean(axis=0)), strict=True))


class CsvFile:
    """An append-only CSV with a fixed header; floats are written with all their digits, None as an empty cell.

    Args:
        path: the file. If it exists it is continued after `length` bytes, the rest is cut off.
        columns: the header.
        length: bytes to keep of an existing file; 0 starts anew.
    """

    def __init__(self, path: Path, columns: Sequence[str], *, length: int = 0) -> None:
        self.columns = tuple(columns)
        self._digest = hashlib.sha256(path.read_bytes()[:length] if length else b"")
        self._file: TextIO = path.open("r+" if length else "w", encoding="utf-8", newline="")
        if length:
            self._file.truncate(length)
            self._file.seek(length)
        else:
            self._write(self.columns)

    def append(self, row: Mapping[str, float | str | None]) -> None:
        """Write one row.

        Raises:
            ValueError: the row's names are not the header's.
        """
        if set(row) != set(self.columns):
            raise ValueError(f"columns differ: {sorted(set(row) ^ set(self.columns))}")
        self._write(cell(row[name]) for name in self.columns)

    @property
    def length(self) -> int:
        """Bytes written so far."""
        return self._file.tell()

    @property
    def digest(self) -> str:
        """SHA-256 of the bytes written so far."""
        return self._digest.hexdigest()

    def sync(self) -> None:
        """Have the operating system write the file to the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file; again is harmless."""
        self._file.close()

    def _write(self, cells: Iterable[str]) -> None:
        line = ",".join(cells) + "\n"
        self._digest.update(line.encode())
        self._file.write(line)
        self._file.flush()


def cell(value: float | str | None) -> str:
    """Return a CSV cell: shortest digits that give the same float back, empty for None and for not a number."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return value if isinstance(value, str) else repr(value)
