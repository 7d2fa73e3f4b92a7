"""Seedbed's off-policy runner: batched environments, replay ring, learners, checkpoints.

Importing this package pins the numeric kernels before numpy or torch load, so that the instruction set, and with
it the order of every sum, is the same on every x86-64 machine with AVX2. An environment variable that is already
set wins, and becomes part of what identifies a run (`other_kernels`). Measured cost of the pins: none; MKL's stricter
`COMPATIBLE` cost two thirds of matrix-product speed.
"""

import os

KERNEL_PINS = {
    "MKL_CBWR": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "OPENBLAS_CORETYPE": "Haswell",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
for _name, _value in KERNEL_PINS.items():
    os.environ.setdefault(_name, _value)


def other_kernels() -> dict[str, str]:
    """Return which pins of the instruction set the environment overrides; thread counts change no result."""
    pins = {name: pin for name, pin in KERNEL_PINS.items() if not name.endswith("_THREADS")}
    return {name: os.environ[name] for name, pin in pins.items() if os.environ[name] != pin}
