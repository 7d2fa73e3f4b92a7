"""A trace changes no artifact, and its statistics are those of its spans."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from flows import cli, trace
from flows.trace import HAND_OVER, OUTSIDE, Span, Timeline
from flows.verify import compare
from rl_core.trace import FOOTER, HEADER, SEPARATOR, Part, parts_folder, recording, span

from .helpers import arm, flows, params

S = 10**9


def timeline(learner: list[tuple[float, float, str]], collector: list[tuple[float, float, str]]) -> Timeline:
    made = Timeline()
    for track, spans in (("learner", learner), ("collector", collector)):
        made.tracks[track] = [Span(round(start * S), round(end * S), name) for start, end, name in spans]
    return made


def test_tracing_a_run_changes_none_of_its_bytes_and_the_verb_explains_it(copied: Path, tmp_path: Path) -> None:
    before = shutil.copytree(copied / "runs/plain/0", tmp_path / "before")
    complete = flows("train", "plain", "0", "--trace", folder=copied)
    assert complete.stdout == "plain seed 0: already complete; --fresh trains it again for a trace\n"
    traced = flows("train", "plain", "0", "--fresh", "--trace", folder=copied)
    path = copied / ".seedbed/traces/plain-0.json"
    assert traced.returncode == 0, traced.stderr
    assert traced.stdout.splitlines()[-1] == f"trace: {path}"
    assert "traceEvents" in json.loads(path.read_text(encoding="utf-8"))
    assert not [artifact for artifact in compare(before, copied / "runs/plain/0") if artifact.difference]
    assert {p.name for p in before.iterdir()} == {p.name for p in (copied / "runs/plain/0").iterdir()}
    shown = flows("trace", "plain", "0", folder=copied)
    assert shown.returncode == 0, shown.stderr
    for words in ("learner    critic", "collector  env step", "learner idle: ", "both at work: ", "critical path:"):
        assert words in shown.stdout


def test_no_trace_is_one_line_that_says_how_to_make_one(
    folder: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    made = folder(params(plain=arm()))
    assert cli.main(["-C", str(made), "trace", "plain", "0"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: plain seed 0 has no trace; record one: python -m flows train plain 0 --trace ")
    assert error.count("\n") == 1


def test_what_a_killed_session_left_is_joined_first(
    folder: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    made = folder(params(plain=arm()))
    parts = parts_folder(made / ".seedbed/traces/plain-0.json")
    parts.mkdir(parents=True)
    with recording(Part(parts / "1-learner", "learner", 0)), span("critic"):
        pass
    assert cli.main(["-C", str(made), "trace", "plain", "0"]) == 0
    assert "critic" in capsys.readouterr().out
    assert not parts.exists()


PROCESS = b'{"ph":"M","name":"process_name","pid":1,"tid":1,"args":{"name":"learner"}}'
CRITIC = b'{"ph":"X","name":"critic","pid":1,"tid":1,"ts":1,"dur":2}'


def written(*lines: bytes) -> bytes:
    return HEADER + SEPARATOR.join(lines) + FOOTER


def test_a_gpus_track_has_its_times_and_no_part_in_who_waits_for_whom(tmp_path: Path) -> None:
    gpu = (PROCESS.replace(b"learner", b"gpu").replace(b":1", b":9"), CRITIC.replace(b'd":1', b'd":9'))
    (tmp_path / "t.json").write_bytes(written(PROCESS, CRITIC, *gpu))
    found = trace.load(tmp_path / "t.json")
    assert found.tracks["gpu"] == found.tracks["learner"] == [Span(1000, 3000, "critic")]
    assert [line.split()[:2] for line in trace._table(found)][1:] == [["learner", "critic"], ["gpu", "critic"]]
    assert list(trace.use(found).waiting) == ["learner"]


def changed(old: bytes, new: bytes) -> bytes:
    assert old in CRITIC
    return written(PROCESS, CRITIC.replace(old, new))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is no trace"),
        (b"\xff\xfe\x00", "is no trace"),
        (b"[]", "is no trace"),
        (b"[" * 1_000_000, "is no trace"),
        (HEADER, "is cut short"),
        (written(PROCESS, CRITIC)[:-3], "is cut short"),
        (written(PROCESS, CRITIC) + b"more", "line 5 goes on after its end"),
        (written(), "line 2 is not JSON"),
        (written(PROCESS), "holds no spans"),
        (written(CRITIC), "line 2 is of a process without a name"),
        (written(PROCESS, b"[" * 5_000 + b"]" * 4_000), "line 3 is not JSON"),
        (written(PROCESS, b'{"a":' * 1_900 + b"1" + b"}" * 100), "line 3 is not JSON"),
        (written(PROCESS, b"1" * 5_000), "line 3 is not JSON"),
        (written(PROCESS, b"\xff"), "line 3 is not JSON"),
        (written(PROCESS, b"[1]"), "line 3 is not an event"),
        (written(PROCESS, PROCESS), "line 3 names an unknown process"),
        (written(PROCESS.replace(b'"learner"', b"[]")), "line 2 names an unknown process"),
        (written(PROCESS.replace(b"learner", b"stranger")), "line 2 names an unknown process"),
        (written(PROCESS.replace(b'{"name":"learner"}', b"3")), "line 2 names an unknown process"),
        (written(PROCESS, CRITIC, CRITIC.replace(b'"ts":1', b'"ts":0')), "line 4 is earlier"),
        (written(PROCESS, CRITIC, CRITIC.replace(b'"ts":1', b'"ts":2')), "holds a span 'critic' that outlasts"),
        (changed(b'"X"', b'"B"'), "line 3 is an event of an unknown kind"),
        (changed(b'"X"', b"[]"), "line 3 is an event of an unknown kind"),
        (changed(b'"critic"', b"7"), "line 3 is an event without a name"),
        (changed(b"critic", b"\\u001b[2J"), "line 3 is an event without a name"),
        (changed(b'"pid":1', b'"pid":[]'), "line 3 is an event without a name or a process"),
        (changed(b'"ts":1', b'"ts":-1'), "line 3 has no time 'ts'"),
        (changed(b'"ts":1', b'"ts":NaN'), "line 3 has no time 'ts'"),
        (changed(b'"ts":1', b'"ts":1e400'), "line 3 has no time 'ts'"),
        (changed(b'"ts":1', b'"ts":1' + b"0" * 4_000), "line 3 has no time 'ts'"),
        (changed(b'"ts":1', b'"ts":true'), "line 3 has no time 'ts'"),
        (changed(b'"ts":1', b'"ts":"1"'), "line 3 has no time 'ts'"),
        (changed(b',"dur":2', b""), "line 3 has no time 'dur'"),
    ],
)
def test_a_damaged_or_foreign_file_is_one_clear_error(
    folder: Callable[[str], Path], capsys: pytest.CaptureFixture[str], content: bytes, why: str
) -> None:
    made = folder(params(plain=arm()))
    path = made / ".seedbed/traces/plain-0.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    assert cli.main(["-C", str(made), "trace", "plain", "0"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {path}: {why}")
    assert error.endswith("; record another: python -m flows train plain 0 --trace\n")
    assert error.count("\n") == 1


def test_the_path_is_on_the_one_that_is_waited_for() -> None:
    made = timeline(
        [(0, 2, "critic"), (2, 6, "wait"), (6, 10, "critic")],
        [(0, 1, "wait"), (1, 6, "env step"), (6, 10, "wait")],
    )
    found = trace.use(made)
    # from the end: the learner's last 4 s; the collector's 5 s that it waited for; the learner's 1 s before them
    assert found.critical == pytest.approx({"collector env step": 5, "learner critic": 5})
    assert found.waiting == pytest.approx({"learner": 4, "collector": 5})
    assert found.outside == {"learner": 0, "collector": 0}
    assert found.overlap == pytest.approx(1)


def test_a_learner_that_is_never_kept_waiting_is_the_whole_path() -> None:
    made = timeline(
        [(0, 4, "critic"), (4, 4.01, "wait"), (4.01, 8, "actor")],
        [(0, 3, "env step"), (3, 4.01, "wait"), (4.01, 6, "env step"), (6, 8, "wait")],
    )
    found = trace.use(made)
    assert found.critical == pytest.approx({"learner critic": 4, "learner actor": 3.99, HAND_OVER: 0.01})
    assert found.overlap == pytest.approx(3 + 1.99)


def test_a_moment_belongs_to_the_innermost_span_and_gaps_to_none() -> None:
    made = timeline(
        [(1, 9, "checkpoint"), (2, 4, "wait"), (5, 6, "write trace"), (10, 11, "log")],
        [(1, 2, "wait"), (2, 3, "env step"), (3, 3.5, "replay write"), (3.5, 12, "wait")],
    )
    found = trace.use(made)
    assert found.critical == pytest.approx(
        {
            "learner checkpoint": 5,
            f"learner {OUTSIDE}": 1,
            "collector env step": 1,
            "learner write trace": 1,
            "learner log": 1,
            "collector replay write": 0.5,
            HAND_OVER: 0.5,
        }
    )
    assert found.outside["learner"] == pytest.approx(1)
    assert sum(found.critical.values()) == pytest.approx(10)


def test_the_statistics_are_those_of_the_spans(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [CRITIC.replace(b'"ts":1,"dur":2', b'"ts":%d,"dur":%d' % (n * 1000, n)) for n in range(1, 101)]
    path = tmp_path / "t.json"
    path.write_bytes(written(PROCESS, *lines))
    table = list(trace._table(trace.load(path)))
    # 1, 2, … 100 µs within 100.1 − 1 ms
    assert table[1].split() == ["learner", "critic", "100", "0.01", "5.1", "%", "0.051", "0.051", "0.095", "0.099"]


def test_only_what_both_tracks_recorded_is_compared() -> None:
    found = trace.use(timeline([(0, 10, "critic")], [(0, 4, "env step")]))
    assert sum(found.critical.values()) == pytest.approx(4)
    alone = trace.use(timeline([(0, 10, "critic")], []))
    assert alone.critical == pytest.approx({"learner critic": 10})
    assert alone.overlap == 0
