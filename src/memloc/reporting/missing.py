"""What a study has, what it lacks, and the command that makes it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from memloc.methods.base import method_names
from memloc.results import Results

COMMANDS = {
    "train": "memloc train {model} {task} --seed {seed} --out {study}",
    "localise": "memloc localise {run} {method}",
    "probing": "memloc localise {run} probing",
    "centroids": "memloc analyse {run} centroids",
    "label_probes": "memloc analyse {run} label_probes",
    "generalisation": "memloc analyse {run} generalisation",
    "control": "memloc control --model {model} --task {task} --out {study}",
    "post_processing": "memloc control --model {model} --task {validation} --out {study}",
    "sizes": "memloc train {large} {task} --seed {seed} --out {study}",
    "binarised": "memloc train {model} {many}-binary --seed {seed} --out {study}",
}
"""Which command makes a part of a study."""
LARGE = "facebook/opt-1.3b"
"""The model of appendix B."""


@dataclass(frozen=True)
class Coverage:
    """A row a run: which parts are there; and the commands for those that are not."""

    table: pd.DataFrame
    commands: tuple[str, ...]


def command(part: str, results: Results, choice: Mapping[str, object] | None = None) -> str:
    """The command that makes a part, for the chosen task, model and method or the first ones."""
    values = {**_first(results), **(choice or {})}
    return COMMANDS[part].format(**values)


def coverage(results: Results) -> Coverage:
    """What every run has of localisers and analyses."""
    localisers, analyses = method_names("localiser"), method_names("analysis")
    parts = [*localisers, *analyses]
    there = {
        **{m: _runs(results.mcog[results.mcog["method"] == m]) for m in localisers},
        **{name: _runs(getattr(results, name)) for name in analyses},
    }
    rows, commands = [], []
    for run in results.runs.to_dict("records"):
        key = (run["task"], run["model"], run["seed"])
        has = {part: key in there[part] for part in parts}
        rows.append({**dict(zip(RUN, key, strict=True)), "memorised": run["memorised"], **has})
        # Nothing is localised in a run that did not memorise: training comes first.
        lacking = [part for part in parts if not has[part]] if run["memorised"] else ["train"]
        commands += [_of_run(results, part, run) for part in lacking]
    columns = [*RUN, "memorised", *parts]
    return Coverage(pd.DataFrame(rows, columns=columns), tuple(commands))


RUN = ("task", "model", "seed")


def _runs(table: pd.DataFrame) -> set[tuple[object, ...]]:
    return set(table[list(RUN)].itertuples(index=False, name=None))


def _of_run(results: Results, part: str, run: Mapping[Any, Any]) -> str:
    place = results.folder / str(run["folder"])
    values = {name: run[name] for name in RUN} | {"run": str(place), "study": str(results.folder)}
    if part in method_names("localiser"):
        return COMMANDS["localise"].format(**values, method=part)
    return COMMANDS[part].format(**values)


def _first(results: Results) -> dict[str, object]:
    study = str(results.folder)
    usual = {"task": "tiny-topic", "model": "tiny-opt", "seed": 1, "method": "swapping"}
    usual |= {"validation": _validates(results), "many": _has_many_classes(results)}
    usual |= {"large": LARGE}
    if results.runs.empty:
        return {**usual, "study": study, "run": f"{study}/tiny-topic/tiny-opt/seed-1"}
    row = results.runs.iloc[0]
    found = {name: row[name] for name in RUN}
    return {**usual, **found, "study": study, "run": str(results.folder / row["folder"])}


def _validates(results: Results) -> str:
    """A task on which the gradients' post-processing is chosen."""
    return str([*results.protocol.control.validation_tasks, "tiny-topic"][0])


def _has_many_classes(results: Results) -> str:
    """A task with classes to leave out."""
    runs = results.runs
    many = runs.loc[(runs["n_classes"] > 2) & ~runs["task"].str.endswith("-binary"), "task"]
    return str([*many, "tiny-topic"][0])
