"""The results of a study as pandas tables: what figures, tables and the report are made of."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memloc.analyse.store import Analysis
from memloc.errors import StoreError
from memloc.records import read_table
from memloc.results import parts
from memloc.results.columns import COLUMNS, KEY, stacked
from memloc.results.find import Found, find_runs
from memloc.train.run import Run

if TYPE_CHECKING:
    import pandas as pd

ANALYSES = {
    "centroids": {"layers": "centroids", "events": "events"},
    "label_probes": {"layers": "label_probes", "events": "events"},
    "generalisation": {"summary": "generalisation", "examples": "memorisation"},
}
"""File of an analysis, table in it, and what the table is called here."""
CONTROL = {
    "control": "scores",
    "control_layers": "layers",
    "control_gradients": "gradients",
    "nulls": "nulls",
    "plants": "plants",
    "post_processing": "post_processing",
}
"""The tables that the control set-up leaves for the whole study, and their files."""


@dataclass(frozen=True)
class Results:
    """A study's tidy tables; one whose files are not there is empty with its columns.

    `examples` and `reverted` are read when they are first asked for: they are large.
    """

    folder: Path
    runs: "pd.DataFrame"
    training: "pd.DataFrame"
    layers: "pd.DataFrame"
    mcog: "pd.DataFrame"
    windows: "pd.DataFrame"
    gradients: "pd.DataFrame"
    noise_probes: "pd.DataFrame"
    centroids: "pd.DataFrame"
    events: "pd.DataFrame"
    label_probes: "pd.DataFrame"
    generalisation: "pd.DataFrame"
    memorisation: "pd.DataFrame"
    control: "pd.DataFrame"
    control_layers: "pd.DataFrame"
    control_gradients: "pd.DataFrame"
    nulls: "pd.DataFrame"
    plants: "pd.DataFrame"
    post_processing: "pd.DataFrame"

    @cached_property
    def examples(self) -> "pd.DataFrame":
        """The training examples of every run, labels by name."""
        return self.examples_of(self.runs)

    @cached_property
    def reverted(self) -> "pd.DataFrame":
        """For every noisy example and window: is its assigned label no longer predicted?"""
        return self.reverted_of(self.runs)

    def examples_of(self, runs: "pd.DataFrame") -> "pd.DataFrame":
        """The part of `examples` that belongs to some rows of `runs`."""
        return stacked("examples", map(parts.examples, self._opened(runs)))

    def reverted_of(self, runs: "pd.DataFrame") -> "pd.DataFrame":
        """The part of `reverted` that belongs to some rows of `runs`."""
        return stacked("reverted", _each(parts.reverted(found) for found in self._opened(runs)))

    @cached_property
    def abouts(self) -> list[dict[str, Any]]:
        """The records of the runs, in the order of `runs`: settings, task, verdict."""
        return [found.run.about for found in self._opened(self.runs)]

    @cached_property
    def versions(self) -> list[dict[str, str]]:
        """The versions that the runs were made with, each set of them once."""
        paths = [self.folder / folder / "training.parquet" for folder in self.runs["folder"]]
        notes = [read_table(path)[1] for path in paths if path.is_file()]
        return list({tuple(n["versions"].items()): n["versions"] for n in notes}.values())

    def only(self, **values: object) -> "Results":
        """The rows of one task, model or seed, e.g. `only(model="tiny-opt")`."""
        tables = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "folder"}
        chosen: dict[str, Any] = {name: _rows(t, values) for name, t in tables.items()}
        return replace(self, **chosen)

    def _opened(self, runs: "pd.DataFrame") -> Iterator[Found]:
        for row in runs.to_dict("records"):
            yield Found({name: row[name] for name in KEY}, Run.open(self.folder / row["folder"]))


def load_results(path: str | Path) -> Results:
    """The results in a study's folder, `runs/` as `memloc train` fills it, or one run's folder."""
    folder = Path(path)
    if not folder.is_dir():
        raise StoreError(f"{folder} is not a folder: give a study, e.g. `runs`.")
    runs = find_runs(folder)
    return Results(
        folder=folder,
        runs=stacked("runs", (parts.run_row(found, folder) for found in runs)),
        training=stacked("training", _each(map(parts.training, runs))),
        **_localised(runs),
        **_analyses(runs),
        **{name: _summary(name, folder / "control" / file) for name, file in CONTROL.items()},
    )


def _localised(runs: list[Found]) -> "dict[str, pd.DataFrame]":
    scores = [(found, s) for found in runs for s in found.scores()]
    several = ("windows", "gradients", "noise_probes")
    return {
        "layers": stacked("layers", (parts.layers(f, s) for f, s in scores)),
        "mcog": stacked("mcog", (parts.mcog(f, s) for f, s in scores)),
        **{n: stacked(n, _each(getattr(parts, n)(f, s) for f, s in scores)) for n in several},
    }


def _analyses(runs: list[Found]) -> "dict[str, pd.DataFrame]":
    found: dict[str, list[pd.DataFrame]] = {
        name: [] for tables in ANALYSES.values() for name in tables.values()
    }
    for run in runs:
        for file, tables in ANALYSES.items():
            path = run.run.folder / "analyse" / f"{file}.parquet"
            if path.is_file():
                frames = Analysis.read(path)
                for inside, name in tables.items():
                    found[name].append(frames[inside].assign(**run.key))
    return {name: stacked(name, frames) for name, frames in found.items()}


def _summary(name: str, file: Path) -> "pd.DataFrame":
    path = file.with_suffix(".parquet")
    if not path.is_file():
        return stacked(name, [])
    table, _ = read_table(path)
    lacking = sorted(set(COLUMNS[name]) - set(table.columns))
    if lacking:
        raise StoreError(f"{path} has no column {lacking[0]}; `memloc control` writes it anew.")
    return stacked(name, [table])


def _each(groups: "Iterable[Iterable[pd.DataFrame]]") -> "Iterator[pd.DataFrame]":
    for group in groups:
        yield from group


def _rows(table: "pd.DataFrame", values: Mapping[str, object]) -> "pd.DataFrame":
    for name, value in values.items():
        if name in table.columns:
            table = table[table[name] == value]
    return table.reset_index(drop=True)
