"""What a run says of its returns: nothing before there is one, and negative ones as they are."""

from contextlib import closing
from pathlib import Path

import numpy as np

from rl_core.envs.reacher import Reacher
from rl_core.metrics import FIRST_TERM
from rl_core.recorder import Recorder


def episodes(*returns: float) -> np.ndarray:
    rows = np.zeros((len(returns), FIRST_TERM + len(Reacher.terms)))
    rows[:, 0] = returns
    return rows


def test_before_the_first_episode_ends_there_is_no_return(tmp_path: Path) -> None:
    with closing(Recorder(tmp_path, Reacher, (), {})) as recorder:
        recorder.add_episodes(episodes())
        recorder.evaluation_returns = [-1.0]
        summary = recorder.summary()
    assert (summary["episodes"], summary["final_return"], summary["best_return"]) == (0, None, None)
    assert summary["episode_length"] is None


def test_a_run_whose_returns_are_all_negative_has_a_negative_best(tmp_path: Path) -> None:
    with closing(Recorder(tmp_path, Reacher, (), {})) as recorder:
        for mean in (-9.0, -3.0, -15.0):
            recorder.add_episodes(episodes(*[mean] * 100))
        recorder.add_episodes(episodes())
        recorder.evaluation_returns = [-8.0, -2.0, -4.0]
        summary = recorder.summary()
    assert (summary["final_return"], summary["best_return"]) == (-15, -3)
    assert (summary["final_evaluation_return"], summary["best_evaluation_return"]) == (-4, -2)
