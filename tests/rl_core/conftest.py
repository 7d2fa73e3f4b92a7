"""A run small enough to train in a second, and a process that trains one so that it can be killed."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from rl_core import runner
from rl_core.config import resolve
from rl_core.link import CollectorLink
from rl_core.networks import init_mlp
from rl_core.presets import PRESETS
from rl_core.replay import Layout

SMALL: dict[str, Any] = {
    "task": "InvertedDoublePendulum-v5",
    "algorithm": "sac",
    "env_steps": 1200,
    "num_envs": 4,
    "vector_steps_per_chunk": 3,
    "batch_size": 32,
    "learning_starts": 100,
    "replay_capacity": 300,
    "eval_interval": 400,
    "eval_episodes": 3,
    "log_interval": 100,
    "checkpoint_interval": 100,
    "updates_per_vector_step": 4,
}

NETWORKS: dict[str, dict[str, Any]] = {"flash_sac": {"actor_width": 8, "critic_width": 8, "blocks": 1}}
for _name in PRESETS:
    NETWORKS.setdefault(_name, {"actor_hidden": [16], "critic_hidden": [16]})


def small(algorithm: str = "sac", **changes: Any) -> dict[str, Any]:
    """Return a small arm of any preset."""
    return {**SMALL, "algorithm": algorithm, **NETWORKS[algorithm], **changes}


def train(folder: Path, seed: int = 0, **changes: Any) -> dict[str, Any]:
    """Train a small run in this process; return its summary."""
    settings = resolve(small(**changes), where="arm")
    return runner.train(settings, seed, run_dir=folder / "run", state_dir=folder / "state", key="k", provenance={})


def status(folder: Path) -> dict[str, Any]:
    """Return what status.json says of a run that has not ended well."""
    content: dict[str, Any] = json.loads((folder / "state" / "status.json").read_text(encoding="utf-8"))
    return content


@pytest.fixture
def nothing_is_left_behind() -> Iterator[None]:
    """Fail a test after which a process of its own still runs, or something stands in shared memory."""
    shared = set(Path("/dev/shm").iterdir())
    yield
    for child in psutil.Process().children(recursive=True):
        assert "resource_tracker" in " ".join(child.cmdline()), child
    assert set(Path("/dev/shm").iterdir()) <= shared


ROOT = str(Path(__file__).parents[2])  # the code beside these tests, whatever is installed

SCRIPT = """
import json, sys
from pathlib import Path
from rl_core import config, runner
from rl_core.errors import Interrupted
if __name__ == "__main__":
    arm, seed, folder = json.loads(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    settings = config.resolve(arm, where="arm")
    folders = {"run_dir": folder / "run", "state_dir": folder / "state"}
    trace = Path(sys.argv[4]) if sys.argv[4:] else None
    try:
        runner.train(settings, seed, **folders, key="k", provenance={}, trace=trace)
    except Interrupted as stop:
        sys.exit(128 + stop.signum)
"""

DETERMINISTIC = ("policy.safetensors", "progress.csv", "curve.csv", "summary.json")


def start(arm: Mapping[str, Any], seed: int, folder: Path, *, trace: Path | None = None) -> subprocess.Popen[bytes]:
    """Train in a process of its own; its output goes to `folder/log`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.py").write_text(SCRIPT, encoding="utf-8")
    command = [sys.executable, str(folder / "train.py"), json.dumps(dict(arm)), str(seed), str(folder)]
    command += [str(trace)] if trace else []
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "PYTHONPATH": ROOT})


def artifacts(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every deterministic artifact of a finished run."""
    run = folder / "run"
    snapshots = {f"checkpoints/{p.name}": p.read_bytes() for p in sorted((run / "checkpoints").iterdir())}
    return {name: (run / name).read_bytes() for name in DETERMINISTIC} | snapshots


@pytest.fixture
def link(tmp_path: Path) -> Iterator[CollectorLink]:
    """A collector of its own, which counts as hanging after a second."""
    settings = resolve(small(hang_timeout_s=1.0), where="arm")
    actor = init_mlp((9, 16, 2), generator=torch.Generator())
    layout = Layout(obs_dim=9, action_dim=1, capacity=300, slack=300)
    with closing(CollectorLink(settings, 0, layout=layout, folder=tmp_path, weights=actor)) as made:
        yield made
