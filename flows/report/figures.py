"""Charts as inline SVG: the same data give the same bytes, and the page's style sheet decides the colours."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from typing import Any

import matplotlib as mpl
import numpy as np
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, MaxNLocator

from flows.report.compare import Comparison
from flows.report.ledger import Ledger
from flows.report.measures import ArmScores, Line
from flows.report.statistics import Array

COLOURS = 8
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h")
DASHES: tuple[Any, ...] = ("solid", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (8, 3)), (0, (3, 1.5)))

# Placeholders that no other colour equals; each becomes a variable of the page's style sheet, which dark mode and
# print set anew.
INK, MUTED, RULE = "#010203", "#010204", "#010205"
_ARM_PLACEHOLDERS = tuple(f"#01{number:02x}00" for number in range(1, COLOURS + 1))
_VARIABLES = {
    INK: "ink",
    MUTED: "muted",
    RULE: "rule",
    **{colour: f"arm-{index}" for index, colour in enumerate(_ARM_PLACEHOLDERS)},
}

_RC: dict[Any, Any] = {
    "svg.hashsalt": "seedbed",
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10.5,
    "axes.titlesize": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.unicode_minus": True,
    "axes.linewidth": 0.8,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "path.simplify": False,
}


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """An inline SVG with its name and its description."""

    svg: Markup
    title: str


@dataclass(frozen=True, kw_only=True)
class Style:
    """How an arm looks in every panel."""

    colour: str  # placeholder
    variable: int  # number of the style sheet's variable
    dash: Any  # as matplotlib takes it
    marker: str


def style(index: int) -> Style:
    """The look of the arm at `index`: colours repeat after eight arms, and then with another dash and marker."""
    variable = index % COLOURS
    return Style(
        colour=_ARM_PLACEHOLDERS[variable],
        variable=variable,
        dash=DASHES[(index + index // COLOURS) % len(DASHES)],
        marker=MARKERS[index % len(MARKERS)],
    )


@contextmanager
def _look() -> Iterator[None]:
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_RC)
        yield


def _axes(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width / 72, height / 72), layout=ConstrainedLayoutEngine(w_pad=0.03, h_pad=0.03))
    FigureCanvasSVG(figure)
    return figure, figure.add_subplot()


def _finish(figure: Figure, *, name: str, title: str, description: str) -> Drawing:
    buffer = StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return Drawing(svg=_inline(buffer.getvalue(), name=name, title=title, description=description), title=title)


def _inline(document: str, *, name: str, title: str, description: str) -> Markup:
    """Make matplotlib's document part of a page: no declarations, own ids, short numbers, the style sheet's colours."""
    body = document[document.index("<svg ") :]
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", body, flags=re.DOTALL)
    used = set(re.findall(r"(?:href=\"|url\()#([^\")]+)", body))
    body = re.sub(r' id="([^"]*)"', lambda found: f' id="{name}-{found[1]}"' if found[1] in used else "", body)
    body = re.sub(r'(href="|url\()#', rf"\1#{name}-", body).replace("xlink:href", "href")
    body = re.sub(r"<[^>]*>", lambda tag: _NUMBER.sub(_rounded, tag[0]), body)  # tags alone: labels stay as they are
    body = re.sub(r' d="([^"]*)"', lambda path: f' d="{_compact(path[1])}"', body)
    body = re.sub(r'style="([^"]*)"', lambda found: f'style="{_coloured(found[1])}"', body)
    view = re.search(r'viewBox="[^"]*"', body)
    opening = (
        f'<svg {view[0] if view else ""} role="img" aria-labelledby="{name}-title {name}-desc">'
        f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-desc">{escape(description)}</desc>'
    )
    body = _without_bare_groups(opening + body[body.index(">") + 1 :])
    return Markup(re.sub(r">\s+<", "><", body).strip())  # matplotlib escapes every text it draws


def _without_bare_groups(body: str) -> str:
    """Drop each `<g>` that carries nothing, with the `</g>` that ends it."""
    kept, bare = [], []
    for part in re.split(r"(<g>|<g [^>]*>|</g>)", body):
        if part.startswith("<g"):
            bare.append(part == "<g>")
        drop = bool(bare) and bare[-1] and part in ("<g>", "</g>")
        if part == "</g>":
            bare.pop()
        if not drop:
            kept.append(part)
    return "".join(kept)


_NUMBER = re.compile(r"\d+\.\d{3,}")
_POINT = re.compile(r"([ML]) (-?[\d.]+) (-?[\d.]+)")


def _rounded(found: re.Match[str]) -> str:
    return f"{float(found[0]):.2f}".rstrip("0").rstrip(".")


def _coloured(style_text: str) -> str:
    style_text = re.sub(r"(font: [\d.]+px|font-family:) [^;]*", r"\1 var(--sans)", style_text)
    for colour, variable in _VARIABLES.items():
        style_text = style_text.replace(colour, f"var(--{variable})")
    return style_text.replace("; ", ";").replace(": ", ":")


def _compact(path: str) -> str:
    """A polyline as steps in tenths of a unit, so that rounding does not add up; any other path with fewer blanks."""
    path = " ".join(path.split())
    points = _POINT.findall(path)
    if " ".join(f"{kind} {x} {y}" for kind, x, y in points) != path.removesuffix(" z"):
        return re.sub(r"([A-Za-z]) ", r"\1", path)
    parts, last = [], (0, 0)
    for kind, *place in points:
        x, y = (round(10 * float(value)) for value in place)
        parts.append(f"M{x / 10:g} {y / 10:g}" if kind == "M" else f"l{(x - last[0]) / 10:g} {(y - last[1]) / 10:g}")
        last = (x, y)
    return "".join(parts).replace(" -", "-") + ("z" if path.endswith("z") else "")


def _steps(value: float, _position: object = None) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def _plain(value: float, _position: object = None) -> str:
    return f"{value:,.6g}".replace(",", "\u202f").replace("-", "−")


def _clock(lines: Sequence[Line]) -> tuple[float, str]:
    longest = max((float(x[-1]) for line in lines for x, _ in line.seeds.values()), default=0.0)
    if longest >= 3 * 3600:
        return 3600.0, "h"
    return (60.0, "min") if longest >= 300 else (1.0, "s")


AXIS_TEXT = {"env_steps": "Env steps", "active_s": "Active training time", "updates": "Gradient updates"}


def curve(
    lines: Sequence[Line], arms: Mapping[str, int], *, name: str, axis: str, label: str, title: str, description: str
) -> Drawing:
    """Learning curves: a thin line per seed, the mean with its band on top."""
    with _look():
        figure, axes = _axes(390, 262)
        scale, unit = _clock(lines) if axis == "active_s" else (1.0, "")
        for line in lines:
            look = style(arms[line.arm])
            x, y = _one_path(line)
            axes.plot(x / scale, y, color=look.colour, linewidth=0.7, alpha=0.45)
            axes.fill_between(line.grid / scale, line.low, line.high, color=look.colour, alpha=0.16, linewidth=0)
            if len(line.grid):
                every = max(len(line.grid) // 7, 1)
                axes.plot(
                    line.grid / scale,
                    line.mean,
                    color=look.colour,
                    linewidth=1.9,
                    linestyle=look.dash,
                    marker=look.marker,
                    markersize=4.5,
                    markevery=(every // 2, every),
                )
        axes.set_xlabel(f"{AXIS_TEXT[axis]} ({unit})" if unit else AXIS_TEXT[axis])
        axes.set_ylabel(label)
        if (limits := visible_range(lines)) is not None:
            axes.set_ylim(*limits)
        _ticks(axes, steps=axis != "active_s")
        if not any(line.seeds for line in lines):
            _nothing(axes)
        return _finish(figure, name=name, title=title, description=description)


def visible_range(lines: Sequence[Line]) -> tuple[float, float] | None:
    """What the seeds span and 40 % beyond: the band of two seeds alone would press every line flat."""
    values = np.concatenate([y for line in lines for _, y in line.seeds.values()] or [np.empty(0)])
    values = values[np.isfinite(values)]
    if not len(values) or values.min() == values.max():
        return None
    low, high = float(values.min()), float(values.max())
    bands = np.concatenate([edge for line in lines for edge in (line.low, line.high)])
    bands = bands[np.isfinite(bands)]
    reach = 0.4 * (high - low)
    bottom = max(low - reach, min(low, float(bands.min()))) if len(bands) else low
    top = min(high + reach, max(high, float(bands.max()))) if len(bands) else high
    margin = 0.04 * (top - bottom)
    return bottom - margin, top + margin


def _one_path(line: Line) -> tuple[Array, Array]:
    """All seeds of an arm in one path, with gaps between them: a fraction of the bytes of a path each."""
    gap = np.array([np.nan])
    xs = [part for x, _ in line.seeds.values() for part in (x, gap)]
    ys = [part for _, y in line.seeds.values() for part in (y, gap)]
    return (np.concatenate(xs), np.concatenate(ys)) if xs else (gap, gap)


def _ticks(axes: Axes, *, steps: bool) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(FuncFormatter(_steps if steps else _plain))
    axes.yaxis.set_major_formatter(FuncFormatter(_plain))
    axes.grid(visible=False, axis="x")


def _nothing(axes: Axes) -> None:
    axes.text(0.5, 0.5, "nothing to show", transform=axes.transAxes, ha="center", color=MUTED)
    axes.set_xticks([])
    axes.set_yticks([])


def dots(
    rows: Sequence[ArmScores], arms: Mapping[str, int], *, name: str, label: str, title: str, description: str
) -> Drawing:
    """Every seed as a dot; under them the mean as a bar and the interval as a line."""
    with _look():
        figure, axes = _axes(390, 56 + 34 * len(rows))
        for place, row in enumerate(rows):
            look = style(arms[row.arm])
            shift = np.linspace(0.16, 0.34, len(row.scores)) if len(row.scores) > 1 else np.array([0.25])
            order = np.argsort(np.argsort(row.scores, kind="stable"), kind="stable") % 2
            heights = place - np.where(order == 0, shift.min(), shift.max())
            axes.plot(
                row.scores,
                heights,
                linestyle="none",
                marker=look.marker,
                markersize=5.5,
                color=look.colour,
                alpha=0.8,
                markeredgewidth=0,
            )
            if row.interval:
                axes.plot([row.interval.low, row.interval.high], [place + 0.1] * 2, color=look.colour, linewidth=2)
            if row.scores:
                axes.plot([row.mean], [place + 0.1], marker="|", markersize=13, markeredgewidth=2.4, color=look.colour)
        axes.set_yticks(range(len(rows)), [row.arm for row in rows])
        axes.set_ylim(len(rows) - 0.5, -0.6)
        axes.set_xlabel(label)
        axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.xaxis.set_major_formatter(FuncFormatter(_plain))
        axes.grid(visible=False, axis="y")
        return _finish(figure, name=name, title=title, description=description)


def forest(pairs: Sequence[Comparison], *, name: str, label: str, title: str, description: str) -> Drawing:
    """Differences of pairs with their adjusted intervals around zero."""
    with _look():
        figure, axes = _axes(430, 56 + 27 * len(pairs))
        for place, pair in enumerate(pairs):
            if pair.holm_interval:
                axes.plot([pair.holm_interval.low, pair.holm_interval.high], [place] * 2, color=INK, linewidth=1.6)
            if np.isfinite(pair.difference):
                face = INK if pair.decided else "none"
                axes.plot([pair.difference], [place], marker="o", markersize=6, color=INK, markerfacecolor=face)
        axes.axvline(0, color=MUTED, linewidth=1, linestyle=(0, (3, 2)))
        axes.set_yticks(range(len(pairs)), [f"{pair.first} − {pair.second}" for pair in pairs])
        axes.set_ylim(len(pairs) - 0.4, -0.6)
        axes.set_xlabel(label)
        axes.xaxis.set_major_locator(MaxNLocator(7))
        axes.xaxis.set_major_formatter(FuncFormatter(_plain))
        axes.grid(visible=False, axis="y")
        return _finish(figure, name=name, title=title, description=description)


def ledger(found: Ledger, arms: Mapping[str, int], *, name: str, title: str, description: str) -> Drawing:
    """Weighted terms over training in ink, each with its own dash and its name; the return in the arm's colour."""
    with _look():
        figure, axes = _axes(390, 262)
        look = style(arms[found.arm])
        ends: list[tuple[float, str, str]] = []
        for index, (term, values) in enumerate(found.terms.items()):
            axes.plot(found.grid, values, color=MUTED, linewidth=1.3, linestyle=DASHES[(index + 1) % len(DASHES)])
            ends.append((_last(values), term, MUTED))
        axes.plot(found.grid, found.total, color=look.colour, linewidth=2)
        ends.append((_last(found.total), "return", look.colour))
        axes.axhline(0, color=MUTED, linewidth=0.8)
        axes.margins(x=0)
        axes.set_xlabel("Env steps")
        axes.set_ylabel("Per episode, weighted")
        _ticks(axes, steps=True)
        _label_ends(axes, found.grid, ends)
        return _finish(figure, name=name, title=title, description=description)


def _last(values: Array) -> float:
    known = values[np.isfinite(values)]
    return float(known[-1]) if len(known) else float("nan")


def _label_ends(axes: Axes, grid: Array, ends: Sequence[tuple[float, str, str]]) -> None:
    """Write each line's name behind its end, moved apart where two would overlap."""
    shown = sorted((end for end in ends if np.isfinite(end[0])), key=lambda end: end[0])
    if not shown or not len(grid):
        _nothing(axes)
        return
    low, high = axes.get_ylim()
    gap = (high - low) * 0.062
    heights = [end[0] for end in shown]
    for index in range(1, len(heights)):
        heights[index] = max(heights[index], heights[index - 1] + gap)
    for height, (_, text, colour) in zip(heights, shown, strict=True):
        axes.annotate(
            text,
            (grid[-1], height),
            xytext=(5, 0),
            textcoords="offset points",
            color=colour,
            fontsize=9.5,
            va="center",
            annotation_clip=False,
        )


def swatch(index: int) -> Markup:
    """An arm's dash and marker as a symbol `look-<index>`, for legends and tables to use."""
    with _look():
        figure = Figure(figsize=(30 / 72, 12 / 72))
        FigureCanvasSVG(figure)
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.set_axis_off()
        look = style(index)
        axes.plot([0, 1], [0, 0], color=look.colour, linewidth=1.9, linestyle=look.dash)
        axes.plot([0.5], [0], color=look.colour, marker=look.marker, markersize=6)
        axes.set_xlim(0.02, 0.98)
        drawing = _finish(figure, name=f"swatch-{index}", title="", description="")
    content = re.search(r"</desc>(.*)</svg>", str(drawing.svg), re.DOTALL)
    return Markup(f'<symbol id="look-{index}" viewBox="0 0 30 12">{content[1] if content else ""}</symbol>')
