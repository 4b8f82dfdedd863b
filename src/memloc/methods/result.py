"""What a method found: tidy tables by name, and how they came to be; one Parquet file per table."""

import json
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from memloc.arrays import (
    BoolArray,
    FloatArray,
    IntArray,
    Table,
)
from memloc.errors import ScoreError, StoreError
from memloc.seeds import generator
from memloc.stats.depth import centre_of_gravity
from memloc.stats.intervals import Interval, window_intervals
from memloc.stats.verdicts import (
    Answer,
    Evidence,
    LayerVerdict,
    cannot_tell,
    judge,
    judge_weights,
    line_shares,
)
from memloc.stats.windows import (
    full_window,
    normalised,
    window_matrix,
    windows_between,
)
from memloc.store import paths
from memloc.store.files import whole_folder
from memloc.store.records import (
    as_stored,
    as_table,
    read_columns,
    read_json,
    write_json,
    write_table,
)

MCOG = ("mcog", "low", "high", "level", "dropped")
"""Columns of the table of the centre of gravity, in the order of an interval's fields."""


@dataclass(frozen=True)
class Result:
    """The tables of one method, by name."""

    method: str
    tables: Mapping[str, Table]
    about: dict[str, Any] = field(default_factory=dict)
    """Settings, inputs and remarks."""

    def __getitem__(self, table: str) -> Table:
        return self.tables[table]

    @property
    def remarks(self) -> list[str]:
        """What is unusual about the data, one sentence each."""
        return list(self.about.get("remarks", []))

    def write(self, folder: Path) -> None:
        """One file per table and one about all of them; the folder is whole or absent."""
        with whole_folder(folder) as draft:
            for name, table in self.tables.items():
                write_table(paths.table(draft, name), table, origin(self.method, name, self.about))
            about = {"method": self.method, "tables": list(self.tables), "about": self.about}
            write_json(draft / paths.ABOUT, about)

    @staticmethod
    def read(folder: Path) -> "Result":
        """What `write` wrote; scores of layers as such."""
        record = read_about(folder)
        tables = {}
        for name in record["tables"]:
            with as_stored(paths.table(folder, name)):
                tables[name] = stored_table(folder, record, name).to_pandas()
        if not {"layers", "mcog"} <= set(tables):
            return Result(record["method"], tables, record["about"])
        found = LayerScores(record["method"], tables, record["about"])
        with as_stored(folder):
            # What all scores of layers have.
            _ = found.weights, found.low, found.high, found.mcog, found.matrix()
            if (stored := found.about.get("verdict")) is not None:
                LayerVerdict.of(stored)
        return found


def origin(method: str, table: str, about: Mapping[str, Any]) -> dict[str, Any]:
    """What a table's file says of itself, so that no other one is taken for it."""
    return {"method": method, "table": table, "identity": about.get("identity", "")}


def stored_table(folder: Path, record: Mapping[str, Any], table: str) -> Any:
    """A table, by Arrow, of the result that `record` is about; one of another run is refused."""
    found = read_columns(paths.table(folder, table))
    note = json.loads(found.schema.metadata[b"memloc"])
    wanted = origin(record["method"], table, record["about"])
    if any(note.get(name) != value for name, value in wanted.items()):
        raise StoreError(
            f"{folder / table}.parquet is another table than its name and {paths.ABOUT} say: "
            f"delete {folder} and run the method again."
        )
    return found


def read_about(folder: Path) -> dict[str, Any]:
    """What was written about a result: `method`, the names of its `tables`, and `about`."""
    record = read_json(folder / paths.ABOUT)
    kinds = {"method": str, "tables": list, "about": dict}
    whole = all(isinstance(record.get(name), kind) for name, kind in kinds.items())
    there = {path.stem for path in folder.glob("*.parquet")}
    if not whole or not there <= set(map(str, record["tables"])):
        raise StoreError(f"{folder} is damaged: delete it and run the method again.")
    return record


def events_of(method: str, table: Table) -> "Table | None":
    """A table of events with all that is said of them; None if it is of something else.

    Whoever makes one gives `event` and `layer` (NaN: never), and more only where it is known.
    """
    usual: dict[str, Any] = {"source": method, "variant": "plain", "separable": True}
    usual |= dict.fromkeys(("low", "high", "never"), np.nan)
    whole = table.assign(**{name: usual[name] for name in usual if name not in table})
    try:
        return whole[list(EVENTS)].astype(EVENTS)
    except (KeyError, TypeError, ValueError):
        return None


EVENTS: dict[str, Any] = {
    **dict.fromkeys(("source", "variant", "event"), str),
    **dict.fromkeys(("layer", "low", "high", "never"), np.float64),
    "separable": bool,
}
"""The columns of a table of events."""


@dataclass(frozen=True)
class Outcomes:
    """For every window and example: is the label it should have no longer predicted?"""

    windows: tuple[range, ...]
    rows: IntArray
    """(examples,): noisy ones first."""
    is_noisy: BoolArray
    wrong: BoolArray
    """(examples, windows): the assigned label is not predicted."""
    missed: BoolArray
    """(examples,): the unchanged model does not predict it either."""

    @property
    def noisy_rows(self) -> IntArray:
        """(noisy examples,)."""
        return self.rows[self.is_noisy]

    @property
    def noisy_wrong(self) -> BoolArray:
        """(noisy examples, windows)."""
        return self.wrong[self.is_noisy]

    @property
    def lost(self) -> BoolArray:
        """What windows lose, (examples, windows): a label never learnt cannot be lost."""
        return self.wrong & ~self.missed[:, np.newaxis]

    @property
    def errors(self) -> FloatArray:
        """Memorisation error of each window."""
        return np.asarray(self.noisy_wrong.mean(0), dtype=np.float64)

    @property
    def clean_errors(self) -> FloatArray:
        """Clean error of each window; NaN without clean examples."""
        if self.is_noisy.all():
            return np.full(len(self.windows), np.nan)
        return np.asarray(self.wrong[~self.is_noisy].mean(0), dtype=np.float64)


class LayerScores(Result):
    """A weight for each layer, with intervals, and what they were computed from.

    Tables: `layers` (weights), `mcog`, and for methods that change windows of layers `windows`
    (errors) and `outcomes` (one row per example and window).
    """

    @classmethod
    def of(
        cls,
        method: str,
        weights: FloatArray,
        ends: tuple[FloatArray, FloatArray] | None = None,
        mcog: Interval | None = None,
        *,
        tables: Mapping[str, Table] | None = None,
        about: dict[str, Any] | None = None,
    ) -> "LayerScores":
        """From weights (layers,), with the ends of their intervals and their centre if known.

        Without `ends` there are no intervals (NaN); without `mcog` it is computed.
        """
        low, high = ends or (np.nan, np.nan)
        mcog = mcog or Interval(centre_of_gravity(weights), np.nan, np.nan)
        layers = {"layer": np.arange(1, len(weights) + 1), "weight": weights}
        own = {
            "layers": as_table({**layers, "low": low, "high": high}),
            "mcog": as_table([dict(zip(MCOG, astuple(mcog), strict=True))]),
        }
        return cls(method, {**own, **(tables or {})}, about or {})

    @property
    def weights(self) -> FloatArray:
        """The weight of each layer, (layers,)."""
        return self._column("weight")

    @property
    def low(self) -> FloatArray:
        """Lower ends of the weights' intervals; NaN where a method gives none."""
        return self._column("low")

    @property
    def high(self) -> FloatArray:
        """Upper ends of the weights' intervals."""
        return self._column("high")

    @property
    def mcog(self) -> Interval:
        """Centre of gravity of the weights, layers counted from 1."""
        estimate, low, high, level, dropped = map(float, self["mcog"].loc[0, list(MCOG)])
        return Interval(estimate, low, high, level, int(dropped))

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self["layers"])

    @property
    def outcomes(self) -> Outcomes | None:
        """For methods that change windows of layers."""
        if "outcomes" not in self.tables:
            return None
        return outcomes_from(self["outcomes"])

    @property
    def verdict(self) -> LayerVerdict:
        """Whether it is localised, spread, or cannot be told, and why; as stored, or computed."""
        stored = self.about.get("verdict")
        return self.judged() if stored is None else LayerVerdict.of(stored)

    def judged(
        self, *, n_classes: int | None = None, null: "LayerScores | None" = None
    ) -> LayerVerdict:
        """The verdict, from the tables.

        `null` is what the method found where another reference is swapped into the reference, so
        that only what is undone beyond that counts.
        """
        try:
            found = self._evidence()
        except ScoreError as error:
            return cannot_tell(str(error))
        if found is None:
            return judge_weights(self.method, self.weights)
        examples, evidence = found
        if null is not None:
            other = null._evidence()
            if other is None or not np.array_equal(examples, other[0]):
                raise ScoreError(
                    f"The null is of {null.method} and of other noisy examples: swap the other "
                    f"reference into the reference of the same run, with {self.method}."
                )
            evidence = replace(evidence, elsewhere=other[1].shares.sum(1))
        return judge(replace(evidence, n_classes=n_classes), self.method)

    def with_verdict(self, **more: Any) -> "LayerScores":
        """The same with its verdict, as it is stored: in `about`, and its answers as a table."""
        verdict = self.judged(**more)
        names = [field.name for field in fields(Answer)]
        answers = as_table([asdict(answer) for answer in verdict.answers], columns=names)
        answers = answers.astype({"low": np.float64, "high": np.float64})
        tables = {**self.tables, "verdict": answers}
        return replace(self, tables=tables, about={**self.about, "verdict": verdict.record()})

    def _evidence(self) -> tuple[IntArray, Evidence] | None:
        """The noisy examples where layers were changed, and what is known of each of them.

        Exactly, or by windows.
        """
        if "example_shares" in self.tables:
            if "labels" not in self.tables:
                raise ScoreError("the result is of an earlier version: run the method again")
            labels, table = self["labels"], self["example_shares"]
            is_noisy, lost = labels["is_noisy"].to_numpy(), labels["lost"].to_numpy(np.float64)
            margins = labels["margin"].to_numpy(np.float64)
            sets = self["subsets"]["lost"].to_numpy(np.float64) if self.about.get("exact") else None
            examples = labels["example"].to_numpy(np.int64)[is_noisy]
            lost_by = table.pivot_table("lost", "example", "layer", aggfunc="sum", sort=False)
            by_example = lost_by.loc[examples].sort_index(axis=1).to_numpy(np.float64)
            return examples, Evidence(by_example, lost[~is_noisy], margins, sets=sets)
        if (found := self.outcomes) is None:
            return None
        shares = line_shares(found.lost[found.is_noisy], self.depth, found.windows)
        clean = found.lost[~found.is_noisy, full_window(self.depth, found.windows)]
        return found.noisy_rows, Evidence(shares, clean.astype(np.float64))

    def matrix(self) -> FloatArray | None:
        """The window matrix (width, layer) of memorisation errors, normalised like the weights."""
        if "windows" not in self.tables:
            return None
        table = self["windows"]
        known = windows_between(table["first"], table["last"])
        return window_matrix(table["normalised"].to_numpy(np.float64), self.depth, known)

    def _column(self, name: str) -> FloatArray:
        return self["layers"][name].to_numpy(np.float64)


def from_outcomes(
    method: str, outcomes: Outcomes, depth: int, *, normalise: bool, about: dict[str, Any]
) -> LayerScores:
    """Scores of a method that changes windows: errors, window matrix, weights, intervals."""
    weights, mcog = window_intervals(
        outcomes.noisy_wrong,
        depth,
        normalise=normalise,
        rng=generator(0, "bootstrap", method),
        known=outcomes.windows,
    )
    errors = shares = outcomes.errors
    if normalise:
        shares = normalised(errors, full_window(depth, outcomes.windows))
    ends = {
        "first": np.array([window.start + 1 for window in outcomes.windows]),
        "last": np.array([window.stop for window in outcomes.windows]),
    }
    measured = {"error": errors, "clean_error": outcomes.clean_errors, "normalised": shares}
    n_noisy, n_windows = int(outcomes.is_noisy.sum()), len(outcomes.windows)
    # One row per example and window, example by example.
    by_example = {
        "example": np.repeat(outcomes.rows.astype(np.int32), n_windows),
        "is_noisy": np.repeat(outcomes.is_noisy, n_windows),
        **{name: np.tile(end.astype(np.int16), len(outcomes.rows)) for name, end in ends.items()},
        "wrong": outcomes.wrong.ravel(),
        "missed": np.repeat(outcomes.missed, n_windows),
    }
    tables = {
        "windows": as_table({**ends, **measured, "n_noisy": n_noisy}),
        "outcomes": as_table(by_example),
    }
    band = weights.low, weights.high
    return LayerScores.of(method, weights.estimate, band, mcog, tables=tables, about=about)


def outcomes_from(table: Table) -> Outcomes:
    """The matrices that a table of outcomes was made from."""
    ends = table[["first", "last"]].drop_duplicates()
    known = tuple(windows_between(ends["first"], ends["last"]))
    names = ("example", "is_noisy", "wrong", "missed")
    rows, is_noisy, wrong, missed = (table[n].to_numpy().reshape(-1, len(known)) for n in names)
    return Outcomes(known, rows[:, 0].astype(np.int64), is_noisy[:, 0], wrong, missed[:, 0])
