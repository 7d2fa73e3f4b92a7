"""What a GPU is asked to do, on the CPU as far as that goes: the mirror, the transfers, the ways to accelerate."""

import dataclasses
import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rl_core import acceleration, device_replay, runner
from rl_core.algorithms import ALGORITHMS
from rl_core.batches import Batches
from rl_core.clock import Clock
from rl_core.config import resolve
from rl_core.critics import expectation
from rl_core.device import CPU, device_name, on_cpu, open_device, packed, require_memory, unpacked
from rl_core.device_replay import DeviceReplay
from rl_core.errors import TrainingError
from rl_core.handover import WeightBoard
from rl_core.networks import init_mlp, mlp
from rl_core.optimizer import Adam
from rl_core.presets import PRESETS
from rl_core.recorder import LossMeans
from rl_core.replay import Batch, Layout, ReplayRing
from rl_core.unit_networks import init_unit, unit_net
from tests.rl_core.conftest import artifacts, small
from tests.rl_core.test_algorithms import batch, build, first_q, generator
from tests.rl_core.test_replay import write

LAYOUT = Layout(obs_dim=2, action_dim=1, capacity=10, slack=6)
NO_GPU = not torch.cuda.is_available()


class CountedRing(ReplayRing):
    """A ring that notes which of its rows are read."""

    def __init__(self, path: Path, layout: Layout) -> None:
        super().__init__(path, layout)
        self.reads: list[tuple[int, int]] = []

    def read(self, start: int, stop: int, out: torch.Tensor) -> None:
        self.reads.append((start, stop))
        super().read(start, stop, out)


@pytest.fixture
def ring(tmp_path: Path) -> CountedRing:
    return CountedRing(tmp_path / "ring", LAYOUT)


def mirror_of(ring: ReplayRing) -> DeviceReplay:
    return DeviceReplay(ring, CPU, clock=Clock())


def held(mirror: DeviceReplay) -> list[int]:
    """Return the positions of the rows in the mirror, sorted."""
    return sorted(mirror._rows[:, 0].int().tolist())


@pytest.mark.parametrize("chunk", [1, 3, 4, 10])
@pytest.mark.parametrize("portion_rows", [1, 3, 100])
def test_a_mirror_samples_the_same_rows_as_its_ring(
    ring: CountedRing, monkeypatch: pytest.MonkeyPatch, chunk: int, portion_rows: int
) -> None:
    monkeypatch.setattr(device_replay, "STAGING_BYTES", portion_rows * LAYOUT.width * 4)
    mirror, ours, theirs = mirror_of(ring), generator(), generator()
    for start in range(0, 70, chunk):  # the mirror wraps at 10 rows, the ring at 16
        write(ring, start, chunk)
        counter = start + chunk
        assert torch.equal(mirror.sample(counter, 100, ours), ring.sample(counter, 100, theirs))


def test_only_new_rows_are_copied_each_once(ring: CountedRing) -> None:
    mirror = mirror_of(ring)
    for start in range(0, 60, 4):
        write(ring, start, 4)
        mirror.sample(start + 4, 5, generator())
        mirror.sample(start + 4, 5, generator())
    assert ring.reads == [(start, start + 4) for start in range(0, 60, 4)]


def test_of_more_new_rows_than_can_be_sampled_the_newest_are_copied(ring: CountedRing) -> None:
    mirror = mirror_of(ring)
    write(ring, 0, 16)
    write(ring, 16, 9)
    mirror.sample(25, 1, generator())
    assert ring.reads == [(15, 25)]
    assert held(mirror) == list(range(15, 25))


def test_a_mirror_made_anew_as_a_resumed_run_makes_it_holds_all_that_can_be_sampled(
    ring: CountedRing, monkeypatch: pytest.MonkeyPatch
) -> None:
    for start in range(0, 36, 4):
        write(ring, start, 4)
    write(ring, 36, LAYOUT.slack)  # rows that the killed run had written ahead
    monkeypatch.setattr(device_replay, "STAGING_BYTES", 4 * LAYOUT.width * 4)
    mirror = mirror_of(ring)
    assert torch.equal(mirror.sample(36, 50, generator()), ring.sample(36, 50, generator()))
    assert held(mirror) == list(range(26, 36))
    assert ring.reads == [(26, 30), (30, 34), (34, 36)]


def test_rows_drawn_from_a_mirror_are_copies(ring: CountedRing) -> None:
    mirror = mirror_of(ring)
    write(ring, 0, 10)
    mirror.sample(10, 20, generator()).zero_()
    assert held(mirror) == list(range(10))


def test_the_time_of_copies_is_told_to_the_clock(ring: CountedRing) -> None:
    clock = Clock()
    mirror = DeviceReplay(ring, CPU, clock=clock)
    write(ring, 0, 10)
    mirror.sample(10, 1, generator())
    assert clock._spans["mirror_copy_s"] > 0
    restored = Clock()
    restored.restore(clock.state())
    assert restored.read()["mirror_copy_s"] == clock.read()["mirror_copy_s"]


def test_batches_from_a_mirror_are_those_from_the_ring(tmp_path: Path) -> None:
    arm = small("flash_sac", normalize_observations=True, symmetry=True)
    settings = resolve(arm, where="arm")
    task = runner.envs.task(settings.task)()
    ring = ReplayRing(tmp_path / "ring", runner.ring_layout(settings, task))
    rng = np.random.default_rng(0)
    for step in range(25):
        obs, next_obs = rng.normal(size=(2, 4, 9)).astype(np.float32)
        flags = rng.random((2, 4)) < 0.3
        action, reward = rng.uniform(-1, 1, (4, 1)).astype(np.float32), rng.normal(size=4).astype(np.float32)
        ring.write(
            4 * step,
            obs=obs,
            action=action,
            reward=reward,
            terminated=flags[0],
            truncated=flags[1],
            next_obs=next_obs,
        )
    drawn = []
    for source in (None, mirror_of(ring)):
        batches = Batches(settings, ring, mirror=task.mirror, generator=generator(), source=source)
        batches.learn_statistics(0, 100)
        drawn.append(list(batches.draw(3, 100)))
    for one, other in zip(*drawn, strict=True):
        for ours, theirs in zip(acceleration.tensors_of(one), acceleration.tensors_of(other), strict=True):
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", ["sac", "flash_sac"])
def test_a_run_that_draws_from_a_mirror_leaves_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def train(folder: Path) -> dict[str, Any]:
        settings = resolve(small(name, env_steps=600), where="arm")
        folders = {"run_dir": folder / "run", "state_dir": folder / "state"}
        runner.train(settings, 0, **folders, key="k", provenance={})
        timing: dict[str, Any] = json.loads((folder / "run" / "timing.json").read_text(encoding="utf-8"))
        return timing

    assert train(tmp_path / "ring")["mirror_copy_s"] == 0
    monkeypatch.setattr(runner, "CPU", torch.device("meta"))  # the device is not "the CPU" any more
    mirrors: list[DeviceReplay] = []
    monkeypatch.setattr(
        runner, "DeviceReplay", lambda *of, **named: mirrors.append(DeviceReplay(*of, **named)) or mirrors[0]
    )
    train(tmp_path / "mirror")
    assert mirrors[0]._synced == 600
    assert artifacts(tmp_path / "mirror") == artifacts(tmp_path / "ring")


@pytest.mark.skipif(not NO_GPU, reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_one_clear_error_before_any_process_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "CollectorLink", None)
    state = tmp_path / "state"
    state.mkdir()
    (state / "checkpoint-8.seedbed").write_bytes(b"of a machine that has one")
    settings = resolve(small(device="cuda"), where="arm")
    with pytest.raises(TrainingError, match=r'device: cuda: this torch .* make setup TORCH="torch==') as caught:
        runner.train(settings, 0, run_dir=tmp_path / "run", state_dir=state, key="k", provenance={})
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in state.iterdir()) == ["checkpoint-8.seedbed", "status.json"]
    assert not (tmp_path / "run").exists()


def test_a_mirror_that_the_gpu_cannot_hold_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (5_000_000, 80_000_000))
    gpu = torch.device("cuda", 0)
    require_memory(gpu, 5_000_000, "a replay")
    with pytest.raises(TrainingError, match="a replay needs 6 MB of memory on the GPU, 5 MB are free; lower replay_c"):
        require_memory(gpu, 6_000_000, "a replay")
    require_memory(CPU, 10**18, "main memory is not asked")


def test_the_cpu_is_the_device_of_its_name() -> None:
    assert open_device("cpu") == CPU
    assert device_name(CPU) == "cpu"


def test_packed_tensors_come_back_in_their_shapes() -> None:
    tensors = {"a": torch.randn(3, 2, requires_grad=True), "scalar": torch.tensor(7.0), "b": torch.randn(4)}
    flat = packed(list(tensors.values()))
    back = unpacked(flat, {name: tensor.shape for name, tensor in tensors.items()})
    assert list(back) == list(tensors)
    assert all(torch.equal(back[name], tensor) for name, tensor in tensors.items())
    assert on_cpu(tensors)["a"].data_ptr() == tensors["a"].data_ptr()
    assert not on_cpu(tensors)["a"].requires_grad


def test_published_weights_are_read_back(tmp_path: Path) -> None:
    weights = init_mlp((3, 4, 2), generator=generator())
    board = WeightBoard(tmp_path / "weights", {name: tuple(tensor.shape) for name, tensor in weights.items()})
    board.publish(1, {name: tensor.requires_grad_() for name, tensor in weights.items()})
    assert all(torch.equal(tensor, weights[name]) for name, tensor in board.read(1).items())


def test_losses_are_summed_in_float64_and_read_together() -> None:
    losses = LossMeans()
    assert losses.not_finite() is None
    for value in (1e8, 1.0, 1.0):
        losses.add({"critic": torch.tensor(value)})
    losses.add({"actor": torch.tensor(3.0)})
    again = LossMeans()
    again.restore(losses.state())
    for one in (losses, again):
        assert one.not_finite() is None
        assert one.take() == {"critic": (1e8 + 2) / 3, "actor": 3.0}
    losses.add({"critic": torch.tensor(1.0), "actor": torch.tensor(float("nan"))})
    assert losses.not_finite() == "actor"


@pytest.mark.parametrize("name", PRESETS)
def test_updates_are_begin_and_step(name: str) -> None:
    module, one, other = ALGORITHMS[name], build(name, policy_delay=2), build(name, policy_delay=2)
    for n in range(4):
        info = module.update(one, batch(seed=n))
        actor = module.begin(other)
        assert actor == ("actor_loss" in info)
        stepped = module.step(other, batch(seed=n), actor=actor)
        assert all(torch.equal(info[key], stepped[key]) for key in info)
    assert all(torch.equal(tensor, module.state(other)[key]) for key, tensor in module.state(one).items())


@pytest.mark.parametrize("name", PRESETS)
def test_a_step_changes_nothing_but_tensors(name: str) -> None:
    module, learner = ALGORITHMS[name], build(name, policy_delay=1)
    plain = {f.name: getattr(learner, f.name) for f in dataclasses.fields(learner) if f.name != "generator"}
    module.step(learner, batch(), actor=True)
    for field, before in plain.items():
        assert getattr(learner, field) is before or getattr(learner, field) == before


@pytest.mark.parametrize("name", PRESETS)
def test_a_step_leaves_every_tensor_where_it_is(name: str) -> None:
    module, learner = ALGORITHMS[name], build(name, policy_delay=1)
    places = {key: tensor.data_ptr() for key, tensor in module.state(learner).items()}
    module.update(learner, batch())
    assert {key: tensor.data_ptr() for key, tensor in module.state(learner).items()} == places


def test_without_acceleration_the_update_is_the_algorithms_own() -> None:
    for name, module in ALGORITHMS.items():
        assert acceleration.update_of(module, resolve(small(name), where="arm")) is module.update


def test_a_learning_rate_in_a_tensor_is_read_by_every_step_and_equals_a_number() -> None:
    weights = [{"w": torch.tensor([1.0, -2.0], requires_grad=True)} for _ in range(2)]
    number, tensor = (Adam(w, 0.5, weight_decay=0.1) for w in weights)
    tensor.learning_rate = torch.tensor(0.5)
    for rate in (0.5, 0.25, 0.125):
        for optimizer, w in zip((number, tensor), weights, strict=True):
            optimizer.set_learning_rate(rate)
            optimizer.step(w["w"].square().sum())
    assert isinstance(tensor.learning_rate, torch.Tensor)
    assert torch.equal(weights[0]["w"], weights[1]["w"])


def test_a_schedule_moves_a_learning_rate_in_place() -> None:
    learner = build("flash_sac")
    rates = []
    for optimizer in (learner.actor_optimizer, learner.critic_optimizer, learner.alpha_optimizer):
        optimizer.learning_rate = torch.tensor(0.0)
        rates.append(optimizer.learning_rate)
    ALGORITHMS["flash_sac"].begin(learner)
    assert [float(rate) for rate in rates] == pytest.approx([1e-3] * 3)
    learner.updates = 1000
    ALGORITHMS["flash_sac"].begin(learner)
    assert [float(rate) for rate in rates] == pytest.approx([1e-5] * 3)


def test_networks_under_autocast_compute_in_bfloat16_and_answer_in_float32() -> None:
    plain, unit = (
        init_mlp((3, 64, 2), generator=generator()),
        init_unit(3, width=32, blocks=1, heads={"q": 2}, generator=generator()),
    )
    x = torch.randn(16, 3, generator=generator(1))
    exact = mlp(plain, x), unit_net(unit, x, ("q",), training=True)[0]
    with torch.autocast("cpu", torch.bfloat16):
        rounded = mlp(plain, x), unit_net(unit, x, ("q",), training=True)[0]
    for one, other in zip(exact, rounded, strict=True):
        assert other.dtype == torch.float32
        assert not torch.equal(one, other)
        torch.testing.assert_close(one, other, atol=0.05, rtol=0.05)


def test_values_are_not_rounded_under_autocast() -> None:
    probabilities = torch.rand(8, 101, generator=generator()).softmax(-1)
    atoms = torch.linspace(-20, 20, 101)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = expectation(probabilities, atoms)
    torch.testing.assert_close(rounded, probabilities @ atoms, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", [name for name, preset in PRESETS.items() if preset.bf16])
def test_bfloat16_products_use_the_weights_of_this_step_and_learn(name: str) -> None:
    learner, module = build(name, learning_rate=3e-3), ALGORITHMS[name]
    step = acceleration.in_bfloat16(module.step, "cpu")
    data = batch(128)
    data = batch(128, reward=data.action[:, 0] * 2, bootstrap=torch.zeros(128))
    for _ in range(300):
        info = step(learner, data, actor=module.begin(learner))
        assert all(torch.isfinite(value) for value in info.values())
    assert all(tensor.dtype == torch.float32 for tensor in module.state(learner).values())
    error = (first_q(name, learner, data) - data.reward).square().mean()
    assert float(error) < 0.2


def test_a_step_in_bfloat16_never_reuses_a_weight_that_it_has_moved() -> None:
    seen = []

    def step(learner: dict[str, torch.Tensor], data: Any, *, actor: bool) -> dict[str, torch.Tensor]:
        for _ in range(2):
            seen.append(torch.nn.functional.linear(torch.ones(1), learner["w"]).item())
            with torch.no_grad():
                learner["w"].fill_(3.0)
        return {}

    acceleration.in_bfloat16(step, "cpu")({"w": torch.ones(1, 1, requires_grad=True)}, None, actor=True)  # type: ignore[arg-type]
    assert seen == [1.0, 3.0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_a_compiled_step_takes_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Adam, "step", Adam.step)  # compiling replaces it
    module, learners = ALGORITHMS["fast_td3"], [build("fast_td3", policy_delay=2) for _ in range(2)]
    for learner in learners:
        for optimizer in (learner.actor_optimizer, learner.critic_optimizer):
            optimizer.learning_rate = torch.tensor(optimizer.learning_rate)
    steps = module.step, acceleration.compiled(module.step, backend="aot_eager")
    for n in range(4):
        for step, learner in zip(steps, learners, strict=True):
            step(learner, batch(seed=n), actor=module.begin(learner))
    assert torch._dynamo.utils.counters["stats"]["calls_captured"] > 0
    for key, tensor in module.state(learners[0]).items():
        torch.testing.assert_close(tensor, module.state(learners[1])[key], atol=1e-6, rtol=1e-5)


class FakeGraph:
    """What a CUDA graph does, as far as a step can tell: captured once, then replayed with what its inputs hold."""

    def __init__(self) -> None:
        self.generators: list[torch.Generator] = []
        self.replays = 0

    def register_generator_state(self, registered: torch.Generator) -> None:
        self.generators.append(registered)

    def replay(self) -> None:
        self.replays += 1


def test_a_captured_step_runs_warm_then_once_for_each_kind_and_is_replayed_with_the_newest_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graphs: list[FakeGraph] = []
    stream = SimpleNamespace(wait_stream=lambda _: None)
    fakes = {
        "Stream": lambda: stream,
        "current_stream": lambda: stream,
        "stream": lambda _: nullcontext(),
        "CUDAGraph": lambda: graphs.append(FakeGraph()) or graphs[-1],
        "graph": lambda graph, stream: nullcontext(),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    calls: list[tuple[bool, Batch]] = []

    def step(learner: Any, data: Batch, *, actor: bool) -> dict[str, torch.Tensor]:
        calls.append((actor, data))
        return {"loss": data.reward}

    captured, learner = acceleration.Captured(step), SimpleNamespace(generator=generator())
    batches = [batch(8, seed=n) for n in range(20)]
    infos = [captured(learner, data, actor=n % 2 == 1) for n, data in enumerate(batches)]
    for actor in (False, True):
        of_kind = [data for called, data in calls if called is actor]
        assert len(of_kind) == acceleration.WARM_UP + 1
        assert [id(data) for data in of_kind[:-1]] == [id(data) for data in batches[actor::2][: acceleration.WARM_UP]]
        replayed = batches[18 + actor]
        for held_by_graph, newest in zip(
            acceleration.tensors_of(of_kind[-1]), acceleration.tensors_of(replayed), strict=True
        ):
            assert torch.equal(held_by_graph, newest)
        assert infos[18 + actor]["loss"] is of_kind[-1].reward
    assert [graph.replays for graph in graphs] == [10 - acceleration.WARM_UP] * 2
    assert [graph.generators for graph in graphs] == [[learner.generator]] * 2
