import numpy as np
import pytest

from flows.report import data, ledger

from .conftest import Folder, read_csv


def test_ledger_terms_and_residual_add_up_to_the_return(folder: Folder) -> None:
    for found in ledger.ledgers(data.read(folder.experiment)):
        total = sum(found.terms.values()) + found.residual
        known = np.isfinite(found.total)
        assert known.any()
        assert total[known] == pytest.approx(found.total[known])
        assert found.balanced
        assert found.final_return == pytest.approx(sum(row.weighted for row in found.rows) + found.final_residual)


@pytest.mark.parametrize(("file", "column"), [("progress.csv", "return_mean"), ("evaluation.csv", "return")])
def test_a_return_that_its_terms_do_not_explain_is_found(folder: Folder, file: str, column: str) -> None:
    def spoil(columns: dict[str, np.ndarray]) -> None:
        columns[column][15] += 5.0

    folder.edit("sac-speed", 1, file, spoil)
    ledgers = {found.arm: found for found in ledger.ledgers(data.read(folder.experiment))}
    assert not ledgers["sac-speed"].balanced
    assert ledgers["sac-speed"].discrepancy == pytest.approx(5.0)
    assert ledgers["sac-speed"].discrepancy_file == f"sac-speed/1/{file}, line 17"
    assert ledgers["td3-speed"].balanced


def test_cross_rewards_equal_a_hand_computation(folder: Folder) -> None:
    (matrix,) = ledger.cross_rewards(data.read(folder.experiment))
    assert [reward.label for reward in matrix.rewards] == ["standard", "lean"]
    power = folder.experiment.arms["sac-lean"].weights["cost_power"]
    by_hand = []
    for seed in (0, 1, 2):
        table = read_csv(folder.experiment.run_dir("sac-speed", seed) / "evaluation.csv")
        lean = table["term/reward_forward"] - 0.1 * table["term/cost_control"] + power * table["term/cost_power"]
        by_hand.append(lean.mean())
    standard, lean_cell = matrix.rows["sac-speed"]
    assert lean_cell.mean == pytest.approx(np.mean(by_hand))
    assert (standard.own, lean_cell.own) == (True, False)
    shades = [cells[0].shade for cells in matrix.rows.values()]
    assert (min(shades), max(shades)) == (0.0, 1.0)


def test_the_own_reward_in_the_matrix_is_the_return_of_the_evaluation(folder: Folder) -> None:
    (matrix,) = ledger.cross_rewards(data.read(folder.experiment))
    for arm, cells in matrix.rows.items():
        tables = [read_csv(folder.experiment.run_dir(arm, seed) / "evaluation.csv") for seed in (0, 1, 2)]
        own = next(cell.mean for cell in cells if cell.own)
        assert own == pytest.approx(np.mean([t["return"].mean() for t in tables]), abs=1e-5)
