"""Steps in processes of this machine."""

import json
import os
import select
import signal
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from memloc.study.execute import Needs
from memloc.study.nursery import nursery
from memloc.study.step import Order, Outcome


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
        orders, to_nursery = os.pipe()
        from_nursery, outcomes = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                os.close(to_nursery)
                os.close(from_nursery)
                nursery(self.folder, orders, outcomes, self.types)
            finally:
                os._exit(1)
        os.close(orders)
        os.close(outcomes)
        self._pid, self._orders, self._outcomes, self._read = pid, to_nursery, from_nursery, b""

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
        """The nursery was ended from outside, and its steps with it."""
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
