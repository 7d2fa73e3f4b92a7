"""Seedbed's off-policy runner: batched environments, replay ring, learners, checkpoints.

Importing this package pins the numeric kernels before numpy or torch load, so that the instruction set, and with
it the order of every sum, is the same on every x86-64 machine with AVX2. An environment variable that is already
set wins. Measured cost of the pins: none; MKL's stricter `COMPATIBLE` cost two thirds of matrix-product speed.
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
