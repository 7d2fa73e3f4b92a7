"""`check`: what an experiment resolves to, and what it will cost."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flows.experiment import Experiment
from rl_core import envs
from rl_core.config import RunSettings
from rl_core.reading import read_object

_LONGEST_S, _MOST_ENV_STEPS = 1e9, 10**15  # what is beyond is no record
SHOWN_APART = ("task", "task_settings", "reward", "weights", "algorithm", "env_steps")


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one run of an arm takes; None where no run tells."""

    wall_s: float | None
    runs: int  # recorded runs behind `wall_s`
    state_bytes: int  # while it trains
    output_bytes: int | None


def describe(experiment: Experiment) -> str:
    """Return the resolved experiment with an estimate of its time and disk."""
    costs = {arm: cost(experiment, arm) for arm in experiment.arms}
    return "\n".join([*_head(experiment), *_arms(experiment, costs), "", *_total(experiment, costs)])


def cost(experiment: Experiment, arm: str) -> Cost:
    """Estimate from the arm's recorded runs, scaled to its budget."""
    from rl_core.runner import disk_bytes

    settings = experiment.arms[arm]
    folders = [path for seed in experiment.seeds if (path := experiment.run_dir(arm, seed)).is_dir()]
    rates = [rate for folder in folders if (rate := _seconds_per_env_step(folder)) is not None]
    sizes = [sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) for folder in folders]
    return Cost(
        wall_s=sum(rates) / len(rates) * settings.env_steps if rates else None,
        runs=len(rates),
        state_bytes=disk_bytes(settings),
        output_bytes=max(sizes) if sizes else None,
    )


def _seconds_per_env_step(folder: Path) -> float | None:
    try:
        wall_s = read_object(folder / "timing.json")["wall_s"]
        env_steps = read_object(folder / "summary.json")["env_steps"]
    except (OSError, KeyError, ValueError):
        return None
    if not isinstance(wall_s, int | float) or not isinstance(env_steps, int):
        return None
    credible = 0 < wall_s <= _LONGEST_S and 0 < env_steps <= _MOST_ENV_STEPS
    return wall_s / env_steps if credible else None


def _head(experiment: Experiment) -> Iterator[str]:
    yield experiment.title
    yield f"{len(experiment.arms)} arms × {len(experiment.seeds)} seeds = {len(experiment.runs)} runs"
    yield f"seeds: {', '.join(map(str, experiment.seeds))}"
    yield f"evaluation: {experiment.evaluation.episodes} episodes, seed {experiment.evaluation.seed}"


def _arms(experiment: Experiment, costs: dict[str, Cost]) -> Iterator[str]:
    for arm, settings in experiment.arms.items():
        yield ""
        yield f"{arm}: {settings.task}, {settings.algorithm}, {settings.env_steps:,} env steps"
        changed = ", ".join(f"{name} {_plain(value)}" for name, value in settings.task_settings.items())
        yield f"  task settings: {changed or 'none'}"
        yield f"  reward {settings.reward}:"
        yield from _terms(settings)
        others = {name: value for name, value in settings.to_dict().items() if name not in SHOWN_APART}
        yield "  " + ", ".join(f"{name} {_plain(value)}" for name, value in others.items())
        yield f"  time: {_time(costs[arm])}; disk while training: {_size(costs[arm].state_bytes)}"


def _terms(settings: RunSettings) -> Iterator[str]:
    terms = envs.task(settings.task).terms
    width = max(map(len, terms))
    for name, term in terms.items():
        weight = settings.weights.get(name, 0.0)
        yield f"    {name:<{width}}  {f'{weight:+g}' if weight else '·':>8}  {term.doc}"


def _time(cost: Cost) -> str:
    if cost.wall_s is None:
        return "no record of this arm yet"
    return f"about {_duration(cost.wall_s)} a run (from {cost.runs} recorded)"


def _total(experiment: Experiment, costs: dict[str, Cost]) -> Iterator[str]:
    seeds, cores = len(experiment.seeds), len(os.sched_getaffinity(0))
    known = [cost.wall_s for cost in costs.values() if cost.wall_s is not None]
    if len(known) == len(costs):
        jobs = min(cores, len(experiment.runs))
        yield f"all runs: about {_duration(sum(known) * seeds / jobs)}, {jobs} at a time"
    else:
        unknown = ", ".join(arm for arm, cost in costs.items() if cost.wall_s is None)
        yield f"all runs: no estimate, since no run is recorded of {unknown}"
    yield _disk(experiment, costs, seeds, cores)


def _disk(experiment: Experiment, costs: dict[str, Cost], seeds: int, cores: int) -> str:
    largest = sorted((cost.state_bytes for cost in costs.values() for _ in experiment.seeds), reverse=True)
    outputs = [cost.output_bytes for cost in costs.values()]
    kept = sum(size or 0 for size in outputs) * seeds
    needed, free = sum(largest[:cores]), shutil.disk_usage(experiment.directory).free
    return (
        f"disk: {_size(needed)} while they train"
        + (f", {_size(2 * kept)} kept in runs/ and in DVC's cache" if all(outputs) else "")
        + (f"; {_size(free)} are free" if free >= needed else f"; TOO LITTLE: only {_size(free)} are free")
    )


def _plain(value: object) -> str:
    """Return a value as params.yaml would say it; a list as sizes."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return "×".join(map(str, value)) if isinstance(value, list) else str(value)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _size(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
