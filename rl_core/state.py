"""The training state as flat named arrays and JSON: save it, load it, compare two of them.

A checkpoint is one file: 64 hexadecimal digits of SHA-256, a newline, then safetensors with one metadata key that
holds sorted JSON. A file whose digest does not fit is damaged. Nothing is pickled, so a stranger's checkpoint can
run no code.
"""

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from rl_core.arrays import AnyArray
from rl_core.files import write_atomic
from rl_core.reading import parse_json

_DIGEST_CHARS = 64
_METADATA_KEY = "seedbed"
_LARGEST_HEADER = 20_000_000
_DTYPES: Mapping[str, np.dtype[Any]] = {  # of safetensors, little-endian
    "BOOL": np.dtype(np.bool_),
    **{
        f"{kind.upper()}{8 * size}": np.dtype(f"<{kind}{size}")
        for kind in "iuf"
        for size in (1, 2, 4, 8)
        if kind + str(size) != "f1"
    },
}


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
        with path.open("rb") as file:
            return _read(file)
    except OSError as error:
        raise DamagedCheckpoint(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedCheckpoint(f"{path}: not a checkpoint ({error})") from None


def _read(file: BufferedReader) -> TrainingState:
    """Check sizes, then the checksum, and only then read array after array: no more memory than they take."""
    size = os.fstat(file.fileno()).st_size
    digest, newline = file.read(_DIGEST_CHARS), file.read(1)
    header_size = int.from_bytes(file.read(8), "little")
    data_at = _DIGEST_CHARS + 1 + 8 + header_size
    if newline != b"\n" or header_size > min(size, _LARGEST_HEADER):
        raise ValueError("it does not begin as one")
    header: Any = parse_json(file.read(header_size))
    info: Any = parse_json(header.pop("__metadata__")[_METADATA_KEY])
    if not isinstance(info, dict) or not _fill(header, size - data_at):
        raise ValueError("its header does not fit its size")
    file.seek(_DIGEST_CHARS + 1)
    if hashlib.file_digest(file, "sha256").hexdigest().encode() != digest:
        raise ValueError("the checksum does not fit")
    arrays = {}
    for name, entry in header.items():
        file.seek(data_at + entry["data_offsets"][0])
        dtype = _DTYPES[entry["dtype"]]
        arrays[name] = np.fromfile(file, dtype, math.prod(entry["shape"])).reshape(entry["shape"])
    return TrainingState(arrays, info)


def _fill(header: Mapping[str, Any], size: int) -> bool:
    """Whether the arrays lie one behind the other, as large as their shapes say, and fill `size` bytes."""
    end = 0
    for entry in sorted(header.values(), key=lambda entry: entry["data_offsets"]):
        shape, (start, stop) = entry["shape"], entry["data_offsets"]
        if not all(type(n) is int and n >= 0 for n in (start, stop, *shape)):
            return False
        if start != end or stop - start != math.prod(shape) * _DTYPES[entry["dtype"]].itemsize:
            return False
        end = stop
    return end == size


def compare(a: TrainingState, b: TrainingState) -> list[str]:
    """Return the names of the leaves that differ, bit for bit: arrays first, then `info.` keys, each sorted."""
    arrays = [name for name in sorted({*a.arrays, *b.arrays}) if not _same(a.arrays.get(name), b.arrays.get(name))]
    info = [f"info.{key}" for key in sorted({*a.info, *b.info}) if a.info.get(key) != b.info.get(key)]
    return arrays + info


def _same(a: AnyArray | None, b: AnyArray | None) -> bool:
    return a is not None and b is not None and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
