"""`status`: how every run stands, and why."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from flows import versioning
from flows.experiment import Experiment
from flows.stages import is_held, run_lock
from flows.versioning import RunPlan
from rl_core.reading import read_object
from rl_core.wording import printable

_ENDLESS = 10**15  # env steps


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """One line of the table."""

    arm: str
    seed: int
    state: str  # fresh, stale, missing, running, interrupted or failed
    detail: str


def table(experiment: Experiment) -> str:
    """Return one line for each run, in the order of the experiment."""
    rows = [("arm", "seed", "state", ""), *((s.arm, str(s.seed), s.state, s.detail) for s in states(experiment))]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = ("  ".join(map(str.ljust, row[:3], widths)) + f"  {row[3]}" for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def states(experiment: Experiment) -> list[RunStatus]:
    """Say of every run what DVC has recorded of it and what its training says of itself."""
    plan = versioning.plan(experiment)
    return [_state(experiment, run) for run in plan.runs]


def _state(experiment: Experiment, run: RunPlan) -> RunStatus:
    state, detail = _recorded(experiment, run)
    if state != "fresh":
        state, detail = _under_way(experiment, run) or (state, detail)
    return RunStatus(arm=run.arm, seed=run.seed, state=state, detail=detail)


def _recorded(experiment: Experiment, run: RunPlan) -> tuple[str, str]:
    if run.fresh:
        return "fresh", ""
    why = run.train.why or f"its evaluation: {run.evaluate.why}"
    if versioning.LOST in why:
        return "missing", why
    if run.train.why not in ("", versioning.UNCACHED) and versioning.trained(experiment, run.arm, run.seed):
        why = "trained, the next sweep records it"
    elif not run.train.known:
        why = ""
    return ("stale" if run.train.known else "missing"), why


def _under_way(experiment: Experiment, run: RunPlan) -> tuple[str, str] | None:
    path = experiment.state_dir(run.arm, run.seed) / "status.json"
    try:
        said = read_object(path)
        progress = f"at {_steps(said['env_steps'])} of {_steps(said['env_steps_total'])} env steps"
    except (OSError, KeyError, ValueError):
        return None
    state, reason = said.get("state"), printable(str(said.get("reason", "")).partition("\n")[0])
    progress = f"{progress}, {_megabytes(path.parent)} MB"
    if state == "running" and not is_held(run_lock(experiment, run.arm, run.seed)):
        return "interrupted", f"{progress}: its process ended without a word"
    if state not in ("running", "interrupted", "failed"):
        return None
    return str(state), f"{progress}: {reason}" if reason else progress


def _steps(value: object) -> str:
    if type(value) is not int or not 0 <= value < _ENDLESS:
        raise ValueError("no number of env steps")
    return f"{value:,}"


def _megabytes(folder: Path) -> int:
    """Disk that the resumable state holds."""
    size = 0
    for parent, _, files in os.walk(folder):
        for name in files:
            with suppress(FileNotFoundError):  # a run in progress renames its files
                size += (Path(parent) / name).lstat().st_blocks * 512
    return round(size / 1e6)
