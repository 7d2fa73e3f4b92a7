"""When a run first reached its goal, told from its tables."""

from pathlib import Path

import pytest

from benchmarks.many_environments import ARMS, first_reached
from rl_core import config


def tables(folder: Path, returns: list[float]) -> Path:
    curve = [f"{1000 * i},{value}" for i, value in enumerate(returns)]
    timing = [f"{step},{step / 100}" for step in range(200, 5000, 200)]
    (folder / "curve.csv").write_text("\n".join(["env_steps,return_mean", *curve]) + "\n", encoding="utf-8")
    (folder / "timing.csv").write_text("\n".join(["env_steps,active_s", *timing]) + "\n", encoding="utf-8")
    return folder


def test_the_first_evaluation_at_the_goal_counts_with_its_training_time(tmp_path: Path) -> None:
    assert first_reached(tables(tmp_path, [-100, 1999, 2000, 500])) == {"env_steps": 2000, "active_s": 20}


def test_a_run_that_never_gets_there_says_so(tmp_path: Path) -> None:
    assert first_reached(tables(tmp_path, [-100, 1999])) is None


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_resolves_with_as_many_environments_as_promised(arm: str) -> None:
    settings = config.resolve(ARMS[arm], where=arm)
    assert settings.num_envs >= (64 if arm.startswith("fast") else 16)
