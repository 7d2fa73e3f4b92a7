"""Train, evaluate, report: plain functions, also the commands in dvc.yaml.

A finished stage leaves a marker under `.seedbed/done` with the key of its inputs and the hash of every output.
It says that a run is complete before DVC has recorded it, so that a run which ended while its sweep was killed
is committed and not trained again.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TextIO

from flows.experiment import PARAMS_FILE, STATE_FOLDER, Experiment
from rl_core import other_kernels
from rl_core.errors import SettingsError, TrainingError
from rl_core.files import remove_unfinished, write_json
from rl_core.reading import read_object

CODE_ROOT = Path(__file__).resolve().parent.parent
PIPELINE_FILE = "dvc.yaml"
TRAIN_OUTPUTS = (
    "policy.safetensors",
    "checkpoints",
    "progress.csv",
    "curve.csv",
    "summary.json",
    "timing.csv",
    "timing.json",
)
EVALUATION_OUTPUTS = ("evaluation.csv", "evaluation.json")


class InUseError(TrainingError):
    """Another process holds the lock."""


def train(
    experiment: Experiment,
    arm: str,
    seed: int,
    *,
    fresh: bool = False,
    trace: bool = False,
    tensorboard: bool = False,
) -> None:
    """Train one run, or say that it is complete; raise TrainingError or Interrupted.

    With `trace`, the timeline of this session is written beside, however it ends, and its path printed; with
    `tensorboard`, the tables' rows as they come.
    """
    settings = experiment.settings(arm, seed)
    run_dir, marker = experiment.run_dir(arm, seed), train_marker(experiment, arm, seed)
    with only_writer(experiment, arm, seed):
        key, state_dir = train_key(experiment, arm, seed), experiment.state_dir(arm, seed)
        if not fresh and is_complete(marker, key, run_dir, TRAIN_OUTPUTS):
            shutil.rmtree(state_dir, ignore_errors=True)  # of a run that was killed when it was as good as done
            print(f"{arm} seed {seed}: already complete{'; --fresh trains it again for a trace' if trace else ''}")
            return
        remove_unfinished(marker.parent)
        if fresh:
            shutil.rmtree(state_dir, ignore_errors=True)  # before anything else: a kill must not bring it back
        if fresh or begun_afresh(marker, key):
            begin_afresh(marker, key)
        else:
            marker.unlink(missing_ok=True)

        from rl_core import runner

        trace_file = experiment.trace_file(arm, seed) if trace else None
        try:
            runner.train(
                settings,
                seed,
                run_dir=run_dir,
                state_dir=state_dir,
                key=key,
                provenance=_provenance(experiment),
                fresh=fresh,
                published=lambda: _write_marker(marker, key, run_dir, TRAIN_OUTPUTS),
                trace=trace_file,
                tensorboard=experiment.tensorboard_dir(arm, seed) if tensorboard else None,
            )
        finally:
            if trace_file is not None and trace_file.is_file():
                print(f"trace: {trace_file}", flush=True)


def evaluate(experiment: Experiment, arm: str, seed: int) -> None:
    """Evaluate one run's final policy on the experiment's fixed episodes."""
    experiment.settings(arm, seed)
    run_dir, marker = experiment.run_dir(arm, seed), evaluation_marker(experiment, arm, seed)
    with only_writer(experiment, arm, seed):
        policy = final_policy(experiment, arm, seed)
        key = evaluation_key(experiment, arm, seed)
        if is_complete(marker, key, run_dir, EVALUATION_OUTPUTS):
            print(f"{arm} seed {seed}: already evaluated")
            return
        marker.unlink(missing_ok=True)
        remove_unfinished(run_dir)

        from rl_core.evaluation import evaluate_run

        settings = experiment.evaluation
        evaluate_run(policy, run_dir, episodes=settings.episodes, seed=settings.seed)
        _write_marker(marker, key, run_dir, EVALUATION_OUTPUTS)


def report(experiment: Experiment) -> Path:
    """Write the report from what exists and return the path of its page."""
    from flows.report import build

    return build(experiment)


def final_policy(experiment: Experiment, arm: str, seed: int) -> Path:
    """Return the path of a planned run's policy; raise TrainingError if it has none yet."""
    experiment.settings(arm, seed)
    policy = experiment.run_dir(arm, seed) / "policy.safetensors"
    if not policy.is_file():
        raise TrainingError(f"{arm} seed {seed} has no policy yet; train it: python -m flows train {arm} {seed}")
    return policy


def train_marker(experiment: Experiment, arm: str, seed: int) -> Path:
    """Return the path of what says that the run is trained."""
    return experiment.directory / STATE_FOLDER / "done" / arm / f"{seed}.json"


def evaluation_marker(experiment: Experiment, arm: str, seed: int) -> Path:
    """Return the path of what says that the run's policy is evaluated."""
    return experiment.directory / STATE_FOLDER / "done" / arm / f"{seed}.evaluation.json"


def begin_afresh(marker: Path, key: str) -> None:
    """Note that the run is to be trained again from these inputs, whatever DVC has recorded, until it is complete."""
    marker.parent.mkdir(parents=True, exist_ok=True)
    write_json(marker, {"key": key, "outputs": None})


def begun_afresh(marker: Path, key: str) -> bool:
    """Whether the run was begun afresh from these inputs and has not been completed since."""
    return bool(_read_marker(marker) == {"key": key, "outputs": None})


def train_key(experiment: Experiment, arm: str, seed: int) -> str:
    """Identify all that decides a run's results; the same under train, sweep and repro."""
    inputs = {
        "settings": experiment.settings(arm, seed).to_dict(),
        "seed": seed,
        "code": _code_hashes(experiment.directory, "train"),
        **_platform(),
    }
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def evaluation_key(experiment: Experiment, arm: str, seed: int) -> str:
    """Identify all that decides an evaluation's results."""
    inputs = {
        "policy": _sha256(experiment.run_dir(arm, seed) / "policy.safetensors"),
        "evaluation": asdict(experiment.evaluation),
        "code": _code_hashes(experiment.directory, "evaluate"),
        **_platform(),
    }
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def _platform() -> dict[str, object]:
    return {"versions": {name: version(name) for name in ("torch", "numpy", "mujoco")}, "kernels": other_kernels()}


def is_complete(marker: Path, key: str, run_dir: Path, outputs: Sequence[str]) -> bool:
    """Whether the marker is of these inputs and the outputs are the bytes it recorded."""
    recorded = _read_marker(marker)
    return recorded is not None and bool(recorded == _marker(key, run_dir, outputs))


def _read_marker(marker: Path) -> dict[str, object] | None:
    try:
        return read_object(marker)
    except (OSError, ValueError):
        return None


def recorded_key(marker: Path) -> str | None:
    """Return the key of the inputs that a completed stage had, or None where that is not known."""
    content = _read_marker(marker)
    if content is None or not isinstance(content.get("outputs"), dict):
        return None
    return str(content.get("key"))


def _write_marker(path: Path, key: str, run_dir: Path, outputs: Sequence[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, _marker(key, run_dir, outputs))


def _marker(key: str, run_dir: Path, outputs: Sequence[str]) -> dict[str, object]:
    paths = [path for output in outputs for path in files(run_dir / output)]
    return {"key": key, "outputs": {str(path.relative_to(run_dir)): _sha256(path) for path in paths}}


def _code_hashes(directory: Path, stage: str) -> dict[str, str]:
    """Hash the files that the folder's dvc.yaml names as the stage's code."""
    hashes = {}
    for dep in _code_deps(directory, stage):
        root = Path(os.path.normpath(directory / dep))
        for path in files(root):
            # relative to the code, if it is ours: an experiment may be moved
            known = path.is_relative_to(CODE_ROOT)
            name = path.relative_to(CODE_ROOT) if known else os.path.relpath(path, directory)
            hashes[str(name)] = _sha256(path)
    return hashes


def _code_deps(directory: Path, stage: str) -> list[str]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    path = directory / PIPELINE_FILE
    try:
        pipeline = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
        deps = pipeline["stages"][stage]["deps"]
    except FileNotFoundError:
        raise SettingsError(
            f"{path}: no such file; make an experiment's folder with python -m flows init DIR"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: cannot be read: {error}") from None
    except YAMLError as error:
        raise SettingsError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    except (KeyError, TypeError):
        raise SettingsError(f"{path}: expected a list stages.{stage}.deps") from None
    if not isinstance(deps, list):
        raise SettingsError(f"{path}: expected a list stages.{stage}.deps")
    return [dep for dep in deps if isinstance(dep, str) and "${" not in dep]


def files(path: Path) -> list[Path]:
    """Return the file, or all files in the folder, sorted; byte-code is none."""
    if path.is_file():
        return [path]
    found = sorted(item for item in path.rglob("*") if item.is_file())
    return [item for item in found if "__pycache__" not in item.parts and item.suffix != ".pyc"]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def only_writer(experiment: Experiment, arm: str, seed: int) -> AbstractContextManager[None]:
    """Hold the run's lock; raise InUseError if another process does."""
    return exclusive(run_lock(experiment, arm, seed), refusal=f"{arm} seed {seed} is in use")


def is_held(path: Path) -> bool:
    """Whether a process holds the lock. Asking takes it for an instant, which `exclusive` sits out."""
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def run_lock(experiment: Experiment, arm: str, seed: int) -> Path:
    """Return the lock that whoever trains or evaluates the run holds."""
    return experiment.directory / STATE_FOLDER / "locks" / arm / f"{seed}.lock"


@contextmanager
def exclusive(path: Path, *, refusal: str) -> Iterator[None]:
    """Hold a lock; raise InUseError with `refusal` if another process does. The kernel drops it with its process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        try:
            _lock(file)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "(starting)"
            raise InUseError(f"{refusal} (process {holder}); wait for it or stop it") from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _lock(file: TextIO) -> None:
    for _ in range(3):
        with suppress(BlockingIOError):
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(0.05)
    return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _provenance(experiment: Experiment) -> dict[str, object]:
    lock = CODE_ROOT / "requirements.lock"
    changes = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude,glob)**/dvc.lock")
    return {
        "git_commit": _git("rev-parse", "HEAD"),
        "git_dirty": None if changes is None else bool(changes),
        "command": " ".join(["python -m flows", *sys.argv[1:]]),
        "lock_sha256": _sha256(lock) if lock.is_file() else None,
        "dvc_yaml_sha256": _sha256(experiment.directory / PIPELINE_FILE),
        "params_yaml_sha256": _sha256(experiment.directory / PARAMS_FILE),
    }


def _git(*arguments: str) -> str | None:
    """Return what git says about the code, or None where there is no git."""
    environment: Mapping[str, str] = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        result = subprocess.run(
            ["git", *arguments], cwd=CODE_ROOT, env=environment, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return result.stdout.strip()
