"""Does a checkpoint cost the same with a million rows in the ring as with ten thousand?

    python -m benchmarks.checkpoint [--quick]

Fills a ring file of a million slots with 10k or 1M rows, then times what the runner does at a checkpoint after 10k
new rows: flush the ring, hash its fingerprint, save the state of a SAC learner with published networks. Interleaved,
median of pairs.
"""

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.machine import closing_line
from rl_core import checkpoints
from rl_core.algorithms import sac
from rl_core.presets import SacSettings
from rl_core.replay import Layout, ReplayRing
from rl_core.shapes import Shapes
from rl_core.state import TrainingState

OBS_DIM, ACTION_DIM = 17, 6
ROWS = {"10k": 10_000, "1m": 1_000_000}
NEW_ROWS = 10_000
BLOCK = 1_000


def main() -> int:
    """Run the benchmark; return 0 if its limit holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions; noisy")
    repetitions = 5 if parser.parse_args().quick else 15
    print(f"checkpoint: {repetitions} pairs, a ring of {max(ROWS.values()):,} rows of half-cheetah", flush=True)
    times = _measure(repetitions)
    ratios = [large / small for small, large in zip(times["10k"], times["1m"], strict=True)]
    figures = {"time_1m_rows_over_10k_rows": round(statistics.median(ratios), 3)}
    spread = {
        "time_1m_rows_over_10k_rows": [round(min(ratios), 3), round(max(ratios), 3)],
        "ms_10k": round(1e3 * statistics.median(times["10k"]), 2),
        "ms_1m": round(1e3 * statistics.median(times["1m"]), 2),
    }
    line, passed = closing_line(
        "checkpoint", figures, spread=spread, limits={"time_1m_rows_over_10k_rows": ("<=", 1.5)}
    )
    print(line)
    return 0 if passed else 1


def _measure(repetitions: int) -> dict[str, list[float]]:
    layout = Layout(obs_dim=OBS_DIM, action_dim=ACTION_DIM, capacity=max(ROWS.values()), slack=40_000)
    folder = Path(tempfile.mkdtemp(prefix="checkpoint-benchmark-", dir=Path.cwd()))
    try:
        rings = {name: ReplayRing(folder / f"{name}.bin", layout) for name in ROWS}
        counters = dict.fromkeys(ROWS, 0)
        for name, rows in ROWS.items():
            _write(rings[name], counters, name, rows)
            rings[name].flush()
        state = _state()
        times: dict[str, list[float]] = {name: [] for name in ROWS}
        for number in range(repetitions + 1):
            for name, ring in rings.items():
                _write(ring, counters, name, NEW_ROWS)
                start = time.perf_counter()
                _checkpoint(ring, counters[name], folder / name, number, state)
                times[name].append(time.perf_counter() - start)
        return {name: values[1:] for name, values in times.items()}  # the first of each warms up
    finally:
        shutil.rmtree(folder)


def _write(ring: ReplayRing, counters: dict[str, int], name: str, rows: int) -> None:
    obs = np.full((BLOCK, OBS_DIM), 0.5, np.float32)
    flags = np.zeros(BLOCK, bool)
    for _ in range(rows // BLOCK):
        ring.write(
            counters[name],
            obs=obs,
            action=np.zeros((BLOCK, ACTION_DIM), np.float32),
            reward=np.ones(BLOCK, np.float32),
            terminated=flags,
            truncated=flags,
            next_obs=obs,
        )
        counters[name] += BLOCK


def _state() -> TrainingState:
    learner = sac.build(SacSettings(), Shapes(obs=OBS_DIM, action=ACTION_DIM), network_seed=0, noise_seed=1)
    return TrainingState({name: tensor.detach().numpy() for name, tensor in sac.state(learner).items()}, {})


def _checkpoint(ring: ReplayRing, counter: int, target: Path, number: int, state: TrainingState) -> None:
    ring.flush()
    info = {"ring": ring.fingerprint(counter)}
    target.mkdir(exist_ok=True)
    checkpoints.save(target, "benchmark", number, TrainingState(state.arrays, info))


if __name__ == "__main__":
    sys.exit(main())
