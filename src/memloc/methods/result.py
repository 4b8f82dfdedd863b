"""Results of methods: tidy tables by name, with their provenance; one Parquet file per table."""

import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from memloc.arrays import BoolArray, FloatArray, IntArray, Table
from memloc.display import Card, Plotted
from memloc.errors import ScoreError, StoreError
from memloc.seeds import generator
from memloc.stats.answers import Answer, Evidence, answer, answer_weights, cannot_tell, line_shares
from memloc.stats.depth import centre_of_gravity
from memloc.stats.intervals import Interval, window_intervals
from memloc.stats.subsets import LEAST_KEPT
from memloc.stats.windows import full_window, normalised, window_matrix, windows_between
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
class Outcomes:
    """For every window and example: whether the label that should be predicted is lost."""

    windows: tuple[range, ...]
    rows: IntArray
    """(examples,): rows of the examples, noisy ones first."""
    is_noisy: BoolArray
    wrong: BoolArray
    """(examples, windows): whether the assigned label is not predicted."""
    missed: BoolArray
    """(examples,): whether the unchanged model does not predict it either."""
    margin: FloatArray
    """(examples,): logit of the label minus the largest other one, in the unchanged model."""

    @property
    def noisy_rows(self) -> IntArray:
        """(noisy examples,): rows of the noisy examples."""
        return self.rows[self.is_noisy]

    @property
    def noisy_wrong(self) -> BoolArray:
        """(noisy examples, windows): whether the assigned label is not predicted."""
        return self.wrong[self.is_noisy]

    @property
    def lost(self) -> BoolArray:
        """(examples, windows): whether a window loses the label; labels never learnt cannot be
        lost.
        """
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


@dataclass(frozen=True, repr=False)
class Result(Plotted):
    """Tables of one method, by name, with their provenance.

    Methods that weigh layers have the tables `layers` (with a `weight` and the ends of its
    interval) and `mcog`; those that change windows of layers also have `windows` (errors) and
    `outcomes` (one row per example and window).
    """

    method: str
    tables: Mapping[str, Table]
    about: dict[str, Any] = field(default_factory=dict)
    """Settings, inputs, remarks and the answer."""

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
    ) -> "Result":
        """Return the result of a method that weighs layers.

        Args:
            method: Name of the method.
            weights: One per layer.
            ends: Lower and upper ends of the weights' intervals; unknown by default.
            mcog: Centre of gravity of the weights; computed by default.
            tables: Further tables, by name.
            about: Settings, inputs and remarks.
        """
        low, high = ends or (np.nan, np.nan)
        mcog = mcog or Interval(centre_of_gravity(weights), np.nan, np.nan)
        layers = {"layer": np.arange(1, len(weights) + 1), "weight": weights}
        tables_of_weights = {
            "layers": as_table({**layers, "low": low, "high": high}),
            "mcog": as_table([dict(zip(MCOG, astuple(mcog), strict=True))]),
        }
        return cls(method, {**tables_of_weights, **(tables or {})}, about or {})

    def __getitem__(self, name: str) -> Table:
        return self.tables[name]

    @property
    def table(self) -> Table:
        """Table of layers; for an analysis without one, its first table."""
        return self.tables.get("layers", next(iter(self.tables.values())))

    @property
    def scores(self) -> dict[int, float]:
        """Weight of each layer by its number, counted from 1."""
        return dict(enumerate(map(float, self.weights), start=1))

    def card(self) -> Card:
        """Return the answer with its strip of layers; for an analysis, its tables."""
        title = " of ".join(filter(None, (self.method, self.about.get("run", ""))))
        rows = self.table.head(3).to_dict("records")
        if not self.weighs_layers:
            sizes = [f"{name} ({len(table):,} rows)" for name, table in self.tables.items()]
            return Card(title, [f"tables: {', '.join(sizes)}", *self.remarks], rows=rows)
        top = self.table.sort_values("weight", ascending=False, kind="stable").head(3)
        sentences = [str(self.answer), *self.remarks]
        return Card(title, sentences, self.weights.tolist(), top.to_dict("records"))

    @property
    def remarks(self) -> list[str]:
        """Sentences on what is unusual in the data."""
        return list(self.about.get("remarks", []))

    @property
    def weighs_layers(self) -> bool:
        """Return whether the result has a weight for each layer."""
        return {"layers", "mcog"} <= set(self.tables)

    @property
    def can_mix(self) -> bool:
        """Return whether enough clean labels survive in mixtures of the two models; true without
        mixtures.
        """
        return can_mix(self.about)

    @property
    def weights(self) -> FloatArray:
        """Weight of each layer, (layers,)."""
        return self._column("weight")

    @property
    def low(self) -> FloatArray:
        """Lower ends of the weights' intervals; NaN if the method gives none."""
        return self._column("low")

    @property
    def high(self) -> FloatArray:
        """Upper ends of the weights' intervals; NaN if the method gives none."""
        return self._column("high")

    @property
    def mcog(self) -> Interval:
        """Centre of gravity of the weights, layers counted from 1."""
        self._check_weights()
        estimate, low, high, level, dropped = map(float, self["mcog"].loc[0, list(MCOG)])
        return Interval(estimate, low, high, level, int(dropped))

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self.weights)

    @property
    def outcomes(self) -> Outcomes | None:
        """Lost labels by window, for methods that change windows of layers."""
        if "outcomes" not in self.tables:
            return None
        return outcomes_from(self["outcomes"])

    def matrix(self) -> FloatArray | None:
        """Return the window matrix (width, layer) of memorisation errors, normalised like the
        weights.
        """
        if "windows" not in self.tables:
            return None
        table = self["windows"]
        known = windows_between(table["first"], table["last"])
        return window_matrix(table["normalised"].to_numpy(np.float64), self.depth, known)

    @property
    def answer(self) -> Answer:
        """Answer with its certainty and one word for it, as stored or computed now."""
        stored = self.about.get("answer")
        return self.answered() if stored is None else Answer.of(stored)

    def answered(self, *, n_classes: int | None = None, null: "Result | None" = None) -> Answer:
        """Compute the answer from the tables.

        `null` is the method's result where a second reference is put into the first one: what that
        undoes is no memory, so only what is undone beyond it counts.
        """
        if not self.can_mix:
            kept = self.about["control"]["kept"]
            return cannot_tell(
                f"the two models are too far apart to be mixed: {kept:.0%} of the clean labels "
                f"survive in mixtures, and {LEAST_KEPT:.0%} are needed; try another donor"
            )
        try:
            measured = self.evidence()
        except ScoreError as error:
            return cannot_tell(str(error))
        if measured is None:
            return answer_weights(self.method, self.weights)
        examples, evidence = measured
        if null is not None:
            other = null.evidence()
            if other is None or not np.array_equal(examples, other[0]):
                raise ScoreError(
                    f"The null is of {null.method} and of other noisy examples: swap the other "
                    f"reference into the reference of the same run, with {self.method}."
                )
            evidence = replace(evidence, elsewhere=other[1].shares.sum(1))
        return answer(replace(evidence, n_classes=n_classes), self.method)

    def with_answer(self, **more: Any) -> "Result":
        """Return this result with its answer in `about`, as it is stored."""
        return replace(self, about={**self.about, "answer": self.answered(**more).record()})

    def evidence(self) -> tuple[IntArray, Evidence] | None:
        """Return the noisy examples and their measurements; None if no layers were exchanged.

        Shares of layers are exact if the method used subsets of layers, and come from windows
        otherwise.
        """
        if "example_shares" in self.tables:
            labels, table = self["labels"], self["example_shares"]
            is_noisy = labels["is_noisy"].to_numpy()
            shares = table["lost"].to_numpy(np.float64).reshape(int(is_noisy.sum()), -1)
            lost = labels["lost"].to_numpy(np.float64)
            margins = labels["margin"].to_numpy(np.float64)
            examples = labels["example"].to_numpy(np.int64)[is_noisy]
            return examples, Evidence(shares, lost[~is_noisy], margins)
        if (outcomes := self.outcomes) is None:
            return None
        shares = line_shares(outcomes.lost[outcomes.is_noisy], self.depth, outcomes.windows)
        clean = outcomes.lost[~outcomes.is_noisy, full_window(self.depth, outcomes.windows)]
        margins = np.concatenate(
            [outcomes.margin[outcomes.is_noisy], outcomes.margin[~outcomes.is_noisy]]
        )
        return outcomes.noisy_rows, Evidence(shares, clean.astype(np.float64), margins)

    def write(self, folder: Path) -> None:
        """Write one file per table and one with the provenance; the folder is written whole or not
        at all.
        """
        with whole_folder(folder) as draft:
            for name, table in self.tables.items():
                write_table(paths.table(draft, name), table, origin(self.method, name, self.about))
            about = {"method": self.method, "tables": list(self.tables), "about": self.about}
            write_json(draft / paths.ABOUT, about)

    @staticmethod
    def read(folder: Path) -> "Result":
        """Read a result that `write` wrote."""
        record = read_about(folder)
        tables = {}
        for name in record["tables"]:
            with as_stored(paths.table(folder, name)):
                tables[name] = stored_table(folder, record, name).to_pandas()
        result = Result(record["method"], tables, record["about"])
        if result.weighs_layers:
            with as_stored(folder):  # a damaged table is named now, not when it is used
                _ = result.weights, result.low, result.high, result.mcog, result.matrix()
                if "answer" in result.about:
                    _ = result.answer
        return result

    def _column(self, name: str) -> FloatArray:
        self._check_weights()
        return self["layers"][name].to_numpy(np.float64)

    def _check_weights(self) -> None:
        if not self.weighs_layers:
            raise ScoreError(
                f"{self.method} weighs no layers: it has the tables {', '.join(self.tables)}."
            )


def can_mix(about: Mapping[str, Any]) -> bool:
    """Return whether a result's provenance says that enough clean labels survived in mixtures."""
    return not about.get("control", {}).get("kept", 1) < LEAST_KEPT


def origin(method: str, name: str, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the provenance written into a table's file, which tells it from tables of other
    runs.
    """
    return {"method": method, "table": name, "key": about.get("key", "")}


def stored_table(folder: Path, record: Mapping[str, Any], name: str) -> Any:
    """Return a stored table, read by Arrow; refuse it if it belongs to another result."""
    stored = read_columns(paths.table(folder, name))
    note = json.loads(stored.schema.metadata[b"memloc"])
    wanted = origin(record["method"], name, record["about"])
    if any(note.get(name) != value for name, value in wanted.items()):
        raise StoreError(
            f"{folder / name}.parquet is another table than its name and {paths.ABOUT} say: "
            f"delete {folder} and run the method again."
        )
    return stored


def read_about(folder: Path) -> dict[str, Any]:
    """Return what was written about a result: `method`, names of its `tables`, and `about`."""
    record = read_json(folder / paths.ABOUT)
    kinds = {"method": str, "tables": list, "about": dict}
    whole = all(isinstance(record.get(name), kind) for name, kind in kinds.items())
    stored = {path.stem for path in folder.glob(paths.ANY_TABLE)}
    if not whole or stored != set(map(str, record["tables"])):
        raise StoreError(f"{folder} is damaged: delete it and run the method again.")
    return record


def events_of(method: str, table: Table) -> "Table | None":
    """Return a table of events with every column of `EVENTS`; None if it is no table of events.

    A method gives `event` and `layer` (NaN: never), and more only where it is known.
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
"""Columns of a table of events."""


def from_outcomes(
    method: str, outcomes: Outcomes, depth: int, *, normalise: bool, about: dict[str, Any]
) -> Result:
    """Return the result of a method that changes windows: errors, window matrix, weights,
    intervals.

    Args:
        method: Name of the method.
        outcomes: Lost labels by example and window.
        depth: Number of layers.
        normalise: Whether the error of the full window counts as 1.0.
        about: Settings, inputs and remarks.
    """
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
    n_noisy = int(outcomes.is_noisy.sum())
    n_windows = len(outcomes.windows)
    # One row per example and window, example by example.
    by_example = {
        "example": np.repeat(outcomes.rows.astype(np.int32), n_windows),
        "is_noisy": np.repeat(outcomes.is_noisy, n_windows),
        **{name: np.tile(end.astype(np.int16), len(outcomes.rows)) for name, end in ends.items()},
        "wrong": outcomes.wrong.ravel(),
        "missed": np.repeat(outcomes.missed, n_windows),
        "margin": np.repeat(outcomes.margin.astype(np.float32), n_windows),
    }
    tables = {
        "windows": as_table({**ends, **measured, "n_noisy": n_noisy}),
        "outcomes": as_table(by_example),
    }
    band = weights.low, weights.high
    return Result.of(method, weights.estimate, band, mcog, tables=tables, about=about)


def outcomes_from(table: Table) -> Outcomes:
    """Return the matrices that a table of outcomes was made from."""
    ends = table[["first", "last"]].drop_duplicates()
    known = tuple(windows_between(ends["first"], ends["last"]))
    names = ("example", "is_noisy", "wrong", "missed", "margin")
    rows, is_noisy, wrong, missed, margin = (
        table[name].to_numpy().reshape(-1, len(known))[:, 0 if name != "wrong" else slice(None)]
        for name in names
    )
    return Outcomes(
        known, rows.astype(np.int64), is_noisy, wrong, missed, margin.astype(np.float64)
    )
