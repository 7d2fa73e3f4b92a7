"""Resumable checkpoints in a folder: two complete ones are kept, and a damaged one is passed over with a warning."""

import dataclasses
import re
import warnings
from collections.abc import Callable
from pathlib import Path

from rl_core import state as states
from rl_core.state import TrainingState

KEPT = 2
_NAME = re.compile(r"checkpoint-(\d+)\.seedbed")


def save(folder: Path, key: str, number: int, state: TrainingState) -> None:
    """Write checkpoint `number` for the run that `key` identifies; keep it and the one before it."""
    keyed = dataclasses.replace(state, info={**state.info, "key": key, "number": number})
    states.save(folder / f"checkpoint-{number}.seedbed", keyed)
    paths = _newest_first(folder)
    # A higher number than the newest is not of this run, or was passed over as damaged.
    before = [path for path in paths if _number(path) < number]
    for path in paths:
        if _number(path) > number or path in before[KEPT - 1 :]:
            path.unlink()


def latest(folder: Path, key: str, examine: Callable[[TrainingState], str | None]) -> TrainingState | None:
    """Return the newest checkpoint that the run can go on from, or None; warn of each that it cannot.

    Args:
        folder: where they are.
        key: identifies the run.
        examine: says why a checkpoint is of no use beside the other files, or nothing.
    """
    paths = _newest_first(folder)
    for path in paths:
        try:
            state = states.load(path)
            why = _mismatch(state, path) or (examine(state) if state.info.get("key") == key else None)
        except states.DamagedCheckpoint as damage:
            state, why = None, str(damage)
        if why is None and state is not None and state.info.get("key") != key:
            _warn(f"{folder}: an interrupted state of other settings or other code is discarded", "starting over")
            return None
        if why is None:
            return state
        _warn(why, "starting over" if path == paths[-1] else "falling back to the checkpoint before it")
    return None


def any_in(folder: Path) -> bool:
    """Whether there is a checkpoint to go on from."""
    return bool(_newest_first(folder))


def _mismatch(state: TrainingState, path: Path) -> str | None:
    if not isinstance(state.info, dict) or state.info.get("number") != _number(path):
        return f"{path}: this is not the checkpoint that its name says"
    return None


def _warn(what: str, then: str) -> None:
    warnings.warn(f"{what}; {then}", stacklevel=3)


def remove_all(folder: Path) -> None:
    """Remove every checkpoint of a folder."""
    for path in _newest_first(folder):
        path.unlink()


def _newest_first(folder: Path) -> list[Path]:
    found = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)] if folder.is_dir() else []
    return sorted(found, key=_number, reverse=True)


def _number(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else -1
