"""What a person sees while a run trains: a live line in a terminal, plain lines elsewhere."""

import sys
from collections.abc import Mapping

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
        self._starts, self._capacity = settings.first_update_at, settings.replay_capacity
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
            self._task = self._live.add_task("filling the buffer", total=self._starts, detail="")
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

    def update(
        self,
        env_steps: int,
        *,
        updates: int,
        mean_return: float | None,
        write_read_ratio: float | None,
        times: Mapping[str, float],
    ) -> None:
        """Move the live line: towards the first update, then towards the end."""
        if self._live is None:
            return
        wall_s = max(times["wall_s"], 1e-3)  # waiting included
        shown = "no episode yet" if mean_return is None else f"return {mean_return:.1f}"
        filled = min(1.0, env_steps / min(self._capacity, self._total))
        detail = f"{env_steps / wall_s:,.0f} steps/s · {updates / wall_s:,.0f} updates/s · buffer {filled:.0%}"
        detail += f" · write/read {write_read_ratio or 0:.2g} · {shown}"
        filling = env_steps < self._starts
        self._live.update(
            self._task,
            description="filling the buffer" if filling else "env steps",
            total=self._starts if filling else self._total,
            completed=env_steps,
            detail=detail,
        )

    def close(self) -> None:
        """Leave the terminal as it was; again is harmless."""
        if self._live is not None:
            self._live.stop()
