"""Whether a checkpoint still fits the files beside it: an interrupted run goes on from nothing else."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rl_core.errors import TrainingError
from rl_core.replay import Layout, ReplayRing
from rl_core.state import TrainingState

RING_FILE = "replay.bin"


def examiner(
    folder: Path, layout: Layout, learner: Mapping[str, tuple[int, ...]]
) -> Callable[[TrainingState], str | None]:
    """Return what says why a checkpoint cannot be gone on from, or None if it can.

    Args:
        folder: the run's scratch folder.
        layout: of its ring.
        learner: the shapes of the learner's tensors by name.
    """

    def examine(state: TrainingState) -> str | None:
        try:
            return (
                _wrong_learner(state, learner)
                or _wrong_ring(folder / RING_FILE, layout, state.info)
                or _wrong_files(folder / "work", state.info)
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            return f"{folder}: the checkpoint is not one of this version"

    return examine


def _wrong_learner(state: TrainingState, learner: Mapping[str, tuple[int, ...]]) -> str | None:
    for name, shape in learner.items():
        array = state.arrays.get(f"learner.{name}")
        if array is None or array.shape != shape or array.dtype != np.float32:
            return f"the checkpoint's tensor {name!r} does not fit the learner"
    return None


def _wrong_ring(path: Path, layout: Layout, info: Mapping[str, Any]) -> str | None:
    if not path.exists():
        return f"{path}: the replay file is missing"
    try:
        ring = ReplayRing(path, layout)
    except TrainingError as error:
        return str(error)
    if ring.fingerprint(info["turn"]["env_steps"]) != info["ring"]:
        return f"{path}: the replay file does not hold the rows that the checkpoint was taken with"
    return None


def _wrong_files(work: Path, info: Mapping[str, Any]) -> str | None:
    recorder, snapshots = info["recorder"], info["snapshots"]
    wanted = {f"{name}.csv": (length, recorder["digests"][name]) for name, length in recorder["lengths"].items()}
    wanted |= {name: (None, digest) for name, digest in snapshots.items()}
    for name, (length, digest) in wanted.items():
        path = work / name
        if not path.is_file() or hashlib.sha256(path.read_bytes()[:length]).hexdigest() != digest:
            return f"{path}: the file is not as the checkpoint left it"
    return None
