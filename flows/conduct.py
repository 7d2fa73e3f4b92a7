"""`sweep` as a command: plan first, and start an orchestrator only if there is something to run."""

import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from flows import server
from flows.experiment import Experiment
from flows.processes import Processes
from flows.work import Stopper, Work, counted


def conduct(experiment: Experiment, *, arms: Sequence[str], seeds: Sequence[int], jobs: int | None, fresh: bool) -> int:
    """Run a sweep to its end; return the exit code."""
    children, servers = Processes(), Processes()
    stopper = Stopper(children, servers)
    stopper.arm()
    try:
        with Work.alone(experiment):
            work = Work.prepare(experiment, arms=arms, seeds=seeds, jobs=jobs, fresh=fresh)
            work.processes, work.progress = children, partial(print, flush=True)
            work.say = work.progress
            if work.plan.restored:
                print(f"restored from the cache: {counted(len(work.plan.restored), 'stage')}")
            page = _nothing_to_execute(work) if not work.todo else _execute(work, stopper, servers)
    except BaseException:  # native code may have wrapped the interruption in an error of its own
        if stopper.signum is None:
            raise
        children.stop_and_wait()
        print("interrupted; finished runs are kept, the next sweep resumes the rest", file=sys.stderr, flush=True)
        return 128 + stopper.signum
    finally:
        servers.stop_and_wait()
    return _conclude(work, page)


def _nothing_to_execute(work: Work) -> Path:
    print(f"nothing to do: {counted(len(work.selection.runs), 'run')} fresh")
    page = work.experiment.directory / "report" / "index.html"
    if not work.plan.report.fresh and (work.complete or not page.is_file()):
        return work.report()
    return page


def _execute(work: Work, stopper: Stopper, servers: Processes) -> Path:
    directory = work.experiment.directory
    print(
        f"{len(work.todo)} of {len(work.plan.runs)} runs to do, {min(work.jobs, len(work.todo))} at a time", flush=True
    )
    url = server.running_url(directory)
    if url:
        os.environ["PREFECT_API_URL"] = url
        from flows import sweep
    else:
        started = server.start(servers, directory, port=server.free_port(), ui=False)
        from flows import sweep  # while the server starts

        started.wait_until_ready()
    sweep.run(work, stopper)
    return directory / "report" / "index.html"


def _conclude(work: Work, page: Path) -> int:
    if page.is_file():
        print(f"report: {page}")
    for problem in work.problems:
        print(f"error: {problem}")
    return 1 if work.problems else 0
