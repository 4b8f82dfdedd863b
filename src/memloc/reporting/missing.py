"""Finds the missing parts of a study, and the commands that make them."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
import yaml

from memloc.data.perturb import OWN
from memloc.errors import DataError, StoreError, counted
from memloc.methods.registry import find_method, method_names, methods
from memloc.reporting.derived import RUN
from memloc.reporting.results import Results
from memloc.reporting.style import METHODS, asset
from memloc.run.folder import Run
from memloc.stats.claims import BINARY
from memloc.store import paths

_FILE: dict[str, dict[str, str]] = yaml.safe_load(asset("commands.yaml"))
COMMANDS, IN_STUDIES = _FILE["commands"], _FILE["in_studies"]
"""Commands by the part of a study that they make; those for folders with a study's file."""
VERBS = {"localiser": "localise", "analysis": "analyse"}
"""Commands that run methods, by the kind of the methods."""
LARGE = "facebook/opt-1.3b"
"""Large model of the paper's appendix B."""


@dataclass(frozen=True)
class Coverage:
    """The parts that each run has, as a table, and commands for the missing ones."""

    table: pd.DataFrame
    commands: tuple[str, ...]
    sentence: str = ""
    """Sentence on what is missing; empty if nothing is."""


def command(part: str, results: Results) -> str:
    """Return the command that makes a part for the first run without it; empty if none does."""
    study = _Study.of(results)
    present = _there(results)
    # A part of the report of some methods, such as their events, is made by any of these.
    parts = [n for n, m in methods().items() if part in m.report and part not in methods()]
    if part == "localise" and len(results["runs"]):
        parts = list(method_names("localiser"))
    parts = parts or [part]
    if results["runs"].empty:
        return study.written(parts[0], study.usual)
    every = (
        study.command(name, row, run)
        for row, run in _each(results)
        for name in parts
        if _key(row) not in present.get(name, ())
    )
    return next(filter(None, every), "")


def commands_of(results: Results) -> dict[str, dict[str, str]]:
    """Return, by `model|task`, the commands for all parts and methods, for the lowest seed.

    Commands are for the lowest seed.
    """
    parts = [*(part for part in COMMANDS if part not in VERBS.values()), *_there(results)]
    study = _Study.of(results)
    by_case = dict[str, dict[str, str]]()
    for row, run in sorted(_each(results), key=lambda each: int(each[0]["seed"])):
        lines = {part: study.command(part, row, run) for part in parts}
        known = {part: line for part, line in lines.items() if line}
        by_case.setdefault(f"{row['model']}|{row['task']}", known)
    return by_case


def coverage(results: Results) -> Coverage:
    """Return which localisers and analyses were applied to each run, and commands for the
    others.
    """
    present = _there(results)
    study = _Study.of(results)
    rows = []
    commands = list[str]()
    for row, run in _each(results):
        has = {part: _key(row) in runs for part, runs in present.items()}
        rows.append({**{n: row[n] for n in (*RUN, "memorised")}, **has})
        # Nothing is localised in a run that did not memorise: training comes first.
        lacking = [part for part in has if not has[part]] if row["memorised"] else ["train"]
        commands += filter(None, (study.command(part, row, run) for part in lacking))
    table = pd.DataFrame(rows, columns=[*RUN, "memorised", *present])
    commands = list(dict.fromkeys(commands))
    sentence = ""
    if commands:
        what = OTHERS if results.asked is None else PARTS
        sentence = f"{what}; the page lists {counted(len(commands), 'command')}."
    return Coverage(table, tuple(commands), sentence)


OTHERS = "Other methods can look at these runs, too"
PARTS = "Parts of the study are missing"


def _there(results: Results) -> dict[str, set[tuple[Any, ...]]]:
    """Return the runs that each method was applied to, for expected methods and those with results.

    A study's file says which methods are expected; without one, all of memloc's own are.
    """
    named = [*method_names("localiser"), *method_names("analysis")]
    if results.asked is not None:
        named = [name for name in methods() if name in results.asked]
    named += results["made"]["method"].tolist()
    usual = [n for n in dict.fromkeys(named) if n not in methods() or methods()[n].by_default]
    present: dict[str, set[tuple[Any, ...]]] = {name: set() for name in usual}
    for row in results.made.to_dict("records"):
        present.get(row["method"], set()).add(_key(row))
    return present


def _key(row: Mapping[Any, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in RUN)


def _each(results: Results) -> Iterator[tuple[Mapping[Any, Any], Run]]:
    for row in results.runs.to_dict("records"):
        yield row, Run.open(results.folder / str(row["folder"]))


@dataclass(frozen=True)
class _Study:
    """Writes commands for a folder, which may have a study's file."""

    has_file: bool
    usual: Mapping[str, str]

    @classmethod
    def of(cls, results: Results) -> "_Study":
        return cls((results.folder / paths.STUDY).is_file(), _usual(results))

    def command(self, part: str, row: Mapping[Any, Any], run: Run) -> str:
        """Return the command that makes a part of one run; empty if none does."""
        can = run.record.made_by == "train" and self._can_train(part, row, run)
        if part not in COMMANDS:
            can = bool(row["memorised"]) and part in methods() and _can_run(part, run)
        if not can:
            return ""
        if part == "train" and run.record.command:
            return run.record.command
        values = {"model": run.spec.model, "run": str(run.folder), "task": str(row["task"])}
        named = {name: shlex.quote(value) for name, value in values.items()}
        return self.written(part, {**self.usual, **named, "seed": str(row["seed"])})

    def written(self, part: str, values: Mapping[str, str]) -> str:
        """Return a command with these values inserted."""
        known = COMMANDS | (IN_STUDIES if self.has_file else {})
        named = {}
        if part not in COMMANDS:
            part, named = VERBS[find_method(part).kind], {"method": part}
        return known[part].format(**{**values, **named})

    def _can_train(self, part: str, row: Mapping[Any, Any], run: Run) -> bool:
        """Return whether a command can train the run; own data need a study's file or a record."""
        if part == "train" and (self.has_file or run.record.command):
            return True
        return part == "post_processing" or row["category"] != OWN


def _can_run(method: str, run: Run) -> bool:
    """Return whether a run has the weights that a method needs, or `memloc train` can make them."""
    asked = find_method(method)()
    without = set(run.status.without)
    if run.record.made_by == "adopt":
        without |= {name for name in asked.needs if not run.has(name)}
    if run.record.task.category == OWN:  # other tasks meet all requirements on data
        try:
            asked.check(run)
        except (DataError, StoreError):
            return False
    return not without & set(asked.needs)


def _usual(results: Results) -> dict[str, str]:
    """Return default values for commands if there is no run to take them from."""
    study = str(results.folder)
    task = "tiny-topic"
    runs = results.runs[results.runs["category"] != OWN]
    many = runs.loc[(runs["n_classes"] > 2) & ~runs["task"].str.endswith(BINARY), "task"]
    usual = {"task": task, "model": "tiny-opt", "seed": "1", "method": METHODS[0], "large": LARGE}
    # A task on which settings are chosen, and one with classes to leave out.
    usual |= {"validation": [*results.protocol.control.validation_tasks, task][0]}
    usual |= {"many": str([*many, task][0]), "study": shlex.quote(study)}
    return {**usual, "run": shlex.quote(f"{study}/{task}/tiny-opt/seed-1")}
