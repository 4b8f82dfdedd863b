"""Runs the missing steps of a study, in order of dependency, on any executor."""

import os
import secrets
import time
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from memloc.errors import SettingsError, StoreError, counted, lookup
from memloc.methods.registry import find_method
from memloc.model.device import NARROW
from memloc.progress import tell
from memloc.run.records import few_in
from memloc.store import paths
from memloc.store.lock import STUDY, locked
from memloc.study.estimate import Estimate, estimate, keep, measured_here, urgency
from memloc.study.executors import Executor, LocalExecutor, RayExecutor
from memloc.study.inputs import few_sentence, noise_sentence
from memloc.study.plan import Plan, Step, open_plan
from memloc.study.records import State, StepEnd, Store, finished, study_states

if TYPE_CHECKING:
    from memloc.reporting.page import Report

TICK = 0.5
"""Seconds between two checks of progress."""


def open_study(
    place: str | Path | Plan,
    *,
    jobs: int | None = None,
    only: Sequence[str] = (),
    retry: bool = False,
    on: str = "local",
    address: str | None = None,
) -> "Execution":
    """Open a study to run it, with the states of its steps and an estimate of their cost.

    Args:
        place: Folder of the study, or its plan.
        jobs: Number of parallel steps; by default the number of cores.
        only: Words that choose steps; their dependencies are run, too.
        retry: Whether steps that failed before are repeated.
        on: `local` for processes of this machine, `ray` for a Ray cluster.
        address: Address of the cluster; by default the one that this machine is part of, or a new
            one on this machine.
    """
    lookup("place to run", on, {"local": 1, "ray": 1})
    if on == "local" and address is not None:
        raise SettingsError("--address is for --on ray.")
    plan = place if isinstance(place, Plan) else open_plan(place)
    chosen = plan.chosen(only)  # words that fit nothing are refused before anything else
    at_once = checked_jobs(jobs)
    states = study_states(plan)  # and records that cannot be read before this machine is measured
    expected = estimate_study(plan, jobs)
    if on == "ray":
        ray = RayExecutor(plan.file.folder, address)
        return Execution(plan, ray, expected, chosen, states, retry)
    types = {step.shape.model_type for step in plan.steps.values()}
    local = LocalExecutor(plan.file.folder, at_once, cores(), types)
    return Execution(plan, local, expected, chosen, states, retry)


def page_of(study: "Execution") -> "Report | None":
    """Return the report of a study, written anew if the study's file or a step is newer."""
    from memloc.reporting.page import read_report, write_report

    file = study.plan.file
    page = paths.page(study.plan.file.folder)
    if not file.study.report or all(state.name != "done" for state in study.states.values()):
        return read_report(file.folder)
    records = filter(Path.is_file, map(study.store.record_path, study.states))
    changed = max(path.stat().st_mtime for path in (file.path, *records))
    # The JSON record is written last.
    parts = (page, page.with_suffix(".json"))
    is_new = all(path.is_file() and path.stat().st_mtime >= changed for path in parts)
    if is_new:
        return read_report(file.folder)
    tell("The report is being written.")
    return write_report(file.folder)


def checked_jobs(jobs: int | None) -> int:
    """Return the number of parallel steps; refuse more than one per core."""
    most = cores()
    if jobs is not None and not 1 <= jobs <= most:
        raise SettingsError(
            f"--jobs is {jobs}; this machine has {counted(most, 'core')}: use 1 to {most}."
        )
    return jobs or most


def estimate_study(plan: Plan, jobs: int | None = None) -> Estimate:
    """Estimate each step; if its speed is unknown, this machine is measured for some seconds."""
    threads = {s.name: threads_for(s, jobs or 1, cores()) for s in plan.steps.values()}
    measured = measured_here(plan.file.folder)
    if not {step.shape.name for step in plan.steps.values()} <= measured.speeds.keys():
        from memloc.study.calibrate import calibrate  # loads torch

        measured = keep(plan.file.folder, calibrate(plan))
    return estimate(plan, measured, threads)


def noise_sentences(plan: Plan, names: Container[str]) -> list[str]:
    """Return, for every task of these steps, how many labels are wrong and how that is known."""
    sentences = dict[Hashable, str]()
    for step in plan.steps.values():
        run = plan.there.get(step.folder)
        spec = step.spec
        if step.name not in names:
            continue
        if run is not None:
            sentences[run.name] = f"{run.name}: {run.noisy.summary()}"
        elif (key := (spec.task, spec.settings.noise)) not in sentences:
            sentences[key] = noise_sentence(spec)
    return list(sentences.values())


def few_sentences(plan: Plan, names: Container[str]) -> list[str]:
    """Return warnings for tasks of these steps with too few noisy examples for a verdict."""
    localised = {
        step.folder: step
        for step in plan.steps.values()
        if step.name in names or step.needs in names
        if any(find_method(name).kind == "localiser" for name in step.methods)
    }
    sentences = dict[Hashable, str]()
    for folder, step in localised.items():
        run = plan.there.get(folder)
        spec = step.spec
        key = (spec.task, spec.settings.noise)
        if key not in sentences:
            sentences[key] = few_sentence(spec) if run is None else few_in(run.task)
    return list(dict.fromkeys(filter(None, sentences.values())))


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def threads_for(step: Step, jobs: int, there: int) -> int:
    """Return a step's number of threads: one for narrow models, a fair share of the cores for
    others.
    """
    if step.shape.width < NARROW:
        return 1
    return max(1, there // jobs)


@dataclass
class Execution:
    """A running study: its chosen steps, their states and the executor."""

    plan: Plan
    executor: Executor
    estimate: Estimate
    chosen: set[str]
    states: dict[str, State]
    retry: bool = False
    """Repeat steps that failed before."""
    began: float = field(default_factory=time.time)
    waiting: list[str] = field(default_factory=list)
    submitted: dict[str, Step] = field(default_factory=dict)
    """Steps given to the executor; on a cluster, some of them wait."""
    running: dict[str, float] = field(default_factory=dict)
    """Steps that are running, with the time they were first seen to be."""
    ended: dict[str, StepEnd] = field(default_factory=dict)
    """Steps that ended in this session, and how."""
    blocked: dict[str, str] = field(default_factory=dict)
    """Steps that cannot run, with the failed step they depend on."""

    @property
    def store(self) -> Store:
        """Records of the steps."""
        return Store(self.plan.file.folder)

    def count(self, state: str) -> int:
        """Count the chosen steps in this state."""
        return sum(self.states[name].name == state for name in self.chosen)

    def failed(self) -> dict[str, str]:
        """Return the reasons of the chosen steps that failed."""
        states = {name: self.states[name] for name in sorted(self.chosen)}
        return {name: state.why for name, state in states.items() if state.name == "failed"}

    def expected(self, names: Iterable[str]) -> float:
        """Return the expected seconds until these steps are done."""
        now = time.time()
        left = dict[str, float]()
        for name in names:
            spent = now - self.running.get(name, now)
            left[name] = max(0.0, self.estimate.seconds[name] - spent)
        return self.estimate.duration(left, self.executor.cores, self.executor.jobs)

    def seconds_left(self) -> float:
        """Return the expected seconds until all chosen steps that can run are done."""
        to_do = {n for n in self.chosen if self.states[n].name in {"missing", "stale"}}
        return self.expected((to_do - self.blocked.keys()) | self.submitted.keys())

    def run(self, watch: "Watcher" = lambda _study, _ended: None) -> "Execution":
        """Run all steps that can run; independent steps continue after a failure."""
        with locked(self.plan.file.folder, STUDY) as beat:
            self.store.sweep()
            self.states = study_states(self.plan)
            self.waiting = self._to_do()
            for sentences_on in (noise_sentences, few_sentences):
                for sentence in sentences_on(self.plan, self.waiting):
                    tell(sentence)
            watch(self, None)
            try:
                if self.waiting:
                    self.executor.start()
                self.began = time.time()  # estimates leave out loading that all steps share
                while True:
                    for step in self._ready():
                        self.submitted[step.name] = step
                        self.executor.submit(step)
                    if not self.submitted:  # then none can still be waiting
                        break
                    self._look()
                    for end in self.executor.wait(TICK):
                        watch(self, self._note(end))
                    watch(self, None)
                    beat(self._facts())
            finally:
                self.executor.stop()
        return self

    def _to_do(self) -> list[str]:
        """Return the steps to run, those on which most depends first.

        Plants stay in the plan's order, so that finished ones are balanced at any time.
        """
        again = {"missing", "stale", "failed"} if self.retry else {"missing", "stale"}
        waiting = [n for n in self.plan.steps if n in self.chosen and self.states[n].name in again]
        urgent = urgency(self.plan, self.estimate.seconds)
        is_plant = {name: self.plan.steps[name].action == "plant" for name in waiting}
        return sorted(waiting, key=lambda name: 0.0 if is_plant[name] else -urgent[name])

    def _ready(self) -> Iterator[Step]:
        """Yield the steps that can begin, as long as the executor has room."""
        for name in list(self.waiting):
            step = self.plan.steps[name]
            if step.needs in self.waiting or step.needs in self.submitted:
                continue
            if step.needs and self.states[step.needs].name != "done":
                self.waiting.remove(name)
                self.blocked[name] = step.needs
            elif self.executor.has_room(attempt := self._attempt(step)):
                self.waiting.remove(name)
                yield attempt

    def _look(self) -> None:
        """Record the submitted steps that have begun."""
        for name, step in self.submitted.items():
            if name not in self.running and self.executor.is_at_work(step):
                self.running[name] = time.time()

    def _attempt(self, step: Step) -> Step:
        """Return the step with a name for this attempt, its threads, memory and GPUs."""
        study, estimate = self.plan.file.study, self.estimate
        facts = {
            "home": str(self.executor.folder),
            "token": secrets.token_hex(8),
            "threads": estimate.threads[step.name],
            "memory": int(estimate.memory[step.name]),
            "gpus": study.gpus if study.device != "cpu" else 0.0,
        }
        return step.model_copy(update=facts)

    def _note(self, end: StepEnd) -> StepEnd:
        """Store how a step ended; it may be done although its process failed at the end."""
        name = end.step
        if end.reason:
            with suppress(StoreError):  # its process was ended in another step, perhaps
                end = finished(self.store, self.plan.steps[name]) or end
        reason = end.reason
        del self.submitted[name]
        self.running.pop(name, None)
        self.ended[name] = end
        self.states[name] = State("failed" if reason else "done", reason)
        if reason:
            with suppress(StoreError):  # where nothing can be written, the next run tries again
                self.store.fail(self.plan.steps[name], reason)
        return end

    def _facts(self) -> dict[str, object]:
        """Return the study's progress for `memloc status` in another terminal."""
        return {
            "running": self.running,
            "queued": len(self.submitted) - len(self.running),
            "began": self.began,
            "seconds_left": self.seconds_left(),
            "chosen": len(self.chosen),
        }


Watcher = Callable[[Execution, StepEnd | None], None]
"""Function called with the study every half second, and with the end of each step."""
