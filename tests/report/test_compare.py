import shutil

import numpy as np
import pytest
from scipy import stats

from flows.report import compare, data, measures, record

from .conftest import Folder

PLAIN = {"task": "HalfCheetah-v5", "algorithm": "sac", "env_steps": 30_000}


def by_names(pairs: list[compare.Comparison]) -> dict[tuple[str, str], compare.Comparison]:
    return {(pair.first, pair.second): pair for pair in pairs}


def test_every_pair_of_a_task_gets_one_verdict(folder: Folder) -> None:
    verdicts = compare.verdicts(data.read(folder.experiment))
    assert len(by_names(verdicts)) == len(verdicts) == 6
    assert [pair.decided for pair in verdicts] == sorted((pair.decided for pair in verdicts), reverse=True)


def test_one_reward_compares_returns_and_two_the_headline_yardstick(folder: Folder) -> None:
    verdicts = by_names(compare.verdicts(data.read(folder.experiment)))
    assert verdicts["sac-speed", "td3-speed"].measure.name == "return"
    assert verdicts["sac-speed", "sac-lean"].measure.name == "distance"
    assert " on distance: " in verdicts["sac-speed", "sac-lean"].sentence


def test_a_yardstick_verdict_names_the_other_yardsticks_that_exclude_0(
    folder: Folder,
) -> None:
    found = data.read(folder.experiment)
    verdicts, differences = by_names(compare.verdicts(found)), compare.yardstick_differences(found)
    assert compare.also_apart(verdicts["sac-speed", "td3-speed"], differences) == []
    apart = compare.also_apart(verdicts["sac-speed", "sac-lean"], differences)
    assert [pair.measure.name for pair in apart] == [
        pair.measure.name
        for pair in differences
        if (pair.first, pair.second) == ("sac-speed", "sac-lean")
        and pair.p is not None
        and pair.p < 0.05
        and pair.measure.name != "distance"
    ]
    assert "energy" in [pair.measure.name for pair in apart]


def test_verdicts_are_welch_tests_adjusted_by_holm(folder: Folder) -> None:
    verdicts = compare.verdicts(data.read(folder.experiment))
    p_values = [stats.ttest_ind(*(s.scores for s in pair.scores), equal_var=False).pvalue for pair in verdicts]
    order = np.argsort(p_values)
    adjusted = np.maximum.accumulate(np.array(p_values)[order] * np.arange(6, 0, -1)).clip(max=1)
    for rank, index in enumerate(order):
        assert verdicts[index].holm_p == pytest.approx(adjusted[rank])
        assert verdicts[index].decided == (adjusted[rank] < 0.05)


def test_the_printed_interval_excludes_zero_exactly_where_decided(planned) -> None:
    folder = planned(arms={"a": PLAIN, "b": PLAIN, "c": PLAIN, "d": PLAIN})
    for arm, level in (("a", 3.0), ("b", 2.9), ("c", 2.2), ("d", 1.0)):
        for seed in folder.experiment.seeds:
            folder.write(arm, seed, level=level)
    verdicts = compare.verdicts(data.read(folder.experiment))
    assert {pair.decided for pair in verdicts} == {True, False}
    for pair in verdicts:
        assert pair.holm_interval is not None
        assert pair.decided == (pair.holm_interval.low > 0 or pair.holm_interval.high < 0)
        assert pair.sentence.startswith("Undecided between ") != pair.decided


def test_the_better_arm_is_named_first_with_a_positive_lead(planned) -> None:
    folder = planned(arms={"weak": PLAIN, "strong": PLAIN})
    for seed in folder.experiment.seeds:
        folder.write("weak", seed, level=1.0, spread=0.05)
        folder.write("strong", seed, level=3.0, spread=0.05)
    (verdict,) = compare.verdicts(data.read(folder.experiment))
    assert verdict.winner == "strong"
    assert verdict.difference < 0
    assert verdict.sentence.startswith("strong is better than weak on return: ")
    assert "more [" in verdict.sentence
    assert "−" not in verdict.sentence


def test_where_lower_is_better_the_lower_arm_wins(folder: Folder) -> None:
    pairs = {
        (pair.first, pair.second): pair
        for pair in compare.yardstick_differences(data.read(folder.experiment))
        if pair.measure.name == "energy"
    }
    pair = pairs["sac-speed", "sac-lean"]
    assert pair.measure.better == "lower"
    assert pair.difference > 0
    assert pair.improvement == 0.0
    judged = compare._decide(pair, holm_p=0.001, level=0.05, alpha=0.05)
    assert judged.winner == "sac-lean"
    assert judged.sentence.startswith("sac-lean is better than sac-speed on energy: ")
    assert " J less [" in judged.sentence


def test_one_seed_decides_nothing(planned) -> None:
    folder = planned(arms={"a": PLAIN, "b": PLAIN}, seeds=[0])
    folder.write("a", 0, level=1.0)
    folder.write("b", 0, level=9.0)
    (verdict,) = compare.verdicts(data.read(folder.experiment))
    assert not verdict.decided
    assert (verdict.p, verdict.interval, verdict.holm_interval, verdict.smallest_detectable) == (None,) * 4
    assert "a has 1 seed: no interval, and nothing to test" in verdict.sentence


def test_seeds_without_spread_decide_nothing(planned) -> None:
    folder = planned(arms={"a": PLAIN, "b": PLAIN})
    folder.write_all()
    for arm, value in (("a", 1.0), ("b", 2.0)):
        for seed in folder.experiment.seeds:
            folder.edit(arm, seed, "curve.csv", lambda c, v=value: c["return_mean"].fill(v))
    (verdict,) = compare.verdicts(data.read(folder.experiment))
    assert not verdict.decided
    assert "no test applies" in verdict.sentence


def test_arms_of_different_problems_are_not_compared(planned) -> None:
    other = {**PLAIN, "task_settings": {"frame_skip": 10}}
    folder = planned(arms={"a": PLAIN, "b": other, "c": {**PLAIN, "task": "Reacher-v5"}}).write_all()
    found = data.read(folder.experiment)
    assert compare.verdicts(found) == []
    (line,) = compare.not_compared(found)
    assert line.startswith("HalfCheetah-v5 and HalfCheetah-v5 (frame_skip = 10) are different problems")


def test_many_arms_are_compared_with_the_first_alone(planned) -> None:
    folder = planned(arms={f"arm-{i}": PLAIN for i in range(13)}, seeds=[0])
    assert {pair.second for pair in compare.verdicts(data.read(folder.experiment))} == {"arm-0"}


def test_a_failed_seed_is_counted_and_not_replaced(folder: Folder) -> None:
    shutil.rmtree(folder.experiment.run_dir("sac-speed", 1))
    folder.fail("sac-speed", 1, "out of memory")
    found = data.read(folder.experiment)
    counted = record.completeness(found)
    assert (counted.planned, counted.finished, counted.failed, counted.complete) == (12, 11, 1, False)
    scores = measures.arm_scores(found, "sac-speed", measures.return_measure(found))
    assert (scores.planned, len(scores.scores)) == (3, 2)


def test_only_differing_settings_are_listed(folder: Folder) -> None:
    config = record.config(data.read(folder.experiment))
    power = str(folder.experiment.arms["sac-lean"].weights["cost_power"])
    assert config.differing["weights.cost_power"] == ("", power, "", power)
    assert "batch_size" not in config.differing
    assert config.full["sac-lean"]["batch_size"] == "256"


def test_provenance_warns_of_mixed_and_uncommitted_code(folder: Folder) -> None:
    import json

    assert record.provenance(data.read(folder.experiment)).warnings == ()
    path = folder.experiment.run_dir("sac-speed", 1) / "timing.json"
    machine = json.loads(path.read_text())
    machine["provenance"] |= {"git_commit": "ffff", "git_dirty": True}
    path.write_text(json.dumps(machine))
    found = record.provenance(data.read(folder.experiment))
    assert found.warnings == (
        "The runs were trained by 2 different commits.",
        "Uncommitted changes were present when 1 of 12 runs were trained.",
    )
    assert found.differing["sac-speed/1"]["provenance.git_commit"] == "ffff"
