"""Does the learner work on this machine's GPU, and how fast is it there?

    python -m benchmarks.gpu [--quick]

Runs the tests that need a GPU. Then times updates of every preset with its own batch size: eager, as a CUDA graph, with
bfloat16 products where the preset allows them, compiled, and together; copies of rows to the replay's mirror; and whole
trainings with 1024 environments. What does not run is named, counted, and stops nothing. Ten minutes at most; what is
left over by then is skipped and named. Without a GPU it says so and exits with 2.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.machine import closing_line
from rl_core import acceleration, runner
from rl_core.algorithms import ALGORITHMS
from rl_core.clock import Clock
from rl_core.config import RunSettings, resolve
from rl_core.device import device_name, open_device
from rl_core.device_replay import DeviceReplay
from rl_core.presets import PRESETS
from rl_core.replay import Batch, Layout, ReplayRing

TASK = {"task": "HalfCheetah-v5", "env_steps": 1_000_000, "device": "cuda"}
NUM_ENVS = {"sac": 1, "td3": 1, "fast_sac": 1024, "fast_td3": 1024, "flash_sac": 1024}
LAYOUT = Layout(obs_dim=17, action_dim=6, capacity=1_000_000, slack=10_000)
MODES: dict[str, dict[str, bool]] = {  # the quick to start first: compiling takes minutes
    "eager": {},
    "graph": {"cuda_graph": True},
    "bf16": {"bf16": True},
    "graph_bf16": {"cuda_graph": True, "bf16": True},
    "compiled": {"compile": True},
    "compiled_graph": {"compile": True, "cuda_graph": True},
}
TESTS = ("tests/rl_core/test_cuda.py", "-q", "-p", "no:cacheprovider")
TESTS_S = 200.0
TOTAL_S = 570.0
WINDOWS = 5


@dataclass
class Findings:
    """What was measured, and what could not be."""

    deadline: float
    updates_per_s: dict[str, list[float]] = field(default_factory=dict)  # "preset mode" -> one value a window
    others: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """Note a failure of the block under `what` and go on."""
        try:
            if time.monotonic() > self.deadline:
                raise TimeoutError("no time left")
            yield
        except Exception as error:  # noqa: BLE001 - one thing that fails must not hide the others
            self.failures[what] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
            print(f"{what}: FAILED: {self.failures[what]}", flush=True)


def main() -> int:
    """Run the benchmark; return 0 if all ran and every check passed, 2 without a GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a minute: no tests, nothing compiled, no training; noisy")
    quick = parser.parse_args().quick
    if not torch.cuda.is_available():
        print("gpu: no GPU here that this build of torch can use; nothing was measured")
        return 2
    device = open_device("cuda")
    print(f"gpu: {device_name(device)}, torch {torch.__version__}", flush=True)
    found = Findings(time.monotonic() + TOTAL_S)
    if not quick:
        _run_tests(found)
    _time_updates(found, device, quick=quick)
    _time_copies(found, device)
    if not quick:
        _time_trainings(found)
    return _close(found, device)


def _run_tests(found: Findings) -> None:
    with found.attempt("tests"):
        command = [sys.executable, "-m", "pytest", *TESTS, "-m", "not slow"]
        done = subprocess.run(command, timeout=TESTS_S, check=False)
        if done.returncode:
            raise RuntimeError(f"pytest {' '.join(TESTS)} exits with {done.returncode}")


def _time_updates(found: Findings, device: torch.device, *, quick: bool) -> None:
    for mode, switches in MODES.items():
        for name, preset in PRESETS.items():
            if (switches.get("bf16") and not preset.bf16) or (quick and switches.get("compile")):
                continue
            with found.attempt(f"{name} {mode}"):
                settings = _settings(name, **switches)
                rates = _rates(settings, device, torch.cuda.synchronize, window_s=0.2 if quick else 0.6)
                found.updates_per_s[f"{name} {mode}"] = rates
                print(f"{name} {mode}: {statistics.median(rates):,.0f} updates/s", flush=True)


def _settings(name: str, **changes: Any) -> RunSettings:
    return resolve({**TASK, "algorithm": name, "num_envs": NUM_ENVS[name], **changes}, where=name)


def _rates(settings: RunSettings, device: torch.device, wait: Callable[[], None], *, window_s: float) -> list[float]:
    """Return updates/s, window by window, of batches that are there already."""
    learner = runner.build_learner(settings, LAYOUT, 0, device)
    update = acceleration.update_of(ALGORITHMS[settings.algorithm], settings)
    batch = _batch(settings.batch_size, device)

    def seconds(updates: int) -> float:
        start = time.perf_counter()
        for _ in range(updates):
            update(learner, batch)
        wait()
        return time.perf_counter() - start

    seconds(4 * settings.learner.policy_delay * acceleration.WARM_UP)  # warms up, compiles, captures both kinds
    delay = settings.learner.policy_delay
    count = max(delay, round(window_s / seconds(4 * delay) * 4 * delay))
    return [round(count / seconds(count), 1) for _ in range(WINDOWS)]


def _batch(size: int, device: torch.device) -> Batch:
    generator = torch.Generator().manual_seed(0)
    obs, next_obs = (torch.randn(size, LAYOUT.obs_dim, generator=generator).to(device) for _ in range(2))
    action = torch.rand(size, LAYOUT.action_dim, generator=generator).to(device) * 2 - 1
    reward = torch.randn(size, generator=generator).to(device)
    return Batch(
        obs=obs,
        critic_obs=obs,
        action=action,
        reward=reward,
        bootstrap=torch.ones_like(reward),
        next_obs=next_obs,
        next_critic_obs=next_obs,
    )


@contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="gpu-benchmark-", dir=Path.cwd()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _time_copies(found: Findings, device: torch.device) -> None:
    """Time a full mirror's rebuilding, and the copy of one vector step of 1024 environments with a batch drawn."""
    with found.attempt("mirror"), _folder() as folder:
        ring, clock = ReplayRing(folder / "ring", LAYOUT), Clock()
        mirror, generator = DeviceReplay(ring, device, clock=clock), torch.Generator(device).manual_seed(0)
        position = LAYOUT.capacity
        start = time.perf_counter()
        mirror.sample(position, 1, generator)
        torch.cuda.synchronize()
        found.others["mirror_rebuild_s_1m_rows"] = round(time.perf_counter() - start, 4)
        times = []
        for _ in range(200):
            _write(ring, position, 1024)
            position += 1024
            start = time.perf_counter()
            mirror.sample(position, 8192, generator)
            torch.cuda.synchronize()
            times.append(1e6 * (time.perf_counter() - start))
        found.others["mirror_copy_and_sample_us_1024_rows"] = round(statistics.median(times[20:]), 1)
        print(f"mirror: {found.others}", flush=True)


def _write(ring: ReplayRing, position: int, count: int) -> None:
    obs, flags = np.full((count, LAYOUT.obs_dim), 0.5, np.float32), np.zeros(count, bool)
    action, reward = np.zeros((count, LAYOUT.action_dim), np.float32), np.ones(count, np.float32)
    ring.write(position, obs=obs, action=action, reward=reward, terminated=flags, truncated=flags, next_obs=obs)


def _time_trainings(found: Findings) -> None:
    for name in ("fast_sac", "fast_td3"):
        with found.attempt(f"{name} training"), _folder() as folder:
            timing = _train(name, folder)
            for key in ("env_steps_per_s", "updates_per_s", "mirror_copy_s", "learner_wait_s", "active_s"):
                found.others[f"{name}_training_{key}"] = timing[key]
            print(f"{name}: {timing['env_steps_per_s']:,.0f} env steps/s with 1024 environments", flush=True)


def _train(name: str, folder: Path) -> Mapping[str, Any]:
    arm = {
        "env_steps": 300 * 1024,
        "collector_threads": len(os.sched_getaffinity(0)),
        "cuda_graph": True,
        "bf16": True,
        "eval_episodes": 1,
        "eval_interval": 10**9,
        "checkpoint_interval": 10**9,
        "log_interval": 30_000,
    }
    settings, run = _settings(name, **arm), folder / "run"
    runner.train(settings, 0, run_dir=run, state_dir=folder / "state", key="benchmark", provenance={}, quiet=True)
    timing: dict[str, Any] = json.loads((run / "timing.json").read_text(encoding="utf-8"))
    return timing


def _close(found: Findings, device: torch.device) -> int:
    medians = {what: statistics.median(rates) for what, rates in found.updates_per_s.items()}
    figures: dict[str, float] = {"failures": len(found.failures)}
    for what, rate in medians.items():
        name, _, mode = what.partition(" ")
        eager = medians.get(f"{name} eager")
        if eager and mode != "eager":
            figures[f"{name}_{mode}_vs_eager"] = round(rate / eager, 3)
    figures |= {f"{what.replace(' ', '_')}_updates_per_s": rate for what, rate in medians.items()}
    spread = {
        "device": device_name(device),
        "failures": found.failures,
        "updates_per_s": {what: [min(rates), max(rates)] for what, rates in found.updates_per_s.items()},
    }
    line, passed = closing_line("gpu", figures | found.others, spread=spread, limits={"failures": ("<=", 0)})
    print(line)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
