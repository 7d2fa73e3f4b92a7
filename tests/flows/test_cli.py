"""What the command line promises."""

import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flows import check, cli, conduct, experiment, server, status, verify, versioning, workspace
from flows.stages import CODE_ROOT, EVALUATION_OUTPUTS, train_key, train_marker

from .helpers import arm, dvc, flows, params, run

VERBS = ("train", "evaluate", "report", "sweep", "status", "check", "verify", "trace", "export", "ui", "init")


def test_help_is_fast_and_loads_nothing_heavy() -> None:
    code = """
import sys
from flows import cli
try:
    cli.main(["--help"])
finally:
    print(sorted({"torch", "prefect", "dvc", "numpy", "mujoco"} & set(sys.modules)))
"""
    started = time.monotonic()
    result = run(sys.executable, "-c", code, folder=CODE_ROOT)
    assert time.monotonic() - started < 1
    assert result.stdout.endswith("[]\n")
    for verb in VERBS:
        assert re.search(rf"^    {verb} +\w", result.stdout, re.MULTILINE), verb


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([verb, "--help"])
    assert ended.value.code == 0
    assert f"python -m flows {verb}" in capsys.readouterr().out


@pytest.mark.parametrize("order", [["-C", "{}", "status"], ["status", "-C", "{}"]])
def test_the_folder_is_named_before_or_after_the_verb(
    order: list[str], swept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([word.format(swept) for word in order]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("plain")


def test_a_complete_run_is_left_alone(swept: Path) -> None:
    before = (swept / "runs/plain/0/timing.json").read_bytes()
    result = flows("train", "plain", "0", folder=swept)
    assert (result.returncode, result.stdout) == (0, "plain seed 0: already complete\n")
    result = flows("evaluate", "plain", "0", folder=swept)
    assert (result.returncode, result.stdout) == (0, "plain seed 0: already evaluated\n")
    assert (swept / "runs/plain/0/timing.json").read_bytes() == before


def test_two_trainings_of_one_run_do_not_write_at_once(folder: Callable[[str], Path]) -> None:
    made = folder(params(plain=arm()))
    lock = made / ".seedbed/locks/plain/0.lock"
    lock.parent.mkdir(parents=True)
    with lock.open("w") as file:
        file.write("4711")
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        result = flows("train", "plain", "0", folder=made)
    assert result.returncode == 1
    assert result.stderr.startswith("error: plain seed 0 is in use (process 4711);")
    assert result.stderr.count("\n") == 1


def test_two_verifications_of_one_run_do_not_share_a_folder(
    folder: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    made = folder(params(plain=arm()))
    lock, recorded = made / ".seedbed/locks/verify/plain/0.lock", made / "runs/plain/0/policy.safetensors"
    ring = made / ".seedbed/verify/plain/0/state/replay.bin"  # of the first
    for path in (lock, recorded, ring):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"4711")
    with lock.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert cli.main(["-C", str(made), "verify", "plain", "0"]) == 1
    said = "error: plain seed 0 is being verified (process 4711); wait for it or stop it\n"
    assert capsys.readouterr().err == said
    assert ring.exists()


def test_an_evaluation_without_a_policy_is_one_clear_line(folder: Callable[[str], Path]) -> None:
    result = flows("evaluate", "plain", "0", folder=folder(params(plain=arm())))
    assert result.returncode == 1
    assert "train it: python -m flows train plain 0" in result.stderr
    assert result.stderr.count("\n") == 1


def test_status_says_which_run_is_stale_and_why(copied: Path) -> None:
    text = (copied / "params.yaml").read_text()
    (copied / "params.yaml").write_text(text.replace("-0.01", "-0.02").replace("[0]", "[0, 1]"))
    state = copied / ".seedbed/state/plain/1/status.json"
    state.parent.mkdir(parents=True)
    state.write_text('{"state": "failed", "env_steps": 5, "env_steps_total": 9, "pid": 1, "reason": "loss is nan"}')
    (state.parent / "replay.bin").write_bytes(bytes(2_000_000))
    found = {(row.arm, row.seed): (row.state, row.detail) for row in status.states(experiment.load(copied))}
    assert found == {
        ("plain", 0): ("fresh", ""),
        ("plain", 1): ("failed", "at 5 of 9 env steps, 2 MB: loss is nan"),
        ("thrifty", 0): ("stale", "arms.thrifty modified"),
        ("thrifty", 1): ("missing", ""),
    }


@pytest.mark.parametrize("pid", [0, -1, 1])
def test_a_run_is_running_while_its_lock_is_held_whatever_its_state_says(
    pid: int, folder: Callable[[str], Path]
) -> None:
    made = folder(params(plain=arm()))
    state, lock = made / ".seedbed/state/plain/0/status.json", made / ".seedbed/locks/plain/0.lock"
    state.parent.mkdir(parents=True)
    lock.parent.mkdir(parents=True)
    reason = "\\u001b[31mred\\r"
    state.write_text(
        f'{{"state": "running", "env_steps": 5, "env_steps_total": 9, "pid": {pid}, "reason": "{reason}"}}'
    )
    assert rows(made) == [("interrupted", "at 5 of 9 env steps, 0 MB: its process ended without a word")]
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert rows(made) == [("running", "at 5 of 9 env steps, 0 MB: [31mred")]


@pytest.mark.parametrize(
    ("timing", "summary"),
    [
        ('{"wall_s": 5.0}', '{"env_steps": 1e999}'),
        ('{"wall_s": NaN}', '{"env_steps": 400}'),
        ('{"wall_s": 1e999}', '{"env_steps": 400}'),
        ('{"wall_s": -5}', '{"env_steps": 400}'),
        ('{"wall_s": 5.0}', '{"env_steps": 1' + "0" * 400 + "}"),
        ('{"wall_s": 1e308}', '{"env_steps": 1}'),
        ("[" * 100_000, '{"env_steps": 400}'),
        ('{"wall_s": 5.0}' + " " * 10_000_000, '{"env_steps": 400}'),
    ],
)
def test_an_absurd_record_is_none(timing: str, summary: str, folder: Callable[[str], Path]) -> None:
    made = folder(params(plain=arm()))
    run_dir = made / "runs/plain/0"
    run_dir.mkdir(parents=True)
    (run_dir / "timing.json").write_text(timing)
    (run_dir / "summary.json").write_text(summary)
    assert "no record of this arm yet" in check.describe(experiment.load(made))


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\xfe\0", b"[" * 100_000, b"[]", b"\0" * 100])
def test_verify_reports_a_damaged_record_as_one_difference(damage: bytes, tmp_path: Path) -> None:
    names = ("summary.json", "policy.safetensors", "curve.csv")
    for side, content in (("recorded", damage), ("again", None)):
        (tmp_path / side).mkdir()
        for name in names:
            (tmp_path / side / name).write_bytes(content if content is not None else b"{}")
    found = {item.name: item.difference for item in verify.compare(tmp_path / "recorded", tmp_path / "again")}
    assert set(found) == set(names)
    for name in names[:2]:
        assert found[name].startswith("cannot be read, so the recorded file is damaged (")
    assert found["curve.csv"]


def test_a_run_trained_under_other_kernels_is_another_run(
    folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = experiment.load(folder(params(plain=arm())))
    pinned = train_key(loaded, "plain", 0)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert train_key(loaded, "plain", 0) == pinned
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    assert train_key(loaded, "plain", 0) != pinned


def test_an_interruption_that_native_code_wrapped_is_still_an_interruption(
    folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrapped(*_: object, **__: object) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt as interruption:
            raise ValueError("while loading a library") from interruption

    monkeypatch.setattr(conduct.Work, "prepare", wrapped)
    monkeypatch.setattr(conduct.Stopper, "_finish", lambda self: None)
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        assert cli.main(["-C", str(folder(params(plain=arm()))), "sweep"]) == 128 + signal.SIGTERM
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
    assert "interrupted; finished runs are kept" in capsys.readouterr().err


def test_verify_says_first_that_the_recorded_run_is_of_other_settings(folder: Callable[[str], Path]) -> None:
    made = folder(params(plain=arm()))
    loaded = experiment.load(made)
    assert "nothing here says" in verify.expected_differences(loaded, "plain", 0)
    marker = train_marker(loaded, "plain", 0)
    marker.parent.mkdir(parents=True)
    marker.write_text(json.dumps({"key": train_key(loaded, "plain", 0), "outputs": {}}))
    assert verify.expected_differences(loaded, "plain", 0) == ""
    (made / "params.yaml").write_text(params(plain=arm(weight=-3)))
    assert "other settings, code, versions or kernels" in verify.expected_differences(experiment.load(made), "plain", 0)


def rows(folder: Path) -> list[tuple[str, str]]:
    return [(row.state, row.detail) for row in status.states(experiment.load(folder))]


@pytest.mark.parametrize("content", ["[" * 100_000, '{"api_url": 7}', "[]"])
def test_a_damaged_record_of_a_server_is_no_server(content: str, tmp_path: Path) -> None:
    (tmp_path / ".seedbed").mkdir()
    (tmp_path / ".seedbed/server.json").write_text(content)
    assert server.running_url(tmp_path) is None


def test_status_tells_lost_outputs_from_a_lost_cache_and_an_unrecorded_run(copied: Path) -> None:
    shutil.rmtree(copied / ".dvc/cache")
    assert rows(copied) == [("stale", versioning.UNCACHED)] * 2
    shutil.rmtree(copied / "runs/plain")
    assert rows(copied) == [("missing", versioning.LOST), ("stale", versioning.UNCACHED)]
    (copied / "dvc.lock").unlink()
    assert rows(copied) == [("missing", ""), ("missing", "trained, the next sweep records it")]


def test_status_names_two_reasons_and_counts_the_others(copied: Path) -> None:
    for path in (copied / "runs/plain/0").glob("*.*"):
        path.unlink()
    details = [detail for _, detail in rows(copied)]
    assert re.fullmatch(r"runs/plain/0/[\w.]+ is deleted, runs/plain/0/[\w.]+ is deleted, and \d more", details[0])


def test_absurd_state_files_break_nothing(copied: Path) -> None:
    (copied / "dvc.lock").unlink()
    state = copied / ".seedbed/state/plain/0/status.json"
    state.parent.mkdir(parents=True)
    for pid, steps in (("1e400", "5"), ("1" + "0" * 30, "5"), ("1", "1e400"), ("1", '"x"')):
        state.write_text(f'{{"state": "running", "env_steps": {steps}, "env_steps_total": 9, "pid": {pid}}}')
        assert len(rows(copied)) == 2
    for text in (
        "[" * 100_000,
        '{"state": "\\u001b[2J\\n"}',
        '{"state": "running", "env_steps": 5, "env_steps_total": true}',
    ):
        state.write_text(text)
        assert {row.state for row in status.states(experiment.load(copied))} == {"missing"}
    for text in ('{"api_url": "no url"}', '{"api_url": "http://[::1"}', "[", '{"api_url": 3}'):
        (copied / ".seedbed/server.json").write_text(text)
        assert server.running_url(copied) is None


@pytest.mark.parametrize("given", ["a/file/new", "n" * 300])
def test_a_folder_that_cannot_be_made_is_wrong_input(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a/file").write_text("")
    assert cli.main(["init", given]) == 2
    assert "cannot be made" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize(("text", "expected"), [("experiment: {}", "is missing"), (None, "is a folder")])
def test_init_takes_no_invalid_params(
    text: str | None, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = tmp_path / "mine.yaml"
    given.mkdir() if text is None else given.write_text(text)
    assert cli.main(["init", str(tmp_path / "new"), "--params", str(given)]) == 2
    said = capsys.readouterr().err
    assert "mine.yaml" in said
    assert expected in said
    assert not (tmp_path / "new").exists()


def test_two_uis_of_one_experiment_do_not_run_at_once(
    folder: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    made = folder(params(plain=arm()))
    lock = made / ".seedbed/locks/ui.lock"
    lock.parent.mkdir(parents=True)
    (made / ".seedbed/server.json").write_text("{}")
    with lock.open("w") as file:
        file.write("4711")
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        assert cli.main(["-C", str(made), "ui"]) == 1
    assert capsys.readouterr().err.startswith(f"error: another ui of {made} is running (process 4711);")
    assert (made / ".seedbed/server.json").exists()
    assert not (made / ".seedbed/logs").exists()


def test_check_shows_terms_weights_and_a_time_from_recorded_runs(swept: Path) -> None:
    text = check.describe(experiment.load(swept))
    assert re.search(r"cost_power +-0.01  Mechanical power", text)
    assert re.search(r"time: about \d+ s a run \(from 1 recorded\)", text)
    assert "all runs: about" in text


def test_check_guesses_no_time_without_a_record(folder: Callable[[str], Path]) -> None:
    text = check.describe(experiment.load(folder(params(plain=arm()))))
    assert "no record of this arm yet" in text
    assert "no estimate" in text


@pytest.mark.parametrize(("free", "said"), [(10**12, "; 1000.0 GB are free"), (10**5, "; TOO LITTLE: only 100 kB are")])
def test_check_says_how_much_disk_is_free(
    folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, free: int, said: str
) -> None:
    made = folder(params(plain=arm()))
    usage = shutil.disk_usage(made)._replace(free=free)
    monkeypatch.setattr(check.shutil, "disk_usage", lambda folder: usage if folder == made else None)
    disk = check.describe(experiment.load(made)).splitlines()[-1]
    assert disk.startswith("disk: ")
    assert said in disk


def test_verify_finds_every_byte_equal_and_cleans_up(swept: Path) -> None:
    result = flows("verify", "thrifty", "0", folder=swept)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "9 of 9 artifacts are equal" in result.stdout
    assert not (swept / ".seedbed/verify/thrifty/0").exists()


def test_verify_compares_no_evaluation_with_a_run_that_has_none(copied: Path) -> None:
    for name in EVALUATION_OUTPUTS:
        (copied / "runs/plain/0" / name).unlink()
    result = flows("verify", "plain", "0", folder=copied)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "7 of 7 artifacts are equal" in result.stdout


def test_verify_names_what_differs_first(copied: Path, swept: Path) -> None:
    ours, theirs = copied / "runs/plain/0", swept / "runs/plain/0"
    rows = (ours / "curve.csv").read_text().splitlines()
    cells = rows[1].split(",")
    cells[rows[0].split(",").index("return_mean")] = "1.5"
    (ours / "curve.csv").unlink()
    (ours / "curve.csv").write_text("\n".join([rows[0], ",".join(cells), *rows[2:]]) + "\n")
    (ours / "policy.safetensors").unlink()
    (ours / "policy.safetensors").write_bytes((ours / "checkpoints/0.safetensors").read_bytes())
    found = {item.name: item.difference for item in verify.compare(ours, theirs) if item.difference}
    assert set(found) == {"curve.csv", "policy.safetensors"}
    assert found["curve.csv"].startswith("row 1, column return_mean: 1.5 recorded, ")
    assert re.match(r"tensor [\w.]+: largest difference [\d.e-]+", found["policy.safetensors"])


def test_init_copies_the_params_it_is_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = tmp_path / "mine.yaml"
    given.write_text((CODE_ROOT / "params" / "half-cheetah-100k.yaml").read_text())
    assert cli.main(["init", str(tmp_path / "new"), "--params", str(given)]) == 0
    assert len(experiment.load(tmp_path / "new").runs) == 20
    assert cli.main(["init", str(tmp_path / "other"), "--params", str(tmp_path / "no.yaml")]) == 2
    assert not (tmp_path / "other").exists()
    assert "no such file" in capsys.readouterr().err


def test_init_refuses_a_folder_that_holds_something(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.tex").write_text("")
    assert cli.main(["init", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_new_experiment_is_valid_and_waits_to_be_run(tmp_path: Path) -> None:
    workspace.initialise(tmp_path / "new")
    result = flows("status", folder=tmp_path / "new")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("missing") == 6


def test_a_new_experiment_within_git_needs_no_dvc_before(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    workspace.initialise(tmp_path / "new")
    assert (tmp_path / "new/.dvc/config").is_file()
    assert dvc("status", folder=tmp_path / "new").returncode == 0


def test_the_repositorys_pipeline_is_the_one_that_init_writes() -> None:
    assert (CODE_ROOT / "dvc.yaml").read_text() == workspace.pipeline(CODE_ROOT)


def test_dvc_reads_the_repositorys_pipeline_in_a_bare_copy(tmp_path: Path) -> None:
    for name in ("rl_core", "flows", ".dvcignore", "dvc.yaml", "params.yaml", ".dvc/config", ".gitignore"):
        source, target = CODE_ROOT / name, tmp_path / name
        target.parent.mkdir(exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    result = dvc("stage", "list", "--name-only", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    loaded = experiment.load(tmp_path)
    grid = [f"{stage}@{arm}-{seed}" for stage in ("train", "evaluate") for arm, seed in loaded.runs]
    assert result.stdout.split() == [*grid, "report"]


def test_the_key_follows_code_settings_and_seed_but_no_byte_code(folder: Callable[[str], Path]) -> None:
    made = folder(params(seeds="[0, 1]", plain=arm()))
    (made / "tasks").mkdir()
    (made / "tasks/mine.py").write_text("x = 1\n")
    text = (made / "dvc.yaml").read_text()
    (made / "dvc.yaml").write_text(
        text.replace("    params:\n      - arms.", "      - tasks\n    params:\n      - arms.")
    )

    def key(seed: int = 0) -> str:
        return train_key(experiment.load(made), "plain", seed)

    first = key()
    (made / "tasks/__pycache__").mkdir()
    (made / "tasks/__pycache__/mine.pyc").write_text("")
    assert key() == first
    assert key(1) != first
    (made / "tasks/mine.py").write_text("x = 2\n")
    assert key() != first
    (made / "tasks/mine.py").write_text("x = 1\n")
    (made / "params.yaml").write_text(params(seeds="[0, 1]", plain=arm(weight=-3)))
    assert key() != first


def test_a_busy_port_is_one_clear_error(swept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        assert cli.main(["-C", str(swept), "ui", "--port", str(port)]) == 2
    assert f"--port {port}: Address already in use" in capsys.readouterr().err
