"""What a person sees: the fill of the buffer, then the way to the end; plain lines where there is no terminal."""

from contextlib import closing
from typing import Any

import pytest

from rl_core.config import resolve
from rl_core.progress import Display
from tests.rl_core.conftest import small

SETTINGS = resolve(small(), where="arm")


def show(display: Display, env_steps: int, mean_return: float | None) -> Any:
    times = {"wall_s": 10.0, "active_s": 2.0}
    display.update(env_steps, updates=70, mean_return=mean_return, write_read_ratio=None, times=times)
    return display._live.tasks[0] if display._live else None


def test_a_bar_shows_the_fill_until_learning_starts_and_then_the_way_to_the_end() -> None:
    with closing(Display(SETTINGS, quiet=False)) as display:
        task = show(display, 60, None)
        assert (task.description, task.completed, task.total) == ("filling the buffer", 60, 100)
        assert "buffer 20%" in task.fields["detail"]
        assert "no episode yet" in task.fields["detail"]
        task = show(display, 600, -3.0)
        assert (task.description, task.completed, task.total) == ("env steps", 600, 1200)
        assert "60 steps/s · 7 updates/s" in task.fields["detail"]  # wall time, waiting included
        assert "return -3.0" in task.fields["detail"]


def test_without_a_terminal_there_are_plain_lines_alone(capfd: pytest.CaptureFixture[str]) -> None:
    with closing(Display(SETTINGS)) as display:
        assert show(display, 60, None) is None
        display.evaluated(400, -2.0, 0.5)
    out, err = capfd.readouterr()
    assert out == "      400 / 1,200 env steps: evaluation return -2.0 ± 0.5\n"
    assert err == ""
