"""Timelines: spans and counters of learner and collector in one file, Chrome's trace-event JSON.

Off, which is the default, a span is one call and two empty methods: 0.3 µs (`benchmarks/trace.py`). On, each process
keeps its events in memory and appends them to a part file of its own about once a second; the learner joins the parts
when the session ends, however it ends. Both processes read one clock, CLOCK_MONOTONIC. A line of a part is an event in
its final form, so joining is copying.

A GPU works after the calls that give it work have returned. Where it is used, the learner's spans are timed there too,
by events in its queue, on a track `gpu` of its own.
"""

import contextlib
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from pathlib import Path
from time import perf_counter_ns
from types import TracebackType
from typing import Any, BinaryIO, Protocol

MAX_EVENTS = 1_000_000  # of one process: 100 MB of file, which Perfetto still opens
HEADER = b'{"displayTimeUnit":"ms","traceEvents":[\n'
SEPARATOR = b",\n"
FOOTER = b"\n]}\n"

_TAIL_BYTES = 65_536  # more than a line
_BATCH = 10_000  # events kept in memory
_WRITE_INTERVAL_NS = 1_000_000_000
_DEVICE_TRACK_ID = 10_000_000  # beyond every process number
_DEVICE_SPANS = frozenset(("mirror", "sample", "prepare", "critic", "actor", "target", "update", "weight sync"))
_Event = tuple[int, int, str, Mapping[str, float] | None]  # start ns, −duration ns, name, values of a counter


class Span(Protocol):
    """A context manager that times its block."""

    def __enter__(self) -> None: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class Event(Protocol):
    """A mark in a device's queue of work, as torch's for CUDA."""

    def record(self) -> None: ...
    def synchronize(self) -> None: ...
    def elapsed_time(self, end: Any, /) -> float: ...  # ms, between two of a kind


@dataclass(frozen=True, slots=True)
class Part:
    """What one process writes to: its file, the name of its track, the session's time 0."""

    path: Path
    track: str
    origin_ns: int


def span(name: str) -> Span:
    """Time a block under `name` on this process's track; does next to nothing while no session records."""
    writer = _current.writer
    return _OFF if writer is None else _Timed(writer, name)


def counter(name: str, **values: float) -> None:
    """Record values of this moment, drawn as one chart `name`."""
    if _current.writer is not None:
        _current.writer.add((perf_counter_ns(), 0, name, values))


@contextmanager
def unrecorded() -> Iterator[None]:
    """Record no spans while the block runs: it is compiled or captured, and does not run as it is written."""
    writer, _current.writer = _current.writer, None
    try:
        yield
    finally:
        _current.writer = writer


@contextmanager
def session(path: Path | None, new_event: Callable[[], Event] | None = None) -> Iterator[Part | None]:
    """Record this process as `learner` until the block ends, then write `path`; with None, record nothing.

    With `new_event`, what a device does within the spans is recorded too. Yields the part for a collector, which has
    to be gone when the block ends. A trace that cannot be written is a warning, never a failure of what it watches.
    """
    if path is None:
        yield None
        return
    try:
        folder = _clear(path)
    except OSError as error:
        _warn(error)
        yield None
        return
    origin_ns = perf_counter_ns()
    try:
        with recording(Part(folder / "1-learner", "learner", origin_ns), new_event):
            yield Part(folder / "2-collector", "collector", origin_ns)
    finally:
        try:
            join(path)
        except OSError as error:
            _warn(error)


@contextmanager
def recording(part: Part | None, new_event: Callable[[], Event] | None = None) -> Iterator[None]:
    """Record the spans of this process's main thread into `part` while the block runs; with None, nothing."""
    if part is None:
        yield
        return
    try:
        writer = _Writer(part, _DeviceTrack(part, new_event) if new_event else None)
    except OSError as error:
        _warn(error)
        yield
        return
    _current.writer = writer
    try:
        yield
    finally:
        _current.writer = None
        writer.close()


def parts_folder(path: Path) -> Path:
    """Return the folder that holds the parts of `path` while its session lasts, or after it was killed."""
    return path.with_name(f".{path.name}.parts")


def join(path: Path) -> None:
    """Write `path` from its parts, without the line that a killed process left half written, and remove them."""
    folder = parts_folder(path)
    joined = folder / "joined"
    with joined.open("w+b") as target:
        target.write(HEADER)
        for part in sorted(folder.glob("[0-9]-*")):
            _append(part, target)
        if target.tell() > len(HEADER):
            target.seek(-len(SEPARATOR), os.SEEK_CUR)
            target.truncate()
        target.write(FOOTER)
    joined.replace(path)
    shutil.rmtree(folder)


def _append(part: Path, target: BinaryIO) -> None:
    begin = target.tell()
    with part.open("rb") as source:
        shutil.copyfileobj(source, target)
    tail = max(begin, target.tell() - _TAIL_BYTES)
    target.seek(tail)
    line_end = target.read().rfind(SEPARATOR)
    target.seek(begin if line_end < 0 else tail + line_end + len(SEPARATOR))
    target.truncate()


class _Off:
    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, trace: object, /) -> None:
        pass


_OFF = _Off()


class _Timed:
    __slots__ = ("_mark", "_name", "_start", "_writer")

    def __init__(self, writer: "_Writer", name: str) -> None:
        self._writer, self._name = writer, name

    def __enter__(self) -> None:
        self._writer.depth += 1
        self._mark = None if self._writer.device is None else self._writer.device.begin(self._name)
        self._start = perf_counter_ns()

    def __exit__(self, kind: object, error: object, trace: object, /) -> None:
        end = perf_counter_ns()
        self._writer.depth -= 1
        if self._mark is not None:
            self._mark.record()
        self._writer.add((self._start, self._start - end, self._name, None))


class _Current:
    writer: "_Writer | None" = None


_current = _Current()


class _Writer:
    """Collects one process's events. It writes between outermost spans only, so that a part is sorted by start."""

    def __init__(self, part: Part, device: "_DeviceTrack | None" = None) -> None:
        self.depth = 0  # spans that are open
        self.device = device
        self._events: list[_Event] = []
        self._write_at = perf_counter_ns() + _WRITE_INTERVAL_NS
        self._file = _PartFile(part, os.getpid())

    def add(self, event: _Event) -> None:
        """Take one event; once in a while, write all that were taken."""
        if not self._file.room:
            return
        self._events.append(event)
        due = event[0] - event[1] >= self._write_at or len(self._events) >= _BATCH
        if due and self.depth == 0:
            self._write()

    def close(self) -> None:
        """Write what is left."""
        if self._file.room:
            self._write()
        if self.device is not None:
            self.device.close()
        self._file.close()

    def _write(self) -> None:
        start = perf_counter_ns()
        events, self._events = self._events, []
        self._file.write(events)
        if self.device is not None:
            self.device.write()
        end = perf_counter_ns()
        self._events.append((start, start - end, "write trace", None))
        self._write_at = end + _WRITE_INTERVAL_NS
        if self._file.room == 0:
            _current.writer = None


class _DeviceTrack:
    """Times a device's work within the learner's spans, by pairs of events in its queue."""

    def __init__(self, part: Part, new_event: Callable[[], Event]) -> None:
        self._new_event = new_event
        self._marks: list[tuple[str, Event, Event]] = []
        self._newest_ns = part.origin_ns
        self._file = _PartFile(Part(part.path.with_name("3-gpu"), "gpu", part.origin_ns), _DEVICE_TRACK_ID)

    def begin(self, name: str) -> Event | None:
        """Mark the start of a span, if the device works in it; return the event to record at its end."""
        if name not in _DEVICE_SPANS or not self._file.room:
            return None
        begin, end = self._new_event(), self._new_event()
        begin.record()
        self._marks.append((name, begin, end))
        return end

    def write(self) -> None:
        """Wait for the device, place its events on the processes' clock, and write them; no span is open."""
        marks, self._marks = self._marks, []
        try:
            now = self._new_event()
            now.record()
            now.synchronize()
            now_ns = perf_counter_ns()
            self._file.write([self._placed(*mark, now, now_ns) for mark in marks])
        except RuntimeError as error:  # of CUDA: the run will tell of it
            self._file.room = 0
            _warn(error)

    def close(self) -> None:
        """Write what is left."""
        if self._file.room:
            self.write()
        self._file.close()

    def _placed(self, name: str, begin: Event, end: Event, now: Event, now_ns: int) -> _Event:
        # The clock is read a moment after `now` has passed, each time another one: a start must not fall back behind
        # what is written already.
        self._newest_ns = max(self._newest_ns, now_ns - round(begin.elapsed_time(now) * 1e6))
        return self._newest_ns, -round(begin.elapsed_time(end) * 1e6), name, None


class _PartFile:
    """A track's file: events as lines, up to a limit."""

    def __init__(self, part: Part, track_id: int) -> None:
        self.room = MAX_EVENTS  # 0: no further event is taken
        self._origin_ns, self._id = part.origin_ns, track_id
        self._file = part.path.open("wb")
        self._append([self._metadata(key, part.track) for key in ("process_name", "thread_name")])

    def write(self, events: list[_Event]) -> None:
        """Write events, sorted by start; later calls bring later ones."""
        events.sort(key=itemgetter(0, 1))
        lines = [self._line(event) for event in events[: self.room]]
        self.room -= len(lines)
        if self.room == 0:
            lines.append(self._metadata("process_labels", f"only the first {MAX_EVENTS:,} events"))
        self._append(lines)

    def close(self) -> None:
        """Close the file; what could not be written was told of then."""
        with contextlib.suppress(OSError):
            self._file.close()

    def _append(self, lines: Iterable[str]) -> None:
        try:
            self._file.write("".join(lines).encode())
            self._file.flush()
        except OSError as error:
            self.room = 0
            _warn(error)

    def _line(self, event: _Event) -> str:
        start, minus_duration, name, values = event
        ts = f"{(start - self._origin_ns) / 1000:.3f}"
        if values is None:
            return self._json("X", name, f'"ts":{ts},"dur":{-minus_duration / 1000:.3f}')
        return self._json("C", name, f'"ts":{ts},"args":{json.dumps(values)}')

    def _metadata(self, key: str, value: str) -> str:
        field = "labels" if key == "process_labels" else "name"
        return self._json("M", key, f'"args":{json.dumps({field: value})}')

    def _json(self, phase: str, name: str, rest: str) -> str:
        return f'{{"ph":"{phase}","name":{_quoted(name)},"pid":{self._id},"tid":{self._id},{rest}}},\n'


_quoted = cache(json.dumps)


def _clear(path: Path) -> Path:
    """Remove what an earlier session left at `path`; return an empty folder for parts."""
    folder = parts_folder(path)
    path.unlink(missing_ok=True)
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    return folder


def _warn(error: OSError | RuntimeError) -> None:
    warnings.warn(f"the trace is not recorded: {error}", stacklevel=3)
