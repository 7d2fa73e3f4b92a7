"""The replay ring: one packed float32 row per transition in a memory-mapped file that two processes share.

A row is obs | privileged | action | reward | terminated | truncated | next_obs | next_privileged, raw values; what
critics alone observe, where the task has it, stands beside the observation and is stored once. The collector writes at
an absolute counter, slot = counter mod (capacity + slack). The learner samples the newest `capacity` rows before *its
own* position, never at the shared counter, so that what it sees does not depend on how far the collector has gone on.
The slack keeps rows in place that a checkpoint still needs while newer ones are written, and it is why a row is never
read while it is written, however far the collector may be ahead.
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from rl_core.arrays import Bool, Float32
from rl_core.errors import TrainingError

_FLOAT32_BYTES = 4
_FINGERPRINT_ROWS = 1_024


@dataclass(frozen=True, slots=True)
class Batch:
    """Transitions as the learner reads them."""

    obs: Tensor  # (batch, obs_dim)
    critic_obs: Tensor  # (batch, obs_dim + privileged_dim): obs, and what critics alone observe
    action: Tensor  # (batch, action_dim)
    reward: Tensor  # (batch,)
    bootstrap: Tensor  # (batch,), 0 where the episode truly ended, else 1
    next_obs: Tensor  # (batch, obs_dim), the true last observation of an episode, not the one after the reset
    next_critic_obs: Tensor  # (batch, obs_dim + privileged_dim)


@dataclass(frozen=True, slots=True)
class Layout:
    """Shape of a ring: what a row holds and how many rows there are."""

    obs_dim: int
    action_dim: int
    capacity: int  # rows that can be sampled
    slack: int  # further rows that protect what a checkpoint needs
    privileged_dim: int = 0

    @property
    def slots(self) -> int:
        """Rows in the file."""
        return self.capacity + self.slack

    @property
    def width(self) -> int:
        """Numbers in a row."""
        return 2 * self.critic_obs_dim + self.action_dim + 3

    @property
    def critic_obs_dim(self) -> int:
        """Numbers that a critic observes; they begin a row."""
        return self.obs_dim + self.privileged_dim

    @property
    def reward_column(self) -> int:
        """Where the reward stands; terminated, truncated and the next observation follow."""
        return self.critic_obs_dim + self.action_dim

    @property
    def size_bytes(self) -> int:
        """Bytes of the file."""
        return self.slots * self.width * _FLOAT32_BYTES


class Rows(Protocol):
    """Where a learner draws its rows from: the ring itself, or what a device holds of it."""

    def sample(self, counter: int, count: int, generator: torch.Generator) -> Tensor:
        """Draw `count` rows uniformly, with replacement, from the newest `capacity` rows before `counter`.

        Returns: copies of the packed rows, (count, width) float32, on the generator's device.
        """


class ReplayRing:
    """The ring in the file `path`; both processes open the same file.

    Args:
        path: the file; made, with its whole size reserved, if it does not exist.
        layout: the shape.

    Raises:
        TrainingError: the disk cannot hold the file, or an existing file has another size.
    """

    def __init__(self, path: Path, layout: Layout) -> None:
        self.layout = layout
        _reserve(path, layout.size_bytes)
        self._rows = np.memmap(path, np.float32, "r+", shape=(layout.slots, layout.width))
        self._tensor = torch.from_numpy(self._rows)

    def write(
        self,
        counter: int,
        *,
        obs: Float32,
        action: Float32,
        reward: Float32,
        terminated: Bool,
        truncated: Bool,
        next_obs: Float32,
    ) -> None:
        """Write the transitions of one vector step as rows counter, counter + 1, ….

        `obs` and `next_obs` are what a critic observes, (num_envs, critic_obs_dim).
        """
        flags = np.stack((reward, terminated, truncated), axis=1, dtype=np.float32, casting="unsafe")
        rows = np.concatenate((obs, action, flags, next_obs), axis=1)
        start, count = counter % self.layout.slots, len(rows)
        first = min(count, self.layout.slots - start)
        self._rows[start : start + first] = rows[:first]
        self._rows[: count - first] = rows[first:]

    def sample(self, counter: int, count: int, generator: torch.Generator) -> Tensor:
        """Draw `count` rows uniformly, with replacement, from the newest `capacity` rows before `counter`.

        Returns: the packed rows, (count, width) float32; `unpack` gives them names.
        """
        window = min(counter, self.layout.capacity)
        index = torch.randint(counter - window, counter, (count,), generator=generator)
        return self._tensor.index_select(0, index.remainder_(self.layout.slots))

    def read(self, start: int, stop: int, out: Tensor) -> None:
        """Copy rows start … stop − 1, which must still be in the ring, to `out`, (stop − start, width)."""
        place = start % self.layout.slots
        first = min(stop - start, self.layout.slots - place)
        out[:first] = self._tensor[place : place + first]
        out[first:] = self._tensor[: len(out) - first]

    def newest(self, start: int, stop: int) -> Float32:
        """Return a copy of rows start … stop − 1, oldest first; at most the newest `capacity` of them.

        Returns: (rows, width).
        """
        start = max(start, stop - self.layout.capacity, 0)
        rows: Float32 = self._rows[np.arange(start, stop) % self.layout.slots]
        return rows

    def unpack(self, rows: Tensor) -> Batch:
        """Return views of packed rows as a batch."""
        layout = self.layout
        obs_dim, critic_dim, end = layout.obs_dim, layout.critic_obs_dim, layout.reward_column
        return Batch(
            obs=rows[:, :obs_dim],
            critic_obs=rows[:, :critic_dim],
            action=rows[:, critic_dim:end],
            reward=rows[:, end],
            bootstrap=1 - rows[:, end + 1],
            next_obs=rows[:, end + 3 : end + 3 + obs_dim],
            next_critic_obs=rows[:, end + 3 :],
        )

    def fingerprint(self, counter: int) -> str:
        """Return a hash of rows spread evenly over what can be sampled before `counter`.

        It tells another run's ring, or one that was cut or emptied, from this one; not a single changed bit.
        """
        window = min(counter, self.layout.capacity)
        index = np.linspace(counter - window, counter, min(window, _FINGERPRINT_ROWS), endpoint=False).astype(np.int64)
        return hashlib.sha256(self._rows[index % self.layout.slots].tobytes()).hexdigest()

    def flush(self) -> None:
        """Have the operating system write all rows to the disk."""
        self._rows.flush()


def _reserve(path: Path, size_bytes: int) -> None:
    """Make the file with its disk space reserved now: a full disk is an error here, not a SIGBUS in a later write."""
    existed = path.exists()
    if existed and path.stat().st_size != size_bytes:
        raise TrainingError(f"{path}: the replay file has {path.stat().st_size} bytes, expected {size_bytes}")
    if existed:
        return
    try:
        with path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, size_bytes)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise TrainingError(f"{path}: cannot reserve {size_bytes / 1e6:.0f} MB for the replay ring: {error}") from error
