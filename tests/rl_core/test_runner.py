"""Same seed same bytes, killed or not; a failure says what failed and leaves nothing behind."""

import csv
import dataclasses
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import time
import warnings
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from rl_core import checkpoints, runner
from rl_core import state as states
from rl_core.algorithms import ALGORITHMS, sac
from rl_core.config import resolve
from rl_core.envs.inverted_double_pendulum import InvertedDoublePendulum
from rl_core.errors import TrainingError
from rl_core.link import CollectorLink
from rl_core.networks import Params, init_mlp
from rl_core.presets import PRESETS
from rl_core.replay import Layout, ReplayRing
from tests.rl_core.conftest import artifacts, small, start, status, train

pytestmark = pytest.mark.usefixtures("nothing_is_left_behind")


@pytest.mark.parametrize("algorithm", PRESETS)
@pytest.mark.parametrize("collection", ["pipelined", "lockstep"])
def test_same_seed_same_bytes_and_another_seed_differs(tmp_path: Path, algorithm: str, collection: str) -> None:
    arm = {"algorithm": algorithm, "collection": collection}
    train(tmp_path / "a", **arm)
    train(tmp_path / "b", collector_threads=2, **arm)
    first = artifacts(tmp_path / "a")
    assert artifacts(tmp_path / "b") == first
    assert not (tmp_path / "a" / "state").exists()
    train(tmp_path / "c", seed=1, **arm)
    other = artifacts(tmp_path / "c")
    assert {name for name in first if other[name] == first[name]} == set()


def test_a_loaded_machine_changes_no_byte(tmp_path: Path) -> None:
    train(tmp_path / "quiet")
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        train(tmp_path / "loaded")
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert artifacts(tmp_path / "loaded") == artifacts(tmp_path / "quiet")


def test_pipelined_and_lockstep_learn_from_different_data(tmp_path: Path) -> None:
    train(tmp_path / "a", collection="pipelined")
    train(tmp_path / "b", collection="lockstep")
    assert artifacts(tmp_path / "a")["policy.safetensors"] != artifacts(tmp_path / "b")["policy.safetensors"]


def wait_for_checkpoint(folder: Path, process: Any, *, beyond: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        numbers = [int(p.name.split("-")[1].split(".")[0]) for p in (folder / "state").glob("checkpoint-*.seedbed")]
        if max(numbers, default=0) > beyond:
            return
        time.sleep(0.005)
    pytest.fail(f"no checkpoint beyond {beyond}: {(folder / 'log').read_text(encoding='utf-8')}")


@pytest.mark.parametrize("algorithm", PRESETS)
def test_killed_twice_and_resumed_equals_uninterrupted(tmp_path: Path, algorithm: str) -> None:
    arm = small(algorithm, env_steps=2400)
    train(tmp_path / "whole", algorithm=algorithm, env_steps=2400)
    folder = tmp_path / "killed"
    for beyond in (300, 900):  # before and after the ring, 300 rows, has wrapped
        process = start(arm, 0, folder)
        wait_for_checkpoint(folder, process, beyond=beyond)
        process.kill()
        process.wait()
    process = start(arm, 0, folder)
    assert process.wait(timeout=60) == 0
    assert "resumed at" in (folder / "log").read_text(encoding="utf-8")
    assert artifacts(folder) == artifacts(tmp_path / "whole")
    assert json.loads((folder / "run" / "timing.json").read_text(encoding="utf-8"))["resume_count"] == 2


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("undisturbed")
    train(folder, env_steps=2400)
    return artifacts(folder)


def killed(folder: Path, *, beyond: int = 600, **changes: Any) -> None:
    """Train in a process of its own and kill it once a checkpoint stands."""
    process = start(small(env_steps=2400, **changes), 0, folder)
    wait_for_checkpoint(folder, process, beyond=beyond)
    process.kill()
    process.wait()


def test_a_state_of_other_settings_is_discarded_and_the_user_is_told(tmp_path: Path) -> None:
    killed(tmp_path / "run")
    with pytest.warns(UserWarning, match="of other settings or other code is discarded; starting over"):
        assert checkpoints.latest(tmp_path / "run" / "state", "another", lambda _: None) is None


def test_what_a_killed_write_left_is_never_published(tmp_path: Path, undisturbed: dict[str, bytes]) -> None:
    folder = tmp_path / "killed"
    killed(folder)
    (folder / "run").mkdir()
    half = [
        "state/work/checkpoints/.804.safetensors.99999.tmp",
        "state/work/.summary.json.99999.tmp",
        "run/.curve.csv.tmp",
    ]
    for name in half:
        (folder / name).write_bytes(b"half")
    train(folder, env_steps=2400)
    assert not list(folder.rglob("*.tmp"))
    assert artifacts(folder) == undisturbed


def spoil(folder: Path, what: str) -> None:
    state = folder / "state"
    if what == "table cut":
        os.truncate(state / "work" / "progress.csv", 300)
    elif what == "table altered":
        path = state / "work" / "curve.csv"
        path.write_bytes(path.read_bytes().replace(b"1", b"2"))
    elif what == "table gone":
        (state / "work" / "timing.csv").unlink()
    elif what == "snapshot gone":
        (state / "work" / "checkpoints" / "0.safetensors").unlink()
    elif what == "ring emptied":
        size = (state / "replay.bin").stat().st_size
        (state / "replay.bin").write_bytes(bytes(size))
    elif what == "ring cut":
        os.truncate(state / "replay.bin", 400)
    elif what == "ring gone":
        (state / "replay.bin").unlink()
    elif what == "wrong inside":
        for path in state.glob("checkpoint-*.seedbed"):
            number = int(path.stem.partition("-")[2])
            states.save(path, states.TrainingState({"x": np.zeros(1)}, {"key": "k", "number": number}))


SPOILT = ("table cut", "table altered", "table gone", "snapshot gone")
SPOILT += ("ring emptied", "ring cut", "ring gone", "wrong inside")


@pytest.mark.parametrize("what", SPOILT)
def test_a_state_that_is_not_as_it_was_left_is_never_gone_on_from(
    tmp_path: Path, undisturbed: dict[str, bytes], what: str
) -> None:
    folder = tmp_path / "killed"
    killed(folder)
    spoil(folder, what)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(folder, env_steps=2400)
    assert "starting over" in str(caught[-1].message)
    assert artifacts(folder) == undisturbed


def test_foreign_checkpoints_push_no_good_one_out(tmp_path: Path) -> None:
    killed(tmp_path)
    state = tmp_path / "state"
    good = max(state.glob("checkpoint-*.seedbed"), key=lambda path: int(path.stem.partition("-")[2]))
    (state / "checkpoint-99999.seedbed").write_bytes(b"damaged")
    (state / "checkpoint-99998.seedbed").write_bytes(good.read_bytes())  # under a name that it never had
    with pytest.warns(UserWarning, match="falling back to the checkpoint before it") as warned:
        found = checkpoints.latest(state, "k", lambda _: None)
    assert found is not None
    assert found.info["number"] == int(good.stem.partition("-")[2])
    assert any("this is not the checkpoint that its name says" in str(warning.message) for warning in warned)
    number = found.info["number"] + 12
    checkpoints.save(state, "k", number, found)
    kept = sorted(int(path.stem.partition("-")[2]) for path in state.glob("checkpoint-*.seedbed"))
    assert kept == [number - 12, number]


def test_a_damaged_checkpoint_is_passed_over_with_a_warning(tmp_path: Path, undisturbed: dict[str, bytes]) -> None:
    folder = tmp_path / "killed"
    process = start(small(env_steps=2400), 0, folder)
    wait_for_checkpoint(folder, process, beyond=600)
    process.kill()
    process.wait()
    newest = max((folder / "state").glob("checkpoint-*.seedbed"), key=lambda p: int(p.name.split("-")[1].split(".")[0]))
    newest.write_bytes(newest.read_bytes()[:-100])
    with pytest.warns(UserWarning, match="falling back to the checkpoint before it"):
        train(folder, env_steps=2400)
    assert artifacts(folder) == undisturbed


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_a_resumable_state_and_no_process(tmp_path: Path, signum: signal.Signals) -> None:
    folder = tmp_path / "run"
    process = start(small(env_steps=100_000), 0, folder)
    wait_for_checkpoint(folder, process, beyond=200)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signum)
    assert process.wait(timeout=20) == 128 + signum
    gone, alive = psutil.wait_procs(children, timeout=5)
    assert not alive, alive
    assert len(gone) == len(children) > 0
    assert status(folder)["state"] == "interrupted"
    assert status(folder)["reason"] == signum.name
    assert checkpoints.latest(folder / "state", "k", lambda _: None) is not None
    assert not (folder / "run").exists()


def test_the_collector_ends_when_the_learner_is_killed(tmp_path: Path) -> None:
    process = start(small(env_steps=100_000), 0, tmp_path / "run")
    wait_for_checkpoint(tmp_path / "run", process, beyond=200)
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    assert not psutil.wait_procs(children, timeout=5)[1]


def test_a_number_that_is_not_finite_stops_the_run_and_names_it(tmp_path: Path) -> None:
    with pytest.raises(
        TrainingError, match=r"iteration \d+: critic_loss is not finite \(first tensor that is not: crit"
    ):
        train(tmp_path, reward_weights={"reward_alive": 1e20})
    dump = states.load(tmp_path / "state" / "not-finite.seedbed")
    assert any(not np.isfinite(array).all() for array in dump.arrays.values())
    assert dump.info["updates"] > 0
    assert status(tmp_path)["state"] == "failed"
    assert "critic_loss" in status(tmp_path)["reason"]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("collection", "behind"), [("pipelined", 2), ("lockstep", 1)])
def test_a_chunk_is_gathered_with_weights_of_exactly_so_many_hand_overs_ago(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, collection: str, behind: int
) -> None:
    published: list[int] = []  # updates that the weights of each request had seen
    updates = 0
    update = ALGORITHMS["sac"].update

    def counted(learner: Any, batch: Any) -> Any:
        nonlocal updates
        updates += 1
        return update(learner, batch)

    class Watched(CollectorLink):
        def publish(self, version: int, weights: Any) -> None:
            published.append(updates)
            super().publish(version, weights)

    monkeypatch.setattr(ALGORITHMS["sac"], "update", counted)
    monkeypatch.setattr(runner, "CollectorLink", Watched)
    train(tmp_path, collection=collection)
    block = 3 * 4  # vector steps in a chunk, updates in each
    chunks = 1200 // 12
    learning = math.ceil(100 / 12)  # the first chunk that reaches the threshold
    expected = [max(0, chunk - behind - learning + 2) * block for chunk in range(chunks)]
    assert published == expected


def test_the_running_statistics_of_batch_norm_are_published_as_they_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published: list[torch.Tensor] = []

    class Watched(CollectorLink):
        def publish(self, version: int, weights: Any) -> None:
            published.append(weights["in.mean"].clone())
            super().publish(version, weights)

    monkeypatch.setattr(runner, "CollectorLink", Watched)
    train(tmp_path, algorithm="flash_sac", env_steps=180)
    first_learned = 10  # nine chunks of 12 reach the threshold; the tenth is requested before their block
    assert all(torch.equal(mean, published[0]) for mean in published[:first_learned])
    assert not any(torch.equal(a, b) for a, b in itertools.pairwise(published[first_learned - 1 :]))


@pytest.mark.parametrize("collection", ["pipelined", "lockstep"])
def test_the_learner_trains_while_the_collector_gathers_in_pipelined_mode_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, collection: str
) -> None:
    links: list[CollectorLink] = []
    under_way: list[int] = []
    update = ALGORITHMS["sac"].update

    class Frozen(CollectorLink):
        """Its collector stands still from the twentieth request on until the learner makes an update."""

        def request(self, *, vector_steps: int, version: int) -> None:
            links[:] = [self]
            if version == 20 and collection == "pipelined":
                os.kill(self._process.pid or 0, signal.SIGSTOP)
            super().request(vector_steps=vector_steps, version=version)

    def trained(learner: Any, batch: Any) -> Any:
        under_way.append(links[0].under_way)
        os.kill(links[0]._process.pid or 0, signal.SIGCONT)
        return update(learner, batch)

    monkeypatch.setattr(ALGORITHMS["sac"], "update", trained)
    monkeypatch.setattr(runner, "CollectorLink", Frozen)
    train(tmp_path, collection=collection, env_steps=360, hang_timeout_s=20.0)
    last_block = 12  # nothing is left to gather
    assert set(under_way[:-last_block]) == {1 if collection == "pipelined" else 0}
    assert set(under_way[-last_block:]) == {0}


def test_the_policy_delay_counts_over_the_run_also_at_one_update_an_iteration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[bool] = []
    update = ALGORITHMS["td3"].update

    def watched(learner: Any, batch: Any) -> Any:
        info = update(learner, batch)
        moved.append("actor_loss" in info)
        return info

    monkeypatch.setattr(ALGORITHMS["td3"], "update", watched)
    train(tmp_path, algorithm="td3", num_envs=1, vector_steps_per_chunk=1, updates_per_vector_step=1, env_steps=300)
    assert moved == [False, True] * (len(moved) // 2) + [False] * (len(moved) % 2)
    assert len(moved) == 300 - 100 + 1


def test_learning_starts_at_the_larger_of_batch_and_threshold(tmp_path: Path) -> None:
    for batch_size, learning_starts, first in ((32, 100, 108), (300, 100, 300)):
        folder = tmp_path / str(batch_size)
        train(folder, batch_size=batch_size, learning_starts=learning_starts, log_interval=1, env_steps=360)
        with (folder / "run" / "progress.csv").open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        assert next(int(row["env_steps"]) for row in rows if int(row["updates"])) == first


@pytest.mark.parametrize("collection", ["pipelined", "lockstep", "async"])
def test_a_collector_that_is_killed_fails_the_run_by_name_in_every_mode(tmp_path: Path, collection: str) -> None:
    process = start(small(env_steps=100_000, collection=collection), 0, tmp_path)
    wait_for_checkpoint(tmp_path, process, beyond=200)
    (collector,) = (
        c for c in psutil.Process(process.pid).children() if "resource_tracker" not in " ".join(c.cmdline())
    )
    collector.kill()
    assert process.wait(timeout=30) == 1
    assert status(tmp_path)["state"] == "failed"
    assert "the collector was killed by SIGKILL" in status(tmp_path)["reason"]


@pytest.mark.parametrize("algorithm", ["td3", "fast_sac"])
def test_asynchronous_collection_gathers_the_whole_budget_and_says_that_it_is_not_reproducible(
    tmp_path: Path, algorithm: str
) -> None:
    summary = train(tmp_path, algorithm=algorithm, collection="async")
    assert summary["env_steps"] == 1200
    assert summary["updates"] > 0
    assert summary["reproducible"] is False
    with (tmp_path / "run" / "progress.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert int(rows[-1]["env_steps"]) == 1200
    assert int(rows[-1]["episodes"]) == summary["episodes"]


def test_asynchronous_learning_keeps_to_its_limit_of_updates_per_env_step(tmp_path: Path) -> None:
    # At most four chunks arrive an iteration, and each iteration learns: without a limit there are 12 updates for 48
    # env steps, or more.
    summary = train(tmp_path, collection="async", max_updates_per_env_step=0.05, log_interval=1)
    assert 0 < summary["updates"] <= 0.05 * 1200
    with (tmp_path / "run" / "progress.csv").open(encoding="utf-8") as file:
        assert all(int(row["updates"]) <= 0.05 * int(row["env_steps"]) for row in csv.DictReader(file))


def test_an_asynchronous_run_that_was_killed_goes_on_and_counts_every_env_step(tmp_path: Path) -> None:
    arm = small(env_steps=2400, collection="async")
    process = start(arm, 0, tmp_path)
    wait_for_checkpoint(tmp_path, process, beyond=300)
    process.kill()
    process.wait()
    assert start(arm, 0, tmp_path).wait(timeout=60) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
    assert summary["env_steps"] == 2400
    assert "resumed at" in (tmp_path / "log").read_text(encoding="utf-8")


def test_rows_are_never_torn_while_the_collector_runs_ahead(tmp_path: Path) -> None:
    # The true observation of an upright pendulum ties a row together: sin² + cos² = 1 in both of its observations, and
    # the next row of the same environment starts where this one ended. A ring that is far too small for the collector's
    # pace wraps hundreds of times meanwhile.
    settings = resolve(
        small(collection="async", num_envs=4, vector_steps_per_chunk=4, checkpoint_interval=1, replay_capacity=64),
        where="arm",
    )
    task = InvertedDoublePendulum()
    layout = runner.ring_layout(dataclasses.replace(settings, env_steps=10**6), task)
    assert layout.slots < 300
    weights = init_mlp((9, 16, 2), generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1)
    ring = ReplayRing(tmp_path / "replay.bin", layout)
    seen = counter = version = 0
    with closing(CollectorLink(settings, 0, layout=layout, folder=tmp_path, weights=weights)) as link:
        link.wait_ready()
        while counter < 8_000:
            while link.can_request:
                version += 1
                link.publish(version, weights)
                link.request(vector_steps=4, version=version)
            while link.chunk_is_there() or not counter:
                counter = link.wait_chunk().counter
            batch = ring.unpack(ring.sample(counter, 64, generator))
            for obs in (batch.obs, batch.next_obs):
                ones = obs[:, 1:3].square() + obs[:, 3:5].square()
                torch.testing.assert_close(ones, torch.ones_like(ones), atol=1e-5, rtol=0)
            window = torch.from_numpy(ring.newest(0, counter))
            now, later = ring.unpack(window[:-4]), ring.unpack(window[4:])
            goes_on = (now.bootstrap == 1) & (window[:-4, layout.reward_column + 2] == 0)
            assert torch.equal(now.next_obs[goes_on], later.obs[goes_on])
            seen += 1
        while link.can_request:
            link.request(vector_steps=4, version=version)
        with pytest.raises(RuntimeError, match="4 turns are under way, no more than 4 may be"):
            link.request(vector_steps=4, version=version)
    assert seen > 20


def test_each_turn_is_gathered_with_its_own_weights_however_many_are_under_way(tmp_path: Path) -> None:
    settings = resolve(small(collection="async", warmup="policy"), where="arm")
    layout = runner.ring_layout(settings, InvertedDoublePendulum())

    def acting(version: int) -> dict[str, torch.Tensor]:
        """Weights whose action is 0.2 × version, with the smallest deviation."""
        bias = torch.tensor([math.atanh(0.2 * version), -20.0])
        return {"0.weight": torch.zeros(2, 9), "0.bias": bias}

    with closing(CollectorLink(settings, 0, layout=layout, folder=tmp_path, weights=acting(0))) as link:
        link.wait_ready()
        os.kill(link._process.pid or 0, signal.SIGSTOP)  # all four turns are under way before it reads any weights
        for version in range(1, 5):
            link.publish(version, acting(version))
            link.request(vector_steps=3, version=version)
        os.kill(link._process.pid or 0, signal.SIGCONT)
        while link.under_way:
            link.wait_chunk()
    rows = ReplayRing(tmp_path / "replay.bin", layout).newest(0, 48)
    expected = 0.2 * np.repeat(np.arange(1, 5), 12)
    np.testing.assert_allclose(rows[:, 9], expected, atol=0.05)


def test_a_killed_collector_is_reported_by_its_signal(link: CollectorLink) -> None:
    link.wait_ready()
    os.kill(link._process.pid or 0, signal.SIGKILL)
    link._process.join()
    with pytest.raises(TrainingError, match="the collector was killed by SIGKILL"):
        link.wait_chunk()


def test_a_hanging_collector_is_noticed(link: CollectorLink) -> None:
    link.wait_ready()
    os.kill(link._process.pid or 0, signal.SIGSTOP)
    link.request(vector_steps=1, version=0)
    with pytest.raises(TrainingError, match="the collector hangs: no vector step for 1 s"):
        link.wait_chunk()


def test_a_failing_collector_hands_over_its_traceback(tmp_path: Path, link: CollectorLink) -> None:
    (tmp_path / "replay.bin").write_bytes(b"not a ring")
    with pytest.raises(TrainingError, match=r"the collector failed: [^\n]*10 bytes, expected[^\n]*\nTraceback"):
        link.wait_ready()


def test_closing_twice_is_harmless(link: CollectorLink) -> None:
    link.wait_ready()
    link.close()
    link.close()


def test_progress_has_no_mean_before_the_first_episode_ends_and_loses_none(tmp_path: Path) -> None:
    summary = train(tmp_path, task="Reacher-v5", env_steps=1200, num_envs=4, log_interval=40)
    with (tmp_path / "run" / "progress.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["return_mean"] == ""
    assert rows[-1]["episodes"] == str(1200 // 50) == str(summary["episodes"])
    assert summary["best_return"] < 0
    assert summary["best_return"] >= summary["final_return"]
    returns = [float(row["return_mean"]) for row in rows if row["return_mean"]]
    for row, mean in zip([r for r in rows if r["return_mean"]], returns, strict=True):
        fed = -float(row["term/cost_distance"]) - float(row["term/cost_control"]) + float(row["residual"])
        assert fed == pytest.approx(mean, rel=1e-9)


def test_tensorboard_scalars_are_written_on_request_and_change_no_byte(tmp_path: Path) -> None:
    train(tmp_path / "plain")
    settings = resolve(small(), where="arm")
    events = tmp_path / "events"
    runner.train(
        settings,
        0,
        run_dir=tmp_path / "run",
        state_dir=tmp_path / "state",
        key="k",
        provenance={},
        tensorboard=events,
    )
    assert artifacts(tmp_path) == artifacts(tmp_path / "plain")
    content = b"".join(path.read_bytes() for path in events.iterdir())
    for tag in (b"progress/return_mean", b"progress/loss/critic_loss", b"curve/return_mean", b"timing/wall_s"):
        assert tag in content


def test_a_support_that_is_too_narrow_is_told_in_the_log_and_the_summary(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_EDGE_MASS_UPDATES", 100)
    summary = train(tmp_path / "narrow", algorithm="fast_td3", v_min=-1.0, v_max=1.0)
    assert summary["edge_mass"] > 0.01
    assert "of the critics' target mass sits on the edges of their support" in capfd.readouterr().out
    wide = train(
        tmp_path / "wide", algorithm="fast_td3", v_min=-5000.0, v_max=5000.0, env_steps=2400, learning_rate=3e-3
    )
    assert wide["edge_mass"] < summary["edge_mass"]


@pytest.mark.parametrize("first", [1, 3], ids=["in the very first chunk", "later"])
def test_an_action_that_is_not_finite_leaves_the_learners_tensors_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    def broken(link: CollectorLink, version: int, weights: Params) -> None:
        finite = 1.0 if version < first else float("nan")
        publish(link, version, {name: finite * tensor for name, tensor in weights.items()})

    publish = CollectorLink.publish
    monkeypatch.setattr(CollectorLink, "publish", broken)
    with pytest.raises(
        TrainingError,
        match=r"^iteration \d+: the collector failed: env step \d+: the policy's action is not finite \(first tensor",
    ):
        train(tmp_path, warmup="policy", eval_interval=1200)
    assert states.load(tmp_path / "state" / "not-finite.seedbed").arrays
    assert "the policy's action is not finite" in status(tmp_path)["reason"]


@pytest.mark.parametrize(
    "turn", [{"block": "1"}, {"requested": -1}, {"env_steps": True}, {"extra": 0}], ids=lambda turn: next(iter(turn))
)
def test_a_checkpoint_of_an_impossible_turn_is_refused(turn: dict[str, object]) -> None:
    whole = {"block": 1, "env_steps": 2, "previous_env_steps": 1, "requested": 3, "version": 1}
    assert runner._Turn.read(whole).requested == 3
    with pytest.raises(ValueError, match="its turn"):
        runner._Turn.read({**whole, **turn})


def test_networks_larger_than_the_free_memory_are_refused_before_they_are_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner.artifacts, "available_memory_bytes", lambda: 1_000)
    monkeypatch.setattr(sac, "build", None)
    with pytest.raises(TrainingError, match=r"the networks and their optimisers need [\d.]+ GB of memory"):
        train(tmp_path)


def test_the_write_read_ratio_nears_that_of_the_settings(tmp_path: Path) -> None:
    train(tmp_path, log_interval=24)
    with (tmp_path / "run" / "progress.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["write_read_ratio"] == ""  # nothing was read yet
    assert float(rows[-1]["write_read_ratio"]) == pytest.approx(4 / (4 * 32), rel=0.1)


def test_no_clock_stands_in_a_deterministic_artifact(tmp_path: Path) -> None:
    train(tmp_path)
    for name in ("progress.csv", "curve.csv"):
        header = (tmp_path / "run" / name).read_text(encoding="utf-8").splitlines()[0]
        assert not [column for column in header.split(",") if column.endswith("_s")]
    timing = json.loads((tmp_path / "run" / "timing.json").read_text(encoding="utf-8"))
    assert timing["wall_s"] >= timing["active_s"] > 0
    assert timing["learner_threads"] == 1


def test_an_evaluation_of_another_policy_does_not_outlive_it(tmp_path: Path) -> None:
    train(tmp_path)
    evaluation = tmp_path / "run" / "evaluation.json"
    evaluation.write_text("{}", encoding="utf-8")
    train(tmp_path)
    assert evaluation.exists()
    train(tmp_path, seed=1)
    assert not evaluation.exists()


@pytest.mark.parametrize("name", PRESETS)
def test_the_bytes_of_a_learner_are_known_without_making_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = resolve(small(name, task="HalfCheetah-v5"), where="arm")
    layout = Layout(obs_dim=17, action_dim=6, capacity=10, slack=0, privileged_dim=3)
    learner = runner.build_learner(settings, layout, seed=0)
    state = sum(tensor.nbytes for tensor in ALGORITHMS[name].state(learner).values())
    assert runner.learner_bytes(settings, layout) == (state, sum(tensor.nbytes for tensor in learner.actor.values()))
    monkeypatch.setattr(ALGORITHMS[name], "build", None)
    assert runner.disk_bytes(settings) > 3 * state


def test_too_little_disk_is_one_clear_error_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner.shutil, "disk_usage", lambda _: SimpleNamespace(free=1_000_000))
    with pytest.raises(TrainingError, match=r"the run needs \d+ MB of disk, 1 MB are free"):
        train(tmp_path)
    assert not (tmp_path / "state" / "replay.bin").exists()


def test_a_ring_larger_than_the_free_memory_is_told_before_anything_is_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner.artifacts, "available_memory_bytes", lambda: 50_000)
    train(tmp_path, replay_capacity=1_000)
    lines = capfd.readouterr().out.splitlines()
    assert "is larger than the free memory (0.0 GB): sampling will wait for the disk; lower replay_capacity" in lines[1]
