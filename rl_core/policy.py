"""A policy as a file that describes itself: weights, task, reward and how to act, readable without the experiment.

The file is safetensors. Its metadata is one key, `seedbed`, that holds sorted JSON: safetensors writes several keys
in random order, and the same policy must be the same bytes.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from rl_core import envs
from rl_core.actors import HEADS
from rl_core.arrays import Float32
from rl_core.config import LARGEST_WEIGHT
from rl_core.envs.simulation import dimensions
from rl_core.envs.task import Task, resolve_settings
from rl_core.errors import SettingsError
from rl_core.files import write_atomic
from rl_core.networks import Params
from rl_core.normalization import OBS_MEAN, OBS_STD, normalized
from rl_core.reading import parse_json
from rl_core.wording import nearest, shown

METADATA_KEY = "seedbed"
FORMAT = 1
_NORMALIZER = (OBS_MEAN, OBS_STD)


@dataclass(frozen=True, slots=True)
class Policy:
    """A trained actor with what is needed to roll it out."""

    head: str  # a key of `actors.HEADS`
    actor: Params  # weights and, where observations are normalised, the statistics
    task: Task
    weights: Mapping[str, float]  # the reward it was trained for: term -> weight
    metadata: Mapping[str, Any]

    def action(self, obs: Float32) -> Float32:
        """Return the deterministic actions, (n, |A|) in [−1, 1], for observations (n, obs_dim)."""
        with torch.no_grad():
            seen = normalized(self.actor, torch.from_numpy(obs))
            action: Float32 = HEADS[self.head].action(self.actor, seen).numpy()
        return action


def to_bytes(actor: Params, metadata: Mapping[str, object]) -> bytes:
    """Return a policy file's bytes; `metadata` names head, task, task_settings, weights, seed and env_steps."""
    tensors = {_stored(name): tensor.detach().cpu().contiguous() for name, tensor in actor.items()}
    text = json.dumps({"format": FORMAT, **metadata}, sort_keys=True, allow_nan=False)
    return bytes(safetensors.torch.save(tensors, {METADATA_KEY: text}))


def _stored(name: str) -> str:
    return name if name in _NORMALIZER else f"actor.{name}"


def save(path: Path, actor: Params, metadata: Mapping[str, object]) -> None:
    """Write a policy file atomically."""
    write_atomic(path, to_bytes(actor, metadata))


def load(path: Path) -> Policy:
    """Read a policy file. No code in it can run: the format holds numbers and JSON.

    Raises:
        SettingsError: the file is missing, damaged, or not a policy that fits its task.
    """
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = parse_json((file.metadata() or {}).get(METADATA_KEY, "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except FileNotFoundError:
        raise SettingsError(f"{path}: no such policy; train the run first") from None
    except (OSError, ValueError, TypeError, safetensors.SafetensorError) as error:  # TypeError: sizes beyond 2^63
        reason = str(error).partition("\n")[0]  # torch adds its stack
        raise SettingsError(f"{path}: not a readable policy file ({reason})") from None
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise SettingsError(f"{path}: not a policy file of format {FORMAT}")
    if not isinstance(metadata.get("head"), str) or metadata["head"] not in HEADS:
        raise SettingsError(f"{path}: the policy's head is unknown: {shown(metadata.get('head'))}")
    task = _task(metadata, path)
    actor = _actor(tensors, path)
    _require_fitting(actor, metadata["head"], task, path)
    return Policy(metadata["head"], actor, task, _weights(metadata, task, path), metadata)


def _task(metadata: Mapping[str, Any], path: Path) -> Task:
    settings = metadata.get("task_settings", {})
    if not isinstance(settings, dict):
        raise SettingsError(f"{path}: the policy's task_settings are not names and values")
    made = envs.task(metadata.get("task"), where=str(path))
    return made(**resolve_settings(made, settings, where=f"{path}: task_settings"))


def _actor(tensors: Params, path: Path) -> Params:
    actor = {name.removeprefix("actor."): tensor for name, tensor in tensors.items()}
    for name in tensors:
        if name != _stored(name.removeprefix("actor.")):
            raise SettingsError(f"{path}: tensor {shown(name)} is none of a policy's")
    return actor


def _weights(metadata: Mapping[str, Any], task: Task, path: Path) -> dict[str, float]:
    weights = metadata.get("weights")
    if not isinstance(weights, dict):
        raise SettingsError(f"{path}: the policy's weights are not terms and numbers")
    for term, value in weights.items():
        if term not in task.terms:
            raise SettingsError(f"{path}: {task.name} has no term {shown(term)}{nearest(term, task.terms)}")
        if type(value) not in (int, float) or not abs(value) <= LARGEST_WEIGHT:
            raise SettingsError(f"{path}: the policy's weight of {term} is no number within ±{LARGEST_WEIGHT:g}")
    if not any(weights.values()):
        raise SettingsError(f"{path}: the policy names no reward that it was trained for: every term weighs 0")
    return {term: float(value) for term, value in weights.items()}


def _require_fitting(actor: Params, head: str, task: Task, path: Path) -> None:
    obs_dim, action_dim, _ = dimensions(task)
    found = {name: tuple(tensor.shape) for name, tensor in actor.items()}
    expected = HEADS[head].shapes({name: shape for name, shape in found.items() if shape}, obs_dim, action_dim)
    if OBS_MEAN in found or OBS_STD in found:
        expected |= dict.fromkeys(_NORMALIZER, (obs_dim,))
    for name in sorted(found.keys() | expected.keys()):
        if found.get(name) != expected.get(name):
            raise SettingsError(
                f"{path}: tensor {shown(name)} of the policy does not fit its task: "
                f"shape {found.get(name, 'missing')}, expected {expected.get(name, 'none')}"
            )
        if actor[name].dtype != torch.float32 or not torch.isfinite(actor[name]).all():
            raise SettingsError(f"{path}: tensor {name!r} of the policy is not made of finite float32 numbers")
        if name == OBS_STD and not (actor[name] > 0).all():
            raise SettingsError(f"{path}: tensor {name!r} of the policy holds deviations that are not above 0")
        if name.endswith(".var") and not (actor[name] >= 0).all():
            raise SettingsError(f"{path}: tensor {name!r} of the policy holds variances below 0")
