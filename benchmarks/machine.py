"""What every benchmark prints: who measured, and one closing JSON line."""

import json
import os
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    """Return the identity of this machine, as far as it decides a figure."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "torch": version("torch"),
        "mujoco": version("mujoco"),
    }


def closing_line(
    name: str, figures: Mapping[str, float], *, spread: Mapping[str, Any], limits: Mapping[str, tuple[str, float]]
) -> tuple[str, bool]:
    """Return a benchmark's last line and whether every limit holds; a limit is (">=" or "<=", number)."""
    holds = {">=": float.__ge__, "<=": float.__le__}
    passed = all(holds[sign](float(figures[figure]), float(bound)) for figure, (sign, bound) in limits.items())
    content = {
        "benchmark": name,
        "figures": dict(figures),
        "spread": dict(spread),
        "limits": {figure: list(limit) for figure, limit in limits.items()},
        "passed": passed,
        "machine": machine(),
    }
    return json.dumps(content, sort_keys=False), passed
