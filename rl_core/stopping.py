"""SIGINT and SIGTERM: finish the iteration and save, or give up after a few seconds."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from rl_core.errors import Interrupted

GRACE_S = 2.5  # a signal waits this long for the iteration to end; then the last checkpoint stands


class Stop:
    """Whether a signal has asked the run to stop."""

    def __init__(self) -> None:
        self.signum: int | None = None
        self.deferred = False  # True while the loop runs, which looks at `signum` once an iteration

    def request(self, signum: int, _frame: FrameType | None) -> None:
        """Note the signal and start the clock; outside the loop, or the second time, stop at once."""
        first, self.signum = self.signum is None, signum
        if not (first and self.deferred):
            raise Interrupted(signum)
        signal.setitimer(signal.ITIMER_REAL, GRACE_S)

    def give_up(self, _signum: int, _frame: FrameType | None) -> None:
        """End the run where it stands."""
        raise Interrupted(self.signum or signal.SIGTERM)


@contextmanager
def stop_signals() -> Iterator[Stop]:
    """Turn SIGINT and SIGTERM into requests to stop, while the block runs in the main thread."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, stop.request),
        signal.SIGTERM: signal.signal(signal.SIGTERM, stop.request),
        signal.SIGALRM: signal.signal(signal.SIGALRM, stop.give_up),
    }
    try:
        yield stop
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for signum, handler in before.items():
            signal.signal(signum, handler)
