"""An exported policy acts like ours, for every preset, and says what it is."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
import torch

from rl_core import policy
from rl_core.actors import HEADS
from rl_core.algorithms import ALGORITHMS
from rl_core.envs.half_cheetah import HalfCheetah
from rl_core.envs.simulation import VectorEnv
from rl_core.export import DRAW, to_bytes, to_onnx
from rl_core.networks import Params
from rl_core.normalization import OBS_MEAN, OBS_STD
from rl_core.policy import Policy
from rl_core.presets import PRESETS
from rl_core.shapes import Shapes

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # read when the package loads, by versions that send usage data
import onnxruntime

OBS_DIM, ACTION_DIM = 17, 6  # of HalfCheetah-v5
NETWORKS: dict[str, dict[str, Any]] = {
    name: {"actor_hidden": (24, 16), "critic_hidden": (8,)} for name in PRESETS if name != "flash_sac"
} | {"flash_sac": {"actor_width": 8, "critic_width": 8, "blocks": 2}}
Array = npt.NDArray[np.float32]


def scrambled(actor: Params, *, faint: bool) -> Params:
    """Return tensors of which none is neutral: no zeros, no ones, no running statistics of a start.

    With `faint`, layer norm and RMS norm see numbers so small that their epsilons decide.
    """
    g = torch.Generator().manual_seed(3)
    made = {}
    for name, tensor in actor.items():
        spread = 1 / tensor.shape[-1] ** 0.5 if name.endswith(".weight") else 0.5
        made[name] = spread * torch.randn(tensor.shape, generator=g)
        if name.endswith((".scale", ".var")):
            made[name] = 0.01 + 2 * torch.rand(tensor.shape, generator=g) ** 4
        if faint and (name in ("0.weight", "0.bias", "in.weight") or ".narrow.s" in name):
            made[name] *= 3e-3
    return made


def saved(folder: Path, name: str, *, normalized: bool = True, faint: bool = False) -> Policy:
    """Save a policy of the preset with a small network and load it again."""
    settings = PRESETS[name].settings(**NETWORKS[name])
    learner = ALGORITHMS[name].build(settings, Shapes(obs=OBS_DIM, action=ACTION_DIM), network_seed=1, noise_seed=2)
    actor = scrambled(learner.actor, faint=faint)
    if normalized:
        g = torch.Generator().manual_seed(4)
        actor |= {OBS_MEAN: torch.randn(OBS_DIM, generator=g), OBS_STD: 0.2 + torch.rand(OBS_DIM, generator=g)}
    metadata = {
        "head": ALGORITHMS[name].HEAD,
        "algorithm": name,
        "task": "HalfCheetah-v5",
        "task_settings": {"frame_skip": 4},
        "reward": "standard",
        "weights": {"reward_forward": 1.0, "cost_control": -0.1},
        "seed": 7,
        "env_steps": 1200,
    }
    policy.save(folder / "policy.safetensors", actor, metadata)
    return policy.load(folder / "policy.safetensors")


def session(loaded: Policy) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    data = to_bytes(to_onnx(loaded, policy_sha256="0"))
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def observations(rows: int, size: float) -> Array:
    return (size * np.random.default_rng(rows).standard_normal((rows, OBS_DIM))).astype(np.float32)


@pytest.mark.parametrize("faint", [False, True])
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("name", PRESETS)
def test_onnxruntime_acts_as_the_policy_does(name: str, normalized: bool, faint: bool, tmp_path: Path) -> None:
    loaded = saved(tmp_path, name, normalized=normalized, faint=faint)
    runtime = session(loaded)
    for rows, size in ((1, 1.0), (200, 1.0), (200, 1e-3), (200, 5.0)):
        obs = observations(rows, size)
        ours = loaded.action(obs)
        assert ours.std() > 1e-3  # else it would be easy
        (theirs,) = runtime.run(None, {"observation": obs})
        np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-5, err_msg=f"{rows} rows of size {size}")


@pytest.mark.parametrize("size", [1e3, 1e6])
@pytest.mark.parametrize("name", PRESETS)
def test_absurd_observations_are_rounded_no_worse_than_by_us(name: str, size: float, tmp_path: Path) -> None:
    loaded = saved(tmp_path, name)
    exact = Policy(loaded.head, {n: t.double() for n, t in loaded.actor.items()}, loaded.task, {}, {})
    obs = observations(200, size)
    (theirs,) = session(loaded).run(None, {"observation": obs})
    truth = exact.action(obs.astype(np.float64))  # type: ignore[arg-type]
    assert np.abs(theirs - truth).max() <= 10 * np.abs(loaded.action(obs) - truth).max() + 1e-5


def test_an_action_never_leaves_its_bounds() -> None:
    weight = torch.zeros(ACTION_DIM, OBS_DIM)
    weight[:, 0] = 1
    swept = Policy("deterministic", {"0.weight": weight, "0.bias": torch.zeros(ACTION_DIM)}, HalfCheetah(), {}, {})
    obs = np.zeros((100_000, OBS_DIM), np.float32)
    obs[:, 0] = np.linspace(-12, 12, len(obs))
    (action,) = session(swept).run(None, {"observation": obs})
    assert np.abs(action).max() == 1


@pytest.mark.parametrize("name", PRESETS)
def test_an_export_is_a_valid_model_and_the_same_bytes_every_time(name: str, tmp_path: Path) -> None:
    model = to_onnx(saved(tmp_path, name), policy_sha256="0")
    onnx.checker.check_model(model, full_check=True)
    again = policy.load(tmp_path / "policy.safetensors")
    assert to_bytes(model) == to_bytes(to_onnx(again, policy_sha256="0"))


def test_every_kind_of_head_can_be_exported() -> None:
    assert DRAW.keys() == HEADS.keys()


def test_a_model_names_its_inputs_outputs_and_any_batch(tmp_path: Path) -> None:
    runtime = session(saved(tmp_path, "sac"))
    (taken,), (given) = runtime.get_inputs(), runtime.get_outputs()
    assert (taken.name, taken.type, taken.shape) == ("observation", "tensor(float)", ["batch", OBS_DIM])
    assert [(g.name, g.type, g.shape) for g in given] == [("action", "tensor(float)", ["batch", ACTION_DIM])]


def test_a_model_says_what_it_is_and_how_its_actions_become_controls(tmp_path: Path) -> None:
    loaded = saved(tmp_path, "sac")
    props = {p.key: p.value for p in to_onnx(loaded, policy_sha256="abc").metadata_props}
    assert (props["task"], props["reward"], props["algorithm"]) == ("HalfCheetah-v5", "standard", "sac")
    assert (props["seed"], props["env_steps"], props["policy_sha256"]) == ("7", "1200", "abc")
    assert json.loads(props["weights"]) == {"cost_control": -0.1, "reward_forward": 1.0}
    assert json.loads(props["task_settings"])["frame_skip"] == 4
    env = VectorEnv(loaded.task, weights={}, num_envs=1, streams=np.random.SeedSequence(0))
    assert float(props["control_dt_s"]) == pytest.approx(env.dt_s)
    action = observations(1, 0.5)[:, :ACTION_DIM].clip(-1, 1)
    names = {name: np.array(json.loads(props[name])) for name in ("action_low", "action_high")}
    target, formula = props["action_scaling"].split(" = ")
    assert target == "control"
    control = eval(formula, {"action": action, **names})
    np.testing.assert_allclose(env.step(action).transition.action, control)


def test_a_strangers_policy_without_a_history_is_exported(tmp_path: Path) -> None:
    loaded = saved(tmp_path, "td3")
    bare = Policy(loaded.head, loaded.actor, loaded.task, {}, {})
    onnx.checker.check_model(to_onnx(bare, policy_sha256="0"), full_check=True)
