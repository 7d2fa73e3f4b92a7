"""What is fresh, and the record of what is done. The only module that talks to DVC.

It uses a few of DVC's internals (hence `dvc>=3.67,<3.68`): DVC's own commands parse and rewrite the whole lock file
for every stage, and their lock waits three seconds only. Everything here runs in one thread, under DVC's lock.
"""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import dpath
from dvc.dependency import Dependency, ParamsDependency
from dvc.exceptions import DvcException
from dvc.lock import LockError
from dvc.repo import Repo
from dvc.stage import PipelineStage
from dvc.stage.cache import RunCacheNotFoundError
from dvc.stage.exceptions import StageNotFound
from dvc.stage.serialize import to_lockfile
from dvc.utils.serialize import dumps_yaml, load_yaml

from flows.experiment import PARAMS_FILE, Experiment
from flows.stages import (
    EVALUATION_OUTPUTS,
    PIPELINE_FILE,
    TRAIN_OUTPUTS,
    begun_afresh,
    evaluation_key,
    evaluation_marker,
    is_complete,
    train_key,
    train_marker,
)
from rl_core.errors import SettingsError
from rl_core.files import write_atomic

REPORT = "report"
LOST = "recorded in dvc.lock, but its outputs are not on this machine"
UNCACHED = "outputs intact, not in the cache: the next sweep records them again"
CURE = "; restore it with git checkout dvc.lock, or delete it: the next sweep restores from the cache"
SHOWN_REASONS = 2
LOCK_FILE = "dvc.lock"


class VersioningError(RuntimeError):
    """DVC cannot do what was asked; the message is one line."""


@dataclass(frozen=True, kw_only=True)
class StagePlan:
    """One stage as it stands: `why` is empty if it is fresh."""

    name: str
    command: str
    why: str
    known: bool  # dvc.lock has an entry for it
    restored: bool = False
    inputs: str = ""  # what its result depends on, apart from other stages' outputs

    @property
    def fresh(self) -> bool:
        return not self.why


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """One run's two stages."""

    arm: str
    seed: int
    train: StagePlan
    evaluate: StagePlan

    @property
    def fresh(self) -> bool:
        return self.train.fresh and self.evaluate.fresh

    def afresh(self) -> "RunPlan":
        """Return the plan of running both stages again."""
        return replace(self, train=replace(self.train, why="asked for afresh"))

    @property
    def commands(self) -> tuple[str, ...]:
        """The commands that are still to be run, in order."""
        if not self.train.fresh:
            return self.train.command, self.evaluate.command
        return () if self.evaluate.fresh else (self.evaluate.command,)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All stages of an experiment."""

    runs: tuple[RunPlan, ...]
    report: StagePlan

    @property
    def fresh(self) -> bool:
        return self.report.fresh and all(run.fresh for run in self.runs)

    @property
    def restored(self) -> tuple[str, ...]:
        stages = [stage for run in self.runs for stage in (run.train, run.evaluate)]
        return tuple(stage.name for stage in (*stages, self.report) if stage.restored)


def plan(experiment: Experiment, *, restore: bool = False) -> Plan:
    """Say which stages are fresh and why the others are not.

    With `restore`, bring back first what the cache holds, and record what finished but was not recorded.
    """
    with _project(experiment.directory) as project:
        run_plans = tuple(_plan_run(project, experiment, arm, seed, restore) for arm, seed in experiment.runs)
        everything_fresh = all(run.fresh for run in run_plans)
        report = _plan_stage(project, REPORT, restore=restore and everything_fresh)
        if not everything_fresh and report.fresh:
            report = _stage_plan(project, project.stage(REPORT), why="not all runs are fresh")
        project.write_lock()
        return Plan(runs=run_plans, report=report)


def commit_runs(experiment: Experiment, runs: Sequence[RunPlan]) -> dict[tuple[str, int], str]:
    """Record finished runs as done; return those that cannot be recorded with the reason.

    A run whose inputs changed since it was planned, or whose outputs are not those of its inputs, is left alone.
    """
    refused = {}
    with _project(experiment.directory) as project:
        for run in runs:
            why = _changed_since(project, experiment, run)
            if why:
                refused[run.arm, run.seed] = why
                continue
            for planned in (run.train, run.evaluate):
                project.save(project.stage(planned.name))
        project.write_lock()
    return refused


def commit_report(experiment: Experiment) -> None:
    """Record the report as made from what lies in runs/."""
    with _project(experiment.directory) as project:
        project.save(project.stage(REPORT))
        project.write_lock()


def initialise(directory: Path) -> None:
    """Make `directory` a DVC project, unless it lies in one."""
    try:
        Repo.find_root(str(directory))
    except DvcException:
        pass
    else:
        return
    in_git = any((parent / ".git").exists() for parent in (directory, *directory.parents))
    at_git_root = (directory / ".git").exists()
    with _quiet():
        repo = Repo.init(str(directory), no_scm=not in_git, subdir=in_git and not at_git_root)
        with repo.config.edit("repo") as config:
            config["core"].update({"analytics": False, "autostage": False, "check_update": False})
        repo.close()


class _Project:
    """One folder's stages under DVC's lock. Lock entries are collected and written once."""

    def __init__(self, repo: Repo, directory: Path) -> None:
        from dvc.dvcfile import load_file

        self.repo = repo
        self.directory = directory
        self._file = load_file(repo, str(directory / PIPELINE_FILE))
        self._stages: Mapping[str, PipelineStage] = self._file.stages
        self._loaded: dict[str, PipelineStage] = {}
        self._entries: dict[str, Any] = {}
        self._read: dict[str, Any] = {}

    def stage(self, name: str) -> PipelineStage:
        if name not in self._loaded:
            stage = self._stages[name]
            for dep in stage.deps:
                self._read_once(dep)
            self._loaded[name] = stage
        return self._loaded[name]

    def _read_once(self, dep: Dependency) -> None:
        """Let all stages share what DVC would read again for each: params.yaml, and the hashes of the code."""
        if isinstance(dep, ParamsDependency):
            dep.read_params = partial(self._params, dep.fs_path, tuple(dep.params))
        elif not self._is_output(dep):
            dep.get_hash = partial(self._hash, dep.fs_path, dep.get_hash)

    def _params(self, path: str, keys: Sequence[str], **_: object) -> dict[str, Any]:
        if path not in self._read:
            self._read[path] = load_yaml(path)
        values = {}
        for key in keys:
            with suppress(KeyError):
                values[key] = dpath.get(self._read[path], key, separator=".")
        return values

    def _hash(self, path: str, compute: Callable[[], Any]) -> Any:
        if path not in self._read:
            self._read[path] = compute()
        return self._read[path]

    def _is_output(self, dep: Dependency) -> bool:
        return Path(dep.fs_path).is_relative_to(self.directory / "runs")

    def reload(self, name: str) -> PipelineStage:
        self._loaded.pop(name, None)
        return self.stage(name)

    def locked(self, name: str) -> bool:
        """Whether dvc.lock has an entry for the stage."""
        return name in self._entries or name in self._stages.lockfile_data  # type: ignore[attr-defined]

    def inputs(self, stage: PipelineStage) -> str:
        """Fingerprint the stage's command, code and parameters as they are now, other stages' outputs apart."""
        values: dict[str, object] = {"command": stage.cmd}
        for dep in stage.deps:
            if isinstance(dep, ParamsDependency):
                values[dep.def_path] = dep.read_params()
            elif not self._is_output(dep):
                values[dep.def_path] = dep.get_hash().value if dep.exists else "missing"
        return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()

    def save(self, stage: PipelineStage) -> None:
        """Take the stage's outputs into the cache and remember its lock entry."""
        stage.save()
        stage.commit()
        stage.cmd_changed = False
        self._entries.update(to_lockfile(stage))

    def write_lock(self) -> None:
        """Write the new entries, all in the order of dvc.yaml: execution order leaves no trace."""
        if not self._entries:
            return
        lock: dict[str, Any] = {"schema": "2.0", **self._file.lockfile_contents}
        entries = {**lock.get("stages", {}), **self._entries}
        order = {name: position for position, name in enumerate(self._stages)}
        names = sorted(entries, key=lambda name: order.get(name, len(order)))
        text = dumps_yaml({**lock, "stages": {name: entries[name] for name in names}})
        write_atomic(self.directory / LOCK_FILE, text.encode())


@contextmanager
def _project(directory: Path) -> Iterator[_Project]:
    """Open the folder's stages and hold DVC's lock, waiting for it as long as it takes."""
    if not (directory / PIPELINE_FILE).is_file():
        raise SettingsError(
            f"{directory / PIPELINE_FILE}: no such file; make an experiment's folder with python -m flows init DIR"
        )
    from dvc.repo import lock_repo

    try:
        # DVC resolves some paths against the current folder
        with _quiet(), chdir(directory):
            repo = Repo(str(directory), _wait_for_lock=True)
            try:
                with lock_repo(repo):
                    yield _Project(repo, directory)
            finally:
                repo.close()
    except DvcException as error:
        problem = f"{directory}: DVC: {' '.join(str(error).split())}"
        raise VersioningError(problem + (CURE if LOCK_FILE in problem else "")) from error
    except UnicodeDecodeError as error:
        raise VersioningError(f"{directory}: {PIPELINE_FILE} or {LOCK_FILE}: {error}{CURE}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("dvc")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def _plan_run(project: _Project, experiment: Experiment, arm: str, seed: int, restore: bool) -> RunPlan:
    train_name, evaluate_name = f"train@{arm}-{seed}", f"evaluate@{arm}-{seed}"
    if _begun_afresh(experiment, arm, seed):
        again = _stage_plan(project, project.stage(train_name), why="begun afresh and not finished")
        return RunPlan(arm=arm, seed=seed, train=again, evaluate=_plan_stage(project, evaluate_name, restore=False))
    train = _plan_stage(project, train_name, restore=restore)
    if restore and not train.fresh and trained(experiment, arm, seed):
        train = _record(project, train)
    evaluate = _plan_stage(project, evaluate_name, restore=restore and train.fresh)
    if restore and train.fresh and not evaluate.fresh and _evaluated(experiment, arm, seed):
        evaluate = _record(project, evaluate)
    return RunPlan(arm=arm, seed=seed, train=train, evaluate=evaluate)


def _plan_stage(project: _Project, name: str, *, restore: bool) -> StagePlan:
    stage = project.stage(name)
    try:
        why = _why(project, stage)
        if why and restore and _restore(project, name):
            # outputs that lay here all along were taken into the cache, not restored from it
            return _stage_plan(project, project.stage(name), why="", restored=why != UNCACHED)
    except LockError:
        why = "in use by another dvc command"
    return _stage_plan(project, project.reload(name), why=why)


def _stage_plan(project: _Project, stage: PipelineStage, *, why: str, restored: bool = False) -> StagePlan:
    return StagePlan(
        name=stage.name,
        command=stage.cmd,
        why=why,
        known=project.locked(stage.name),
        restored=restored,
        inputs=project.inputs(stage),
    )


def _record(project: _Project, planned: StagePlan) -> StagePlan:
    stage = project.stage(planned.name)
    project.save(stage)
    return _stage_plan(project, stage, why="")


def _restore(project: _Project, name: str) -> bool:
    """Bring the stage's outputs back from the cache, if this very input was run before."""
    stage, cache = project.reload(name), project.repo.stage_cache
    if any(not dep.exists for dep in stage.deps):
        return False
    unchanged = not stage.changed_stage() and not any(dep.changed() for dep in stage.deps)
    if not unchanged:
        # else DVC would take the recorded outputs for those of the new inputs
        stage.save_deps()
        for out in stage.outs:
            out.clear()
    try:
        cache.restore(stage, dry=True)
    except RunCacheNotFoundError:
        return unchanged and _recache(project, stage)
    stage.remove_outs(ignore_remove=False, force=False)
    cache.restore(stage)
    project.save(stage)
    return True


def _recache(project: _Project, stage: PipelineStage) -> bool:
    """Fill a lost cache from outputs that are still what dvc.lock recorded."""
    if any(not out.exists or out.changed_checksum() for out in stage.outs):
        return False
    project.save(stage)
    return True


def _why(project: _Project, stage: PipelineStage) -> str:
    """Say in words what differs from dvc.lock; empty if nothing does."""
    if not project.locked(stage.name):
        return "never run"
    reasons = ["the command changed"] if stage.changed_stage() else []
    for dep in stage.deps:
        reasons += _differences(dep.status(), project.directory)
    return _first(reasons) or _changed_outputs(project, stage)  # changed inputs explain changed outputs


def _changed_outputs(project: _Project, stage: PipelineStage) -> str:
    if all(not out.exists for out in stage.outs) and any(out.changed_cache() for out in stage.outs):
        return LOST
    states = [out.status() for out in stage.outs]
    if {state for status in states for state in status.values()} == {"not in cache"}:
        return UNCACHED
    return _first([reason for status in states for reason in _differences(status, project.directory)])


def _first(reasons: Sequence[str]) -> str:
    more = [f"and {len(reasons) - SHOWN_REASONS} more"] if len(reasons) > SHOWN_REASONS else []
    return ", ".join([*reasons[:SHOWN_REASONS], *more])


def _differences(status: Mapping[str, Any], directory: Path) -> list[str]:
    found = []
    for path, state in status.items():
        if isinstance(state, Mapping):  # a parameter file: one state for each key
            found += [f"{key} {'is ' if verb == 'new' else ''}{verb}" for key, verb in state.items()]
        else:
            name = os.path.relpath(path, directory) if not Path(path).is_absolute() else path
            found.append(f"{name} {'is ' if state != 'modified' else ''}{state}")
    return found


def _changed_since(project: _Project, experiment: Experiment, run: RunPlan) -> str:
    """Say why a finished run must not be recorded; empty if it may be."""
    for planned in (run.train, run.evaluate):
        try:
            stage = project.stage(planned.name)
        except StageNotFound:
            return f"{PARAMS_FILE} no longer names it"
        if project.inputs(stage) != planned.inputs:
            return "its parameters or code changed while it ran"
    if not run.train.fresh and not trained(experiment, run.arm, run.seed):
        return "its outputs are not those of its inputs"
    if not _evaluated(experiment, run.arm, run.seed):
        return "its evaluation is not that of its policy"
    return ""


def _begun_afresh(experiment: Experiment, arm: str, seed: int) -> bool:
    marker = train_marker(experiment, arm, seed)
    return marker.is_file() and begun_afresh(marker, train_key(experiment, arm, seed))


def trained(experiment: Experiment, arm: str, seed: int) -> bool:
    """Whether the run's training is complete, recorded by DVC or not."""
    marker, run_dir = train_marker(experiment, arm, seed), experiment.run_dir(arm, seed)
    return marker.is_file() and is_complete(marker, train_key(experiment, arm, seed), run_dir, TRAIN_OUTPUTS)


def _evaluated(experiment: Experiment, arm: str, seed: int) -> bool:
    marker, run_dir = evaluation_marker(experiment, arm, seed), experiment.run_dir(arm, seed)
    if not marker.is_file() or not (run_dir / "policy.safetensors").is_file():
        return False
    return is_complete(marker, evaluation_key(experiment, arm, seed), run_dir, EVALUATION_OUTPUTS)
