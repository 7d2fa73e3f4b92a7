"""How long do FastSAC and FastTD3 with 64 environments take to learn to run, and how long does SAC?

    python -m benchmarks.many_environments [--seeds N] [--arm NAME ...]

Trains HalfCheetah-v5 with each preset, one run after the other on an otherwise idle machine, and reports the training
time (evaluations and checkpoints excluded) and the env steps at the first evaluation that returns 2000 or more. The
networks, batches and updates per vector step are sized for one CPU core; the rest of the fast presets is as it is.
"""

import argparse
import csv
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.arguments import whole_number
from benchmarks.machine import closing_line
from rl_core import config, runner

GOAL = 2_000.0
_SHARED: Mapping[str, Any] = {
    "task": "HalfCheetah-v5",
    "eval_interval": 8_000,
    "eval_episodes": 5,
    "actor_hidden": [128, 128],
    "critic_hidden": [128, 128],
}
# More updates per vector step than the presets' 4, which are meant for thousands of environments on a GPU.
# A half-cheetah's discounted return reaches some hundreds, far beyond the presets' supports.
_FAST: Mapping[str, Any] = {**_SHARED, "num_envs": 64, "batch_size": 512, "v_min": -200.0, "v_max": 400.0}
ARMS: Mapping[str, Mapping[str, Any]] = {
    "sac": {
        **_SHARED,
        "algorithm": "sac",
        "env_steps": 64_000,
        "num_envs": 16,
        "updates_per_vector_step": 8,
        "learning_starts": 3_000,
        "learning_rate": 1e-3,
        "tau": 0.01,
        "critic_layer_norm": True,
    },
    "fast_sac": {**_FAST, "algorithm": "fast_sac", "env_steps": 150_000, "updates_per_vector_step": 16},
    "fast_td3": {**_FAST, "algorithm": "fast_td3", "env_steps": 400_000, "updates_per_vector_step": 8},
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0 if every run reached the goal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=whole_number(1), default=1, metavar="N", help="seeds 0 to N − 1 (default 1)")
    parser.add_argument("--arm", nargs="+", choices=tuple(ARMS), default=list(ARMS), metavar="NAME", help="only these")
    given = parser.parse_args(arguments)
    print(f"many_environments: {', '.join(given.arm)} until HalfCheetah-v5 returns {GOAL:g}", flush=True)
    reached: dict[str, list[dict[str, float]]] = {arm: [] for arm in given.arm}
    for seed in range(given.seeds):
        for arm in given.arm:
            found = _train(arm, seed)
            print(json.dumps({"arm": arm, "seed": seed, "reached": found}), flush=True)
            reached[arm] += [found] if found else []
    figures: dict[str, float] = {}
    spread: dict[str, Any] = {}
    for arm, runs in reached.items():
        figures[f"{arm}_seeds_reached"] = len(runs)
        for name in ("active_s", "env_steps") if runs else ():
            values = [run[name] for run in runs]
            figures[f"{arm}_{name}"] = round(statistics.median(values), 1)
            spread[f"{arm}_{name}"] = [min(values), max(values)]
    limits = {f"{arm}_seeds_reached": (">=", float(given.seeds)) for arm in given.arm}
    line, passed = closing_line("many_environments", figures, spread=spread, limits=limits)
    print(line)
    return 0 if passed else 1


def _train(arm: str, seed: int) -> dict[str, float] | None:
    """Train one run; return when its evaluation first reached the goal, or None."""
    settings = config.resolve(ARMS[arm], where=arm)
    with tempfile.TemporaryDirectory(prefix="seedbed-many-environments-") as name:
        folder = Path(name)
        runner.train(
            settings, seed, run_dir=folder / "run", state_dir=folder / "state", key="", provenance={}, quiet=True
        )
        return first_reached(folder / "run")


def first_reached(folder: Path) -> dict[str, float] | None:
    """Return env steps and training seconds of a run's first evaluation at the goal, or None."""
    with (folder / "curve.csv").open(encoding="utf-8", newline="") as file:
        steps = [int(row["env_steps"]) for row in csv.DictReader(file) if float(row["return_mean"]) >= GOAL]
    if not steps:
        return None
    with (folder / "timing.csv").open(encoding="utf-8", newline="") as file:
        times = {int(row["env_steps"]): float(row["active_s"]) for row in csv.DictReader(file)}
    active_s = min(seconds for env_steps, seconds in times.items() if env_steps >= steps[0])
    return {"env_steps": steps[0], "active_s": active_s}


if __name__ == "__main__":
    sys.exit(main())
