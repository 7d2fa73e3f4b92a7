"""Weights arrive whole and stand as long as a turn may need them; messages carry numbers and JSON alone."""

import multiprocessing
from pathlib import Path

import numpy as np
import pytest
import torch

from rl_core.handover import WeightBoard, receive, send

SHAPES = {"b": (3,), "a": (2, 4)}


def weights(value: float) -> dict[str, torch.Tensor]:
    return {name: torch.full(shape, value) for name, shape in SHAPES.items()}


@pytest.mark.parametrize("kept", [2, 5])
def test_a_version_stands_until_as_many_newer_ones_are_published_as_there_are_slots(tmp_path: Path, kept: int) -> None:
    learner = WeightBoard(tmp_path / "w", SHAPES, versions_kept=kept)
    collector = WeightBoard(tmp_path / "w", SHAPES, versions_kept=kept)
    learner.publish(7, weights(7))
    for version in range(8, 7 + kept):
        learner.publish(version, weights(version))
        for name, tensor in collector.read(7).items():
            assert torch.equal(tensor, torch.full(SHAPES[name], 7.0))
    learner.publish(7 + kept, weights(7 + kept))
    assert float(collector.read(7)["a"][0, 0]) == 7 + kept


def test_what_was_read_is_a_copy(tmp_path: Path) -> None:
    board = WeightBoard(tmp_path / "w", SHAPES)
    board.publish(0, weights(1))
    read = board.read(0)
    board.publish(0, weights(2))
    assert torch.equal(read["b"], torch.ones(3))


def test_a_message_carries_json_and_arrays(tmp_path: Path) -> None:
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        arrays = {"x": np.arange(6.0).reshape(2, 3), "empty": np.zeros((0, 4), np.float32)}
        send(ours, "chunk", arrays, counter=12)
        info, received = receive(theirs)
        assert info == {"kind": "chunk", "counter": 12}
        assert {name: array.tobytes() for name, array in received.items()} == {
            name: array.tobytes() for name, array in arrays.items()
        }
        ours.close()
        with pytest.raises(EOFError):
            receive(theirs)
