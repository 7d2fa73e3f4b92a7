"""What is written is whole or absent, and what a stranger wrote is read as numbers or refused."""

import hashlib
import io
import json
import os
import pickle
import tracemalloc
import zipfile
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from rl_core import policy, state
from rl_core.envs.half_cheetah import HalfCheetah
from rl_core.errors import SettingsError
from rl_core.evaluation import evaluate_run
from rl_core.files import write_atomic, write_json
from rl_core.metrics import CsvFile, EpisodeWindow
from rl_core.networks import init_mlp
from rl_core.state import TrainingState

METADATA: dict[str, Any] = {
    "head": "gaussian",
    "task": "HalfCheetah-v5",
    "task_settings": {},
    "weights": {"reward_forward": 1.0, "cost_control": -0.1},
}


def actor() -> dict[str, torch.Tensor]:
    return init_mlp((17, 8, 12), generator=torch.Generator().manual_seed(0))


def test_a_policy_is_the_same_bytes_every_time_and_acts_the_same_after_loading(tmp_path: Path) -> None:
    policy.save(tmp_path / "a", actor(), METADATA)
    policy.save(tmp_path / "b", actor(), dict(reversed(METADATA.items())))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    loaded = policy.load(tmp_path / "a")
    obs = np.random.default_rng(0).standard_normal((5, 17)).astype(np.float32)
    direct = policy.Policy("gaussian", actor(), HalfCheetah(), METADATA["weights"], {})
    assert np.array_equal(loaded.action(obs), direct.action(obs))
    assert loaded.action(obs).shape == (5, 6)


class _Exploit:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (Path.touch, ("/nonexistent/never",))


def _zip_bomb() -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data.pkl", bytes(50_000_000))
    return packed.getvalue()


def hostile(tmp_path: Path) -> dict[str, bytes]:
    whole = policy.to_bytes(actor(), METADATA)
    good = {f"actor.{name}": tensor for name, tensor in actor().items()}

    def with_metadata(text: str, tensors: dict[str, torch.Tensor] = good) -> bytes:
        return bytes(safetensors.torch.save(tensors, {policy.METADATA_KEY: text}))

    def with_empty_tensor(shape: list[int]) -> bytes:
        tensor = {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}
        header = json.dumps({"__metadata__": {policy.METADATA_KEY: described}, "actor.x": tensor}).encode()
        return len(header).to_bytes(8, "little") + header

    described = json.dumps({"format": 1, **METADATA})
    normalizer = {"normalizer.mean": torch.zeros(17), "normalizer.std": torch.ones(17)}
    return {
        "empty": b"",
        "pickle": pickle.dumps(_Exploit()),
        "zip bomb": _zip_bomb(),
        "cut off": whole[:-50],
        "oversized header": (2**62).to_bytes(8, "little") + b"{}",
        "a size that overflows": with_empty_tensor([0, 2**63]),
        "no metadata": bytes(safetensors.torch.save(good)),
        "metadata is no JSON": with_metadata("{"),
        "another format": with_metadata(json.dumps({**METADATA, "format": 99})),
        "unknown task": with_metadata(json.dumps({"format": 1, **METADATA, "task": "Nothing-v0"})),
        "no layers": with_metadata(described, {"actor.x": torch.zeros(1)}),
        "layers do not fit": with_metadata(described, {**good, "actor.1.weight": torch.zeros(12, 9)}),
        "task settings are a list": with_metadata(json.dumps({"format": 1, **METADATA, "task_settings": [1]})),
        "a weight is a word": with_metadata(json.dumps({"format": 1, **METADATA, "weights": {"cost_power": "x"}})),
        "an unknown term": with_metadata(json.dumps({"format": 1, **METADATA, "weights": {"cost_x": 1}})),
        "another task's width": with_metadata(
            json.dumps({"format": 1, **METADATA, "task": "Reacher-v5", "weights": {}})
        ),
        "head is a list": with_metadata(json.dumps({"format": 1, **METADATA, "head": []})),
        "head is an object": with_metadata(json.dumps({"format": 1, **METADATA, "head": {}})),
        "a weight is not a number": with_metadata(described.replace("-0.1", "NaN")),
        "a weight is endless": with_metadata(described.replace("-0.1", "1e999")),
        "a weight overflows": with_metadata(described.replace("-0.1", "-1e308")),
        "a weight of 400 digits": with_metadata(described.replace("-0.1", "-1" + "0" * 400)),
        "a weight of 5001 digits": with_metadata(described.replace("-0.1", "9" * 5001)),
        "no weights": with_metadata(json.dumps({"format": 1, **METADATA, "weights": {}})),
        "weights of nothing": with_metadata(json.dumps({"format": 1, **METADATA, "weights": {"cost_control": 0}})),
        "deep metadata": with_metadata("[" * 100_000),
        "a tensor twice": with_metadata(described, {**good, "0.weight": torch.zeros(8, 17)}),
        "a normaliser twice": with_metadata(described, {**good, **normalizer, "actor.normalizer.std": torch.ones(17)}),
        "a deviation of 0": with_metadata(described, {**good, **normalizer, "normalizer.std": torch.zeros(17)}),
        "a negative deviation": with_metadata(described, {**good, **normalizer, "normalizer.std": -torch.ones(17)}),
        "not a number": with_metadata(described, {**good, "actor.1.weight": torch.full((12, 8), float("nan"))}),
        "wrong dtype": with_metadata(described, {**good, "actor.1.weight": torch.zeros(12, 8, dtype=torch.float64)}),
    }


@pytest.mark.parametrize("case", list(hostile(Path())))
def test_a_strangers_policy_file_is_refused_with_one_clear_line(tmp_path: Path, case: str) -> None:
    path = tmp_path / "policy.safetensors"
    path.write_bytes(hostile(tmp_path)[case])
    with pytest.raises(SettingsError) as caught:
        policy.load(path)
    assert "policy.safetensors" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_policy_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="train the run first"):
        policy.load(tmp_path / "nothing")


def test_a_checkpoint_comes_back_bit_for_bit(tmp_path: Path) -> None:
    arrays = {"a": np.arange(6.0).reshape(2, 3), "b": np.array(3.5, np.float32), "c": np.zeros((0, 4))}
    saved = TrainingState(arrays, {"n": 3, "x": [0.1, None]})
    state.save(tmp_path / "s", saved)
    assert state.compare(saved, state.load(tmp_path / "s")) == []


def test_compare_names_every_leaf_that_differs() -> None:
    a = TrainingState({"x": np.zeros(3), "y": np.ones(2), "z": np.ones(1)}, {"n": 1, "m": 2})
    b = TrainingState({"x": np.zeros(3), "y": np.array([1.0, np.nextafter(1, 2)])}, {"n": 1, "m": 3})
    assert state.compare(a, b) == ["y", "z", "info.m"]


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "pickle", "zip bomb", "oversized header"])
def test_a_damaged_checkpoint_is_recognised(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "s"
    state.save(path, TrainingState({"x": np.zeros(100)}, {}))
    raw = bytearray(path.read_bytes())
    raw[-5] ^= damage == "flip"
    others = {"empty": b"", "pickle": pickle.dumps(_Exploit()), "zip bomb": _zip_bomb()}
    header = (2**62).to_bytes(8, "little") + b"{}"
    signed = hashlib.sha256(header).hexdigest().encode() + b"\n" + header  # a stranger can compute checksums too
    content = {"cut": raw[:-9], "flip": raw, "oversized header": signed, **others}[damage]
    path.write_bytes(bytes(content))
    with pytest.raises(state.DamagedCheckpoint, match=str(path)):
        state.load(path)


def signed(header: dict[str, Any] | str, data: bytes) -> bytes:
    """Return a checkpoint of a stranger, who can compute checksums too."""
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    body = len(text).to_bytes(8, "little") + text + data
    return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


META = {"__metadata__": {"seedbed": "{}"}}
EIGHT = {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "header",
    [
        {**META, "x": {**EIGHT, "data_offsets": [0, 16]}},
        {**META, "x": {**EIGHT, "shape": [2]}},
        {**META, "x": {**EIGHT, "shape": [-1]}},
        {**META, "x": {**EIGHT, "dtype": "F7"}},
        {**META, "x": EIGHT, "y": EIGHT},
        {**META, "x": []},
        {**META, "x": {**EIGHT, "data_offsets": None}},
        {"x": EIGHT},
        {"__metadata__": {"seedbed": "[]"}, "x": EIGHT},
        {"__metadata__": {"seedbed": "[" * 100_000}, "x": EIGHT},
        META,
        "[" * 100_000,
        "[]",
    ],
)
def test_a_strangers_checkpoint_is_refused_whatever_its_header_says(header: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_bytes(signed({**META, "x": EIGHT}, bytes(8)))
    assert state.load(path).arrays["x"] == 0
    path.write_bytes(signed(header, bytes(8)))
    with pytest.raises(state.DamagedCheckpoint, match=str(path)):
        state.load(path)


def test_a_checkpoint_takes_no_more_memory_than_its_arrays_and_a_huge_file_none(tmp_path: Path) -> None:
    path = tmp_path / "s"
    state.save(path, TrainingState({"x": np.ones(1_000_000), "y": np.zeros(0)}, {}))
    assert peak_bytes(path) < 1.2 * 8_000_000
    with path.open("r+b") as file:
        file.truncate(3_000_000_000)  # a hole: it takes no disk
    assert peak_bytes(path) < 1_000_000
    path.write_bytes(b"")
    with path.open("r+b") as file:
        file.truncate(3_000_000_000)
    assert peak_bytes(path) < 1_000_000


def peak_bytes(path: Path) -> int:
    """Return the most memory that Python holds at a time while it loads a checkpoint, or refuses it."""
    tracemalloc.start()
    try:
        state.load(path)
    except state.DamagedCheckpoint:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    write_json(tmp_path / "f.json", {"a": 1})
    with pytest.raises(ValueError, match="Out of range"):
        write_json(tmp_path / "f.json", {"a": float("nan")})
    with pytest.raises(TypeError):
        write_atomic(tmp_path / "f.json", "text")  # type: ignore[arg-type]
    assert json.loads((tmp_path / "f.json").read_text(encoding="utf-8")) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["f.json"]


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda number: done.append("fsync") or fsync(number))
    monkeypatch.setattr(Path, "replace", lambda path, to: done.append("rename") or replace(path, to))
    state.save(tmp_path / "s", TrainingState({"x": np.zeros(3)}, {}))
    assert done == ["fsync", "rename"]
    assert state.load(tmp_path / "s").arrays["x"].shape == (3,)


def test_a_csv_is_continued_where_it_was_cut(tmp_path: Path) -> None:
    table = CsvFile(tmp_path / "t.csv", ("a", "b"))
    table.append({"a": 0.1, "b": None})
    length = table.length
    table.append({"a": 2, "b": float("nan")})
    table.close()
    again = CsvFile(tmp_path / "t.csv", ("a", "b"), length=length)
    again.append({"a": 1 / 3, "b": "x"})
    again.close()
    assert (tmp_path / "t.csv").read_text(encoding="utf-8") == f"a,b\n0.1,\n{1 / 3!r},x\n"
    with closing(CsvFile(tmp_path / "u.csv", ("a", "b"))) as other:
        with pytest.raises(ValueError, match="columns differ: \\['b', 'c'\\]"):
            other.append({"a": 1, "c": 2})


def test_a_window_is_empty_before_the_first_episode_and_then_the_newest_hundred() -> None:
    window = EpisodeWindow(("t",))
    assert window.mean_return is None
    assert set(window.means().values()) == {None}
    window.extend(np.arange(150.0)[:, None] * np.array([[-1, 0, 0, 0, 2]]))
    assert window.episodes == 150
    assert window.mean_return == -np.arange(50, 150).mean()
    assert window.means()["term/t"] == 2 * np.arange(50, 150).mean()


def test_an_evaluation_depends_on_its_policy_and_seed_alone(tmp_path: Path) -> None:
    policy.save(tmp_path / "policy.safetensors", actor(), METADATA)
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        evaluate_run(tmp_path / "policy.safetensors", tmp_path / name, episodes=2, seed=seed)
    files = [(tmp_path / n / "evaluation.csv").read_bytes() for n in "abc"]
    assert files[0] == files[1] != files[2]


def test_an_evaluation_holds_raw_sums_of_every_term_whatever_the_weights(tmp_path: Path) -> None:
    lean = {**METADATA, "weights": {"reward_forward": 2.0, "cost_power": -0.01}}
    results = []
    for name, metadata in (("a", METADATA), ("b", lean)):
        policy.save(tmp_path / f"{name}.safetensors", actor(), metadata)
        results.append(evaluate_run(tmp_path / f"{name}.safetensors", tmp_path / name, episodes=2, seed=1))
    a, b = results
    assert a["terms"] == b["terms"]
    assert set(a["terms"]) == set(HalfCheetah.terms)  # type: ignore[call-overload]
    assert a["yardsticks"] == b["yardsticks"]
    fed = 2 * b["terms"]["reward_forward"] - 0.01 * b["terms"]["cost_power"] + b["residual"]  # type: ignore[index]
    assert b["return_mean"] == pytest.approx(fed)
    yardsticks = a["yardsticks"]
    assert yardsticks["speed"] == pytest.approx(yardsticks["distance"] / (1000 * 0.05))  # type: ignore[index]
