"""Each chart with what one sees, and the numbers behind it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flows.report import figures
from flows.report.analysis import Analysis
from flows.report.compare import Comparison
from flows.report.exports import DIFFERENCE_HEADER, Cells, Row, csv_text, difference_row, link
from flows.report.figures import Drawing
from flows.report.ledger import Ledger
from flows.report.measures import CurvePanel, Line, ScorePanel
from flows.report.wording import join, number, seeds_text

TABLE_ROWS = 20  # about so many rows in the data table under a curve; its CSV has every point


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A drawing with what one sees, and the numbers behind it."""

    drawing: Drawing
    caption: str
    header: tuple[str, ...]
    rows: Cells
    thinned: bool
    csv: str  # data URI; empty where the page hands out no file
    file: str


def _chart(
    drawing: Drawing, caption: str, header: Sequence[str], rows: Cells, *, file: str = "", shown: Cells | None = None
) -> Chart:
    shown = rows if shown is None else shown
    return Chart(
        drawing=drawing,
        caption=caption,
        header=tuple(header),
        rows=shown,
        thinned=len(shown) < len(rows),
        csv=link("text/csv", csv_text(header, rows)) if file else "",
        file=file,
    )


def charts(analysis: Analysis, arms: Mapping[str, int]) -> dict[str, list[Any]]:
    """Section -> its charts in the panels' order, for learning curves a dict by axis; `arms` numbers the looks."""
    return {
        "curves": [_curve_charts(panel, arms, f"curve-{i}") for i, panel in enumerate(analysis.curves)],
        "scores": [_dots_chart(panel, arms, f"score-{i}") for i, panel in enumerate(analysis.scores)],
        "yardsticks": [_dots_chart(panel, arms, f"yardstick-{i}") for i, panel in enumerate(analysis.yardsticks)],
        "ledgers": [_ledger_chart(found, arms, f"ledger-{i}") for i, found in enumerate(analysis.ledgers)],
        "differences": [
            _forest_chart(pairs, f"difference-{i}") for i, pairs in enumerate(_by_measure(analysis.verdicts))
        ],
    }


def _curve_charts(panel: CurvePanel, arms: Mapping[str, int], name: str) -> dict[str, Chart]:
    return {
        axis: _curve_chart(panel, axis, lines, arms, f"{name}-{axis.replace('_', '-')}")
        for axis, lines in panel.axes.items()
    }


def _curve_chart(panel: CurvePanel, axis: str, lines: Sequence[Line], arms: Mapping[str, int], name: str) -> Chart:
    label = panel.measure.label
    against = figures.AXIS_TEXT[axis].lower()
    title = f"{label} against {against}, {panel.task}" + (f", reward {panel.reward}" if panel.reward else "")
    description = "; ".join(_line_text(line) for line in lines)
    drawing = figures.curve(lines, arms, name=name, axis=axis, label=label, title=title, description=description)
    header = ["arm", axis, "seeds", "mean", "low", "high"]
    points = [_points(line) for line in lines]
    return _chart(
        drawing,
        _curve_caption(lines),
        header,
        [row for rows in points for row in rows],
        shown=[row for rows in points for row in _picked(rows, TABLE_ROWS // len(lines) + 1)],
        file=f"{name}.csv" if axis == "env_steps" else "",
    )


def _points(line: Line) -> list[Row]:
    columns = zip(line.grid, line.mean, line.low, line.high, strict=True)
    return [[line.arm, float(x), float(len(line.seeds)), *map(float, rest)] for x, *rest in columns]


def _picked(rows: Sequence[Row], most: int) -> list[Row]:
    """At most so many rows, evenly picked, the first and the last among them."""
    count = min(len(rows), max(most, 2))
    return [rows[index] for index in np.linspace(0, len(rows) - 1, count).round().astype(int)] if rows else []


def _line_text(line: Line) -> str:
    known = line.mean[np.isfinite(line.mean)]
    if not len(known):
        return f"{line.arm}: nothing to show"
    return (
        f"{line.arm}: from {number(float(known[0]))} to {number(float(known[-1]))} over {seeds_text(len(line.seeds))}"
    )


def _curve_caption(lines: Sequence[Line]) -> str:
    single = [line.arm for line in lines if len(line.seeds) == 1]
    none = [line.arm for line in lines if not line.seeds]
    apart = [line.arm for line in lines if len(line.seeds) > 1 and not len(line.grid)]
    notes = []
    if single:
        notes.append(f"{join(single)}: 1 seed, so no interval.")
    if apart:
        notes.append(f"{join(apart)}: the seeds share no range, so no mean.")
    if _cut(lines):
        notes.append("Bands are cut at the edge of the chart.")
    if none:
        notes.append(f"{join(none)}: no seed with usable values.")
    return " ".join(notes)


def _cut(lines: Sequence[Line]) -> bool:
    limits = figures.visible_range(lines)
    return limits is not None and any(
        bool((line.low < limits[0]).any() or (line.high > limits[1]).any()) for line in lines
    )


def _dots_chart(panel: ScorePanel, arms: Mapping[str, int], name: str) -> Chart:
    label = panel.measure.label
    title = f"{label} of every seed, {panel.task}" + (f", reward {panel.reward}" if panel.reward else "")
    drawing = figures.dots(
        panel.rows,
        arms,
        name=name,
        label=label,
        title=title,
        description="; ".join(
            f"{row.arm}: mean {number(row.mean)} over {seeds_text(len(row.scores))}" for row in panel.rows
        ),
    )
    rows: list[Row] = [
        [row.arm, str(seed), score] for row in panel.rows for seed, score in zip(row.seeds, row.scores, strict=True)
    ]
    return _chart(drawing, "", ["arm", "seed", panel.measure.name], rows)


def _ledger_chart(found: Ledger, arms: Mapping[str, int], name: str) -> Chart:
    drawing = figures.ledger(
        found,
        arms,
        name=name,
        title=f"Weighted reward terms of {found.arm} over training",
        description="; ".join(f"{row.term} ends at {number(row.weighted)}" for row in found.rows)
        + f"; the return ends at {number(found.final_return)}",
    )
    header = ["env_steps", *found.terms, "residual", "return", "episode_length"]
    columns = [found.grid, *found.terms.values(), found.residual, found.total, found.length]
    rows: list[Row] = [[float(value) for value in row] for row in zip(*columns, strict=True)]
    return _chart(drawing, "", header, rows, file=f"{name}.csv", shown=_picked(rows, TABLE_ROWS))


def _by_measure(pairs: Sequence[Comparison]) -> list[list[Comparison]]:
    groups: dict[tuple[str, str], list[Comparison]] = {}
    for pair in pairs:
        groups.setdefault((pair.task, pair.measure.name), []).append(pair)
    return list(groups.values())


def _forest_chart(pairs: Sequence[Comparison], name: str) -> Chart:
    measure = pairs[0].measure
    unit = f" ({measure.unit})" if measure.unit else ""
    label = f"Difference in {measure.spoken}{unit}, first − second"
    drawing = figures.forest(
        pairs,
        name=name,
        label=label,
        title=f"{label}, {pairs[0].task}",
        description=" ".join(pair.sentence for pair in pairs),
    )
    return _chart(drawing, "", DIFFERENCE_HEADER, [difference_row(pair) for pair in pairs])
