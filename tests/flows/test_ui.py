"""The form, a schedule and the report, over the addresses that `ui` prints, as a browser uses them."""

import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from flows import server

from .helpers import environment, processes_in


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return str(answer.read().decode())


@pytest.fixture
def ui(copied: Path) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    port, report_port = free_port(), free_port()
    ports = ["--port", str(port), "--report-port", str(report_port)]
    command = [sys.executable, "-m", "flows", "ui", *ports]
    process = subprocess.Popen(command, cwd=copied, env=environment(), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("Ctrl-C"):
            break
    else:
        pytest.fail("ui ended by itself")
    yield process, f"http://127.0.0.1:{port}/api", f"http://127.0.0.1:{report_port}/"
    process.kill()
    process.communicate()


def test_the_form_runs_a_sweep_a_schedule_can_be_set_and_ctrl_c_ends_all(
    ui: tuple[subprocess.Popen[str], str, str], copied: Path
) -> None:
    process, api, report = ui
    call = partial(server.call, api)
    assert get(report) == (copied / "report/index.html").read_text()
    assert "<title>Prefect" in get(api.removesuffix("api"))

    deployment = call("/deployments/name/sweep/seedbed")
    form = deployment["parameter_openapi_schema"]["properties"]
    assert {name: bool(entry["description"]) for name, entry in form.items()} == dict.fromkeys(
        ("directory", "arms", "seeds", "jobs", "fresh"), True
    )
    assert deployment["parameters"] == {"directory": str(copied)}
    assert deployment["global_concurrency_limit"]["limit"] == 1

    started = call(
        f"/deployments/{deployment['id']}/create_flow_run",
        {"parameters": {"directory": str(copied), "arms": ["plain"]}, "state": {"type": "SCHEDULED"}},
    )
    deadline = time.monotonic() + 90
    while (state := call(f"/flow_runs/{started['id']}")["state"])["type"] != "COMPLETED":
        assert state["type"] in ("SCHEDULED", "PENDING", "RUNNING"), state
        assert time.monotonic() < deadline
        time.sleep(0.5)
    query = {"logs": {"flow_run_id": {"any_": [started["id"]]}}}
    while "nothing to do: 1 run fresh" not in (logs := [log["message"] for log in call("/logs/filter", query)]):
        assert time.monotonic() < deadline, logs  # logs arrive a little later than states
        time.sleep(0.5)

    daily = [{"schedule": {"interval": 86_400}, "active": True}]
    assert call(f"/deployments/{deployment['id']}/schedules", daily)[0]["active"] is True

    stopped = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 130
    assert time.monotonic() - stopped < 5
    assert processes_in(copied) == []
