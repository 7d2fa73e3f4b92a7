"""Where a learner computes: found and set up in one place, and the way back to main memory."""

from collections.abc import Mapping

import torch
from torch import Tensor

from rl_core.errors import TrainingError
from rl_core.networks import Params
from rl_core.trace import Event

CPU = torch.device("cpu")


def open_device(name: str) -> torch.device:
    """Return the device that a run's settings name, ready for use.

    On a GPU, float32 products are computed as such: TF32, which torch turns on for some of them, keeps ten bits of a
    mantissa. Whoever wants speed for precision asks for `bf16`.

    Raises:
        TrainingError: there is no GPU, or this build of torch cannot use it.
    """
    if name == "cpu":
        return CPU
    if not torch.cuda.is_available():
        built = f"is built for CUDA {torch.version.cuda} but finds no GPU" if torch.version.cuda else "cannot use a GPU"
        raise TrainingError(
            f"device: cuda: this torch ({torch.__version__}) {built}; train with `device: cpu`, or install the build "
            'for your GPU: make setup TORCH="torch==VERSION --index-url URL" (README, "Another build of torch")'
        )
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    return torch.device("cuda", torch.cuda.current_device())


def device_name(device: torch.device) -> str:
    """Return what timing.json calls the device: `cpu`, or the GPU's name."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def require_memory(device: torch.device, needed: int, what: str) -> None:
    """Check that a GPU has `needed` free bytes for `what`; main memory is not checked.

    Raises:
        TrainingError: it has not.
    """
    if device.type != "cuda":
        return
    free, _ = torch.cuda.mem_get_info(device)
    if needed > free:
        raise TrainingError(
            f"{what} needs {needed / 1e6:.0f} MB of memory on the GPU, {free / 1e6:.0f} MB are free; lower "
            "replay_capacity, or train with `device: cpu`"
        )


def timing_event() -> Event:
    """Return a mark for a GPU's queue of work, from which the time to another one can be read."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def moved(params: Params, device: torch.device) -> Params:
    """Return the tensors on the device; as they are where they are there already."""
    return {name: tensor.to(device) for name, tensor in params.items()}


def on_cpu(tensors: Mapping[str, Tensor]) -> Params:
    """Return the tensors, of one dtype, in main memory, by one transfer; live ones where they are there already."""
    if all(tensor.device == CPU for tensor in tensors.values()):
        return {name: tensor.detach() for name, tensor in tensors.items()}
    return unpacked(packed(list(tensors.values())).to(CPU), {name: tensor.shape for name, tensor in tensors.items()})


def packed(tensors: list[Tensor]) -> Tensor:
    """Return all numbers of the tensors, one after the other, (numbers,)."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def unpacked(flat: Tensor, shapes: Mapping[str, torch.Size]) -> Params:
    """Return views of what `packed` returned."""
    parts = torch.split(flat, [shape.numel() for shape in shapes.values()])
    return {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
