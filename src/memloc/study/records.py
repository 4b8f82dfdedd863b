"""Stores the records of a study's steps: begun, done, stale or failed."""

import os
import socket
import time
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field

from memloc.errors import StoreError
from memloc.methods.result import Result
from memloc.run.folder import Run
from memloc.settings import Settings, read_record
from memloc.store import paths
from memloc.store.files import drafts_in, is_draft, remove
from memloc.store.identity import hash_files
from memloc.store.lock import RUN, is_free, locked, who_runs
from memloc.store.records import read_json, versions, write_json
from memloc.study.plan import Plan, Step


@dataclass(frozen=True)
class State:
    """The state of a step (`done`, `missing`, `stale` or `failed`) and the reason."""

    name: str
    why: str = ""


class StepRecord(Settings):
    """Record of a step that was begun, with its cost once it is done."""

    model_config = ConfigDict(extra="ignore", strict=True)

    state: Literal["begun", "done", "failed"]
    identity: str
    token: str = ""
    pid: int = 0
    reason: str = ""
    """Reason why the step failed."""
    allowed: dict[str, Any] = {}
    products: dict[str, str] = {}
    settings: dict[str, Any] = {}
    results: dict[str, str] = {}
    files: dict[str, list[int]] = {}
    """Size and times of each file that the step left, by its path in the study."""
    versions: dict[str, str] = {}
    seconds: float = Field(0.0, ge=0)
    processor: float | None = Field(None, ge=0)
    """Seconds of processor time; None if another device computed."""
    peak_mb: float = Field(0.0, ge=0)
    threads: int = Field(1, ge=1)


NEEDED = {"begun": (), "done": ("seconds", "peak_mb"), "failed": ("reason",)}
"""Fields that a record must have, by its state."""


class Store:
    """The records of a study's steps."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)

    def record_path(self, name: str) -> Path:
        """Return the file of a step's record."""
        return self.folder / paths.STEPS / f"{name}.json"

    def log_path(self, name: str) -> Path:
        """Return the file of a step's output."""
        return self.folder / paths.LOGS / f"{name}.log"

    def record(self, name: str) -> StepRecord | None:
        """Return the record of a step, None if it was never begun."""
        path = self.record_path(name)
        if not path.is_file():
            return None
        record = read_record(path, StepRecord)
        for needed in NEEDED[record.state]:
            if needed not in record.model_fields_set:
                raise StoreError(
                    f"{path} does not hold what it should ({needed} is missing); delete it and run "
                    "again."
                )
        return record

    def begin(self, step: Step, token: str) -> None:
        """Record that this process runs a step, and remove what older settings made."""
        record = self.record(step.name)
        path = self.record_path(step.name)
        if record is not None and record.identity != step.identity:
            # A process that the step was taken from sees the token and ends.
            write_json(path, {**read_json(path), "token": token})
            self._clear(step, record)
        self._write(step, {"state": "begun", "token": token, "pid": os.getpid()})

    def finish(self, step: Step, facts: Mapping[str, Any]) -> None:
        """Record that a step is done."""
        left = {"results": self._results(step), "files": self._files(step), "versions": versions()}
        self._write(step, {"state": "done", **left, **facts})

    def fail(self, step: Step, reason: str) -> None:
        """Record that a step failed, and why."""
        self._write(step, {"state": "failed", "reason": reason, "allowed": dict(step.allowed)})

    def sweep(self) -> None:
        """Remove drafts of files that killed processes left behind."""
        for draft in drafts_in(self.folder):
            run = self._run_of(draft)
            if run is None or is_free(run, RUN):  # a run may be trained by itself
                remove(draft)

    def owner(self, name: str) -> str:
        """Return the token of the process that runs a step; empty if none does."""
        with suppress(StoreError):
            record = self.record(name)
            return "" if record is None else record.token
        return ""

    def check(self, step: Step) -> None:
        """Refuse a step's files if any is missing, damaged or changed.

        Everything is read, so this is used only if sizes or times of files differ from the record.
        """
        for path in step.outputs:
            if not (self.folder / path).exists():
                raise StoreError(f"{path} is not there.")
        if step.method:
            Result.read(paths.result(self.folder / step.folder, step.method))
            return
        for run in self._runs(step):
            Run.open(run).check_whole()
        looked_at = step.folders if step.action == "plant" else ()
        for folder in looked_at:
            for about in (self.folder / folder / paths.RESULTS).glob(f"*/{paths.ABOUT}"):
                Result.read(about.parent)

    def _runs(self, step: Step) -> list[Path]:
        """Return the folders of the runs that a step makes."""
        places = [self.folder / place for place in step.folders]
        return [place for place in places if (place / paths.RUN).is_file()]

    def _files(self, step: Step) -> dict[str, list[int]]:
        """Return the size and times of each file that a step left."""
        if step.method:
            places = [paths.result(self.folder / step.folder, step.method)]
        else:
            names = [paths.RUN, paths.STATUS, paths.LABELS, paths.TRAINING, paths.CHECKPOINTS]
            names += [paths.RESULTS] if step.action == "plant" else []
            places = [folder / name for folder in self._runs(step) for name in names]
        files = {}
        for path in (file for place in places for file in (place, *place.rglob("*"))):
            if path.is_file() and not is_draft(path.relative_to(self.folder)):
                stat = path.stat()
                times = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]
                files[path.relative_to(self.folder).as_posix()] = times
        return files

    def state(self, step: Step) -> State:
        """Return the state of a step: done, missing, stale or failed, and why."""
        record = self.record(step.name)
        if record is None:
            return State("missing")
        if record.identity != step.identity:
            return State("stale", _difference(step, record))
        if record.state == "failed":
            if record.allowed != step.allowed:
                return State("missing", "it may be allowed now")
            return State("failed", record.reason)
        if record.state == "begun":
            return State("missing", "begun")
        return self._done(step, record)

    def _done(self, step: Step, record: StepRecord) -> State:
        """Return the state of a finished step: its files must exist and be unchanged."""
        if [path for path in step.outputs if not (self.folder / path).exists()]:
            return self._checked(step)
        now = self._results(step)
        if other := [path for path in now if now[path] != record.results.get(path)]:
            return State("stale", f"{other[0]} was made anew by another command")
        return State("done") if self._files(step) == record.files else self._checked(step)

    def _checked(self, step: Step) -> State:
        try:
            self.check(step)
        except StoreError as error:
            return State("missing", str(error).rstrip("."))
        return State("done")

    def _results(self, step: Step) -> dict[str, str]:
        """Return hashes of a step's results, as another command may write into their folders."""
        about = [path for path in step.outputs if Path(path).name == paths.ABOUT]
        return {path: hash_files([self.folder / path]) for path in about}

    def _write(self, step: Step, facts: Mapping[str, Any]) -> None:
        about = {
            "step": step.name,
            "identity": step.identity,
            "products": step.keys,
            "settings": step.settings,
            "host": socket.gethostname(),
            "when": time.time(),
        }
        write_json(self.record_path(step.name), {**about, **facts})

    def _clear(self, step: Step, record: StepRecord) -> None:
        """Remove files made by other settings or inputs; the record stays until the new one exists.

        If only some products of a step changed, the others are kept.
        """
        before = record.products
        changed = [name for name, new_key in step.keys.items() if before.get(name) != new_key]
        # With the same settings as before it is the inputs that changed.
        for name in changed or step.keys:
            for path in step.removes[name]:
                run = self._run_of(self.folder / path)
                with nullcontext() if run is None else locked(run, RUN):  # no other is at work
                    remove(self.folder / path)

    def _run_of(self, path: Path) -> Path | None:
        """Return the folder of the run that contains a path, or is the path itself."""
        within = [path, *path.parents][: len(path.relative_to(self.folder).parts)]
        begun = (p for p in within if (p / paths.RUN).is_file() or who_runs(p, RUN) is not None)
        return next(begun, None)


class StepEnd(Settings):
    """How a step ended; an empty reason means success."""

    step: str
    reason: str = ""
    seconds: float = 0.0
    peak_mb: float = 0.0


def finished(store: Store, step: Step) -> StepEnd | None:
    """Return how a step ended that is already done; None for other steps."""
    record = store.record(step.name)
    if record is None or store.state(step).name != "done":
        return None
    return StepEnd(step=step.name, seconds=record.seconds, peak_mb=record.peak_mb)


def study_states(plan: Plan) -> dict[str, State]:
    """Return the state of every step of a plan."""
    store = Store(plan.file.folder)
    return {name: store.state(step) for name, step in plan.steps.items()}


def _difference(step: Step, record: StepRecord) -> str:
    """Return the first setting that changed since the step was recorded, or that an input did."""
    before, now = record.settings, step.settings
    for name in sorted({*before, *now}):
        was, is_now = before.get(name, "not there"), now.get(name, "not there")
        if was != is_now:
            return f"{name} was {was} and is {is_now}"
    return "what it is made from changed"
