"""Steps in processes of this machine, started quickly.

Loading torch and transformers takes longer than a short step. The starter is a process that loads
them once and does nothing else; each step is a copy of it. Where processes cannot be copied safely
(anywhere but on Linux) each step is a fresh one.
"""

import importlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from memloc.study.execute import Needs
from memloc.study.records import Store
from memloc.study.step import (
    Order,
    Outcome,
    die_with_parent,
    do_step,
    open_log,
    read_outcome,
)

CAN_COPY = sys.platform == "linux"


class LocalExecutor:
    """At most `jobs` steps at once, on no more threads together than there are cores."""

    def __init__(self, folder: Path, jobs: int, cores: int, types: Iterable[str] = ()) -> None:
        self.folder, self.jobs, self.cores, self.types = folder, jobs, cores, tuple(types)
        self._pid = 0
        self._orders = self._outcomes = -1
        self._read = b""
        self._running: set[str] = set()

    def start(self) -> None:
        """Make the process from which steps are started."""
        orders, to_starter = os.pipe()
        from_starter, outcomes = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                os.close(to_starter)
                os.close(from_starter)
                start_steps(self.folder, orders, outcomes, self.types)
            finally:
                os._exit(1)
        os.close(orders)
        os.close(outcomes)
        self._pid, self._orders, self._outcomes, self._read = pid, to_starter, from_starter, b""

    def has_room(self, needs: Needs, running: Mapping[str, Needs]) -> bool:
        """Whether there is a job and enough cores left; a step that needs all runs alone."""
        busy = sum(other.threads for other in running.values())
        return len(running) < self.jobs and (not running or busy + needs.threads <= self.cores)

    def submit(self, order: Order, needs: Needs) -> None:  # noqa: ARG002 - room was asked for
        """Start a step."""
        if not self._pid:
            self.start()
        self._running.add(order.step)
        with suppress(BrokenPipeError):  # its end is seen when waiting
            os.write(self._orders, f"{order.text()}\n".encode())

    def wait(self, seconds: float) -> list[Outcome]:
        """The steps that ended, after at most so long."""
        ready, _, _ = select.select([self._outcomes], [], [], seconds)
        if not ready:
            return []
        new = os.read(self._outcomes, 65536)
        if not new:
            return self._lost()
        *whole, self._read = (self._read + new).split(b"\n")
        ended = [Outcome(**json.loads(line)) for line in whole]
        self._running -= {outcome.step for outcome in ended}
        return ended

    def _lost(self) -> list[Outcome]:
        """The starter was ended from outside, and its steps with it."""
        lost = [Outcome(step, "its process was ended from outside") for step in self._running]
        self.stop()
        return lost

    def stop(self) -> None:
        """End whatever still runs: steps go with the process that they come from."""
        if not self._pid:
            return
        for pipe in (self._orders, self._outcomes):
            os.close(pipe)
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(self._pid, signal.SIGTERM)
            os.waitpid(self._pid, 0)
        self._pid = 0
        self._running.clear()


@dataclass(frozen=True)
class Child:
    """The process of a step, and the pipe on which it tells what came out."""

    step: str
    pid: int
    pipe: int
    process: "subprocess.Popen[bytes] | None" = None
    """Of a fresh one; kept, since Python may else ask for its end before we do."""

    def outcome(self) -> Outcome:
        """Wait for its end and say how it went."""
        with os.fdopen(self.pipe, encoding="utf-8") as told:
            text = told.read()
        if self.process is not None:
            return read_outcome(self.step, text, self.process.wait())
        _, status = os.waitpid(self.pid, 0)
        return read_outcome(self.step, text, os.waitstatus_to_exitcode(status))


def start_steps(folder: Path, orders: int, outcomes: int, types: Iterable[str]) -> NoReturn:
    """Read orders from a pipe, start a process for each, write outcomes to another pipe.

    It ends, and its steps with it, when nobody is left to give orders.
    """
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one who gives orders decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    children: dict[int, Child] = {}
    waiting = b""
    if CAN_COPY:
        _load(types)
    while True:
        ready, _, _ = select.select([orders, *children], [], [])
        for pipe in ready:
            if pipe != orders:
                line = children.pop(pipe).outcome().text()
                os.write(outcomes, f"{line}\n".encode())
                continue
            new = os.read(orders, 65536)
            if not new:
                end_all(children.values())
                os._exit(0)
            *whole, waiting = (waiting + new).split(b"\n")
            for text in whole:
                child = start(folder, Order(**json.loads(text)), shared=(orders, outcomes))
                children[child.pipe] = child


def start(folder: Path, order: Order, shared: tuple[int, ...] = ()) -> Child:
    """A process for a step: a copy of this one, or a fresh one."""
    return _copied(folder, order, shared) if CAN_COPY else started_fresh(folder, order)


def _copied(folder: Path, order: Order, shared: tuple[int, ...]) -> Child:
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        return Child(order.step, pid, read)
    # From here on this is the step. It leaves with _exit: nothing of its origin is to be run.
    status = 1
    try:
        os.setsid()
        die_with_parent()
        for pipe in (*shared, read):
            os.close(pipe)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        _redirect(folder, order)
        outcome = do_step(folder, order)
        os.write(write, outcome.text().encode())
        status = 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _redirect(folder: Path, order: Order) -> None:
    """Output to the step's log; where that cannot be written, to nowhere."""
    path = Store(folder).log_path(order.step)
    try:
        log = open_log(path)
    except OSError:
        log = open_log(Path(os.devnull))
    for stream in (1, 2):
        os.dup2(log.fileno(), stream)


def started_fresh(folder: Path, order: Order) -> Child:
    """A new interpreter for a step."""
    read, write = os.pipe()
    threads = {"OMP_NUM_THREADS": str(order.threads)}
    with open_log(Store(folder).log_path(order.step)) as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "memloc.study.step", str(folder), order.text()],
            stdin=subprocess.DEVNULL,
            stdout=write,
            stderr=log,
            env={**os.environ, **threads},
            start_new_session=True,
        )
    os.close(write)
    return Child(order.step, process.pid, read, process)


def end_all(children: Iterable[Child]) -> None:
    """End the processes of steps, each with all that it started."""
    for child in children:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)


def _load(types: Iterable[str]) -> None:
    """What every step needs, and the code of these types of models."""
    for module in ("memloc.study.actions", "pandas", "pyarrow.parquet"):
        importlib.import_module(module)
    for kind in types:
        with suppress(ImportError):
            importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
