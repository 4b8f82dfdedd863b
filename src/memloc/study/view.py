"""Shows a study: its plan, its progress and its end."""

import os
import socket
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memloc.errors import StoreError, counted, lookup
from memloc.progress import around, duration, plain, say, size
from memloc.store.lock import STUDY, who_runs
from memloc.study.estimate import disk_sentences
from memloc.study.execute import Execution, Watcher, cores, few_sentences
from memloc.study.plan import ACTIONS, open_plan
from memloc.study.records import StepEnd, Store, study_states

if TYPE_CHECKING:
    from rich.table import Table

BUSY = 0.5
"""Load per core from which on a message mentions that the machine is busy."""
STATES = ("done", "missing", "stale", "failed")


def plan_rows(study: Execution) -> list[dict[str, Any]]:
    """Return one row per action: its number of steps in each state, and the cost of the rest."""
    rows = []
    estimate = study.estimate
    for action in ACTIONS:
        names = [s.name for s in study.plan.steps.values() if s.action == action]
        left = [n for n in names if study.states[n].name != "done"]
        counts = Counter(study.states[n].name for n in names)
        row = {
            "steps": action,
            "all": len(names),
            **{state: counts[state] for state in STATES},
            "time": duration(sum(estimate.seconds[n] for n in left)),
            "memory": size(max((estimate.memory[n] for n in left), default=0)),
            "disk": size(sum(estimate.disk[n] for n in left)),
        }
        rows += [row] if names else []
    return rows


def plan_sentences(study: Execution) -> list[str]:
    """Return sentences on the remaining work, the certainty of the estimate, and repeated steps."""
    estimate, states = study.estimate, study.states
    left = {n for n, state in states.items() if state.name != "done"}
    if not left:
        return ["Everything is done."]
    seconds = study.expected(left)
    executor = study.executor
    fit = max(1, executor.cores // min(estimate.threads[n] for n in left))
    source = f"and {counted(estimate.compared, 'finished step')}" if estimate.compared else "alone"
    reasons = Counter(state.why for state in states.values() if state.name == "stale")
    return [
        f"{len(left)} of {counted(len(states), 'step')} left: about {duration(seconds)} with "
        f"{min(executor.jobs, fit)} at once ({around(seconds, estimate.factor)}; from a "
        f"calibration {source}).",
        *few_sentences(study.plan, left),
        *_load_sentences(study),
        *disk_sentences(sum(estimate.disk[n] for n in left), study.plan.file.folder),
        *(f"{n} stale, to be done again: {why}." for why, n in reasons.items()),
    ]


def _load_sentences(study: Execution) -> list[str]:
    """Return a warning if other programs are running, so that steps take longer than estimated."""
    load = 0.0
    n_cores = cores()
    with suppress(OSError):  # not every system says it
        load = os.getloadavg()[0]
    if load < BUSY * n_cores or who_runs(study.plan.file.folder, STUDY) is not None:
        return []
    busy = f"This machine is busy (load {load:.1f} on {counted(n_cores, 'core')})"
    if max(study.estimate.threads.values()) == 1:
        return [f"{busy}: while other programs run, steps take longer."]
    return [
        f"{busy}: while other programs run, threads wait for each other; use `--jobs {n_cores}`."
    ]


def step_rows(study: Execution) -> list[dict[str, Any]]:
    """Return one row per step."""
    return [
        {
            "step": step.name,
            "state": study.states[step.name].name,
            "seconds": round(study.estimate.seconds[step.name]),
            "needs": [step.needs] if step.needs else [],
            "why": study.states[step.name].why,
        }
        for step in study.plan.steps.values()
    ]


@contextmanager
def shown() -> Iterator[Watcher]:
    """Show a study's progress on stderr while active: one live table in a terminal.

    In a log: a first line with the work to do, then one line per step that ended.
    """
    from rich.console import Console
    from rich.live import Live

    live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)
    has_said = False

    def draw(study: Execution, _: StepEnd | None) -> None:
        live.start()
        live.update(live_table(study), refresh=True)

    def add_line(study: Execution, ended: StepEnd | None) -> None:
        nonlocal has_said
        if ended is not None or (study.running and not has_said):
            line = _head(study) if ended is None else _line(study, ended)
            say(line, sys.stderr)
            has_said = True

    try:
        yield draw if sys.stderr.isatty() else add_line
    finally:
        live.stop()


def live_table(study: Execution) -> "Table":
    """Return a table with the time left, then each action with its steps that run or failed."""
    from rich.table import Table

    table = Table(
        box=None, pad_edge=False, expand=True, title=plain(_head(study)), title_justify="left"
    )
    table.add_column("steps", overflow="ellipsis", no_wrap=True, ratio=1)
    table.add_column("state", overflow="ellipsis", no_wrap=True)
    table.add_column("time", no_wrap=True)
    failed = study.failed()
    for action in ACTIONS:
        names = sorted(n for n in study.chosen if n.split("/")[0] == action)
        done = sum(study.states[n].name == "done" for n in names)
        if names:
            table.add_row(action, f"{done} of {len(names)} done", "")
        for name in names:
            if name in study.running:
                expected = duration(study.estimate.seconds[name])
                took = duration(time.time() - study.running[name])
                table.add_row(plain(f"  {name}"), "running", f"{took} of about {expected}")
            elif name in failed:
                table.add_row(plain(f"  {name}"), plain(f"FAILED: {failed[name]}"), "")
    return table


def _head(study: Execution) -> str:
    done, failed = study.count("done"), study.count("failed")
    steps = counted(len(study.chosen), "step")
    text = f"{done} of {steps} done, {len(study.running)} running"
    waiting = len(study.submitted) - len(study.running)
    text += f", {waiting} in the cluster's queue" if waiting else ""
    text += f", {failed} failed" if failed else ""
    return f"{text}, about {duration(study.seconds_left())} left"


def _line(study: Execution, ended: StepEnd) -> str:
    if ended.reason:
        return f"FAILED  {ended.step}: {ended.reason}"
    return f"done  {ended.step}  {ended.seconds:.1f} s  ({_head(study)})"


def end_sentences(study: Execution) -> list[str]:
    """Return sentences on what was done, its time, the quality of the estimate, and failures."""
    done = {n: end.seconds for n, end in study.ended.items() if not end.reason}
    lines = []
    for action in ACTIONS:
        seconds = [
            step_seconds for n, step_seconds in done.items() if study.plan.steps[n].action == action
        ]
        if seconds:
            lines.append(
                f"{action:9} {counted(len(seconds), 'step'):>10}  {duration(sum(seconds))}"
            )
    if done:
        took = time.time() - study.began
        expected = study.expected(done)
        off = max(took, expected) / min(took, expected)
        lines.append(
            f"{counted(len(done), 'step')} took {duration(took)}; {duration(expected)} were "
            f"expected, so the estimate was off by a factor of {off:.2f}."
        )
    elif not (study.ended or study.failed()):
        lines.append("Nothing to do: all that was asked for is done.")
    return lines + failures(study)


def failures(study: Execution) -> list[str]:
    """Return sentences on which steps failed, why, and which command retries them."""
    folder = study.plan.file.folder
    failed = study.failed()
    lines = _reasons(failed)
    if study.blocked:
        lines.append(f"Waiting for what failed: {counted(len(study.blocked), 'step')}.")
    if failed:
        lines.append(
            f"`memloc logs {folder} {next(iter(failed))}` shows more; `memloc run {folder} "
            "--retry` tries again."
        )
    return lines


def _reasons(failed: Mapping[str, str]) -> list[str]:
    """Return each reason once, as several steps may fail for the same one."""
    steps = defaultdict[str, list[str]](list)
    for name, why in failed.items():
        steps[why].append(name)
    more = {why: f" and {len(names) - 1} more" * (len(names) > 1) for why, names in steps.items()}
    return [f"FAILED {names[0]}{more[why]}: {why}" for why, names in steps.items()]


def end_record(study: Execution) -> dict[str, Any]:
    """Return how a study ended, as a record for `--json`."""
    return {
        "folder": str(study.plan.file.folder),
        "seconds": time.time() - study.began,
        "done": {n: end.seconds for n, end in study.ended.items() if not end.reason},
        "failed": study.failed(),
        "blocked": study.blocked,
        "states": {n: s.name for n, s in study.states.items() if n in study.chosen},
    }


def study_status(place: str | Path) -> dict[str, Any]:
    """Return the state of a study, with the facts that its running process reports."""
    plan = open_plan(place)
    store = Store(plan.file.folder)
    states = study_states(plan)
    counts = Counter(state.name for state in states.values())
    done = [name for name, state in states.items() if state.name == "done"]
    records = [record for name in done if (record := store.record(name))]
    return {
        "folder": str(plan.file.folder),
        "steps": len(states),
        **{name: counts[name] for name in STATES},
        "seconds": sum(record.seconds for record in records),
        "memory": max((record.peak_mb * 1e6 for record in records), default=0.0),
        "disk": float(sum(_bytes(path) for path in plan.file.folder.rglob("*"))),
        "running": who_runs(plan.file.folder, STUDY),
        "failures": {n: s.why for n, s in states.items() if s.name == "failed"},
    }


def _bytes(path: Path) -> int:
    with suppress(FileNotFoundError):  # a draft, which has its name by now
        return path.stat().st_size if path.is_file() else 0
    return 0


def status_sentences(status: Mapping[str, Any]) -> list[str]:
    """Return sentences on how far a study is."""
    counts = ", ".join(f"{status[s]} {s}" for s in STATES if status[s] or s == "done")
    lines = [f"{status['folder']}: {counted(status['steps'], 'step')}, {counts}."]
    if status["done"]:
        lines.append(
            f"Finished steps took {duration(status['seconds'])} in all and at most "
            f"{size(status['memory'])} of memory each; the folder takes {size(status['disk'])}."
        )
    running = status["running"]
    if running is None:
        lines.append("No process is running this study.")
    else:
        left = duration(running.get("seconds_left", 0.0))
        lines.append(
            f"Process {running['pid']} on {running['host']} runs it; about {left} left of the "
            f"{counted(running.get('chosen', status['steps']), 'step')} asked for."
        )
        if running["host"] != socket.gethostname():
            lines.append("  This machine cannot see whether that process is still alive.")
        now = time.time()
        steps = running.get("running", {}).items()
        lines += [f"  {name}  {duration(now - since)}" for name, since in steps]
        if queued := running.get("queued", 0):
            lines.append(f"  {counted(queued, 'step')} in the queue of the cluster")
    return lines + _reasons(status["failures"])


def read_log(place: str | Path, step: str) -> str:
    """Return the log of a step, with all its attempts."""
    plan = open_plan(place)
    lookup("step", step, plan.steps)
    path = Store(plan.file.folder).log_path(step)
    if not path.is_file():
        raise StoreError(f"{step} has not been begun: there is no {path}.")
    return path.read_text(encoding="utf-8", errors="replace")
