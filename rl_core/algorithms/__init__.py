"""The algorithms by preset name: one line an entry."""

from types import ModuleType

from rl_core.algorithms import sac, td3

ALGORITHMS: dict[str, ModuleType] = {"sac": sac, "td3": td3}
