"""What learner and collector hand each other: turns over a pipe, weights over a shared file.

Turns are messages on a pipe, so a dead partner is noticed at once: its end closes. Weights live in a memory-mapped
file with one slot more than there can be turns under way. Version v goes to slot v mod slots, and the collector
copies version v when it begins the turn that names it; the learner writes to that slot again only after the turn's
chunk came back, so neither waits for the other and nothing half written is ever read. The first word of the file is
the collector's sign of life.
"""

import json
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch

from rl_core.arrays import AnyArray
from rl_core.networks import Params

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
    """The shared file of what the collector needs to act: the actor's tensors and its normaliser's.

    Args:
        path: the file; made if it does not exist.
        shapes: the tensors' shapes by name; the names, sorted, fix the layout.
        versions_kept: slots; a version stands until that many newer ones have been published.
    """

    def __init__(self, path: Path, shapes: Mapping[str, tuple[int, ...]], *, versions_kept: int = 2) -> None:
        self._shapes = {name: torch.Size(shapes[name]) for name in sorted(shapes)}
        size = sum(shape.numel() for shape in self._shapes.values())
        words = _HEADER_WORDS + versions_kept * size
        if not path.exists() or path.stat().st_size != 4 * words:
            path.write_bytes(bytes(4 * words))
        words_map = np.memmap(path, np.float32, "r+", shape=(words,))
        self._life = words_map[:_HEADER_WORDS].view(np.int64)
        self._slots = torch.from_numpy(words_map[_HEADER_WORDS:].reshape(versions_kept, size))

    def publish(self, version: int, params: Params) -> None:
        """Write the parameters as version `version`; from a GPU by one transfer."""
        slot = self._slots[version % len(self._slots)]
        parts = [params[name].detach().reshape(-1) for name in self._shapes]
        if parts[0].device == slot.device:
            torch.cat(parts, out=slot)
        else:
            slot.copy_(torch.cat(parts))

    def read(self, version: int) -> Params:
        """Return a copy of version `version`."""
        flat = self._slots[version % len(self._slots)].clone()
        parts = torch.split(flat, [shape.numel() for shape in self._shapes.values()])
        return {name: part.view(shape) for (name, shape), part in zip(self._shapes.items(), parts, strict=True)}

    def beat(self) -> None:
        """Count one vector step of the collector."""
        self._life += 1

    @property
    def beats(self) -> int:
        """Vector steps counted so far."""
        return int(self._life[0])
