"""The algorithms by preset name: one line an entry."""

from types import ModuleType

from rl_core.algorithms import fast_sac, fast_td3, flash_sac, sac, td3

ALGORITHMS: dict[str, ModuleType] = {
    "sac": sac,
    "td3": td3,
    "fast_sac": fast_sac,
    "fast_td3": fast_td3,
    "flash_sac": flash_sac,
}
