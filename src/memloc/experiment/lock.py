"""One run of a study at a time: a lock that a dead process does not keep, and a heartbeat."""

import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from memloc.errors import StoreError
from memloc.records import cannot_write, read_json, write_json

BEAT = 5.0
"""Seconds between two heartbeats."""
SILENT = 60.0
"""Seconds without one after which a process on another machine counts as dead."""
PATIENCE = 20.0
"""Seconds to wait until the steps of a process that was killed are gone, too."""


class StudyLock:
    """`with StudyLock(folder) as lock: ... lock.beat({...})`.

    The steps inherit the lock: whoever takes it over finds none of them still at work.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.path = self.folder / "steps" / "running"
        self._file = -1
        self._beaten = 0.0

    def __enter__(self) -> Self:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise cannot_write(self.path, error) from error
        try:
            self._take()
            self.beat({}, now=True)
        except BaseException:
            os.close(self._file)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            _record(self.path).unlink(missing_ok=True)
        os.close(self._file)

    def beat(self, facts: Mapping[str, Any], *, now: bool = False) -> None:
        """Say that this process is alive, and how far it is; seldom, unless `now`."""
        if not now and time.time() - self._beaten < BEAT:
            return
        self._beaten = time.time()
        about = {"pid": os.getpid(), "host": socket.gethostname(), "beat": self._beaten}
        write_json(_record(self.path), {**about, **facts})

    def _take(self) -> None:
        import fcntl

        other = who_runs(self.folder)
        # Locks do not always reach across machines; on this one they are the truth.
        if other is not None and other["host"] != socket.gethostname():
            raise _is_running(self.folder, other)
        until = time.monotonic() + PATIENCE
        while True:
            try:
                return fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                other = who_runs(self.folder)
                if other is not None or time.monotonic() > until:
                    raise _is_running(self.folder, other or {}) from None
                time.sleep(0.05)
            except OSError as error:
                raise cannot_write(self.path, error) from error


def who_runs(folder: Path) -> dict[str, Any] | None:
    """What the process that runs a study says of itself, if it is alive."""
    try:
        about = read_json(_record(Path(folder) / "steps" / "running"))
    except StoreError:
        return None
    try:
        if about["host"] == socket.gethostname():
            return about if _is_alive(about["pid"]) else None
        return about if time.time() - about["beat"] < SILENT else None
    except (LookupError, TypeError, OverflowError):  # a damaged record says of nobody who it is
        return None


def _record(path: Path) -> Path:
    return path.with_suffix(".json")


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid != os.getpid()


def _is_running(folder: Path, other: Mapping[str, Any]) -> StoreError:
    who = f"process {other['pid']} on {other['host']}" if other else "another process"
    return StoreError(
        f"{folder} is being run by {who}: `memloc status {folder}` shows how far it is."
    )
