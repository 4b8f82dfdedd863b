"""A lock for one process at a time in a folder, with a heartbeat; a dead process does not keep
it.
"""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from memloc.errors import StoreError
from memloc.progress import during
from memloc.store.files import cannot_write
from memloc.store.records import read_json, write_json

BEAT = 5.0
"""Seconds between two heartbeats."""
SILENT = 60.0
"""Seconds without a heartbeat, on the observer's clock, until a remote process counts as dead.

Clocks of two machines are never compared: one may be minutes behind the other.
"""
PATIENCE = 20.0
"""Seconds to wait until the steps of a killed process have ended as well."""


@dataclass(frozen=True)
class Lock:
    """A kind of lock, with the error message for a second process."""

    place: str
    """Beginning of the names of the lock's two files in the folder."""
    sentence: str
    alone: bool
    """True if the process that has the lock does all work itself, without child processes."""
    watched: bool
    """True if a process on another machine is watched for `SILENT` seconds before it is refused."""


STUDY = Lock(
    "steps/running",
    "{folder} is being run by {who}: `memloc status {folder}` shows how far it is.",
    alone=False,
    watched=True,
)
RUN = Lock(
    "running",
    "{folder} is being trained by {who}: wait until that has ended, or use another folder.",
    alone=True,
    watched=False,
)

_held: dict[Path, float] = {}
"""Locks of this process, each with its last heartbeat; the process may take them again."""
_seen: dict[Path, tuple[dict[str, Any], float]] = {}
"""Records of other machines as last seen, and since when on this process's clock."""
_patience: ContextVar[float] = ContextVar("patience", default=0.0)


def patient(seconds: float) -> AbstractContextManager[None]:
    """Wait up to this many seconds for a lock that another process has, while active."""
    return during(_patience, seconds)


@contextmanager
def locked(folder: Path, lock: Lock) -> Iterator[Callable[..., None]]:
    """Hold a folder's lock while active; the yielded function records a heartbeat with facts.

    For example `with locked(folder, RUN): ...`, or `with locked(folder, STUDY) as beat: ...
    beat({...})`. The steps of a study inherit its lock, so a process that takes it over finds no
    step at work.
    """
    path = (Path(folder) / lock.place).resolve()
    if path in _held:
        yield partial(_beat, path)
        return
    file = _taken(Path(folder), lock)
    ended = threading.Event()
    heart = threading.Thread(target=_keep_beating, args=(path, ended), daemon=True)
    try:
        _beat(path, {}, now=True)
        if lock.alone:  # a process that is copied must not have other threads
            heart.start()
        yield partial(_beat, path)
    finally:
        ended.set()
        if heart.ident is not None:
            heart.join()
        with suppress(OSError):
            _record(path).unlink(missing_ok=True)
            if lock.alone:  # otherwise steps that are about to end still hold it
                _file(path).unlink(missing_ok=True)
        _held.pop(path, None)
        os.close(file)


def _beat(path: Path, facts: Mapping[str, Any], *, now: bool = False) -> None:
    """Record a heartbeat with facts about the work; at most every few seconds, unless `now`."""
    if now or time.monotonic() - _held[path] >= BEAT:
        _held[path] = time.monotonic()
        about = {"pid": os.getpid(), "host": socket.gethostname(), "beat": time.time()}
        write_json(_record(path), {**about, **facts})


def _keep_beating(path: Path, ended: threading.Event) -> None:
    while not ended.wait(BEAT):
        with suppress(StoreError):  # a full disk is for the work itself to report
            _beat(path, {}, now=True)


def _taken(folder: Path, lock: Lock) -> int:
    """Wait for the lock and take it; return the open file that holds it."""
    began = time.monotonic()
    first = who_runs(folder, lock)
    while True:
        other = who_runs(folder, lock)
        is_abroad = other is not None and other["host"] != socket.gethostname()
        # Locks do not always reach across machines; on this one they are the truth.
        if not is_abroad:
            file = _flocked(_file((folder / lock.place).resolve()))
            if file is not None:
                return file
        wait = _patience.get()
        if other is None:
            wait = max(wait, PATIENCE)
        elif is_abroad and lock.watched and other == first:
            wait = max(wait, SILENT + BEAT)
        if time.monotonic() - began >= wait:
            raise StoreError(_refusal(folder, lock, other, is_unsure=is_abroad and other == first))
        time.sleep(0.05)


def _refusal(folder: Path, lock: Lock, other: Mapping[str, Any] | None, *, is_unsure: bool) -> str:
    """Return a message on who has the lock, and what to do if that process may be dead."""
    who = f"process {other['pid']} on {other['host']}" if other else "another process"
    refusal = lock.sentence.format(folder=folder, who=who)
    if is_unsure:
        refusal += (
            " This machine cannot see at once whether that process is alive. If you know that it "
            f"has ended, delete {_record(folder / lock.place)} and repeat the command."
        )
    return refusal


def _flocked(path: Path) -> int | None:
    """Open and lock the lock's file; return None if another process has it."""
    import fcntl

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Not found: whoever had the lock before removed the file while it was opened here.
        with suppress(BlockingIOError, FileNotFoundError), ExitStack() as opened:
            file = os.open(path, os.O_RDWR | os.O_CREAT)
            opened.callback(os.close, file)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file), path.stat()):
                opened.pop_all()
                return file
    except OSError as error:
        raise cannot_write(path, error) from error
    return None


def refuse_if_busy(folder: Path, lock: Lock) -> None:
    """Refuse, before any work, a folder that another process has locked."""
    if who_runs(folder, lock) is not None:  # it, or one with the number of a dead one
        with locked(folder, lock):
            pass


def is_free(folder: Path, lock: Lock) -> bool:
    """Return whether the lock is free, even if a killed process is still listed as alive."""
    try:
        refuse_if_busy(folder, lock)
    except StoreError:
        return False
    return True


def who_runs(folder: Path, lock: Lock) -> dict[str, Any] | None:
    """Return the record of the process that has a folder's lock; None if it is dead.

    A process on another machine counts as dead when this process has seen the same record for
    `SILENT` seconds.
    """
    path = _record(Path(folder).resolve() / lock.place)
    try:
        about = read_json(path)
        host = str(about["host"])
        pid = int(about["pid"])
        _ = float(about["beat"])
    except (StoreError, KeyError, TypeError, ValueError, OverflowError):  # damaged
        return None
    if host == socket.gethostname():
        return about if _is_alive(pid) else None
    now = time.monotonic()
    before, since = _seen.get(path, (None, now))
    if before != about:
        since = now
    _seen[path] = (about, since)
    return about if now - since < SILENT else None


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
