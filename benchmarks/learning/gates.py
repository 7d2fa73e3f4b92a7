"""The learning gates as data, and the verdict on a gate's returns."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rl_core.errors import SettingsError
from rl_core.wording import nearest

Statistic = Literal["mean", "median", "count"]
Word = Literal["passed", "above", "failed", "incomplete", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What is trained, on how many seeds, and which returns are good enough."""

    name: str
    arm: Mapping[str, Any]  # keys as in params.yaml; whatever is left out has the preset's published value
    statistic: Statistic  # of the seeds' final returns; count: how many of them reach `low`
    source: str  # where the band comes from
    seeds: int = 3  # 0, 1, …: fewer give no verdict
    low: float | None = None
    high: float | None = None  # beyond it is a question (is this the task we think it is?), not a failure
    needed: int = 0  # count: this many of `seeds` must reach `low`
    rival: str | None = None  # a gate whose mean is to be reached or beaten
    by_default: bool = True  # False: too long for two cores; runs only when it is named

    @property
    def band(self) -> str:
        """The band in words."""
        if self.statistic == "count":
            return f"{self.needed} of {self.seeds} seeds ≥ {self.low:g}"
        if self.rival is not None:
            return f"{self.statistic} ≥ that of {self.rival}"
        if self.high is not None:
            return f"{self.statistic} in [{self.low:g}, {self.high:g}]"
        return f"{self.statistic} ≥ {self.low:g}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A gate's outcome: `above` has passed, too."""

    word: Word
    why: str
    value: float | None = None  # of the gate's statistic
    least: float | None = None  # that passes

    @property
    def passed(self) -> bool:
        """Whether the gate holds."""
        return self.word in ("passed", "above")


_TD3_AUTHORS = "TD3 authors' curves, 10 seeds"
_SAC_CURVES = "SimbaV2's SAC curves, 10 seeds"
_FLASH_SAC = "FlashSAC authors' curves, 5 seeds"


def _arm(task: str, algorithm: str, env_steps: int, **settings: object) -> dict[str, object]:
    # The evaluations during training draw from a stream of their own: how often they happen changes no result.
    return {"task": task, "algorithm": algorithm, "env_steps": env_steps, "eval_interval": 5_000, **settings}


# Of the paper and the code that its curves come from; the authors' code today, and so our preset, has others.
_TD3_PAPER = {
    "learning_rate": 1e-3,
    "batch_size": 100,
    "actor_hidden": [400, 300],
    "critic_hidden": [400, 300],
    "learning_starts": 1_000,
}
_ALL = (
    Gate(
        name="inverted-pendulum-td3",
        arm=_arm("InvertedPendulum-v5", "td3", 30_000, **_TD3_PAPER),
        seeds=5,
        statistic="count",
        low=950,
        needed=4,
        source=f"{_TD3_AUTHORS}: 1000 ± 0 at 30k",
    ),
    Gate(
        name="inverted-double-pendulum-td3",
        arm=_arm("InvertedDoublePendulum-v5", "td3", 20_000, **_TD3_PAPER),
        statistic="median",
        low=9_000,
        source=f"{_TD3_AUTHORS}: 9314 ± 2 at 20k",
    ),
    Gate(
        name="reacher-td3",
        arm=_arm("Reacher-v5", "td3", 30_000, **_TD3_PAPER),
        statistic="mean",
        low=-7,
        source=f"{_TD3_AUTHORS}: −4.7 ± 0.5 at 30k",
    ),
    Gate(
        name="reacher-sac",
        arm=_arm("Reacher-v5", "sac", 30_000),
        statistic="mean",
        low=-7,
        source=f"the band of TD3 ({_TD3_AUTHORS})",
    ),
    Gate(
        name="half-cheetah-100k-sac",
        arm=_arm("HalfCheetah-v5", "sac", 100_000),
        statistic="mean",
        low=4_500,
        high=7_800,
        source=f"{_SAC_CURVES}: 6156 ± 700 at 100k",
    ),
    Gate(
        name="half-cheetah-100k-td3",
        arm=_arm("HalfCheetah-v5", "td3", 100_000, **{**_TD3_PAPER, "learning_starts": 10_000}),
        statistic="mean",
        low=4_500,
        high=7_000,
        source=f"{_TD3_AUTHORS}: 5514 ± 554 at 100k",
    ),
    Gate(
        name="half-cheetah-100k-flash-sac-small",
        arm=_arm("HalfCheetah-v5", "flash_sac", 100_000, actor_width=64, critic_width=64, batch_size=256),
        statistic="mean",
        rival="half-cheetah-100k-sac",
        source="no published figure at this size: our SAC at the same steps",
    ),
    Gate(
        name="half-cheetah-100k-flash-sac",
        arm=_arm("HalfCheetah-v5", "flash_sac", 100_000),
        statistic="mean",
        low=9_000,
        source=f"{_FLASH_SAC}: 9815 ± 155 at 100k",
        by_default=False,
    ),
)
GATES: dict[str, Gate] = {gate.name: gate for gate in _ALL}


def chosen(names: Iterable[str], gates: Mapping[str, Gate]) -> list[Gate]:
    """Return the gates with these names, each once, in the order of `gates`; without names, those for two cores.

    Raises:
        SettingsError: there is no such gate; the message names the nearest one.
    """
    wanted = set(names)
    for name in sorted(wanted):
        if name not in gates:
            raise SettingsError(f"--gate: unknown gate {name!r}{nearest(name, gates)}")
    return [gate for gate in gates.values() if (gate.name in wanted if wanted else gate.by_default)]


def judge(gate: Gate, returns: Sequence[float], *, rival: Sequence[float] = (), rival_seeds: int = 0) -> Verdict:
    """Return the verdict on the seeds' final returns.

    Args:
        gate: the gate.
        returns: one final return per seed; fewer than the gate's seeds are judged incomplete.
        rival: the rival's returns, for a gate that has one.
        rival_seeds: how many of those it takes.
    """
    if len(returns) < gate.seeds:
        return Verdict("incomplete", f"{len(returns)} of {gate.seeds} seeds")
    value = judged_value(gate, returns)
    if gate.rival is not None and len(rival) < rival_seeds:
        return Verdict("incomplete", f"{gate.rival} has {len(rival)} of {rival_seeds} seeds", value)
    least = _least(gate, len(returns), rival)
    told = f"{gate.statistic} {shown(value)}"
    if value < least:
        return Verdict("failed", f"{told} is below {shown(least)}", value, least)
    if gate.high is not None and value > gate.high:
        why = f"{told} is above {shown(gate.high)}: better than published, which needs an explanation"
        return Verdict("above", why, value, least)
    return Verdict("passed", f"{told}, at least {shown(least)}", value, least)


def judged_value(gate: Gate, returns: Sequence[float]) -> float:
    """Return the gate's statistic of some returns."""
    if gate.statistic == "count":
        return float(sum(value >= (gate.low or 0.0) for value in returns))
    return statistics.fmean(returns) if gate.statistic == "mean" else statistics.median(returns)


def _least(gate: Gate, seeds: int, rival: Sequence[float]) -> float:
    if gate.statistic == "count":
        return float(math.ceil(gate.needed / gate.seeds * seeds))
    return statistics.fmean(rival) if gate.rival is not None else float(gate.low or 0.0)


def shown(value: float) -> str:
    """Return a return as people read it: four digits or more are whole numbers."""
    return f"{value:.0f}" if abs(value) >= 1_000 else f"{value:.4g}"
