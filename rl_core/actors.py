"""How the tensors of an actor become a deterministic action: one entry per kind of head.

A policy file names its head, so that it can be rolled out, checked and exported without the algorithm that trained it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - torch's own customary name

from rl_core.networks import Activation, Params, mlp, mlp_shapes
from rl_core.unit_networks import unit_net, unit_shapes

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Head:
    """A kind of actor."""

    action: Callable[[Params, Tensor], Tensor]  # (actor, observations (n, obs_dim)) -> actions (n, |A|) in [−1, 1]
    shapes: Callable[[Mapping[str, Shape], int, int], dict[str, Shape]]  # (found, obs_dim, |A|) -> what should be there


def _mean_of_gaussian(activation: Activation) -> Callable[[Params, Tensor], Tensor]:
    return lambda actor, obs: torch.tanh(mlp(actor, obs, activation=activation).chunk(2, dim=-1)[0])


def _deterministic(actor: Params, obs: Tensor) -> Tensor:
    return torch.tanh(mlp(actor, obs))


def _unit_gaussian(actor: Params, obs: Tensor) -> Tensor:
    return torch.tanh(unit_net(actor, obs, ("mean",), training=False)[0])


def _perceptron(outputs_per_action: int) -> Callable[[Mapping[str, Shape], int, int], dict[str, Shape]]:
    def shapes(found: Mapping[str, Shape], obs_dim: int, action_dim: int) -> dict[str, Shape]:
        layers = sum(name.endswith(".weight") for name in found)
        hidden = [found.get(f"{i}.bias", (0,))[0] for i in range(layers - 1)]
        return mlp_shapes((obs_dim, *hidden, outputs_per_action * action_dim), layer_norm="0.scale" in found)

    return shapes


def _unit(found: Mapping[str, Shape], obs_dim: int, action_dim: int) -> dict[str, Shape]:
    width = found.get("out.scale", (0,))[0]
    blocks = sum(name.endswith(".wide.weight") for name in found)
    return unit_shapes(obs_dim, width=width, blocks=blocks, heads={"mean": action_dim, "std": action_dim})


HEADS: Mapping[str, Head] = {
    "gaussian": Head(_mean_of_gaussian(torch.relu), _perceptron(2)),
    "gaussian_silu": Head(_mean_of_gaussian(F.silu), _perceptron(2)),
    "deterministic": Head(_deterministic, _perceptron(1)),
    "unit_gaussian": Head(_unit_gaussian, _unit),
}
