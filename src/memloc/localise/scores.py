"""What a localiser found: layer weights, what they were computed from, and a table of it all."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from memloc.errors import StoreError
from memloc.records import BoolArray, FloatArray, IntArray, as_stored, read_table, write_table
from memloc.score.matrix import full_window, normalised, window_matrix
from memloc.score.uncertainty import Interval, window_intervals
from memloc.seeds import generator

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Outcomes:
    """For every window and example: is the label it should have no longer predicted?"""

    windows: tuple[range, ...]
    noisy_rows: IntArray
    noisy_wrong: BoolArray
    """(noisy examples, windows): the assigned label is not predicted."""
    clean_rows: IntArray
    clean_wrong: BoolArray
    """(clean examples, windows)."""

    @property
    def errors(self) -> FloatArray:
        """Memorisation error of each window."""
        return np.asarray(self.noisy_wrong.mean(0), dtype=np.float64)

    @property
    def clean_errors(self) -> FloatArray:
        """Clean error of each window."""
        return np.asarray(self.clean_wrong.mean(0), dtype=np.float64)


@dataclass(frozen=True)
class LayerScores:
    """A weight a layer, with intervals, and what they were computed from."""

    method: str
    weights: FloatArray
    """(layers,)."""
    low: FloatArray
    """Lower ends of the weights' intervals; NaN where a method gives none."""
    high: FloatArray
    mcog: Interval
    """Centre of gravity of the weights, layers counted from 1."""
    outcomes: Outcomes | None = None
    """For methods that change windows of layers."""
    details: dict[str, FloatArray] = field(default_factory=dict)
    """Other numbers by name, one axis being layers."""
    about: dict[str, Any] = field(default_factory=dict)
    """Settings and provenance."""

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self.weights)

    def matrix(self) -> FloatArray | None:
        """The window matrix (width, layer) of memorisation errors, normalised like the weights."""
        if self.outcomes is None:
            return None
        errors = self.outcomes.errors
        if self.about.get("normalise"):
            errors = normalised(errors, full_window(self.depth, self.outcomes.windows))
        return window_matrix(errors, self.depth, self.outcomes.windows)

    def to_table(self) -> "pd.DataFrame":
        """Tidy: a row a number; the columns say which layer, window, example or item it is of."""
        import pandas as pd

        return pd.concat([*_frames(self)], ignore_index=True)[list(COLUMNS)].astype(COLUMNS)

    def write(self, path: Path) -> None:
        """Write the table, with settings and provenance inside."""
        write_table(path, self.to_table(), {"method": self.method, "scores": self.about})

    @classmethod
    def read(cls, path: Path) -> "LayerScores":
        """Read what `write` wrote."""
        table, note = read_table(path)
        if "method" not in note or list(table.columns) != list(COLUMNS):
            raise StoreError(f"{path} holds no layer scores.")
        with as_stored(path):
            return _read_scores(table, note)


def _read_scores(table: "pd.DataFrame", note: dict[str, Any]) -> LayerScores:
    parts = {str(name): part for name, part in table.groupby("quantity")}
    mcog = [float(_values(parts[name])[0]) for name in MCOG]
    level = float(note["scores"].get("level", 0.95))
    return LayerScores(
        method=note["method"],
        weights=_values(parts["weight"]),
        low=_values(parts["weight low"]),
        high=_values(parts["weight high"]),
        mcog=Interval(mcog[0], mcog[1], mcog[2], level, int(mcog[3])),
        outcomes=_read_outcomes(parts),
        details={
            name.removeprefix(DETAIL): _read_detail(part)
            for name, part in parts.items()
            if name.startswith(DETAIL)
        },
        about=note["scores"],
    )


def from_outcomes(
    method: str, outcomes: Outcomes, depth: int, *, normalise: bool, about: dict[str, Any]
) -> LayerScores:
    """Scores of a method that changes windows: errors, window matrix, weights, intervals."""
    found = window_intervals(
        outcomes.noisy_wrong,
        depth,
        normalise=normalise,
        rng=generator(0, "bootstrap", method),
        known=outcomes.windows,
    )
    return LayerScores(
        method=method,
        weights=found.weights.estimate,
        low=found.weights.low,
        high=found.weights.high,
        mcog=found.mcog,
        outcomes=outcomes,
        about={"normalise": normalise, "level": found.mcog.level, **about},
    )


COLUMNS = {
    "quantity": "str",
    "layer": "Int16",
    "first": "Int16",
    "last": "Int16",
    "example": "Int32",
    "item": "Int16",
    "value": "float64",
}
"""Layers are counted from 1 (0: before the first); `first` and `last` are a window's ends."""
DETAIL = "detail "
MCOG = ("mcog", "mcog low", "mcog high", "mcog resamples dropped")


def _frames(scores: LayerScores) -> "Iterator[pd.DataFrame]":
    layers = np.arange(1, scores.depth + 1)
    for name, values in (("", scores.weights), (" low", scores.low), (" high", scores.high)):
        yield _frame(f"weight{name}", values, layer=layers)
    mcog = scores.mcog
    for name, value in zip(MCOG, (mcog.estimate, mcog.low, mcog.high, mcog.n_dropped), strict=True):
        yield _frame(name, np.array([value]))
    for name, array in scores.details.items():
        flat = array.reshape(len(array), -1)
        layer, item = np.indices(flat.shape)
        # One more row than layers: the first is of what comes before the first layer.
        start = scores.depth + 1 - len(array)
        items = {"item": item.ravel()} if array.ndim > 1 else {}
        yield _frame(DETAIL + name, flat.ravel(), layer=layer.ravel() + start, **items)
    if scores.outcomes is not None:
        yield from _outcome_frames(scores.outcomes)


def _outcome_frames(outcomes: Outcomes) -> "Iterator[pd.DataFrame]":
    first = np.array([w.start + 1 for w in outcomes.windows])
    last = np.array([w.stop for w in outcomes.windows])
    for name, rows, wrong in (
        ("noisy wrong", outcomes.noisy_rows, outcomes.noisy_wrong),
        ("clean wrong", outcomes.clean_rows, outcomes.clean_wrong),
    ):
        example, window = (index.ravel() for index in np.indices(wrong.shape))
        places = {"first": first[window], "last": last[window]}
        yield _frame(name, wrong.ravel(), example=rows[example], **places)


def _frame(quantity: str, values: NDArray[Any], **places: IntArray) -> "pd.DataFrame":
    import pandas as pd

    empty = {name: pd.NA for name in COLUMNS if name not in places}
    return pd.DataFrame({**empty, **places, "value": values.astype(float), "quantity": quantity})


def _values(part: "pd.DataFrame") -> FloatArray:
    return part["value"].to_numpy(np.float64)


def _read_detail(part: "pd.DataFrame") -> FloatArray:
    values = _values(part)
    return values if part["item"].isna().all() else values.reshape(part["layer"].nunique(), -1)


def _read_outcomes(parts: "dict[str, pd.DataFrame]") -> Outcomes | None:
    if "noisy wrong" not in parts:
        return None
    ends = parts["noisy wrong"][["first", "last"]].drop_duplicates()
    windows = tuple(range(int(a) - 1, int(b)) for a, b in ends.itertuples(index=False))
    noisy_rows, noisy_wrong = _read_wrong(parts.get("noisy wrong"), len(windows))
    clean_rows, clean_wrong = _read_wrong(parts.get("clean wrong"), len(windows))
    return Outcomes(windows, noisy_rows, noisy_wrong, clean_rows, clean_wrong)


def _read_wrong(part: "pd.DataFrame | None", n_windows: int) -> tuple[IntArray, BoolArray]:
    if part is None:
        return np.zeros(0, np.int64), np.zeros((0, n_windows), bool)
    rows = part["example"].to_numpy(np.int64).reshape(-1, n_windows)[:, 0]
    return rows, _values(part).astype(bool).reshape(-1, n_windows)
