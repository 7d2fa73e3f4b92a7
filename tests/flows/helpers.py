"""A tiny experiment, and commands run as a user runs them."""

import os
import subprocess
import sys
from pathlib import Path

ARM = """
    task: InvertedDoublePendulum-v5
    algorithm: sac
    env_steps: {env_steps}
    learning_starts: 100
    batch_size: 16
    replay_capacity: 400
    actor_hidden: [16]
    critic_hidden: [16]
    eval_interval: 200
    eval_episodes: 1
    log_interval: 100
    checkpoint_interval: 100
    reward_weights: {{cost_power: {weight}}}
"""


def params(*, seeds: str = "[0]", **arms: str) -> str:
    """Return the text of a params.yaml with these arms."""
    sections = "".join(f"  {name}:{text}" for name, text in arms.items())
    return (
        f"experiment: {{title: Tiny, arms: [{', '.join(arms)}], seeds: {seeds}}}\n"
        "evaluation: {episodes: 2, seed: 1000}\n"
        "report: {final_evaluations: 1, confidence: 0.95}\n"
        f"arms:\n{sections}"
    )


def arm(*, env_steps: int = 400, weight: float = -0.01) -> str:
    return ARM.format(env_steps=env_steps, weight=weight)


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "DVC_NO_ANALYTICS": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }


def run(*command: str, folder: Path, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    """Run a command in the folder; its output is text."""
    return subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=timeout_s, check=False
    )


def flows(*arguments: str, folder: Path, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, "-m", "flows", *arguments, folder=folder, timeout_s=timeout_s)


def dvc(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, "-m", "dvc", *arguments, folder=folder)


def processes_in(folder: Path) -> list[str]:
    """Return the command lines of all processes that work in the folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink() == folder:
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return [line for line in found if line]
