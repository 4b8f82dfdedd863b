"""The results of a study as pandas tables: what figures, tables and the report are made of."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memloc.errors import StoreError
from memloc.records import as_stored, read_table
from memloc.results import parts
from memloc.results.columns import COLUMNS, KEY, Columns, keyed, stacked
from memloc.results.find import Found, find_runs
from memloc.results.reading import Reverted, Scores, read_note, read_scores, read_tables
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

    def examples_of(self, runs: "pd.DataFrame", *, noisy_only: bool = False) -> "pd.DataFrame":
        """The part of `examples` that belongs to some rows of `runs`."""
        opened = self._opened(runs)
        return stacked(
            "examples", ((f.key, parts.examples(f, noisy_only=noisy_only)) for f in opened)
        )

    def reverted_of(self, runs: "pd.DataFrame") -> "pd.DataFrame":
        """The part of `reverted` that belongs to some rows of `runs`."""
        opened = self._opened(runs)
        return stacked(
            "reverted", ((f.key, o.table()) for f in opened for o in parts.outcomes_of(f))
        )

    def outcomes_of(self, run: "pd.DataFrame") -> list[Reverted]:
        """The same of one run as matrices, which are smaller; a row of `runs` is given."""
        (found,) = self._opened(run)
        return parts.outcomes_of(found)

    @cached_property
    def abouts(self) -> list[dict[str, Any]]:
        """The records of the runs, in the order of `runs`: settings, task, verdict."""
        return [found.run.about for found in self._opened(self.runs)]

    @cached_property
    def versions(self) -> list[dict[str, str]]:
        """The versions that the runs were made with, each set of them once."""
        paths = [self.folder / folder / "training.parquet" for folder in self.runs["folder"]]
        notes = [read_note(path) for path in paths if path.is_file()]
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
    with as_stored(folder):
        return _load(folder)


def _load(folder: Path) -> Results:
    runs = find_runs(folder)
    curves = [parts.training(found) for found in runs]
    pairs = list(zip(runs, curves, strict=True))
    return Results(
        folder=folder,
        runs=stacked("runs", ((f.key, parts.run_row(f, folder, curve)) for f, curve in pairs)),
        training=stacked("training", ((f.key, curve) for f, curve in pairs if len(curve))),
        **_localised(runs),
        **_analyses(runs),
        **{name: _summary(name, folder / "control" / file) for name, file in CONTROL.items()},
    )


def _localised(runs: list[Found]) -> "dict[str, pd.DataFrame]":
    found: dict[str, list[Any]] = {name: [] for name in LOCALISED}
    for run in runs:
        for path in run.score_files():
            scores = read_scores(path)
            with as_stored(path):
                _check_origin(run, scores.about, scores.depth)
                tables = {name: make(scores) for name, make in LOCALISED.items()}
            for name, columns in tables.items():
                if columns is not None:
                    found[name].append(({**run.key, "method": scores.method}, columns))
    return {name: stacked(name, tables) for name, tables in found.items()}


def _check_origin(found: Found, about: Mapping[str, Any], depth: int) -> None:
    """Refuse a result that was copied here from another run."""
    run, there = found.run, about.get("inputs", found.run.inputs)
    if there != run.inputs or about.get("seed", run.seed) != run.seed:
        raise ValueError("it is of another run")
    if depth != run.about["depth"]:
        raise ValueError(f"it has {depth} layers and the model {run.about['depth']}")


LOCALISED: dict[str, Callable[[Scores], Columns | None]] = {
    "layers": parts.layers,
    "mcog": parts.mcog,
    "windows": parts.windows,
    "gradients": parts.gradients,
    "noise_probes": parts.noise_probes,
}
"""The tables that localisers' files give."""


def _analyses(runs: list[Found]) -> "dict[str, pd.DataFrame]":
    found: dict[str, list[Any]] = {name: [] for t in ANALYSES.values() for name in t.values()}
    for run in runs:
        for file, tables in ANALYSES.items():
            path = run.run.folder / "analyse" / f"{file}.parquet"
            if path.is_file():
                for inside, table in read_tables(path, list(tables)).items():
                    found[tables[inside]].append((run.key, *table))
    return {name: _analysed(name, tables) for name, tables in found.items()}


def _analysed(name: str, tables: list[Any]) -> "pd.DataFrame":
    import pyarrow as pa

    if not tables:
        return stacked(name, [])
    keys, rows, types = zip(*tables, strict=True)
    whole = pa.concat_tables(rows, promote_options="permissive").to_pandas().astype(types[0])
    return keyed(name, whole, keys, [part.num_rows for part in rows])


def _summary(name: str, file: Path) -> "pd.DataFrame":
    path = file.with_suffix(".parquet")
    if not path.is_file():
        return stacked(name, [])
    table, _ = read_table(path)
    lacking = sorted(set(COLUMNS[name]) - set(table.columns))
    if lacking:
        raise StoreError(f"{path} has no column {lacking[0]}; `memloc control` writes it anew.")
    return table[list(COLUMNS[name])]


def _rows(table: "pd.DataFrame", values: Mapping[str, object]) -> "pd.DataFrame":
    for name, value in values.items():
        if name in table.columns:
            table = table[table[name] == value]
    return table.reset_index(drop=True)
