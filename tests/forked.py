"""Does things in copies of this process: real ones, to be killed, that need not load torch."""

import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any


def forked(work: Callable[[], Any], said: Path = Path(os.devnull)) -> int:
    """Start it in a copy of this process, a group of its own that prints to a file; its number."""
    with warnings.catch_warnings():  # from Python 3.12 on, of libraries' threads, which are idle
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        return pid
    code = 99
    try:
        os.setsid()
        # A shell starts what runs in the background with Ctrl-C switched off.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        warnings.simplefilter("ignore")
        with said.open("ab") as file:
            for stream in (1, 2):
                os.dup2(file.fileno(), stream)
        sys.stdout, sys.stderr = (os.fdopen(n, "w", closefd=False) for n in (1, 2))
        work()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:  # noqa: BLE001 - nothing may return into the tests
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def ended(pid: int) -> int:
    """Wait for such a copy; its exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
