"""The report as one HTML file."""

import json
import math
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from flows.report import compare, exports, figures, progress, record, statistics
from flows.report.analysis import Analysis
from flows.report.charts import charts
from flows.report.data import Data, weights_text
from flows.report.record import BUDGET
from flows.report.wording import join, number, quantity, seeds_text

SHOWN_VERDICTS = 12  # undecided ones behind these are folded away


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
    environment.filters.update(also_apart=compare.also_apart)
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
        charts=charts(analysis, arms),
        downloads=exports.downloads(data, analysis),
        provenance_json=_script(analysis.provenance),
        **{name: getattr(analysis, name) for name in Analysis.__dataclass_fields__},
    )


def _source(name: str) -> str:
    return resources.files("flows.report").joinpath(name).read_text(encoding="utf-8")


def _script(value: Any) -> Markup:
    """JSON that no text in it can end: the page's parser sees no angle bracket."""
    text = json.dumps(exports.jsonable(value), sort_keys=True, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))
