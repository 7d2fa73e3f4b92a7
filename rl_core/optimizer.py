"""Adam and AdamW over dictionaries of named tensors, and the learning rate's schedule."""

import math

import torch
from torch import Tensor

from rl_core.networks import Params


def cosine(start: float, end: float, fraction: float) -> float:
    """Return the learning rate after `fraction` of the run: half a cosine from `start` to `end` (Loshchilov 2017)."""
    return end + 0.5 * (start - end) * (1 + math.cos(math.pi * min(fraction, 1.0)))


class Adam:
    """Adam (Kingma & Ba 2015, algorithm 1) over a dictionary of parameters, on torch's fused kernel.

    With a weight decay it is AdamW (Loshchilov & Hutter 2019, algorithm 2): θ ← θ − lr·decay·θ beside Adam's step.
    The kernel is called directly: `torch.optim.Adam` around it adds a tenth to the time of a small update, loads
    torch's compiler (a second at every start) and leaves a folder of the compiler's in the temporary directory.

    On a GPU the learning rate is a tensor there: a step that a CUDA graph has captured reads the rate set since.
    """

    def __init__(
        self, params: Params, learning_rate: float, *, beta1: float = 0.9, beta2: float = 0.999, weight_decay: float = 0
    ) -> None:
        device = next(iter(params.values())).device
        self.learning_rate = torch.tensor(learning_rate, device=device) if device.type == "cuda" else learning_rate
        self._params = params
        self._betas, self._weight_decay = (beta1, beta2), weight_decay
        self._steps = {name: torch.zeros((), device=device) for name in params}
        self._exp_avg = {name: torch.zeros_like(tensor) for name, tensor in params.items()}
        self._exp_avg_sq = {name: torch.zeros_like(tensor) for name, tensor in params.items()}

    def set_learning_rate(self, rate: float) -> None:
        """Take the steps to come with this rate."""
        if isinstance(self.learning_rate, Tensor):
            self.learning_rate.fill_(rate)
        else:
            self.learning_rate = rate

    def step(self, loss: Tensor) -> None:
        """Move the parameters one step down the gradient of `loss`; no other tensor's gradient is computed."""
        tensors = list(self._params.values())
        gradients = list(torch.autograd.grad(loss, tensors))
        with torch.no_grad():
            torch._foreach_add_(list(self._steps.values()), 1)
            torch._fused_adamw_(
                tensors,
                gradients,
                list(self._exp_avg.values()),
                list(self._exp_avg_sq.values()),
                [],
                list(self._steps.values()),
                lr=self.learning_rate,
                beta1=self._betas[0],
                beta2=self._betas[1],
                weight_decay=self._weight_decay,
                eps=1e-8,
                amsgrad=False,
                maximize=False,
            )

    def state(self) -> Params:
        """Return the live state tensors, named `<parameter>.step`, `.exp_avg` and `.exp_avg_sq`."""
        parts = {"step": self._steps, "exp_avg": self._exp_avg, "exp_avg_sq": self._exp_avg_sq}
        return {f"{name}.{part}": tensors[name] for name in self._params for part, tensors in parts.items()}
