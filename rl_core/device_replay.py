"""The ring's rows on the learner's device, so that a batch is gathered where it is learned from.

What the learner can sample is mirrored, `capacity` rows: position n lies in row n mod capacity. Before a sample only
rows that are new are copied there; a fresh mirror, also that of a resumed run, has them all to copy. They travel
through a pinned staging buffer, so that the copy runs beside the learner's own work.
"""

import time

import torch
from torch import Tensor

from rl_core.clock import Clock
from rl_core.device import require_memory, timing_event
from rl_core.replay import ReplayRing
from rl_core.trace import span

STAGING_BYTES = 16_000_000  # rows under way at once; a whole ring is copied in portions of so much
_SPAN = "mirror_copy_s"


class DeviceReplay:
    """A mirror of what can be sampled from the ring.

    Args:
        ring: what is mirrored.
        device: where; a GPU, or any other device of torch.
        clock: is told how long gathering and copying took, under `mirror_copy_s`.

    Raises:
        TrainingError: the GPU's memory cannot hold the mirror.
    """

    def __init__(self, ring: ReplayRing, device: torch.device, *, clock: Clock) -> None:
        layout = ring.layout
        self._ring, self._capacity, self._clock = ring, layout.capacity, clock
        row_bytes = 4 * layout.width
        require_memory(device, self._capacity * row_bytes, f"a replay of {self._capacity:,} transitions")
        self._rows = torch.empty(self._capacity, layout.width, device=device)
        portion = max(1, min(self._capacity, STAGING_BYTES // row_bytes))
        self._staging = torch.empty(portion, layout.width, pin_memory=device.type == "cuda")
        self._transfer = _Transfer(device)
        self._synced = 0  # rows before this position are here, as far as they can be sampled

    def sample(self, counter: int, count: int, generator: torch.Generator) -> Tensor:
        """Draw rows as `ReplayRing.sample` does; with the same generator, the same rows."""
        self._catch_up(counter)
        window = min(counter, self._capacity)
        index = torch.randint(counter - window, counter, (count,), generator=generator, device=generator.device)
        return self._rows.index_select(0, index.remainder_(self._capacity))

    def _catch_up(self, counter: int) -> None:
        """Copy the rows before `counter` that are new and can be sampled."""
        start = max(self._synced, counter - self._capacity)
        while start < counter:
            stop = min(start + len(self._staging), counter)
            with span("mirror"):
                self._copy(start, stop)
            start = stop
        self._synced = counter

    def _copy(self, start: int, stop: int) -> None:
        self._clock.add(_SPAN, self._transfer.finish())  # from here on the staging buffer is free
        began = time.perf_counter()
        count, place = stop - start, start % self._capacity
        first = min(count, self._capacity - place)
        staged = self._staging[:count]
        self._ring.read(start, stop, staged)
        with self._transfer:
            self._rows[place : place + first].copy_(staged[:first], non_blocking=True)
            self._rows[: count - first].copy_(staged[first:], non_blocking=True)
        self._clock.add(_SPAN, time.perf_counter() - began)


class _Transfer:
    """The latest copy to a GPU, which may still be under way; elsewhere copies are done when they return."""

    def __init__(self, device: torch.device) -> None:
        self._events = (timing_event(), timing_event()) if device.type == "cuda" else None
        self._under_way = False

    def __enter__(self) -> None:
        if self._events is not None:
            self._events[0].record()

    def __exit__(self, kind: object, error: object, trace: object, /) -> None:
        if self._events is not None:
            self._events[1].record()
            self._under_way = True

    def finish(self) -> float:
        """Wait until it is done; return the seconds that the GPU took for it, 0 if they have been told before."""
        if self._events is None or not self._under_way:
            return 0.0
        began, ended = self._events
        ended.synchronize()
        self._under_way = False
        return began.elapsed_time(ended) / 1000
