"""`trace`: what a recorded timeline says: times per span, idle time, overlap and the critical path."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from flows.experiment import Experiment
from flows.stages import only_writer
from rl_core.errors import SettingsError
from rl_core.trace import FOOTER, HEADER, SEPARATOR, join, parts_folder

TRACKS = ("learner", "collector")
DEVICE = "gpu"  # works for the learner: it has a table, and no part in who waits for whom
WAIT = "wait"
OUTSIDE = "(outside spans)"
HAND_OVER = "hand-over"  # both wait: a message is on its way

_MAX_BYTES = 2_000_000_000
_MAX_LINE_BYTES = 10_000
_MAX_US = 1e13  # four months
_NS_PER_S = 1e9

Integers = npt.NDArray[np.int64]


class _Damaged(Exception):  # noqa: N818 - becomes a SettingsError with the file's name
    pass


class Span(NamedTuple):
    """One timed block, in nanoseconds since the session began."""

    start: int
    end: int
    name: str


@dataclass(slots=True)
class Timeline:
    """A trace as read: spans by track, sorted by start, and what it says of itself."""

    tracks: dict[str, list[Span]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def window(self) -> tuple[int, int]:
        """From the first span to the moment up to which every track was recorded."""
        tracks = [spans for spans in self.tracks.values() if spans]
        start = min(spans[0].start for spans in tracks)
        return start, min(max(span.end for span in spans) for spans in tracks)


def describe(experiment: Experiment, arm: str, seed: int) -> str:
    """Return the statistics of a run's latest trace; raise SettingsError if there is none or it is damaged."""
    experiment.settings(arm, seed)
    path = experiment.trace_file(arm, seed)
    if parts_folder(path).is_dir():  # its session was killed
        with only_writer(experiment, arm, seed):
            join(path)
    command = f"python -m flows train {arm} {seed} --trace"
    if not path.is_file():
        raise SettingsError(f"{arm} seed {seed} has no trace; record one: {command} (with --fresh if it is complete)")
    try:
        return "\n".join(_lines(path, load(path)))
    except _Damaged as damage:
        raise SettingsError(f"{path}: {damage}; record another: {command}") from None


def _lines(path: Path, timeline: Timeline) -> Iterator[str]:
    start, end = timeline.window
    yield f"{path}: {(end - start) / _NS_PER_S:.2f} s"
    yield from (f"note: {note}" for note in timeline.notes)
    yield ""
    yield from _table(timeline)
    yield ""
    yield from _use(use(timeline), (end - start) / _NS_PER_S)


# Reading


def load(path: Path) -> Timeline:
    """Read what `rl_core.trace` wrote; every event is checked."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise _Damaged("larger than any trace")
        with path.open("rb") as file:
            timeline = _timeline(file)
    except OSError as error:
        raise _Damaged(f"cannot be read: {error.strerror}") from None
    if not any(timeline.tracks.values()):
        raise _Damaged("holds no spans")
    return timeline


def _timeline(file: BinaryIO) -> Timeline:
    if file.readline(_MAX_LINE_BYTES) != HEADER:
        raise _Damaged("is no trace that --trace wrote")
    timeline, tracks = Timeline(), dict[int, str]()
    closed = False
    for number, line in enumerate(iter(partial(file.readline, _MAX_LINE_BYTES), b""), start=2):
        try:
            if closed:
                raise _Damaged("goes on after its end")
            closed = line == FOOTER.lstrip()
            if not closed:
                _take(timeline, tracks, _event(line))
        except _Damaged as damage:
            raise _Damaged(f"line {number} {damage}") from None
    if not closed:
        raise _Damaged("is cut short")
    return timeline


def _event(line: bytes) -> dict[str, Any]:
    try:
        event = json.loads(line.removesuffix(SEPARATOR).decode())
    except (ValueError, RecursionError):
        raise _Damaged("is not JSON") from None
    if not isinstance(event, dict):
        raise _Damaged("is not an event")
    return event


def _take(timeline: Timeline, tracks: dict[int, str], event: dict[str, Any]) -> None:
    phase, name, pid = event.get("ph"), event.get("name"), event.get("pid")
    if not isinstance(name, str) or not name.isprintable() or len(name) > 60 or type(pid) is not int:
        raise _Damaged("is an event without a name or a process")
    if phase == "M":
        _take_metadata(timeline, tracks, pid, name, event.get("args"))
    elif phase == "X":
        start, duration = _nanoseconds(event, "ts"), _nanoseconds(event, "dur")
        if pid not in tracks:
            raise _Damaged("is of a process without a name")
        spans = timeline.tracks[tracks[pid]]
        if spans and start < spans[-1].start:
            raise _Damaged("is earlier than the line before it")
        spans.append(Span(start, start + duration, name))
    elif phase != "C":
        raise _Damaged("is an event of an unknown kind")


def _take_metadata(timeline: Timeline, tracks: dict[int, str], pid: int, key: str, args: object) -> None:
    values = args if isinstance(args, dict) else {}
    if key == "process_name":
        track = values.get("name")
        if track not in (*TRACKS, DEVICE) or track in tracks.values() or pid in tracks:
            raise _Damaged("names an unknown process")
        tracks[pid] = track
        timeline.tracks[track] = []
    elif key == "process_labels" and pid in tracks:
        timeline.notes.append(f"{tracks[pid]}: {str(values.get('labels'))[:60]!r}")


def _nanoseconds(event: dict[str, Any], key: str) -> int:
    value = event.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MAX_US:
        raise _Damaged(f"has no time {key!r} in microseconds")
    return round(value * 1000)


# Times per span


def _table(timeline: Timeline) -> Iterator[str]:
    start, end = timeline.window
    head = ("track", "span", "count", "total s", "share", "mean ms", "median", "p95", "p99")
    rows: list[tuple[str, ...]] = [head]
    for track, spans in timeline.tracks.items():
        durations: dict[str, list[int]] = {}
        for span in spans:
            if span.start < end:
                durations.setdefault(span.name, []).append(min(span.end, end) - span.start)
        ordered = sorted(durations.items(), key=lambda item: -sum(item[1]))
        rows += [(track, name, *_statistics(np.array(ns), end - start)) for name, ns in ordered]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    for row in rows:
        words = [*map(str.ljust, row[:2], widths), *map(str.rjust, row[2:], widths[2:])]
        yield "  ".join(words)


def _statistics(durations: Integers, window: int) -> tuple[str, ...]:
    total, ms = int(durations.sum()), durations / 1e6
    times = (ms.mean(), *np.percentile(ms, (50, 95, 99)))
    return (f"{len(ms):,}", f"{total / _NS_PER_S:.2f}", _percent(total, window), *(f"{time:.3f}" for time in times))


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "–"


# Who works, who waits


@dataclass(frozen=True, slots=True)
class Use:
    """How the tracks spend the window, in seconds."""

    waiting: dict[str, float]  # by track
    outside: dict[str, float]  # by track: in no span
    overlap: float  # both are in a span and neither waits
    critical: dict[str, float]  # "track span" -> seconds on the critical path, longest first


def use(timeline: Timeline) -> Use:
    """Follow both tracks from one change of either to the next.

    The critical path runs back from the end. Where one track waits, it is on the other; where neither does, on the
    one that is waited for next, or on the learner at the very end. Where both wait, a message is under way.
    """
    names = {OUTSIDE: 0, WAIT: 1}
    steps = {track: _innermost(timeline.tracks.get(track, []), names) for track in TRACKS}
    start, end = timeline.window
    edges = np.unique(np.concatenate([[start, end], *(times for times, _ in steps.values())]))
    edges = edges[(edges >= start) & (edges <= end)]
    seconds, moments = np.diff(edges) / _NS_PER_S, edges[:-1]
    states = {
        track: ids[np.searchsorted(times, moments, side="right") - 1]
        for track, (times, ids) in steps.items()
        if timeline.tracks.get(track)
    }
    busy = [ids > names[WAIT] for ids in states.values()]
    return Use(
        waiting={track: float(seconds[ids == names[WAIT]].sum()) for track, ids in states.items()},
        outside={track: float(seconds[ids == names[OUTSIDE]].sum()) for track, ids in states.items()},
        overlap=float(seconds[np.logical_and.reduce(busy)].sum()) if len(busy) > 1 else 0.0,
        critical=_critical(states, seconds, list(names)),
    )


def _innermost(spans: list[Span], names: dict[str, int]) -> tuple[Integers, Integers]:
    """Return when the innermost span of a track changes, and to which number in `names`."""
    times, ids, opened = [0], [names[OUTSIDE]], list[Span]()

    def change(moment: int) -> None:
        times.append(moment)
        ids.append(names.setdefault(opened[-1].name, len(names)) if opened else names[OUTSIDE])

    def close_until(moment: float) -> None:
        while opened and opened[-1].end <= moment:
            ended = opened.pop()
            change(ended.end)

    for span in spans:
        close_until(span.start)
        if opened and span.end > opened[-1].end:
            raise _Damaged(f"holds a span {span.name!r} that outlasts the {opened[-1].name!r} it began in")
        opened.append(span)
        change(span.start)
    close_until(math.inf)
    return np.array(times), np.array(ids)


def _critical(states: dict[str, Integers], seconds: npt.NDArray[np.float64], names: list[str]) -> dict[str, float]:
    labels = [f"{track} {name}" for track in states for name in names] + [HAND_OVER]
    columns = np.stack([ids + number * len(names) for number, ids in enumerate(states.values())])
    on = _path([ids == names.index(WAIT) for ids in states.values()])
    where = np.where(on < 0, len(labels) - 1, columns[on, np.arange(len(on))])
    totals = np.bincount(where, weights=seconds, minlength=len(labels))
    return {labels[i]: float(totals[i]) for i in np.argsort(-totals, kind="stable") if totals[i] > 0}


def _path(waits: list[npt.NDArray[np.bool_]]) -> Integers:
    """Return the number of the track that the critical path is on, moment by moment; −1 where both wait."""
    if len(waits) == 1:
        return np.zeros(len(waits[0]), np.int64)
    learner, collector = waits
    count = len(learner)
    decided = np.where(learner != collector, np.arange(count), count)
    following = np.minimum.accumulate(decided[::-1])[::-1]
    on_collector = np.append(learner, False)[following]
    return np.where(learner & collector, -1, on_collector.astype(np.int64))


def _use(found: Use, window_s: float) -> Iterator[str]:
    for track, waiting in found.waiting.items():
        outside = found.outside[track]
        yield (
            f"{track} idle: {_part(waiting + outside, window_s)}: "
            f"{waiting:.2f} s in {WAIT}, {outside:.2f} s outside spans"
        )
    yield f"both at work: {_part(found.overlap, window_s)}"
    yield ""
    yield "critical path:"
    width = max(map(len, found.critical), default=0)
    for label, seconds in found.critical.items():
        yield f"  {label:<{width}}  {seconds:8.2f} s  {_percent(seconds, window_s):>7}"


def _part(seconds: float, window_s: float) -> str:
    return f"{seconds:.2f} s ({_percent(seconds, window_s)})"
