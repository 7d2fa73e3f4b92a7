import numpy as np
import pytest

from flows.report import data, measures

from .conftest import Folder, read_csv

PLAIN = {"task": "HalfCheetah-v5", "algorithm": "sac", "env_steps": 30_000}


def test_a_score_is_the_mean_of_the_last_evaluations(folder: Folder) -> None:
    found = data.read(folder.experiment)
    scores = measures.arm_scores(found, "sac-speed", measures.return_measure(found))
    for seed, score in zip(scores.seeds, scores.scores, strict=True):
        curve = read_csv(folder.experiment.run_dir("sac-speed", seed) / "curve.csv")
        assert score == pytest.approx(curve["return_mean"][-3:].mean())


def test_episodes_are_averaged_within_a_seed_first(folder: Folder) -> None:
    found = data.read(folder.experiment)
    measure = measures.yardstick_measure(found, found.tasks[0], "distance")
    scores = measures.arm_scores(found, "td3-lean", measure)
    assert len(scores.scores) == 3
    expected = [
        read_csv(folder.experiment.run_dir("td3-lean", seed) / "evaluation.csv")["yardstick/distance"].mean()
        for seed in scores.seeds
    ]
    assert scores.mean == pytest.approx(np.mean(expected))
    assert scores.std == pytest.approx(np.std(expected, ddof=1))


def test_a_score_that_is_not_finite_is_left_out_by_name(folder: Folder) -> None:
    def spoil(columns: dict[str, np.ndarray]) -> None:
        columns["return_mean"][-2] = np.nan

    folder.edit("sac-speed", 1, "curve.csv", spoil)
    found = data.read(folder.experiment)
    scores = measures.arm_scores(found, "sac-speed", measures.return_measure(found))
    assert scores.seeds == (0, 2)
    excluded = [(item.arm, item.seed, item.what, item.reason) for item in measures.score_exclusions(found)]
    assert excluded == [("sac-speed", 1, "its score in return", "return_mean in curve.csv is not finite")]


def test_returns_of_different_rewards_never_share_a_panel(folder: Folder) -> None:
    found = data.read(folder.experiment)
    grouped = [(panel.reward, tuple(row.arm for row in panel.rows)) for panel in measures.final_scores(found)]
    assert grouped == [("standard", ("sac-speed", "td3-speed")), ("lean", ("sac-lean", "td3-lean"))]
    for panel in measures.curves(found):
        weights = {tuple(sorted(found.arms[line.arm].weights.items())) for line in panel.axes["env_steps"]}
        assert not panel.measure.is_return or len(weights) == 1


def test_the_mean_curve_is_the_mean_of_the_seeds(folder: Folder) -> None:
    found = data.read(folder.experiment)
    panel = next(panel for panel in measures.curves(found) if panel.reward == "standard")
    line = panel.axes["env_steps"][0]
    columns = [read_csv(folder.experiment.run_dir(line.arm, seed) / "curve.csv") for seed in (0, 1, 2)]
    assert np.array_equal(line.grid, columns[0]["env_steps"])
    assert line.mean == pytest.approx(np.mean([c["return_mean"] for c in columns], axis=0))
    assert (line.low < line.mean).all()


def test_time_curves_stay_inside_the_time_that_all_seeds_share(folder: Folder) -> None:
    found = data.read(folder.experiment)
    for panel in measures.curves(found):
        for line in panel.axes["active_s"]:
            assert line.grid[0] == max(x[0] for x, _ in line.seeds.values())
            assert line.grid[-1] == min(x[-1] for x, _ in line.seeds.values())


def test_training_time_begins_at_step_zero(planned) -> None:
    folder = planned(arms={"a": PLAIN}, seeds=[0])
    folder.write("a", 0, points=4)
    folder.edit(
        "a", 0, "curve.csv", lambda columns: columns["env_steps"].__setitem__(slice(None), [0, 7500, 15000, 30000])
    )
    (run,) = data.read(folder.experiment).runs
    seconds = measures.active_seconds(run)
    assert seconds[0] == 0.0
    assert (np.diff(seconds) > 0).all()


def test_of_evaluations_at_one_place_the_last_is_drawn(planned) -> None:
    folder = planned(arms={"a": PLAIN}, seeds=[0])
    folder.write("a", 0, points=4)
    folder.edit("a", 0, "curve.csv", lambda columns: columns["updates"].__setitem__(slice(None), [0, 0, 5, 9]))
    found = data.read(folder.experiment)
    line = measures.curves(found)[1].axes["updates"][0]
    assert line.grid.tolist() == [0, 5, 9]
    assert line.mean.tolist() == found.runs[0].curve["return_mean"][1:].tolist()


def test_a_curve_that_runs_backwards_is_not_drawn(planned) -> None:
    folder = planned(arms={"a": PLAIN}, seeds=[0])
    folder.write("a", 0, points=4)
    folder.edit("a", 0, "curve.csv", lambda columns: columns["env_steps"].__setitem__(slice(None), [1, 3, 2, 4]))
    assert measures.curves(data.read(folder.experiment))[1].axes["env_steps"][0].seeds == {}


def test_a_reward_with_other_weights_is_named_by_what_differs(planned) -> None:
    arm = {"task": "HalfCheetah-v5", "algorithm": "sac", "env_steps": 30_000}
    folder = planned(arms={"a": arm, "b": {**arm, "reward_weights": {"cost_control": -0.5}}}).write_all()
    found = data.read(folder.experiment)
    labels = [reward.label for reward in measures.rewards_of(found, found.tasks[0])]
    assert labels == ["standard", "standard with cost_control × −0.5"]
