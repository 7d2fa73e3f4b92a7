"""The environment of every pipeline process: offline, quiet, and with a Prefect home of its own."""

import os
import sys
from pathlib import Path

from flows.experiment import STATE_FOLDER
from flows.stages import CODE_ROOT

SERVER_START_TIMEOUT_S = 120


def use(directory: Path) -> None:
    """Set this process's environment, and so its children's; call it before prefect or dvc is imported."""
    os.environ.update(pipeline(directory))


def pipeline(directory: Path) -> dict[str, str]:
    python_folder = str(Path(sys.executable).parent)
    return {
        "DO_NOT_TRACK": "1",
        "DVC_NO_ANALYTICS": "1",
        "PREFECT_HOME": str(directory / STATE_FOLDER / "prefect"),
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",  # the terminal shows our own lines
        "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "false",  # what is done stands in dvc.lock alone
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": str(SERVER_START_TIMEOUT_S),
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        # the stage commands say `python -m flows`: this interpreter, this code
        "PATH": os.pathsep.join([python_folder, os.environ.get("PATH", "")]),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(CODE_ROOT), os.environ.get("PYTHONPATH")])),
    }
