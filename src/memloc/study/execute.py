"""Runs what is missing of a study, in dependency order, on any executor."""

import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from memloc.errors import StoreError
from memloc.lock import STUDY, Lock
from memloc.models.device import NARROW
from memloc.study.estimate import Estimate, critical_path
from memloc.study.plan import Plan, Step
from memloc.study.records import State, Store, current_identity
from memloc.study.step import Order, Outcome

TICK = 0.5
"""Seconds between two looks at how far everything is."""


@dataclass(frozen=True)
class Needs:
    """What a step takes while it runs."""

    threads: int = 1
    memory: int = 0
    """Bytes."""
    gpus: float = 0.0


class Executor(Protocol):
    """Where steps run."""

    def start(self) -> None:
        """Get ready; nothing has been submitted yet."""

    def has_room(self, needs: Needs, running: Mapping[str, Needs]) -> bool:
        """Whether a step can be submitted now."""

    def submit(self, order: Order, needs: Needs) -> None:
        """Have a step done."""

    def wait(self, seconds: float) -> list[Outcome]:
        """The steps that ended, after at most so long."""

    def stop(self) -> None:
        """End whatever still runs."""


@dataclass
class Progress:
    """How far a study is, for those who watch."""

    states: dict[str, State]
    chosen: set[str]
    estimate: Estimate
    began: float = field(default_factory=time.time)
    running: dict[str, float] = field(default_factory=dict)
    """Since when."""
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    """Of the steps that ended in this session."""
    blocked: dict[str, str] = field(default_factory=dict)
    """Steps that cannot run, and the step that failed before."""
    cores: int = 1

    def count(self, state: str) -> int:
        """How many of the chosen steps stand so."""
        return sum(self.states[name].name == state for name in self.chosen)

    def seconds_left(self) -> float:
        """Until all is done, as far as it is known: work shared by the cores, or the longest."""
        left = {
            name: max(0.0, self.estimate.seconds[name] - self._elapsed(name))
            for name in self.chosen
            if self.states[name].name != "done"
            and name not in self.blocked
            and not (self.states[name].name == "failed" and name not in self.running)
        }
        together = sum(seconds * self.estimate.threads[name] for name, seconds in left.items())
        return max([together / self.cores, *left.values()], default=0.0)

    def _elapsed(self, name: str) -> float:
        return time.time() - self.running[name] if name in self.running else 0.0


Watcher = Callable[[Progress, Outcome | None], None]
"""Told how far it is: often, and whenever a step ended."""


@dataclass(frozen=True)
class Execution:
    """A study that is to be run: its plan, where, and which steps."""

    plan: Plan
    executor: Executor
    estimate: Estimate
    only: Sequence[str] = ()
    """Words that choose steps; none: all."""
    retry: bool = False
    """Whether steps that failed before are tried again."""
    cores: int = 1

    def run(self, watch: Watcher) -> Progress:
        """Do all that can be done; what fails does not hinder what does not need it."""
        store = Store(self.plan.file.folder)
        with Lock(self.plan.file.folder, STUDY) as lock:
            store.sweep()
            states = store.states(self.plan)
            progress = Progress(
                states, self.plan.chosen(self.only), self.estimate, cores=self.cores
            )
            waiting = self._waiting(progress)
            if waiting:
                self.executor.start()
            try:
                self._loop(waiting, progress, (store, lock, watch))
            finally:
                self.executor.stop()
        return progress

    def _waiting(self, progress: Progress) -> list[str]:
        """The steps to be done, the most urgent first: those on which most depends."""
        again = {"missing", "stale", "failed"} if self.retry else {"missing", "stale"}
        wanted = [n for n in self.plan.steps if n in progress.chosen]
        found = [n for n in wanted if progress.states[n].name in again]
        # Whether a soft step has to be done again is seen when all before it has ended.
        wanted = [n for n in wanted if n in found or (found and self.plan.steps[n].soft)]
        urgency = critical_path(self.plan, self.estimate.seconds)
        return sorted(wanted, key=lambda name: -urgency[name])

    def _loop(
        self, waiting: list[str], progress: Progress, tools: tuple[Store, Lock, Watcher]
    ) -> None:
        store, lock, watch = tools
        running: dict[str, tuple[Order, Needs]] = {}
        watch(progress, None)
        while waiting or running:
            self._submit(waiting, running, progress, store)
            if not running and not waiting:
                break
            for outcome in self.executor.wait(TICK):
                order, _ = running.pop(outcome.step)
                progress.running.pop(outcome.step, None)
                self._note(outcome, order, progress, store)
                watch(progress, outcome)
            watch(progress, None)
            lock.beat(_facts(progress), now=False)

    def _submit(
        self,
        waiting: list[str],
        running: dict[str, tuple[Order, Needs]],
        progress: Progress,
        store: Store,
    ) -> None:
        for name in list(waiting):
            step = self.plan.steps[name]
            ready = self._is_ready(step, waiting, running, progress)
            if ready is None:
                continue
            needs = self._needs(step)
            if ready and not self.executor.has_room(needs, {n: r[1] for n, r in running.items()}):
                continue
            waiting.remove(name)
            identity = current_identity(self.plan, step, progress.states)
            if not ready or (step.soft and self._is_done(step, identity, progress, store)):
                continue
            order = Order(name, identity, secrets.token_hex(8), needs.threads)
            running[name] = (order, needs)
            progress.running[name] = time.time()
            self.executor.submit(order, needs)

    def _is_ready(
        self,
        step: Step,
        waiting: Sequence[str],
        running: Mapping[str, object],
        progress: Progress,
    ) -> bool | None:
        """True: now; False: never, as something that it needs failed; None: later."""
        if any(name in waiting or name in running for name in step.inputs):
            return None
        failed = [name for name in step.inputs if progress.states[name].name != "done"]
        if step.soft:
            # Without a single input there is nothing to sum up.
            return len(failed) < len(step.inputs)
        if failed:
            progress.blocked[step.name] = progress.blocked.get(failed[0], failed[0])
        return not failed

    def _is_done(self, step: Step, identity: str, progress: Progress, store: Store) -> bool:
        state = store.state(step, identity)
        progress.states[step.name] = state
        return state.name == "done" or (state.name == "failed" and not self.retry)

    def _needs(self, step: Step) -> Needs:
        name = step.name
        study = self.plan.file.study
        gpus = study.gpus if step.shape is not None and study.device != "cpu" else 0.0
        return Needs(self.estimate.threads[name], int(self.estimate.memory[name]), gpus)

    def _note(self, outcome: Outcome, order: Order, progress: Progress, store: Store) -> None:
        name = outcome.step
        progress.outcomes[name] = outcome
        if not outcome.reason:
            progress.states[name] = State("done", "", order.identity)
            return
        progress.states[name] = State("failed", outcome.reason, order.identity)
        try:
            store.fail(self.plan.steps[name], order.identity, outcome.reason)
        except StoreError:
            return  # it cannot be noted where nothing can be written; the next run tries again


def _facts(progress: Progress) -> dict[str, object]:
    """For others to see, beside the records of the steps."""
    return {
        "running": dict(progress.running),
        "began": progress.began,
        "seconds_left": progress.seconds_left(),
        "chosen": len(progress.chosen),
    }


def cores() -> int:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def threads_for(step: Step, jobs: int, there: int) -> int:
    """One for narrow models, which gain nothing from more; a fair share of the cores for others."""
    if step.shape is None or step.shape.width < NARROW:
        return 1
    return max(1, there // jobs)
