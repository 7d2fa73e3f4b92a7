"""What the report gives away besides its page: JSON, CSV and LaTeX, as text and as links that hold their file."""

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any

import numpy as np
import pandas as pd

from flows.report import compare
from flows.report.analysis import Analysis
from flows.report.compare import Comparison
from flows.report.data import Data
from flows.report.measures import ArmScores, Line, ScorePanel
from flows.report.progress import Reached
from flows.report.record import Provenance
from flows.report.wording import number

Row = Sequence[str | float | None]
Cells = Sequence[Row]


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
    plain = jsonable(content)
    if not series:
        del plain["yardstick_differences"]
        for ledger in plain["ledgers"]:
            for name in ("grid", "terms", "total", "residual", "length"):
                del ledger[name]
        del plain["provenance"]["hashes"]
    layout: dict[str, Any] = {"indent": 1} if series else {"separators": (",", ":")}
    return json.dumps(plain, sort_keys=True, ensure_ascii=False, allow_nan=False, **layout) + "\n"


def jsonable(value: Any) -> Any:
    """Dataclasses, mappings and arrays as JSON's own types; a float that is not finite becomes None."""
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
        return jsonable(plain)
    if isinstance(value, Mapping):
        return {str(key): jsonable(inner) for key, inner in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [jsonable(inner) for inner in (value.tolist() if isinstance(value, np.ndarray) else value)]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


DIFFERENCE_HEADER = (
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


def difference_row(pair: Comparison) -> list[str | float | None]:
    """One comparison in the order of `DIFFERENCE_HEADER`, in the measure's unit; None where nothing was tested."""
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


def link(kind: str, content: str) -> str:
    """A data URI of the MIME type `kind` that holds the text as UTF-8 in base64."""
    return f"data:{kind};charset=utf-8;base64,{base64.b64encode(content.encode()).decode()}"


def csv_text(header: Sequence[str], rows: Cells) -> str:
    """CSV with numbers to 8 significant digits; an empty cell stands for None and for what is not finite."""
    table = pd.DataFrame([list(map(_cell, row)) for row in rows], columns=list(header), dtype=str)
    return table.to_csv(index=False, lineterminator="\n")


def _cell(value: str | float | None) -> str:
    if isinstance(value, float):
        return f"{value:.8g}" if math.isfinite(value) else ""
    text = "" if value is None else str(value)
    return f"'{text}" if text[:1] in "=+-@\t\r" and text else text  # a spreadsheet would run it as a formula


def downloads(data: Data, analysis: Analysis) -> list[tuple[str, str, str]]:
    """What the page hands out besides the charts' tables: file name, what it is, data URI."""
    panels = (*analysis.scores, *analysis.yardsticks)
    seeds: list[Row] = [
        [panel.task, panel.reward, panel.measure.name, row.arm, str(seed), score]
        for panel in panels
        for row in panel.rows
        for seed, score in zip(row.seeds, row.scores, strict=True)
    ]
    scores = csv_text(["task", "reward", "measure", "arm", "seed", "score"], seeds)
    differences = csv_text(DIFFERENCE_HEADER, [difference_row(p) for p in analysis.verdicts])
    return [
        ("scores.csv", "the score of every seed in every measure", link("text/csv", scores)),
        ("differences.csv", "the comparisons behind the verdicts", link("text/csv", differences)),
        ("scores.tex", "the final scores as a LaTeX table", link("text/x-tex", _latex(data, analysis.scores))),
        (
            "report.json",
            "verdicts, scores, ledgers and matrices; summary.json beside this file has every number",
            link("application/json", summary(data, analysis, series=False)),
        ),
    ]


def _latex(data: Data, panels: Sequence[ScorePanel]) -> str:
    source = panels[0].measure.source if panels else "nothing to show"
    lines = [
        f"% Seed score: {source}; interval: {data.confidence:.0%} t interval of the mean.",
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
