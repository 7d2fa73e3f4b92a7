import numpy as np
import pytest

from flows.report import data, progress

from .conftest import Folder

PLAIN = {"task": "HalfCheetah-v5", "algorithm": "sac", "env_steps": 30_000}


def test_a_level_must_be_held_to_be_reached() -> None:
    values = np.array([0.0, 5, 0, 5, 5, 5, 0])
    assert progress.first_held(values, 5.0, k=1) == 1
    assert progress.first_held(values, 5.0, k=3) == 3
    assert progress.first_held(values, 5.0, k=4) is None
    assert progress.first_held(values[:2], 0.0, k=3) is None


@pytest.mark.parametrize(
    ("values", "median"),
    [
        ([1, 2, 3], 2),
        ([1, None, 3], 3),
        ([1, None, None], np.inf),
        ([1, 3], 2),
        ([1, None], np.inf),
        ([2, None, 4, 6], 5),
    ],
)
def test_a_seed_that_never_arrives_counts_as_later_than_all(values: list[float | None], median: float) -> None:
    assert progress.censored_median(values) == median


def test_levels_lie_between_the_start_and_the_best_arm(planned) -> None:
    folder = planned(arms={"slow": PLAIN, "fast": PLAIN}, seeds=[0, 1])
    for seed in (0, 1):
        for arm, values in (("slow", [0, 20, 40, 60, 60, 60]), ("fast", [0, 100, 100, 100, 100, 100])):
            folder.write(arm, seed, points=6)
            folder.edit(arm, seed, "curve.csv", lambda c, v=values: c["return_mean"].__setitem__(slice(None), v))
    found = next(e for e in progress.efficiencies(data.read(folder.experiment)) if e.reward)
    assert found.levels == (50.0, 90.0)
    slow, fast = found.rows
    assert (fast.reached[1].median_env_steps, fast.reached[1].count) == (10_000, 2)
    assert slow.reached[0].median_env_steps == 20_000
    assert (slow.reached[1].median_env_steps, slow.reached[1].count) == (np.inf, 0)
    assert fast.area == pytest.approx(90.0)
    assert 0 < fast.reached[1].median_seconds < slow.reached[0].median_seconds


def test_where_lower_is_better_a_level_is_reached_from_above() -> None:
    from flows.report.measures import Measure

    measure = Measure(name="gap", text="", unit="m", better="lower", source="")
    run = data.Run(
        arm="a",
        seed=0,
        state="finished",
        curve={"env_steps": np.arange(1.0, 6), "yardstick/gap": np.array([9.0, 6, 3, 1, 1])},
    )
    levels = progress._levels([[run]], measure, k=2)
    assert levels == pytest.approx((5.0, 1.8))
    assert progress._reached([run], measure, levels[0], k=2).env_steps == {0: 3.0}


def test_a_return_that_rises_while_the_yardstick_falls_is_flagged(folder: Folder) -> None:
    def hack(columns: dict[str, np.ndarray]) -> None:
        half = len(columns["env_steps"]) // 2
        fall = np.linspace(1.0, 0.2, half)
        columns["yardstick/distance"][-half:] = columns["yardstick/distance"][half] * fall

    folder.edit("sac-lean", 1, "curve.csv", hack)
    found = {proxy.arm: proxy for proxy in progress.proxies(data.read(folder.experiment))}
    assert found["sac-lean"].flagged == (1,)
    assert found["sac-speed"].flagged == ()
    assert found["sac-speed"].correlations[0] > 0.9


def test_agreement_is_undefined_where_nothing_changes() -> None:
    flat, rising = np.ones(10), np.arange(10.0)
    assert np.isnan(progress.rank_correlation(flat, rising))
    assert not progress.parted(rising, flat)
    assert progress.rank_correlation(rising, -rising) == pytest.approx(-1)
