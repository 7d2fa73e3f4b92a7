"""The learner's end of the hand-over: starts the collector, gives it turns, notices when it fails."""

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
from rl_core.config import RunSettings
from rl_core.errors import TrainingError
from rl_core.handover import AnyArray, WeightBoard, receive, send
from rl_core.metrics import Array
from rl_core.networks import Params
from rl_core.replay import Layout

_START_TIMEOUT_S = 120.0  # loading torch and MuJoCo on a busy machine
_TICK_S = 0.5
_JOIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Chunk:
    """What came back from one turn."""

    counter: int  # transitions in the ring
    episodes: Array  # finished episodes, (ended, columns)


class CollectorLink:
    """A running collector process. Close it, also after a failure; closing twice is harmless."""

    def __init__(self, settings: RunSettings, seed: int, *, layout: Layout, folder: Path, actor: Params) -> None:
        self._hang_timeout_s = settings.hang_timeout_s
        weights_path = folder / "weights.bin"
        self._board = WeightBoard(weights_path, actor)
        plan = collector.CollectorPlan(
            settings=settings,
            seed=seed,
            layout=layout,
            ring_path=folder / "replay.bin",
            weights_path=weights_path,
            actor_shapes={name: tuple(tensor.shape) for name, tensor in actor.items()},
            parent_pid=os.getpid(),
        )
        context = multiprocessing.get_context("spawn")  # fork is unsafe beside CUDA and torch's threads
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=collector.main, args=(plan, theirs), name="collector", daemon=True)
        self._process.start()
        theirs.close()

    def wait_ready(self) -> None:
        """Wait until the collector has built its environments."""
        self._receive("ready", _START_TIMEOUT_S)

    def publish(self, version: int, actor: Params) -> None:
        """Make the actor's weights readable as `version`."""
        self._board.publish(version, actor)

    def request(self, *, vector_steps: int, version: int) -> None:
        """Have the collector gather one chunk with the weights of `version`."""
        self._send("collect", vector_steps=vector_steps, version=version)

    def wait_chunk(self) -> Chunk:
        """Wait for the chunk that was requested.

        Raises:
            TrainingError: the collector raised, was killed, or hangs; the message says which.
        """
        info, arrays = self._receive("chunk", self._hang_timeout_s)
        return Chunk(info["counter"], arrays["episodes"])  # type: ignore[arg-type]

    def state(self) -> dict[str, AnyArray]:
        """Return the state of the collector, which must be between two turns."""
        self._send("state")
        return self._receive("state", self._hang_timeout_s)[1]

    def restore(self, arrays: Mapping[str, AnyArray], counter: int) -> None:
        """Put the collector into a state that `state` returned."""
        self._send("restore", arrays, counter=counter)

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
            raise TrainingError(self._obituary()) from None

    def _receive(self, kind: str, timeout_s: float) -> tuple[dict[str, Any], dict[str, AnyArray]]:
        beats, deadline = self._board.beats, time.monotonic() + timeout_s
        while not wait([self._connection], _TICK_S):
            if self._board.beats != beats:
                beats, deadline = self._board.beats, time.monotonic() + timeout_s
            if time.monotonic() > deadline:
                self._process.kill()
                raise TrainingError(f"the collector hangs: no vector step for {timeout_s:g} s; it was ended")
        try:
            info, arrays = receive(self._connection)
        except (EOFError, OSError):
            raise TrainingError(self._obituary()) from None
        if info["kind"] == "error":
            raise TrainingError(f"the collector failed:\n{info['traceback']}")
        if info["kind"] != kind:
            raise TrainingError(f"the collector answered {info['kind']!r} instead of {kind!r}")
        return info, arrays

    def _obituary(self) -> str:
        self._process.join(_JOIN_S)
        code = self._process.exitcode
        if code is None:
            return "the collector closed its pipe but is still running"
        if code < 0:
            return f"the collector was killed by {signal.Signals(-code).name} (out of memory, or by hand)"
        return f"the collector ended with exit code {code}"
