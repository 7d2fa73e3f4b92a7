"""The tables' columns as TensorBoard scalars, for those who ask for them; a view, not an artifact."""

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from rl_core.errors import TrainingError


class Scalars:
    """Writes one event file; without a folder it does nothing.

    Args:
        folder: where the events go, or None.
        env_steps: what a resumed run has behind it; later events of an earlier session are dropped.

    Raises:
        TrainingError: the package that writes the format is not installed.
    """

    def __init__(self, folder: Path | None, *, env_steps: int = 0) -> None:
        self._writer: Any = None
        if folder is None:
            return
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise TrainingError("TensorBoard files need the package tensorboardX: pip install tensorboardX") from None
        self._writer = SummaryWriter(str(folder), purge_step=env_steps + 1 if env_steps else None)

    def add(self, table: str, row: Mapping[str, float | str | None], env_steps: int) -> None:
        """Write a table's row, one scalar a column; empty cells are left out."""
        if self._writer is None:
            return
        for name, value in row.items():
            if isinstance(value, int | float):
                self._writer.add_scalar(f"{table}/{name}", value, env_steps)

    def close(self) -> None:
        """Write what is pending; again is harmless."""
        if self._writer is not None:
            self._writer.close()

    def __enter__(self) -> "Scalars":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
