"""The fault suite in short: runs killed through the command line end with the bytes of one that was left alone."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from benchmarks import faults

MARK = "SEEDBED_TEST_MARK"  # finds the suite's processes again, whoever their parent is


def marked(mark: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                yield process
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue


def test_killed_runs_end_byte_identical_and_leave_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    assert faults.main(["--kills", "2", "--kills-only", "--seed", "7"]) == 0, capfd.readouterr().out
    closing = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert closing["figures"] == {"kills": 2, "mismatches": 0, "leaks": 0}


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_suite_leaves_nothing(signum: signal.Signals, tmp_path: Path) -> None:
    suite = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.faults", "--kills", "1", "--kills-only"],
        cwd=Path(faults.__file__).parents[1],
        env={**os.environ, "TMPDIR": str(tmp_path), MARK: str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        deadline = time.monotonic() + 120
        while not any(tmp_path.glob("*/reference/.seedbed/state/sac/0/checkpoint-*.seedbed")):
            assert suite.poll() is None, suite.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.05)
        suite.send_signal(signum)  # to the suite alone: its children must not outlive it either
        output, _ = suite.communicate(timeout=60)
        assert suite.returncode == 128 + signum, output
        assert "Traceback" not in output
        assert list(tmp_path.iterdir()) == []
        assert not list(marked(str(tmp_path)))
    finally:
        for process in marked(str(tmp_path)):
            process.kill()
