# `from __future__ import annotations` would break the form that Prefect makes of the flow's parameters.
"""The sweep as a Prefect flow, thin: one task for each run. The only module that imports prefect."""

import contextvars
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, wait
from pathlib import Path
from typing import Annotated

from prefect import flow, task
from prefect.artifacts import create_link_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.events.worker import EventsWorker
from prefect.exceptions import TerminationSignal
from prefect.logging import get_run_logger
from prefect.logging.handlers import APILogWorker
from prefect.task_runners import ThreadPoolTaskRunner
from pydantic import Field

from flows import environment, experiment, server
from flows.processes import Processes
from flows.work import Stopper, Work, counted

EVALUATED = "evaluation return"  # in the lines of a training that tell of progress
FLUSH_TIMEOUT_S = 2.0

_prepared: contextvars.ContextVar[tuple[Work, Stopper] | None] = contextvars.ContextVar("prepared", default=None)
_current: contextvars.ContextVar[Work] = contextvars.ContextVar("current")


class RunFailed(RuntimeError):  # noqa: N818 - see below
    """The commands of one run did not end well."""


class SweepFailed(RuntimeError):  # noqa: N818 - a state of the flow, told line by line before
    """Not every run of the sweep is recorded."""


def run(work: Work, stopper: Stopper) -> None:
    """Execute a prepared sweep as a flow; its problems stand in `work.problems`."""
    token = _prepared.set((work, stopper))
    try:
        sweep(
            directory=str(work.experiment.directory),
            arms=sorted({run.arm for run in work.todo}),
            seeds=sorted({run.seed for run in work.todo}),
            jobs=work.jobs,
        )
    except SweepFailed:
        pass
    finally:
        _prepared.reset(token)
        # while the server still runs; left to the interpreter's exit they would wait for one that has gone
        APILogWorker.drain_all(timeout=FLUSH_TIMEOUT_S)
        EventsWorker.drain_all(timeout=FLUSH_TIMEOUT_S)


@flow(name="sweep", validate_parameters=True, persist_result=False)
def sweep(
    directory: str = ".",
    arms: list[str] = [],  # noqa: B006
    seeds: list[int] = [],  # noqa: B006
    jobs: Annotated[int, Field(ge=1)] | None = None,
    fresh: bool = False,
) -> None:
    """Run what the experiment lacks, concurrently, then report.

    Args:
        directory: The experiment's folder.
        arms: Arms to run, as patterns such as sac-*; none means all.
        seeds: Seeds to run; none means all.
        jobs: Runs at a time; none means one for each core.
        fresh: Run again what is complete.
    """
    given = _prepared.get()
    if given is not None:
        work, stopper = given
        stopper.arm()
        work.say = _both(work.say, get_run_logger().info)
        _execute(work)
        return
    folder = Path(directory).resolve()
    environment.use(folder)
    loaded = experiment.load(folder)
    with Work.alone(loaded):
        work = Work.prepare(loaded, arms=arms, seeds=seeds, jobs=jobs, fresh=fresh)
        work.say = get_run_logger().info
        Stopper(work.processes, Processes()).arm(TerminationSignal)
        _execute(work)


def _execute(work: Work) -> None:
    try:
        _run_all(work)
        if work.todo or not work.plan.fresh:
            _show(work, work.report())
        else:
            work.say(f"nothing to do: {counted(len(work.selection.runs), 'run')} fresh")
    finally:
        work.processes.stop_and_wait()
    if work.problems:
        raise SweepFailed("; ".join(work.problems))


def _run_all(work: Work) -> None:
    _current.set(work)
    runner: ThreadPoolTaskRunner[None] = ThreadPoolTaskRunner(max_workers=work.jobs)
    with runner:
        pending = {}
        for run in work.todo:
            future = runner.submit(run_one, {"arm": run.arm, "seed": run.seed})
            pending[future.wrapped_future] = run
        while pending:
            done, _ = wait(pending, return_when=FIRST_COMPLETED)
            work.record([pending.pop(future) for future in done])


@task(task_run_name="{arm} seed {seed}", cache_policy=NO_CACHE, persist_result=False)
def run_one(arm: str, seed: int) -> None:
    """Run one run's commands; the task fails if they do."""
    work, logger = _current.get(), get_run_logger()

    def heard(line: str) -> None:
        logger.info(line)
        if EVALUATED in line:
            work.progress(f"      {arm} seed {seed}: {line.strip()}")

    outcome = work.execute(arm, seed, line=heard)
    if outcome.failed:
        raise RunFailed(f"{arm} seed {seed} failed (exit {outcome.exit_code}); log: {outcome.log}")


def _show(work: Work, page: Path) -> None:
    """Put the results where the UI shows them."""
    if work.rows:
        create_table_artifact(table=work.rows, key="runs", description="The runs of this sweep")
    # an http address: browsers follow no file:// link from the UI's page
    create_link_artifact(
        link=server.report_url(work.experiment.directory),
        link_text="The report",
        key="report",
        description=f"Served while `python -m flows ui` runs; the file is {page}",
    )


def _both(*listeners: Callable[[str], None]) -> Callable[[str], None]:
    def say(line: str) -> None:
        for listener in listeners:
            listener(line)

    return say
