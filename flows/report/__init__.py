"""The report of an experiment: one HTML file that needs nothing else, and its numbers as JSON."""

import os
import tempfile
from pathlib import Path

from flows.experiment import Experiment

__all__ = ["build"]


def build(experiment: Experiment) -> Path:
    """Write report/index.html and report/summary.json from whatever the runs have left; return the page's path."""
    from flows.report import data, exports, page
    from flows.report.analysis import analyse

    found = data.read(experiment)
    analysis = analyse(found)
    folder = experiment.directory / "report"
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "summary.json", exports.summary(found, analysis))
    _write(folder / "index.html", page.render(found, analysis))
    return folder / "index.html"


def _write(path: Path, text: str) -> None:
    """Replace a file as a whole: a reader sees the old bytes or the new ones."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
