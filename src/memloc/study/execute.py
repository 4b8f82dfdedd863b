"""Runs what is missing of a study, in dependency order, on any executor."""

import os
import secrets
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from memloc.errors import SettingsError, StoreError, counted, lookup
from memloc.lock import STUDY, Lock
from memloc.models.device import NARROW
from memloc.progress import tell
from memloc.study.estimate import Estimate, calibration, critical_path, estimate
from memloc.study.executors import Executor, LocalExecutor, Needs, Order, Outcome, RayExecutor
from memloc.study.inputs import noise_sentence
from memloc.study.plan import Plan, Step, open_plan
from memloc.study.records import State, Store, current_identity, study_states

TICK = 0.5
"""Seconds between two looks at how far everything is."""


@dataclass(frozen=True)
class Options:
    """Where a study runs, and which of its steps."""

    jobs: int | None = None
    """Steps at once; default: as many as there are cores."""
    only: Sequence[str] = ()
    """Words that choose steps; none: all."""
    retry: bool = False
    """Whether steps that failed before are tried again."""
    on: str = "local"
    """`local`: processes of this machine; `ray`: a Ray cluster."""
    address: str | None = None
    """Of the cluster; default: the one that this machine is part of, or a new one on it."""


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


def run_study(place: str | Path, options: Options, watch: Watcher) -> Progress:
    """Do what is missing of a study."""
    plan = open_plan(place)
    chosen = plan.chosen(options.only)  # words that fit nothing are refused before anything else
    jobs = checked_jobs(options.jobs)
    study_states(plan)  # records that cannot be read are refused before this machine is measured
    expected = estimate_study(plan, options.jobs)
    executor = _executor(plan, options, jobs)
    execution = Execution(plan, executor, expected, chosen, options.retry, executor.cores)
    return execution.run(watch)


def checked_jobs(jobs: int | None) -> int:
    """At most one a core: more of them would only wait for each other."""
    there = cores()
    if jobs is not None and not 1 <= jobs <= there:
        raise SettingsError(
            f"--jobs is {jobs}; this machine has {counted(there, 'core')}: use 1 to {there}."
        )
    return jobs or there


def estimate_study(plan: Plan, jobs: int | None = None) -> Estimate:
    """What each step will cost; measures this machine for some seconds where that is not done."""
    there = cores()
    threads = {s.name: threads_for(s, jobs or 1, there) for s in plan.steps.values()}
    widest = max(threads.values(), default=1)
    return estimate(plan, calibration(plan, widest), threads)


def noise_sentences(plan: Plan, names: Container[str]) -> list[str]:
    """Of every task of these steps: how many labels are wrong, and how that is known."""
    found = dict[tuple[str, str], str]()
    for step in plan.steps.values():
        if step.run is None or step.name not in names:
            continue
        run, there = step.run, step.run.there
        if there is not None:
            found[there.name, ""] = f"{there.name}: {there.noisy.summary()}"
        elif (key := (run.task, repr(run.protocol.noise))) not in found:
            found[key] = noise_sentence(plan.file, run.task, run.protocol)
    return list(found.values())


def _executor(plan: Plan, options: Options, jobs: int) -> Executor:
    lookup("place to run", options.on, {"local": 1, "ray": 1})
    if options.on == "ray":
        return RayExecutor(plan.file.folder, options.address)
    if options.address is not None:
        raise SettingsError("--address is for --on ray.")
    kinds = {step.run.shape.kind for step in plan.steps.values() if step.run}
    return LocalExecutor(plan.file.folder, jobs, cores(), kinds)


def cores() -> int:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def threads_for(step: Step, jobs: int, there: int) -> int:
    """One for narrow models, which gain nothing from more; a fair share of the cores for others."""
    if step.run is None or step.run.shape.width < NARROW:
        return 1
    return max(1, there // jobs)


@dataclass(frozen=True)
class Execution:
    """A study that is to be run: its plan, where, and which steps."""

    plan: Plan
    executor: Executor
    estimate: Estimate
    chosen: set[str]
    retry: bool = False
    """Whether steps that failed before are tried again."""
    cores: int = 1

    @property
    def store(self) -> Store:
        """The records of the steps."""
        return Store(self.plan.file.folder)

    def run(self, watch: Watcher) -> Progress:
        """Do all that can be done; what fails does not hinder what does not need it."""
        with Lock(self.plan.file.folder, STUDY) as lock:
            self.store.sweep()
            states = self.store.states(self.plan)
            progress = Progress(states, self.chosen, self.estimate, cores=self.cores)
            waiting = self._waiting(progress)
            for sentence in noise_sentences(self.plan, waiting):
                tell(sentence)
            watch(progress, None)
            try:
                if waiting:
                    self.executor.start()
                self._loop(waiting, progress, watch, lock)
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

    def _loop(self, waiting: list[str], progress: Progress, watch: Watcher, lock: Lock) -> None:
        running: dict[str, Order] = {}
        while waiting or running:
            for name in list(waiting):
                self._begin(self.plan.steps[name], waiting, running, progress)
            if not running and not waiting:
                break
            for outcome in self.executor.wait(TICK):
                progress.running.pop(outcome.step, None)
                self._note(outcome, running.pop(outcome.step), progress)
                watch(progress, outcome)
            watch(progress, None)
            lock.beat(_facts(progress), now=False)

    def _begin(
        self, step: Step, waiting: list[str], running: dict[str, Order], progress: Progress
    ) -> None:
        """Submit a step that waits if it can begin; one that never can does not wait on."""
        ready = self._is_ready(step, waiting, running, progress)
        busy = {name: self._needs(name) for name in running}
        needs = self._needs(step.name)
        if ready is None or (ready and not self.executor.has_room(needs, busy)):
            return
        waiting.remove(step.name)
        identity = current_identity(self.plan, step, progress.states)
        if not ready or (step.soft and self._is_done(step, identity, progress)):
            return
        order = Order(step.name, identity, secrets.token_hex(8), needs.threads)
        running[step.name] = order
        progress.running[step.name] = time.time()
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

    def _is_done(self, step: Step, identity: str, progress: Progress) -> bool:
        state = self.store.state(step, identity)
        progress.states[step.name] = state
        return state.name == "done" or (state.name == "failed" and not self.retry)

    def _needs(self, name: str) -> Needs:
        study = self.plan.file.study
        gpus = study.gpus if self.plan.steps[name].run and study.device != "cpu" else 0.0
        return Needs(self.estimate.threads[name], int(self.estimate.memory[name]), gpus)

    def _note(self, outcome: Outcome, order: Order, progress: Progress) -> None:
        name = outcome.step
        progress.outcomes[name] = outcome
        if not outcome.reason:
            progress.states[name] = State("done", "", order.identity)
            return
        progress.states[name] = State("failed", outcome.reason, order.identity)
        try:
            self.store.fail(self.plan.steps[name], order.identity, outcome.reason)
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
