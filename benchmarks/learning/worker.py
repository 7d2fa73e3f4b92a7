"""One seed of one gate, in a process of its own: trained or resumed, evaluated, its result left in its folder.

python -m benchmarks.learning.worker ARM_AS_JSON SEED FOLDER
"""

import csv
import fcntl
import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.learning.results import EPISODES, EVALUATION_SEED, code_key, digest
from rl_core import config, evaluation, runner
from rl_core.errors import Interrupted, SettingsError, TrainingError
from rl_core.files import write_json

RESULT = "result.json"


def main() -> int:
    """Train and evaluate; return 0 done, 1 failed, 130 or 143 stopped."""
    arm, seed, folder = json.loads(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    try:
        with _only_writer(folder):
            work(arm, seed, folder)
    except Interrupted as interruption:
        return 128 + interruption.signum
    except (SettingsError, TrainingError) as error:
        print(f"error: {' '.join(str(error).split())}", flush=True)
        return 1
    return 0


def work(arm: Mapping[str, Any], seed: int, folder: Path) -> None:
    """Leave `result.json` in the folder; train only what is not trained yet."""
    settings = config.resolve(arm, where=folder.parent.name)
    code = code_key()
    versions = {name: version(name) for name in ("torch", "numpy", "mujoco")}
    key = digest({"settings": settings.to_dict(), "seed": seed, "code": code, "versions": versions})
    run, state = folder / "run", folder / "state"
    if _read(run / "timing.json").get("provenance", {}).get("key") == key:
        shutil.rmtree(state, ignore_errors=True)  # the run was published, and stopped before it could clean up
    else:
        provenance = {"key": key, "commit": _commit()}
        runner.train(settings, seed, run_dir=run, state_dir=state, key=key, provenance=provenance)
    timing = _read(run / "timing.json")
    returns = _final_returns(run)
    result = {
        "seed": seed,
        "env_steps": _read(run / "summary.json")["env_steps"],
        "return_mean": round(statistics.fmean(returns), 3),
        "return_std": round(statistics.pstdev(returns), 3),
        "episodes": len(returns),
        "wall_s": round(timing["wall_s"], 1),
        "active_s": round(timing["active_s"], 1),
        "commit": timing["provenance"]["commit"],
        "code_key": code,
    }
    curve = [(int(row["env_steps"]), float(row["return_mean"])) for row in _table(run / "curve.csv")]
    write_json(folder / RESULT, {"row": result, "curve": curve})


def _final_returns(run: Path) -> list[float]:
    evaluation.evaluate_run(run / "policy.safetensors", run, episodes=EPISODES, seed=EVALUATION_SEED)
    return [float(row["return"]) for row in _table(run / "evaluation.csv")]


def _table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _commit() -> str:
    """Name the code: the commit, with a "+" if rl_core differs from it; "unknown" outside of git."""
    git = ["git", "-C", str(Path(config.__file__).parent)]
    try:
        head = subprocess.run([*git, "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True, check=True)
        changes = subprocess.run([*git, "status", "--porcelain", "."], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip() + ("+" if changes.stdout.strip() else "")


@contextmanager
def _only_writer(folder: Path) -> Iterator[None]:
    """Wait until nobody else works in the folder: a worker whose benchmark was killed still saves for some seconds."""
    with (folder / "lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main())
