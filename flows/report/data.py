"""Reads what the runs of an experiment left: the grid only, and whatever is missing, cut off or corrupt is named."""

import csv
import hashlib
import io
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from flows.experiment import Experiment
from rl_core import envs
from rl_core.config import RunSettings
from rl_core.reading import parse_json

Columns = dict[str, NDArray[np.float64]]
State = Literal["finished", "failed", "interrupted", "running", "stale", "broken", "missing"]

_WORDS = {"": float("nan"), "true": 1.0, "false": 0.0}
_MAX_HEADER_BYTES = 16 << 20


@dataclass(frozen=True, kw_only=True)
class Exclusion:
    """Something the report leaves out, and why."""

    arm: str
    seed: int
    what: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Run:
    """One arm with one seed, as far as it can be read; only a finished run has tables."""

    arm: str
    seed: int
    state: State
    reason: str = ""
    curve: Columns = field(default_factory=dict)
    progress: Columns = field(default_factory=dict)
    timing: Columns = field(default_factory=dict)
    evaluation: Columns = field(default_factory=dict)
    machine: Mapping[str, object] = field(default_factory=dict)  # timing.json

    @property
    def finished(self) -> bool:
        """Trained to the end under the arm's present settings; it may still lack its evaluation."""
        return self.state == "finished"


@dataclass(frozen=True, kw_only=True)
class Yardstick:
    """A reward-free measure: what it says, in which unit, and which direction is better."""

    doc: str
    unit: str = ""
    better: str = "neither"  # "higher" | "lower" | "neither"


@dataclass(frozen=True, kw_only=True)
class TaskText:
    """What a task says about itself."""

    terms: Mapping[str, str]  # term -> one sentence
    rewards: Mapping[str, Mapping[str, float]]  # named reward -> weights
    yardsticks: Mapping[str, Yardstick]
    headline: str
    defaults: Mapping[str, object]  # constructor arguments


@dataclass(frozen=True, kw_only=True)
class Task:
    """One task with one set of constructor arguments: the arms within it face the same problem."""

    label: str
    name: str
    text: TaskText
    arms: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Data:
    """Everything the report is made from."""

    title: str
    arms: Mapping[str, RunSettings]
    seeds: tuple[int, ...]
    confidence: float
    final_evaluations: int
    evaluation_episodes: int
    evaluation_seed: int
    tasks: tuple[Task, ...]
    runs: tuple[Run, ...]
    exclusions: tuple[Exclusion, ...]
    hashes: Mapping[str, str]  # path inside the experiment -> SHA-256

    def finished(self, arm: str) -> list[Run]:
        """The arm's finished runs, in the order of the seeds."""
        return [run for run in self.runs if run.arm == arm and run.finished]

    def task_of(self, arm: str) -> Task:
        """The one task that holds the arm; raises `StopIteration` for an arm outside the plan."""
        return next(task for task in self.tasks if arm in task.arms)


class UnreadableError(ValueError):
    """A file is there, and is not what it should be; the text says where."""


def parse_table(text: str) -> Columns:
    """Parse CSV of numbers into one float64 array a column; a cell that is empty or not finite is NaN.

    Raises `UnreadableError` for a row of another length than the header or a cell that is no number: what follows a
    damaged row cannot be trusted, so no part of the file is used.
    """
    try:
        rows = list(csv.reader(io.StringIO(text)))
    except csv.Error as error:
        raise UnreadableError(f"is not CSV ({error})") from None
    if not rows or not rows[0]:
        raise UnreadableError("is empty")
    header = rows[0]
    if len(set(header)) != len(header):
        raise UnreadableError("names a column twice")
    values = np.empty((len(rows) - 1, len(header)))
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(header):
            raise UnreadableError(f"line {number} has {len(row)} cells where the header has {len(header)}")
        for column, cell in enumerate(row):
            values[number - 2, column] = _number(cell, line=number, column=header[column])
    if not len(values):
        raise UnreadableError("has a header and no rows")
    return {name: values[:, column] for column, name in enumerate(header)}


def _number(cell: str, *, line: int, column: str) -> float:
    word = cell.strip().lower()
    if word in _WORDS:
        return _WORDS[word]
    try:
        value = float(word)
    except ValueError:
        raise UnreadableError(f"line {line}, column {column}: {cell[:40]!r} is not a number") from None
    return value if math.isfinite(value) else float("nan")


def parse_object(text: str) -> dict[str, object]:
    """Parse a JSON object; raises `UnreadableError` for anything else."""
    try:
        value = parse_json(text)
    except ValueError as error:
        raise UnreadableError(f"is not JSON ({error})") from None
    if not isinstance(value, dict):
        raise UnreadableError("holds no JSON object")
    return value


class _Reader:
    """Reads files below one directory; remembers every hash, and every file that could not be used."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.hashes: dict[str, str] = {}
        self.exclusions: list[Exclusion] = []

    def text(self, path: Path) -> str | None:
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UnreadableError(f"cannot be read ({error.strerror})") from None
        self.hashes[self.name(path)] = hashlib.sha256(content).hexdigest()
        try:
            return content.decode()
        except UnicodeDecodeError:
            raise UnreadableError("is not UTF-8 text") from None

    def name(self, path: Path) -> str:
        return path.relative_to(self.directory).as_posix()

    def exclude(self, arm: str, seed: int, what: str, reason: str) -> None:
        self.exclusions.append(Exclusion(arm=arm, seed=seed, what=what, reason=reason))


def read(experiment: Experiment) -> Data:
    """Read every run of the experiment's grid and nothing else."""
    reader = _Reader(experiment.directory)
    reader.text(experiment.directory / "params.yaml")
    runs = tuple(_read_run(reader, experiment, arm, seed) for arm, seed in experiment.runs)
    return Data(
        title=experiment.title,
        arms=dict(experiment.arms),
        seeds=tuple(experiment.seeds),
        confidence=experiment.report.confidence,
        final_evaluations=experiment.report.final_evaluations,
        evaluation_episodes=experiment.evaluation.episodes,
        evaluation_seed=experiment.evaluation.seed,
        tasks=tuple(_tasks(experiment.arms)),
        runs=runs,
        exclusions=tuple(reader.exclusions),
        hashes=dict(sorted(reader.hashes.items())),
    )


def _read_run(reader: _Reader, experiment: Experiment, arm: str, seed: int) -> Run:
    folder = experiment.run_dir(arm, seed)
    tables: dict[str, Columns] = {}
    problems: dict[str, str] = {}
    for name in ("curve", "progress", "timing", "evaluation"):
        tables[name], problems[name] = _try_table(reader, folder / f"{name}.csv")
    summary, problems["summary"] = _try_object(reader, folder / "summary.json")
    machine, problems["machine"] = _try_object(reader, folder / "timing.json")
    attempt, _ = _try_object(reader, experiment.state_dir(arm, seed) / "status.json", hashed=False)

    if problems["summary"] or problems["curve"]:
        state, reason = _unfinished(folder, problems, attempt)
        reader.exclude(arm, seed, "the run", f"{state}: {reason}")
        return Run(arm=arm, seed=seed, state=state, reason=reason)
    stale = _staleness(reader, folder, experiment.arms[arm], summary)
    if stale:
        reader.exclude(arm, seed, "the run", f"stale: {stale}")
        return Run(arm=arm, seed=seed, state="stale", reason=stale)

    for name, file in _OPTIONAL.items():
        if problems[name]:
            reader.exclude(arm, seed, file, problems[name])
    if attempt.get("state") == "failed":
        reader.exclude(arm, seed, "a later attempt", f"failed: {attempt.get('reason', 'no reason recorded')}")
    return Run(
        arm=arm,
        seed=seed,
        state="finished",
        machine=machine,
        curve=tables["curve"],
        progress=tables["progress"],
        timing=tables["timing"],
        evaluation=tables["evaluation"],
    )


_OPTIONAL = {
    "progress": "progress.csv",
    "timing": "timing.csv",
    "evaluation": "evaluation.csv",
    "machine": "timing.json",
}


def _try_table(reader: _Reader, path: Path) -> tuple[Columns, str]:
    try:
        text = reader.text(path)
        return ({}, "is missing") if text is None else (parse_table(text), "")
    except UnreadableError as error:
        return {}, str(error)


def _try_object(reader: _Reader, path: Path, *, hashed: bool = True) -> tuple[dict[str, object], str]:
    try:
        text = reader.text(path)
        value, problem = ({}, "is missing") if text is None else (parse_object(text), "")
    except UnreadableError as error:
        value, problem = {}, str(error)
    if not hashed:  # the status of a live run names a process and changes by the second
        reader.hashes.pop(reader.name(path), None)
    return value, problem


def _unfinished(folder: Path, problems: Mapping[str, str], attempt: Mapping[str, object]) -> tuple[State, str]:
    progress = f"{attempt.get('env_steps', '?')} of {attempt.get('env_steps_total', '?')} env steps"
    match attempt.get("state"):
        case "failed":
            return "failed", f"{attempt.get('reason', 'no reason recorded')} (at {progress})"
        case "interrupted":
            return "interrupted", f"stopped at {progress}; running it again resumes it"
        case "running":
            return "running", "not finished when this report was made"
    files = {"summary": "summary.json", "curve": "curve.csv"}
    broken = [f"{files[name]} {problems[name]}" for name in files if problems[name]]
    if all(problems[name] == "is missing" for name in files):
        return "missing", "it has not been run" if not folder.exists() else "; ".join(broken)
    return "broken", "; ".join(broken)


def _staleness(reader: _Reader, folder: Path, settings: RunSettings, summary: Mapping[str, object]) -> str:
    """Say how the trained policy contradicts the arm's settings, or nothing."""
    trained, planned = summary.get("env_steps"), settings.env_steps
    if isinstance(trained, int) and not planned <= trained <= planned + settings.num_envs:
        return f"it was trained for {trained} env steps, the arm now asks for {planned}"
    metadata = _policy_metadata(reader, folder / "policy.safetensors")
    if "task" in metadata and metadata["task"] != settings.task:
        return f"it was trained on {metadata['task']}, the arm now asks for {settings.task}"
    weights = metadata.get("weights")
    if not isinstance(weights, dict):
        return ""
    if not all(isinstance(weight, int | float) for weight in weights.values()):
        return "its policy says nothing readable of the reward it was trained under"
    if _nonzero(weights) != _nonzero(settings.weights):
        return f"it was trained under {weights_text(weights)}, the arm now asks for {weights_text(settings.weights)}"
    return ""


def _policy_metadata(reader: _Reader, path: Path) -> dict[str, object]:
    """The JSON a safetensors file carries about itself: an 8-byte length, a header with `__metadata__`."""
    try:
        with path.open("rb") as file:
            reader.hashes[reader.name(path)] = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0)
            length = int.from_bytes(file.read(8), "little")
            if length > _MAX_HEADER_BYTES:
                return {}
            header = parse_json(file.read(length))
        metadata = header.get("__metadata__", {}) if isinstance(header, dict) else {}
        found = [parse_json(value) for value in metadata.values()]
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
    return next((value for value in found if isinstance(value, dict)), {})


def _nonzero(weights: Mapping[str, float]) -> dict[str, float]:
    return {term: float(weight) for term, weight in weights.items() if weight}


def weights_text(weights: Mapping[str, float]) -> str:
    """`reward_forward × 1, cost_control × −0.1`, in the order of the names."""
    parts = [f"{term} × {weight:g}".replace("-", "−") for term, weight in sorted(_nonzero(weights).items())]
    return ", ".join(parts) or "no terms"


def _tasks(arms: Mapping[str, RunSettings]) -> Iterator[Task]:
    groups: dict[tuple[str, str], list[str]] = {}
    for arm, settings in arms.items():
        groups.setdefault((settings.task, json.dumps(dict(settings.task_settings), sort_keys=True)), []).append(arm)
    for (name, constructor), members in groups.items():
        text = describe(name)
        changed = [
            f"{key} = {json.dumps(value)}"
            for key, value in sorted(json.loads(constructor).items())
            if value != text.defaults.get(key)
        ]
        label = f"{name} ({', '.join(changed)})" if changed else name
        yield Task(label=label, name=name, text=text, arms=tuple(members))


def describe(name: str) -> TaskText:
    """What the task says about its terms, named rewards and yardsticks."""
    task = envs.task(name)
    return TaskText(
        terms={term: spec.doc for term, spec in task.terms.items()},
        rewards={reward: dict(weights) for reward, weights in task.rewards.items()},
        yardsticks={
            key: Yardstick(doc=spec.doc, unit=spec.unit, better=spec.better) for key, spec in task.yardsticks.items()
        },
        headline=task.headline,
        defaults=dict(task.settings),
    )
