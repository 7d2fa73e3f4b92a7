"""Wrong input is one clear line and exit code 2; right input is read as it is meant."""

from collections.abc import Callable
from pathlib import Path

import pytest

from flows import cli, experiment, stages

GOOD = """\
experiment:
  title: Good
  arms: [b, a]
  seeds: [3, 1]
evaluation: {episodes: 2, seed: 7}
report: {final_evaluations: 2, confidence: 0.9}
arms:
  a: {task: Reacher-v5, algorithm: sac, env_steps: 20000, learning_rate: 3e-4}
  b: {task: Reacher-v5, algorithm: td3, env_steps: 20000}
  unused: {task: Reacher-v5, algorithm: td3, env_steps: 20000}
"""

BOMB = "x:\n- &a [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"- &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "x:\n- &a {k: 1}\n" + "".join(
    f"- &{name} {{<<: [{', '.join([f'*{before}'] * 60)}]}}\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
DEEP = "x:\n- &a0 [1]\n" + "".join(f"- &a{i + 1} [*a{i}]\n" for i in range(40))

WRONG = {
    "no file": (None, "no such file", "init DIR"),
    "no YAML": ("experiment: [", "line", "not valid YAML"),
    "a tab": ("experiment:\n\ttitle: x\n", "line 2", "not valid YAML"),
    "empty": ("", "expected keys", "nothing"),
    "a list": ("[1]", "expected keys", "a list"),
    "a repeated key": (GOOD.replace("  seeds: [3, 1]", "  seeds: [1]\n  seeds: [2]"), "line 5", "seeds"),
    "a repeated arm": (GOOD + "  a: {task: Reacher-v5}\n", "line 11", '"a"'),
    "an unknown section": (GOOD + "evaluatoin: {}\n", "'evaluatoin'", "did you mean 'evaluation'"),
    "an unknown key": (GOOD.replace("title", "titel"), "params.yaml: experiment", "did you mean 'title'"),
    "an unknown arm key": (GOOD.replace("learning_rate", "lerning_rate"), "arms.a", "did you mean 'learning_rate'"),
    "an unknown task": (GOOD.replace("Reacher-v5", "Reacher-v4"), "arms.a", "did you mean 'Reacher-v5'"),
    "an unlisted arm": (GOOD.replace("[b, a]", "[b, unusd]"), "experiment.arms", "did you mean 'unused'"),
    "an arm twice": (GOOD.replace("[b, a]", "[a, a]"), "experiment.arms", "twice"),
    "an arm that is a number": (GOOD.replace("[b, a]", "[1]"), "experiment.arms", "an integer"),
    "no arm": (GOOD.replace("[b, a]", "[]"), "experiment.arms", "empty"),
    "an arm name with a space": (GOOD.replace("unused:", "un used:"), "'un used'", "letters"),
    "an arm name with @": (GOOD.replace("unused:", '"un@used":'), "'un@used'", "letters"),
    "an arm name like an option": (GOOD.replace("unused:", "-unused:"), "'-unused'", "no '-' first"),
    "a long arm name": (GOOD.replace("unused:", "u" * 101 + ":"), "101 characters", "the most is 100"),
    "a seed of 33 bits": (GOOD.replace("[3, 1]", "[4294967296]"), "experiment.seeds", "the most is 4294967295"),
    "an evaluation without end": (GOOD.replace("episodes: 2", "episodes: 10001"), "evaluation.episodes", "too large"),
    "too many evaluations": (GOOD.replace("evaluations: 2", "evaluations: 1001"), "final_evaluations", "too large"),
    "no seed": (GOOD.replace("[3, 1]", "[]"), "experiment.seeds", "empty"),
    "a seed alone": (GOOD.replace("[3, 1]", "3"), "experiment.seeds", "a list such as [0, 1, 2]"),
    "a negative seed": (GOOD.replace("[3, 1]", "[-1]"), "experiment.seeds", "-1"),
    "a seed twice": (GOOD.replace("[3, 1]", "[3, 3]"), "experiment.seeds", "twice"),
    "a seed in quotes": (GOOD.replace("[3, 1]", '["3"]'), "experiment.seeds", "a string"),
    "a seed with a fraction": (GOOD.replace("[3, 1]", "[1.0]"), "experiment.seeds", "a number"),
    "a true seed": (GOOD.replace("[3, 1]", "[true]"), "experiment.seeds", "true/false"),
    "a number in quotes": (GOOD.replace("env_steps: 20000, l", 'env_steps: "20000", l'), "arms.a", "env_steps"),
    "a true number": (GOOD.replace("env_steps: 20000, l", "env_steps: true, l"), "arms.a", "env_steps"),
    "no episodes": (GOOD.replace("episodes: 2", "episodes: 0"), "evaluation.episodes", "too small"),
    "certain confidence": (GOOD.replace("0.9}", "1.0}"), "report.confidence", "between 0 and 1"),
    "confidence in words": (GOOD.replace("0.9}", "high}"), "report.confidence", "between 0 and 1"),
    "a missing section": (GOOD.replace("report:", "#"), "'report'", "missing"),
    "a number without end": (GOOD.replace("20000, l", "9" * 5001 + ", l"), "line 8", "5001 characters"),
    "a long number": (GOOD.replace("[3, 1]", f"[{'9' * 900}]"), "experiment.seeds", "a number of more than 50 digits"),
    "a date that there is not": (GOOD.replace("title: Good", "title: 2020-13-45"), "not valid YAML", "a date"),
    "a date": (GOOD.replace("[3, 1]", "[2020-01-02]"), "experiment.seeds", "(2020-01-02)"),
    "a hundred thousand brackets": (GOOD + "x: " + "[" * 100_000, "line 11", "20 levels deep"),
    "two thousand lists": (GOOD.replace("3e-4", "[" * 2000 + "]" * 2000), "line 8", "20 levels deep"),
    "levels that aliases add": (GOOD + DEEP, "levels deep", "20 levels deep"),
    "a bomb of aliases": (BOMB + GOOD.replace("3e-4", "*i"), "line 6", "50000 values"),
    "a bomb of merges": (MERGES + GOOD, "line 5", "50000 values"),
    "a list within itself": (GOOD.replace("3e-4", "&a [*a]"), "line 8", "*a stands within what it repeats"),
    "too large a file": (GOOD + "#" * 500_000, "larger than 500 kB", "no experiment needs"),
    "an arm without settings": (GOOD.replace("unused: {", "unused: 3 #"), "arms.unused", "an integer"),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("verb", ["check", "train a 1"])
def test_wrong_input_is_one_clear_line_and_exit_code_2(
    case: str, verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text, *expected = WRONG[case]
    monkeypatch.chdir(tmp_path)
    if text is not None:
        (tmp_path / "params.yaml").write_text(text)
    assert cli.main(verb.split()) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("error: params.yaml:")
    for part in expected:
        assert part is not None
        assert part in captured.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["train", "c", "3"], "no arm 'c'"),
        (["evaluate", "a", "2"], "no seed 2 in this experiment; its seeds are 3, 1"),
        (["sweep", "--arm", "z*"], "--arm z*: no such arm"),
        (["sweep", "--seed", "9"], "--seed 9: no such seed"),
        (["sweep", "--jobs", "0"], "--jobs 0: at least one"),
        (["ui", "--port", "99999"], "--port 99999: a port lies between"),
        (["ui", "--port", "4200", "--report-port", "4200"], "both 4200"),
    ],
)
def test_a_request_for_what_is_not_there_is_wrong_input(
    arguments: list[str],
    expected: str,
    folder: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder(GOOD))
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert expected in captured.err


def test_runs_come_in_the_order_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text(GOOD)
    loaded = experiment.load(tmp_path)
    assert loaded.runs == (("b", 3), ("b", 1), ("a", 3), ("a", 1))
    assert list(loaded.arms) == ["b", "a"]
    assert loaded.evaluation == experiment.EvaluationSettings(episodes=2, seed=7)
    assert loaded.report == experiment.ReportSettings(final_evaluations=2, confidence=0.9)


def test_numbers_are_read_as_dvc_reads_them(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text(GOOD)
    assert experiment.load(tmp_path).arms["a"].to_dict()["learning_rate"] == 3e-4


@pytest.mark.parametrize(
    ("pipeline", "expected"),
    [(b"stages: [", "not valid YAML"), (b"\xff\xfe\x00", "cannot be read"), (b"stages: {train: {deps: 3}}", "a list")],
)
def test_a_broken_dvc_yaml_is_one_clear_line(
    pipeline: bytes, expected: str, folder: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    made = folder(GOOD)
    (made / "dvc.yaml").write_bytes(pipeline)
    assert cli.main(["-C", str(made), "train", "a", "1"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"{made}/dvc.yaml: " in said
    assert expected in said


@pytest.mark.parametrize("marker", [b"", b"{", b"\xff\xfe", None])
def test_a_marker_that_cannot_be_read_means_not_complete(marker: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "0.json"
    if marker is None:
        path.mkdir()
    else:
        path.write_bytes(marker)
    assert not stages.is_complete(path, "key", tmp_path, ())
