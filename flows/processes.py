"""Stage commands as process groups that never outlive the sweep."""

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

KILL_AFTER_S = 3.8  # a training takes up to 2.5 s until it writes its checkpoint
POLL_S = 0.2
PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


class Stopped(RuntimeError):  # noqa: N818 - not an error
    """No further command starts: the sweep is being stopped."""


def die_with_parent() -> None:
    """Have the kernel send SIGTERM to this process when the thread that started it ends, even by SIGKILL."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def is_orphan() -> bool:
    """Whether the process that started this one has already ended, and nobody but init is left to end it."""
    return os.getppid() == 1 and b"dvc" not in Path("/proc/1/cmdline").read_bytes()


class Processes:
    """The running children of one sweep."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopping = False

    def run(self, command: str, *, directory: Path, log: Path, line: Callable[[str], None] | None = None) -> int:
        """Run a shell command to its end, its output appended to `log` and handed on line by line.

        Returns:
            The exit status; minus the signal's number if a signal ended it.
        """
        heard = line or (lambda _: None)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output, log.open(errors="replace") as reader:
            reader.seek(0, os.SEEK_END)
            process = self.start(["/bin/sh", "-c", command], directory=directory, output=output.fileno())
            try:
                while True:
                    ended = _ended(process)
                    for text in reader:
                        heard(text.rstrip("\n"))
                    if ended:
                        return process.returncode
            finally:
                self.forget(process)

    def start(self, command: Sequence[str], *, directory: Path, output: int) -> subprocess.Popen[bytes]:
        """Start a command as the leader of a process group of its own."""
        with self._lock:
            if self._stopping:
                raise Stopped
            process = subprocess.Popen(
                command,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # one system call, with the library loaded beforehand: safe between fork and exec
                preexec_fn=die_with_parent,  # noqa: PLW1509
            )
            self._running.add(process)
        return process

    def forget(self, process: subprocess.Popen[bytes]) -> None:
        """Leave alone a command that has ended: its number may become another process's."""
        with self._lock:
            self._running.discard(process)

    def stop(self) -> None:
        """Ask every command to end and start no other. Safe in a signal handler: takes no lock."""
        self._stopping = True
        for process in tuple(self._running):
            # the leader alone: it ends its own helpers, once they have helped to write a checkpoint
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGTERM)

    def kill(self) -> None:
        for process in tuple(self._running):
            _signal_group(process, signal.SIGKILL)

    def stop_and_wait(self) -> None:
        """End every process group: SIGTERM, then SIGKILL for what is left after `KILL_AFTER_S`."""
        processes = tuple(self._running)
        self.stop()
        deadline = time.monotonic() + KILL_AFTER_S
        while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
            time.sleep(0.02)
        # also where the leader has ended: a group can outlive it
        for process in processes:
            _signal_group(process, signal.SIGKILL)


def _ended(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(timeout=POLL_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _signal_group(process: subprocess.Popen[bytes], signum: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signum)
