"""Does our SAC learn as SAC was published, and our TD3 as TD3?

    python -m benchmarks.learning [--gate NAME ...] [--seeds N] [--jobs N] [--folder DIR] [--fresh] [--table]

Trains every gate's seeds that have no result yet, with the published hyper-parameters (one environment,
one update per step), as many at a time as there are cores. A gate judges the final policy: deterministic actions, the
mean return of 20 episodes from fixed starts. Finished seeds are kept in benchmarks/learning/results.csv; what was
interrupted resumes. One JSON line per gate, and a closing line.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.arguments import whole_number
from benchmarks.learning import table
from benchmarks.learning.bench import ROOT, Bench
from benchmarks.learning.gates import GATES, Gate, chosen
from benchmarks.learning.results import Records
from rl_core.errors import Interrupted, SettingsError, TrainingError
from rl_core.stopping import stop_signals

DONE, FAILED, WRONG_INPUT = 0, 1, 2


def main(
    arguments: Sequence[str] | None = None,
    *,
    gates: Mapping[str, Gate] = GATES,
    records: Path = ROOT / "benchmarks" / "learning",
    page: Path = ROOT / "docs" / "learning.md",
) -> int:
    """Run the gates; return 0 if all hold, 1 if not, 2 on wrong input, 130 or 143 if stopped."""
    given = _parser().parse_args(arguments)
    try:
        if given.table:
            table.rewrite(page, Records(records).rows(), gates)
            print(f"{page}: written")
            return DONE
        with stop_signals():
            bench = Bench(
                gates,
                chosen(given.gate, gates),
                Records(records),
                given.folder,
                seeds=given.seeds,
                jobs=given.jobs,
                fresh=given.fresh,
            )
            return DONE if bench.run() else FAILED
    except (SettingsError, TrainingError) as error:
        print(f"error: {error}", file=sys.stderr)
        return WRONG_INPUT if isinstance(error, SettingsError) else FAILED
    except Interrupted as interruption:
        print("interrupted; the same command goes on from the last checkpoints", file=sys.stderr)
        return 128 + interruption.signum


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.learning",
        description=__doc__,
        epilog=f"gates: {', '.join(GATES)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--gate", nargs="+", action="extend", default=[], metavar="NAME", help="only these gates")
    parser.add_argument(
        "--seeds", type=whole_number(1), metavar="N", help="seeds 0 to N − 1 (default: each gate's own number)"
    )
    parser.add_argument(
        "--jobs", type=whole_number(1), default=cores, metavar="N", help=f"runs at a time (default {cores})"
    )
    parser.add_argument("--folder", type=Path, default=ROOT / ".seedbed" / "learning", metavar="DIR", help="scratch")
    parser.add_argument(
        "--fresh", action="store_true", help="train again what older code or another machine has trained"
    )
    parser.add_argument("--table", action="store_true", help="only rewrite the table in docs/learning.md")
    return parser


if __name__ == "__main__":
    sys.exit(main())
