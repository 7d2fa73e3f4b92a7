"""Running statistics of observations and of discounted returns.

The learner alone updates them, from whole chunks of the ring, and publishes them with the weights, so that collector,
learner and evaluation apply the same numbers. The ring holds raw values.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rl_core.arrays import AnyArray, Array, Bool, Float32
from rl_core.device import CPU, moved
from rl_core.networks import Params

OBS_MEAN, OBS_STD = "normalizer.mean", "normalizer.std"
_STD_FLOOR = 1e-2  # added to σ: a coordinate that hardly moves must not be blown up (Seo et al. 2025, their code)
_VARIANCE_FLOOR = 1e-8  # of discounted returns


class RunningMoments:
    """Mean and variance of all rows seen, exact up to rounding (Chan et al. 1979, parallel Welford), in float64."""

    def __init__(self, size: int) -> None:
        self.count = 0
        self.mean: Array = np.zeros(size)
        self._squares: Array = np.zeros(size)  # Σ (x − mean)²

    def update(self, rows: npt.NDArray[np.floating]) -> None:
        """Add rows, (n, size)."""
        n = len(rows)
        if n == 0:
            return
        mean = rows.mean(axis=0, dtype=np.float64)
        squares = np.square(rows - mean, dtype=np.float64).sum(axis=0)
        total = self.count + n
        delta = mean - self.mean
        self._squares += squares + np.square(delta) * (self.count * n / total)
        self.mean += delta * (n / total)
        self.count = total

    @property
    def variance(self) -> Array:
        """Population variance, (size,); zero before the first row."""
        return self._squares / max(self.count, 1)

    def state(self) -> dict[str, AnyArray]:
        """Return copies of all that `restore` needs."""
        return {"count": np.array([self.count]), "mean": self.mean.copy(), "squares": self._squares.copy()}

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        """Continue from what `state` returned."""
        self.count = int(state["count"][0])
        self.mean[:], self._squares[:] = state["mean"], state["squares"]


class ObservationNormalizer:
    """x' = (x − mean) / (σ + 0.01) with the statistics of every observation that an action was chosen for.

    They are computed on the CPU, from the ring's rows, and published on the learner's device.
    """

    def __init__(self, obs_dim: int, device: torch.device = CPU) -> None:
        self.moments = RunningMoments(obs_dim)
        self.published: Params = moved({OBS_MEAN: torch.zeros(obs_dim), OBS_STD: torch.ones(obs_dim)}, device)
        self._device = device

    def update(self, obs: Float32) -> None:
        """Add observations, (n, obs_dim), and publish the statistics with them included."""
        self.moments.update(obs)
        self._publish()

    def state(self) -> dict[str, AnyArray]:
        """Return copies of all that `restore` needs."""
        return self.moments.state()

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        """Continue from what `state` returned."""
        self.moments.restore(state)
        if self.moments.count:
            self._publish()

    def _publish(self) -> None:
        std = np.sqrt(self.moments.variance) + _STD_FLOOR
        mean = torch.from_numpy(self.moments.mean.astype(np.float32))
        self.published = moved({OBS_MEAN: mean, OBS_STD: torch.from_numpy(std.astype(np.float32))}, self._device)


def normalized(published: Mapping[str, Tensor], obs: Tensor) -> Tensor:
    """Return `obs` as the networks see it; unchanged where no statistics are published."""
    mean = published.get(OBS_MEAN)
    return obs if mean is None else (obs - mean) / published[OBS_STD]


class RewardScaler:
    """r' = r / max(√(var G + 1e-8), max|G| / limit), G ← γ (1 − done) G + r in each environment (FlashSAC).

    The second term keeps the discounted return within the critics' support [−limit, limit].
    """

    def __init__(self, num_envs: int, *, gamma: float, limit: float) -> None:
        self._gamma, self._limit = gamma, limit
        self.moments = RunningMoments(1)
        self.returns: Array = np.zeros(num_envs)
        self.largest = 0.0  # |G|

    def update(self, reward: Float32, done: Bool) -> None:
        """Add whole vector steps, oldest first: (vector_steps, num_envs) each."""
        for r, d in zip(reward, done, strict=True):
            self.returns = self._gamma * np.where(d, 0.0, self.returns) + r
            self.moments.update(self.returns[:, None])
            self.largest = max(self.largest, float(np.abs(self.returns).max()))

    @property
    def divisor(self) -> float:
        """What rewards are divided by; 1 before the first vector step."""
        if not self.moments.count:
            return 1.0
        deviation = float(np.sqrt(self.moments.variance[0] + _VARIANCE_FLOOR))
        return max(deviation, self.largest / self._limit)

    def state(self) -> dict[str, AnyArray]:
        """Return copies of all that `restore` needs."""
        return {**self.moments.state(), "returns": self.returns.copy(), "largest": np.array([self.largest])}

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        """Continue from what `state` returned."""
        self.moments.restore(state)
        self.returns[:] = state["returns"]
        self.largest = float(state["largest"][0])
