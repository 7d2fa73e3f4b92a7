"""A policy as an ONNX graph: raw observations in, deterministic actions out, the normaliser inside.

One entry for each kind of head, as in `actors.HEADS`. Constants keep the names that they have in the policy.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import onnx
from onnx import TensorProto, helper, numpy_helper

from rl_core.envs.simulation import dimensions, load_model
from rl_core.envs.task import Task
from rl_core.networks import Params
from rl_core.normalization import OBS_MEAN, OBS_STD
from rl_core.policy import Policy
from rl_core.unit_networks import BATCH_NORM_EPS, RMS_EPS

INPUT, OUTPUT = "observation", "action"
_OPSET, _IR_VERSION = 17, 8  # the first with LayerNormalization, and the file version of its day: old runtimes read it
_LAYER_NORM_EPS = 1e-5  # torch's default, which `networks.mlp` uses
_SCALING = "control = (action_low + action_high) / 2 + (action_high - action_low) / 2 * action"


class _Graph:
    """Nodes in the order of computation, and the constants that they read."""

    def __init__(self, actor: Params, action_dim: int) -> None:
        self.actor = actor
        self.action_dim = action_dim
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}

    def node(self, operator: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Add a node and return the name of its output."""
        name = output or f"{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], name=name, **attributes))
        return name

    def tensor(self, name: str, *, rows: int | None = None) -> str:
        """Make a tensor of the actor, or its first rows, a constant and return its name."""
        self.constants[name] = numpy_helper.from_array(self.actor[name][:rows].numpy(), name)
        return name

    def scalar(self, name: str, value: float) -> str:
        self.constants[name] = helper.make_tensor(name, TensorProto.FLOAT, (), (value,))
        return name

    def linear(self, x: str, layer: str, *, rows: int | None = None) -> str:
        parts = [name for name in (f"{layer}.weight", f"{layer}.bias") if name in self.actor]
        return self.node("Gemm", x, *(self.tensor(name, rows=rows) for name in parts), transB=1)

    def batch_norm(self, x: str, layer: str) -> str:
        parts = (self.tensor(f"{layer}.{part}") for part in ("scale", "shift", "mean", "var"))
        return self.node("BatchNormalization", x, *parts, epsilon=BATCH_NORM_EPS)


Draw = Callable[[_Graph, str], str]  # (graph, what the actor sees) -> the action before tanh


def to_onnx(policy: Policy, *, policy_sha256: str) -> onnx.ModelProto:
    """Return the model: `observation`, float32 (batch, obs_dim) -> `action`, float32 (batch, |A|) in [−1, 1].

    Its metadata says what the policy is and how an action becomes a control signal.

    Args:
        policy: the policy.
        policy_sha256: of its file, so that it can be told which policy a model was made from.
    """
    obs_dim, action_dim, _ = dimensions(policy.task)
    graph = _Graph(policy.actor, action_dim)
    _squash(graph, DRAW[policy.head](graph, _normalized(graph)))
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            policy.task.name,
            [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, ("batch", obs_dim))],
            [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ("batch", action_dim))],
            list(graph.constants.values()),
        ),
        producer_name="seedbed",
        ir_version=_IR_VERSION,
        opset_imports=[helper.make_opsetid("", _OPSET)],
    )
    helper.set_model_props(model, _metadata(policy, policy_sha256))
    return model


def to_bytes(model: onnx.ModelProto) -> bytes:
    """Return the model as a file; equal models are equal bytes."""
    return model.SerializeToString(deterministic=True)


def _normalized(graph: _Graph) -> str:
    if OBS_MEAN not in graph.actor:
        return INPUT
    return graph.node("Div", graph.node("Sub", INPUT, graph.tensor(OBS_MEAN)), graph.tensor(OBS_STD))


def _squash(graph: _Graph, x: str) -> None:
    # onnxruntime's tanh reaches 1.0000002
    bounds = graph.scalar("lowest", -1), graph.scalar("highest", 1)
    graph.node("Clip", graph.node("Tanh", x), *bounds, output=OUTPUT)


def _relu(graph: _Graph, x: str) -> str:
    return graph.node("Relu", x)


def _silu(graph: _Graph, x: str) -> str:
    return graph.node("Mul", x, graph.node("Sigmoid", x))


def _perceptron(activation: Draw) -> Draw:
    """Draw `networks.mlp` as far as the means: the deviations of a Gaussian are the rows behind them."""

    def draw(graph: _Graph, x: str) -> str:
        i = 0
        while f"{i + 1}.weight" in graph.actor:
            x = graph.linear(x, str(i))
            if f"{i}.scale" in graph.actor:
                parts = graph.tensor(f"{i}.scale"), graph.tensor(f"{i}.shift")
                x = graph.node("LayerNormalization", x, *parts, epsilon=_LAYER_NORM_EPS)
            x = activation(graph, x)
            i += 1
        return graph.linear(x, str(i), rows=graph.action_dim)

    return draw


def _unit(graph: _Graph, x: str) -> str:
    """Draw `unit_networks.unit_net` with its head of means."""
    x = graph.linear(graph.batch_norm(x, "in"), "in")
    i = 0
    while f"block{i}.wide.weight" in graph.actor:
        inner = x
        for layer in (f"block{i}.wide", f"block{i}.narrow"):
            inner = _relu(graph, graph.batch_norm(graph.linear(inner, layer), layer))
        x = graph.node("Add", x, inner)
        i += 1
    return graph.linear(_rms_norm(graph, x), "mean")


def _rms_norm(graph: _Graph, x: str) -> str:
    mean_square = graph.node("ReduceMean", graph.node("Mul", x, x), axes=[-1])
    rms = graph.node("Sqrt", graph.node("Add", mean_square, graph.scalar("rms_epsilon", RMS_EPS)))
    return graph.node("Mul", graph.node("Div", x, rms), graph.tensor("out.scale"))


DRAW: Mapping[str, Draw] = {
    "gaussian": _perceptron(_relu),
    "gaussian_silu": _perceptron(_silu),
    "deterministic": _perceptron(_relu),
    "unit_gaussian": _unit,
}


def _metadata(policy: Policy, policy_sha256: str) -> dict[str, str]:
    """Return what the file says of itself, sorted by name; words as they are, everything else as JSON."""
    known = ("algorithm", "reward", "seed", "env_steps")
    values = {
        **{name: policy.metadata[name] for name in known if name in policy.metadata},
        "task": policy.task.name,
        "task_settings": policy.task.values,
        "weights": policy.weights,
        "policy_sha256": policy_sha256,
        **_control(policy.task),
    }
    return {
        name: value if isinstance(value, str) else json.dumps(value, sort_keys=True, allow_nan=False)
        for name, value in sorted(values.items())
    }


def _control(task: Task) -> dict[str, object]:
    model = load_model(task)
    low, high = model.actuator_ctrlrange.T
    return {
        "action_low": low.tolist(),
        "action_high": high.tolist(),
        "action_scaling": _SCALING,
        "control_dt_s": float(model.opt.timestep) * task.frame_skip,
    }
