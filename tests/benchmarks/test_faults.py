"""The fault suite in short: runs killed through the command line end with the bytes of one that was left alone."""

import json

import pytest

from benchmarks import faults


def test_killed_runs_end_byte_identical_and_leave_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    assert faults.main(["--kills", "2", "--kills-only", "--seed", "7"]) == 0, capfd.readouterr().out
    closing = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert closing["figures"] == {"kills": 2, "mismatches": 0, "leaks": 0}
