"""What a person sees while a run trains: a live line in a terminal, plain lines elsewhere."""

import sys

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from rl_core.config import RunSettings


class Display:
    """Progress of one run. Plain lines, one per evaluation, go to standard output; the live line to the terminal.

    Args:
        settings: the run's settings.
        quiet: no live line; by default decided by whether standard error is a terminal.
    """

    def __init__(self, settings: RunSettings, *, quiet: bool | None = None) -> None:
        self._total = settings.vector_steps * settings.num_envs
        live = sys.stderr.isatty() if quiet is None else not quiet
        self._console = Console(stderr=True) if live else None
        self._live: Progress | None = None
        if self._console is not None:
            self._live = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TaskProgressColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[detail]}"),
                console=self._console,
            )
            self._task = self._live.add_task("env steps", total=self._total, detail="")
            self._live.start()

    def message(self, text: str) -> None:
        """Show one line."""
        if self._console is not None:
            self._console.print(text, markup=False, highlight=False)
        else:
            print(text, flush=True)

    def evaluated(self, env_steps: int, mean: float, std: float) -> None:
        """Show the result of a periodic evaluation."""
        self.message(f"{env_steps:>9,} / {self._total:,} env steps: evaluation return {mean:.1f} ± {std:.1f}")

    def update(self, env_steps: int, *, updates: int, mean_return: float | None, rate: float) -> None:
        """Move the live line."""
        if self._live is not None:
            shown = "no episode yet" if mean_return is None else f"return {mean_return:.1f}"
            detail = f"{rate:,.0f} steps/s · {updates:,} updates · {shown}"
            self._live.update(self._task, completed=env_steps, detail=detail)

    def close(self) -> None:
        """Leave the terminal as it was; again is harmless."""
        if self._live is not None:
            self._live.stop()
