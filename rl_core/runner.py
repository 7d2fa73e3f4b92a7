"""The training loop: checkpoint, request, train, log, evaluate, receive.

A request publishes the newest weights and has the collector gather a chunk with them. `pipelined` (the default): while
the learner trains on everything up to chunk k, the collector gathers chunk k + 1 with the weights as after block
k − 1. `lockstep`: chunk k + 1 is requested after block k. Both count turns and never time them, so a seeded run gives
the same bytes every time. `async`: several turns are under way at once and nobody waits while there is something to
do; what is learned depends on the machine's timing, and the summary says so.

A checkpoint is taken when chunk k + 1 has arrived and neither side has gone on (in `async` mode every turn under way
is waited for): learner and tables as after block k, collector and counter as after chunk k + 1. The ring is its own
checkpoint: its slack keeps in place every row that a kept checkpoint can sample.
"""

import dataclasses
import hashlib
import math
import shutil
import signal
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rl_core import acceleration, artifacts, checkpoints, envs, evaluation
from rl_core import policy as policies
from rl_core import state as states
from rl_core.algorithms import ALGORITHMS
from rl_core.batches import Batches
from rl_core.clock import Clock
from rl_core.config import RunSettings
from rl_core.device import CPU, device_name, on_cpu, open_device
from rl_core.device_replay import DeviceReplay
from rl_core.envs.simulation import dimensions
from rl_core.envs.task import Task
from rl_core.errors import Interrupted, NotFiniteError, TrainingError
from rl_core.files import remove_unfinished, write_atomic, write_json
from rl_core.link import CollectorLink, turns_ahead
from rl_core.metrics import under
from rl_core.networks import Params, TensorShapes
from rl_core.policy import Policy
from rl_core.progress import Display
from rl_core.recorder import Recorder
from rl_core.replay import Layout, ReplayRing
from rl_core.resume import RING_FILE, examiner
from rl_core.seeding import stream, torch_seed
from rl_core.shapes import Shapes
from rl_core.state import TrainingState
from rl_core.stopping import Stop, stop_signals
from rl_core.tensorboard import Scalars
from rl_core.trace import Part, counter, session, span
from rl_core.unit_networks import trainable

_CHECKPOINT_REST_BYTES = 1_000_000  # environments, episodes, random streams
_TABLE_ROW_BYTES = 4_000
_FLOAT_BYTES = 4
_EDGE_MASS = 0.01  # of a categorical critic's targets; more of it asks for a wider support
_EDGE_MASS_AFTER = 0.1  # of the run's updates,
_EDGE_MASS_UPDATES = 1_000  # and so many: a critic's first distributions are flat and lie on the edges, too


def train(
    settings: RunSettings,
    seed: int,
    *,
    run_dir: Path,
    state_dir: Path,
    key: str,
    provenance: Mapping[str, object],
    fresh: bool = False,
    quiet: bool | None = None,
    trace: Path | None = None,
    tensorboard: Path | None = None,
    published: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Train one run to its end and publish its artifacts; continue an interrupted one if it has the same key.

    Args:
        settings: what to compute.
        seed: 0 or more; every random stream derives from it.
        run_dir: where the finished artifacts go; files of an earlier run are replaced one by one at the very end.
        state_dir: scratch for the resumable state; removed on success.
        key: identifies settings, code and versions; a state with another key is discarded.
        provenance: copied into timing.json.
        fresh: discard any interrupted state.
        quiet: no live display; by default decided by whether standard error is a terminal.
        trace: where the timeline of this session goes, also of one that is interrupted or fails; None records none.
        tensorboard: a folder for the tables as TensorBoard scalars; None writes none.
        published: called when the artifacts are in place, before the resumable state is removed.

    Returns: the content of summary.json.

    Raises:
        TrainingError: there is no such device, the collector failed, a number is not finite, or the disk is full.
        Interrupted: SIGINT or SIGTERM arrived; a resumable checkpoint stands.
    """
    torch.set_num_threads(settings.learner_threads)
    state_dir.mkdir(parents=True, exist_ok=True)
    status = artifacts.Status(state_dir / "status.json", settings)
    try:
        device = open_device(settings.device)
        with session(trace, acceleration.events_of(device)) as part, stop_signals() as stop:
            remove_unfinished(state_dir)
            resumed = None if fresh else _latest(settings, seed, state_dir, key)
            if resumed is None:
                _empty(state_dir)
            done = resumed.info["turn"]["env_steps"] if resumed else 0
            status.write("running", env_steps=done)
            scalars = Scalars(tensorboard, env_steps=done)
            run = _Run(
                settings,
                seed,
                state_dir,
                device=device,
                key=key,
                quiet=quiet,
                resumed=resumed,
                trace=part,
                scalars=scalars,
            )
            with scalars, closing(run):
                summary = run.to_the_end(stop, status)
            write_json(state_dir / "work" / "timing.json", run.timing(provenance))
        artifacts.publish(state_dir / "work", run_dir)
        published()
    except Interrupted as interruption:
        status.write("interrupted", reason=signal.Signals(interruption.signum).name)
        raise Interrupted(interruption.signum, resumable=checkpoints.any_in(state_dir)) from None
    except Exception as error:
        status.write("failed", reason=str(error))
        if isinstance(error, OSError):
            raise TrainingError(f"{state_dir}: {error}") from error
        raise
    checkpoints.remove_all(state_dir)  # first, so that a removal cut short leaves nothing that seems resumable
    shutil.rmtree(state_dir)
    return summary


def _latest(settings: RunSettings, seed: int, folder: Path, key: str) -> TrainingState | None:
    if not checkpoints.any_in(folder):
        return None
    layout = ring_layout(settings, envs.task(settings.task)(**settings.task_settings))
    learner = ALGORITHMS[settings.algorithm].state(build_learner(settings, layout, seed))
    shapes = {name: tuple(tensor.shape) for name, tensor in learner.items()}
    return checkpoints.latest(folder, key, examiner(folder, layout, shapes))


def ring_layout(settings: RunSettings, task: Task) -> Layout:
    """Return the shape of the run's ring; the slack is two checkpoint intervals and their turns, rounded up."""
    chunk = settings.num_envs * settings.vector_steps_per_chunk
    capacity = min(settings.replay_capacity, settings.vector_steps * settings.num_envs)
    slack = 2 * (settings.checkpoint_interval + (1 + turns_ahead(settings)) * chunk)
    obs, action, privileged = dimensions(task)
    return Layout(
        obs_dim=obs,
        action_dim=action,
        capacity=capacity,
        slack=min(slack, settings.vector_steps * settings.num_envs),
        privileged_dim=privileged,
    )


def _shapes(settings: RunSettings, layout: Layout) -> Shapes:
    return Shapes(
        obs=layout.obs_dim,
        action=layout.action_dim,
        privileged=layout.privileged_dim,
        updates=max(1, settings.total_updates),
    )


def build_learner(settings: RunSettings, layout: Layout, seed: int, device: torch.device = CPU) -> Any:
    """Return the run's learner at its start, on `device`."""
    return ALGORITHMS[settings.algorithm].build(
        settings.learner,
        _shapes(settings, layout),
        network_seed=torch_seed(seed, "network"),
        noise_seed=torch_seed(seed, "sampling", 0),
        device=device,
    )


def disk_bytes(settings: RunSettings) -> int:
    """Return the disk a run needs while it trains.

    That is the ring, three checkpoints (two are kept while one is written) and, twice, a policy and a row per
    evaluation: in the scratch folder and where they are published. No network is made for it.
    """
    layout = ring_layout(settings, envs.task(settings.task)(**settings.task_settings))
    state, actor = learner_bytes(settings, layout)
    snapshots = 2 + settings.env_steps // settings.eval_interval
    return layout.size_bytes + 3 * (state + _CHECKPOINT_REST_BYTES) + 2 * snapshots * (actor + _TABLE_ROW_BYTES)


def learner_bytes(settings: RunSettings, layout: Layout) -> tuple[int, int]:
    """Return the bytes of a learner's state and of its actor alone, from the shapes of its networks."""
    algorithm = ALGORITHMS[settings.algorithm]
    networks: dict[str, TensorShapes] = algorithm.network_shapes(settings.learner, _shapes(settings, layout))
    numbers = 0
    for name, tensors in networks.items():
        trained = trainable(tensors)
        copies = 3 if name in algorithm.TARGETS else 2  # Adam's two moments and the target
        numbers += _numbers(tensors) + copies * _numbers(trained) + len(trained)  # Adam counts steps for each tensor
    return _FLOAT_BYTES * numbers, _FLOAT_BYTES * _numbers(networks["actor"])


def _numbers(tensors: TensorShapes) -> int:
    return sum(math.prod(shape) for shape in tensors.values())


@dataclass(slots=True)
class _Turn:
    """Where the run stands, in turns and transitions."""

    block: int = 0  # update blocks finished
    env_steps: int = 0  # transitions received from the collector
    previous_env_steps: int = 0  # the same, before the last receive
    requested: int = 0  # vector steps asked for
    version: int = 0  # of the weights that the last request named

    @classmethod
    def read(cls, turn: Mapping[str, object]) -> "_Turn":
        """Return what a checkpoint holds; raise ValueError for what no run has written."""
        names = {field.name for field in dataclasses.fields(cls)}
        if set(turn) != names or not all(type(value) is int and value >= 0 for value in turn.values()):
            raise ValueError("its turn is not one")
        return cls(**turn)  # type: ignore[arg-type]


class _Run:
    """One run in progress. `close` ends its processes and files, whatever has happened."""

    def __init__(
        self,
        settings: RunSettings,
        seed: int,
        folder: Path,
        *,
        device: torch.device,
        key: str,
        quiet: bool | None,
        resumed: TrainingState | None,
        trace: Part | None,
        scalars: Scalars,
    ) -> None:
        self._settings, self._seed, self._folder, self._key, self._resumed = settings, seed, folder, key, resumed
        self._task = envs.task(settings.task)(**settings.task_settings)
        self._algorithm = ALGORITHMS[settings.algorithm]
        self._update = acceleration.update_of(self._algorithm, settings)
        self._device = device
        self._turn = _Turn()
        self._warned = False
        self._scalars = scalars
        self._clock = Clock()
        self._budget = settings.vector_steps * settings.num_envs
        layout = ring_layout(settings, self._task)
        work = folder / "work"
        (work / artifacts.SNAPSHOTS).mkdir(parents=True, exist_ok=True)
        if resumed is None:
            _require_disk(folder, disk_bytes(settings))
        _require_memory(settings, layout)
        self._learner = build_learner(settings, layout, seed, device)
        self._memory_warning = _memory_warning(layout, artifacts.available_memory_bytes())
        self._ring = ReplayRing(folder / RING_FILE, layout)
        self._snapshots: dict[str, str] = {}  # policy files written so far, under `work`, and their SHA-256
        self._batches = Batches(
            settings,
            self._ring,
            mirror=self._task.mirror,
            generator=torch.Generator(device).manual_seed(torch_seed(seed, "sampling", 1)),
            source=self._ring if device == CPU else DeviceReplay(self._ring, device, clock=self._clock),
        )
        lengths = resumed.info["recorder"]["lengths"] if resumed else {}
        with ExitStack() as opened:
            self._display = opened.enter_context(closing(Display(settings, quiet=quiet)))
            self._recorder = opened.enter_context(
                closing(Recorder(work, type(self._task), self._algorithm.LOSSES, lengths, device))
            )
            self._link = opened.enter_context(
                closing(CollectorLink(settings, seed, layout=layout, folder=folder, weights=self._weights, trace=trace))
            )
            self._opened = opened.pop_all()

    def to_the_end(self, stop: Stop, status: artifacts.Status) -> dict[str, Any]:
        """Run the loop; leave every artifact but timing.json in the work folder. Returns the summary."""
        try:
            if self._resumed is None:
                self._start()
            else:
                self._resume(self._resumed)
            stop.deferred = True
            return self._loop(stop, status)
        except NotFiniteError as failure:
            raise TrainingError(self._dumped(failure)) from failure

    def _loop(self, stop: Stop, status: artifacts.Status) -> dict[str, Any]:
        in_turns = self._settings.collection == "lockstep"
        while True:
            self._checkpoint_if_due(stop)
            if not in_turns:
                self._request()
            updates = self._train_block()
            self._log_if_due(status)
            self._evaluate_if_due()
            if self._turn.env_steps >= self._budget:
                return self._finish()
            if in_turns:
                self._request()
            self._receive(wait=self._settings.collection != "async" or not updates)

    def close(self) -> None:
        """End the collector and close all files; again is harmless."""
        self._opened.close()

    # Start and resume

    def _start(self) -> None:
        self._display.message(_describe(self._settings, self._seed))
        if self._memory_warning:
            self._display.message(self._memory_warning)
        self._link.wait_ready()
        self._clock.ready()
        self._evaluate()
        self._request()
        self._receive(wait=True)

    def _resume(self, state: TrainingState) -> None:
        try:
            self._restore(state)
        except (TrainingError, RuntimeError, KeyError, TypeError, ValueError) as error:  # RuntimeError: torch's
            raise TrainingError(f"{self._folder}: cannot be resumed ({error}); start over with --fresh") from error
        self._clock.ready()
        self._display.message(f"resumed at {self._turn.env_steps:,} of {self._budget:,} env steps")

    def _restore(self, state: TrainingState) -> None:
        with torch.no_grad():
            for name, tensor in self._algorithm.state(self._learner).items():
                tensor.copy_(torch.from_numpy(np.array(state.arrays[f"learner.{name}"])))
        self._learner.generator.set_state(torch.from_numpy(np.array(state.arrays["generator.learner"])))
        self._batches.generator.set_state(torch.from_numpy(np.array(state.arrays["generator.sampling"])))
        self._batches.restore(under("statistics.", state.arrays))
        self._snapshots = dict(state.info["snapshots"])
        self._learner.updates = state.info["updates"]
        self._turn = _Turn.read(state.info["turn"])
        self._recorder.restore(under("recorder.", state.arrays), state.info["recorder"])
        self._clock.restore(state.info["clock"])
        self._link.wait_ready()
        self._link.restore(under("collector.", state.arrays), self._turn.env_steps)

    # The verbs of the loop

    @property
    def _weights(self) -> Params:
        """What the collector acts with."""
        return {**self._learner.actor, **self._batches.published}

    def _request(self) -> None:
        settings, turn = self._settings, self._turn
        while self._link.can_request and turn.requested < settings.vector_steps:
            vector_steps = min(settings.vector_steps_per_chunk, settings.vector_steps - turn.requested)
            turn.version += 1
            with span("weight sync"):
                self._link.publish(turn.version, self._weights)
            self._link.request(vector_steps=vector_steps, version=turn.version)
            turn.requested += vector_steps

    def _receive(self, *, wait: bool) -> None:
        self._turn.previous_env_steps = self._turn.env_steps
        if wait:
            self._take_chunk()
        while self._link.under_way and self._link.chunk_is_there():
            self._take_chunk()

    def _take_chunk(self) -> None:
        with self._clock.span("learner_wait_s"):
            chunk = self._link.wait_chunk()
        self._recorder.add_episodes(chunk.episodes)
        self._turn.env_steps = chunk.counter

    def _train_block(self) -> int:
        turn, updates = self._turn, self._updates_due()
        self._count(updates)
        with span("statistics"):
            self._batches.learn_statistics(turn.previous_env_steps, turn.env_steps)
        for batch in self._batches.draw(updates, turn.env_steps):
            self._recorder.losses.add(self._update(self._learner, batch))
        turn.block += 1
        self._require_finite()
        return updates

    def _count(self, updates: int) -> None:
        """Draw in the trace the buffer's fill and the rows written for each row read."""
        turn, read = self._turn, updates * self._settings.batch_size
        counter("replay", rows=min(turn.env_steps, self._ring.layout.capacity))
        if read:
            counter("write/read ratio", ratio=(turn.env_steps - turn.previous_env_steps) / read)

    def _updates_due(self) -> int:
        settings, turn = self._settings, self._turn
        if turn.env_steps < settings.first_update_at:
            return 0
        if settings.collection != "async":
            vector_steps = (turn.env_steps - turn.previous_env_steps) // settings.num_envs
            return vector_steps * settings.updates_each_vector_step
        block = settings.vector_steps_per_chunk * settings.updates_each_vector_step
        limit = settings.max_updates_per_env_step
        return block if limit is None else min(block, max(0, int(limit * turn.env_steps) - self._learner.updates))

    def _require_finite(self) -> None:
        name = self._recorder.losses.not_finite()
        if name is not None:
            raise NotFiniteError(f"{name} is not finite")

    def _dumped(self, failure: NotFiniteError) -> str:
        """Leave the learner's tensors in a file, and return the whole story."""
        dump = self._folder / "not-finite.seedbed"
        arrays = {n: t.numpy() for n, t in on_cpu(self._algorithm.state(self._learner)).items()}
        states.save(dump, TrainingState(arrays, {"iteration": self._turn.block, "updates": self._learner.updates}))
        broken = next((n for n, array in arrays.items() if not np.isfinite(array).all()), "none yet")
        what, _, details = str(failure).partition("\n")
        return (
            f"iteration {self._turn.block}: {what} (first tensor that is not: {broken}); the run cannot learn from "
            f"here. The learner's tensors: {dump}\n{details}"
        ).strip()

    def _log_if_due(self, status: artifacts.Status) -> None:
        if not self._passed(self._settings.log_interval):
            return
        with span("log"):
            self._log(status)

    def _log(self, status: artifacts.Status) -> None:
        turn, updates, recorder, times = self._turn, self._learner.updates, self._recorder, self._clock.read()
        size = self._settings.batch_size
        row = recorder.log(
            iteration=turn.block, env_steps=turn.env_steps, updates=updates, batch_size=size, times=times
        )
        status.write("running", env_steps=turn.env_steps)
        self._scalars.add("progress", row, turn.env_steps)
        self._scalars.add("timing", times, turn.env_steps)
        self._warn_of_narrow_support()
        self._display.update(
            turn.env_steps,
            updates=updates,
            mean_return=recorder.window.mean_return,
            write_read_ratio=recorder.write_read_ratio,
            times=times,
        )

    def _warn_of_narrow_support(self) -> None:
        updates, mass = self._learner.updates, self._recorder.edge_mass
        learned = updates > max(_EDGE_MASS_UPDATES, _EDGE_MASS_AFTER * self._settings.total_updates)
        if not self._warned and mass is not None and mass > _EDGE_MASS and learned:
            self._warned = True
            self._display.message(
                f"warning: {mass:.1%} of the critics' target mass sits on the edges of their support; "
                "v_min and v_max are likely too narrow for these rewards"
            )

    def _evaluate_if_due(self) -> None:
        if self._passed(self._settings.eval_interval):
            self._evaluate()

    def _evaluate(self) -> None:
        settings, env_steps = self._settings, self._turn.env_steps
        policy = Policy(self._algorithm.HEAD, on_cpu(self._weights), self._task, settings.weights, {})
        with span("evaluate"), self._clock.span("evaluation_s"):
            result = evaluation.rollout(
                policy,
                episodes=settings.eval_episodes,
                streams=stream(self._seed, "evaluation", len(self._recorder.evaluation_returns)),
                threads=settings.collector_threads,
            )
            name = f"{artifacts.SNAPSHOTS}/{env_steps}.safetensors"
            self._snapshots[name] = self._save_policy(name)
        row = self._recorder.evaluated(result, env_steps=env_steps, updates=self._learner.updates)
        self._scalars.add("curve", row, env_steps)
        self._display.evaluated(env_steps, row["return_mean"], row["return_std"])

    def _passed(self, interval: int) -> bool:
        """Whether the last chunk reached or passed a multiple of `interval`, or the end of the budget."""
        now, before = self._turn.env_steps, self._turn.previous_env_steps
        return now // interval > before // interval or now >= self._budget

    # Checkpoints and artifacts

    def _checkpoint_if_due(self, stop: Stop) -> None:
        due = self._passed(self._settings.checkpoint_interval) and self._turn.env_steps < self._budget
        if due or stop.signum is not None:
            with span("checkpoint"), self._clock.span("checkpoint_s"):
                while self._link.under_way:
                    self._take_chunk()
                self._ring.flush()
                self._recorder.sync()
                checkpoints.save(self._folder, self._key, self._turn.env_steps, self.state())
        if stop.signum is not None:
            raise Interrupted(stop.signum)

    def state(self) -> TrainingState:
        """Return everything the run needs to go on, apart from the ring's rows."""
        recorded, recorder_info = self._recorder.state()
        arrays = {f"learner.{n}": t.numpy() for n, t in on_cpu(self._algorithm.state(self._learner)).items()}
        arrays |= {f"collector.{name}": array for name, array in self._link.state().items()}
        arrays |= {f"recorder.{name}": array for name, array in recorded.items()}
        arrays |= {f"statistics.{name}": array for name, array in self._batches.state().items()}
        arrays["generator.learner"] = self._learner.generator.get_state().numpy()
        arrays["generator.sampling"] = self._batches.generator.get_state().numpy()
        info = {
            "turn": asdict(self._turn),
            "updates": self._learner.updates,
            "recorder": recorder_info,
            "snapshots": self._snapshots,
            "ring": self._ring.fingerprint(self._turn.env_steps),
            "clock": self._clock.state(),
        }
        return TrainingState(arrays, info)

    def _save_policy(self, name: str) -> str:
        """Write the policy under the work folder; return its SHA-256."""
        settings = self._settings
        metadata = {
            "head": self._algorithm.HEAD,
            "algorithm": settings.algorithm,
            "task": settings.task,
            "task_settings": dict(settings.task_settings),
            "reward": settings.reward,
            "weights": dict(settings.weights),
            "seed": self._seed,
            "env_steps": self._turn.env_steps,
        }
        content = policies.to_bytes(on_cpu(self._weights), metadata)
        write_atomic(self._folder / "work" / name, content)
        return hashlib.sha256(content).hexdigest()

    def _finish(self) -> dict[str, Any]:
        work = self._folder / "work"
        self._save_policy("policy.safetensors")
        summary = {
            "env_steps": self._turn.env_steps,
            "updates": self._learner.updates,
            "iterations": self._turn.block,
            "last_checkpoint": f"checkpoints/{self._turn.env_steps}.safetensors",
            "reproducible": self._settings.reproducible,
            **self._recorder.summary(),
        }
        write_json(work / "summary.json", summary)
        return summary

    def timing(self, provenance: Mapping[str, object]) -> dict[str, Any]:
        """Return the content of timing.json; call it after `close`, so that the collector's memory is known."""
        times = self._clock.read()
        return {
            **times,
            "env_steps_per_s": round(self._turn.env_steps / times["wall_s"], 1),
            "updates_per_s": round(self._learner.updates / times["wall_s"], 1),
            "peak_memory_mb": artifacts.peak_memory_mb(),
            "device": device_name(self._device),
            "learner_threads": self._settings.learner_threads,
            "collector_threads": self._settings.collector_threads,
            **artifacts.machine(),
            "started_at": self._clock.started_at,
            "resume_count": self._clock.resumes,
            "provenance": dict(provenance),
        }


def _require_disk(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise TrainingError(f"{folder}: the run needs {needed / 1e6:.0f} MB of disk, {free / 1e6:.0f} MB are free")


def _require_memory(settings: RunSettings, layout: Layout) -> None:
    needed, free = learner_bytes(settings, layout)[0], artifacts.available_memory_bytes()
    if free < needed:
        raise TrainingError(
            f"the networks and their optimisers need {needed / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are free; "
            "make them smaller"
        )


def _memory_warning(layout: Layout, available: int) -> str | None:
    """Return what to say of a ring that is larger than the free memory: every sample would wait for the disk."""
    if layout.size_bytes <= available:
        return None
    return (
        f"warning: the replay ring ({layout.slots:,} rows of {layout.width} numbers, {layout.size_bytes / 1e9:.1f} GB) "
        f"is larger than the free memory ({available / 1e9:.1f} GB): sampling will wait for the disk; lower "
        "replay_capacity"
    )


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _describe(settings: RunSettings, seed: int) -> str:
    weights = ", ".join(f"{name} {weight:+g}" for name, weight in settings.weights.items())
    return (
        f"{settings.task}, {settings.algorithm}, seed {seed}: {settings.env_steps:,} env steps; "
        f"environments: {settings.num_envs}, updates per vector step: {settings.updates_each_vector_step}; "
        f"reward {settings.reward}: {weights}"
    )
