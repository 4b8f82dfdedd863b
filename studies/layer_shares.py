"""Shares of layers of two models that differ in one thing: rows of a table, and their figure."""

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from memloc.arrays import FloatArray
from memloc.methods.result import Result
from memloc.seeds import generator
from memloc.stats.depth import centres_of_gravity

RESAMPLES = 1000
NO_DIFFERENCE = (np.nan, np.nan, np.nan)
"""Of the first of both models, with which the second is compared."""


def cells(
    scores: Result, later: tuple[float, float, float] = NO_DIFFERENCE
) -> dict[str, str | float]:
    """Return the shares of a model, and by how much its centre is later than the other's."""
    return {
        "outcome": scores.answer.word,
        "layers": " ".join(map(str, scores.answer.layers)),
        **_ends("centre", scores.mcog.estimate, scores.mcog.low, scores.mcog.high),
        **_ends("later", *later),
        **{f"share_{i}": round(float(s), 4) for i, s in enumerate(scores.weights, 1)},
        **{f"low_{i}": round(float(s), 4) for i, s in enumerate(scores.low, 1)},
        **{f"high_{i}": round(float(s), 4) for i, s in enumerate(scores.high, 1)},
    }


def by_example(scores: Result) -> FloatArray:
    """(wrong labels, layers): what each layer holds of each."""
    found = scores.evidence()
    assert found is not None
    return found[1].shares


def difference(first: FloatArray, second: FloatArray) -> tuple[float, float, float]:
    """By how much the second model's centre is later than the first's, with a 95 % interval.

    Texts are resampled, each with what both models hold of its label.
    """
    rng, later = generator(0, "bootstrap", "human errors"), []
    for _ in range(RESAMPLES):
        rows = rng.integers(len(first), size=len(first))
        later.append(_centre(second[rows]) - _centre(first[rows]))
    low, high = np.nanquantile(later, [0.025, 0.975])
    return float(_centre(second) - _centre(first)), float(low), float(high)


def _centre(lost: FloatArray) -> FloatArray:
    return centres_of_gravity(np.maximum(0, lost.mean(0)))


def _ends(name: str, value: float, low: float, high: float) -> dict[str, float]:
    return {name: round(value, 3), f"{name}_low": round(low, 3), f"{name}_high": round(high, 3)}


def keep(place: Path, rows: Sequence[Mapping[str, Any]], same: Sequence[str]) -> None:
    """Put rows into a stored table, in place of those with the same facts."""
    table = pd.DataFrame(rows)
    if place.is_file():
        old = pd.read_csv(place)
        is_new = pd.MultiIndex.from_frame(old[[*same]]).isin(
            pd.MultiIndex.from_frame(table[[*same]])
        )
        table = pd.concat([old[~is_new], table], ignore_index=True)
    table.to_csv(place, index=False)
    print([{name: row[name] for name in same} for row in rows], flush=True)


def interval(row: Mapping[Hashable, Any], name: str) -> str:
    """A number with its interval, for people."""
    if pd.isna(row[name]):
        return "–"
    return f"{row[name]:.2f} [{row[f'{name}_low']:.2f}, {row[f'{name}_high']:.2f}]"


def figure(table: pd.DataFrame, by: str) -> dict[str, Any]:
    """Shares of layers with intervals over texts: one panel per model and seed, a line per `by`."""
    rows = []
    for row in table.to_dict("records"):
        for layer in range(1, sum(str(name).startswith("share_") for name in row) + 1):
            ends = {end: row[f"{end}_{layer}"] for end in ("share", "low", "high")}
            seed = f"{row['model']}, seed {row['seed']}"
            rows.append({"seed": seed, by: row[by], **ends, "layer": layer})
    x = {"field": "layer", "type": "quantitative", "axis": {"tickMinStep": 1}}
    share = {"type": "quantitative", "title": "share of the wrong labels"}
    color = {"field": by, "title": None}
    band = {"x": x, "y": {**share, "field": "low"}, "y2": {"field": "high"}, "color": color}
    line = {"x": x, "y": {**share, "field": "share"}, "color": color}
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "data": {"values": rows},
        "facet": {"field": "seed", "title": None},
        "columns": 2,
        "spec": {
            "width": 300,
            "height": 180,
            "layer": [
                {"mark": {"type": "area", "opacity": 0.2}, "encoding": band},
                {"mark": "line", "encoding": line},
            ],
        },
    }
