"""What reaches the learner: mirrored halves, normalised observations, scaled rewards, privileged columns."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_core.batches import Batches
from rl_core.config import resolve
from rl_core.envs.task import Mirror, Reflection
from rl_core.normalization import RewardScaler
from rl_core.replay import Layout, ReplayRing

NUM_ENVS = 4
LAYOUT = Layout(obs_dim=3, action_dim=2, capacity=22, slack=6, privileged_dim=1)
MIRROR = Mirror(Reflection((1, -1, -1), (0, 2, 1)), Reflection((1, 1), (1, 0)), Reflection((-1,)))


def make(tmp_path: Path, mirror: Mirror | None = None, **changes: Any) -> tuple[Batches, ReplayRing]:
    arm = {"task": "Reacher-v5", "algorithm": "sac", "env_steps": 1000, "learning_starts": 10, "batch_size": 8}
    settings = resolve({**arm, "num_envs": NUM_ENVS, "replay_capacity": 22, **changes}, where="arm")
    ring = ReplayRing(tmp_path / "ring", LAYOUT)
    return Batches(settings, ring, mirror=mirror, generator=torch.Generator().manual_seed(0)), ring


def fill(ring: ReplayRing, vector_steps: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    written = []
    for step in range(vector_steps):
        fields = {
            "obs": rng.normal(2, 3, (NUM_ENVS, 4)).astype(np.float32),
            "action": rng.uniform(-1, 1, (NUM_ENVS, 2)).astype(np.float32),
            "reward": rng.normal(0, 5, NUM_ENVS).astype(np.float32),
            "terminated": rng.random(NUM_ENVS) < 0.2,
            "truncated": rng.random(NUM_ENVS) < 0.2,
            "next_obs": rng.normal(2, 3, (NUM_ENVS, 4)).astype(np.float32),
        }
        ring.write(step * NUM_ENVS, **fields)
        written.append(fields)
    return {name: np.concatenate([fields[name] for fields in written]) for name in written[0]}


def test_critics_see_the_observation_and_the_privileged_part_and_policies_only_the_former(tmp_path: Path) -> None:
    batches, ring = make(tmp_path)
    written = fill(ring, 5)
    (batch,) = batches.draw(1, 20)
    rows = [int(np.flatnonzero(written["reward"] == float(r))[0]) for r in batch.reward]
    assert np.array_equal(batch.critic_obs, written["obs"][rows])
    assert np.array_equal(batch.obs, written["obs"][rows][:, :3])
    assert np.array_equal(batch.next_critic_obs, written["next_obs"][rows])
    assert np.array_equal(batch.next_obs, written["next_obs"][rows][:, :3])
    assert np.array_equal(batch.action, written["action"][rows])
    assert np.array_equal(batch.bootstrap, 1 - written["terminated"][rows].astype(np.float32))


def test_half_a_batch_is_the_mirror_image_of_the_other_with_equal_rewards(tmp_path: Path) -> None:
    batches, ring = make(tmp_path, MIRROR, symmetry=True)
    fill(ring, 5)
    (batch,) = batches.draw(1, 20)
    assert len(batch.reward) == 8
    torch.testing.assert_close(batch.reward[4:], batch.reward[:4])
    torch.testing.assert_close(batch.bootstrap[4:], batch.bootstrap[:4])
    for seen in ("critic_obs", "next_critic_obs"):
        half, other = getattr(batch, seen)[:4], getattr(batch, seen)[4:]
        assert torch.equal(other, torch.stack((half[:, 0], -half[:, 2], -half[:, 1], -half[:, 3]), 1))
    assert torch.equal(batch.action[4:], batch.action[:4].flip(1))


def test_a_mirror_of_the_wrong_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a mirror of 2 coordinates cannot be"):
        make(tmp_path, Mirror(Reflection((1, 1, 1)), Reflection((1,)), Reflection((1,))), symmetry=True)


def test_statistics_come_from_whole_chunks_across_the_wrap_and_every_row_counts_once(tmp_path: Path) -> None:
    batches, ring = make(tmp_path, normalize_observations=True, normalize_rewards=True)
    written = fill(ring, 12)  # 48 rows in 28 slots
    for start, stop in ((0, 8), (8, 8), (8, 20)):
        ring_before = ReplayRing(tmp_path / f"{start}-{stop}", LAYOUT)
        batches._ring = ring_before
        fill(ring_before, stop // NUM_ENVS)
        batches.learn_statistics(start, stop)
    batches._ring = ring
    batches.learn_statistics(28, 48)
    seen = np.concatenate((written["obs"][:20], written["obs"][28:48]))
    mean = batches._observations.moments.mean
    np.testing.assert_allclose(mean, seen.mean(0, dtype=np.float64), rtol=1e-9)
    assert batches._observations.moments.count == 40


def test_reward_statistics_follow_each_environment_through_the_wrap(tmp_path: Path) -> None:
    batches, ring = make(tmp_path, normalize_rewards=True)
    expected = RewardScaler(NUM_ENVS, gamma=0.99, limit=np.inf)
    for vector_steps, start in ((5, 0), (9, 20)):  # 36 rows in 28 slots: the second chunk wraps
        written = fill(ring, vector_steps)
        batches.learn_statistics(start, vector_steps * NUM_ENVS)
        steps = slice(start // NUM_ENVS, vector_steps)
        reward = written["reward"].reshape(-1, NUM_ENVS)[steps]
        done = (written["terminated"] | written["truncated"]).reshape(-1, NUM_ENVS)[steps]
        expected.update(reward, done)
    assert batches._rewards is not None
    np.testing.assert_allclose(batches._rewards.returns, expected.returns, rtol=1e-12)
    assert batches._rewards.divisor == expected.divisor
    assert batches._rewards.moments.count == 9 * NUM_ENVS


def test_more_rows_than_the_ring_holds_leave_the_newest_whole_vector_steps(tmp_path: Path) -> None:
    batches, ring = make(tmp_path, normalize_observations=True)
    written = fill(ring, 12)
    batches.learn_statistics(0, 48)  # capacity 22: five whole vector steps of four
    assert batches._observations.moments.count == 20
    np.testing.assert_allclose(batches._observations.moments.mean, written["obs"][-20:].mean(0, dtype=np.float64))


def test_normalised_batches_equal_the_published_statistics_applied_to_raw_rows(tmp_path: Path) -> None:
    raw, ring = make(tmp_path)
    batches = Batches(
        resolve(
            {
                "task": "Reacher-v5",
                "algorithm": "sac",
                "env_steps": 1000,
                "learning_starts": 10,
                "batch_size": 8,
                "num_envs": NUM_ENVS,
                "normalize_observations": True,
                "normalize_rewards": True,
            },
            where="arm",
        ),
        ring,
        mirror=None,
        generator=torch.Generator().manual_seed(0),
    )
    fill(ring, 5)
    batches.learn_statistics(0, 20)
    (plain,), (batch,) = raw.draw(1, 20), batches.draw(1, 20)
    mean, std = batches._observations.published.values()
    torch.testing.assert_close(batch.critic_obs, (plain.critic_obs - mean) / std)
    torch.testing.assert_close(batch.next_critic_obs, (plain.next_critic_obs - mean) / std)
    torch.testing.assert_close(batch.reward, plain.reward / batches._rewards.divisor)
    assert torch.equal(batch.action, plain.action)
    assert [len(tensor) for tensor in batches.published.values()] == [3, 3]


def test_restored_statistics_give_the_same_batches(tmp_path: Path) -> None:
    batches, ring = make(tmp_path, normalize_observations=True, normalize_rewards=True)
    again, _ = make(tmp_path, normalize_observations=True, normalize_rewards=True)
    fill(ring, 5)
    batches.learn_statistics(0, 20)
    again.restore(batches.state())
    (one,), (other,) = batches.draw(1, 20), again.draw(1, 20)
    assert torch.equal(one.critic_obs, other.critic_obs)
    assert torch.equal(one.reward, other.reward)
