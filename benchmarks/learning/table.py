"""The results as the table of docs/learning.md."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.learning.gates import Gate, shown
from benchmarks.learning.results import Row, latest, verdict_on
from rl_core.errors import SettingsError
from rl_core.files import write_atomic

BEGIN, END = "<!-- results: python -m benchmarks.learning --table -->", "<!-- end of results -->"
HEAD = (
    "| gate | task, algorithm | env steps | final return per seed | judged | band | verdict | h per seed | code "
    "| machine |",
    "|---|---|---:|---|---|---|---|---:|---|---|",
)


def rewrite(page: Path, rows: Sequence[Row], gates: Mapping[str, Gate]) -> None:
    """Put the table of these rows between the page's markers.

    Raises:
        SettingsError: the page lacks the markers.
    """
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SettingsError(f"{page}: expected the markers {BEGIN} and {END}")
    write_atomic(page, f"{before}{BEGIN}\n\n{render(rows, gates)}\n\n{END}{after}".encode())


def render(rows: Sequence[Row], gates: Mapping[str, Gate]) -> str:
    """Return the table, the machines its rows come from, and the gates without a result."""
    found = {gate.name: latest(rows, gate) for gate in gates.values()}
    machines = list(dict.fromkeys(row.machine for seeds in found.values() for row in seeds.values()))
    parts = []
    if machines:
        parts.append(
            "\n".join((*HEAD, *(_line(gate, found, gates, machines) for gate in gates.values() if found[gate.name])))
        )
        names = (
            f"{number}: {cpu}, torch {torch}, MuJoCo {mujoco}"
            for number, (cpu, torch, mujoco) in enumerate(machines, 1)
        )
        parts.append(f"Machines: {'; '.join(names)}.")
    missing = [f"`{name}`" for name, seeds in found.items() if not seeds]
    if missing:
        parts.append(f"No result yet: {', '.join(missing)}.")
    return "\n\n".join(parts)


def _line(
    gate: Gate,
    found: Mapping[str, Mapping[int, Row]],
    gates: Mapping[str, Gate],
    machines: Sequence[tuple[str, str, str]],
) -> str:
    rows = found[gate.name]
    verdict = verdict_on(gate, found, gates)
    value = "–" if verdict.value is None else f"{gate.statistic} {shown(verdict.value)}"
    cells = (
        f"`{gate.name}`",
        f"{gate.arm['task']}, {gate.arm['algorithm']}",
        f"{gate.arm['env_steps']:,}".replace(",", " "),
        ", ".join(shown(row.return_mean) for row in rows.values()),
        value,
        gate.band,
        verdict.word if verdict.word != "incomplete" else f"incomplete: {verdict.why}",
        f"{statistics.fmean(row.wall_s for row in rows.values()) / 3600:.2f}",
        _unique(f"`{row.commit}`" for row in rows.values()),
        _unique(str(machines.index(row.machine) + 1) for row in rows.values()),
    )
    return f"| {' | '.join(cells)} |"


def _unique(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(values))
