"""What a run leaves: its status while it runs, its files when it has ended, the facts of its machine."""

import contextlib
import os
import platform
import resource
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rl_core import KERNEL_PINS
from rl_core.config import RunSettings
from rl_core.files import remove_unfinished, write_json

TABLES = ("progress.csv", "curve.csv", "timing.csv")
SNAPSHOTS = "checkpoints"
_PUBLISHED = ("policy.safetensors", SNAPSHOTS, *TABLES, "summary.json", "timing.json")
_EVALUATION_FILES = ("evaluation.csv", "evaluation.json")


class Status:
    """status.json: what can be said of a run that has no artifacts yet."""

    def __init__(self, path: Path, settings: RunSettings) -> None:
        self._path = path
        self._total = settings.vector_steps * settings.num_envs
        self._env_steps = 0

    def write(self, state: str, *, env_steps: int | None = None, reason: str | None = None) -> None:
        """Write the state: running, interrupted or failed, and why."""
        self._env_steps = self._env_steps if env_steps is None else env_steps
        content = {"state": state, "env_steps": self._env_steps, "env_steps_total": self._total, "pid": os.getpid()}
        with contextlib.suppress(OSError):  # a full disk must not hide why the run failed
            write_json(self._path, content | ({"reason": reason} if reason else {}))


def publish(work: Path, run_dir: Path) -> None:
    """Put the finished artifacts into place. An evaluation of another policy is removed with that policy."""
    run_dir.mkdir(parents=True, exist_ok=True)
    remove_unfinished(run_dir)
    old, new = run_dir / "policy.safetensors", work / "policy.safetensors"
    if not old.exists() or old.read_bytes() != new.read_bytes():
        for name in _EVALUATION_FILES:
            (run_dir / name).unlink(missing_ok=True)
    for name in _PUBLISHED:
        _copy_into(work / name, run_dir)


def _copy_into(source: Path, folder: Path) -> None:
    """Copy a file or a folder under a temporary name, then rename it over the old one.

    A copy, not a move: a run killed in here still has all it needs to resume and publish again.
    """
    target, temporary = folder / source.name, folder / f".{source.name}.tmp"
    if source.is_dir():
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.copytree(source, temporary)
        shutil.rmtree(target, ignore_errors=True)
    else:
        shutil.copyfile(source, temporary)
    temporary.replace(target)


def machine() -> dict[str, Any]:
    """Return what timing.json says of the machine, the packages and the pinned kernels."""
    packages = {name: version(name) for name in ("torch", "numpy", "mujoco", "gymnasium")}
    return {
        "kernels": {name: os.environ.get(name) for name in KERNEL_PINS},
        "versions": {"python": platform.python_version(), **packages},
        "host": platform.node(),
        "cpu": _cpu_name(),
    }


def peak_memory_mb() -> float:
    """Return the peak memory of this process and its largest ended child, in MB."""
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round((peak_kb + resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) / 1024, 1)


def available_memory_bytes() -> int:
    """Return what the system says new work can use without swapping."""
    for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
