"""The learner's end of the hand-over: starts the collector, gives it turns, notices when it fails."""

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from rl_core import collector
from rl_core.arrays import AnyArray, Array
from rl_core.config import RunSettings
from rl_core.errors import NotFiniteError, TrainingError
from rl_core.handover import WeightBoard, receive, send
from rl_core.networks import Params
from rl_core.replay import Layout
from rl_core.trace import Part, span

_START_TIMEOUT_S = 120.0  # loading torch and MuJoCo on a busy machine
_TICK_S = 0.5
_TURNS_AHEAD_ASYNC = 4
_JOIN_S = 1.0


def turns_ahead(settings: RunSettings) -> int:
    """Return how many turns may be under way at once: in `async` mode some, so that the collector never idles."""
    return _TURNS_AHEAD_ASYNC if settings.collection == "async" else 1


@dataclass(frozen=True, slots=True)
class Chunk:
    """What came back from one turn."""

    counter: int  # transitions in the ring
    episodes: Array  # finished episodes, (ended, columns)


class CollectorLink:
    """A running collector process. Close it, also after a failure; closing twice is harmless."""

    def __init__(
        self,
        settings: RunSettings,
        seed: int,
        *,
        layout: Layout,
        folder: Path,
        weights: Params,
        trace: Part | None = None,
    ) -> None:
        self._hang_timeout_s = settings.hang_timeout_s
        self._turns_ahead = turns_ahead(settings)
        self.under_way = 0  # turns requested and not received
        weights_path = folder / "weights.bin"
        shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
        self._board = WeightBoard(weights_path, shapes, versions_kept=self._turns_ahead + 1)
        plan = collector.CollectorPlan(
            settings=settings,
            seed=seed,
            layout=layout,
            ring_path=folder / "replay.bin",
            weights_path=weights_path,
            weight_shapes=shapes,
            versions_kept=self._turns_ahead + 1,
            parent_pid=os.getpid(),
            trace=trace,
        )
        self._watch = _Watch(self._board, self._hang_timeout_s)
        context = multiprocessing.get_context("spawn")  # fork is unsafe beside CUDA and torch's threads
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=collector.main, args=(plan, theirs), name="collector", daemon=True)
        self._process.start()
        theirs.close()

    def wait_ready(self) -> None:
        """Wait until the collector has built its environments."""
        self._receive("ready", _START_TIMEOUT_S)

    def publish(self, version: int, weights: Params) -> None:
        """Make weights readable as `version`."""
        self._board.publish(version, weights)

    @property
    def can_request(self) -> bool:
        """Whether one more turn may be under way: the ring's slack and the weight slots are made for so many."""
        return self.under_way < self._turns_ahead

    def request(self, *, vector_steps: int, version: int) -> None:
        """Have the collector gather one chunk with the weights of `version`.

        Raises:
            RuntimeError: too many turns are under way; rows still to be read would be overwritten.
        """
        if not self.can_request:
            raise RuntimeError(f"{self.under_way} turns are under way, no more than {self._turns_ahead} may be")
        self._send("collect", vector_steps=vector_steps, version=version)
        if not self.under_way:
            self._watch = _Watch(self._board, self._hang_timeout_s)  # it was idle
        self.under_way += 1

    def wait_chunk(self) -> Chunk:
        """Wait for the oldest chunk that was requested.

        Raises:
            TrainingError: the collector raised, was killed, or hangs; the message says which.
        """
        info, arrays = self._receive("chunk", self._hang_timeout_s)
        self.under_way -= 1
        return Chunk(info["counter"], arrays["episodes"])  # type: ignore[arg-type]

    def chunk_is_there(self) -> bool:
        """Whether `wait_chunk` would return, or raise, at once.

        Raises:
            TrainingError: the collector hangs.
        """
        if wait([self._connection], 0):
            self._watch = _Watch(self._board, self._hang_timeout_s)
            return True
        self._require_life(self._watch)
        return False

    def state(self) -> dict[str, AnyArray]:
        """Return the state of the collector, which must be between two turns."""
        self._send("state")
        return self._receive("state", self._hang_timeout_s)[1]

    def restore(self, arrays: Mapping[str, AnyArray], counter: int) -> None:
        """Put the collector into a state that `state` returned; raise TrainingError if it does not fit."""
        self._send("restore", arrays, counter=counter)
        self._receive("restored", self._hang_timeout_s)

    def close(self) -> None:
        """End the collector process and wait for it."""
        self._connection.close()  # the collector reads end of file and leaves
        self._process.join(_JOIN_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _send(self, kind: str, arrays: Mapping[str, AnyArray] | None = None, **info: object) -> None:
        try:
            send(self._connection, kind, arrays, **info)
        except OSError:
            self._raise_last_words()
            raise TrainingError(self._obituary()) from None

    def _raise_last_words(self) -> None:
        """Raise what a collector that has ended said before; chunks that came first are dropped with the run."""
        with contextlib.suppress(EOFError, OSError):
            while wait([self._connection], 0):
                _require_no_error(receive(self._connection)[0])

    def _receive(self, kind: str, timeout_s: float) -> tuple[dict[str, Any], dict[str, AnyArray]]:
        watch = _Watch(self._board, timeout_s)
        with span("wait"):
            while not wait([self._connection], _TICK_S):
                self._require_life(watch)
        try:
            info, arrays = receive(self._connection)
        except (EOFError, OSError):
            raise TrainingError(self._obituary()) from None
        _require_no_error(info)
        if info["kind"] != kind:
            raise TrainingError(f"the collector answered {info['kind']!r} instead of {kind!r}")
        return info, arrays

    def _require_life(self, watch: "_Watch") -> None:
        if watch.expired():
            self._process.kill()
            what = "no vector step" if watch.started else "it did not start"
            raise TrainingError(f"the collector hangs: {what} for {watch.timeout_s:g} s; it was ended")

    def _obituary(self) -> str:
        self._process.join(_JOIN_S)
        code = self._process.exitcode
        if code is None:
            return "the collector closed its pipe but is still running"
        if code < 0:
            return f"the collector was killed by {signal.Signals(-code).name} (out of memory, or by hand)"
        return f"the collector ended with exit code {code}"


def _require_no_error(info: Mapping[str, Any]) -> None:
    if info["kind"] == "error":
        kind = NotFiniteError if info["not_finite"] else TrainingError
        raise kind(f"the collector failed: {info['reason']}\n{info['traceback']}")


class _Watch:
    """Whether the collector has taken a vector step within the last `timeout_s` seconds."""

    def __init__(self, board: WeightBoard, timeout_s: float, *, started: bool = True) -> None:
        self.timeout_s, self.started = timeout_s, started
        self._board = board
        self._note()

    def expired(self) -> bool:
        if self._board.beats != self._beats:
            self._note()
        return time.monotonic() > self._deadline

    def _note(self) -> None:
        self._beats, self._deadline = self._board.beats, time.monotonic() + self.timeout_s
