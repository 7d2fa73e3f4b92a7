"""`export`: a run's policy as a file that other runtimes read."""

import errno
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flows.experiment import Experiment
from flows.stages import final_policy
from rl_core.errors import SettingsError
from rl_core.files import write_atomic


def export(experiment: Experiment, arm: str, seed: int, *, onnx: Path) -> tuple[int, int]:
    """Write the run's final policy to `onnx` and return how many numbers an observation and an action hold.

    Raises:
        SettingsError: the experiment does not plan this run, its policy file is damaged, or `onnx` cannot be written.
        TrainingError: the run has no policy yet.
    """
    source = final_policy(experiment, arm, seed)
    _require_writable(onnx, runs=experiment.directory / "runs")

    from rl_core import policy as policies
    from rl_core.envs.simulation import dimensions
    from rl_core.export import to_bytes, to_onnx

    policy = policies.load(source)
    sha256 = hashlib.sha256(source.read_bytes()).hexdigest()
    _write(onnx, to_bytes(to_onnx(policy, policy_sha256=sha256)))
    obs_dim, action_dim, _ = dimensions(policy.task)
    return obs_dim, action_dim


def _require_writable(file: Path, *, runs: Path) -> None:
    with _as_wrong_input(file):
        if not file.parent.is_dir():
            raise SettingsError(f"--onnx {file}: {file.parent} is not a folder; make it first")
        if file.exists() and not file.is_file():
            raise SettingsError(f"--onnx {file}: is not a file; name a new one")
        if file.resolve().is_relative_to(runs.resolve()):
            raise SettingsError(f"--onnx {file}: {runs} is for what runs leave; name a file elsewhere")


def _write(file: Path, data: bytes) -> None:
    with _as_wrong_input(file):
        write_atomic(file, data)


@contextmanager
def _as_wrong_input(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        raise SettingsError(f"--onnx {file}: cannot be written: {error.strerror}") from None
