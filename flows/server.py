"""The Prefect server process: a temporary one for a sweep, or the one that `ui` keeps."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from flows.environment import SERVER_START_TIMEOUT_S
from flows.experiment import STATE_FOLDER
from flows.processes import Processes
from rl_core.files import write_json
from rl_core.reading import parse_json, read_object

HOST = "127.0.0.1"
DEFAULT_PORT, DEFAULT_REPORT_PORT = 4200, 4201
CALL_TIMEOUT_S = 10.0
BUSY_PATIENCE_S = 15.0
BUSY_PAUSE_S = 0.2


class ServerError(RuntimeError):
    """The server did not start; the message is one line."""


def running_url(directory: Path) -> str | None:
    """Return the API address of the experiment's own `ui` server, if it answers."""
    url = _recorded(directory).get("api_url")
    return url if isinstance(url, str) and healthy(url) else None


def report_url(directory: Path) -> str:
    """Return the address at which the experiment's `ui` shows the report, or will by default when it runs."""
    url = _recorded(directory).get("report_url")
    return url if isinstance(url, str) and running_url(directory) else f"http://{HOST}:{DEFAULT_REPORT_PORT}/"


def record(directory: Path, *, api_url: str, report_url: str) -> None:
    entry = {"api_url": api_url, "report_url": report_url}
    write_json(_record(directory), entry)


def forget(directory: Path) -> None:
    _record(directory).unlink(missing_ok=True)


def _record(directory: Path) -> Path:
    return directory / STATE_FOLDER / "server.json"


def _recorded(directory: Path) -> dict[str, object]:
    try:
        return read_object(_record(directory))
    except (OSError, ValueError):
        return {}


def healthy(api_url: str) -> bool:
    try:
        return call(api_url, "/health", patience_s=0) is True
    except (OSError, ValueError, HTTPException):  # no address, or no answer of ours
        return False


def call(api_url: str, path: str, body: object = None, *, patience_s: float = BUSY_PATIENCE_S) -> Any:
    """Ask the server as its UI does: GET, or POST with a body; raise OSError if it does not answer well.

    The server answers 503 when its database is locked: it has done nothing, and its own clients ask again. So do we,
    for patience_s.
    """
    request = urllib.request.Request(
        api_url + path,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the address is this machine's
    deadline = time.monotonic() + patience_s
    while True:
        try:
            with opener.open(request, timeout=CALL_TIMEOUT_S) as answer:
                return parse_json(answer.read())
        except HTTPError as error:
            with error:
                if error.code != HTTPStatus.SERVICE_UNAVAILABLE or time.monotonic() >= deadline:
                    raise
        time.sleep(BUSY_PAUSE_S)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def start(processes: Processes, directory: Path, *, port: int, ui: bool) -> "Server":
    """Start a server without waiting for it."""
    command = [sys.executable, "-m", "uvicorn", "--factory", "prefect.server.api.server:create_app"]
    command += ["--host", HOST, "--port", str(port), "--log-level", "error", "--lifespan", "on"]
    log = directory / STATE_FOLDER / "logs" / "server.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    os.environ["PREFECT_API_URL"] = f"http://{HOST}:{port}/api"
    os.environ["PREFECT_SERVER_UI_API_URL"] = f"http://{HOST}:{port}/api"
    os.environ["PREFECT_UI_ENABLED"] = "1" if ui else "0"
    with log.open("wb") as output:
        process = processes.start(command, directory=directory, output=output.fileno())
    return Server(process, api_url=os.environ["PREFECT_API_URL"], log=log)


class Server:
    """A started server."""

    def __init__(self, process: subprocess.Popen[bytes], *, api_url: str, log: Path) -> None:
        self.process = process
        self.api_url = api_url
        self.log = log

    def wait_until_ready(self) -> None:
        """Return once it answers; raise ServerError if it ends or takes too long."""
        deadline = time.monotonic() + SERVER_START_TIMEOUT_S
        while not healthy(self.api_url):
            if self.process.poll() is not None:
                raise ServerError(f"the Prefect server ended at once; see {self.log}")
            if time.monotonic() > deadline:
                raise ServerError(f"the Prefect server did not answer in {SERVER_START_TIMEOUT_S} s; see {self.log}")
            time.sleep(0.1)
