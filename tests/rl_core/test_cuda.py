"""What only a GPU can show: it learns as the CPU does, in every way to accelerate it, and survives a kill."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_core import acceleration, policy, runner
from rl_core.algorithms import ALGORITHMS
from rl_core.clock import Clock
from rl_core.config import resolve
from rl_core.device import CPU, device_name, on_cpu, open_device
from rl_core.device_replay import DeviceReplay
from rl_core.errors import TrainingError
from rl_core.presets import PRESETS
from rl_core.recorder import LossMeans
from rl_core.replay import Batch, Layout, ReplayRing
from rl_core.shapes import Shapes
from tests.rl_core.conftest import artifacts, small, start
from tests.rl_core.test_algorithms import SETTINGS, first_q
from tests.rl_core.test_algorithms import batch as cpu_batch
from tests.rl_core.test_replay import write
from tests.rl_core.test_runner import wait_for_checkpoint

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU and a build of torch for it"),
    pytest.mark.filterwarnings("default"),  # the compiler's and the driver's own
]
BF16 = [name for name, preset in PRESETS.items() if preset.bf16]
LAYOUT = Layout(obs_dim=2, action_dim=1, capacity=10, slack=6)


@pytest.fixture
def gpu() -> torch.device:
    return open_device("cuda")


def build(name: str, device: torch.device, **changes: Any) -> Any:
    settings = dataclasses.replace(SETTINGS[name], **{"policy_delay": 2, **changes})
    shapes = Shapes(obs=3, action=2, updates=1000)
    return ALGORITHMS[name].build(settings, shapes, network_seed=1, noise_seed=2, device=device)


def batch(device: torch.device, size: int = 64, seed: int = 0, **fields: torch.Tensor) -> Batch:
    return Batch(*(tensor.to(device) for tensor in acceleration.tensors_of(cpu_batch(size, seed, **fields))))


def train_steps(name: str, learner: Any, step: acceleration.Step, device: torch.device, count: int) -> None:
    for n in range(count):
        step(learner, batch(device, seed=n), actor=ALGORITHMS[name].begin(learner))


@torch.no_grad()
def actions(name: str, learner: Any) -> torch.Tensor:
    """Return what the learner's policy does, computed on the CPU."""
    obs, noise = torch.randn(200, 3, generator=torch.Generator().manual_seed(7)), torch.zeros(200, 2)
    return ALGORITHMS[name].act(learner.settings, on_cpu(learner.actor), obs, noise)


@pytest.mark.parametrize("name", PRESETS)
def test_first_updates_lead_to_the_policy_that_the_cpu_learns(
    gpu: torch.device, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    found = []
    for device in (CPU, gpu):
        noise = torch.Generator().manual_seed(3)  # one stream for both: a GPU's own generator draws other numbers
        monkeypatch.setattr(
            ALGORITHMS[name],
            "standard_normal",
            lambda shape, made, noise=noise: torch.randn(shape, generator=noise).to(made.device),
        )
        learner = build(name, device)
        begun = actions(name, learner)
        train_steps(name, learner, ALGORITHMS[name].step, device, 10)
        found.append((begun, actions(name, learner)))
    (begun, ours), (theirs_begun, theirs) = found
    assert torch.equal(begun, theirs_begun)
    assert not torch.allclose(ours, begun, atol=1e-3)
    torch.testing.assert_close(theirs, ours, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("name", PRESETS)
def test_a_graph_takes_the_steps_that_eager_takes_with_the_same_noise(gpu: torch.device, name: str) -> None:
    eager, captured = (build(name, gpu) for _ in range(2))
    train_steps(name, eager, ALGORITHMS[name].step, gpu, 16)
    train_steps(name, captured, acceleration.Captured(ALGORITHMS[name].step), gpu, 16)
    assert torch.equal(eager.generator.get_state(), captured.generator.get_state())
    torch.testing.assert_close(actions(name, captured), actions(name, eager), atol=1e-3, rtol=1e-3)


def test_a_captured_step_follows_the_learning_rate(gpu: torch.device) -> None:
    learner, module = build("flash_sac", gpu, policy_delay=1), ALGORITHMS["flash_sac"]
    step = acceleration.Captured(module.step)
    train_steps("flash_sac", learner, step, gpu, 6)
    learner.updates = learner.total_updates
    assert module.begin(learner)
    for optimizer in (learner.actor_optimizer, learner.critic_optimizer, learner.alpha_optimizer):
        assert optimizer.learning_rate.item() == pytest.approx(1e-5)
        optimizer.set_learning_rate(0.0)
    before = learner.log_alpha["log_alpha"].item()
    step(learner, batch(gpu), actor=True)
    assert learner.log_alpha["log_alpha"].item() == before


@pytest.mark.slow
@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("name", PRESETS)
def test_a_compiled_step_takes_the_steps_that_eager_takes(
    gpu: torch.device, monkeypatch: pytest.MonkeyPatch, name: str, graph: bool
) -> None:
    monkeypatch.setattr(acceleration.Adam, "step", acceleration.Adam.step)
    torch._dynamo.reset()
    eager, other = (build(name, gpu) for _ in range(2))
    step = acceleration.compiled(ALGORITHMS[name].step)
    train_steps(name, eager, ALGORITHMS[name].step, gpu, 12)
    train_steps(name, other, acceleration.Captured(step) if graph else step, gpu, 12)
    torch.testing.assert_close(actions(name, other), actions(name, eager), atol=5e-3, rtol=5e-3)


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("name", BF16)
def test_bfloat16_stays_finite_and_learns_a_one_step_problem(gpu: torch.device, name: str, graph: bool) -> None:
    learner = build(name, gpu, learning_rate=3e-3)
    step = acceleration.in_bfloat16(ALGORITHMS[name].step, "cuda")
    if graph:
        step = acceleration.Captured(step)
    data = cpu_batch(256)
    data = batch(gpu, 256, reward=data.action[:, 0] * 2, bootstrap=torch.zeros(256))
    losses = LossMeans(gpu)
    for _ in range(800):
        losses.add(step(learner, data, actor=ALGORITHMS[name].begin(learner)))
    assert losses.not_finite() is None
    error = (first_q(name, learner, data) - data.reward).square().mean()
    assert float(error) < 0.1


@pytest.mark.parametrize("portion_rows", [3, 100])
def test_the_mirror_holds_the_rings_rows(
    gpu: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, portion_rows: int
) -> None:
    monkeypatch.setattr("rl_core.device_replay.STAGING_BYTES", portion_rows * LAYOUT.width * 4)
    ring, clock = ReplayRing(tmp_path / "ring", LAYOUT), Clock()
    mirror, generator = DeviceReplay(ring, gpu, clock=clock), torch.Generator(gpu).manual_seed(0)
    for stop in range(4, 64, 4):
        write(ring, stop - 4, 4)
        rows = mirror.sample(stop, 500, generator).cpu()
        positions = range(max(0, stop - LAYOUT.capacity), stop)
        assert set(rows[:, 0].int().tolist()) == set(positions)
        truth = torch.from_numpy(ring.newest(positions[0], stop))
        assert torch.equal(rows, truth[rows[:, 0].long() - positions[0]])
    assert clock.read()["mirror_copy_s"] >= 0


def test_a_generators_state_is_saved_and_restored(gpu: torch.device) -> None:
    generator = torch.Generator(gpu).manual_seed(5)
    torch.randn(100, generator=generator, device=gpu)
    saved = torch.from_numpy(generator.get_state().numpy().copy())
    drawn = torch.randn(100, generator=generator, device=gpu)
    generator.set_state(saved)
    assert torch.equal(torch.randn(100, generator=generator, device=gpu), drawn)


def arm(name: str, **changes: Any) -> dict[str, Any]:
    return small(name, **{"device": "cuda", "cuda_graph": True, "bf16": name in BF16, **changes})


@pytest.mark.parametrize(("name", "collection"), [*((name, "pipelined") for name in PRESETS), ("fast_sac", "async")])
def test_a_run_leaves_what_a_run_on_the_cpu_leaves(
    gpu: torch.device, tmp_path: Path, name: str, collection: str
) -> None:
    settings = resolve(arm(name, collection=collection, normalize_observations=True), where="arm")
    folders = {"run_dir": tmp_path / "run", "state_dir": tmp_path / "state"}
    summary = runner.train(settings, 0, **folders, key="k", provenance={}, trace=tmp_path / "t.json")
    assert summary["updates"] > 0
    assert summary["reproducible"] is False
    timing = json.loads((tmp_path / "run" / "timing.json").read_text(encoding="utf-8"))
    assert timing["device"] == device_name(gpu)
    assert timing["mirror_copy_s"] > 0
    trained = policy.load(tmp_path / "run" / "policy.safetensors")
    assert all(tensor.device == CPU for tensor in trained.actor.values())
    assert len(artifacts(tmp_path)) >= 7
    events = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))["traceEvents"]
    assert {event["name"] for event in events if event["pid"] == 10_000_000} >= {"mirror", "sample", "update"}


@pytest.mark.parametrize("name", ["sac", "flash_sac"])
def test_a_run_that_was_killed_goes_on(tmp_path: Path, name: str) -> None:
    killed = arm(name, env_steps=2400)
    process = start(killed, 0, tmp_path)
    wait_for_checkpoint(tmp_path, process, beyond=600)  # the ring, 300 rows, has wrapped
    process.kill()
    process.wait()
    assert start(killed, 0, tmp_path).wait(timeout=120) == 0
    assert "resumed at" in (tmp_path / "log").read_text(encoding="utf-8")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
    assert summary["env_steps"] == 2400


def test_a_number_that_is_not_finite_stops_the_run_and_names_it(tmp_path: Path) -> None:
    settings = resolve(arm("sac", reward_weights={"reward_alive": 1e20}), where="arm")
    folders = {"run_dir": tmp_path / "run", "state_dir": tmp_path / "state"}
    with pytest.raises(TrainingError, match=r"iteration \d+: critic_loss is not finite"):
        runner.train(settings, 0, **folders, key="k", provenance={})
