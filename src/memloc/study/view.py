"""How people see a study: its plan, how far it is, and how it ended."""

import shutil
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.filesize import decimal

from memloc.errors import StoreError, counted, lookup
from memloc.lock import STUDY, who_runs
from memloc.progress import duration
from memloc.study.estimate import Estimate
from memloc.study.execute import Progress, cores
from memloc.study.executors import Outcome
from memloc.study.plan import KINDS, Plan, open_plan
from memloc.study.records import State, Store, study_states

if TYPE_CHECKING:
    from rich.table import Table

STATES = ("done", "missing", "stale", "failed")


def plan_rows(plan: Plan, states: Mapping[str, State], estimate: Estimate) -> list[dict[str, Any]]:
    """One row per kind of step: how many there are, how they stand, what the rest costs."""
    rows = []
    for kind in KINDS:
        names = [s.name for s in plan.steps.values() if s.kind == kind]
        left = [n for n in names if states[n].name != "done"]
        counts = Counter(states[n].name for n in names)
        row = {
            "steps": kind,
            "all": len(names),
            **{state: counts[state] for state in STATES},
            "time": duration(sum(estimate.seconds[n] for n in left)),
            "memory": size(max((estimate.memory[n] for n in left), default=0)),
            "disk": size(sum(estimate.disk[n] for n in left)),
        }
        rows += [row] if names else []
    return rows


def plan_sentences(
    plan: Plan, states: Mapping[str, State], estimate: Estimate, jobs: int
) -> list[str]:
    """What is left in all, how sure that is, and why steps are made anew."""
    left = {n for n, state in states.items() if state.name != "done"}
    if not left:
        return ["Everything is done."]
    seconds = estimate.total(left, cores(), jobs)
    source = f"and {counted(estimate.compared, 'finished step')}" if estimate.compared else "alone"
    reasons = Counter(state.why for state in states.values() if state.name == "stale")
    return [
        f"{len(left)} of {counted(len(states), 'step')} left: about {duration(seconds)} with "
        f"{jobs} at once ({_range(seconds, estimate.factor)}; from a calibration {source}).",
        *disk_sentences(sum(estimate.disk[n] for n in left), plan.file.folder),
        *(f"{n} stale, to be done again: {why}." for why, n in reasons.items()),
    ]


def training_sentence(left: Mapping[str, int], updates: int, seconds: float, factor: float) -> str:
    """What is left of a single run."""
    many = "training is" if len(left) == 1 else "trainings are"
    return (
        f"{len(left)} {many} left ({', '.join(left)}), {updates:,} updates in all: about "
        f"{duration(seconds)} ({_range(seconds, factor)}; from a calibration alone)."
    )


def _range(seconds: float, factor: float) -> str:
    return f"{duration(seconds / factor)} to {duration(seconds * factor)}"


def disk_sentences(disk: float, folder: Path) -> list[str]:
    """How much space results take, and whether there is as much."""
    free = shutil.disk_usage(folder).free
    more = "THAT IS MORE THAN THERE IS: choose another folder or free space first."
    taken = f"Results will take {size(disk)} of disk; {size(free)} are free."
    return [taken, more] if disk > free else [taken]


def step_rows(plan: Plan, states: Mapping[str, State], estimate: Estimate) -> list[dict[str, Any]]:
    """One row per step."""
    return [
        {
            "step": name,
            "state": state.name,
            "seconds": round(estimate.seconds[name]),
            "needs": [] if plan.steps[name].soft else list(plan.steps[name].inputs),
            "why": state.why,
        }
        for name, state in states.items()
    ]


class View:
    """Shows on stderr how far a study is: one live table in a terminal.

    In a log: a first line with what there is to do, then one line per step that ended.
    """

    def __init__(self) -> None:
        self._live: Any = None
        self._has_said = False

    def __enter__(self) -> "View":
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, progress: Progress, ended: Outcome | None) -> None:
        """Told how far it is."""
        if sys.stderr.isatty():
            self._draw(progress)
        elif ended is not None or (progress.running and not self._has_said):
            line = _head(progress) if ended is None else _line(progress, ended)
            print(line, file=sys.stderr, flush=True)
            self._has_said = True

    def _draw(self, progress: Progress) -> None:
        from rich.console import Console
        from rich.live import Live

        if self._live is None:
            self._live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(live_table(progress), refresh=True)


def live_table(progress: Progress) -> "Table":
    """One row per kind of step, below it the steps that run or failed; above it the time left."""
    from rich.table import Table

    table = Table(
        box=None, pad_edge=False, expand=True, title=_head(progress), title_justify="left"
    )
    table.add_column("steps", overflow="ellipsis", no_wrap=True, ratio=1)
    table.add_column("state", overflow="ellipsis", no_wrap=True)
    table.add_column("time", no_wrap=True)
    for kind in KINDS:
        names = sorted(n for n in progress.chosen if n.split("/")[0] == kind)
        done = sum(progress.states[n].name == "done" for n in names)
        if names:
            table.add_row(kind, f"{done} of {len(names)} done", "")
        for name in names:
            if name in progress.running:
                expected = duration(progress.estimate.seconds[name])
                took = duration(time.time() - progress.running[name])
                table.add_row(f"  {name}", "running", f"{took} of about {expected}")
            elif progress.states[name].name == "failed":
                table.add_row(f"  {name}", f"FAILED: {progress.states[name].why}", "")
    return table


def _head(progress: Progress) -> str:
    done, failed = progress.count("done"), progress.count("failed")
    text = (
        f"{done} of {counted(len(progress.chosen), 'step')} done, {len(progress.running)} running"
    )
    text += f", {failed} failed" if failed else ""
    return f"{text}, about {duration(progress.seconds_left())} left"


def _line(progress: Progress, ended: Outcome) -> str:
    if ended.reason:
        return f"FAILED  {ended.step}: {ended.reason}"
    return f"done  {ended.step}  {ended.seconds:.1f} s  ({_head(progress)})"


def end_sentences(plan: Plan, progress: Progress, jobs: int) -> list[str]:
    """What was done, how long each stage took and how good the estimate was, what failed."""
    done = {n: o for n, o in progress.outcomes.items() if not o.reason}
    took = time.time() - progress.began
    lines = []
    for kind in KINDS:
        seconds = [o.seconds for n, o in done.items() if plan.steps[n].kind == kind]
        if seconds:
            lines.append(f"{kind:9} {counted(len(seconds), 'step'):>10}  {duration(sum(seconds))}")
    if done:
        expected = progress.estimate.total(set(done), progress.cores, jobs)
        off = max(took, expected) / min(took, expected)
        lines.append(
            f"{counted(len(done), 'step')} took {duration(took)}; {duration(expected)} were "
            f"expected, so the estimate was off by a factor of {off:.2f}."
        )
    elif not progress.outcomes:
        lines.append(_nothing(plan, progress))
    return lines + failures(plan.file.folder, progress)


def failures(folder: Path, progress: Progress) -> list[str]:
    """What failed and why, and what can be done about it."""
    failed = _failed(progress)
    lines = _reasons(failed)
    if progress.blocked:
        lines.append(f"Waiting for what failed: {counted(len(progress.blocked), 'step')}.")
    if failed:
        lines.append(
            f"`memloc logs {folder} {next(iter(failed))}` shows more; `memloc run {folder} "
            "--retry` tries again."
        )
    return lines


def _reasons(failed: Mapping[str, str]) -> list[str]:
    """Each reason once: all that looks at a run that did not memorise fails for the same one."""
    steps = defaultdict[str, list[str]](list)
    for name, why in failed.items():
        steps[why].append(name)
    more = {why: f" and {len(names) - 1} more" * (len(names) > 1) for why, names in steps.items()}
    return [f"FAILED {names[0]}{more[why]}: {why}" for why, names in steps.items()]


def _failed(progress: Progress) -> dict[str, str]:
    states = {name: progress.states[name] for name in sorted(progress.chosen)}
    return {name: state.why for name, state in states.items() if state.name == "failed"}


def _nothing(plan: Plan, progress: Progress) -> str:
    """Why no step was done."""
    for name in sorted(progress.chosen):
        step = plan.steps[name]
        if step.soft and progress.states[name].name == "missing" and step.inputs:
            kinds = {plan.steps[need].kind for need in step.inputs}
            words = " or ".join(f"`--only {kind}`" for kind in KINDS if kind in kinds)
            return f"Nothing to do: {name} sums up other steps, and none of them is done; {words}."
    return "Nothing to do: everything that can be done is done."


def progress_record(plan: Plan, progress: Progress) -> dict[str, Any]:
    """How it ended, for machines."""
    return {
        "folder": str(plan.file.folder),
        "seconds": time.time() - progress.began,
        "done": {n: o.seconds for n, o in progress.outcomes.items() if not o.reason},
        "failed": _failed(progress),
        "blocked": progress.blocked,
        "states": {n: progress.states[n].name for n in plan.steps if n in progress.chosen},
    }


def study_status(place: str | Path) -> dict[str, Any]:
    """How a study stands, and what the process that runs it says, if there is one."""
    plan = open_plan(place)
    store, states = Store(plan.file.folder), study_states(plan)
    counts = Counter(state.name for state in states.values())
    done = [name for name, state in states.items() if state.name == "done"]
    records = [record for name in done if (record := store.record(name))]
    return {
        "folder": str(plan.file.folder),
        "steps": len(states),
        **{name: counts[name] for name in STATES},
        "seconds": sum(float(record["seconds"]) for record in records),
        "memory": max((float(record["peak_mb"]) * 1e6 for record in records), default=0.0),
        "disk": float(sum(_bytes(path) for path in plan.file.folder.rglob("*"))),
        "running": who_runs(plan.file.folder, STUDY),
        "failures": {n: s.why for n, s in states.items() if s.name == "failed"},
    }


def _bytes(path: Path) -> int:
    with suppress(FileNotFoundError):  # a draft, which has its name by now
        return path.stat().st_size if path.is_file() else 0
    return 0


def status_sentences(status: Mapping[str, Any]) -> list[str]:
    """How a study stands."""
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
        now = time.time()
        steps = running.get("running", {}).items()
        lines += [f"  {name}  {duration(now - since)}" for name, since in steps]
    return lines + _reasons(status["failures"])


def read_log(place: str | Path, step: str) -> str:
    """What a step has printed, all its attempts."""
    plan = open_plan(place)
    lookup("step", step, plan.steps)
    path = Store(plan.file.folder).log_path(step)
    if not path.is_file():
        raise StoreError(f"{step} has not been begun: there is no {path}.")
    return path.read_text(encoding="utf-8", errors="replace")


def size(count: float) -> str:
    """Bytes as people say them."""
    return decimal(int(count))
