"""One tiny experiment, swept once and copied by every test that changes something."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from flows import workspace

from .helpers import arm, flows, params


@pytest.fixture(scope="session")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A swept experiment of two arms. Never change it."""
    folder = tmp_path_factory.mktemp("swept") / "experiment"
    workspace.initialise(folder)
    (folder / "params.yaml").write_text(params(plain=arm(weight=0), thrifty=arm()))
    result = flows("sweep", folder=folder)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


@pytest.fixture
def copied(swept: Path, tmp_path: Path) -> Path:
    """A copy of the swept experiment that the test may change."""
    return shutil.copytree(swept, tmp_path / "experiment", symlinks=True)


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[str], Path]:
    """Makes an experiment that has not run, from the text of its params.yaml."""

    def make(text: str) -> Path:
        made = tmp_path / "new"
        workspace.initialise(made)
        (made / "params.yaml").write_text(text)
        return made

    return make
