"""What a stage promises when it is killed at the worst moment."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flows import experiment, stages
from rl_core import checkpoints, runner
from rl_core.errors import Interrupted

from .helpers import arm, environment, params, processes_in


class Killed(BaseException):
    """Stands for SIGKILL: nothing after it runs."""


def interrupted(folder: Path) -> experiment.Experiment:
    """Train until the first checkpoint stands, then stop."""
    command = [sys.executable, "-m", "flows", "train", "plain", "0"]
    process = subprocess.Popen(command, cwd=folder, env=environment(), stdout=subprocess.DEVNULL)
    loaded = experiment.load(folder)
    while not checkpoints.any_in(loaded.state_dir("plain", 0)):
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    return loaded


def test_a_fresh_start_that_is_killed_at_once_does_not_bring_the_old_state_back(
    folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = interrupted(folder(params(plain=arm(env_steps=4000))))

    def killed(*_: object, **__: object) -> None:
        raise Killed

    monkeypatch.setattr(stages, "begin_afresh", killed)
    with pytest.raises(Killed):
        stages.train(loaded, "plain", 0, fresh=True)
    assert not loaded.state_dir("plain", 0).exists()


def test_a_run_killed_when_its_results_stand_is_complete(
    folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    loaded = experiment.load(folder(params(plain=arm(env_steps=200))))

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(runner.checkpoints, "remove_all", killed)
        with pytest.raises(Killed):
            stages.train(loaded, "plain", 0)
    assert loaded.state_dir("plain", 0).exists()
    stages.train(loaded, "plain", 0)
    assert "already complete" in capfd.readouterr().out
    assert not loaded.state_dir("plain", 0).exists()


def test_an_interruption_says_whether_a_checkpoint_stands(
    folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = experiment.load(folder(params(plain=arm(env_steps=400))))

    def stop(*_: object) -> None:
        raise Interrupted(signal.SIGINT)

    for method, resumable in (("_start", False), ("_finish", True)):
        with monkeypatch.context() as patched:
            patched.setattr(runner._Run, method, stop)
            with pytest.raises(Interrupted) as caught:
                stages.train(loaded, "plain", 0)
        assert caught.value.resumable is resumable


def test_a_stage_command_whose_dvc_is_gone_before_it_began_does_nothing(folder: Callable[[str], Path]) -> None:
    made = folder(params(plain=arm(env_steps=400)))
    # The outer shell ends at once, so that the command starts with init as its parent, as after a kill -9 of dvc.
    script = f"(sleep 1; exec {sys.executable} -m flows train plain 0) & exit 0"
    subprocess.run(["/bin/sh", "-c", script], cwd=made, env={**environment(), "DVC_STAGE": "train"}, check=True)
    assert processes_in(made)
    deadline = time.monotonic() + 60
    while processes_in(made):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert not (made / ".seedbed").exists()


def test_a_process_with_a_living_parent_is_no_orphan() -> None:
    code = "from flows.processes import is_orphan; print(is_orphan())"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=stages.CODE_ROOT, check=False, capture_output=True, text=True)
    assert result.stdout == "False\n", result.stderr
