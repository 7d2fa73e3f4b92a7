"""What is recorded as done, and what never is."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from flows import experiment, versioning

from .helpers import dvc, environment

HOLD_DVCS_LOCK = """
import sys, time, zc.lockfile
lock = zc.lockfile.LockFile(".dvc/tmp/lock")
print("held", flush=True)
time.sleep(5)
lock.close()
"""


def lock_entries(folder: Path) -> list[str]:
    return list(YAML(typ="safe").load((folder / "dvc.lock").read_text())["stages"])


def change(folder: Path, old: str, new: str) -> None:
    text = (folder / "params.yaml").read_text()
    assert old in text
    (folder / "params.yaml").write_text(text.replace(old, new))


def test_a_changed_weight_is_never_satisfied_by_the_old_outputs(copied: Path) -> None:
    change(copied, "-0.01", "-0.02")
    plan = versioning.plan(experiment.load(copied), restore=True)
    fresh = {run.arm: run.fresh for run in plan.runs}
    assert fresh == {"plain": True, "thrifty": False}
    assert "arms.thrifty modified" in plan.runs[1].train.why
    assert not plan.report.fresh


def test_a_weight_changed_back_is_restored_from_the_run_cache(copied: Path) -> None:
    (copied / "dvc.lock").unlink()
    shutil.rmtree(copied / "runs")
    shutil.rmtree(copied / ".seedbed/done")
    plan = versioning.plan(experiment.load(copied), restore=True)
    assert plan.fresh
    assert len(plan.restored) == 5
    assert "up to date" in dvc("status", folder=copied).stdout


def test_a_lost_cache_is_filled_again_from_an_intact_workspace(copied: Path) -> None:
    shutil.rmtree(copied / ".dvc/cache")
    shutil.rmtree(copied / ".seedbed/done")
    assert versioning.plan(experiment.load(copied), restore=True).fresh
    shutil.rmtree(copied / "runs")
    assert dvc("checkout", folder=copied).returncode == 0


def test_a_finished_run_that_was_not_recorded_is_recorded_and_not_run_again(copied: Path) -> None:
    (copied / "dvc.lock").unlink()
    shutil.rmtree(copied / ".dvc/cache")
    plan = versioning.plan(experiment.load(copied), restore=True)
    assert all(run.fresh for run in plan.runs)
    assert plan.restored == ()
    assert lock_entries(copied)[:4] == ["train@plain-0", "train@thrifty-0", "evaluate@plain-0", "evaluate@thrifty-0"]


@pytest.mark.parametrize("broken", [b"", b"stages: [", b"<<<<<<< ours\n", b"\xff\xfe"])
def test_a_broken_lock_file_is_one_line_that_names_the_cure(copied: Path, broken: bytes) -> None:
    (copied / "dvc.lock").write_bytes(broken)
    with pytest.raises(versioning.VersioningError, match=r"git checkout dvc\.lock, or delete it") as caught:
        versioning.plan(experiment.load(copied))
    assert "\n" not in str(caught.value)


def test_outputs_that_someone_edited_are_not_taken_for_a_finished_run(copied: Path) -> None:
    (copied / "dvc.lock").unlink()
    shutil.rmtree(copied / ".dvc/cache")
    with (copied / "runs/plain/0/curve.csv").open("a") as file:
        file.write("1,2,3\n")
    plan = versioning.plan(experiment.load(copied), restore=True)
    assert {run.arm: run.train.fresh for run in plan.runs} == {"plain": False, "thrifty": True}


def test_planning_without_restoring_changes_nothing(copied: Path) -> None:
    shutil.rmtree(copied / "runs/plain")
    before = (copied / "dvc.lock").read_bytes()
    assert not versioning.plan(experiment.load(copied)).fresh
    assert (copied / "dvc.lock").read_bytes() == before
    assert not (copied / "runs/plain").exists()


def test_a_run_whose_inputs_changed_while_it_ran_is_not_recorded(copied: Path) -> None:
    (copied / "dvc.lock").unlink()
    shutil.rmtree(copied / ".dvc/cache")
    loaded = experiment.load(copied)
    plan = versioning.plan(loaded)
    change(copied, "-0.01", "-0.02")
    refused = versioning.commit_runs(loaded, plan.runs)
    assert refused == {("thrifty", 0): "its parameters or code changed while it ran"}
    assert lock_entries(copied) == ["train@plain-0", "evaluate@plain-0"]


def test_a_run_that_the_experiment_no_longer_names_is_not_recorded(copied: Path) -> None:
    loaded = experiment.load(copied)
    plan = versioning.plan(loaded)
    change(copied, "arms: [plain, thrifty]", "arms: [plain]")
    assert versioning.commit_runs(loaded, plan.runs) == {("thrifty", 0): "params.yaml no longer names it"}


def test_lock_entries_stand_in_the_order_of_dvc_yaml(copied: Path) -> None:
    loaded = experiment.load(copied)
    plan = versioning.plan(loaded)
    (copied / "dvc.lock").unlink()
    for run in reversed(plan.runs):
        assert versioning.commit_runs(loaded, [run]) == {}
    versioning.commit_report(loaded)
    stages = ["train@plain-0", "train@thrifty-0", "evaluate@plain-0", "evaluate@thrifty-0", "report"]
    assert lock_entries(copied) == stages


def test_a_held_lock_is_waited_for(copied: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD_DVCS_LOCK], cwd=copied, env=environment(), stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        started = time.monotonic()
        assert versioning.plan(experiment.load(copied)).fresh
        assert time.monotonic() - started > 4  # plain dvc gives up after 3 s


@pytest.mark.parametrize("broken", ["stages: [", "stages:\n  train:\n    cmd: true\n"])
def test_a_broken_pipeline_file_is_one_clear_error(copied: Path, broken: str) -> None:
    (copied / "dvc.yaml").write_text(broken)
    with pytest.raises((versioning.VersioningError, ValueError)) as caught:
        versioning.plan(experiment.load(copied))
    assert "\n" not in str(caught.value)
