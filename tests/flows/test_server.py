"""Calls to the Prefect server's API, against a server that answers what a test says."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.error import HTTPError

import pytest

from flows import server


class Scripted(HTTPServer):
    """Answers with the given status codes in turn, the last one for ever; keeps the bodies it got."""

    def __init__(self) -> None:
        super().__init__((server.HOST, 0), _Handler)
        self.codes: list[int] = []
        self.bodies: list[bytes] = []

    @property
    def api_url(self) -> str:
        return f"http://{server.HOST}:{self.server_port}/api"


class _Handler(BaseHTTPRequestHandler):
    server: Scripted

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        self.server.bodies.append(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        codes = self.server.codes
        self.send_response(codes.pop(0) if len(codes) > 1 else codes[0])
        self.end_headers()
        self.wfile.write(b"true")

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripted]:
    monkeypatch.setattr(server, "BUSY_PAUSE_S", 0.01)
    with Scripted() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def test_a_call_to_a_server_whose_database_is_locked_is_made_again(scripted: Scripted) -> None:
    scripted.codes = [503, 503, 200]
    assert server.call(scripted.api_url, "/flow_runs/filter", {"limit": 1}) is True
    assert scripted.bodies == [b'{"limit": 1}'] * 3


def test_patience_with_a_locked_database_ends(scripted: Scripted) -> None:
    scripted.codes = [503]
    with pytest.raises(HTTPError, match="503"):
        server.call(scripted.api_url, "/flow_runs/filter", {}, patience_s=0.05)
    assert len(scripted.bodies) > 1


@pytest.mark.parametrize("code", [404, 422, 500])
def test_any_other_refusal_is_final(scripted: Scripted, code: int) -> None:
    scripted.codes = [code, 200]
    with pytest.raises(HTTPError, match=str(code)):
        server.call(scripted.api_url, "/work_pools/none")
    assert len(scripted.bodies) == 1


def test_health_is_asked_once(scripted: Scripted) -> None:
    scripted.codes = [503, 200]
    assert not server.healthy(scripted.api_url)
    assert server.healthy(scripted.api_url)
