"""Many MuJoCo simulations of one task, stepped together.

`VectorEnv` adds to `mujoco.batch.Batch` what an episode needs: starts from per-environment random streams, reward
terms, termination and truncation kept apart, and same-step autoreset that hands out the true final observation.
Everything that a step reads lives in `state()`, so that a restored environment continues bit for bit.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import mujoco
import mujoco.batch
import numpy as np
import numpy.typing as npt

from rl_core.arrays import AnyArray, Array, Bool, Float32
from rl_core.envs.rewards import Transition
from rl_core.envs.task import Task
from rl_core.errors import SettingsError, TrainingError
from rl_core.seeding import generator_state, set_generator_state


@dataclass(frozen=True, slots=True)
class StepResult:
    """One vector step. `next_observation` is the true last observation where an episode ended."""

    next_observation: Float32  # (num_envs, obs_dim)
    next_privileged: Float32  # (num_envs, privileged_dim), what critics alone observe, likewise
    reward: Float32  # (num_envs,), what the learner is fed
    terms: Array  # (num_envs, number of terms), raw, in the order of `Task.terms`
    residual: Array  # (num_envs,), reward − Σ weight · term
    terminated: Bool  # (num_envs,), a true end
    truncated: Bool  # (num_envs,), the time limit; False where terminated
    transition: Transition

    @property
    def done(self) -> Bool:
        """Which environments ended their episode in this step."""
        return self.terminated | self.truncated


class VectorEnv:
    """`num_envs` environments of one task with one reward.

    Args:
        task: the task.
        weights: term name -> weight; terms left out weigh nothing but are still measured.
        num_envs: simulations stepped together.
        streams: one seed sequence; environment i draws its starts from its i-th child.
        threads: simulation threads; results do not depend on the number.
    """

    def __init__(
        self,
        task: Task,
        *,
        weights: Mapping[str, float],
        num_envs: int,
        streams: np.random.SeedSequence,
        threads: int = 1,
    ) -> None:
        self.task = task
        self.num_envs = num_envs
        self.model = load_model(task)
        self.dt_s = float(self.model.opt.timestep) * task.frame_skip
        self.weights = np.array([weights.get(name, 0.0) for name in task.terms])
        self._batch = mujoco.batch.Batch(self.model, num_envs, threads)
        self.qpos: Array = self._batch.bind("qpos")
        self.qvel: Array = self._batch.bind("qvel")
        self.derived: Mapping[str, Array] = {name: self._batch.bind(name) for name in task.reads}
        self._ctrl: Array = self._batch.bind("ctrl")
        self._time: Array = self._batch.bind("time")
        self._qpos0, self._qvel0 = self.qpos[0].copy(), self.qvel[0].copy()
        low, high = self.model.actuator_ctrlrange.T
        self._action_middle, self._action_half_range = (low + high) / 2, (high - low) / 2
        self._rngs = [np.random.Generator(np.random.PCG64(child)) for child in streams.spawn(num_envs)]
        self._previous_action = np.zeros((num_envs, self.action_dim))
        self.elapsed = np.zeros(num_envs, np.int64)
        self.observation = self.privileged = np.zeros((num_envs, 0), np.float32)
        self.reset()

    @property
    def observation_dim(self) -> int:
        """Numbers in one observation."""
        return self.observation.shape[1]

    @property
    def action_dim(self) -> int:
        """Numbers in one action; each lies in [−1, 1] and is scaled to the actuator's range."""
        return int(self.model.nu)

    def reset(self) -> Float32:
        """Start a new episode everywhere; return the observations, (num_envs, obs_dim) float32."""
        self._start_episodes(np.arange(self.num_envs))
        self.observation, self.privileged = self._observe()
        return self.observation

    def step(self, action: Float32) -> StepResult:
        """Apply `action`, (num_envs, action_dim) in [−1, 1], for one control step; restart what ended.

        Raises:
            ValueError: the action has another shape or is not finite.
            mujoco.batch.SimulationError: the physics failed in some environments.
            TrainingError: a simulation became unstable, and MuJoCo put it back to its start.
        """
        self._require_valid(action)
        control = self._action_middle + self._action_half_range * action
        qpos_before = self.qpos.copy()
        self._ctrl[:] = control
        expected_time = self._time + self.dt_s
        self._batch.step(nstep=self.task.frame_skip)
        self._require_stable(expected_time)
        self.elapsed += 1
        transition = self._transition(qpos_before, control)
        truncated = ~transition.terminated & (self.elapsed >= self.task.max_episode_steps)
        terms = np.stack([term(transition) for term in self.task.terms.values()], axis=1)
        weighted = terms @ self.weights
        reward = weighted.astype(np.float32)
        next_observation, next_privileged = self._observe()
        self._previous_action = control
        self._restart(transition.terminated | truncated, next_observation, next_privileged)
        return StepResult(
            next_observation=next_observation,
            next_privileged=next_privileged,
            reward=reward,
            terms=terms,
            residual=reward - weighted,
            terminated=transition.terminated,
            truncated=truncated,
            transition=transition,
        )

    def state(self) -> dict[str, AnyArray]:
        """Return copies of everything that the next step depends on, by name."""
        return {
            "integration_state": self._batch.state.copy(),
            "generators": np.stack([generator_state(rng) for rng in self._rngs]),
            "elapsed": self.elapsed.copy(),
            "previous_action": self._previous_action.copy(),
            "observation": self.observation.copy(),
            "privileged": self.privileged.copy(),
        }

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        """Continue from what `state` returned.

        Raises:
            ValueError: an array is missing or has another shape, say from another task or `num_envs`.
        """
        current = self.state()
        for name, array in current.items():
            if name not in state or state[name].shape != array.shape or state[name].dtype != array.dtype:
                raise ValueError(f"environment state {name!r} does not fit {self.num_envs} × {self.task.name}")
        self._batch.state[:] = state["integration_state"]
        for rng, words in zip(self._rngs, state["generators"], strict=True):
            set_generator_state(rng, words.astype(np.uint64))
        self.elapsed[:] = state["elapsed"]
        self._previous_action = state["previous_action"].astype(np.float64)
        self.observation = state["observation"].astype(np.float32)
        self.privileged = state["privileged"].astype(np.float32)

    def _transition(self, qpos_before: Array, control: Array) -> Transition:
        first = (self.elapsed == 1)[:, None]
        return Transition(
            qpos_before=qpos_before,
            qpos=self.qpos.copy(),
            qvel=self.qvel.copy(),
            derived={name: array.copy() for name, array in self.derived.items()},
            action=control,
            previous_action=np.where(first, control, self._previous_action),
            terminated=self.task.terminated(self),
            dt_s=self.dt_s,
        )

    def _restart(self, done: Bool, observation: Float32, privileged: Float32) -> None:
        self.observation, self.privileged = observation, privileged
        if done.any():
            self._start_episodes(np.flatnonzero(done))
            new_observation, new_privileged = self._observe()
            self.observation = np.where(done[:, None], new_observation, observation)
            self.privileged = np.where(done[:, None], new_privileged, privileged)

    def _start_episodes(self, ids: npt.NDArray[np.int64]) -> None:
        self._batch.reset(ids, stage=mujoco.mjtStage.mjSTAGE_NONE.value)
        for i in ids:
            self.qpos[i], self.qvel[i] = self.task.initial_state(self._rngs[i], self._qpos0, self._qvel0)
        self._batch.forward(ids)
        self.elapsed[ids] = 0

    def _observe(self) -> tuple[Float32, Float32]:
        observation = self.task.observation(self).astype(np.float32)
        return observation, self.task.privileged(self).astype(np.float32)

    def _require_stable(self, expected_time: Array) -> None:
        # Where a coordinate grows beyond all bounds, MuJoCo resets the simulation, and with it the time.
        (unstable,) = np.nonzero((self._time < expected_time - self.dt_s / 2).reshape(-1))
        if len(unstable):
            raise TrainingError(
                f"{self.task.name}: the simulation of environment {unstable[0]} became unstable; its numbers mean "
                f"nothing. Look at the task settings: {self.task.values}"
            )

    def _require_valid(self, action: Float32) -> None:
        if action.shape != (self.num_envs, self.action_dim):
            raise ValueError(f"an action is {(self.num_envs, self.action_dim)}, got {action.shape}")
        if not np.isfinite(action).all():
            raise ValueError("an action is not finite")


def dimensions(task: Task) -> tuple[int, int, int]:
    """Return how many numbers the task's observations, actions and privileged observations hold."""
    env = VectorEnv(task, weights={}, num_envs=1, streams=np.random.SeedSequence(0))
    return env.observation_dim, env.action_dim, env.privileged.shape[1]


def load_model(task: Task) -> mujoco.MjModel:
    """Return the task's MuJoCo model from the installed gymnasium package.

    Raises:
        SettingsError: gymnasium does not ship the model file.
    """
    # Finding the package without importing it saves a second at every start of a process.
    spec = find_spec("gymnasium")
    folder = Path(*(spec.submodule_search_locations or ())[:1]) if spec else Path()
    path = folder / "envs" / "mujoco" / "assets" / task.model_file
    if not path.is_file():
        raise SettingsError(f"{task.name}: the installed gymnasium has no MuJoCo model {task.model_file!r}")
    with _quiet_compiler():
        return mujoco.MjModel.from_xml_path(str(path))


@contextmanager
def _quiet_compiler() -> Iterator[None]:
    """Silence the compiler's remarks on deprecated attributes: they concern Gymnasium's files, not the user's."""
    config = mujoco.MjLogConfig.get()
    config.logto_file = False  # MuJoCo would leave MUJOCO_LOG.TXT in whatever folder the user stands in
    console, config.logto_console = config.logto_console, False
    config.set()
    try:
        yield
    finally:
        config.logto_console = console
        config.set()
