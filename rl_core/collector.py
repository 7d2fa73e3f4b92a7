"""The collector: a process of its own that steps the environments with the newest weights and fills the ring."""

import contextlib
import ctypes
import os
import signal
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch

from rl_core import envs
from rl_core.algorithms import ALGORITHMS
from rl_core.arrays import AnyArray, Array, Float32
from rl_core.config import RunSettings
from rl_core.envs.simulation import VectorEnv
from rl_core.errors import NotFiniteError, TrainingError
from rl_core.handover import WeightBoard, receive, send
from rl_core.metrics import EpisodeTracker, under
from rl_core.networks import Params
from rl_core.normalization import normalized
from rl_core.replay import Layout, ReplayRing
from rl_core.seeding import generator, generator_state, set_generator_state, stream
from rl_core.trace import Part, recording, span

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class CollectorPlan:
    """What a collector process needs to start."""

    settings: RunSettings
    seed: int
    layout: Layout
    ring_path: Path
    weights_path: Path
    weight_shapes: Mapping[str, tuple[int, ...]]  # of what the learner publishes: the actor and its normaliser
    versions_kept: int
    parent_pid: int
    trace: Part | None = None


def main(plan: CollectorPlan, connection: Connection) -> None:
    """Serve the learner's turns until it closes the connection or is gone. An exception is sent to the learner."""
    _die_with_parent(plan.parent_pid)
    # A signal to the whole process group, such as a terminal's Ctrl-C: the learner decides when the collector ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    torch.set_num_threads(1)
    try:
        with recording(plan.trace):
            with span("start"):
                collector = Collector(plan)
            collector.serve(connection)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except Exception as error:  # noqa: BLE001 - every failure is the learner's to report
        reason = str(error) if isinstance(error, TrainingError) else "".join(traceback.format_exception_only(error))
        with contextlib.suppress(OSError):
            send(
                connection,
                "error",
                reason=reason.strip(),
                traceback=traceback.format_exc(),
                not_finite=isinstance(error, NotFiniteError),
            )
        raise SystemExit(1) from None


class Collector:
    """Environments, exploration and open episodes; its state is all that the next chunk depends on."""

    def __init__(self, plan: CollectorPlan) -> None:
        settings = plan.settings
        task = envs.task(settings.task)(**settings.task_settings)
        self.settings = settings
        self.env = VectorEnv(
            task,
            weights=settings.weights,
            num_envs=settings.num_envs,
            streams=stream(plan.seed, "environment"),
            threads=settings.collector_threads,
        )
        self.ring = ReplayRing(plan.ring_path, plan.layout)
        self.board = WeightBoard(plan.weights_path, plan.weight_shapes, versions_kept=plan.versions_kept)
        self.rng = generator(plan.seed, "exploration")
        algorithm = ALGORITHMS[settings.algorithm]
        self.exploration = algorithm.exploration(settings.learner, settings.num_envs, self.env.action_dim)
        self.tracker = EpisodeTracker(settings.num_envs, len(task.terms))
        self.counter = 0  # transitions written
        self._act = algorithm.act

    def serve(self, connection: Connection) -> None:
        """Answer `collect`, `state` and `restore` until the learner closes the connection."""
        send(connection, "ready")
        while True:
            with span("wait"):
                turn, arrays = receive(connection)
            if turn["kind"] == "collect":
                episodes = self.collect(turn["vector_steps"], turn["version"])
                send(connection, "chunk", {"episodes": episodes}, counter=self.counter)
            elif turn["kind"] == "state":
                send(connection, "state", self.state())
            elif turn["kind"] == "restore":
                self.restore(arrays, turn["counter"])
                send(connection, "restored")
            else:
                raise ValueError(f"the learner sent {turn['kind']!r}, which no collector knows")

    def collect(self, vector_steps: int, version: int) -> Array:
        """Take `vector_steps` vector steps with weights `version`; return the episodes that ended, oldest first."""
        with span("weight sync"):
            actor = self.board.read(version)
        ended = [self._step(actor) for _ in range(vector_steps)]
        return np.concatenate(ended)

    def _step(self, actor: Params) -> Array:
        obs = _joined(self.env.observation, self.env.privileged)
        with span("inference"):
            action = self._action(actor)
        with span("env step"):
            step = self.env.step(action)
        self.exploration.ended(step.done, self.rng)
        with span("replay write"):
            self.ring.write(
                self.counter,
                obs=obs,
                action=action,
                reward=step.reward,
                terminated=step.terminated,
                truncated=step.truncated,
                next_obs=_joined(step.next_observation, step.next_privileged),
            )
        self.counter += self.settings.num_envs
        self.board.beat()
        return self.tracker.add(step)

    def _action(self, actor: Params) -> Float32:
        settings = self.settings
        if settings.warmup == "uniform" and self.counter < settings.learning_starts:
            return self.rng.uniform(-1, 1, (settings.num_envs, self.env.action_dim)).astype(np.float32)
        noise = torch.from_numpy(self.exploration.noise(self.rng))
        with torch.no_grad():
            seen = normalized(actor, torch.from_numpy(self.env.observation))
            action: Float32 = self._act(settings.learner, actor, seen, noise).numpy()
        if not np.isfinite(action).all():
            raise NotFiniteError(f"env step {self.counter}: the policy's action is not finite")
        return action

    def state(self) -> dict[str, AnyArray]:
        """Return everything the next chunk depends on, apart from weights, ring and counter."""
        env = {f"env.{name}": array for name, array in self.env.state().items()}
        held = {f"exploration.{name}": array for name, array in self.exploration.state().items()}
        return {**env, **held, "generator": generator_state(self.rng), "open_episodes": self.tracker.open.copy()}

    def restore(self, arrays: Mapping[str, AnyArray], counter: int) -> None:
        """Continue from what `state` returned, at `counter` transitions."""
        self.env.restore(under("env.", arrays))
        self.exploration.restore(under("exploration.", arrays))
        set_generator_state(self.rng, arrays["generator"].astype(np.uint64))
        self.tracker.open[:] = arrays["open_episodes"]
        self.counter = counter


def _joined(observation: Float32, privileged: Float32) -> Float32:
    return np.concatenate((observation, privileged), axis=1) if privileged.shape[1] else observation


def _die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when the learner dies, however it dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        raise SystemExit(1)
