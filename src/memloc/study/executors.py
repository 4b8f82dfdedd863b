"""Runs steps in processes of this machine or on a Ray cluster."""

import importlib
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, TextIO

from memloc.errors import SettingsError, in_words
from memloc.study.plan import Step
from memloc.study.records import StepEnd, Store

RETRIES = 3
"""Number of times that a step is given to another worker when its worker is lost."""
SECONDS = 10.0
"""Seconds that a Ray cluster is given to answer."""


@dataclass(frozen=True)
class Child:
    """The process of a step, and the pipe on which it reports how the step ended."""

    name: str
    threads: int
    pid: int
    pipe: int
    status: Callable[[], int]
    """Function that waits for the end of the process and returns its status."""

    def end(self) -> StepEnd:
        """Wait for the end of the process; return what it reported, or else how it ended."""
        with os.fdopen(self.pipe, encoding="utf-8") as told:
            text = told.read()
        status = self.status()
        with suppress(ValueError):  # it said nothing, or was ended while it did
            return StepEnd.model_validate_json(text)
        reason = f"its process ended with status {status} and said nothing"
        if status < 0:
            name = signal.Signals(-status).name
            hint = " (perhaps out of memory)" if -status == signal.SIGKILL else ""
            reason = f"its process was ended by {name}{hint}"
        return StepEnd(step=self.name, reason=reason)


class LocalExecutor:
    """Runs at most `jobs` steps at once, with at most as many threads in all as there are cores.

    Loading torch and transformers takes longer than a short step: this process loads them once, and
    each step runs in a copy of it. If copying is not safe, each step is a fresh process.
    """

    # The standard library's forkserver was tried in its place. It survives the kill test, too. But
    # its steps do not hold the study's lock, so that a study could be taken over while steps of a
    # killed one still run; it imports the caller's main module again for every step; and it needs
    # two more processes.

    def __init__(self, folder: Path, jobs: int, cores: int, types: Iterable[str] = ()) -> None:
        self.folder = folder
        self.jobs = jobs
        self.cores = cores
        self.types = tuple(types)
        self._children: dict[int, Child] = {}

    def start(self) -> None:
        """Load what every step needs, including the code of these model types."""
        if not can_copy():
            return
        for module in ("memloc.study.step", "pandas", "pyarrow.parquet"):
            importlib.import_module(module)
        for kind in self.types:
            with suppress(ImportError):
                importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")

    def has_room(self, step: Step) -> bool:
        """Return whether a job and enough cores are free; a step that needs all cores runs
        alone.
        """
        running = [child.threads for child in self._children.values()]
        room = sum(running) + step.threads <= self.cores
        return len(running) < self.jobs and (not running or room)

    def submit(self, step: Step) -> None:
        """Start the process of a step: a copy of this one, or a fresh one."""
        if not can_copy():
            child = started_fresh(step)
        else:
            (read, write), parent = os.pipe(), os.getpid()
            if not (pid := _fork()):
                from memloc.study import step as steps

                with _in_copy(step):
                    steps.die_with(parent)
                    os.write(write, steps.do(step).model_dump_json().encode())
            os.close(write)
            ended = partial(_ended, pid)
            child = Child(step.name, step.threads, pid, read, ended)
        self._children[child.pipe] = child

    def is_at_work(self, step: Step) -> bool:
        """Return whether a submitted step has begun: here, all have."""
        return any(child.name == step.name for child in self._children.values())

    def wait(self, seconds: float) -> list[StepEnd]:
        """Return how steps ended, after at most this many seconds."""
        ready, _, _ = select.select([*self._children], [], [], seconds)
        return [self._children.pop(pipe).end() for pipe in ready]

    def stop(self) -> None:
        """End the running steps, each with all processes that it started."""
        for child in self._children.values():
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        while self._children:
            self._children.popitem()[1].end()


@cache
def can_copy() -> bool:
    """Return whether a process can be copied safely after torch has computed something in it.

    A copy cannot use an accelerator, or compute gradients, once torch has found an accelerator.
    """
    if sys.platform != "linux":
        return False
    import torch

    return not torch.accelerator.is_available()


def _ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _fork() -> int:
    with warnings.catch_warnings():  # from Python 3.12 on, of libraries' threads, which are idle
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


@contextmanager
def _in_copy(step: Step) -> Iterator[None]:
    """Run a step in this copy of its parent; the process ends with the block.

    It leaves with `_exit`, so that no code of the parent runs.
    """
    status = 1
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as after `nohup`
                signal.signal(number, signal.SIG_DFL)
        with _log(step) as log:
            for stream in (1, 2):
                os.dup2(log.fileno(), stream)
        yield
        status = 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def started_fresh(step: Step) -> Child:
    """Start a new interpreter for a step."""
    read, write = os.pipe()
    threads = {"OMP_NUM_THREADS": str(step.threads)}
    with _log(step) as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "memloc.study.step", step.model_dump_json()],
            stdin=subprocess.DEVNULL,
            stdout=write,
            stderr=log,
            env={**os.environ, **threads},
            start_new_session=True,
        )
    os.close(write)
    return Child(step.name, step.threads, process.pid, read, process.wait)


def _log(step: Step) -> TextIO:
    """Open the log of a step to append to it; if that is impossible, discard it."""
    path = Store(Path(step.home)).log_path(step.name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a", encoding="utf-8")
    except OSError:
        return Path(os.devnull).open("a", encoding="utf-8")


class RayExecutor:
    """Gives every step to Ray, which finds a machine for it.

    Results come through the study's folder, which every machine sees under the same path.
    """

    def __init__(self, folder: Path, address: str | None = None) -> None:
        try:
            import ray
        except ImportError:
            raise SettingsError(
                "Ray is not installed: `pip install 'memloc[ray]'` brings it."
            ) from None
        self._ray: Any = ray
        self.folder = folder.resolve()
        self._running: dict[Any, Step] = {}
        self._before = 1
        self._remote = ray.remote(_do_on_worker)
        # Without "local", Ray joins what was last started here, even if it has ended.
        place = address or os.environ.get("RAY_ADDRESS") or "local"
        try:
            _reach(place)
            ray.init(
                address=place,
                log_to_driver=False,
                logging_level="ERROR",
                include_dashboard=False if address is None else None,
            )
        except Exception as error:  # Ray raises plain exceptions where it does not start in time
            where = "could be started on this machine" if place == "local" else f"at {place}"
            raise SettingsError(f"No Ray cluster {where}: {in_words(error)}") from error

    @property
    def cores(self) -> int:
        """Number of cores of all machines; after the end, the last known number."""
        if not self._ray.is_initialized():
            return self._before
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    jobs = cores

    def start(self) -> None:
        """Do nothing: the cluster is running."""

    def has_room(self, step: Step) -> bool:
        """Return whether to submit a step: Ray queues a few more than fit."""
        busy = sum(other.threads for other in self._running.values())
        return not busy or busy + step.threads <= 2 * self.cores

    def submit(self, step: Step) -> None:
        """Give a step to the cluster."""
        best = best_machine(self._ray.nodes(), step)
        options: dict[str, Any] = {
            "num_cpus": min(step.threads, max(1, int(best.get("CPU", 1)))),
            "num_gpus": min(step.gpus, best.get("GPU", 0.0)),
            "memory": int(min(step.memory, 0.9 * best.get("memory", 0.0))),
            "max_retries": RETRIES,
            "name": step.name,
        }
        reference = self._remote.options(**options).remote(step.model_dump_json())
        self._running[reference] = step

    def wait(self, seconds: float) -> list[StepEnd]:
        """Return how steps ended, after at most this many seconds."""
        if not self._running:
            time.sleep(seconds)
            return []
        waiting = list(self._running)
        ready, _ = self._ray.wait(waiting, num_returns=len(waiting), timeout=seconds)
        ended = []
        for reference in ready:
            step = self._running.pop(reference)
            try:
                ended.append(StepEnd.model_validate_json(self._ray.get(reference)))
            except self._ray.exceptions.RayError as error:
                ended.append(StepEnd(step=step.name, reason=in_words(error)))
        return ended

    def is_at_work(self, step: Step) -> bool:
        """Return whether a worker has begun a step; until then it is in Ray's queue."""
        return Store(self.folder).owner(step.name).startswith(step.token)

    def stop(self) -> None:
        """End all running steps, and leave the cluster."""
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._running.clear()
        self._before = self.cores  # asked for when it is said how good the estimate was
        self._ray.shutdown()


def _reach(address: str) -> None:
    """Raise an error if nothing answers at a host and port; Ray would wait for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), SECONDS).close()


Executor = LocalExecutor | RayExecutor
"""Runs steps: it can start, tell whether it has room, submit, wait and stop."""


def best_machine(nodes: Sequence[Mapping[str, Any]], step: Step) -> dict[str, float]:
    """Return the resources of the machine that suits a step best, the most that may be
    requested.
    """
    alive: list[dict[str, float]] = [node["Resources"] for node in nodes if node["Alive"]]
    wanted = {"GPU": step.gpus, "memory": step.memory, "CPU": step.threads}
    return max(
        alive,
        key=lambda has: [min(has.get(name, 0.0), most) for name, most in wanted.items()],
        default={},
    )


def _do_on_worker(text: str) -> str:
    """Run a step in a process of its own, which ends with the cluster's worker."""
    step = Step.model_validate_json(text)
    # A token of its own: a worker that was given up, but is alive, ends its steps when it sees it.
    token = f"{step.token}-{secrets.token_hex(8)}"
    return started_fresh(step.model_copy(update={"token": token})).end().model_dump_json()
