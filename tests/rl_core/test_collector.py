"""What the collector writes, with which weights and statistics it acts, and what stays its own."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_core import envs, runner
from rl_core.actors import HEADS
from rl_core.algorithms import ALGORITHMS
from rl_core.collector import Collector, CollectorPlan
from rl_core.config import RunSettings, resolve
from rl_core.envs.half_cheetah import HalfCheetah
from rl_core.envs.rewards import Array
from rl_core.envs.task import SimulationView
from rl_core.errors import TrainingError
from rl_core.handover import WeightBoard
from rl_core.networks import Params
from rl_core.normalization import OBS_MEAN, OBS_STD, ObservationNormalizer
from tests.rl_core.conftest import small


class SeesItsPlace(HalfCheetah):
    """A half-cheetah whose critics also see how far it has come."""

    name = "SeesItsPlace"

    def privileged(self, simulation: SimulationView) -> Array:
        return simulation.qpos[:, :1].copy()


def make(tmp_path: Path, **changes: Any) -> tuple[Collector, Any, RunSettings]:
    """Return a collector in this process with the learner's weights as version 0, and that learner."""
    settings = resolve(small(**changes), where="arm")
    layout = runner.ring_layout(settings, envs.task(settings.task)())
    learner = runner.build_learner(settings, layout, 0)
    weights: Params = dict(learner.actor)
    if settings.normalize_observations:
        normalizer = ObservationNormalizer(layout.obs_dim)
        normalizer.update(np.random.default_rng(0).normal(1, 3, (100, layout.obs_dim)).astype(np.float32))
        weights |= normalizer.published
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    plan = CollectorPlan(
        settings=settings,
        seed=0,
        layout=layout,
        ring_path=tmp_path / "replay.bin",
        weights_path=tmp_path / "weights.bin",
        weight_shapes=shapes,
        versions_kept=2,
        parent_pid=os.getpid(),
        **{field.name: None for field in dataclasses.fields(CollectorPlan) if field.name == "trace"},
    )
    collector = Collector(plan)
    WeightBoard(tmp_path / "weights.bin", shapes).publish(0, weights)
    return collector, learner, settings


def test_the_first_transition_is_recorded_like_any_other(tmp_path: Path) -> None:
    collector, _, settings = make(tmp_path)
    first = collector.env.observation.copy()
    collector.collect(3, 0)
    rows = collector.ring.newest(0, 12)
    assert collector.counter == 3 * settings.num_envs
    assert np.array_equal(rows[:4, :9], first)
    assert np.array_equal(rows[4:8, :9], rows[:4, -9:])  # no episode ends in two steps


def test_chunks_go_on_where_the_last_one_ended_with_raw_values_in_the_ring(tmp_path: Path) -> None:
    collector, _, _ = make(tmp_path, algorithm="fast_sac", learning_starts=1)
    env, first = collector.env, collector.env.observation.copy()
    for _ in range(2):
        collector.collect(1, 0)
    rows = collector.ring.newest(0, 8)
    assert collector.env is env  # built once
    assert np.array_equal(rows[:4, :9], first)  # though the policy saw it normalised
    assert np.array_equal(rows[4:, :9], rows[:4, -9:])


def test_warm_up_is_uniform_or_the_untrained_policys_as_the_settings_say(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    uniform, _, _ = make(tmp_path / "a", learning_starts=10_000, env_steps=20_000)
    uniform.collect(200, 0)
    assert uniform.ring.newest(0, 800)[:, 9].std() == pytest.approx(1 / np.sqrt(3), rel=0.1)
    (tmp_path / "b").mkdir()
    policy, learner, settings = make(tmp_path / "b", warmup="policy", learning_starts=10_000, env_steps=20_000)
    obs, twin = torch.from_numpy(policy.env.observation.copy()), np.random.Generator(np.random.PCG64())
    twin.bit_generator.state = policy.rng.bit_generator.state
    policy.collect(1, 0)
    noise = torch.from_numpy(policy.exploration.noise(twin))
    expected = ALGORITHMS["sac"].act(settings.learner, learner.actor, obs, noise)
    assert np.array_equal(policy.ring.newest(0, 4)[:, 9:10], expected.detach().numpy())


@pytest.mark.parametrize("algorithm", ["fast_sac", "fast_td3"])
def test_the_collector_applies_the_published_statistics(tmp_path: Path, algorithm: str) -> None:
    collector, learner, settings = make(tmp_path, algorithm=algorithm, learning_starts=1)
    obs = collector.env.observation.copy()
    weights = collector.board.read(0)
    seen = (torch.from_numpy(obs) - weights[OBS_MEAN]) / weights[OBS_STD]
    (tmp_path / "twin").mkdir()
    twin, _, _ = make(tmp_path / "twin", algorithm=algorithm)
    noise = torch.from_numpy(twin.exploration.noise(twin.rng))
    expected = ALGORITHMS[algorithm].act(settings.learner, learner.actor, seen, noise)
    collector.collect(1, 0)
    assert np.array_equal(collector.ring.newest(0, 4)[:, 9:10], expected.detach().numpy())


def test_noise_scales_are_the_collectors_and_survive_new_weights(tmp_path: Path) -> None:
    collector, learner, _ = make(tmp_path, algorithm="fast_td3")
    collector.collect(1, 0)
    scales = collector.exploration.state()["scales"]
    changed = {name: tensor.detach() + 1 for name, tensor in learner.actor.items()}
    changed |= {name: collector.board.read(0)[name] for name in (OBS_MEAN, OBS_STD)}
    collector.board.publish(1, changed)
    collector.collect(1, 1)
    assert np.array_equal(collector.exploration.state()["scales"], scales)


def test_the_running_statistics_of_batch_norm_travel_with_the_weights(tmp_path: Path) -> None:
    collector, learner, _ = make(tmp_path, algorithm="flash_sac")
    assert {"in.mean", "in.var", "block0.wide.mean"} <= collector.board.read(0).keys()
    obs = torch.randn(5, 9, generator=torch.Generator().manual_seed(0))
    learner.actor["in.mean"].fill_(2.0)
    collector.board.publish(1, learner.actor)
    with torch.no_grad():
        received, kept = (HEADS["unit_gaussian"].action(a, obs) for a in (collector.board.read(1), learner.actor))
        old = HEADS["unit_gaussian"].action(collector.board.read(0), obs)
    assert torch.equal(received, kept)
    assert not torch.equal(received, old)


def test_an_action_that_is_not_finite_stops_the_collector_and_names_the_env_step(tmp_path: Path) -> None:
    collector, learner, _ = make(tmp_path, learning_starts=4)
    broken = {name: torch.full_like(tensor, float("nan")) for name, tensor in learner.actor.items()}
    collector.board.publish(1, broken)
    collector.collect(1, 1)  # random actions
    with pytest.raises(TrainingError, match="env step 4: the policy's action is not finite"):
        collector.collect(1, 1)


def test_what_critics_alone_see_is_stored_beside_the_observation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(envs.TASKS, "SeesItsPlace", SeesItsPlace)
    collector, learner, _ = make(tmp_path, task="SeesItsPlace", algorithm="td3")
    places = [collector.env.qpos[:, 0].copy()]
    for _ in range(3):
        collector.collect(1, 0)
        places.append(collector.env.qpos[:, 0].copy())
    batch = collector.ring.unpack(torch.from_numpy(collector.ring.newest(0, 12)))
    assert batch.obs.shape == (12, 17)
    assert batch.critic_obs.shape == batch.next_critic_obs.shape == (12, 18)
    assert np.array_equal(batch.critic_obs[:, 17], np.concatenate(places[:3]).astype(np.float32))
    assert np.array_equal(batch.next_critic_obs[:, 17], np.concatenate(places[1:]).astype(np.float32))
    info = ALGORITHMS["td3"].update(learner, batch)
    assert learner.critic["q1.0.weight"].shape[1] == 18 + 6
    assert torch.isfinite(info["critic_loss"])
