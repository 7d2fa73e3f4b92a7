"""`verify`: train a run again beside the recorded one and compare every byte."""

import csv
import filecmp
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from flows.experiment import STATE_FOLDER, Experiment
from flows.stages import EVALUATION_OUTPUTS, TRAIN_OUTPUTS, exclusive, recorded_key, train_key, train_marker
from rl_core.errors import SettingsError, TrainingError
from rl_core.reading import read_object
from rl_core.wording import printable, shown

OF_THE_CLOCK = ("timing.csv", "timing.json")


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One artifact: `difference` is empty if the bytes are equal."""

    name: str
    difference: str


def verify(experiment: Experiment, arm: str, seed: int) -> list[Comparison]:
    """Train the run again with the same settings, and evaluate it if it was; compare with what lies in runs/.

    Raises:
        SettingsError: the experiment does not plan this run, or it is not reproducible.
        TrainingError: there is nothing to compare with, the new run failed, or the run is being verified already.
        Interrupted: a signal asked to stop.
    """
    settings = experiment.settings(arm, seed)
    if not settings.reproducible:
        reason = settings.irreproducible_because
        raise SettingsError(f"{arm} {reason}: a rerun gives other bytes, there is nothing to verify")
    recorded = experiment.run_dir(arm, seed)
    if not (recorded / "policy.safetensors").is_file():
        raise TrainingError(f"{recorded}: no finished run to compare with; run the sweep first")
    scratch = experiment.directory / STATE_FOLDER / "verify" / arm / str(seed)
    lock = experiment.directory / STATE_FOLDER / "locks" / "verify" / arm / f"{seed}.lock"
    with exclusive(lock, refusal=f"{arm} seed {seed} is being verified"):
        shutil.rmtree(scratch, ignore_errors=True)
        try:
            _train_again(experiment, arm, seed, scratch)
            if any((recorded / name).is_file() for name in EVALUATION_OUTPUTS):
                _evaluate_again(experiment, scratch / "run")
            return list(compare(recorded, scratch / "run"))
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def expected_differences(experiment: Experiment, arm: str, seed: int) -> str:
    """Say why the recorded run need not equal a new one, as far as its markers tell; empty if it must."""
    experiment.settings(arm, seed)
    trained = recorded_key(train_marker(experiment, arm, seed))
    if trained is None:
        return "nothing here says with which settings and code the recorded run was trained"
    if trained != train_key(experiment, arm, seed):
        return (
            "the recorded run is of other settings, code, versions or kernels than now: differences are to be expected"
        )
    return ""


def _train_again(experiment: Experiment, arm: str, seed: int, scratch: Path) -> None:
    from rl_core.runner import train

    settings, key = experiment.settings(arm, seed), train_key(experiment, arm, seed)
    train(settings, seed, run_dir=scratch / "run", state_dir=scratch / "state", key=key, provenance={})


def _evaluate_again(experiment: Experiment, run: Path) -> None:
    from rl_core.evaluation import evaluate_run

    evaluation = experiment.evaluation
    evaluate_run(run / "policy.safetensors", run, episodes=evaluation.episodes, seed=evaluation.seed)


def compare(recorded: Path, again: Path) -> Iterator[Comparison]:
    """Compare all deterministic artifacts of two run folders."""
    for name in sorted(_artifacts(recorded) | _artifacts(again)):
        yield Comparison(name=name, difference=_difference(recorded / name, again / name))


def _artifacts(folder: Path) -> set[str]:
    outputs = [name for name in (*TRAIN_OUTPUTS, *EVALUATION_OUTPUTS) if name not in OF_THE_CLOCK]
    paths = [path for name in outputs for path in (folder / name, *(folder / name).glob("*"))]
    return {str(path.relative_to(folder)) for path in paths if path.is_file()}


def _difference(recorded: Path, again: Path) -> str:
    if not recorded.is_file():
        return "not recorded, but made now"
    if not again.is_file():
        return "recorded, but not made now"
    if filecmp.cmp(recorded, again, shallow=False):
        return ""
    first: Callable[[Path, Path], str | None] | None = _FIRST_DIFFERENCE.get(recorded.suffix)
    try:
        return (first and first(recorded, again)) or "the same content in other bytes"
    except (OSError, ValueError, TypeError, csv.Error) as error:
        return f"cannot be read, so the recorded file is damaged ({printable(str(error), 80)})"


def _csv_difference(recorded: Path, again: Path) -> str | None:
    with recorded.open(newline="") as left, again.open(newline="") as right:
        head: list[str] = []
        nothing: list[str] = []
        rows = zip_longest(csv.reader(left), csv.reader(right), fillvalue=nothing)
        for number, (old, new) in enumerate(rows):
            head = head or old
            for column, (before, after) in enumerate(zip_longest(old, new, fillvalue="")):
                if before != after:
                    name = head[column] if column < len(head) else f"number {column + 1}"
                    return f"row {number}, column {name}: {before or 'empty'} recorded, {after or 'empty'} now"
    return None


def _json_difference(recorded: Path, again: Path) -> str | None:
    old, new = read_object(recorded), read_object(again)
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            return f"{shown(key)}: {shown(old.get(key))} recorded, {shown(new.get(key))} now"
    return None


def _tensor_difference(recorded: Path, again: Path) -> str | None:
    from safetensors import SafetensorError

    try:
        return _first_tensor(recorded, again)
    except SafetensorError as error:
        raise ValueError(str(error)) from None


def _first_tensor(recorded: Path, again: Path) -> str | None:
    import numpy as np
    from safetensors import safe_open

    with safe_open(recorded, framework="np") as old, safe_open(again, framework="np") as new:
        if set(old.keys()) != set(new.keys()):
            return f"tensors {sorted(set(old.keys()) ^ set(new.keys()))} are in one of the two only"
        for name in sorted(old.keys()):
            before, after = old.get_tensor(name), new.get_tensor(name)
            if before.dtype != after.dtype:
                return f"tensor {name}: {before.dtype} recorded, {after.dtype} now"
            if before.shape != after.shape:
                return f"tensor {name}: shape {before.shape} recorded, {after.shape} now"
            if before.tobytes() != after.tobytes():
                return f"tensor {name}: largest difference {np.abs(before - after).max():g}"
        return None if old.metadata() == new.metadata() else "the metadata"


_FIRST_DIFFERENCE: dict[str, Callable[[Path, Path], str | None]] = {
    ".csv": _csv_difference,
    ".json": _json_difference,
    ".safetensors": _tensor_difference,
}
