"""The training state as flat named arrays and JSON: save it, load it, compare two of them.

A checkpoint is one file: 64 hexadecimal digits of SHA-256, a newline, then safetensors with one metadata key that
holds sorted JSON. A file whose digest does not fit is damaged. Nothing is pickled, so a stranger's checkpoint can
run no code.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.numpy

from rl_core.files import write_atomic

AnyArray = npt.NDArray[np.generic]

_DIGEST_CHARS = 64
_METADATA_KEY = "seedbed"


class DamagedCheckpoint(ValueError):  # noqa: N818
    """A checkpoint that cannot be read as it was written."""


@dataclass(frozen=True, slots=True)
class TrainingState:
    """Everything a run needs to go on, apart from the rows of the replay ring."""

    arrays: Mapping[str, AnyArray]
    info: Mapping[str, Any] = field(default_factory=dict)  # JSON: counters, file lengths


def save(path: Path, state: TrainingState) -> None:
    """Write a checkpoint atomically."""
    arrays = {name: np.asarray(array, order="C") for name, array in state.arrays.items()}
    info = json.dumps(state.info, sort_keys=True, allow_nan=False)
    body = safetensors.numpy.save(arrays, {_METADATA_KEY: info})
    write_atomic(path, hashlib.sha256(body).hexdigest().encode() + b"\n" + body)


def load(path: Path) -> TrainingState:
    """Read a checkpoint.

    Raises:
        DamagedCheckpoint: the file is missing, cut off, altered, or not a checkpoint.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DamagedCheckpoint(f"{path}: cannot be read ({error.strerror})") from None
    digest, body = raw[:_DIGEST_CHARS], raw[_DIGEST_CHARS + 1 :]
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise DamagedCheckpoint(f"{path}: the checksum does not fit")
    try:
        arrays = safetensors.numpy.load(body)
        header_size = int.from_bytes(body[:8], "little")
        info = json.loads(json.loads(body[8 : 8 + header_size])["__metadata__"][_METADATA_KEY])
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise DamagedCheckpoint(f"{path}: not a checkpoint ({error})") from None
    return TrainingState(arrays, info)


def compare(a: TrainingState, b: TrainingState) -> list[str]:
    """Return the names of the leaves that differ, bit for bit: arrays first, then `info.` keys, each sorted."""
    arrays = [name for name in sorted({*a.arrays, *b.arrays}) if not _same(a.arrays.get(name), b.arrays.get(name))]
    info = [f"info.{key}" for key in sorted({*a.info, *b.info}) if a.info.get(key) != b.info.get(key)]
    return arrays + info


def _same(a: AnyArray | None, b: AnyArray | None) -> bool:
    return a is not None and b is not None and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
