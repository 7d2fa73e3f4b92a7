"""Are the spans that no trace records worth less than a hundredth of an iteration?

    python -m benchmarks.trace [--quick]

Times a disabled span, trains each arm untraced for the time of an iteration, and traced for the number of its spans,
those of both processes added up. The figure is the largest share: nanoseconds per span × spans / iteration.
"""

import argparse
import csv
import json
import shutil
import statistics
import sys
import tempfile
import timeit
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.machine import closing_line
from rl_core import runner
from rl_core.config import resolve

ARMS: dict[str, dict[str, Any]] = {
    "half_cheetah_sac_as_published": {"task": "HalfCheetah-v5", "learning_starts": 256, "batch_size": 256},
    "pendulum_sac_16_units": {
        "task": "InvertedDoublePendulum-v5",
        "learning_starts": 256,
        "batch_size": 16,
        "actor_hidden": [16],
        "critic_hidden": [16],
    },
}
WARM_UP = 512  # env steps before the first log row that counts
LOOP = 100_000


def main() -> int:
    """Run the benchmark; return 0 if its limit holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="shorter trainings; noisy")
    env_steps = 1_024 if parser.parse_args().quick else 5_120
    print(f"trace: a disabled span, then {len(ARMS)} arms of {env_steps:,} env steps, untraced and traced", flush=True)
    span_ns = _span_ns()
    found = {name: _measure({**arm, "algorithm": "sac", "env_steps": env_steps}) for name, arm in ARMS.items()}
    shares = {name: statistics.median(span_ns) * spans / ns for name, (spans, ns) in found.items()}
    for name, (spans, ns) in found.items():
        print(f"{name}: {spans:.1f} spans in {ns / 1e6:.2f} ms, {100 * shares[name]:.3f} %", flush=True)
    spread = {
        "span_ns": [round(ns, 1) for ns in (min(span_ns), statistics.median(span_ns), max(span_ns))],
        "shares": {name: round(share, 6) for name, share in shares.items()},
        "spans_per_iteration": {name: round(spans, 2) for name, (spans, _) in found.items()},
        "iteration_ms": {name: round(ns / 1e6, 3) for name, (_, ns) in found.items()},
    }
    line, passed = closing_line(
        "trace",
        {"disabled_share": round(max(shares.values()), 6)},
        spread=spread,
        limits={"disabled_share": ("<=", 0.01)},
    )
    print(line)
    return 0 if passed else 1


def _span_ns() -> list[float]:
    """Time a disabled span, without the loop around it, seven times."""
    setup = "from rl_core.trace import span"
    timed = timeit.repeat("with span('critic'): pass", setup, number=LOOP, repeat=7)
    bare = min(timeit.repeat("pass", number=LOOP, repeat=7))
    return [1e9 * (seconds - bare) / LOOP for seconds in timed]


def _measure(arm: Mapping[str, Any]) -> tuple[float, float]:
    """Return spans and nanoseconds of one iteration of an arm."""
    folder = Path(tempfile.mkdtemp(prefix="trace-benchmark-", dir=Path.cwd()))
    try:
        _train(arm, folder / "plain", None)
        _train(arm, folder / "traced", folder / "trace.json")
        return _spans(folder / "trace.json"), _iteration_ns(folder / "plain" / "run")
    finally:
        shutil.rmtree(folder)


def _train(arm: Mapping[str, Any], folder: Path, trace: Path | None) -> None:
    settings = resolve({"log_interval": WARM_UP, **arm}, where=folder.name)
    runner.train(
        settings,
        0,
        run_dir=folder / "run",
        state_dir=folder / "state",
        key="benchmark",
        provenance={},
        quiet=True,
        trace=trace,
    )


def _iteration_ns(run: Path) -> float:
    (first, *_, last), (began, *_, ended) = (_rows(run / name) for name in ("progress.csv", "timing.csv"))
    seconds = float(ended["active_s"]) - float(began["active_s"])
    return 1e9 * seconds / (int(last["iteration"]) - int(first["iteration"]))


def _rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def _spans(path: Path) -> float:
    """Return the spans and counters of both processes for each iteration, from the first update on."""
    events = [e for e in json.loads(path.read_text(encoding="utf-8"))["traceEvents"] if e["ph"] in "XC"]
    first = min(e["ts"] for e in events if e["name"] == "critic")
    names = [e["name"] for e in events if e["ts"] >= first]
    return len(names) / names.count("replay")  # one such counter an iteration


if __name__ == "__main__":
    sys.exit(main())
