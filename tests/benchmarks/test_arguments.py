"""Bad arguments are refused before a benchmark trains anything."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from benchmarks import faults, many_environments
from benchmarks.learning import __main__ as learning

Main = Callable[[Sequence[str]], int]


@pytest.mark.parametrize(
    ("main", "arguments", "told"),
    [
        (many_environments.main, ["--seeds", "0"], "--seeds: expected a whole number of at least 1, got '0'"),
        (many_environments.main, ["--seeds", "two"], "--seeds: expected a whole number of at least 1, got 'two'"),
        (faults.main, ["--kills", "-1"], "--kills: expected a whole number of at least 0, got '-1'"),
        (faults.main, ["--kills", "0", "--kills-only"], "--kills: with --kills-only, expected a whole number of at"),
        (faults.main, ["--seed", "1.5"], "--seed: expected a whole number of at least 0, got '1.5'"),
        (learning.main, ["--seeds", "0"], "--seeds: expected a whole number of at least 1, got '0'"),
        (learning.main, ["--jobs", "0"], "--jobs: expected a whole number of at least 1, got '0'"),
    ],
)
def test_a_bad_count_is_refused(
    main: Main, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


def test_a_kept_folder_must_be_new(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        faults.main(["--keep", str(tmp_path)])
    assert ended.value.code == 2
    assert f"expected a new folder, and {tmp_path} exists" in capsys.readouterr().err
