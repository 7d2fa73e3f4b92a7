"""What learner and collector hand each other: turns over a pipe, weights over a shared file.

Turns are messages on a pipe, so a dead partner is noticed at once: its end closes. Weights live in a memory-mapped
file with two slots. Version v goes to slot v mod 2, and the collector copies version v when the turn that names it
arrives; the learner publishes v + 2 only after that turn's chunk came back, so neither waits for the other and
nothing half written is ever read. The first word of the file is the collector's sign of life.
"""

import json
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors.numpy
import torch

from rl_core.networks import Params

AnyArray = npt.NDArray[np.generic]

_METADATA_KEY = "seedbed"
_HEADER_WORDS = 2  # one int64: vector steps taken by the collector


def send(connection: Connection, kind: str, arrays: Mapping[str, AnyArray] | None = None, **info: object) -> None:
    """Send one message: a kind, a few JSON values and named arrays. Nothing is pickled."""
    header = json.dumps({"kind": kind, **info})
    connection.send_bytes(header.encode())
    connection.send_bytes(safetensors.numpy.save(dict(arrays)) if arrays else b"")


def receive(connection: Connection) -> tuple[dict[str, Any], dict[str, AnyArray]]:
    """Receive what `send` sent: the JSON values with the kind under "kind", and the arrays.

    Raises:
        EOFError: the other side is gone.
    """
    header: dict[str, Any] = json.loads(connection.recv_bytes())
    body = connection.recv_bytes()
    return header, safetensors.numpy.load(body) if body else {}


class WeightBoard:
    """The shared file of actor weights.

    Args:
        path: the file; made if it does not exist.
        like: an actor's parameters; their names, sorted, and their shapes fix the layout.
    """

    def __init__(self, path: Path, like: Params) -> None:
        self._shapes = {name: like[name].shape for name in sorted(like)}
        size = sum(shape.numel() for shape in self._shapes.values())
        words = _HEADER_WORDS + 2 * size
        if not path.exists() or path.stat().st_size != 4 * words:
            path.write_bytes(bytes(4 * words))
        words_map = np.memmap(path, np.float32, "r+", shape=(words,))
        self._life = words_map[:_HEADER_WORDS].view(np.int64)
        self._slots = torch.from_numpy(words_map[_HEADER_WORDS:].reshape(2, size))

    def publish(self, version: int, params: Params) -> None:
        """Write the parameters as version `version`."""
        with torch.no_grad():
            torch.cat([params[name].reshape(-1) for name in self._shapes], out=self._slots[version % 2])

    def read(self, version: int) -> Params:
        """Return a copy of version `version`."""
        flat = self._slots[version % 2].clone()
        parts = torch.split(flat, [shape.numel() for shape in self._shapes.values()])
        return {name: part.view(shape) for (name, shape), part in zip(self._shapes.items(), parts, strict=True)}

    def beat(self) -> None:
        """Count one vector step of the collector."""
        self._life += 1

    @property
    def beats(self) -> int:
        """Vector steps counted so far."""
        return int(self._life[0])
