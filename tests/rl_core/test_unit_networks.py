"""FlashSAC's networks against torch's modules, and the spheres that their parameters stay on."""

import math

import pytest
import torch
from torch import nn

from rl_core.networks import Params
from rl_core.unit_networks import init_unit, renormalize_, trainable, unit_net, unit_shapes

HEADS = {"mean": 3, "std": 3}


def network(seed: int = 0, *, scramble: bool = True) -> Params:
    generator = torch.Generator().manual_seed(seed)
    params = init_unit(5, width=8, blocks=2, heads=HEADS, generator=generator)
    if scramble:
        for name, tensor in params.items():
            tensor.add_(torch.rand(tensor.shape, generator=generator) * (0.5 if name.endswith(".var") else 0.3))
    return params


class Block(nn.Module):
    def __init__(self, params: Params, name: str) -> None:
        super().__init__()
        self.wide, self.narrow = linear(params, f"{name}.wide"), linear(params, f"{name}.narrow")
        self.norm_wide, self.norm_narrow = batch_norm(params, f"{name}.wide"), batch_norm(params, f"{name}.narrow")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = torch.relu(self.norm_wide(self.wide(x)))
        return x + torch.relu(self.norm_narrow(self.narrow(wide)))


def linear(params: Params, name: str) -> nn.Linear:
    weight, bias = params[f"{name}.weight"], params.get(f"{name}.bias")
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    made.load_state_dict({"weight": weight} | ({} if bias is None else {"bias": bias}))
    return made


def batch_norm(params: Params, name: str) -> nn.BatchNorm1d:
    names = {"weight": "scale", "bias": "shift", "running_mean": "mean", "running_var": "var"}
    made = nn.BatchNorm1d(len(params[f"{name}.scale"]), momentum=0.01)
    made.load_state_dict({theirs: params[f"{name}.{ours}"] for theirs, ours in names.items()}, strict=False)
    return made


def reference(params: Params) -> tuple[nn.Sequential, nn.Linear]:
    rms = nn.RMSNorm(8, eps=1e-6)
    rms.load_state_dict({"weight": params["out.scale"]})
    body = [batch_norm(params, "in"), linear(params, "in"), Block(params, "block0"), Block(params, "block1"), rms]
    return nn.Sequential(*body), linear(params, "mean")


@pytest.mark.parametrize("training", [False, True])
def test_the_network_equals_torchs_modules_and_moves_the_same_statistics(training: bool) -> None:
    params = network()
    body, head = reference({name: tensor.clone() for name, tensor in params.items()})
    body.train(training)
    x = torch.randn(16, 5, generator=torch.Generator().manual_seed(9)) * 2 + 1
    (ours,) = unit_net(params, x, ("mean",), training=training, momentum=0.01)
    torch.testing.assert_close(ours, head(body(x)))
    for name, theirs in (("in", body[0]), ("block1.narrow", body[3].norm_narrow)):
        torch.testing.assert_close(params[f"{name}.mean"], theirs.running_mean)
        torch.testing.assert_close(params[f"{name}.var"], theirs.running_var)


def test_without_momentum_no_statistic_moves_and_none_is_needed() -> None:
    params = network()
    before = {name: tensor.clone() for name, tensor in params.items()}
    x = torch.randn(16, 5, generator=torch.Generator().manual_seed(9))
    (moving,) = unit_net(params, x, ("mean",), training=True)
    (bare,) = unit_net(trainable(params), x, ("mean",), training=True)
    assert torch.equal(moving, bare)
    assert all(torch.equal(tensor, before[name]) for name, tensor in params.items())


def test_parameters_return_to_their_spheres() -> None:
    params = network()
    renormalize_(params)
    for name, tensor in trainable(params).items():
        if name.endswith(".weight"):
            torch.testing.assert_close(tensor.norm(dim=-1), torch.ones(len(tensor)))
        elif name.endswith(".scale"):
            shift = params.get(name.replace(".scale", ".shift"), torch.zeros(1))
            length = torch.cat((tensor, shift)).norm()
            torch.testing.assert_close(length, torch.tensor(math.sqrt(len(tensor))))


def test_a_new_network_has_unit_rows_orthogonal_columns_and_neutral_norms() -> None:
    params = network(scramble=False)
    wide = params["block0.wide.weight"]  # 32 × 8: unit rows of what were orthonormal columns
    torch.testing.assert_close(wide.norm(dim=-1), torch.ones(32))
    narrow = params["block0.narrow.weight"]  # 8 × 32: orthonormal rows
    torch.testing.assert_close(narrow @ narrow.T, torch.eye(8), atol=1e-5, rtol=0)
    assert torch.equal(params["block0.wide.shift"], torch.zeros(32))
    assert {name: tuple(t.shape) for name, t in params.items()} == unit_shapes(5, width=8, blocks=2, heads=HEADS)
