"""Categorical critics against a slow loop in float64, and losses against torch's own."""

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rl_core.critics import cross_entropy, edge_mass, expectation, project_categorical, support


def slow_projection(targets: torch.Tensor, probabilities: torch.Tensor, atoms: torch.Tensor) -> np.ndarray:
    """Bellemare et al. 2017, algorithm 1, as it stands there."""
    z = atoms.double().numpy()
    step = (z[-1] - z[0]) / (len(z) - 1)
    m = np.zeros(tuple(probabilities.shape))
    for row, (ts, ps) in enumerate(zip(targets.double().numpy(), probabilities.double().numpy(), strict=True)):
        for t, p in zip(ts, ps, strict=True):
            b = min((min(max(t, z[0]), z[-1]) - z[0]) / step, len(z) - 1)  # the division may round beyond the last atom
            lower, upper = math.floor(b), math.ceil(b)
            if lower == upper:
                m[row, lower] += p
            else:
                m[row, lower] += p * (upper - b)
                m[row, upper] += p * (b - lower)
    return m


def random_masses(rows: int, atoms: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, atoms, generator=torch.Generator().manual_seed(seed)).mul(3).softmax(-1)


@st.composite
def supports(draw: st.DrawFn) -> torch.Tensor:
    low = draw(st.floats(-50, 50))
    return support(low, low + draw(st.floats(0.1, 100)), draw(st.integers(2, 60)))


@settings(max_examples=60)
@example(support(0, 0.5, 50), 0.0, 1.0, 0)  # in float64 the last atom's position rounds to beyond 49
@given(supports(), st.floats(-2, 2), st.floats(-3, 3), st.integers(0, 99))
def test_projection_equals_the_slow_loop(atoms: torch.Tensor, scale: float, shift: float, seed: int) -> None:
    p = random_masses(5, len(atoms), seed)
    targets = (scale * (atoms - atoms[0]) + atoms[0] + shift * (atoms[-1] - atoms[0])).expand(5, -1)
    np.testing.assert_allclose(project_categorical(targets, p, atoms), slow_projection(targets, p, atoms), atol=2e-4)


def test_projection_keeps_the_mass_and_inside_the_support_the_mean() -> None:
    atoms = support(-5, 5, 101)
    p = random_masses(64, 101, 0)
    inside = project_categorical(0.9 * atoms.expand(64, -1) + 0.03, p, atoms)
    torch.testing.assert_close(inside.sum(-1), torch.ones(64))
    torch.testing.assert_close(expectation(inside, atoms), 0.9 * expectation(p, atoms) + 0.03, atol=1e-5, rtol=1e-5)
    outside = project_categorical(atoms.expand(64, -1) * 7, p, atoms)
    torch.testing.assert_close(outside.sum(-1), torch.ones(64))


def test_targets_on_atoms_stay_there_and_beyond_the_edges_go_to_the_edge() -> None:
    atoms = support(-1, 1, 5)
    p = random_masses(3, 5, 1)
    torch.testing.assert_close(project_categorical(atoms.expand(3, -1), p, atoms), p)
    high = project_categorical(torch.full((3, 5), 9.0), p, atoms)
    torch.testing.assert_close(high, torch.tensor([0.0, 0, 0, 0, 1]).expand(3, -1))
    assert float(edge_mass(high)) == pytest.approx(1)


def test_a_terminal_row_holds_its_reward_alone() -> None:
    atoms = support(-1, 1, 5)
    reward, bootstrap = torch.tensor([0.25, -0.5]), torch.tensor([0.0, 0.0])
    z = reward[:, None] + 0.99 * bootstrap[:, None] * atoms
    m = project_categorical(z, random_masses(2, 5, 2), atoms)
    torch.testing.assert_close(m, torch.tensor([[0, 0, 0.5, 0.5, 0], [0, 1.0, 0, 0, 0]]))


def test_cross_entropy_equals_torchs() -> None:
    logits, target = torch.randn(8, 11, generator=torch.Generator().manual_seed(3)), random_masses(8, 11, 4)
    torch.testing.assert_close(cross_entropy(target, logits), torch.nn.functional.cross_entropy(logits, target))
