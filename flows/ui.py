"""`ui`: the Prefect server, a worker for its sweeps and the report over http, together."""

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from flows import server
from flows.experiment import STATE_FOLDER, Experiment
from flows.processes import Processes
from flows.stages import CODE_ROOT, exclusive
from flows.work import Stopper
from rl_core.errors import SettingsError

POOL = "seedbed"
DEPLOYMENT = "seedbed"
POOL_TIMEOUT_S = 60.0
WATCH_S = 0.5


def serve(experiment: Experiment, *, port: int | None = None, report_port: int | None = None) -> int:
    """Serve until a signal or the end of one of the processes; return the exit code."""
    lock = experiment.directory / STATE_FOLDER / "locks" / "ui.lock"
    with exclusive(lock, refusal=f"another ui of {experiment.directory} is running"):
        return _serve_alone(experiment, port=port, report_port=report_port)


def _serve_alone(experiment: Experiment, *, port: int | None, report_port: int | None) -> int:
    port = server.DEFAULT_PORT if port is None else port
    report_port = server.DEFAULT_REPORT_PORT if report_port is None else report_port
    if port == report_port:
        raise SettingsError(f"--port and --report-port are both {port}; give two")
    for option, number in (("--port", port), ("--report-port", report_port)):
        _require_free(option, number)
    processes = Processes()
    stopper = Stopper(processes, processes)
    stopper.arm()
    try:
        with _report_server(experiment.directory / "report", report_port):
            return _serve(experiment.directory, processes, port=port, report_port=report_port)
    except KeyboardInterrupt:
        return 128 + (stopper.signum or 0)
    finally:
        server.forget(experiment.directory)
        processes.stop_and_wait()


def _serve(directory: Path, processes: Processes, *, port: int, report_port: int) -> int:
    print("starting; this takes up to half a minute", flush=True)
    started = server.start(processes, directory, port=port, ui=True)
    started.wait_until_ready()
    _end_orphans(started.api_url)
    worker = _prefect(processes, directory, "worker", "start", "--pool", POOL, "--type", "process", "--name", POOL)
    _wait_for_pool(started.api_url)
    os.environ |= {"SEEDBED_CODE": str(CODE_ROOT), "SEEDBED_EXPERIMENT": str(directory)}
    deployed = _prefect(processes, directory, "--no-prompt", "deploy", "--all", folder=CODE_ROOT).wait()
    if deployed:
        raise server.ServerError(f"the sweep could not be deployed; see {_log(directory, 'deploy')}")
    report_url = f"http://{server.HOST}:{report_port}/"
    server.record(directory, api_url=started.api_url, report_url=report_url)
    print(f"sweeps: http://{server.HOST}:{port}/deployments\nreport: {report_url}\nCtrl-C stops all", flush=True)
    while worker.poll() is None and started.process.poll() is None:
        time.sleep(WATCH_S)
    name, log = ("worker", _log(directory, "worker")) if worker.poll() is not None else ("server", started.log)
    raise server.ServerError(f"the {name} ended by itself; see {log}")


def _prefect(processes: Processes, directory: Path, *arguments: str, folder: Path | None = None) -> Any:
    verb = next(word for word in arguments if not word.startswith("-"))
    with _log(directory, verb).open("wb") as output:
        command = [sys.executable, "-m", "prefect", *arguments]
        return processes.start(command, directory=folder or directory, output=output.fileno())


def _log(directory: Path, name: str) -> Path:
    return directory / STATE_FOLDER / "logs" / f"{name}.log"


def _wait_for_pool(api_url: str) -> None:
    """Wait for the worker to make its pool."""
    deadline = time.monotonic() + POOL_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            server.call(api_url, f"/work_pools/{POOL}")
        except OSError:
            time.sleep(WATCH_S)
        else:
            return
    raise server.ServerError(f"the worker made no pool in {POOL_TIMEOUT_S:.0f} s")


def _end_orphans(api_url: str) -> None:
    """Close the sweeps of a server that was killed: they would hold the deployment's only slot."""
    cut_short = {"state": {"type": {"any_": ["PENDING", "RUNNING", "CANCELLING"]}}}
    query = {"flow_runs": cut_short, "deployments": {"name": {"any_": [DEPLOYMENT]}}}
    state = {"type": "CRASHED", "name": "Crashed", "message": "Its server was stopped."}
    for run in server.call(api_url, "/flow_runs/filter", query):
        server.call(api_url, f"/flow_runs/{run['id']}/set_state", {"state": state, "force": True})


def _require_free(option: str, port: int) -> None:
    if not 0 < port < 65536:
        raise SettingsError(f"{option} {port}: a port lies between 1 and 65535")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((server.HOST, port))
        except OSError as error:
            raise SettingsError(f"{option} {port}: {error.strerror}; give another with {option} N") from None


class _ReportHandler(SimpleHTTPRequestHandler):
    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        if code == HTTPStatus.NOT_FOUND:
            explain = "There is no report yet; a sweep writes one."
        super().send_error(code, message, explain)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the terminal shows addresses."""


@contextmanager
def _report_server(folder: Path, port: int) -> Iterator[None]:
    handler = partial(_ReportHandler, directory=str(folder))
    with ThreadingHTTPServer((server.HOST, port), handler) as http:
        http.daemon_threads = True
        thread = threading.Thread(target=http.serve_forever, daemon=True)
        thread.start()
        try:
            yield
        finally:
            http.shutdown()
