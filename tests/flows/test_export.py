"""`export`: a policy leaves the experiment, or one line says why it does not."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
import torch

from flows import cli
from rl_core import policy
from rl_core.networks import init_mlp

from .helpers import arm, params

WEIGHTS = {"reward_alive": 10.0, "cost_power": -0.01}


@pytest.fixture
def trained(folder: Callable[[str], Path]) -> Path:
    """An experiment of two seeds of which the first has a policy."""
    made = folder(params(seeds="[0, 1]", plain=arm()))
    file = policy_file(made)
    file.parent.mkdir(parents=True)
    actor = init_mlp((9, 16, 2), generator=torch.Generator().manual_seed(0))
    metadata = {"head": "gaussian", "task": "InvertedDoublePendulum-v5", "task_settings": {}, "weights": WEIGHTS}
    policy.save(file, actor, metadata)
    return made


def policy_file(experiment: Path) -> Path:
    return experiment / "runs/plain/0/policy.safetensors"


def failure(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Run the verb, which is to fail with one line; return its exit code and that line."""
    code = cli.main(list(arguments))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    return code, captured.err


@pytest.mark.parametrize("name", ["plain.onnx", "any name"])
def test_a_runs_policy_is_exported_and_says_where_it_came_from(
    name: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / name
    assert cli.main(["-C", str(trained), "export", "plain", "0", "--onnx", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}: observation (batch, 9) -> action (batch, 1) in [-1, 1]\n"
    model = onnx.load(file)
    onnx.checker.check_model(model)
    props = {p.key: p.value for p in model.metadata_props}
    assert props["policy_sha256"] == hashlib.sha256(policy_file(trained).read_bytes()).hexdigest()
    assert json.loads(props["weights"]) == WEIGHTS
    assert {path.name for path in tmp_path.iterdir()} == {name, trained.name}


@pytest.mark.parametrize(
    ("run", "code", "said"),
    [
        (("plain", "1"), 1, "plain seed 1 has no policy yet; train it: python -m flows train plain 1"),
        (("plian", "0"), 2, "did you mean 'plain'"),
        (("plain", "5"), 2, "no seed 5"),
    ],
)
def test_a_run_without_a_policy_or_a_place_in_the_plan_is_one_clear_line(
    run: tuple[str, str], code: int, said: str, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = trained / "x.onnx"
    ended, line = failure(capsys, "-C", str(trained), "export", *run, "--onnx", str(file))
    assert ended == code
    assert said in line
    assert not file.exists()


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("{tmp}/nowhere/x.onnx", "nowhere is not a folder"),
        ("{tmp}", "is not a file"),
        ("/dev/null", "is not a file"),
        ("/proc/x.onnx", "cannot be written"),
        ("{tmp}/" + "n" * 300, "cannot be written: File name too long"),
        ("{policy}", "is for what runs leave"),
    ],
)
def test_a_place_that_takes_no_file_is_wrong_input(
    target: str, said: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = policy_file(trained).read_bytes()
    file = target.format(tmp=tmp_path, policy=policy_file(trained))
    code, line = failure(capsys, "-C", str(trained), "export", "plain", "0", "--onnx", file)
    assert code == 2
    assert said in line
    assert policy_file(trained).read_bytes() == before
    assert list(tmp_path.iterdir()) == [trained]
