"""Resumable checkpoints in a folder: two complete ones are kept, and a damaged one is passed over with a warning."""

import dataclasses
import re
import warnings
from pathlib import Path

from rl_core import state as states
from rl_core.state import TrainingState

KEPT = 2
_NAME = re.compile(r"checkpoint-(\d+)\.seedbed")


def save(folder: Path, key: str, number: int, state: TrainingState) -> None:
    """Write checkpoint `number` for the run that `key` identifies and remove all but the newest two."""
    keyed = dataclasses.replace(state, info={**state.info, "key": key})
    states.save(folder / f"checkpoint-{number}.seedbed", keyed)
    for path in _newest_first(folder)[KEPT:]:
        path.unlink()


def latest(folder: Path, key: str) -> TrainingState | None:
    """Return the newest undamaged checkpoint of the run that `key` identifies, or None.

    The ring must stand beside it: without the rows a checkpoint is worth nothing.
    """
    if not (folder / "replay.bin").exists():
        return None
    for path in _newest_first(folder):
        try:
            state = states.load(path)
        except states.DamagedCheckpoint as damage:
            warnings.warn(f"{damage}; falling back to the checkpoint before it", stacklevel=2)
            continue
        return state if state.info.get("key") == key else None
    return None


def remove_all(folder: Path) -> None:
    """Remove every checkpoint of a folder."""
    for path in _newest_first(folder):
        path.unlink()


def _newest_first(folder: Path) -> list[Path]:
    numbered = [(int(match[1]), path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(numbered, reverse=True)]
