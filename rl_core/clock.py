"""Wall time split into training and the rest, summed over resumes. Nothing here touches a deterministic file."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime


class Clock:
    """Seconds since the start, without the pauses between an interruption and its resume.

    Active time is what remains of wall time without start-up, evaluations and checkpoints.
    """

    def __init__(self) -> None:
        self.started_at = datetime.now(UTC).isoformat(timespec="seconds")
        self.resumes = 0
        names = ("startup_s", "learner_wait_s", "evaluation_s", "checkpoint_s", "mirror_copy_s")
        self._spans = dict.fromkeys(names, 0.0)
        self._earlier_s = 0.0
        self._start = time.perf_counter()

    def ready(self) -> None:
        """End the start-up: all time of this process so far belongs to it."""
        self._spans["startup_s"] += time.perf_counter() - self._start

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Add the time inside the block to the span `name`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - start)

    def add(self, name: str, seconds: float) -> None:
        """Add seconds to the span `name`."""
        self._spans[name] += seconds

    def read(self) -> dict[str, float]:
        """Return wall_s, active_s and every span, in seconds, to the millisecond."""
        wall = self._earlier_s + time.perf_counter() - self._start
        active = wall - sum(self._spans[name] for name in ("startup_s", "evaluation_s", "checkpoint_s"))
        return {name: round(s, 3) for name, s in {"wall_s": wall, "active_s": active, **self._spans}.items()}

    def state(self) -> dict[str, object]:
        """Return what a resumed clock continues from."""
        return {"started_at": self.started_at, "resumes": self.resumes, **self.read()}

    def restore(self, state: Mapping[str, object]) -> None:
        """Continue from what `state` returned; counts one resume."""
        self.started_at = str(state["started_at"])
        self.resumes = int(str(state["resumes"])) + 1
        self._earlier_s = float(str(state["wall_s"]))
        for name in self._spans:
            self._spans[name] = float(str(state[name]))
