"""Statistics equal numpy's over all data, and everybody applies the same ones."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_core.normalization import ObservationNormalizer, RewardScaler, RunningMoments, normalized


@settings(max_examples=50)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=8), st.floats(-1e4, 1e4), st.floats(1e-3, 1e3))
def test_moments_equal_numpys_over_all_rows(sizes: list[int], offset: float, scale: float) -> None:
    rng = np.random.default_rng(0)
    chunks = [offset + scale * rng.standard_normal((n, 3)) for n in sizes]
    moments = RunningMoments(3)
    for chunk in chunks:
        moments.update(chunk)
    rows = np.concatenate(chunks)
    assert moments.count == len(rows)
    if len(rows):
        np.testing.assert_allclose(moments.mean, rows.mean(0), rtol=1e-9, atol=1e-9 * scale)
        np.testing.assert_allclose(moments.variance, rows.var(0), rtol=1e-7, atol=1e-7 * scale**2)


def test_observations_are_centred_and_scaled_and_a_constant_stays_finite() -> None:
    rows = np.random.default_rng(1).normal((3, -2, 7), (2, 0.5, 0), (5000, 3)).astype(np.float32)
    normalizer = ObservationNormalizer(3)
    assert torch.equal(normalized(normalizer.published, torch.ones(2, 3)), torch.ones(2, 3))
    normalizer.update(rows[:2000])
    normalizer.update(rows[2000:])
    seen = normalized(normalizer.published, torch.from_numpy(rows)).numpy()
    np.testing.assert_allclose(seen.mean(0), 0, atol=1e-3)
    np.testing.assert_allclose(seen.std(0)[:2], rows.std(0)[:2] / (rows.std(0)[:2] + 0.01), rtol=1e-4)
    assert np.abs(seen[:, 2]).max() < 1e-3


def test_no_statistics_leave_observations_alone() -> None:
    obs = torch.randn(4, 3)
    assert normalized({"0.weight": torch.zeros(1)}, obs) is obs


def test_rewards_are_divided_by_the_deviation_of_discounted_returns() -> None:
    rng = np.random.default_rng(2)
    reward, done = rng.normal(0, 3, (400, 2)).astype(np.float32), rng.random((400, 2)) < 0.02
    scaler = RewardScaler(2, gamma=0.9, limit=np.inf)
    assert scaler.divisor == 1.0
    scaler.update(reward[:150], done[:150])
    scaler.update(reward[150:], done[150:])
    returns, g = [], np.zeros(2)
    for r, d in zip(reward, done, strict=True):
        g = 0.9 * g * (1 - d) + r
        returns.append(g)
    assert scaler.divisor == pytest.approx(np.sqrt(np.var(returns) + 1e-8), rel=1e-9)


def test_the_largest_return_stays_within_the_critics_support() -> None:
    scaler = RewardScaler(1, gamma=0.99, limit=5)
    scaler.update(np.full((1000, 1), 8, np.float32), np.zeros((1000, 1), bool))
    assert scaler.largest / scaler.divisor == pytest.approx(5)


@pytest.mark.parametrize("kind", ["observations", "rewards"])
def test_restored_statistics_go_on_bit_for_bit(kind: str) -> None:
    rng = np.random.default_rng(3)
    rewards = rng.normal(size=(60, 2)).astype(np.float32)
    done = np.zeros((60, 2), bool)

    def make() -> ObservationNormalizer | RewardScaler:
        return ObservationNormalizer(2) if kind == "observations" else RewardScaler(2, gamma=0.9, limit=5)

    def feed(kept: ObservationNormalizer | RewardScaler, start: int, stop: int) -> None:
        part = rewards[start:stop]
        if isinstance(kept, RewardScaler):
            kept.update(part, done[start:stop])
        else:
            kept.update(part)

    whole, first, second = make(), make(), make()
    feed(whole, 0, 30)
    feed(whole, 30, 60)
    feed(first, 0, 30)
    second.restore(first.state())
    feed(second, 30, 60)
    for name, array in whole.state().items():
        assert array.tobytes() == second.state()[name].tobytes()
