"""A trace is a valid timeline of both processes, changes nothing it watches, and costs nothing when off."""

import json
import math
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import pytest
import torch

from rl_core import runner, trace
from rl_core.algorithms import ALGORITHMS
from rl_core.config import resolve
from rl_core.errors import TrainingError
from rl_core.presets import PRESETS
from rl_core.replay import Batch, Layout
from tests.rl_core.conftest import SMALL, artifacts, small, start

UPDATE = {"critic", "actor", "target"}
LEARNER = {"wait", "statistics", "sample", "prepare", "weight sync", "log", "evaluate", "checkpoint"} | UPDATE
COLLECTOR = {"wait", "inference", "env step", "replay write", "weight sync", "start"}


def train(folder: Path, *, to: Path | None, **changes: Any) -> None:
    settings = resolve(small(**changes), where="arm")
    folders = {"run_dir": folder / "run", "state_dir": folder / "state"}
    runner.train(settings, 0, **folders, key="k", provenance={}, trace=to)


def nanoseconds(value: object) -> int:
    assert type(value) in (int, float)
    assert math.isfinite(value)  # type: ignore[arg-type]
    assert value >= 0  # type: ignore[operator]
    return round(1000 * value)  # type: ignore[operator]


def checked(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Check a file against the trace-event format; return the events of each track."""
    content = json.loads(path.read_text(encoding="utf-8"))
    assert set(content) == {"displayTimeUnit", "traceEvents"}
    names = {e["pid"]: e["args"]["name"] for e in content["traceEvents"] if e["name"] == "process_name"}
    tracks: dict[str, list[dict[str, Any]]] = {name: [] for name in names.values()}
    opened: dict[int, list[int]] = {pid: [] for pid in names}
    last = dict.fromkeys(names, 0)
    for event in content["traceEvents"]:
        assert type(event["pid"]) is type(event["tid"]) is int
        assert isinstance(event["name"], str)
        tracks[names[event["pid"]]].append(event)
        if event["ph"] == "M":
            assert set(event) == {"ph", "name", "pid", "tid", "args"}
            continue
        begin, ends = nanoseconds(event["ts"]), opened[event["pid"]]
        assert begin >= last[event["pid"]]
        last[event["pid"]] = begin
        if event["ph"] == "C":
            assert set(event) == {"ph", "name", "pid", "tid", "ts", "args"}
            assert [nanoseconds(value) for value in event["args"].values()]
            continue
        assert event["ph"] == "X"
        assert set(event) == {"ph", "name", "pid", "tid", "ts", "dur"}
        end = begin + nanoseconds(event["dur"])
        while ends and ends[-1] <= begin:
            ends.pop()
        assert not ends or end <= ends[-1], event
        ends.append(end)
    for pid, name in names.items():
        assert {"ph": "M", "name": "thread_name", "pid": pid, "tid": pid, "args": {"name": name}} in tracks[name]
    return tracks


def spans(events: list[dict[str, Any]]) -> list[str]:
    return [event["name"] for event in events if event["ph"] == "X"]


@pytest.fixture
def part(tmp_path: Path) -> trace.Part:
    return trace.Part(tmp_path / "1-learner", "learner", perf_counter_ns())


@pytest.mark.parametrize(("algorithm", "collection"), [("sac", "pipelined"), ("td3", "lockstep")])
def test_a_traced_run_has_the_same_bytes_and_a_valid_trace_of_both_processes(
    tmp_path: Path, algorithm: str, collection: str
) -> None:
    arm = {"algorithm": algorithm, "collection": collection}
    train(tmp_path / "plain", to=None, **arm)
    train(tmp_path / "traced", to=tmp_path / "traces" / "t.json", **arm)
    assert artifacts(tmp_path / "traced") == artifacts(tmp_path / "plain")
    assert [path.name for path in (tmp_path / "traces").iterdir()] == ["t.json"]
    tracks = checked(tmp_path / "traces" / "t.json")
    assert list(tracks) == ["learner", "collector"]
    learner, collector = spans(tracks["learner"]), spans(tracks["collector"])
    assert set(learner) - {"write trace"} == LEARNER
    assert set(collector) - {"write trace"} == COLLECTOR
    vector_steps = SMALL["env_steps"] // SMALL["num_envs"]
    assert collector.count("env step") == collector.count("inference") == vector_steps
    summary = json.loads((tmp_path / "traced" / "run" / "summary.json").read_text(encoding="utf-8"))
    assert learner.count("critic") == summary["updates"]
    assert learner.count("actor") == learner.count("target") == summary["updates"] // (1 + (algorithm == "td3"))


@pytest.mark.parametrize("algorithm", PRESETS)
def test_every_algorithm_names_the_parts_of_its_update(algorithm: str, part: trace.Part) -> None:
    settings = resolve(small(algorithm), where="arm")
    layout = Layout(obs_dim=9, action_dim=1, capacity=32, slack=0)
    learner = runner.build_learner(settings, layout, seed=0)
    obs, action, ones = torch.zeros(32, 9), torch.zeros(32, 1), torch.ones(32)
    batch = Batch(
        obs=obs, critic_obs=obs, action=action, reward=ones, bootstrap=ones, next_obs=obs, next_critic_obs=obs
    )
    with trace.recording(part):
        for _ in range(settings.learner.policy_delay):
            ALGORITHMS[algorithm].update(learner, batch)
    assert set(spans(list(events(part)))) - {"write trace"} == UPDATE


def test_a_run_that_waits_for_nobody_is_traced(tmp_path: Path) -> None:
    train(tmp_path, to=tmp_path / "t.json", collection="async")
    tracks = checked(tmp_path / "t.json")
    assert set(spans(tracks["learner"])) >= UPDATE
    assert spans(tracks["collector"]).count("env step") == SMALL["env_steps"] // SMALL["num_envs"]


def test_counters_tell_the_fill_of_the_buffer_and_its_reuse(tmp_path: Path) -> None:
    train(tmp_path, to=tmp_path / "t.json")
    counters = [event for event in checked(tmp_path / "t.json")["learner"] if event["ph"] == "C"]
    fill = [event["args"]["rows"] for event in counters if event["name"] == "replay"]
    assert fill == sorted(fill)
    assert (fill[0], fill[-1]) == (12, SMALL["replay_capacity"])
    ratios = {event["args"]["ratio"] for event in counters if event["name"] == "write/read ratio"}
    assert ratios == {1 / SMALL["batch_size"]}  # one update of a batch for each row written


def wait_for(condition: Callable[[], object], process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, (folder / "log").read_text(encoding="utf-8")
        assert time.monotonic() < deadline, (folder / "log").read_text(encoding="utf-8")
        time.sleep(0.005)


def test_an_interrupted_session_leaves_a_valid_trace_and_a_resumed_one_a_new_trace(tmp_path: Path) -> None:
    folder, to = tmp_path / "run", tmp_path / "t.json"
    process = start(small(env_steps=1600), 0, folder, trace=to)
    wait_for(lambda: list((folder / "state").glob("checkpoint-[3-9]*.seedbed")), process, folder)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 128 + signal.SIGTERM
    first = checked(to)
    assert set(spans(first["learner"])) >= {"critic", "checkpoint"}
    assert "env step" in spans(first["collector"])
    assert not trace.parts_folder(to).exists()
    train(folder, to=to, env_steps=1600)
    second = checked(to)
    done = sum(spans(tracks["collector"]).count("env step") for tracks in (first, second))
    assert done == 1600 // SMALL["num_envs"]


def test_a_killed_session_leaves_parts_that_join_to_a_valid_trace(tmp_path: Path) -> None:
    folder, to = tmp_path / "run", tmp_path / "t.json"
    process = start(small(env_steps=100_000), 0, folder, trace=to)
    part = trace.parts_folder(to) / "1-learner"
    wait_for(lambda: part.exists() and b"critic" in part.read_bytes(), process, folder)
    process.kill()
    process.wait()
    assert not to.exists()
    trace.join(to)
    assert {"wait", "critic"} <= set(spans(checked(to)["learner"]))
    assert not trace.parts_folder(to).exists()


def test_a_failed_run_leaves_a_valid_trace(tmp_path: Path) -> None:
    with pytest.raises(TrainingError):
        train(tmp_path, to=tmp_path / "t.json", reward_weights={"reward_alive": 1e20})
    assert "critic" in spans(checked(tmp_path / "t.json")["learner"])


def test_off_a_span_is_one_shared_object_that_records_nothing(part: trace.Part) -> None:
    with trace.recording(part):
        pass
    assert trace.span("critic") is trace.span("actor")
    with trace.span("critic"):
        trace.counter("replay", rows=1)
    assert b"critic" not in part.path.read_bytes() + b"".join(p.read_bytes() for p in part.path.parent.iterdir())
    with trace.session(None) as none, trace.recording(none):
        assert trace.span("critic") is trace.span("actor")


def events(part: trace.Part) -> Iterator[dict[str, Any]]:
    for line in part.path.read_bytes().splitlines():
        yield json.loads(line.removesuffix(b","))


def test_a_span_passes_its_exception_on_and_is_recorded(part: trace.Part) -> None:
    with trace.recording(part), pytest.raises(KeyError), trace.span("outer"), trace.span("inner"):
        raise KeyError
    assert [event["name"] for event in events(part) if event["ph"] == "X"] == ["outer", "inner"]


def test_memory_is_bounded_and_events_are_sorted_across_batches(
    part: trace.Part, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "_BATCH", 7)
    with trace.recording(part):
        for _ in range(50):
            with trace.span("outer"):
                with trace.span("inner"):
                    trace.counter("count", n=1)
            assert trace._current.writer is not None
            assert len(trace._current.writer._events) <= 7
    starts = [event["ts"] for event in events(part) if event["ph"] != "M"]
    assert len(starts) > 150
    assert starts == sorted(starts)


def test_a_full_trace_says_so_and_takes_no_more(part: trace.Part, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "_BATCH", 10)
    monkeypatch.setattr(trace, "MAX_EVENTS", 25)
    with trace.recording(part):
        for _ in range(100):
            with trace.span("critic"):
                pass
        assert trace.span("critic") is trace.span("actor")
    found = list(events(part))
    assert sum(event["ph"] == "X" for event in found) == 25
    assert found[-1]["args"] == {"labels": "only the first 25 events"}


def test_a_half_written_line_is_left_out(tmp_path: Path) -> None:
    to = tmp_path / "t.json"
    with trace.session(to):
        with trace.span("critic"):
            pass
    whole = to.read_bytes()
    folder = trace.parts_folder(to)
    folder.mkdir()
    body = whole.removeprefix(trace.HEADER).removesuffix(trace.FOOTER) + trace.SEPARATOR
    (folder / "1-learner").write_bytes(body + b'{"ph":"X","name":"act')
    (folder / "2-collector").write_bytes(b'{"ph":"M","na')
    trace.join(to)
    assert to.read_bytes() == whole


def test_a_place_that_cannot_be_written_is_a_warning_and_no_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.warns(UserWarning, match="the trace is not recorded: .*file"):
        train(tmp_path, to=tmp_path / "file" / "t.json")
    assert (tmp_path / "run" / "policy.safetensors").exists()


def fill(part: trace.Part) -> None:
    with trace.recording(part):
        for _ in range(10):
            with trace.span("critic"):
                pass
        assert trace._current.writer is None or not trace._current.writer._events


def test_a_disk_that_fills_up_ends_the_trace_and_not_the_run() -> None:
    with pytest.warns(UserWarning, match="the trace is not recorded: .*No space left") as told:
        fill(trace.Part(Path("/dev/full"), "learner", perf_counter_ns()))
    assert len(told) == 1


class Mark:
    """An event of a device that works some time behind the calls."""

    behind_ns = 500_000_000

    def record(self) -> None:
        self.at_ns = perf_counter_ns() + self.behind_ns

    def synchronize(self) -> None:
        while perf_counter_ns() < self.at_ns:
            time.sleep(0.001)

    def elapsed_time(self, end: "Mark") -> float:
        return (end.at_ns - self.at_ns) / 1e6


def test_what_a_device_does_within_the_spans_is_timed_on_a_track_of_its_own(tmp_path: Path) -> None:
    to = tmp_path / "t.json"
    with trace.session(to, Mark):
        for _ in range(5):
            with trace.span("sample"), trace.span("mirror"):
                pass
            with trace.span("wait"):  # nothing for a device to do
                pass
            with trace.span("update"), trace.unrecorded(), trace.span("critic"):
                time.sleep(0.002)
    tracks = checked(to)
    assert list(tracks) == ["learner", "gpu"]
    assert spans(tracks["gpu"]) == ["sample", "mirror", "update"] * 5
    calls, works = ([e for e in tracks[track] if e["name"] == "update"] for track in ("learner", "gpu"))
    for call, work in zip(calls, works, strict=True):
        assert work["dur"] >= call["dur"] - 1  # its marks are made outside of the call's
        assert work["ts"] > call["ts"] + call["dur"]  # it works after the call has returned


def test_a_device_that_fails_ends_its_track_and_not_the_run(tmp_path: Path) -> None:
    class Broken(Mark):
        def synchronize(self) -> None:
            raise RuntimeError("CUDA error")

    with pytest.warns(UserWarning, match="the trace is not recorded: CUDA error"):
        with trace.session(tmp_path / "t.json", Broken), trace.span("update"):
            pass
    assert spans(checked(tmp_path / "t.json")["learner"])[0] == "update"
