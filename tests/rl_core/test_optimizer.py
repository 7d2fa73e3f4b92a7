"""The optimiser against torch's, the schedule against its formula."""

import pytest
import torch

from rl_core.optimizer import Adam, cosine


@pytest.mark.parametrize(("beta2", "weight_decay"), [(0.999, 0.0), (0.95, 1e-3), (0.999, 0.1)])
def test_steps_equal_torchs_adamw(beta2: float, weight_decay: float) -> None:
    generator = torch.Generator().manual_seed(0)
    ours = {"w": torch.randn(4, 3, generator=generator).requires_grad_(), "b": torch.zeros(3, requires_grad=True)}
    theirs = {name: torch.nn.Parameter(tensor.detach().clone()) for name, tensor in ours.items()}
    optimizer = Adam(ours, 0.01, beta2=beta2, weight_decay=weight_decay)
    reference = torch.optim.AdamW(theirs.values(), lr=0.01, betas=(0.9, beta2), weight_decay=weight_decay)
    for _ in range(20):
        x = torch.randn(8, 4, generator=generator)
        optimizer.step((x @ ours["w"] + ours["b"]).square().mean())
        reference.zero_grad()
        (x @ theirs["w"] + theirs["b"]).square().mean().backward()
        reference.step()
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor.detach(), theirs[name].data, rtol=1e-5, atol=1e-6)


def test_a_changed_learning_rate_holds_from_the_next_step() -> None:
    params = {"w": torch.ones(1, requires_grad=True)}
    optimizer = Adam(params, 0.1)
    optimizer.learning_rate = 0.0
    optimizer.step(params["w"].sum())
    assert float(params["w"].detach()) == 1.0


def test_the_cosine_starts_and_ends_where_it_should_and_stays_there() -> None:
    assert cosine(3e-4, 1.5e-4, 0.0) == pytest.approx(3e-4)
    assert cosine(3e-4, 1.5e-4, 0.5) == pytest.approx(2.25e-4)
    assert cosine(3e-4, 1.5e-4, 1.0) == cosine(3e-4, 1.5e-4, 1.7) == pytest.approx(1.5e-4)
