"""The batched environments are Gymnasium's, reward and observation included, and every reward adds up."""

import gymnasium
import numpy as np
import pytest

from rl_core import envs
from rl_core.envs.simulation import VectorEnv
from rl_core.envs.task import Reflection
from rl_core.errors import TrainingError
from rl_core.seeding import stream

STEPS = 1000
NUM_ENVS = 4
FLOAT32 = 2**-22  # a few units in the last place: observations and rewards are stored as float32

# Our raw terms, weighted, against the names in Gymnasium's info.
INFO = {
    "HalfCheetah-v5": {"reward_forward": "reward_forward", "cost_control": "reward_ctrl"},
    "Reacher-v5": {"cost_distance": "reward_dist", "cost_control": "reward_ctrl"},
    "InvertedPendulum-v5": {"reward_alive": "reward_survive"},
    "InvertedDoublePendulum-v5": {
        "reward_alive": "reward_survive",
        "cost_position": "distance_penalty",
        "cost_velocity": "velocity_penalty",
    },
}


def make(
    name: str, seed: int = 0, *, num_envs: int = NUM_ENVS, threads: int = 1, reward: str = "standard"
) -> VectorEnv:
    task = envs.task(name)
    return VectorEnv(
        task(), weights=task.rewards[reward], num_envs=num_envs, streams=stream(seed, "environment"), threads=threads
    )


def follow(original: gymnasium.Env, env: VectorEnv, i: int) -> None:
    """Put Gymnasium's environment into the state of our environment `i` at the start of an episode."""
    original.reset(seed=0)
    original.unwrapped.set_state(env.qpos[i], env.qvel[i])


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", envs.TASKS)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_environments_equal_gymnasium_over_1000_random_steps(name: str, seed: int) -> None:
    env = make(name, seed, num_envs=2)
    rng = np.random.default_rng(seed)
    original = gymnasium.make(name).unwrapped
    full_range = original.action_space.high.astype(np.float64)
    follow(original, env, 1)
    episodes = 0
    for _ in range(STEPS):
        action = rng.uniform(-1, 1, (2, env.action_dim)).astype(np.float32)
        step = env.step(action)
        obs, reward, terminated, _, info = original.step(full_range * action[1])
        # The dynamics are bit-equal: positions and velocities as float64.
        np.testing.assert_array_equal(step.transition.qpos[1], original.data.qpos)
        np.testing.assert_array_equal(step.transition.qvel[1], original.data.qvel)
        np.testing.assert_array_equal(step.next_observation[1], obs.astype(np.float32))
        assert step.reward[1] == pytest.approx(reward, rel=FLOAT32, abs=FLOAT32)
        assert step.terminated[1] == terminated
        terms = dict(zip(env.task.terms, step.terms[1] * env.weights, strict=True))
        for ours, theirs in INFO[name].items():
            assert terms[ours] == pytest.approx(info[theirs], rel=FLOAT32, abs=FLOAT32)
        if step.done[1]:
            episodes += 1
            follow(original, env, 1)
    original.close()
    expected = {"HalfCheetah-v5": 1, "Reacher-v5": STEPS // 50}.get(name)
    assert episodes == expected if expected else episodes > 50


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", envs.TASKS)
def test_starts_have_gymnasiums_distribution(name: str) -> None:
    env = make(name, num_envs=2000)
    original = gymnasium.make(name)
    theirs = np.stack([original.reset(seed=s if s == 0 else None)[0] for s in range(2000)])
    original.close()
    spread = theirs.std(axis=0)
    np.testing.assert_allclose(env.observation.mean(axis=0), theirs.mean(axis=0), atol=0.12 * spread.max())
    np.testing.assert_allclose(env.observation.std(axis=0), spread, atol=0.12 * spread.max())


@pytest.mark.parametrize("name", envs.TASKS)
@pytest.mark.parametrize("reward", ["standard", "other"])
def test_weighted_terms_and_residual_sum_to_the_reward_at_every_step(name: str, reward: str) -> None:
    chosen = reward if reward == "standard" else next(r for r in envs.task(name).rewards if r != "standard")
    env = make(name, reward=chosen)
    weights = envs.task(name).rewards[chosen]
    rng = np.random.default_rng(3)
    for _ in range(200):
        step = env.step(rng.uniform(-1, 1, (NUM_ENVS, env.action_dim)).astype(np.float32))
        by_hand = sum(weights.get(n, 0.0) * step.terms[:, i] for i, n in enumerate(env.task.terms))
        np.testing.assert_allclose(by_hand + step.residual, step.reward, rtol=1e-12, atol=1e-12)
        assert np.abs(step.residual).max() <= 1e-6 * max(1.0, np.abs(step.reward).max())


@pytest.mark.parametrize("name", envs.TASKS)
def test_costs_are_never_negative_and_every_term_has_a_label(name: str) -> None:
    env = make(name)
    rng = np.random.default_rng(4)
    for _ in range(50):
        step = env.step(rng.uniform(-1, 1, (NUM_ENVS, env.action_dim)).astype(np.float32))
        for i, term in enumerate(env.task.terms):
            assert not term.startswith("cost_") or (step.terms[:, i] >= 0).all()
    for name_, item in {**env.task.terms, **env.task.yardsticks}.items():
        assert item.doc != name_, name_
        assert item.doc.endswith("."), name_


@pytest.mark.parametrize("name", envs.TASKS)
def test_a_restored_environment_continues_bit_for_bit(name: str) -> None:
    env, rng = make(name), np.random.default_rng(5)
    actions = rng.uniform(-1, 1, (120, NUM_ENVS, env.action_dim)).astype(np.float32)
    for action in actions[:30]:
        env.step(action)
    state = env.state()
    first = [env.step(action) for action in actions[30:]]
    other = make(name, seed=9)
    other.restore(state)
    for action, expected in zip(actions[30:], first, strict=True):
        step = other.step(action)
        for field in ("next_observation", "reward", "terms", "terminated", "truncated"):
            assert getattr(step, field).tobytes() == getattr(expected, field).tobytes(), field


@pytest.mark.parametrize("name", envs.TASKS)
def test_thread_count_changes_no_bit(name: str) -> None:
    one, two = make(name, threads=1, num_envs=8), make(name, threads=2, num_envs=8)
    rng = np.random.default_rng(6)
    for _ in range(100):
        action = rng.uniform(-1, 1, (8, one.action_dim)).astype(np.float32)
        assert one.step(action).next_observation.tobytes() == two.step(action).next_observation.tobytes()


def test_the_last_observation_of_an_episode_is_handed_out_before_the_restart() -> None:
    env, rng = make("Reacher-v5"), np.random.default_rng(7)
    for i in range(1, 101):
        step = env.step(rng.uniform(-1, 1, (NUM_ENVS, 2)).astype(np.float32))
        assert step.truncated.all() == (i % 50 == 0)
        assert not step.terminated.any()
        same = np.array_equal(step.next_observation, env.observation)
        assert same == (i % 50 != 0)


def test_a_step_that_is_both_terminal_and_the_last_counts_as_terminated(monkeypatch: pytest.MonkeyPatch) -> None:
    env = make("InvertedDoublePendulum-v5")
    monkeypatch.setattr(type(env.task), "max_episode_steps", 1)
    monkeypatch.setattr(type(env.task), "terminated", lambda self, simulation: np.array([True, False, True, False]))
    step = env.step(np.zeros((NUM_ENVS, 1), np.float32))
    assert step.terminated.tolist() == [True, False, True, False]
    assert step.truncated.tolist() == [False, True, False, True]


@pytest.mark.parametrize("action", [np.zeros((NUM_ENVS, 3)), np.full((NUM_ENVS, 2), np.nan)])
def test_a_wrong_action_is_refused(action: np.ndarray) -> None:
    with pytest.raises(ValueError, match="an action is"):
        make("Reacher-v5").step(action.astype(np.float32))


def test_a_simulation_that_mujoco_had_to_reset_is_an_error() -> None:
    env = make("HalfCheetah-v5")
    env.step(np.zeros((NUM_ENVS, 6), np.float32))
    env.qvel[2] = 1e12
    with pytest.raises(TrainingError, match="the simulation of environment 2 became unstable"):
        env.step(np.zeros((NUM_ENVS, 6), np.float32))


def test_a_state_of_another_task_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        make("Reacher-v5").restore(make("HalfCheetah-v5").state())


@pytest.mark.parametrize("name", [name for name, task in envs.TASKS.items() if task.mirror])
def test_mirrored_states_and_actions_lead_to_mirrored_observations_and_equal_rewards(name: str) -> None:
    mirror = envs.task(name).mirror
    assert mirror is not None

    def reflected(reflection: Reflection, x: np.ndarray) -> np.ndarray:
        order = reflection.permutation or tuple(range(x.shape[1]))
        return (x[:, order] * np.array(reflection.signs)).astype(np.float32)

    env, image = make(name, 0), make(name, 0)
    signs = MIRRORED_STATE[name]
    image.qpos[:] = env.qpos * signs
    image.qvel[:] = env.qvel * signs
    image._batch.forward()
    rng = np.random.default_rng(0)
    for _ in range(40):  # shorter than an episode, so that no new start breaks the symmetry
        action = rng.uniform(-0.05, 0.05, (NUM_ENVS, env.action_dim)).astype(np.float32)
        step, other = env.step(action), image.step(reflected(mirror.action, action))
        if step.done.any() or other.done.any():
            break
        np.testing.assert_allclose(
            reflected(mirror.observation, step.next_observation), other.next_observation, atol=1e-5
        )
        np.testing.assert_allclose(step.reward, other.reward, rtol=1e-5, atol=1e-6)
    else:
        return
    assert env.elapsed.max() > 5 or image.elapsed.max() > 5


MIRRORED_STATE = {
    "Reacher-v5": np.array([-1.0, -1.0, 1.0, -1.0]),
    "InvertedDoublePendulum-v5": np.array([-1.0, -1.0, -1.0]),
}
