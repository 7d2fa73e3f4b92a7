"""Seedbed's off-policy runner: batched environments, replay ring, learners, checkpoints.

Importing this package pins the numeric kernels before numpy or torch load, so that the instruction set, and with
it the order of every sum, is the same on every x86-64 machine with AVX2. An environment variable that is already
set wins. Measured cost of the pin: none for AVX2, two thirds of matrix-product speed for MKL's `COMPATIBLE`.
"""

import os

for _name, _value in {
    "MKL_CBWR": "AVX2",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}.items():
    os.environ.setdefault(_name, _value)
