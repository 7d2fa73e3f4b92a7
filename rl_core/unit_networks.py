"""FlashSAC's networks as flat dictionaries: unit-norm linear layers, batch norm, residual blocks (Kim et al. 2026).

x → batch norm → linear(d) → N × [linear d→4d, BN, ReLU, linear 4d→d, BN, ReLU, + skip] → RMS norm → heads.

Names: `in` and `block<i>.wide`, `block<i>.narrow` are linear layers without bias, each beside its batch norm with
`.scale`, `.shift` and the running `.mean` and `.var`; `out.scale` is the RMS norm; heads are `<head>.weight`, `.bias`.
Running statistics move when a network is applied with `training`; they are no parameters: `trainable` leaves them out.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TypedDict, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - torch's own customary name

from rl_core.networks import Params, TensorShapes

EXPANSION = 4
_Leaf = TypeVar("_Leaf")  # a tensor, or its shape
BATCH_NORM_EPS, RMS_EPS, _NORM_EPS = 1e-5, 1e-6, 1e-8


class UnitSize(TypedDict):
    """What decides the shape of a network beside its inputs."""

    width: int
    blocks: int
    heads: Mapping[str, int]


def unit_shapes(inputs: int, *, width: int, blocks: int, heads: Mapping[str, int]) -> TensorShapes:
    """Return the shape of every tensor of such a network, by name."""
    wide = EXPANSION * width
    linear = {"in": (inputs, width)}
    for i in range(blocks):
        linear |= {f"block{i}.wide": (width, wide), f"block{i}.narrow": (wide, width)}
    shapes: TensorShapes = {}
    for name, (fan_in, fan_out) in linear.items():
        shapes[f"{name}.weight"] = (fan_out, fan_in)
        normed = fan_in if name == "in" else fan_out  # the input's batch norm stands before its layer
        shapes |= {f"{name}.{part}": (normed,) for part in ("scale", "shift", "mean", "var")}
    shapes["out.scale"] = (width,)
    for head, size in heads.items():
        shapes |= {f"{head}.weight": (size, width), f"{head}.bias": (size,)}
    return shapes


def init_unit(inputs: int, *, width: int, blocks: int, heads: Mapping[str, int], generator: torch.Generator) -> Params:
    """Return a network's tensors: orthogonal weights with unit rows, neutral norms, heads with zero bias."""
    params: Params = {}
    for name, shape in unit_shapes(inputs, width=width, blocks=blocks, heads=heads).items():
        if name.endswith(".weight"):
            rows, columns = shape
            params[name] = _orthogonal(rows, columns, generator)
        else:
            params[name] = torch.ones(shape) if name.endswith((".scale", ".var")) else torch.zeros(shape)
    renormalize_(params)
    return params


def unit_net(
    params: Mapping[str, Tensor],
    x: Tensor,
    heads: Sequence[str],
    prefix: str = "",
    *,
    training: bool,
    momentum: float = 0.0,
) -> list[Tensor]:
    """Return the heads' outputs, (batch, size) each, in the parameters' dtype also under autocast.

    Args:
        params: the tensors, with names that begin with `prefix`.
        x: (batch, inputs).
        heads: their names.
        prefix: of the names.
        training: normalise with the batch's statistics, not with the running ones.
        momentum: share of this batch in the running statistics; 0 leaves them alone.
    """

    def norm(x: Tensor, name: str) -> Tensor:
        scale, shift = params[f"{name}.scale"], params[f"{name}.shift"]
        if training and not momentum:
            return F.batch_norm(x, None, None, scale, shift, True, 0.0, BATCH_NORM_EPS)
        mean, var = params[f"{name}.mean"], params[f"{name}.var"]
        return F.batch_norm(x, mean, var, scale, shift, training, momentum, BATCH_NORM_EPS)

    x = F.linear(norm(x, f"{prefix}in"), params[f"{prefix}in.weight"])
    i = 0
    while f"{prefix}block{i}.wide.weight" in params:
        block = f"{prefix}block{i}"
        wide = torch.relu(norm(F.linear(x, params[f"{block}.wide.weight"]), f"{block}.wide"))
        x = x + torch.relu(norm(F.linear(wide, params[f"{block}.narrow.weight"]), f"{block}.narrow"))
        i += 1
    out = params[f"{prefix}out.scale"]
    x = F.rms_norm(x.to(out.dtype), out.shape, out, RMS_EPS)
    outputs = (F.linear(x, params[f"{prefix}{head}.weight"], params[f"{prefix}{head}.bias"]) for head in heads)
    return [output.to(out.dtype) for output in outputs]


def trainable(params: Mapping[str, _Leaf]) -> dict[str, _Leaf]:
    """Return the parameters without the running statistics."""
    return {name: leaf for name, leaf in params.items() if not name.endswith((".mean", ".var"))}


@torch.no_grad()
def renormalize_(params: Params) -> None:
    """Put every parameter back onto its sphere, in place.

    Rows of linear weights get length 1, (scale, shift) of a batch norm together √d, the scale of an RMS norm √d.
    """
    for name, tensor in params.items():
        if name.endswith(".weight"):
            tensor.div_(torch.linalg.vector_norm(tensor, dim=-1, keepdim=True).clamp_(min=_NORM_EPS))
        elif name.endswith(".scale"):
            shift = params.get(f"{name.removesuffix('.scale')}.shift")
            squares = tensor.square().sum() + (0 if shift is None else shift.square().sum())
            factor = math.sqrt(len(tensor)) * torch.rsqrt(squares + _NORM_EPS)
            tensor.mul_(factor)
            if shift is not None:
                shift.mul_(factor)


def _orthogonal(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """Return (rows, columns) with orthonormal rows or columns, whichever are fewer (Saxe et al. 2014)."""
    tall = torch.randn(max(rows, columns), min(rows, columns), generator=generator)
    q, r = torch.linalg.qr(tall)
    q = q * torch.sign(torch.diagonal(r))  # makes the distribution uniform over all such matrices
    return (q if rows >= columns else q.T).contiguous()
