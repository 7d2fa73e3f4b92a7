"""Does a run that was killed, starved or damaged end with the bytes of one that was left alone?

    python -m benchmarks.faults --kills 50 --seed 0 [--keep DIR]

Real runs of small networks on a small ring that wraps several times are started with `python -m flows train`, killed
once to three times with SIGKILL, SIGTERM or SIGINT (learner, collector or both; at a random moment, in the first
seconds, while a checkpoint or a policy is written, after the ring has wrapped), resumed to their end, evaluated, and
compared byte for byte with an undisturbed run. Then come a full disk, a folder that cannot be written, a damaged and a
truncated checkpoint, and a clock set back. One JSON line per case, and a closing line: kills survived, mismatches,
leaks.
"""

import argparse
import contextlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from benchmarks.arguments import whole_number
from benchmarks.machine import closing_line

ARMS = ("sac", "flash_sac", "td3", "sac-lockstep", "fast_sac", "fast_td3-lockstep")
CAPACITY = 600
ENV_STEPS = 3_600
DETERMINISTIC = ("policy.safetensors", "progress.csv", "curve.csv", "summary.json", "evaluation.csv", "evaluation.json")
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
MOMENTS = ("random", "first seconds", "checkpoint write", "policy write", "ring wrapped")
TARGETS = ("learner", "collector", "both")
TIMEOUT_S = 180.0
MARK = "SEEDBED_FAULTS"  # an environment variable that finds our processes again, whoever their parent is

PARAMS = f"""
experiment: {{title: faults, arms: [{", ".join(ARMS)}], seeds: [0]}}
evaluation: {{episodes: 2, seed: 1}}
report: {{}}
arms:
  sac: &arm
    <<: &run
      task: InvertedDoublePendulum-v5
      env_steps: {ENV_STEPS}
      num_envs: 4
      updates_per_vector_step: 4
      vector_steps_per_chunk: 3
      batch_size: 32
      learning_starts: 200
      replay_capacity: {CAPACITY}
      eval_interval: 900
      eval_episodes: 3
      log_interval: 100
      checkpoint_interval: 200
    algorithm: sac
    actor_hidden: [32]
    critic_hidden: [32]
  td3: {{<<: *arm, algorithm: td3}}
  sac-lockstep: {{<<: *arm, collection: lockstep}}
  flash_sac: {{<<: *run, algorithm: flash_sac, actor_width: 16, critic_width: 16, symmetry: true}}
  fast_sac: {{<<: *arm, algorithm: fast_sac, v_max: 200}}
  fast_td3-lockstep: {{<<: *arm, algorithm: fast_td3, v_max: 200, collection: lockstep}}
"""


@dataclass
class Case:
    """One disturbed run and how it ended."""

    name: str
    arm: str
    kills: int = 0
    problems: list[str] = field(default_factory=list)  # wrong exit codes, unclear messages
    differing: list[str] = field(default_factory=list)  # artifacts whose bytes differ
    leaks: list[str] = field(default_factory=list)  # processes, shared memory, temporary files

    @property
    def passed(self) -> bool:
        return not (self.problems or self.differing or self.leaks)


class Laboratory:
    """A scratch folder with one undisturbed experiment and, in turn, disturbed ones."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.reference = folder / "reference"

    def train_references(self, arms: Sequence[str]) -> None:
        """Train and evaluate each arm undisturbed."""
        self.experiment(self.reference.name)
        for arm in arms:
            for verb in ("train", "evaluate"):
                ended = self.run(self.reference, verb, arm)
                if ended.returncode:
                    raise RuntimeError(f"the undisturbed run failed: {ended.stdout}")

    def experiment(self, name: str) -> Path:
        """Make an experiment's folder with our params.yaml."""
        folder = self.folder / name
        made = subprocess.run(
            [sys.executable, "-m", "flows", "init", str(folder)],
            check=False,
            env=self._environment(),
            capture_output=True,
            text=True,
        )
        if made.returncode:
            raise RuntimeError(made.stderr)
        (folder / "params.yaml").write_text(PARAMS, encoding="utf-8")
        return folder

    def start(
        self, experiment: Path, verb: str, arm: str, *, limit: Callable[[], None] | None = None
    ) -> subprocess.Popen[str]:
        """Start a command; its output goes to a pipe."""
        return subprocess.Popen(
            [sys.executable, "-m", "flows", "-C", str(experiment), verb, arm, "0"],
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=limit,  # noqa: PLW1509 - one system call, and this process has no threads
        )

    def run(
        self, experiment: Path, verb: str, arm: str, *, limit: Callable[[], None] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        process = self.start(experiment, verb, arm, limit=limit)
        output, _ = process.communicate(timeout=TIMEOUT_S)
        return subprocess.CompletedProcess(process.args, process.returncode, output, "")

    def conclude(self, case: Case, experiment: Path) -> None:
        """Resume the run to its end, evaluate, compare, look for what was left behind."""
        for verb in ("train", "evaluate"):
            ended = self.run(experiment, verb, case.arm)
            if ended.returncode:
                case.problems.append(f"{verb} ended with {ended.returncode}: {ended.stdout.strip()[-300:]}")
                return
        case.differing += self._differing(experiment, case.arm)
        case.leaks += self.leaks(experiment, case.arm)

    def processes(self) -> list[psutil.Process]:
        """Return every living process that this laboratory started, directly or not."""
        return list(self._marked())

    def end_processes(self) -> None:
        """End every process that this laboratory started: SIGTERM, then SIGKILL for what is left after 10 s."""
        for end in (psutil.Process.terminate, psutil.Process.kill):
            alive = self.processes()
            for process in alive:
                with contextlib.suppress(psutil.NoSuchProcess):
                    end(process)
            psutil.wait_procs(alive, timeout=10)

    def leaks(self, experiment: Path, arm: str) -> list[str]:
        """Name what a finished run must not leave."""
        gone = time.monotonic() + 5
        while (alive := self.processes()) and time.monotonic() < gone:
            time.sleep(0.05)
        found = [f"process {' '.join(process.cmdline())[:80]}" for process in alive]
        found += [f"temporary file {path.name}" for path in self.temporary.iterdir()]
        state = experiment / ".seedbed" / "state" / arm / "0"
        found += [f"state {state.name}"] if state.exists() else []
        found += [f"half file {path.name}" for path in (experiment / "runs").rglob("*.tmp")]
        return found

    def _differing(self, experiment: Path, arm: str) -> list[str]:
        ours, theirs = experiment / "runs" / arm / "0", self.reference / "runs" / arm / "0"
        snapshots = {f"checkpoints/{path.name}" for run in (ours, theirs) for path in (run / "checkpoints").glob("*")}
        names = (*DETERMINISTIC, *sorted(snapshots))
        return [name for name in names if _bytes(ours / name) != _bytes(theirs / name)]

    def _marked(self) -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    yield process
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "TMPDIR": str(self.temporary), MARK: self.mark}


Maker = Callable[[Laboratory, Path], Case]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite; return 0 if every case passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=whole_number(0), default=50, metavar="N", help="killed runs (default 50)")
    parser.add_argument(
        "--seed", type=whole_number(0), default=0, metavar="S", help="of the random moments (default 0)"
    )
    parser.add_argument("--kills-only", action="store_true", help="leave out full disk, damage and the rest")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="work in this new folder and keep it")
    given = parser.parse_args(arguments)
    if given.kills_only and not given.kills:
        parser.error("argument --kills: with --kills-only, expected a whole number of at least 1, got '0'")
    if given.keep is not None and os.path.lexists(given.keep):
        parser.error(f"argument --keep: expected a new folder, and {given.keep} exists")
    makers = _makers(random.Random(given.seed), given.kills, kills_only=given.kills_only)
    shared_before = set(Path("/dev/shm").iterdir())
    with _stops_raise(), _laboratory(given.keep) as laboratory:
        laboratory.train_references(ARMS[: given.kills] if given.kills_only else ARMS)
        cases = list(_cases(laboratory, makers))
    shared = sorted(path.name for path in set(Path("/dev/shm").iterdir()) - shared_before)
    figures = {
        "kills": sum(case.kills > 0 and case.passed for case in cases),
        "mismatches": sum(bool(case.differing or case.problems) for case in cases),
        "leaks": sum(len(case.leaks) for case in cases) + len(shared),
    }
    spread = {"cases": len(cases), "signals sent": sum(case.kills for case in cases), "shared memory": shared}
    limits = {"kills": (">=", float(given.kills)), "mismatches": ("<=", 0.0), "leaks": ("<=", 0.0)}
    line, passed = closing_line("faults", figures, spread=spread, limits=limits)
    print(line)
    return 0 if passed else 1


@contextlib.contextmanager
def _stops_raise() -> Iterator[None]:
    """Turn SIGINT and SIGTERM into SystemExit, so that whatever was begun is cleaned up."""

    def stop(signum: int, _: object) -> None:
        raise SystemExit(128 + signum)

    before = {signum: signal.signal(signum, stop) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


@contextlib.contextmanager
def _laboratory(keep: Path | None) -> Iterator[Laboratory]:
    """Give a laboratory; end its processes and, unless it is to be kept, remove its folder."""
    folder = keep or Path(tempfile.mkdtemp(prefix="seedbed-faults-"))
    folder.mkdir(parents=True, exist_ok=True)
    laboratory = Laboratory(folder)
    try:
        yield laboratory
    finally:
        laboratory.end_processes()
        if keep is None:
            shutil.rmtree(folder)


def _makers(rng: random.Random, kills: int, *, kills_only: bool) -> list[Maker]:
    makers = [_killed(number, rng) for number in range(kills)]
    if not kills_only:
        makers += [_file_size_limit, _full_disk, _read_only, _unwritable]
        makers += [_damaged("cut"), _damaged("flipped"), _damaged("both"), _clock_set_back]
    return makers


def _cases(laboratory: Laboratory, makers: list[Maker]) -> Iterator[Case]:
    for number, maker in enumerate(makers):
        experiment = laboratory.experiment(f"case-{number}")
        case = maker(laboratory, experiment)
        print(json.dumps({**asdict(case), "passed": case.passed}), flush=True)
        if case.passed:
            shutil.rmtree(experiment)
        yield case


def _killed(number: int, rng: random.Random) -> Maker:
    """Kill a run one to three times at drawn moments."""
    arm = ARMS[number % len(ARMS)]
    plan = [
        (rng.choice(SIGNALS), rng.choice(TARGETS), rng.choice(MOMENTS), rng.random())
        for _ in range(rng.choice((1, 1, 2, 3)))
    ]

    def make(laboratory: Laboratory, experiment: Path) -> Case:
        told = ", ".join(f"{signum.name} to {target}, {moment}" for signum, target, moment, _ in plan)
        case = Case(f"kill {number}: {told}", arm)
        for signum, target, moment, draw in plan:
            process = laboratory.start(experiment, "train", arm)
            _wait_for(moment, draw, experiment, arm, process)
            case.kills += _kill(process, signum, target)
            output, _ = process.communicate(timeout=TIMEOUT_S)
            if "Traceback" in output and target == "learner":
                case.problems.append(f"a traceback instead of one line: {output[-300:]}")
        laboratory.conclude(case, experiment)
        return case

    return make


def _wait_for(moment: str, draw: float, experiment: Path, arm: str, process: subprocess.Popen[str]) -> None:
    state = experiment / ".seedbed" / "state" / arm / "0"
    reached: Callable[[], bool]
    if moment == "first seconds":
        end = time.monotonic() + 3 * draw
        reached = lambda: time.monotonic() > end  # noqa: E731
    elif moment == "checkpoint write":
        reached = lambda: any(state.glob(".checkpoint-*.tmp"))  # noqa: E731
    elif moment == "policy write":
        reached = lambda: any((state / "work" / "checkpoints").glob(".*.tmp"))  # noqa: E731
    else:
        least = (2 * CAPACITY if moment == "ring wrapped" else 0) + draw * ENV_STEPS / 3
        reached = lambda: _newest_checkpoint(state) >= least  # noqa: E731
    deadline = time.monotonic() + TIMEOUT_S
    while not reached() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.0005)


def _newest_checkpoint(state: Path) -> int:
    return max((_number(path) for path in _checkpoints(state)), default=-1)


def _checkpoints(state: Path) -> list[Path]:
    return sorted(state.glob("checkpoint-*.seedbed"), key=_number)


def _number(path: Path) -> int:
    return int(path.stem.partition("-")[2])


def _kill(process: subprocess.Popen[str], signum: signal.Signals, target: str) -> int:
    """Send the signal; return how many processes got it."""
    try:
        learner = psutil.Process(process.pid)
        helpers = [child for child in learner.children() if "resource_tracker" not in " ".join(child.cmdline())]
    except psutil.NoSuchProcess:
        return 0
    chosen = {"learner": [learner], "collector": helpers, "both": [learner, *helpers]}[target]
    if not chosen:  # the collector has not started yet
        chosen = [learner]
    sent = 0
    for victim in chosen:
        try:
            # the collector ignores SIGINT, which a terminal sends to the whole group
            victim.send_signal(signal.SIGKILL if victim is not learner else signum)
            sent += 1
        except psutil.NoSuchProcess:
            continue
    return sent


def _file_size_limit(laboratory: Laboratory, experiment: Path) -> Case:
    """The ring does not fit: the run must say so before it trains."""
    case = Case("no room for the replay ring", "sac")

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    _require_one_line(case, laboratory.run(experiment, "train", case.arm, limit=limit))
    laboratory.conclude(case, experiment)
    return case


def _full_disk(laboratory: Laboratory, experiment: Path) -> Case:
    """The disk fills up in the middle of a run."""
    case = Case("disk fills up", "sac")
    scratch = experiment / ".seedbed"
    scratch.mkdir(exist_ok=True)
    with _mounted(case, ["-t", "tmpfs", "-o", "size=16m", "tmpfs"], scratch) as mounted:
        if not mounted:
            return case
        process = laboratory.start(experiment, "train", case.arm)
        _wait_for("ring wrapped", 0.1, experiment, case.arm, process)
        filler = scratch / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        output, _ = process.communicate(timeout=TIMEOUT_S)
        _require_one_line(case, subprocess.CompletedProcess(process.args, process.returncode, output, ""))
        filler.unlink()
        laboratory.conclude(case, experiment)
    return case


def _read_only(laboratory: Laboratory, experiment: Path) -> Case:
    """The results' folder is read-only when the run has ended."""
    case = Case("read-only folder", "td3")
    runs = experiment / "runs"
    runs.mkdir(exist_ok=True)
    with _mounted(case, ["--bind", "-o", "ro", str(runs)], runs) as mounted:
        if not mounted:
            return case
        _require_one_line(case, laboratory.run(experiment, "train", case.arm))
    laboratory.conclude(case, experiment)
    return case


@contextlib.contextmanager
def _mounted(case: Case, options: Sequence[str], target: Path) -> Iterator[bool]:
    """Mount something on `target`; where that is not allowed, the case says so and stays untested."""
    mounted = subprocess.run(["mount", *options, str(target)], check=False, capture_output=True, text=True)
    if mounted.returncode:
        case.name += f" (not tested: {mounted.stderr.strip()})"
        yield False
        return
    try:
        yield True
    finally:
        subprocess.run(["umount", "--lazy", str(target)], check=True)


def _unwritable(laboratory: Laboratory, experiment: Path) -> Case:
    """A file stands where the runs' folder should be: nothing can be published."""
    case = Case("results cannot be written", "td3")
    (experiment / "runs").write_text("", encoding="utf-8")
    _require_one_line(case, laboratory.run(experiment, "train", case.arm))
    (experiment / "runs").unlink()
    laboratory.conclude(case, experiment)
    return case


def _damaged(how: str) -> Maker:
    def make(laboratory: Laboratory, experiment: Path) -> Case:
        case = Case(f"damaged checkpoint: {how}", "sac")
        _interrupt(laboratory, experiment, case.arm, moment="ring wrapped", draw=0.2)
        state = experiment / ".seedbed" / "state" / case.arm / "0"
        for path in _checkpoints(state)[-2 if how == "both" else -1 :]:
            raw = bytearray(path.read_bytes())
            raw[len(raw) // 2] ^= 1
            path.write_bytes(raw[: len(raw) // 2] if how == "cut" else raw)
        laboratory.conclude(case, experiment)
        return case

    return make


def _clock_set_back(laboratory: Laboratory, experiment: Path) -> Case:
    """All files of the interrupted run are from tomorrow, as after a clock that was set back."""
    case = Case("clock set back", "sac")
    _interrupt(laboratory, experiment, case.arm, moment="random", draw=0.5)
    tomorrow = time.time() + 86_400
    for path in experiment.rglob("*"):
        os.utime(path, (tomorrow, tomorrow))
    laboratory.conclude(case, experiment)
    return case


def _interrupt(laboratory: Laboratory, experiment: Path, arm: str, *, moment: str, draw: float) -> None:
    process = laboratory.start(experiment, "train", arm)
    _wait_for(moment, draw, experiment, arm, process)
    process.kill()
    process.communicate()


def _require_one_line(case: Case, ended: subprocess.CompletedProcess[str]) -> None:
    errors = [line for line in ended.stdout.splitlines() if line.startswith("error:")]
    if ended.returncode != 1 or len(errors) != 1 or "Traceback" in ended.stdout:
        case.problems.append(f"expected exit 1 and one error line, got {ended.returncode}: {ended.stdout[-300:]}")


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


if __name__ == "__main__":
    sys.exit(main())
