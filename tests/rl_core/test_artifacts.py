"""What a run that has ended says: its summary, its timing, and a policy with the statistics of all that it has seen."""

import csv
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_core import envs, policy, runner
from rl_core.config import resolve
from rl_core.normalization import OBS_MEAN, OBS_STD
from rl_core.replay import ReplayRing
from tests.rl_core.conftest import small


@dataclass
class Watched:
    """A finished run, and what was seen of it on its way."""

    folder: Path
    summary: dict[str, Any]
    threads: list[int] = field(default_factory=list)
    status: dict[str, Any] = field(default_factory=dict)
    rows: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))

    def timing(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.folder / "run" / "timing.json").read_text(encoding="utf-8"))
        return content


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    """A run for two learner threads whose ring holds all rows until the end."""
    run = Watched(tmp_path_factory.mktemp("watched"), {})
    settings = resolve(small("fast_sac", learner_threads=2, env_steps=600, replay_capacity=600), where="arm")
    folders = {"run_dir": run.folder / "run", "state_dir": run.folder / "state"}

    def published() -> None:
        run.status = json.loads((run.folder / "state" / "status.json").read_text(encoding="utf-8"))
        layout = runner.ring_layout(settings, envs.task(settings.task)())
        run.rows = ReplayRing(run.folder / "state" / "replay.bin", layout).newest(0, 600)

    with pytest.MonkeyPatch.context() as patch:
        # Asked for, not used: two threads spin for each other on a machine that is busy.
        patch.setattr(torch, "set_num_threads", run.threads.append)
        run.summary = runner.train(settings, 0, **folders, key="k", provenance={"code": "x"}, published=published)
    return run


def test_the_summary_counts_the_run(watched: Watched) -> None:
    summary = watched.summary
    assert json.loads((watched.folder / "run" / "summary.json").read_text(encoding="utf-8")) == summary
    assert (summary["env_steps"], summary["iterations"]) == (600, 600 // 12)
    assert summary["updates"] == (50 - 8) * 12  # the ninth chunk of 12 reaches the threshold
    assert summary["last_checkpoint"] == "checkpoints/600.safetensors"
    assert (watched.folder / "run" / "checkpoints" / "600.safetensors").exists()
    ended = watched.rows[:, 10 + 1] + watched.rows[:, 10 + 2]
    assert summary["episodes"] == int(ended.sum()) > 10
    assert summary["best_return"] >= summary["final_return"]
    assert 0 < summary["episode_length"] < 600
    assert summary["reproducible"] is True


def test_the_last_row_of_progress_describes_the_episodes_in_the_ring(watched: Watched) -> None:
    with (watched.folder / "run" / "progress.csv").open(encoding="utf-8") as file:
        last = list(csv.DictReader(file))[-1]
    reward, terminated, truncated = watched.rows[:, 10:13].astype(np.float64).T.reshape(3, -1, 4)  # 4 environments
    returns, lengths, ends = [], [], []
    total, length = np.zeros(4), np.zeros(4)
    for r, end, cut in zip(reward, terminated, truncated, strict=True):
        total, length, done = total + r, length + 1, (end + cut) > 0
        returns += total[done].tolist()
        lengths += length[done].tolist()
        ends += end[done].tolist()
        total, length = np.where(done, 0, total), np.where(done, 0, length)
    assert int(last["episodes"]) == len(returns) <= 100
    assert float(last["return_mean"]) == pytest.approx(np.mean(returns))
    assert float(last["length_mean"]) == pytest.approx(np.mean(lengths))
    assert float(last["terminated_fraction"]) == pytest.approx(np.mean(ends))
    assert np.mean(ends) > 0


def test_the_timing_names_the_machine_and_the_threads_that_were_set(watched: Watched) -> None:
    timing = watched.timing()
    assert watched.threads == [2]
    assert (timing["learner_threads"], timing["collector_threads"], timing["device"]) == (2, 1, "cpu")
    assert timing["resume_count"] == 0
    assert timing["wall_s"] > timing["active_s"] > 0
    assert timing["env_steps_per_s"] == round(600 / timing["wall_s"], 1)
    assert timing["updates_per_s"] == round(watched.summary["updates"] / timing["wall_s"], 1)
    assert timing["peak_memory_mb"] > 10
    assert timing["versions"]["torch"] == torch.__version__
    assert timing["provenance"] == {"code": "x"}


def test_a_run_is_running_until_its_artifacts_stand(watched: Watched) -> None:
    assert (watched.status["state"], watched.status["env_steps"]) == ("running", 600)
    assert not (watched.folder / "state").exists()


def test_a_policy_carries_the_statistics_of_every_observation_acted_on(watched: Watched) -> None:
    loaded = policy.load(watched.folder / "run" / "policy.safetensors")
    seen = watched.rows[:, :9].astype(np.float64)  # raw, as they were observed
    np.testing.assert_allclose(loaded.actor[OBS_MEAN].numpy(), seen.mean(0), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(loaded.actor[OBS_STD].numpy(), seen.std(0) + 0.01, rtol=1e-6)
    ones = np.square(seen[:, 1:3]) + np.square(seen[:, 3:5])  # sin² + cos²
    np.testing.assert_allclose(ones, 1, atol=1e-5)
