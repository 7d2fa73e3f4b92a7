"""Whatever ends a run early is told by name in every mode, leaves what can be gone on from, and nothing else."""

import gc
import os
import signal
import time
from collections.abc import Callable
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from rl_core import checkpoints, runner, stopping
from rl_core.algorithms import ALGORITHMS
from rl_core.config import resolve
from rl_core.envs.inverted_double_pendulum import InvertedDoublePendulum
from rl_core.errors import Interrupted, TrainingError
from rl_core.link import CollectorLink
from rl_core.networks import Params
from rl_core.replay import ReplayRing
from tests.rl_core.conftest import artifacts, small, status, train

pytestmark = pytest.mark.usefixtures("nothing_is_left_behind")

MODES = ("pipelined", "lockstep", "async")
LEARNING = 15  # a version of the weights that is published when learning has begun


def disturb(monkeypatch: pytest.MonkeyPatch, disturbance: Callable[[CollectorLink, Params], Params]) -> None:
    """Have the runs of this test publish what `disturbance` returns from version `LEARNING` on."""

    class Disturbed(CollectorLink):
        def publish(self, version: int, weights: Params) -> None:
            super().publish(version, weights if version < LEARNING else disturbance(self, weights))

    monkeypatch.setattr(runner, "CollectorLink", Disturbed)


def broken(_link: CollectorLink, weights: Params) -> Params:
    """Return weights with which the collector raises: its actions are not finite."""
    return {name: torch.full_like(tensor, float("nan")) for name, tensor in weights.items()}


def stopped(link: CollectorLink, weights: Params) -> Params:
    """Freeze the collector's process."""
    os.kill(link._process.pid or 0, signal.SIGSTOP)
    return weights


@pytest.mark.parametrize("collection", MODES)
def test_a_collector_that_raises_fails_the_run_with_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, collection: str
) -> None:
    disturb(monkeypatch, broken)
    with pytest.raises(TrainingError, match=r"the collector failed: [^\n]*action is not finite[^\n]*\nTraceback"):
        train(tmp_path, collection=collection)
    assert status(tmp_path)["state"] == "failed"
    assert "Traceback" in status(tmp_path)["reason"]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("collection", MODES)
def test_a_collector_that_hangs_fails_the_run_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, collection: str
) -> None:
    disturb(monkeypatch, stopped)
    with pytest.raises(TrainingError, match="the collector hangs: no vector step for 2 s"):
        train(tmp_path, collection=collection, hang_timeout_s=2.0)
    assert status(tmp_path)["state"] == "failed"
    assert "hangs" in status(tmp_path)["reason"]
    assert not (tmp_path / "run").exists()


@pytest.fixture
def at_update(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], None]], None]:
    """Return what has something happen in the middle of a run's n-th update."""
    update, count = ALGORITHMS["sac"].update, 0

    def arrange(n: int, happens: Callable[[], None]) -> None:
        def watched(learner: Any, batch: Any) -> Any:
            nonlocal count
            count += 1
            if count == n:
                happens()
            return update(learner, batch)

        monkeypatch.setattr(ALGORITHMS["sac"], "update", watched)

    return arrange


def numbers(folder: Path) -> list[int]:
    """Return the numbers of a run's checkpoints."""
    return sorted(int(path.stem.partition("-")[2]) for path in (folder / "state").glob("checkpoint-*.seedbed"))


def test_stopped_by_a_signal_and_resumed_equals_uninterrupted(
    tmp_path: Path, at_update: Callable[[int, Callable[[], None]], None]
) -> None:
    train(tmp_path / "whole")
    at_update(401, lambda: os.kill(os.getpid(), signal.SIGINT))  # within a block: a chunk is under way
    with pytest.raises(Interrupted) as caught:
        train(tmp_path / "stopped")
    assert (caught.value.signum, caught.value.resumable) == (signal.SIGINT, True)
    assert status(tmp_path / "stopped")["state"] == "interrupted"
    assert numbers(tmp_path / "stopped") == [504, 516]  # the latter at the end of the iteration, for the signal
    train(tmp_path / "stopped")
    assert artifacts(tmp_path / "stopped") == artifacts(tmp_path / "whole")  # no episode is lost or counted twice


def test_stopped_in_async_mode_and_resumed_every_episode_is_counted_once(
    tmp_path: Path, at_update: Callable[[int, Callable[[], None]], None]
) -> None:
    changes: dict[str, Any] = {"collection": "async", "checkpoint_interval": 24, "replay_capacity": 1200}
    settings = resolve(small(**changes), where="arm")
    ended: list[int] = []

    def published() -> None:
        layout = runner.ring_layout(settings, InvertedDoublePendulum())
        rows = ReplayRing(tmp_path / "state" / "replay.bin", layout).newest(0, 1200)
        ended.append(int(rows[:, layout.reward_column + 1 : layout.reward_column + 3].sum()))

    at_update(100, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(Interrupted):
        train(tmp_path, **changes)
    folders = {"run_dir": tmp_path / "run", "state_dir": tmp_path / "state"}
    summary = runner.train(settings, 0, **folders, key="k", provenance={}, published=published)
    assert [summary["episodes"]] == ended
    assert ended[0] > 20


def hang() -> None:
    """Wait for a signal's exception, in vain if there is none."""
    time.sleep(10)
    pytest.fail("the run goes on though it was told to stop")


def test_of_an_iteration_that_does_not_end_the_last_checkpoint_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_update: Callable[[int, Callable[[], None]], None]
) -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGALRM)
    monkeypatch.setattr(stopping, "GRACE_S", 0.2)

    def terminated() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        hang()

    at_update(401, terminated)  # of 12 a chunk since the ninth: the turn after 504 env steps
    with pytest.raises(Interrupted) as caught:
        train(tmp_path)
    assert (caught.value.signum, caught.value.resumable) == (signal.SIGTERM, True)
    assert numbers(tmp_path) == [408, 504]
    assert status(tmp_path)["reason"] == "SIGTERM"
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGALRM)) == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_second_signal_stops_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_update: Callable[[int, Callable[[], None]], None]
) -> None:
    monkeypatch.setattr(stopping, "GRACE_S", 60.0)

    def impatient() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        hang()

    at_update(5, impatient)
    with pytest.raises(Interrupted):
        train(tmp_path)
    assert numbers(tmp_path) == [108]  # taken before the turn of the first update


def test_checkpoints_are_taken_at_every_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    save = checkpoints.save

    def watched(folder: Path, key: str, number: int, state: Any) -> None:
        taken.append(number)
        save(folder, key, number, state)

    monkeypatch.setattr(checkpoints, "save", watched)
    train(tmp_path, env_steps=600)
    # The first chunk of 12 at or beyond each multiple of 100; at the end the artifacts stand instead.
    assert taken == [108, 204, 300, 408, 504]


def test_a_collector_is_spawned_and_one_that_does_not_react_is_ended_with_the_link(link: CollectorLink) -> None:
    link.wait_ready()
    collector = psutil.Process(link._process.pid)
    assert "spawn_main" in " ".join(collector.cmdline())  # a fork would share CUDA's state and torch's locks
    collector.suspend()
    link.close()
    assert link._process.exitcode == -signal.SIGKILL
    link.close()


@pytest.mark.parametrize("ends", ["well", "failed"])
def test_no_file_and_no_pipe_stays_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str) -> None:
    resource_tracker.ensure_running()  # multiprocessing keeps a pipe to it
    process = psutil.Process()
    gc.collect()
    before = process.num_fds()
    if ends == "failed":
        disturb(monkeypatch, broken)
        with pytest.raises(TrainingError):
            train(tmp_path)
    else:
        train(tmp_path, env_steps=300)
    gc.collect()
    assert not [file.path for file in process.open_files() if str(tmp_path) in file.path]
    assert not [mapped.path for mapped in process.memory_maps() if str(tmp_path) in mapped.path]
    assert process.num_fds() == before
