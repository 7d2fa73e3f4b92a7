"""Small pure functions on arrays of seed scores. The seed is the unit of replication everywhere.

Sources:
- Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice", NeurIPS 2021 (IQM,
  probability of improvement).
- Colas, Sigaud, Oudeyer, "How Many Random Seeds?", 2018 (Welch's test and its power for learning curves).
- Holm, "A Simple Sequentially Rejective Multiple Test Procedure", Scand. J. Statistics 6, 1979.
- Welch, "The generalization of Student's problem", Biometrika 34, 1947.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

Array = NDArray[np.float64]

RESAMPLES = 2000  # of every bootstrap


@dataclass(frozen=True, kw_only=True)
class Interval:
    """Both ends in the unit of what they enclose."""

    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Welch's comparison of two means, first minus second."""

    value: float
    standard_error: float
    degrees: float  # Welch–Satterthwaite degrees of freedom
    p: float  # two-sided

    def interval(self, confidence: float) -> Interval:
        """Two-sided t interval of the difference at Welch–Satterthwaite degrees of freedom (Welch 1947)."""
        half = float(stats.t.ppf(0.5 + confidence / 2, self.degrees)) * self.standard_error
        return Interval(low=self.value - half, high=self.value + half)


def spread(scores: Array) -> float:
    """The sample standard deviation (n − 1); exactly 0 where the scores differ by rounding alone; NaN for n < 2."""
    if len(scores) < 2:
        return float("nan")
    deviation = float(np.std(scores, ddof=1))
    return 0.0 if deviation <= 1e-12 * float(np.max(np.abs(scores))) else deviation


def t_interval(scores: Array, *, confidence: float) -> Interval | None:
    """Student's t interval of a mean; None for fewer than two scores."""
    n = len(scores)
    if n < 2:
        return None
    half = float(stats.t.ppf(0.5 + confidence / 2, n - 1)) * spread(scores) / np.sqrt(n)
    mean = float(np.mean(scores))
    return Interval(low=mean - half, high=mean + half)


def t_band(samples: Array, *, confidence: float) -> tuple[Array, Array, Array]:
    """Mean and t interval per column of `samples` (n, points); a column with a NaN stays NaN: no seed drops out."""
    n = len(samples)
    mean = np.mean(samples, axis=0)
    if n < 2:
        nothing = np.full_like(mean, np.nan)
        return mean, nothing, nothing
    half = float(stats.t.ppf(0.5 + confidence / 2, n - 1)) * np.std(samples, axis=0, ddof=1) / np.sqrt(n)
    return mean, mean - half, mean + half


def welch(first: Array, second: Array) -> Difference | None:
    """Welch's t test of first minus second (Welch 1947).

    None where it is undefined: fewer than two scores on a side, or no spread on either side.
    """
    if min(len(first), len(second)) < 2:
        return None
    parts = np.array([spread(first) ** 2 / len(first), spread(second) ** 2 / len(second)])
    if not parts.sum() > 0:
        return None
    error = float(np.sqrt(parts.sum()))
    degrees = float(parts.sum() ** 2 / np.sum(parts**2 / np.array([len(first) - 1, len(second) - 1])))
    value = float(np.mean(first) - np.mean(second))
    return Difference(
        value=value,
        standard_error=error,
        degrees=degrees,
        p=float(2 * stats.t.sf(abs(value) / error, degrees)),
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p values, in the order given (Holm 1979)."""
    m = len(p_values)
    adjusted = [0.0] * m
    running = 0.0
    for rank, index in enumerate(np.argsort(p_values, kind="stable")):
        running = max(running, min(1.0, (m - rank) * p_values[index]))
        adjusted[index] = running
    return adjusted


def holm_levels(p_values: Sequence[float], *, alpha: float) -> list[float]:
    """The level at which Holm's procedure judges each comparison, in the order given.

    The procedure stops at the first comparison it does not reject; the ones behind share that comparison's level, so
    an interval at 1 − level excludes zero exactly where the adjusted p is below alpha.
    """
    m = len(p_values)
    levels = [alpha] * m
    stop = m
    for rank, index in enumerate(np.argsort(p_values, kind="stable")):
        if stop == m and p_values[index] >= alpha / (m - rank):
            stop = rank
        levels[index] = alpha / (m - min(rank, stop))
    return levels


def iqm(scores: Array) -> tuple[float, int]:
    """The interquartile mean, floor(n / 4) scores dropped at each end, and how many scores survive (Agarwal 2021)."""
    if not len(scores):
        return float("nan"), 0
    cut = len(scores) // 4
    kept = np.sort(scores)[cut : len(scores) - cut]
    return float(np.mean(kept)), len(kept)


def smallest_detectable(first: Array, second: Array, *, level: float, power: float = 0.8) -> float | None:
    """The true difference that Welch's two-sided test at `level` would find with probability `power`.

    Takes the observed spreads for the true ones (noncentral t; Colas 2018, section 4); None where it is undefined.
    """
    difference = welch(first, second)
    if difference is None:
        return None
    threshold = float(stats.t.ppf(1 - level / 2, difference.degrees))

    def lacking(shift: float) -> float:
        above = float(stats.nct.sf(threshold, difference.degrees, shift))
        below = float(stats.nct.cdf(-threshold, difference.degrees, shift))
        return above + (below if np.isfinite(below) else 0.0) - power

    return float(optimize.brentq(lacking, 0.0, 2 * threshold + 10)) * difference.standard_error


def probability_of_improvement(first: Array, second: Array) -> float:
    """How often a score of `first` exceeds one of `second`, ties counted half (Mann–Whitney U / nm)."""
    signs = np.sign(first[:, None] - second[None, :])
    return float(np.mean((signs + 1) / 2)) if signs.size else float("nan")


def improvement_interval(first: Array, second: Array, *, confidence: float) -> Interval | None:
    """Percentile bootstrap interval of the probability of improvement.

    None for fewer than two scores on a side, and where one side beats the other in every pair: resamples of those show
    no spread whatever the truth is.
    """
    if min(len(first), len(second)) < 2 or probability_of_improvement(first, second) in (0.0, 1.0):
        return None
    random = generator(first, second)
    left = first[random.integers(len(first), size=(RESAMPLES, len(first)))]
    right = second[random.integers(len(second), size=(RESAMPLES, len(second)))]
    drawn = np.mean((np.sign(left[:, :, None] - right[:, None, :]) + 1) / 2, axis=(1, 2))
    low, high = np.quantile(drawn, [0.5 - confidence / 2, 0.5 + confidence / 2])
    return Interval(low=float(low), high=float(high))


def generator(*arrays: Array) -> np.random.Generator:
    """A generator seeded by the data it will resample: the same data give the same draws."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array, dtype="<f8").tobytes() + b"|")
    return np.random.default_rng(int.from_bytes(digest.digest(), "little"))


def common_grid(xs: Sequence[Array], *, points: int) -> Array:
    """At most `points` places inside the range that all of `xs` share; some of their own where they agree on them.

    Empty where the ranges do not overlap.
    """
    if not xs or any(not len(x) for x in xs):
        return np.empty(0)
    if all(np.array_equal(x, xs[0]) for x in xs[1:]):
        return thinned(xs[0], xs[0], points=points)[0]
    low, high = max(float(x[0]) for x in xs), min(float(x[-1]) for x in xs)
    if low > high:
        return np.empty(0)
    return np.linspace(low, high, min(points, 3 * max(len(x) for x in xs))) if low < high else np.array([low])


def on_grid(grid: Array, x: Array, y: Array) -> Array:
    """Linear interpolation inside the range of x, NaN beside it; a NaN in y leaves a gap."""
    return np.interp(grid, x, y, left=np.nan, right=np.nan) if len(x) else np.full(len(grid), np.nan)


def thinned(x: Array, y: Array, *, points: int) -> tuple[Array, Array]:
    """At most `points` of the given points, evenly picked, both ends kept; nothing is averaged."""
    if len(x) <= points:
        return x, y
    picked = np.unique(np.linspace(0, len(x) - 1, points).round().astype(int))
    return x[picked], y[picked]
