"""`python -m flows`."""

import os
import sys

_INTERRUPTED = 128  # exit codes from here on name a signal

try:
    from flows.cli import main

    code = main()
except KeyboardInterrupt:  # before there was a command to interrupt
    code = _INTERRUPTED + 2
if code >= _INTERRUPTED:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # torch takes up to a second to clean up; whoever pressed Ctrl-C should not wait for it
sys.exit(code)
