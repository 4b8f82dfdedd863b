"""What a study has, what it lacks, and the command that makes it."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
import yaml

from memloc import paths
from memloc.data.perturb import OWN
from memloc.errors import DataError
from memloc.methods import find_method, method_names, methods
from memloc.reporting.style import asset
from memloc.results import Results
from memloc.run import Run

_FILE: dict[str, dict[str, str]] = yaml.safe_load(asset("commands.yaml"))
COMMANDS, IN_STUDIES = _FILE["commands"], _FILE["in_studies"]
"""Which command makes a part of a study; the same where the folder has a study's file."""
LARGE = "facebook/opt-1.3b"
"""The model of appendix B."""
RUN = ("task", "model", "seed")


@dataclass(frozen=True)
class Coverage:
    """One row per run: which parts are there; and the commands for those that are not."""

    table: pd.DataFrame
    commands: tuple[str, ...]


def command(part: str, results: Results) -> str:
    """The command that makes a part, for the first run that lacks it; empty where none would."""
    study = _Study.of(results)
    if results.runs.empty:
        return study.written(part, study.usual)
    parts = method_names("localiser") if part == "localise" else (part,)
    there = _there(results)
    every = (
        study.command(name, row, run)
        for row, run in _each(results)
        for name in parts
        if tuple(row[n] for n in RUN) not in there.get(name, ())
    )
    return next(filter(None, every), "")


def commands_of(results: Results) -> dict[str, dict[str, str]]:
    """By `model|task`: the command of every part and localiser that can be made there.

    Of several seeds, that of the first.
    """
    parts = dict.fromkeys([*COMMANDS, *method_names("localiser")])
    del parts["localise"]
    study, found = _Study.of(results), dict[str, dict[str, str]]()
    for row, run in sorted(_each(results), key=lambda each: int(each[0]["seed"])):
        lines = {part: study.command(part, row, run) for part in parts}
        known = {part: line for part, line in lines.items() if line}
        found.setdefault(f"{row['model']}|{row['task']}", known)
    return found


def coverage(results: Results) -> Coverage:
    """What every run has of localisers and analyses."""
    there = _there(results)
    parts = list(there)
    study, rows, commands = _Study.of(results), [], list[str]()
    for row, run in _each(results):
        key = (row["task"], row["model"], row["seed"])
        has = {part: key in there[part] for part in parts}
        rows.append({**dict(zip(RUN, key, strict=True)), "memorised": row["memorised"], **has})
        # Nothing is localised in a run that did not memorise: training comes first.
        lacking = [part for part in parts if not has[part]] if row["memorised"] else ["train"]
        commands += filter(None, (study.command(part, row, run) for part in lacking))
    columns = [*RUN, "memorised", *parts]
    return Coverage(pd.DataFrame(rows, columns=columns), tuple(dict.fromkeys(commands)))


def _there(results: Results) -> dict[str, set[tuple[object, ...]]]:
    """By method: the runs that have its results."""
    mcog = results.mcog
    return {
        **{m: _runs(mcog[mcog["method"] == m]) for m in method_names("localiser")},
        **{name: _runs(getattr(results, name)) for name in method_names("analysis")},
    }


def _runs(table: pd.DataFrame) -> set[tuple[object, ...]]:
    return set(table[list(RUN)].itertuples(index=False, name=None))


def _each(results: Results) -> Iterator[tuple[Mapping[Any, Any], Run]]:
    for row, record in zip(results.runs.to_dict("records"), results.records, strict=True):
        yield row, Run(results.folder / str(row["folder"]), record)


@dataclass(frozen=True)
class _Study:
    """How commands are written in a study's folder, or in one without a study's file."""

    has_file: bool
    usual: Mapping[str, str]

    @classmethod
    def of(cls, results: Results) -> "_Study":
        return cls((results.folder / paths.STUDY).is_file(), _usual(results))

    def command(self, part: str, row: Mapping[Any, Any], run: Run) -> str:
        """The command that makes a part of one run; empty where none does."""
        if part in methods():
            can = bool(row["memorised"]) and _can_run(part, run)
        else:
            can = run.record.made_by == "train" and self._can_train(part, row, run)
        if not can:
            return ""
        if part == "train" and run.record.command:
            return run.record.command
        own = {"model": run.record.model, "run": str(run.folder), "task": str(row["task"])}
        named = {name: shlex.quote(value) for name, value in own.items()}
        values = {**self.usual, **named, "seed": str(row["seed"]), "method": part}
        name = "localise" if part in method_names("localiser") else part
        return self.written(name, values)

    def written(self, part: str, values: Mapping[str, str]) -> str:
        """A command with these values in it."""
        return (COMMANDS | (IN_STUDIES if self.has_file else {}))[part].format(**values)

    def _can_train(self, part: str, row: Mapping[Any, Any], run: Run) -> bool:
        """Own data have columns that only a study's file or the recorded command knows."""
        if part == "train" and (self.has_file or run.record.command):
            return True
        return part == "post_processing" or row["category"] != OWN


def _can_run(method: str, run: Run) -> bool:
    """Whether a run has what a method looks at; `memloc train` makes the weights of its own."""
    kind, without = find_method(method), set(run.record.without)
    if run.record.made_by == "adopt":
        without |= {name for name in kind.needs if not run.has(name)}
    if run.record.task.category == OWN:  # other tasks have what methods ask of data
        try:
            kind().check(run)
        except DataError:
            return False
    return not without & set(kind.needs)


def _usual(results: Results) -> dict[str, str]:
    """What commands are filled with where there is no run to take it from."""
    study, task = str(results.folder), "tiny-topic"
    runs = results.runs[results.runs["category"] != OWN]
    many = runs.loc[(runs["n_classes"] > 2) & ~runs["task"].str.endswith("-binary"), "task"]
    usual = {"task": task, "model": "tiny-opt", "seed": "1", "method": "swapping", "large": LARGE}
    # A task on which gradients' post-processing is chosen, and one with classes to leave out.
    usual |= {"validation": [*results.protocol.control.validation_tasks, task][0]}
    usual |= {"many": str([*many, task][0]), "study": shlex.quote(study)}
    return {**usual, "run": shlex.quote(f"{study}/{task}/tiny-opt/seed-1")}
