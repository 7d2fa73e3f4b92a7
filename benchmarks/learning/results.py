"""What the gates have shown: one row per trained seed, and its learning curve, as files under version control.

Rows are only ever added. A row names the code, the settings and the machine it comes from, so that what older code or
another machine has shown stays recognisable.
"""

import csv
import hashlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

import rl_core
from benchmarks.learning.gates import Gate, Verdict, judge
from rl_core.errors import SettingsError
from rl_core.files import write_atomic

EPISODES = 20  # of the final policy, deterministic actions
EVALUATION_SEED = 1_000  # of their starts: the same for every policy of a task
ALGORITHM_NAMES = {"sac": "SAC", "td3": "TD3", "flash_sac": "FlashSAC"}  # as published curves spell them
CURVE_COLUMNS = ("source", "algo", "task", "seed", "env_step", "return")
SOURCE = "Seedbed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One trained seed."""

    gate: str
    seed: int
    env_steps: int
    return_mean: float  # over `episodes` episodes of the final policy
    return_std: float
    episodes: int
    wall_s: float
    active_s: float  # without start-up, evaluations and checkpoints
    commit: str  # "+" at its end: with changes that are not committed
    cpu: str
    torch: str
    mujoco: str
    settings_key: str
    code_key: str

    @property
    def machine(self) -> tuple[str, str, str]:
        """What a return depends on besides code, settings and seed."""
        return self.cpu, self.torch, self.mujoco


COLUMNS = tuple(field.name for field in fields(Row))
_TYPES = get_type_hints(Row)


class Records:
    """results.csv and curves/ in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.table = folder / "results.csv"

    def rows(self) -> list[Row]:
        """Return all rows, oldest first.

        Raises:
            SettingsError: the file is not such a table.
        """
        if not self.table.exists():
            return []
        reader = csv.reader(io.StringIO(self.table.read_text(encoding="utf-8")))
        if tuple(next(reader, ())) != COLUMNS:
            raise SettingsError(f"{self.table}: expected the columns {','.join(COLUMNS)}")
        return [self._row(values, reader.line_num) for values in reader]

    def add(self, gate: Gate, row: Row, curve: Iterable[tuple[int, float]]) -> None:
        """Add a row and put its curve, (env steps, return), in place of an older one of the same seed."""
        self._put_curve(gate, row.seed, curve)
        before = self.table.read_bytes() if self.table.exists() else _lines([COLUMNS])
        write_atomic(self.table, before + _lines([astuple(row)]))

    def _row(self, values: Sequence[str], line: int) -> Row:
        try:
            return Row(**{name: _TYPES[name](value) for name, value in zip(COLUMNS, values, strict=True)})
        except ValueError as error:
            raise SettingsError(f"{self.table}: line {line}: {error}") from None

    def _put_curve(self, gate: Gate, seed: int, curve: Iterable[tuple[int, float]]) -> None:
        path = self.folder / "curves" / f"{gate.name}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = list(csv.reader(io.StringIO(path.read_text(encoding="utf-8"))))[1:] if path.exists() else []
        kept = [line for line in kept if line[CURVE_COLUMNS.index("seed")] != str(seed)]
        name = ALGORITHM_NAMES.get(gate.arm["algorithm"], gate.arm["algorithm"])
        added = [[SOURCE, name, gate.arm["task"], seed, env_step, round(value, 2)] for env_step, value in curve]
        lines = sorted([*kept, *added], key=lambda line: (int(line[3]), int(line[4])))
        write_atomic(path, _lines([CURVE_COLUMNS, *lines]))


def latest(
    rows: Iterable[Row], gate: Gate, *, machine: Sequence[str] | None = None, code_key: str | None = None
) -> dict[int, Row]:
    """Return the newest row per seed of this gate and its present settings; of one machine or code if it is given.

    Another machine rounds differently. That changes a seed's return as another seed would, not the distribution that a
    gate judges: seeds of several machines count together.
    """
    key = settings_key(gate)
    found = {
        row.seed: row
        for row in rows
        if (row.gate, row.settings_key) == (gate.name, key)
        and (machine is None or row.machine == tuple(machine))
        and code_key in (None, row.code_key)
    }
    return dict(sorted(found.items()))


def returns(rows: Mapping[int, Row]) -> list[float]:
    """Return the rows' final returns, by seed."""
    return [row.return_mean for row in rows.values()]


def verdict_on(gate: Gate, found: Mapping[str, Mapping[int, Row]], gates: Mapping[str, Gate]) -> Verdict:
    """Return the verdict on a gate, given each gate's rows per seed."""
    if gate.rival is None:
        return judge(gate, returns(found[gate.name]))
    rival = returns(found[gate.rival])
    return judge(gate, returns(found[gate.name]), rival=rival, rival_seeds=gates[gate.rival].seeds)


def settings_key(gate: Gate) -> str:
    """Identify what the gate asks for: its arm as written, and how the final policy is evaluated.

    Not the resolved settings: a new field with a default that changes nothing must not cost hours of training. What
    a default means belongs to the code, and so to `code_key`.
    """
    return digest({"arm": dict(gate.arm), "episodes": EPISODES, "evaluation_seed": EVALUATION_SEED})


def code_key() -> str:
    """Identify the code that decides results: all of rl_core."""
    root = Path(rl_core.__file__).parent
    return digest(
        {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in sorted(root.rglob("*.py"))}
    )


def digest(content: Mapping[str, Any]) -> str:
    """Return the first 12 hexadecimal digits of a hash; far more than a table of some hundred rows needs."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def _lines(rows: Iterable[Iterable[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
