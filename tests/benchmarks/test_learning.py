"""The learning gates judge as they say, train a seed once, resume, and show what was recorded."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.learning import bench, table
from benchmarks.learning.__main__ import main
from benchmarks.learning.bench import ROOT
from benchmarks.learning.gates import GATES, Gate, chosen, judge
from benchmarks.learning.results import COLUMNS, CURVE_COLUMNS, Records, Row, latest, settings_key
from flows.processes import Processes
from rl_core import config
from rl_core.errors import SettingsError

TINY_ARM = {
    "task": "InvertedPendulum-v5",
    "algorithm": "td3",
    "env_steps": 1_200,
    "learning_starts": 100,
    "batch_size": 16,
    "actor_hidden": [8],
    "critic_hidden": [8],
    "eval_interval": 600,
    "eval_episodes": 2,
    "checkpoint_interval": 100,
}
TINY = Gate(name="tiny", arm=TINY_ARM, statistic="mean", seeds=2, low=1.0, source="a test")
BROKEN = Gate(name="broken", arm={**TINY_ARM, "algorithm": "td4"}, statistic="mean", low=0.0, source="a test")
# What the source of an algorithm's curves has and our preset has not; SAC's and FlashSAC's are the presets.
PUBLISHED: dict[str, dict[str, Any]] = {
    "td3": {
        "learning_rate": 1e-3,
        "batch_size": 100,
        "actor_hidden": [400, 300],
        "critic_hidden": [400, 300],
        "learning_starts": 1_000,
    }
}
MACHINE = ("a processor", "2.0", "4.0")


def gate(**changes: Any) -> Gate:
    return Gate(**{"name": "g", "arm": TINY_ARM, "statistic": "mean", "seeds": 3, "source": "a test", **changes})


def row(name: str = "tiny", **changes: Any) -> Row:
    values: dict[str, Any] = {
        "gate": name,
        "seed": 0,
        "env_steps": 1_200,
        "return_mean": 10.0,
        "return_std": 1.0,
        "episodes": 20,
        "wall_s": 3_600.0,
        "active_s": 3_000.0,
        "commit": "0123456789",
        "cpu": MACHINE[0],
        "torch": MACHINE[1],
        "mujoco": MACHINE[2],
        "settings_key": settings_key(TINY),
        "code_key": "code",
    }
    return Row(**{**values, **changes})


def run(folder: Path, *arguments: str, gates: Sequence[Gate] = (TINY,)) -> int:
    known = {gate.name: gate for gate in gates}
    scratch, records = folder / "scratch", folder / "records"
    return main(["--folder", str(scratch), *arguments], gates=known, records=records, page=folder / "page.md")


def lines(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


@pytest.mark.parametrize(
    ("changes", "returns", "word"),
    [
        ({"low": 5.0}, [4.0, 5.0, 6.0], "passed"),
        ({"low": 5.0}, [4.0, 5.0, 5.9], "failed"),
        ({"low": 5.0}, [90.0, 90.0], "incomplete"),
        ({"low": 5.0, "high": 7.0}, [7.0, 7.0, 7.0], "passed"),
        ({"low": 5.0, "high": 7.0}, [7.0, 7.0, 7.1], "above"),
        ({"low": 5.0, "high": 7.0}, [4.0, 5.0, 5.0], "failed"),
        ({"low": 5.0, "statistic": "median"}, [-90.0, 5.0, 5.0], "passed"),
        ({"low": 5.0, "statistic": "median"}, [90.0, 4.9, 4.9], "failed"),
        ({"low": 5.0, "statistic": "count", "needed": 2}, [5.0, 5.0, -90.0], "passed"),
        ({"low": 5.0, "statistic": "count", "needed": 2}, [5.0, 4.0, 4.9], "failed"),
        ({"low": 5.0, "statistic": "count", "needed": 2}, [5.0, 5.0, 5.0, 4.0, 4.0], "failed"),  # 2 of 3 is 4 of 5
    ],
)
def test_a_verdict_follows_the_band(changes: dict[str, Any], returns: list[float], word: str) -> None:
    verdict = judge(gate(**changes), returns)
    assert verdict.word == word
    assert verdict.passed == (word in ("passed", "above"))


def test_a_gate_with_a_rival_must_reach_its_mean_and_waits_for_it() -> None:
    challenger = gate(rival="other")
    ours = [10.0, 10.0, 10.0]
    assert judge(challenger, ours, rival=[9.0, 9.0, 11.0], rival_seeds=3).word == "passed"
    assert judge(challenger, ours, rival=[9.0, 9.0, 13.0], rival_seeds=3).word == "failed"
    waiting = judge(challenger, ours, rival=[9.0, 9.0], rival_seeds=3)
    assert (waiting.word, waiting.why) == ("incomplete", "other has 2 of 3 seeds")


def _start_of_td3(gate: Gate) -> dict[str, int]:
    return {"learning_starts": 10_000} if "HalfCheetah" in gate.arm["task"] and gate.arm["algorithm"] == "td3" else {}


@pytest.mark.parametrize("known", GATES.values(), ids=GATES)
def test_every_gate_trains_with_the_published_settings(known: Gate) -> None:
    settings = config.resolve(known.arm, where=known.name)
    assert (settings.num_envs, settings.updates_each_vector_step, settings.learner_threads) == (1, 1, 1)
    if known.rival is None:
        changed = PUBLISHED.get(settings.algorithm, {})
        assert set(known.arm) == {"task", "algorithm", "env_steps", "eval_interval"} | set(changed)
        assert {name: known.arm[name] for name in changed} == changed | _start_of_td3(known)
        assert known.low is not None
    else:
        assert known.rival in GATES
        assert known.arm["env_steps"] == GATES[known.rival].arm["env_steps"]
    assert 0 <= known.needed <= known.seeds


def test_gates_are_chosen_by_name_in_their_own_order() -> None:
    names = ["reacher-sac", "inverted-pendulum-td3", "reacher-sac"]
    assert [gate.name for gate in chosen(names, GATES)] == ["inverted-pendulum-td3", "reacher-sac"]
    assert "half-cheetah-100k-flash-sac" not in {gate.name for gate in chosen([], GATES)}


def test_an_unknown_gate_is_refused_with_the_nearest_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--gate", "reacher-tb3"]) == 2
    assert capsys.readouterr().err == "error: --gate: unknown gate 'reacher-tb3'; did you mean 'reacher-td3'?\n"


def test_seeds_are_trained_once_recorded_at_once_and_judged(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(tmp_path, "--jobs", "2", gates=(BROKEN, TINY)) == 1  # broken has no result
    broken, tiny, closing = lines(capfd.readouterr().out)
    assert (broken["verdict"], broken["passed"]) == ("error", False)
    assert broken["why"] == "not in this version: broken.algorithm: unknown algorithm 'td4'; did you mean 'td3'?"
    assert (tiny["verdict"], tiny["band"], list(tiny["returns"])) == ("passed", "mean ≥ 1", ["0", "1"])
    assert closing["figures"]["tiny seeds"] == 2
    assert closing["figures"]["tiny mean"] == pytest.approx(sum(tiny["returns"].values()) / 2, abs=1e-3)
    assert closing["limits"] == {"tiny mean": [">=", 1.0], "gates_not_passed": ["<=", 0.0]}
    assert (closing["figures"]["gates_not_passed"], closing["passed"]) == (1, False)

    records = Records(tmp_path / "records")
    assert records.table.read_text().startswith(",".join(COLUMNS) + "\n")
    rows = records.rows()
    assert sorted(row.seed for row in rows) == [0, 1]
    assert {(row.env_steps, row.episodes) for row in rows} == {(1_200, 20)}
    curve = (tmp_path / "records" / "curves" / "tiny.csv").read_text().splitlines()
    assert curve[0] == ",".join(CURVE_COLUMNS)
    starts = [line.rpartition(",")[0] for line in curve[1:]]
    assert starts == [f"Seedbed,TD3,InvertedPendulum-v5,{s},{n}" for s in (0, 1) for n in (0, 600, 1200)]

    monkeypatch.setattr(Processes, "start", lambda *_, **__: pytest.fail("a finished seed was trained again"))
    before = records.table.read_bytes()
    assert run(tmp_path, "--gate", "tiny") == 0
    assert run(tmp_path, "--gate", "tiny", "--fresh") == 0  # the code is the same
    monkeypatch.setattr(bench, "machine", lambda: {"cpu": "another", "torch": "2.0", "mujoco": "4.0"})
    assert run(tmp_path, "--gate", "tiny") == 0
    with pytest.raises(pytest.fail.Exception):
        run(tmp_path, "--gate", "tiny", "--fresh")
    assert records.table.read_bytes() == before


def test_a_stopped_benchmark_resumes_and_ends_with_the_same_return(tmp_path: Path) -> None:
    stopped, whole = tmp_path / "stopped", tmp_path / "whole"
    process = _start(stopped)
    state = stopped / "scratch" / "tiny" / "0" / "state"
    while not any(state.glob("checkpoint-*")):
        assert process.poll() is None, "ended before its first checkpoint"
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGTERM
    assert not Records(stopped / "records").rows()
    assert any(state.glob("checkpoint-*"))

    assert [run(folder, "--seeds", "1") for folder in (stopped, whole)] == [1, 1]  # one seed of two is incomplete
    assert "resumed at" in (state.parent / "log").read_text()
    ours, theirs = (Records(folder / "records").rows() for folder in (stopped, whole))
    assert [row.return_mean for row in ours] == [row.return_mean for row in theirs]
    assert len(ours) == 1


def _start(folder: Path) -> "subprocess.Popen[bytes]":
    folder.mkdir()
    script = folder / "script.py"
    script.write_text(
        "import sys\nfrom pathlib import Path\nfrom tests.benchmarks.test_learning import run\n"
        "if __name__ == '__main__':\n    sys.exit(run(Path(sys.argv[1]), '--seeds', '1'))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, str(script), str(folder)], env=environment, stdout=subprocess.DEVNULL)


def test_a_failed_training_is_told_in_its_gates_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run_folder = tmp_path / "scratch" / "tiny" / "0"
    run_folder.mkdir(parents=True)
    (run_folder / "state").write_text("a file where a folder should be")
    assert run(tmp_path, "--seeds", "1") == 1
    tiny, closing = lines(capfd.readouterr().out)
    assert tiny["verdict"] == "error"
    assert tiny["why"].startswith("seed 0 ended with 1: ")
    assert (closing["figures"]["tiny seeds"], closing["passed"]) == (0, False)


def test_the_newest_row_of_these_settings_counts() -> None:
    rows = [
        row(return_mean=1.0, code_key="old"),
        row(return_mean=2.0),
        row(return_mean=4.0, settings_key="other settings"),
        row("another gate", return_mean=5.0),
        row(seed=1, return_mean=6.0, code_key="old"),
        row(seed=2, return_mean=3.0, cpu="another"),
    ]

    def found(**only: Any) -> dict[int, float]:
        return {seed: r.return_mean for seed, r in latest(rows, TINY, **only).items()}

    assert found() == {0: 2.0, 1: 6.0, 2: 3.0}
    assert found(machine=MACHINE) == {0: 2.0, 1: 6.0}
    assert found(machine=MACHINE, code_key="code") == {0: 2.0}


def test_rows_survive_the_file_and_a_damaged_file_is_told(tmp_path: Path) -> None:
    records = Records(tmp_path)
    rows = [row(cpu="with, a comma"), row(seed=1, return_mean=-0.125)]
    for added in rows:
        records.add(TINY, added, [(0, 1.0)])
    assert records.rows() == rows
    with records.table.open("a") as file:
        file.write("tiny,one\n")
    with pytest.raises(SettingsError, match="line 4"):
        records.rows()


def test_a_seed_trained_again_replaces_its_curve_and_adds_a_row(tmp_path: Path) -> None:
    records = Records(tmp_path)
    for value in (1.0, 2.0):
        records.add(TINY, row(return_mean=value), [(0, value), (10, value)])
    records.add(TINY, row(seed=1), [(0, 3.0)])
    assert [r.return_mean for r in records.rows()] == [1.0, 2.0, 10.0]
    curve = (tmp_path / "curves" / "tiny.csv").read_text().splitlines()[1:]
    assert [line.split(",")[3:] for line in curve] == [["0", "0", "2.0"], ["0", "10", "2.0"], ["1", "0", "3.0"]]


def test_the_table_shows_what_is_recorded_and_what_is_not(tmp_path: Path) -> None:
    missing = gate(name="missing")
    rows = [row(), row(seed=1, return_mean=1_234.5, wall_s=7_200.0, commit="fedcba9876", cpu="another")]
    page = tmp_path / "page.md"
    page.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n")
    table.rewrite(page, rows, {"tiny": TINY, "missing": missing})
    text = page.read_text()
    assert text.startswith(f"before\n{table.BEGIN}\n")
    assert text.endswith(f"{table.END}\nafter\n")
    assert "old" not in text
    assert "Machines: 1: a processor, torch 2.0, MuJoCo 4.0; 2: another, torch 2.0, MuJoCo 4.0." in text
    assert (
        "| `tiny` | InvertedPendulum-v5, td3 | 1 200 | 10, 1234 | mean 622.2 | mean ≥ 1 | passed | 1.50 "
        "| `0123456789`, `fedcba9876` | 1, 2 |"
    ) in text
    assert "No result yet: `missing`." in text
    table.rewrite(page, rows, {"tiny": TINY, "missing": missing})
    assert page.read_text() == text


def test_a_page_without_markers_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "page.md").write_text("nothing")
    assert run(tmp_path, "--table") == 2
    assert "expected the markers" in capsys.readouterr().err


def test_the_documented_table_is_that_of_the_recorded_results() -> None:
    rendered = table.render(Records(ROOT / "benchmarks" / "learning").rows(), GATES)
    page = (ROOT / "docs" / "learning.md").read_text(encoding="utf-8")
    assert rendered in page, "call python -m benchmarks.learning --table"
