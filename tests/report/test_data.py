import json
import shutil

import numpy as np
import pytest

from flows.report import data

from .conftest import Folder, write_policy


def reason_of(folder: Folder, arm: str, seed: int) -> tuple[str, str]:
    run = next(run for run in data.read(folder.experiment).runs if (run.arm, run.seed) == (arm, seed))
    return run.state, run.reason


def test_reads_the_grid_and_nothing_else(folder: Folder) -> None:
    before = data.read(folder.experiment)
    shutil.copytree(folder.experiment.run_dir("sac-speed", 0), folder.experiment.run_dir("sac-speed", 99))
    shutil.copytree(folder.experiment.run_dir("sac-speed", 0), folder.experiment.run_dir("another", 0))
    after = data.read(folder.experiment)
    assert after.hashes == before.hashes
    assert [(run.arm, run.seed) for run in after.runs] == list(folder.experiment.runs)
    assert after.exclusions == ()


def test_every_file_that_is_read_is_hashed(folder: Folder) -> None:
    hashes = data.read(folder.experiment).hashes
    assert "params.yaml" in hashes
    for name in ("curve.csv", "progress.csv", "timing.csv", "evaluation.csv", "summary.json", "timing.json"):
        assert f"runs/td3-lean/2/{name}" in hashes
    assert "runs/td3-lean/2/policy.safetensors" in hashes


def test_a_run_that_is_not_there_is_missing(folder: Folder) -> None:
    shutil.rmtree(folder.experiment.run_dir("td3-lean", 1))
    assert reason_of(folder, "td3-lean", 1) == ("missing", "it has not been run")


def test_a_failed_run_says_why(folder: Folder) -> None:
    shutil.rmtree(folder.experiment.run_dir("td3-lean", 1))
    folder.fail("td3-lean", 1, "critic_loss is not finite")
    state, reason = reason_of(folder, "td3-lean", 1)
    assert state == "failed"
    assert reason == "critic_loss is not finite (at 1200 of 30000 env steps)"


@pytest.mark.parametrize("state", ["interrupted", "running"])
def test_an_unfinished_run_is_named_as_what_it_is(folder: Folder, state: str) -> None:
    shutil.rmtree(folder.experiment.run_dir("td3-lean", 1))
    place = folder.experiment.state_dir("td3-lean", 1)
    place.mkdir(parents=True)
    (place / "status.json").write_text(json.dumps({"state": state, "env_steps": 5, "env_steps_total": 10, "pid": 3}))
    assert reason_of(folder, "td3-lean", 1)[0] == state


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is empty"),
        (b"env_steps,return_mean\n", "has a header and no rows"),
        (b"env_steps,return_mean\n1,2\n3\n", "line 3 has 1 cells where the header has 2"),
        (b"env_steps,return_mean\n1,2x\n", "line 2, column return_mean: '2x' is not a number"),
        (b"env_steps,env_steps\n1,2\n", "names a column twice"),
        (b"\xff\xfe\x00", "is not UTF-8 text"),
        (b"env_steps,return_mean\n1,\x00\n", "is not a number"),
        (b"env_steps,return_mean\r1,2\r", "is not CSV (new-line character"),
        (b"env_steps,return_mean\n1," + b"2" * 200_000 + b"\n", "is not CSV (field larger than"),
    ],
)
def test_a_damaged_curve_breaks_its_run_and_says_where(folder: Folder, content: bytes, problem: str) -> None:
    (folder.experiment.run_dir("sac-lean", 2) / "curve.csv").write_bytes(content)
    state, reason = reason_of(folder, "sac-lean", 2)
    assert state == "broken"
    assert reason.startswith("curve.csv")
    assert problem in reason


def test_damage_beside_the_curve_costs_only_that_file(folder: Folder) -> None:
    place = folder.experiment.run_dir("sac-lean", 2)
    (place / "evaluation.csv").unlink()
    (place / "timing.json").write_text("[]")
    (place / "progress.csv").unlink()
    (place / "progress.csv").mkdir()
    found = data.read(folder.experiment)
    run = next(run for run in found.runs if (run.arm, run.seed) == ("sac-lean", 2))
    assert run.finished
    assert run.evaluation == {}
    assert {(item.what, item.reason) for item in found.exclusions} == {
        ("evaluation.csv", "is missing"),
        ("timing.json", "holds no JSON object"),
        ("progress.csv", "cannot be read (Is a directory)"),
    }


def test_a_policy_of_other_weights_is_stale(folder: Folder) -> None:
    place = folder.experiment.run_dir("sac-lean", 2) / "policy.safetensors"
    write_policy(place, folder.experiment.arms["sac-speed"])
    state, reason = reason_of(folder, "sac-lean", 2)
    assert state == "stale"
    assert "trained under cost_control × −0.1, reward_forward × 1, the arm now asks for" in reason


@pytest.mark.parametrize("weight", ["x", [1], None, {}])
def test_a_policy_whose_weights_are_no_numbers_is_stale(folder: Folder, weight: object) -> None:
    header = json.dumps({"__metadata__": {"seedbed": json.dumps({"weights": {"reward_forward": weight}})}}).encode()
    place = folder.experiment.run_dir("sac-lean", 2) / "policy.safetensors"
    place.write_bytes(len(header).to_bytes(8, "little") + header)
    assert reason_of(folder, "sac-lean", 2) == (
        "stale",
        "its policy says nothing readable of the reward it was trained under",
    )


def test_a_run_of_another_budget_is_stale(folder: Folder) -> None:
    (folder.experiment.run_dir("sac-lean", 2) / "summary.json").write_text('{"env_steps": 10000}')
    assert reason_of(folder, "sac-lean", 2)[0] == "stale"


def test_a_policy_file_that_is_no_safetensors_file_does_no_harm(folder: Folder) -> None:
    for content in (b"", b"\xff" * 64, b"\x02\0\0\0\0\0\0\0[]", b"\x05\0\0\0\0\0\0\0hello"):
        (folder.experiment.run_dir("sac-lean", 2) / "policy.safetensors").write_bytes(content)
        assert reason_of(folder, "sac-lean", 2)[0] == "finished"


def test_empty_and_infinite_cells_are_not_numbers() -> None:
    found = data.parse_table("a,b\n,inf\n1e3,-Infinity\n")
    assert np.isnan(found["b"]).all()
    assert np.isnan(found["a"][0])
    assert found["a"][1] == 1000.0


def test_absurdly_nested_files_are_left_out_and_named(folder: Folder) -> None:
    deep = "[" * 100_000
    (folder.experiment.run_dir("sac-speed", 0) / "summary.json").write_text(deep)
    (folder.experiment.run_dir("sac-speed", 1) / "evaluation.json").write_text(deep)
    excluded = [(one.arm, one.seed, one.reason) for one in data.read(folder.experiment).exclusions]
    assert any(arm == "sac-speed" and seed == 0 and "nested too deeply" in reason for arm, seed, reason in excluded)
