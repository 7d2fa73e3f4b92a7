"""A sweep without its orchestrator: what to run, how one run is executed, how its end is recorded."""

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from types import FrameType

from flows import versioning
from flows.experiment import STATE_FOLDER, Experiment
from flows.processes import KILL_AFTER_S, Processes, Stopped
from flows.stages import begin_afresh, evaluation_marker, exclusive, train_key, train_marker
from flows.versioning import Plan, RunPlan, VersioningError
from rl_core.errors import SettingsError
from rl_core.reading import read_object
from rl_core.wording import nearest

EXIT_AFTER_S = KILL_AFTER_S + 0.6  # a stopped sweep is gone within 5 s, whatever hangs
TAIL_LINES = 10


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which of the experiment's runs a sweep is about."""

    runs: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, experiment: Experiment, *, arms: Sequence[str] = (), seeds: Sequence[int] = ()) -> "Selection":
        """Raise SettingsError for a pattern that matches no arm and for a seed that is not planned."""
        for pattern in arms:
            if not any(fnmatchcase(arm, pattern) for arm in experiment.arms):
                raise SettingsError(f"--arm {pattern}: no such arm{nearest(pattern, experiment.arms)}")
        for seed in seeds:
            if seed not in experiment.seeds:
                known = ", ".join(map(str, experiment.seeds))
                raise SettingsError(f"--seed {seed}: no such seed; the experiment's seeds are {known}")
        runs = tuple(
            (arm, seed)
            for arm, seed in experiment.runs
            if (not arms or any(fnmatchcase(arm, pattern) for pattern in arms)) and (not seeds or seed in seeds)
        )
        return cls(runs=runs)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How the commands of one run ended."""

    run: RunPlan
    wall_s: float
    exit_code: int
    log: Path

    @property
    def failed(self) -> bool:
        return self.exit_code != 0


@dataclass(kw_only=True)
class Work:
    """One sweep: `todo` is executed concurrently, `record` and `report` belong to the main thread."""

    experiment: Experiment
    selection: Selection
    plan: Plan
    todo: tuple[RunPlan, ...]
    jobs: int
    say: Callable[[str], None] = print
    progress: Callable[[str], None] = lambda line: None  # noqa: ARG005
    processes: Processes = field(default_factory=Processes)
    recorded: set[tuple[str, int]] = field(default_factory=set)
    outcomes: dict[tuple[str, int], Outcome] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    rows: list[dict[str, object]] = field(default_factory=list)

    @classmethod
    def prepare(
        cls,
        experiment: Experiment,
        *,
        arms: Sequence[str] = (),
        seeds: Sequence[int] = (),
        jobs: int | None = None,
        fresh: bool = False,
    ) -> "Work":
        """Plan the sweep: restore what the cache knows, list what is still to be executed."""
        selection = Selection.of(experiment, arms=arms, seeds=seeds)
        if jobs is not None and jobs < 1:
            raise SettingsError(f"--jobs {jobs}: at least one run must be allowed at a time")
        plan = versioning.plan(experiment, restore=not fresh)
        chosen = [run for run in plan.runs if (run.arm, run.seed) in selection.runs]
        todo = tuple(run.afresh() if fresh else run for run in chosen if fresh or not run.fresh)
        if fresh:
            for run in todo:
                _forget(experiment, run)
        return cls(
            experiment=experiment,
            selection=selection,
            plan=plan,
            todo=todo,
            jobs=jobs or len(os.sched_getaffinity(0)),
            recorded={(run.arm, run.seed) for run in plan.runs if run.fresh and run not in todo},
        )

    @staticmethod
    def alone(experiment: Experiment) -> AbstractContextManager[None]:
        """Keep any other sweep of the experiment out; raise TrainingError if there is one."""
        path = experiment.directory / STATE_FOLDER / "locks" / "sweep.lock"
        return exclusive(path, refusal=f"another sweep of {experiment.directory} is running")

    @property
    def complete(self) -> bool:
        """Whether every run of the whole experiment is recorded."""
        return len(self.recorded) == len(self.plan.runs)

    def log_path(self, run: RunPlan) -> Path:
        return self.experiment.directory / STATE_FOLDER / "logs" / run.arm / f"{run.seed}.log"

    def execute(self, arm: str, seed: int, *, line: Callable[[str], None]) -> Outcome:
        """Run the stage commands of one run one after the other; pass on each line they write."""
        run = next(run for run in self.todo if (run.arm, run.seed) == (arm, seed))
        started, log = time.monotonic(), self.log_path(run)
        log.unlink(missing_ok=True)
        exit_code = 0
        for command in run.commands:
            try:
                exit_code = self.processes.run(command, directory=self.experiment.directory, log=log, line=line)
            except Stopped:
                exit_code = 128 + signal.SIGTERM
            if exit_code:
                break
        outcome = Outcome(run=run, wall_s=time.monotonic() - started, exit_code=exit_code, log=log)
        self.outcomes[arm, seed] = outcome
        return outcome

    def record(self, runs: Sequence[RunPlan]) -> None:
        """Commit those of the ended runs that ended well, say how each ended."""
        outcomes = [self._outcome(run) for run in runs]
        refused = self._commit([outcome.run for outcome in outcomes if not outcome.failed])
        for outcome in outcomes:
            run = outcome.run
            problem = refused.get((run.arm, run.seed), "")
            if outcome.failed:
                problem = f"failed (exit {outcome.exit_code}); log: {outcome.log}"
            if problem:
                self.problems.append(f"{run.arm} seed {run.seed}: {problem}")
            else:
                self.recorded.add((run.arm, run.seed))
            self._tell(outcome, problem)

    def report(self) -> Path:
        """Build the report from what exists; record it only if it covers the whole experiment."""
        log = self.experiment.directory / STATE_FOLDER / "logs" / "report.log"
        log.unlink(missing_ok=True)
        page = self.experiment.directory / "report" / "index.html"
        exit_code = self.processes.run(self.plan.report.command, directory=self.experiment.directory, log=log)
        if exit_code:
            self.problems.append(f"report: failed (exit {exit_code}); log: {log}")
            self._tail(log)
        elif self.complete:
            try:
                versioning.commit_report(self.experiment)
            except VersioningError as error:
                self.problems.append(f"report: not recorded: {error}")
        else:
            short = f"{len(self.recorded)} of {len(self.plan.runs)} runs"
            self.say(f"the report covers {short}; it is not recorded as up to date")
        return page

    def _outcome(self, run: RunPlan) -> Outcome:
        # none if the orchestrator itself failed before it started the commands
        never = Outcome(run=run, wall_s=0.0, exit_code=-1, log=self.log_path(run))
        return self.outcomes.get((run.arm, run.seed), never)

    def _commit(self, runs: Sequence[RunPlan]) -> dict[tuple[str, int], str]:
        if not runs:
            return {}
        try:
            refused = versioning.commit_runs(self.experiment, runs)
        except (VersioningError, SettingsError) as error:
            return {(run.arm, run.seed): f"not recorded: {error}" for run in runs}
        return {run: f"stale: {why}; run the sweep again" for run, why in refused.items()}

    def _tell(self, outcome: Outcome, problem: str) -> None:
        run = outcome.run
        score = None if problem else _return(self.experiment.run_dir(run.arm, run.seed))
        done = "evaluated" if run.train.fresh else "trained"
        result = problem or f"{done} in {outcome.wall_s:.0f} s"
        self.rows.append(
            {"arm": run.arm, "seed": run.seed, "result": result, "return": "" if score is None else f"{score:.1f}"}
        )
        position = f"[{len(self.rows)}/{len(self.todo)}]"
        self.say(f"{position} {run.arm} seed {run.seed}: {result}" + ("" if score is None else f", return {score:.0f}"))
        if outcome.failed:
            self._tail(outcome.log)

    def _tail(self, log: Path) -> None:
        lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
        for text in lines[-TAIL_LINES:]:
            self.say(f"      {text}")


def counted(number: int, noun: str) -> str:
    """Return `1 run`, `2 runs`."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


class Stopper:
    """Ends a sweep on SIGINT or SIGTERM: its children at once, this process within 5 s."""

    def __init__(self, work: Processes, server: Processes) -> None:
        self.signum: int | None = None
        self._work = work
        self._server = server

    def arm(self, interruption: Callable[[int], BaseException] = KeyboardInterrupt) -> None:
        """Take the signals (again within a flow: Prefect takes SIGTERM when a flow starts)."""

        def handle(signum: int, _frame: FrameType | None) -> None:
            if self.signum is not None:
                return
            self.signum = signum
            self._work.stop()
            threading.Thread(target=self._finish, daemon=True).start()
            raise interruption(signum)

        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, handle)

    def _finish(self) -> None:
        time.sleep(KILL_AFTER_S)
        self._work.kill()
        time.sleep(EXIT_AFTER_S - KILL_AFTER_S)
        self._server.kill()
        os._exit(128 + (self.signum or signal.SIGTERM))


def _forget(experiment: Experiment, run: RunPlan) -> None:
    """Drop what would let a command say that it is complete, or resume."""
    begin_afresh(train_marker(experiment, run.arm, run.seed), train_key(experiment, run.arm, run.seed))
    evaluation_marker(experiment, run.arm, run.seed).unlink(missing_ok=True)
    shutil.rmtree(experiment.state_dir(run.arm, run.seed), ignore_errors=True)


def _return(run_dir: Path) -> float | None:
    try:
        value = read_object(run_dir / "evaluation.json").get("return_mean")
    except (OSError, ValueError):
        return None
    return float(value) if isinstance(value, int | float) else None
