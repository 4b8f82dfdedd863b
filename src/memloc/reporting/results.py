"""Holds the tables of many runs that the report, figures and tables show."""

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from memloc.display import MOST_ROWS, Card, Shown
from memloc.errors import (
    MemlocWarning,
    StoreError,
    UnknownName,
    checked_arguments,
    counted,
    lookup,
)
from memloc.methods.protocol import Protocol, preset, protocol_of_study, study_values
from memloc.methods.registry import by_reference, method_names
from memloc.reporting.derived import RUN, derived, usual_depth
from memloc.reporting.reading import COLUMNS, KEY, Row, commands, find_runs, read_tables
from memloc.run.folder import Run
from memloc.run.records import RunRecord
from memloc.stats import claims
from memloc.stats.claims import BINARY, POINT
from memloc.store import paths
from memloc.store.records import as_path, as_stored, read_columns

READ = tuple(name for name in COLUMNS if name not in derived())
"""Tables that are read at once; the others are derived from them when needed."""
Which = Literal["all", "memorised", "whole", "usual"]
"""Runs of a table: all; those that memorised; of them, those of whole tasks, not of binarised
ones; of these, those of models that are as deep as most."""


@dataclass(frozen=True, repr=False)
class Results(Shown):
    """The tidy tables of a study; each can be read as an attribute, such as `results.layers`.

    Tables that are read have their columns even without rows. Derived tables are computed when
    first used, and kept.
    """

    folder: Path
    protocol: Protocol
    """Settings of the study; without a study's file, the preset of the first run."""
    tables: Mapping[str, pd.DataFrame]
    """Tables by name: memloc's own, and those of other packages' methods."""
    commands: tuple[str, ...] = ()
    """Recorded commands, in the order for repeating them."""
    asked: frozenset[str] | None = None
    """Methods named in the study's file; None without a file."""
    _derived: dict[str, pd.DataFrame] = field(default_factory=dict, init=False, repr=False)

    def __getitem__(self, name: str) -> pd.DataFrame:
        if name in self.tables:
            return self.tables[name]
        if name not in self._derived:
            table = lookup("table", name, derived())(self)
            self._derived[name] = table.reindex(columns=COLUMNS[name]) if name in COLUMNS else table
        return self._derived[name]

    def __getattr__(self, name: str) -> pd.DataFrame:
        tables: Mapping[str, pd.DataFrame] = vars(self).get("tables", {})
        if name not in tables and name not in derived():
            known = ", ".join([*tables, *derived()])
            raise AttributeError(f"There is no table {name!r}: there are {known}.")
        return self[name]

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.tables, *derived()]

    def card(self) -> Card:
        """Return what there is: the runs, and the names of the tables that have rows."""
        runs = self["runs"]
        memorised = int(runs["memorised"].astype(bool).sum())
        named = {what: runs[what].drop_duplicates().tolist() for what in ("task", "model")}
        facts = [f"{what}s: {', '.join(map(str, names))}" for what, names in named.items() if names]
        filled = [name for name, table in self.tables.items() if len(table)]
        rows = runs[["task", "model", "seed", "memorised", "noisy_accuracy"]].head(MOST_ROWS)
        return Card(
            f"{counted(len(runs), 'run')} in {self.folder}, {memorised:,} memorised",
            [*facts, f"tables: {', '.join(filled) or 'none'}"],
            rows=rows.to_dict("records"),
        )

    def with_tables(self, **tables: pd.DataFrame) -> "Results":
        """Return these results with the tables of these names replaced."""
        return replace(self, tables={**self.tables, **tables})

    def only(self, **values: object) -> "Results":
        """Return the results of one task, model or seed, e.g. `only(model="tiny-opt")`.

        A column or value that no table has is refused.
        """
        for column, value in values.items():
            self._require(column, value)

        def chosen(table: pd.DataFrame) -> pd.DataFrame:
            for column in values.keys() & set(table.columns):
                table = table[table[column] == values[column]]
            return table.reset_index(drop=True)

        return self.with_tables(**{name: chosen(table) for name, table in self.tables.items()})

    def _require(self, column: str, value: object) -> None:
        tables = [table for table in self.tables.values() if len(table.columns)]
        lookup("column", column, dict.fromkeys(str(c) for table in tables for c in table.columns))
        values_of = [table[column].dropna().unique() for table in tables if column in table.columns]
        known = list(dict.fromkeys(each for values in values_of for each in values.tolist()))
        if value not in known:
            lookup(column, value, dict.fromkeys(map(str, known)))
            raise UnknownName(f"No {column} is {value!r}: values of this column are no strings.")

    def part(self, name: str, runs: Which = "all") -> pd.DataFrame:
        """Return a table, or its rows for some of the runs."""
        if runs == "all":
            return self[name]
        table = self._memorised(name)
        if runs != "memorised":
            table = table[~table["task"].astype(str).str.endswith(BINARY)]
        return self.of_usual_depth(table) if runs == "usual" else table

    def memorised(self, name: str) -> pd.DataFrame:
        """Return a table without runs that did not memorise.

        Rows that depend on a reference that did not learn its own labels are left out as well.
        """
        return self.part(name, "memorised")

    def whole(self, name: str) -> pd.DataFrame:
        """Return a table of runs that memorised, without binarised tasks."""
        return self.part(name, "whole")

    def _memorised(self, name: str) -> pd.DataFrame:
        table = self[name]
        if table.empty:
            return table
        # Another package's table may have a column of any name: ours keeps this one.
        joined = table.merge(self._learnt[[*RUN, "unlearnt"]], on=RUN, suffixes=("_theirs", ""))
        decided: Any = joined.get("variant", "plain") != "plain"
        if "method" in joined:
            decided = joined["method"].isin(by_reference())
        joined = joined[~(joined.pop("unlearnt") & decided)].reset_index(drop=True)
        return self.weighed(joined) if name == "mcog" else joined

    def weighed(self, mcog: pd.DataFrame) -> pd.DataFrame:
        """Return a table of M-CoG as the protocol requires: per seed, or of mean weights."""
        if self.protocol.summary.mcog == "mean over seeds":
            return mcog
        return claims.weigh_mean_weights(mcog, self["layers"])

    def of_usual_depth(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return a table without models that have more or fewer layers than most."""
        runs = self["runs"]
        same = runs.loc[runs["depth"] == usual_depth(runs), "model"]
        return table[table["model"].isin(same)]

    @cached_property
    def _learnt(self) -> pd.DataFrame:
        """Runs that memorised, with whether their reference failed to learn its own labels."""
        runs = self["runs"]
        needed = self.protocol.verdict.noisy_at_least
        kept = runs[runs["memorised"].astype(bool)]
        return kept.assign(unlearnt=kept["reference_accuracy"] < needed)

    @property
    def unlearnt(self) -> pd.DataFrame:
        """Runs that memorised, but whose reference did not learn its own labels."""
        return self._learnt[self._learnt["unlearnt"].astype(bool)]

    @property
    def large(self) -> list[str]:
        """Models with more layers than most: those of the paper's appendix B."""
        runs = self["runs"]
        return list(dict.fromkeys(runs.loc[runs["depth"] > usual_depth(runs), "model"]))

    @property
    def first_runs(self) -> list[pd.DataFrame]:
        """One row of `runs` per task and model: the lowest seed among those that memorised."""
        rows = self._learnt.groupby(POINT, sort=False)["seed"].idxmin()
        return [self["runs"].loc[[row]] for row in rows]

    def opened(self, runs: pd.DataFrame) -> Iterator[tuple[Row, Run]]:
        """Open the runs of some rows of `runs`; yield each with its key."""
        for row in runs.to_dict("records"):
            yield {name: row[name] for name in KEY}, Run.open(self.folder / row["folder"])

    @cached_property
    def records(self) -> list[RunRecord]:
        """Records of the runs, in the order of `runs`."""
        return [run.record for _, run in self.opened(self["runs"])]

    @cached_property
    def versions(self) -> list[dict[str, str]]:
        """Versions of libraries that made the runs, each distinct set once."""
        files = [self.folder / folder / paths.LABELS for folder in self["runs"]["folder"]]
        notes = [json.loads(read_columns(p, []).schema.metadata[b"memloc"]) for p in files]
        versions = [note.get("versions", {}) for note in notes]
        return list(
            {tuple(note_versions.items()): note_versions for note_versions in versions}.values()
        )


@checked_arguments
def load_results(path: str | Path) -> Results:
    """Read the results in a study's folder, in `runs/` of `memloc train`, or in one run's folder.

    Args:
        path: The folder. All runs below it are read.
    """
    folder = as_path(path, "the folder of a study or run")
    if not folder.is_dir():
        raise StoreError(f"{folder} is not a folder: give a study, e.g. `runs`.")
    with as_stored(folder, "run again what was changed there"):
        runs = find_runs(folder)
        protocol = settings_of(folder, [keyed.run.record for keyed in runs])
        tables = {name: pd.DataFrame(columns=COLUMNS[name]) for name in READ}
        tables |= read_tables(folder, runs, protocol.verdict.noisy_at_least)
        return Results(folder, protocol, tables, tuple(commands(runs)), _asked(folder))


def _asked(folder: Path) -> frozenset[str] | None:
    values = study_values(folder)
    if values is None:
        return None
    usual = {"methods": method_names("localiser"), "analyses": method_names("analysis")}
    blocks = [{**usual, **values}, *(values.get("also") or ())]
    return frozenset(n for block in blocks for kind in usual for n in block.get(kind) or ())


COMPARING = {"verdict", "agreement", "summary"}
"""Groups of settings by which the results of several runs are combined."""


def settings_of(folder: Path, records: Sequence[RunRecord]) -> Protocol:
    """Return the settings of a study; without a study's file, the preset of the first run."""
    if (protocol := protocol_of_study(folder)) is not None:
        return protocol
    used = list(dict.fromkeys(record.spec.settings.preset for record in records)) or ["paper"]
    rules = [preset(name).model_dump(include=COMPARING) for name in used]
    if any(rule != rules[0] for rule in rules):
        warnings.warn(
            f"The runs in {folder} were made with the presets {' and '.join(used)}, and no study's "
            f"file says how to compare them: {used[0]} does. `memloc report` one folder for each.",
            MemlocWarning,
            stacklevel=2,
        )
    return preset(used[0])
