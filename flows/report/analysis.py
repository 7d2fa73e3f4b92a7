"""Every number of the report, computed once; the page and its summary both come from here."""

from dataclasses import dataclass

from flows.report import compare, ledger, measures, progress, record
from flows.report.compare import Comparison
from flows.report.data import Data
from flows.report.ledger import CrossMatrix, Ledger
from flows.report.measures import CurvePanel, ScorePanel
from flows.report.progress import Efficiency, Proxy
from flows.report.record import Budget, Completeness, Config, Provenance


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """Every number of the report."""

    completeness: Completeness
    verdicts: tuple[Comparison, ...]
    not_compared: tuple[str, ...]
    curves: tuple[CurvePanel, ...]
    scores: tuple[ScorePanel, ...]
    ledgers: tuple[Ledger, ...]
    cross_rewards: tuple[CrossMatrix, ...]
    yardsticks: tuple[ScorePanel, ...]
    yardstick_differences: tuple[Comparison, ...]
    efficiencies: tuple[Efficiency, ...]
    proxies: tuple[Proxy, ...]
    budgets: tuple[Budget, ...]
    config: Config
    provenance: Provenance


def analyse(data: Data) -> Analysis:
    """Compute every panel; one that has no usable runs comes out empty, never as an error."""
    return Analysis(
        completeness=record.completeness(data),
        verdicts=tuple(compare.verdicts(data)),
        not_compared=tuple(compare.not_compared(data)),
        curves=tuple(measures.curves(data)),
        scores=tuple(measures.final_scores(data)),
        ledgers=tuple(ledger.ledgers(data)),
        cross_rewards=tuple(ledger.cross_rewards(data)),
        yardsticks=tuple(measures.yardstick_scores(data)),
        yardstick_differences=tuple(compare.yardstick_differences(data)),
        efficiencies=tuple(progress.efficiencies(data)),
        proxies=tuple(progress.proxies(data)),
        budgets=tuple(record.budgets(data)),
        config=record.config(data),
        provenance=record.provenance(data),
    )
