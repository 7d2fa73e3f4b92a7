"""Timelines: spans and counters of learner and collector in one file, Chrome's trace-event JSON.

Off, which is the default, a span is one call and two empty methods: 0.3 µs (`benchmarks/trace.py`). On, each process
keeps its events in memory and appends them to a part file of its own about once a second; the learner joins the parts
when the session ends, however it ends. Both processes read one clock, CLOCK_MONOTONIC. A line of a part is an event in
its final form, so joining is copying.
"""

import contextlib
import json
import os
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from pathlib import Path
from time import perf_counter_ns
from types import TracebackType
from typing import BinaryIO, Protocol

MAX_EVENTS = 1_000_000  # of one process: 100 MB of file, which Perfetto still opens
HEADER = b'{"displayTimeUnit":"ms","traceEvents":[\n'
SEPARATOR = b",\n"
FOOTER = b"\n]}\n"

_TAIL_BYTES = 65_536  # more than a line
_BATCH = 10_000  # events kept in memory
_WRITE_INTERVAL_NS = 1_000_000_000
_Event = tuple[int, int, str, Mapping[str, float] | None]  # start ns, −duration ns, name, values of a counter


class Span(Protocol):
    """A context manager that times its block."""

    def __enter__(self) -> None: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


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
def session(path: Path | None) -> Iterator[Part | None]:
    """Record this process as `learner` until the block ends, then write `path`; with None, record nothing.

    Yields the part for a collector, which has to be gone when the block ends. A trace that cannot be written is a
    warning, never a failure of what it watches.
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
        with recording(Part(folder / "1-learner", "learner", origin_ns)):
            yield Part(folder / "2-collector", "collector", origin_ns)
    finally:
        try:
            join(path)
        except OSError as error:
            _warn(error)


@contextmanager
def recording(part: Part | None) -> Iterator[None]:
    """Record the spans of this process's main thread into `part` while the block runs; with None, nothing."""
    if part is None:
        yield
        return
    try:
        writer = _Writer(part)
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
    __slots__ = ("_name", "_start", "_writer")

    def __init__(self, writer: "_Writer", name: str) -> None:
        self._writer, self._name = writer, name

    def __enter__(self) -> None:
        self._writer.depth += 1
        self._start = perf_counter_ns()

    def __exit__(self, kind: object, error: object, trace: object, /) -> None:
        end = perf_counter_ns()
        self._writer.depth -= 1
        self._writer.add((self._start, self._start - end, self._name, None))


class _Current:
    writer: "_Writer | None" = None


_current = _Current()


class _Writer:
    """Collects one process's events. It writes between outermost spans only, so that a part is sorted by start."""

    def __init__(self, part: Part) -> None:
        self.depth = 0  # spans that are open
        self._events: list[_Event] = []
        self._room = MAX_EVENTS  # 0: no further event is taken
        self._origin_ns, self._pid = part.origin_ns, os.getpid()
        self._write_at = perf_counter_ns() + _WRITE_INTERVAL_NS
        self._file = part.path.open("wb")
        self._append([self._metadata(key, part.track) for key in ("process_name", "thread_name")])

    def add(self, event: _Event) -> None:
        """Take one event; once in a while, write all that were taken."""
        if not self._room:
            return
        self._events.append(event)
        due = event[0] - event[1] >= self._write_at or len(self._events) >= _BATCH
        if due and self.depth == 0:
            self._write()

    def close(self) -> None:
        """Write what is left."""
        if self._room:
            self._write()
        with contextlib.suppress(OSError):  # it was told of when it was written
            self._file.close()

    def _write(self) -> None:
        start = perf_counter_ns()
        events, self._events = self._events, []
        events.sort(key=itemgetter(0, 1))
        lines = [self._line(event) for event in events[: self._room]]
        self._room -= len(lines)
        if self._room == 0:
            lines.append(self._metadata("process_labels", f"only the first {MAX_EVENTS:,} events"))
        self._append(lines)
        end = perf_counter_ns()
        self._events.append((start, start - end, "write trace", None))
        self._write_at = end + _WRITE_INTERVAL_NS
        if self._room == 0:
            _current.writer = None

    def _append(self, lines: Iterable[str]) -> None:
        try:
            self._file.write("".join(lines).encode())
            self._file.flush()
        except OSError as error:
            self._room = 0
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
        return f'{{"ph":"{phase}","name":{_quoted(name)},"pid":{self._pid},"tid":{self._pid},{rest}}},\n'


_quoted = cache(json.dumps)


def _clear(path: Path) -> Path:
    """Remove what an earlier session left at `path`; return an empty folder for parts."""
    folder = parts_folder(path)
    path.unlink(missing_ok=True)
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    return folder


def _warn(error: OSError) -> None:
    warnings.warn(f"the trace is not recorded: {error}", stacklevel=3)
