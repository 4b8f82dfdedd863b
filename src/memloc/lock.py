"""One process at a time in a folder: a lock that a dead process does not keep, and a heartbeat."""

import os
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from memloc.errors import StoreError
from memloc.progress import during
from memloc.records import cannot_write, read_json, write_json

BEAT = 5.0
"""Seconds between two heartbeats."""
SILENT = 60.0
"""Seconds without one after which a process on another machine counts as dead."""
PATIENCE = 20.0
"""Seconds to wait until the steps of a process that was killed are gone, too."""


@dataclass(frozen=True)
class Kind:
    """What is locked, and what a second process is told."""

    place: str
    """In the folder: the beginning of the names of the lock's two files."""
    sentence: str
    alone: bool
    """Whether all work is done by the process that has the lock, and by none that it starts."""


STUDY = Kind(
    "steps/running",
    "{folder} is being run by {who}: `memloc status {folder}` shows how far it is.",
    alone=False,
)
RUN = Kind(
    "running",
    "{folder} is being trained by {who}: wait until that has ended, or use another folder.",
    alone=True,
)

_held: set[Path] = set()
"""The locks that this process has; it may take them again."""
_patience: ContextVar[float] = ContextVar("patience", default=0.0)


def patient(seconds: float) -> AbstractContextManager[None]:
    """While active, a lock that another process has is waited for so long."""
    return during(_patience, seconds)


class Lock:
    """`with Lock(folder, RUN): ...`, or `with Lock(folder, STUDY) as lock: ... lock.beat({...})`.

    The steps of a study inherit its lock: whoever takes it over finds none of them still at work.
    """

    def __init__(self, folder: Path, kind: Kind) -> None:
        self.folder, self.kind = Path(folder), kind
        self.path = (self.folder / kind.place).resolve()
        self._file = -1
        self._beaten = 0.0
        self._ended = threading.Event()
        self._heart = threading.Thread(target=self._keep_beating, daemon=True)

    def __enter__(self) -> Self:
        if self.path in _held:
            return self
        self._take()
        try:
            self.beat({}, now=True)
        except BaseException:
            os.close(self._file)
            raise
        _held.add(self.path)
        if self.kind.alone:  # a process that is copied must not have other threads
            self._heart.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._file < 0:
            return
        if self.kind.alone:
            self._ended.set()
            self._heart.join()
        with suppress(OSError):
            _record(self.path).unlink(missing_ok=True)
            if self.kind.alone:  # otherwise steps that are about to end still hold it
                _file(self.path).unlink(missing_ok=True)
        _held.discard(self.path)
        os.close(self._file)
        self._file = -1

    def beat(self, facts: Mapping[str, Any], *, now: bool = False) -> None:
        """Say that this process is alive, and how far it is; seldom, unless `now`."""
        if not now and time.time() - self._beaten < BEAT:
            return
        self._beaten = time.time()
        about = {"pid": os.getpid(), "host": socket.gethostname(), "beat": self._beaten}
        write_json(_record(self.path), {**about, **facts})

    def _keep_beating(self) -> None:
        while not self._ended.wait(BEAT):
            with suppress(StoreError):  # a full disk is for the work itself to report
                self.beat({}, now=True)

    def _take(self) -> None:
        began = time.monotonic()
        while not self._is_taken():
            other = who_runs(self.folder, self.kind)
            wait = _patience.get() if other else max(PATIENCE, _patience.get())
            if time.monotonic() - began >= wait:
                raise _busy(self.folder, self.kind, other)
            time.sleep(0.05)

    def _is_taken(self) -> bool:
        """Take the lock unless somebody else has it."""
        import fcntl

        other = who_runs(self.folder, self.kind)
        # Locks do not always reach across machines; on this one they are the truth.
        if other is not None and other["host"] != socket.gethostname():
            return False
        file = -1
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(_file(self.path), os.O_RDWR | os.O_CREAT)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Who had it before may have removed the file after it was opened here.
            if os.path.samestat(os.fstat(file), _file(self.path).stat()):
                self._file = file
        except (BlockingIOError, FileNotFoundError):
            pass
        except OSError as error:
            raise cannot_write(self.path, error) from error
        finally:
            if file not in {-1, self._file}:
                os.close(file)
        return self._file >= 0


def refuse_if_busy(folder: Path, kind: Kind) -> None:
    """Say before any work that another process has the lock."""
    if who_runs(folder, kind) is not None:  # it, or one with the number of a dead one
        with Lock(folder, kind):
            pass


def is_free(folder: Path, kind: Kind) -> bool:
    """Whether the lock can be had: a process that was killed may still be listed as alive."""
    try:
        refuse_if_busy(folder, kind)
    except StoreError:
        return False
    return True


def who_runs(folder: Path, kind: Kind) -> dict[str, Any] | None:
    """What the process that has a folder's lock says of itself, if it is alive."""
    try:
        about = read_json(_record(Path(folder) / kind.place))
        host, pid, beat = str(about["host"]), int(about["pid"]), float(about["beat"])
    except (StoreError, KeyError, TypeError, ValueError, OverflowError):  # damaged
        return None
    if host == socket.gethostname():
        return about if _is_alive(pid) else None
    return about if time.time() - beat < SILENT else None


def _record(path: Path) -> Path:
    return path.with_suffix(".json")


def _file(path: Path) -> Path:
    return path.with_suffix(".lock")


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return pid != os.getpid()


def _busy(folder: Path, kind: Kind, other: Mapping[str, Any] | None) -> StoreError:
    who = f"process {other['pid']} on {other['host']}" if other else "another process"
    return StoreError(kind.sentence.format(folder=folder, who=who))
