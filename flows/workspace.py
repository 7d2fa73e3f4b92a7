"""`init`: a new experiment's folder."""

import sys
from pathlib import Path

from flows import experiment
from flows.experiment import PARAMS_FILE
from flows.stages import CODE_ROOT, PIPELINE_FILE, files
from rl_core.errors import SettingsError

TEMPLATES = Path(__file__).parent / "templates"
PIPELINE_TEMPLATE = "pipeline.yaml"  # DVC takes every dvc.yaml in the repository for one of its own
GIT_IGNORED = ("/.seedbed/", "/report/", "/runs/")
DVC_IGNORED = ("__pycache__", "*.pyc")


def initialise(directory: Path, *, params: Path | None = None) -> None:
    """Make `directory` an experiment that any verb can run, with a copy of `params` or of the starter.

    Raises:
        SettingsError: the folder cannot be made or holds something, or `params` is no valid experiment.
    """
    source = params or TEMPLATES / PARAMS_FILE
    if params is not None:
        _require_valid(params, directory)
    try:
        if directory.exists() and not directory.is_dir():
            raise SettingsError(f"{directory}: is a file; name a new folder")
        if directory.is_dir() and any(directory.iterdir()):
            raise SettingsError(f"{directory}: is not empty; name a new or an empty folder")
        directory.mkdir(parents=True, exist_ok=True)
        directory = directory.resolve()
    except OSError as error:
        raise SettingsError(f"{directory}: cannot be made: {error.strerror}") from None

    from flows import versioning

    versioning.initialise(directory)
    (directory / PARAMS_FILE).write_bytes(source.read_bytes())
    (directory / PIPELINE_FILE).write_text(pipeline(directory))
    (directory / ".gitignore").write_text("\n".join(GIT_IGNORED) + "\n")
    (directory / ".dvcignore").write_text("\n".join(DVC_IGNORED) + "\n")


def _require_valid(params: Path, directory: Path) -> None:
    if params.is_dir():
        raise SettingsError(f"--params {params}: is a folder; name a params.yaml")
    if not params.is_file():
        raise SettingsError(f"--params {params}: no such file")
    experiment.load(directory, file=params)


def pipeline(directory: Path) -> str:
    """Return a dvc.yaml whose stages depend on the code that is running now."""
    text = (TEMPLATES / PIPELINE_TEMPLATE).read_text()
    if directory.is_relative_to(CODE_ROOT):
        up = "../" * len(directory.relative_to(CODE_ROOT).parts)
        return text.replace("{{ code }}", up).replace("{{ scripts }}", f"$PWD/{up}.venv/bin")
    lines = [line for written in text.splitlines() for line in _outside(written)]
    return "\n".join(lines).replace("{{ scripts }}", str(Path(sys.prefix) / "bin")) + "\n"


def _outside(line: str) -> list[str]:
    """Name every file of the code: outside of its project DVC would take byte-code for a change."""
    before, marker, name = line.partition("{{ code }}")
    return [f"{before}{path}" for path in files(CODE_ROOT / name)] if marker else [line]
