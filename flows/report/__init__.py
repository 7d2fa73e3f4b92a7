"""The report of an experiment: one HTML file that needs nothing else, and its numbers as JSON."""

from pathlib import Path

from flows.experiment import Experiment
from rl_core.files import write_atomic

__all__ = ["build"]


def build(experiment: Experiment) -> Path:
    """Write report/index.html and report/summary.json from whatever the runs have left; return the page's path."""
    from flows.report import data, exports, page
    from flows.report.analysis import analyse

    found = data.read(experiment)
    analysis = analyse(found)
    folder = experiment.directory / "report"
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "summary.json", exports.summary(found, analysis).encode())
    write_atomic(folder / "index.html", page.render(found, analysis).encode())
    return folder / "index.html"
