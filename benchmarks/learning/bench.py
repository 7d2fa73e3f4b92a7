"""Which seeds are missing, their trainings side by side, and what is said of each gate when its seeds are there."""

import fcntl
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.learning.gates import Gate, Verdict, judged_value
from benchmarks.learning.results import EPISODES, Records, Row, code_key, latest, returns, settings_key, verdict_on
from benchmarks.learning.worker import RESULT
from benchmarks.machine import closing_line, machine
from flows.processes import Processes
from rl_core import config
from rl_core.errors import SettingsError, TrainingError

ROOT = Path(__file__).resolve().parents[2]
POLL_S = 0.2
PROTOCOL = f"final policy, deterministic actions, mean return of {EPISODES} episodes from fixed starts"


class Bench:
    """One call of the benchmark.

    Args:
        gates: all that are known, to find a rival in.
        selected: those to run.
        records: where results are kept.
        folder: where runs are trained.
        seeds: how many per gate, instead of the gate's own number.
        jobs: runs at a time.
        fresh: do not count what older code or another machine has trained.
    """

    def __init__(
        self,
        gates: Mapping[str, Gate],
        selected: Sequence[Gate],
        records: Records,
        folder: Path,
        *,
        seeds: int | None,
        jobs: int,
        fresh: bool,
    ) -> None:
        self._gates, self._selected, self._records, self._folder = gates, selected, records, folder
        self._seeds, self._jobs, self._fresh = seeds, jobs, fresh
        identity = machine()
        self._machine = (str(identity["cpu"]), str(identity["torch"]), str(identity["mujoco"]))
        self._code = code_key()
        self._rows: list[Row] = []
        self._problems: dict[str, list[str]] = {gate.name: [] for gate in selected}
        self._processes = Processes()

    def run(self) -> bool:
        """Train what is missing and print all lines; return whether every gate holds."""
        with ExitStack() as locks:
            for path in (self._folder, self._records.folder):
                path.mkdir(parents=True, exist_ok=True)
                locks.enter_context(_alone(path))
            self._rows = self._records.rows()
            todo = self._todo()
            print(f"learning: {len(self._selected)} gates, {len(todo)} trainings to do, {self._jobs} at a time")
            print(f"judged: {PROTOCOL}", flush=True)
            try:
                self._train(todo)
            finally:
                self._processes.stop_and_wait()
        return self._close()

    # Training

    def _todo(self) -> list[tuple[Gate, int]]:
        todo = []
        for gate in self._selected:
            try:
                config.resolve(gate.arm, where=gate.name)
            except SettingsError as error:
                self._problems[gate.name].append(f"not in this version: {error}")
                continue
            todo += [(gate, seed) for seed in self._wanted(gate) if seed not in self._known(gate)]
        return todo

    def _train(self, todo: Sequence[tuple[Gate, int]]) -> None:
        waiting, running = list(todo), dict[subprocess.Popen[bytes], tuple[Gate, int]]()
        silent = list(self._selected)
        while True:
            while waiting and len(running) < self._jobs:
                gate, seed = waiting.pop(0)
                running[self._start(gate, seed)] = gate, seed
            busy = {gate.name for gate, _ in (*waiting, *running.values())}
            for gate in [gate for gate in silent if not busy & {gate.name, gate.rival}]:
                silent.remove(gate)
                print(json.dumps(self._line(gate), ensure_ascii=False), flush=True)
            if not running:
                return
            time.sleep(POLL_S)
            for process in [process for process in running if process.poll() is not None]:
                self._processes.forget(process)
                self._ended(*running.pop(process), status=process.returncode)

    def _start(self, gate: Gate, seed: int) -> subprocess.Popen[bytes]:
        folder = self._run_folder(gate, seed)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RESULT).unlink(missing_ok=True)
        command = [sys.executable, "-m", "benchmarks.learning.worker", json.dumps(dict(gate.arm)), str(seed)]
        with (folder / "log").open("ab") as log:
            return self._processes.start([*command, str(folder)], directory=ROOT, output=log.fileno())

    def _ended(self, gate: Gate, seed: int, *, status: int) -> None:
        folder = self._run_folder(gate, seed)
        if status:
            lines = (folder / "log").read_text(encoding="utf-8", errors="replace").splitlines() or [""]
            self._problems[gate.name].append(f"seed {seed} ended with {status}: {lines[-1]}")
            return
        result = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        cpu, torch, mujoco = self._machine
        key = settings_key(gate)
        row = Row(gate=gate.name, **result["row"], cpu=cpu, torch=torch, mujoco=mujoco, settings_key=key)
        self._records.add(gate, row, [(int(step), float(value)) for step, value in result["curve"]])
        self._rows.append(row)
        print(f"{gate.name} seed {seed}: {row.return_mean} ± {row.return_std} in {row.wall_s:.0f} s", flush=True)

    def _run_folder(self, gate: Gate, seed: int) -> Path:
        return self._folder.absolute() / gate.name / str(seed)

    # What is known

    def _wanted(self, gate: Gate) -> range:
        return range(self._seeds or gate.seeds)

    def _known(self, gate: Gate) -> dict[int, Row]:
        if self._fresh:
            return latest(self._rows, gate, machine=self._machine, code_key=self._code)
        return latest(self._rows, gate)

    def _judged(self, gate: Gate) -> dict[int, Row]:
        known, wanted = self._known(gate), range(max(gate.seeds, self._seeds or 0))
        return {seed: row for seed, row in known.items() if seed in wanted}

    # What is said

    def _verdict(self, gate: Gate) -> Verdict:
        if self._problems[gate.name]:
            return Verdict("error", "; ".join(self._problems[gate.name]))
        found = {name: self._judged(self._gates[name]) for name in (gate.name, gate.rival) if name}
        return verdict_on(gate, found, self._gates)

    def _line(self, gate: Gate) -> dict[str, Any]:
        rows, verdict = self._judged(gate), self._verdict(gate)
        older = sum(row.code_key != self._code for row in rows.values())
        elsewhere = sum(row.machine != self._machine for row in rows.values())
        return {
            "gate": gate.name,
            "task": gate.arm["task"],
            "algorithm": gate.arm["algorithm"],
            "env_steps": gate.arm["env_steps"],
            "returns": {str(seed): row.return_mean for seed, row in rows.items()},
            "statistic": gate.statistic,
            "value": None if verdict.value is None else round(verdict.value, 3),
            "band": gate.band,
            "source": gate.source,
            "verdict": verdict.word,
            "passed": verdict.passed,
            "why": verdict.why,
            **({"seeds_of_older_code": older} if older else {}),
            **({"seeds_of_other_machines": elsewhere} if elsewhere else {}),
        }

    def _close(self) -> bool:
        figures, limits, words = dict[str, float](), dict[str, tuple[str, float]](), dict[str, str]()
        failed = 0
        for gate in self._selected:
            finals, verdict = returns(self._judged(gate)), self._verdict(gate)
            words[gate.name] = verdict.word
            failed += not verdict.passed
            figures |= {f"{gate.name} {name}": value for name, value in _figures(gate, finals).items()}
            if verdict.least is not None:
                judged = "reached" if gate.statistic == "count" else gate.statistic
                limits[f"{gate.name} {judged}"] = (">=", round(verdict.least, 3))
        figures["gates_not_passed"] = failed
        limits["gates_not_passed"] = ("<=", 0.0)
        line, passed = closing_line("learning", figures, spread={"verdicts": words}, limits=limits)
        print(line)
        return passed


def _figures(gate: Gate, finals: Sequence[float]) -> dict[str, float]:
    if not finals:
        return {"seeds": 0}
    reached = {"reached": judged_value(gate, finals)} if gate.statistic == "count" else {}
    figures = {"mean": statistics.fmean(finals), "median": statistics.median(finals), "min": min(finals)}
    return {name: round(value, 3) for name, value in figures.items()} | reached | {"seeds": len(finals)}


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Refuse to share the folder with another benchmark. The kernel drops the lock with its process."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TrainingError(f"{folder}: another learning benchmark is at work; wait for it or stop it") from None
        yield
    finally:
        os.close(descriptor)
