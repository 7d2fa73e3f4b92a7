"""Exploration noise: what the collector adds to its policy, and remembers from step to step.

The noise belongs to the collector, not to the weights: a new version of the weights leaves it as it is, and it is
part of the collector's state.
"""

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from rl_core.arrays import AnyArray, Bool, Float32


class Exploration(Protocol):
    """A source of noise for all environments, (num_envs, action_dim) a vector step."""

    def noise(self, rng: np.random.Generator) -> Float32:
        """Draw the noise of the next vector step."""

    def ended(self, done: Bool, rng: np.random.Generator) -> None:
        """Take note of the environments whose episode has ended."""

    def state(self) -> dict[str, AnyArray]:
        """Return copies of what the next noise depends on, apart from the generator."""

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        """Continue from what `state` returned."""


class WhiteNoise:
    """Standard normal noise, drawn anew in every step."""

    def __init__(self, num_envs: int, action_dim: int) -> None:
        self._shape = (num_envs, action_dim)

    def noise(self, rng: np.random.Generator) -> Float32:
        return rng.standard_normal(self._shape, np.float32)

    def ended(self, done: Bool, rng: np.random.Generator) -> None:
        pass

    def state(self) -> dict[str, AnyArray]:
        return {}

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        pass


class ScaledNoise:
    """Normal noise with a scale σ of its own for every environment, drawn log-uniformly from [low, high].

    An environment's scale is drawn again when its episode ends (Seo et al. 2025, FastTD3).
    """

    def __init__(self, num_envs: int, action_dim: int, *, low: float, high: float) -> None:
        self._shape = (num_envs, action_dim)
        self._range = (np.log(low), np.log(high))
        self.scales: Float32 = np.zeros(num_envs, np.float32)  # 0: not drawn yet

    def noise(self, rng: np.random.Generator) -> Float32:
        self._draw(self.scales == 0, rng)
        return self.scales[:, None] * rng.standard_normal(self._shape, np.float32)

    def ended(self, done: Bool, rng: np.random.Generator) -> None:
        self._draw(done, rng)

    def state(self) -> dict[str, AnyArray]:
        return {"scales": self.scales.copy()}

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        self.scales[:] = state["scales"]

    def _draw(self, chosen: Bool, rng: np.random.Generator) -> None:
        if chosen.any():
            drawn = np.exp(rng.uniform(*self._range, len(chosen))).astype(np.float32)
            self.scales = np.where(chosen, drawn, self.scales)


class HeldNoise:
    """One sample of standard normal noise held for k steps, P(k) ∝ k^−exponent for k = 1 … longest (FlashSAC)."""

    def __init__(self, num_envs: int, action_dim: int, *, exponent: float, longest: int) -> None:
        weights = np.arange(1, longest + 1, dtype=np.float64) ** -exponent
        self._cumulative = np.cumsum(weights / weights.sum())
        self.held: Float32 = np.zeros((num_envs, action_dim), np.float32)
        self.left = np.zeros(1, np.int64)  # steps that the held sample still serves

    def noise(self, rng: np.random.Generator) -> Float32:
        if self.left[0] == 0:
            self.held = rng.standard_normal(self.held.shape, np.float32)
            drawn = int(np.searchsorted(self._cumulative, rng.uniform(), side="right"))
            self.left[0] = min(drawn, len(self._cumulative) - 1) + 1  # rounding: the last sum may fall short of 1
        self.left -= 1
        return self.held

    def ended(self, done: Bool, rng: np.random.Generator) -> None:
        pass

    def state(self) -> dict[str, AnyArray]:
        return {"held": self.held.copy(), "left": self.left.copy()}

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        self.held = state["held"].astype(np.float32)
        self.left[:] = state["left"]
