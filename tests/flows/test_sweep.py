"""What a sweep promises, on a real experiment."""

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flows import experiment, stages, status, versioning
from flows.work import Work
from rl_core.errors import Interrupted

from .helpers import arm, dvc, environment, flows, params, processes_in

DETERMINISTIC = ("policy.safetensors", "progress.csv", "curve.csv", "summary.json", "evaluation.csv", "evaluation.json")
CLEAN = "Data and pipelines are up to date."


def stale(folder: Path) -> set[str]:
    result = dvc("status", "--json", folder=folder)
    return set(json.loads(result.stdout or "{}"))


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "flows", "sweep", *arguments],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for(condition: Callable[[], bool], *, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


def trains(folder: Path, name: str) -> Callable[[], bool]:
    def steps() -> bool:
        try:
            return bool(json.loads((folder / f".seedbed/state/{name}/0/status.json").read_text())["env_steps"] > 200)
        except (OSError, json.JSONDecodeError):
            return False

    return steps


def test_after_a_sweep_dvc_has_nothing_to_do(swept: Path) -> None:
    assert dvc("status", folder=swept).stdout.strip() == CLEAN
    repro = dvc("repro", folder=swept)
    assert repro.returncode == 0
    assert "Running" not in repro.stdout
    assert repro.stdout.count("didn't change, skipping") == 5


def test_a_second_sweep_has_nothing_to_do_and_starts_no_server(copied: Path) -> None:
    (copied / ".seedbed/logs/server.log").unlink()
    started = time.monotonic()
    result = flows("sweep", folder=copied)
    assert result.returncode == 0
    assert time.monotonic() - started < 10
    assert "nothing to do: 2 runs fresh" in result.stdout
    assert str(copied / "report/index.html") in result.stdout
    assert not (copied / ".seedbed/logs/server.log").exists()


def test_repro_gives_the_same_bytes_as_a_sweep(swept: Path, folder: Callable[[str], Path]) -> None:
    other = folder(params(thrifty=arm()))
    result = dvc("repro", folder=other)
    assert result.returncode == 0, result.stdout + result.stderr
    for name in DETERMINISTIC:
        assert (other / "runs/thrifty/0" / name).read_bytes() == (swept / "runs/thrifty/0" / name).read_bytes(), name
    assert "nothing to do" in flows("sweep", folder=other).stdout


def test_a_changed_weight_makes_that_arm_and_the_report_stale(copied: Path) -> None:
    text = (copied / "params.yaml").read_text()
    (copied / "params.yaml").write_text(text.replace("-0.01", "-0.02"))
    assert stale(copied) == {"train@thrifty-0", "report"}


def test_changed_evaluation_episodes_train_nothing(copied: Path) -> None:
    text = (copied / "params.yaml").read_text()
    (copied / "params.yaml").write_text(text.replace("episodes: 2", "episodes: 3"))
    assert stale(copied) == {"evaluate@plain-0", "evaluate@thrifty-0", "report"}


def test_deleted_runs_come_back_by_checkout(copied: Path, swept: Path) -> None:
    shutil.rmtree(copied / "runs")
    shutil.rmtree(copied / "report")
    assert dvc("checkout", folder=copied).returncode == 0
    assert dvc("status", folder=copied).stdout.strip() == CLEAN
    for name in DETERMINISTIC:
        assert (copied / "runs/plain/0" / name).read_bytes() == (swept / "runs/plain/0" / name).read_bytes()


def test_a_sweep_restores_what_was_deleted_and_trains_nothing(copied: Path) -> None:
    shutil.rmtree(copied / "runs/plain")
    result = flows("sweep", folder=copied)
    assert "restored from the cache: 2 stages" in result.stdout
    assert "nothing to do" in result.stdout
    assert dvc("status", folder=copied).stdout.strip() == CLEAN


def test_a_failing_run_keeps_the_others_and_the_report_is_not_called_complete(copied: Path) -> None:
    (copied / "params.yaml").write_text(params(plain=arm(weight=0), thrifty=arm(), broken=arm(), late=arm(weight=-1)))
    (copied / "runs/broken").write_text("where a folder must be made")
    result = flows("sweep", folder=copied)
    assert result.returncode == 1
    assert re.search(r"broken seed 0: failed \(exit 1\); log: .*broken/0.log", result.stdout)
    assert re.search(r"\[\d/2\] late seed 0: trained in \d+ s, return -?\d+", result.stdout)
    assert "the report covers 3 of 4 runs" in result.stdout
    left = stale(copied)
    assert {"train@broken-0", "report"} <= left
    assert not any("late" in name or "plain" in name for name in left)


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_sweep_is_gone_in_five_seconds_and_keeps_what_it_finished(
    copied: Path, signum: int, code: int
) -> None:
    (copied / "params.yaml").write_text(
        params(plain=arm(weight=0), thrifty=arm(), short=arm(weight=-1), long=arm(env_steps=100_000))
    )
    sweep = start(copied, "--jobs", "1")
    wait_for(trains(copied, "long"), timeout_s=90)
    stopped = time.monotonic()
    sweep.send_signal(signum)
    output, _ = sweep.communicate(timeout=20)
    assert time.monotonic() - stopped < 5, output
    assert sweep.returncode == code
    assert processes_in(copied) == []
    lines = flows("status", folder=copied).stdout.splitlines()
    assert [line.split()[2] for line in lines[1:4]] == ["fresh"] * 3
    assert re.match(r"long +0 +interrupted  at [\d,]+ of 100,000 env steps, \d+ MB: SIG", lines[4])


def test_a_killed_sweep_leaves_no_orphan(folder: Callable[[str], Path]) -> None:
    made = folder(params(long=arm(env_steps=100_000)))
    sweep = start(made)
    wait_for(trains(made, "long"), timeout_s=90)
    os.kill(sweep.pid, signal.SIGKILL)
    sweep.communicate()
    wait_for(lambda: not processes_in(made), timeout_s=8)


def test_a_fresh_sweep_runs_what_is_complete_again(copied: Path, swept: Path) -> None:
    result = flows("sweep", "--fresh", "--arm", "pl*", folder=copied)
    assert result.returncode == 0, result.stdout
    assert "[1/1] plain seed 0: trained in" in result.stdout
    assert "plain seed 0: 400 / 400 env steps: evaluation return" in result.stdout
    again, before = copied / "runs/plain/0", swept / "runs/plain/0"
    assert (again / "policy.safetensors").read_bytes() == (before / "policy.safetensors").read_bytes()
    assert (again / "timing.json").read_bytes() != (before / "timing.json").read_bytes()
    assert dvc("status", folder=copied).stdout.strip() == CLEAN


def test_two_sweeps_of_one_experiment_do_not_run_at_once(copied: Path) -> None:
    lock = copied / ".seedbed/locks/sweep.lock"
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        result = flows("sweep", folder=copied)
    assert result.returncode == 1
    assert result.stderr.startswith(f"error: another sweep of {copied} is running (process ")
    assert result.stderr.count("\n") == 1


def test_an_interrupted_fresh_run_is_to_do_until_it_is_finished(copied: Path) -> None:
    loaded = experiment.load(copied)
    marker = stages.train_marker(loaded, "plain", 0)
    complete = marker.read_text()
    stages.begin_afresh(marker, stages.train_key(loaded, "plain", 0))
    state = loaded.state_dir("plain", 0) / "status.json"
    state.parent.mkdir(parents=True)
    state.write_text('{"state": "interrupted", "env_steps": 5, "env_steps_total": 9, "pid": 1}')
    assert [row.state for row in status.states(loaded)] == ["interrupted", "fresh"]
    work = Work.prepare(loaded)
    assert [(run.arm, run.train.fresh) for run in work.todo] == [("plain", False)]
    stages.begin_afresh(marker, "the key of other settings")
    assert versioning.plan(loaded).fresh
    marker.write_text(complete)
    assert versioning.plan(loaded).fresh


def test_a_run_begun_afresh_stays_so_when_its_training_is_interrupted_again(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise Interrupted(signal.SIGINT)

    monkeypatch.setattr("rl_core.runner.train", interrupted)
    loaded = experiment.load(copied)
    for fresh in (True, False):
        with pytest.raises(Interrupted):
            stages.train(loaded, "plain", 0, fresh=fresh)
        assert [run.fresh for run in versioning.plan(loaded).runs] == [False, True]
