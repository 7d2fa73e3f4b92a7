"""The collector's noise: its distribution, what it remembers, and that it goes on where it was."""

import numpy as np
import pytest

from rl_core.exploration import Exploration, HeldNoise, ScaledNoise, WhiteNoise

MAKERS = {
    "white": lambda: WhiteNoise(3, 2),
    "scaled": lambda: ScaledNoise(3, 2, low=0.2, high=0.8),
    "held": lambda: HeldNoise(3, 2, exponent=2.0, longest=16),
}


def steps(noise: Exploration, rng: np.random.Generator, count: int, done: np.ndarray | None = None) -> np.ndarray:
    drawn = []
    for i in range(count):
        drawn.append(noise.noise(rng))
        noise.ended(np.zeros(3, bool) if done is None else done[i], rng)
    return np.stack(drawn)


@pytest.mark.parametrize("kind", MAKERS)
def test_restored_noise_goes_on_where_it_was(kind: str) -> None:
    done = np.random.default_rng(1).random((40, 3)) < 0.2
    rng = np.random.default_rng(0)
    noise = MAKERS[kind]()
    steps(noise, rng, 20, done[:20])
    again, other = MAKERS[kind](), np.random.default_rng()
    again.restore(noise.state())
    other.bit_generator.state = rng.bit_generator.state
    assert np.array_equal(steps(noise, rng, 20, done[20:]), steps(again, other, 20, done[20:]))


def test_scales_are_log_uniform_in_their_range_and_change_when_an_episode_ends_only() -> None:
    noise, rng = ScaledNoise(4000, 1, low=0.2, high=0.8), np.random.default_rng(0)
    noise.noise(rng)
    scales = noise.scales.copy()
    assert 0.2 <= scales.min() < 0.21
    assert 0.79 < scales.max() <= 0.8001
    assert np.median(scales) == pytest.approx(np.sqrt(0.2 * 0.8), rel=0.03)
    noise.noise(rng)
    assert np.array_equal(noise.scales, scales)
    done = np.arange(4000) % 3 == 0
    noise.ended(done, rng)
    assert np.array_equal(noise.scales[~done], scales[~done])
    assert (noise.scales[done] != scales[done]).all()


def test_scaled_noise_has_the_scale_of_its_environment() -> None:
    noise, rng = ScaledNoise(3, 2, low=0.2, high=0.8), np.random.default_rng(0)
    drawn = np.stack([noise.noise(rng) for _ in range(4000)])
    np.testing.assert_allclose(drawn.std(axis=(0, 2)), noise.scales, rtol=0.05)


def test_held_noise_is_held_for_zeta_distributed_times_and_no_longer_than_the_limit() -> None:
    noise, rng = HeldNoise(1, 1, exponent=2.0, longest=16), np.random.default_rng(0)
    drawn = np.stack([noise.noise(rng) for _ in range(60_000)])[:, 0, 0]
    ends = np.flatnonzero(np.diff(drawn)) + 1
    lengths = np.diff(ends)
    assert lengths.max() == 16
    p = np.arange(1, 17.0) ** -2
    expected = p / p.sum()
    found = np.bincount(lengths, minlength=17)[1:] / len(lengths)
    np.testing.assert_allclose(found, expected, atol=0.01)
    assert drawn[ends].std() == pytest.approx(1, abs=0.03)
