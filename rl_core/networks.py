"""Small multilayer perceptrons as flat dictionaries of named tensors, and the functions that algorithms share."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - torch's own customary name

Params = dict[str, Tensor]
TensorShapes = dict[str, tuple[int, ...]]
Activation = Callable[[Tensor], Tensor]


def mlp_shapes(sizes: Sequence[int], *, layer_norm: bool = False) -> TensorShapes:
    """Return the shape of every tensor of a perceptron with layers of `sizes`: `0.weight`, `0.bias`, ….

    With `layer_norm`, each hidden layer also has `i.scale` and `i.shift`.
    """
    shapes: TensorShapes = {}
    for i, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
        shapes |= {f"{i}.weight": (fan_out, fan_in), f"{i}.bias": (fan_out,)}
        if layer_norm and i < len(sizes) - 2:
            shapes |= {f"{i}.scale": (fan_out,), f"{i}.shift": (fan_out,)}
    return shapes


def init_mlp(sizes: Sequence[int], *, layer_norm: bool = False, generator: torch.Generator) -> Params:
    """Return the tensors that `mlp_shapes` names.

    Weights and biases are uniform in ±1/√fan_in, torch's default for a linear layer, which the published runs of
    SAC and TD3 used; scales are ones and shifts zeros.
    """
    params: Params = {}
    for name, shape in mlp_shapes(sizes, layer_norm=layer_norm).items():
        layer, _, part = name.partition(".")
        bound = 1 / math.sqrt(sizes[int(layer)])
        if part in ("weight", "bias"):
            params[name] = torch.empty(shape).uniform_(-bound, bound, generator=generator)
        else:
            params[name] = torch.ones(shape) if part == "scale" else torch.zeros(shape)
    return params


def mlp(params: Mapping[str, Tensor], x: Tensor, prefix: str = "", *, activation: Activation = torch.relu) -> Tensor:
    """Return the perceptron's output for `x`, (..., sizes[0]) -> (..., sizes[-1]); `activation` between the layers.

    The output has the parameters' dtype, also where autocast makes the products bfloat16.
    """
    i = 0
    while True:
        bias = params[f"{prefix}{i}.bias"]
        x = F.linear(x, params[f"{prefix}{i}.weight"], bias)
        scale = params.get(f"{prefix}{i}.scale")
        if scale is not None:
            x = F.layer_norm(x, scale.shape, scale, params[f"{prefix}{i}.shift"])
        i += 1
        if f"{prefix}{i}.weight" not in params:
            return x.to(bias.dtype)
        x = activation(x)


def twin_shapes(one: TensorShapes) -> TensorShapes:
    """Return the shapes of two networks of the same shape under the prefixes `q1.` and `q2.`."""
    return {f"{head}.{name}": shape for head in ("q1", "q2") for name, shape in one.items()}


def init_twin(sizes: Sequence[int], *, layer_norm: bool, generator: torch.Generator) -> Params:
    """Return two perceptrons of the same shape under the prefixes `q1.` and `q2.`."""
    return {
        f"{head}.{name}": tensor
        for head in ("q1", "q2")
        for name, tensor in init_mlp(sizes, layer_norm=layer_norm, generator=generator).items()
    }


def gaussian_head(output: Tensor, log_std_min: float = -5.0, log_std_max: float = 2.0) -> tuple[Tensor, Tensor]:
    """Split a policy's output, (..., 2·|A|), into mean and log standard deviation, (..., |A|) each.

    log σ = min + ½ (max − min) (1 + tanh x), by default in [−5, 2]. The smooth map, unlike a clamp, keeps a gradient
    at the bounds.
    """
    mean, x = output.chunk(2, dim=-1)
    return mean, log_std_min + 0.5 * (log_std_max - log_std_min) * (1 + torch.tanh(x))


def standard_normal(shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Return standard normal noise on the generator's device."""
    return torch.randn(shape, generator=generator, device=generator.device)


def squashed_sample(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return a = tanh(u) with u = μ + σ·noise, and log π(a) in nats, (...,).

    log π = Σ [ log N(u; μ, σ) − 2 (log 2 − u − softplus(−2u)) ] (Haarnoja et al. 2018, appendix C, in the stable
    form of log(1 − tanh² u)).
    """
    u = mean + log_std.exp() * noise
    log_normal = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    log_prob = log_normal - 2 * (math.log(2) - u - F.softplus(-2 * u))
    return torch.tanh(u), log_prob.sum(-1)


@torch.no_grad()  # else every average would hang its graph, and all before it, onto the target
def polyak_(target: Params, online: Params, tau: float) -> None:
    """Move every target tensor the fraction `tau` towards its online tensor, in place."""
    torch._foreach_lerp_(list(target.values()), list(online.values()), tau)


def copy_of(params: Params) -> Params:
    """Return target parameters: equal numbers in tensors of their own."""
    return {name: tensor.detach().clone() for name, tensor in params.items()}


def require_grad(*networks: Params) -> None:
    """Mark every tensor of the networks as trainable."""
    for params in networks:
        for tensor in params.values():
            tensor.requires_grad_()


def named(parts: Mapping[str, Params]) -> Params:
    """Return the tensors of several dictionaries in one, as `<part>.<name>`."""
    return {f"{part}.{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()}
