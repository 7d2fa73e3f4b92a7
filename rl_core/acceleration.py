"""The same update eager, compiled, captured in a CUDA graph, or with bfloat16 products: decided here, nowhere else.

An algorithm's update is `begin`, which counts in Python, and `step`, which computes with tensors alone and differs
only by whether the actor moves. On the CPU both run as they are written. On a GPU a step of a small network is some
hundred kernels of microseconds each, so what takes the time is launching them: `torch.compile` fuses them, a graph
launches all at once.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from rl_core.config import RunSettings
from rl_core.device import timing_event
from rl_core.optimizer import Adam
from rl_core.replay import Batch
from rl_core.trace import Event, span, unrecorded

WARM_UP = 3  # updates of each kind before its capture: they load kernels, choose algorithms, compile

Info = dict[str, Tensor]
Update = Callable[[Any, Batch], Info]
Step = Callable[..., Info]  # (learner, batch, *, actor)


def update_of(algorithm: ModuleType, settings: RunSettings) -> Update:
    """Return the algorithm's update as the settings ask for it."""
    step: Step = algorithm.step
    if settings.compile:
        step = compiled(step)
    if settings.bf16:
        step = in_bfloat16(step, settings.device)
    if settings.cuda_graph:
        step = Captured(step)
    if step is algorithm.step:
        update: Update = algorithm.update
        return update
    return _in_one_span(algorithm, step)


def events_of(device: torch.device) -> Callable[[], Event] | None:
    """Return what makes the events that time a device's own work in a trace; None where the CPU does the work."""
    return timing_event if device.type == "cuda" else None


def compiled(step: Step, backend: str = "inductor") -> Step:
    """Return the step compiled, once for each value of `actor`.

    The compiler takes losses with their gradients, target averages and projections; the optimiser's step is one
    kernel already, which the compiler does not know (torch 2.13: `_fused_adamw_` with a tensor for its rate).
    """
    Adam.step = torch.compiler.disable(Adam.step)  # type: ignore[method-assign, no-untyped-call]
    return torch.compile(step, backend=backend, dynamic=False)


def in_bfloat16(step: Step, device: str) -> Step:
    """Return the step with the networks' products in bfloat16; weights, sums and losses stay float32."""

    def stepped(learner: Any, batch: Batch, *, actor: bool) -> Info:
        # Without the cache: it would go on using the bfloat16 copies of weights that this step has moved since.
        with torch.autocast(device, torch.bfloat16, cache_enabled=False):
            return step(learner, batch, actor=actor)

    return stepped


def _in_one_span(algorithm: ModuleType, step: Step) -> Update:
    """Return begin and step as one update; what is inside is timed as a whole, since it runs as a whole."""

    def update(learner: Any, batch: Batch) -> Info:
        actor = algorithm.begin(learner)
        with span("update"), unrecorded():
            return step(learner, batch, actor=actor)

    return update


class Captured:
    """A step as a CUDA graph: one for updates that move the actor, one for those that do not."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._phases: dict[bool, _Phase] = {}

    def __call__(self, learner: Any, batch: Batch, *, actor: bool) -> Info:
        """Take the step; the result's tensors hold until the next one of the same kind."""
        if actor not in self._phases:
            self._phases[actor] = _Phase(self._step, actor=actor)
        return self._phases[actor](learner, batch)


class _Phase:
    """One kind of step. Its first updates run eagerly beside the default stream, as capturing asks for; then it is
    captured, which computes nothing, and replayed from then on."""

    def __init__(self, step: Step, *, actor: bool) -> None:
        self._step, self._actor = step, actor
        self._warm = 0
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: list[Tensor] = []
        self._info: Info = {}

    def __call__(self, learner: Any, batch: Batch) -> Info:
        if self._warm < WARM_UP:
            self._warm += 1
            return self._eagerly(learner, batch)
        if self._graph is None:
            self._graph = self._capture(learner, batch)
        torch._foreach_copy_(self._inputs, tensors_of(batch))
        self._graph.replay()
        return self._info

    def _eagerly(self, learner: Any, batch: Batch) -> Info:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            info = self._step(learner, batch, actor=self._actor)
        torch.cuda.current_stream().wait_stream(self._stream)
        return info

    def _capture(self, learner: Any, batch: Batch) -> torch.cuda.CUDAGraph:
        self._inputs = [tensor.clone() for tensor in tensors_of(batch)]
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(learner.generator)  # its noise goes on from replay to replay
        with torch.cuda.graph(graph, stream=self._stream):
            self._info = self._step(learner, Batch(*self._inputs), actor=self._actor)
        return graph


def tensors_of(batch: Batch) -> list[Tensor]:
    """Return a batch's tensors in the order of its fields."""
    return [getattr(batch, name) for name in Batch.__slots__]
