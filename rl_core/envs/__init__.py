"""Tasks and their batched simulation. Importing this package loads neither MuJoCo nor Gymnasium."""

from rl_core.envs.half_cheetah import HalfCheetah
from rl_core.envs.inverted_double_pendulum import InvertedDoublePendulum
from rl_core.envs.inverted_pendulum import InvertedPendulum
from rl_core.envs.reacher import Reacher
from rl_core.envs.task import Task
from rl_core.errors import SettingsError
from rl_core.wording import nearest, shown

TASKS: dict[str, type[Task]] = {
    HalfCheetah.name: HalfCheetah,
    InvertedDoublePendulum.name: InvertedDoublePendulum,
    InvertedPendulum.name: InvertedPendulum,
    Reacher.name: Reacher,
}


def task(name: object, *, where: str = "task") -> type[Task]:
    """Return the task called `name`.

    Raises:
        SettingsError: there is no such task; the message names the nearest one.
    """
    if not isinstance(name, str) or name not in TASKS:
        raise SettingsError(f"{where}: unknown task {shown(name)}{nearest(name, TASKS)}")
    return TASKS[name]
