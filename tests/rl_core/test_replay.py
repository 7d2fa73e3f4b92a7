"""The ring hands out exactly the newest rows before the learner's own position, wrapped or not."""

from pathlib import Path

import numpy as np
import pytest
import torch

from rl_core.errors import TrainingError
from rl_core.replay import Layout, ReplayRing

LAYOUT = Layout(obs_dim=2, action_dim=1, capacity=10, slack=6)


def write(ring: ReplayRing, start: int, count: int) -> None:
    """Write rows whose every number tells the row's absolute position."""
    n = np.arange(start, start + count, dtype=np.float32)
    ring.write(
        start,
        obs=np.stack((n, n), 1),
        action=n[:, None],
        reward=n,
        terminated=n % 2 == 0,
        truncated=n % 3 == 0,
        next_obs=np.stack((n + 1, n + 1), 1),
    )


@pytest.mark.parametrize("total", [4, 10, 16, 20, 37, 160])
def test_samples_are_the_newest_rows_and_all_of_them(tmp_path: Path, total: int) -> None:
    ring = ReplayRing(tmp_path / "ring", LAYOUT)
    for start in range(0, total, 4):
        write(ring, start, min(4, total - start))
    rows = ring.sample(total, 2000, torch.Generator().manual_seed(0))
    assert set(rows[:, 0].int().tolist()) == set(range(max(0, total - LAYOUT.capacity), total))


def test_rows_written_ahead_of_the_learner_change_nothing_it_sees(tmp_path: Path) -> None:
    ring = ReplayRing(tmp_path / "ring", LAYOUT)
    write(ring, 0, 16)
    before = ring.sample(16, 64, torch.Generator().manual_seed(1))
    write(ring, 16, LAYOUT.slack)
    assert torch.equal(ring.sample(16, 64, torch.Generator().manual_seed(1)), before)
    write(ring, 16 + LAYOUT.slack, 1)
    assert not torch.equal(ring.sample(16, 64, torch.Generator().manual_seed(1)), before)


def test_a_batch_holds_each_field_and_bootstraps_through_time_outs_only(tmp_path: Path) -> None:
    ring = ReplayRing(tmp_path / "ring", LAYOUT)
    write(ring, 0, 10)
    batch = ring.unpack(ring.sample(10, 200, torch.Generator().manual_seed(2)))
    n = batch.reward
    assert torch.equal(batch.obs, torch.stack((n, n), 1))
    assert torch.equal(batch.action, n[:, None])
    assert torch.equal(batch.next_obs, batch.obs + 1)
    assert torch.equal(batch.bootstrap, (n % 2 != 0).float())


def test_two_openings_of_one_file_see_each_others_rows(tmp_path: Path) -> None:
    writer, reader = ReplayRing(tmp_path / "ring", LAYOUT), ReplayRing(tmp_path / "ring", LAYOUT)
    write(writer, 0, 5)
    assert set(reader.sample(5, 100, torch.Generator().manual_seed(3))[:, 0].int().tolist()) == set(range(5))


def test_a_file_of_another_size_and_a_full_disk_are_clear_errors(tmp_path: Path) -> None:
    (tmp_path / "ring").write_bytes(b"x" * 10)
    with pytest.raises(TrainingError, match=f"10 bytes, expected {LAYOUT.size_bytes}"):
        ReplayRing(tmp_path / "ring", LAYOUT)
    huge = Layout(obs_dim=2, action_dim=1, capacity=10**14, slack=0)
    with pytest.raises(TrainingError, match="cannot reserve"):
        ReplayRing(tmp_path / "huge", huge)
    assert not (tmp_path / "huge").exists()
