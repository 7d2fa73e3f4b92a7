"""The report as one HTML file, and its numbers as JSON; both from the same analysis."""

import base64
import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from importlib import resources
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup

from flows.report import compare, figures, measures, progress, record, statistics
from flows.report.compare import Comparison
from flows.report.data import Data, weights_text
from flows.report.figures import Drawing
from flows.report.measures import ArmScores, CrossMatrix, CurvePanel, Ledger, Line, ScorePanel
from flows.report.progress import Efficiency, Proxy, Reached
from flows.report.record import BUDGET, Budget, Completeness, Config, Provenance
from flows.report.wording import join, number, quantity, seeds_text

SHOWN_VERDICTS = 12  # undecided ones behind these are folded away
TABLE_ROWS = 20  # about so many rows in the data table under a curve; its CSV has every point

Row = Sequence[str | float | None]
Cells = Sequence[Row]


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """Every number of the report."""

    completeness: Completeness
    verdicts: tuple[Comparison, ...]
    not_compared: tuple[str, ...]
    curves: tuple[CurvePanel, ...]
    scores: tuple[ScorePanel, ...]
    ledgers: tuple[Ledger, ...]
    cross_rewards: tuple[CrossMatrix, ...]
    yardsticks: tuple[ScorePanel, ...]
    yardstick_differences: tuple[Comparison, ...]
    efficiencies: tuple[Efficiency, ...]
    proxies: tuple[Proxy, ...]
    budgets: tuple[Budget, ...]
    config: Config
    provenance: Provenance


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


def analyse(data: Data) -> Analysis:
    return Analysis(
        completeness=record.completeness(data),
        verdicts=tuple(compare.verdicts(data)),
        not_compared=tuple(compare.not_compared(data)),
        curves=tuple(measures.curves(data)),
        scores=tuple(measures.final_scores(data)),
        ledgers=tuple(measures.ledgers(data)),
        cross_rewards=tuple(measures.cross_rewards(data)),
        yardsticks=tuple(measures.yardstick_scores(data)),
        yardstick_differences=tuple(compare.yardstick_differences(data)),
        efficiencies=tuple(progress.efficiencies(data)),
        proxies=tuple(progress.proxies(data)),
        budgets=tuple(record.budgets(data)),
        config=record.config(data),
        provenance=record.provenance(data),
    )


def summary(data: Data, analysis: Analysis, *, series: bool = True) -> str:
    """The analysis as JSON with sorted keys; what is not a finite number is null.

    Without `series` it leaves out what is long: curves, the ledgers' course, pairs by every yardstick, file hashes.
    """
    content = {
        "title": data.title,
        "confidence": data.confidence,
        "final_evaluations": data.final_evaluations,
        "arms": list(data.arms),
        "seeds": list(data.seeds),
        "complete": analysis.completeness.complete,
        "counts": compare.counts(list(analysis.verdicts)),
        **{name: getattr(analysis, name) for name in Analysis.__dataclass_fields__ if series or name != "curves"},
    }
    plain = _jsonable(content)
    if not series:
        del plain["yardstick_differences"]
        for ledger in plain["ledgers"]:
            for name in ("grid", "terms", "total", "residual", "length"):
                del ledger[name]
        del plain["provenance"]["hashes"]
    layout: dict[str, Any] = {"indent": 1} if series else {"separators": (",", ":")}
    return json.dumps(plain, sort_keys=True, ensure_ascii=False, allow_nan=False, **layout) + "\n"


def _jsonable(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        plain = {name: getattr(value, name) for name in value.__dataclass_fields__}
        if isinstance(value, Comparison):
            del plain["parts"]
            plain["sentence"] = value.sentence
            plain["seeds"] = {scores.arm: len(scores.scores) for scores in value.scores}
            del plain["scores"]
        if isinstance(value, Line):
            del plain["seeds"]  # thinned for drawing; the runs' own files have them whole
            plain["n"] = len(value.seeds)
        if isinstance(value, Reached):
            plain |= {"count": value.count, "median_env_steps": value.median_env_steps}
            plain["median_seconds"] = value.median_seconds
        if isinstance(value, Provenance):
            del plain["runs"]  # `shared` and `differing` say the same
        return _jsonable(plain)
    if isinstance(value, Mapping):
        return {str(key): _jsonable(inner) for key, inner in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [_jsonable(inner) for inner in (value.tolist() if isinstance(value, np.ndarray) else value)]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def render(data: Data, analysis: Analysis) -> str:
    """The page. It holds no time of its own and no path outside the runs: equal inputs give equal bytes."""
    arms = {arm: index for index, arm in enumerate(data.arms)}
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_source),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(num=number, qty=quantity, join_words=join, seeds=seeds_text, weights=weights_text)
    return environment.get_template("page.html.j2").render(
        style=Markup(_source("style.css")),  # the package's own file
        data=data,
        arms=arms,
        swatches=[figures.swatch(index) for index in arms.values()],
        counts=compare.counts(list(analysis.verdicts)),
        budget_figures=BUDGET,
        states=record.STATES,
        resamples=statistics.RESAMPLES,
        shares=progress.SHARES,
        inf=math.inf,
        shown_verdicts=max(SHOWN_VERDICTS, sum(pair.decided for pair in analysis.verdicts)),
        charts=_charts(analysis, arms),
        downloads=_downloads(data, analysis),
        provenance_json=_script(analysis.provenance),
        **{name: getattr(analysis, name) for name in Analysis.__dataclass_fields__},
    )


def _source(name: str) -> str:
    return resources.files("flows.report").joinpath(name).read_text(encoding="utf-8")


def _script(value: Any) -> Markup:
    """JSON that no text in it can end: the page's parser sees no angle bracket."""
    text = json.dumps(_jsonable(value), sort_keys=True, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _uri(kind: str, content: str) -> str:
    return f"data:{kind};charset=utf-8;base64,{base64.b64encode(content.encode()).decode()}"


def _csv(header: Sequence[str], rows: Cells) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([_cell(cell) for cell in row] for row in rows)
    return buffer.getvalue()


def _cell(value: str | float | None) -> str:
    if isinstance(value, float):
        return f"{value:.8g}" if math.isfinite(value) else ""
    text = "" if value is None else str(value)
    return f"'{text}" if text[:1] in "=+-@\t\r" and text else text  # a spreadsheet would run it as a formula


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
        csv=_uri("text/csv", _csv(header, rows)) if file else "",
        file=file,
    )


def _charts(analysis: Analysis, arms: Mapping[str, int]) -> dict[str, list[Any]]:
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
    return _chart(drawing, "", _DIFFERENCE_HEADER, [_difference_row(pair) for pair in pairs])


_DIFFERENCE_HEADER = (
    "task",
    "first",
    "second",
    "measure",
    "n_first",
    "n_second",
    "difference",
    "low",
    "high",
    "p",
    "holm_p",
    "holm_low",
    "holm_high",
    "smallest_detectable",
)


def _difference_row(pair: Comparison) -> list[str | float | None]:
    plain, adjusted = pair.interval, pair.holm_interval
    return [
        pair.task,
        pair.first,
        pair.second,
        pair.measure.name,
        float(len(pair.scores[0].scores)),
        float(len(pair.scores[1].scores)),
        pair.difference,
        plain.low if plain else None,
        plain.high if plain else None,
        pair.p,
        pair.holm_p,
        adjusted.low if adjusted else None,
        adjusted.high if adjusted else None,
        pair.smallest_detectable,
    ]


def _downloads(data: Data, analysis: Analysis) -> list[tuple[str, str, str]]:
    """What the page hands out besides the charts' tables: file name, what it is, data URI."""
    panels = (*analysis.scores, *analysis.yardsticks)
    seeds: list[Row] = [
        [panel.task, panel.reward, panel.measure.name, row.arm, str(seed), score]
        for panel in panels
        for row in panel.rows
        for seed, score in zip(row.seeds, row.scores, strict=True)
    ]
    scores = _csv(["task", "reward", "measure", "arm", "seed", "score"], seeds)
    differences = _csv(_DIFFERENCE_HEADER, [_difference_row(p) for p in analysis.verdicts])
    return [
        ("scores.csv", "the score of every seed in every measure", _uri("text/csv", scores)),
        ("differences.csv", "the comparisons behind the verdicts", _uri("text/csv", differences)),
        ("scores.tex", "the final scores as a LaTeX table", _uri("text/x-tex", _latex(data, analysis.scores))),
        (
            "report.json",
            "verdicts, scores, ledgers and matrices; summary.json beside this file has every number",
            _uri("application/json", summary(data, analysis, series=False)),
        ),
    ]


def _latex(data: Data, panels: Sequence[ScorePanel]) -> str:
    lines = [
        rf"% Seed score: {panels[0].measure.source}; {data.confidence:.0%} t interval of the mean.".replace(
            "%;", r"\%;"
        )
        if panels
        else "% nothing to show",
        r"\begin{tabular}{lllrrrr}",
        r"\hline",
        r"Task & Reward & Arm & Seeds & Mean & Interval & IQM \\",
        r"\hline",
    ]
    for panel in panels:
        for row in panel.rows:
            cells = [panel.task, panel.reward, row.arm, str(len(row.scores)), *_latex_numbers(row)]
            lines.append(" & ".join(_latex_text(cell) for cell in cells) + r" \\")
    return "\n".join([*lines, r"\hline", r"\end{tabular}", ""])


def _latex_numbers(row: ArmScores) -> list[str]:
    interval = f"[{number(row.interval.low)}, {number(row.interval.high)}]" if row.interval else "no interval"
    return [number(row.mean), interval, number(row.iqm)]


_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "−": "$-$",
    "×": r"$\times$",
    "\u202f": r"\,",
    "—": "---",
    "∞": r"$\infty$",
    **{sign: f"$^{{{plain}}}$" for sign, plain in zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-", strict=True)},
    **{sign: rf"\{sign}" for sign in "&%$#_"},
}


def _latex_text(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)
