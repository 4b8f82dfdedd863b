"""Reads single examples: which layers hold their labels, and what changing layers does to them."""

import base64
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from memloc.arrays import BoolArray, FloatArray, IntArray
from memloc.methods.registry import by_reference
from memloc.methods.result import Outcomes, outcomes_from
from memloc.reporting.reading import join_parts, kept_files
from memloc.run.folder import Run
from memloc.stats.depth import centres_of_gravity
from memloc.stats.windows import layer_weights, window_matrix
from memloc.store import paths
from memloc.store.records import read_columns

if TYPE_CHECKING:
    from memloc.reporting.results import Results

NOISY = [("is_noisy", "==", True)]
MOST_DRAWN = 40
"""Largest number of rows in the figure of examples."""
MOST_LISTED = 2500
"""Largest number of noisy examples of one task on the page."""
LONGEST = 600
"""Largest number of characters of a text on the page."""


def examples_of(
    results: "Results", runs: pd.DataFrame, *, noisy_only: bool = False
) -> pd.DataFrame:
    """Return the training examples of some rows of `runs`, with labels by name."""
    opened = results.opened(runs)
    return join_parts("examples", [(key, _examples(run, noisy_only)) for key, run in opened])


def _examples(run: Run, noisy_only: bool) -> pd.DataFrame:
    wanted = [("split", "==", "train"), *(NOISY if noisy_only else [])]
    columns = ["row", "parts", "original", "assigned", "is_noisy"]
    read = read_columns(run.folder / paths.LABELS, columns, wanted)
    rows = read.to_pandas().sort_values("row", kind="stable")
    # The last name stands for labels that are not known before noise, and for those of texts.
    label_names = run.record.task.label_names
    names = np.array([*label_names, "not known" if label_names else "–"], dtype=object)
    return pd.DataFrame(
        {
            "example": rows["row"].to_numpy(np.int64),
            "text": [" ‖ ".join(parts) for parts in rows["parts"]],
            "original": names[rows["original"]],
            "assigned": names[rows["assigned"]],
            "is_noisy": rows["is_noisy"].to_numpy(bool),
        }
    )


def reverted(results: "Results") -> pd.DataFrame:
    """Return, for each noisy example and window, whether the assigned label is lost."""
    opened = results.opened(results["runs"])
    parts = [({**key, "method": m}, t) for key, run in opened for m, t in _reverted(run)]
    return join_parts("reverted", parts)


def _reverted(run: Run) -> Iterator[tuple[str, Any]]:
    """Yield, for each method that changes windows, the noisy examples that each window reverts."""
    for path in kept_files(run, paths.OUTCOMES):
        yield path.parent.name, read_columns(path, None, NOISY)


def outcomes_by_method(results: "Results", one_run: pd.DataFrame) -> dict[str, Outcomes]:
    """Return which windows revert which noisy example of one run, by trusted methods.

    The run is a row of `runs`.
    """
    ((_, opened),) = results.opened(one_run)
    left_out = _left_out(results, one_run)
    return {m: outcomes_from(t.to_pandas()) for m, t in _reverted(opened) if m not in left_out}


def shares_of(results: "Results", one_run: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the share of each layer in each noisy example of one run: (examples, layers from 1).

    Only methods count that divide the label's margin among all layers and can be trusted.
    """
    ((_, opened),) = results.opened(one_run)
    files = kept_files(opened, f"{EXAMPLE_SHARES}.parquet")
    left_out = _left_out(results, one_run)
    return {p.parent.name: _shares(read_columns(p)) for p in files if p.parent.name not in left_out}


EXAMPLE_SHARES = "example_shares"
"""Name of the table with the shares of single examples."""


def _shares(read: Any) -> pd.DataFrame:
    rows = read.to_pandas()
    table: pd.DataFrame = rows.pivot(index="example", columns="layer", values="share")
    whole = table.sum(axis=1)
    shares: pd.DataFrame = table.div(whole.where(whole > 0), axis=0)
    return shares


def _left_out(results: "Results", one_run: pd.DataFrame) -> set[str]:
    """Return the methods that need the reference, if it did not learn its own labels; else none."""
    names = ["task", "model", "seed"]
    return by_reference() if len(one_run[names].merge(results.unlearnt[names])) else set()


def example_layers(results: "Results") -> pd.DataFrame:
    """Return noisy examples by layer with their texts, for one seed and methods that change layers.

    For methods with windows, a cell is the example's own layer weight: the mean, over window
    widths, of the share of windows with that layer that revert the example. For shares, it is the
    layer's part of the label's margin. Examples are ordered from low layers to high ones; if there
    are many, a sample is drawn.
    """
    parts = []
    for run in results.first_runs:
        texts = examples_of(results, run, noisy_only=True).drop(columns="is_noisy")
        for method, outcomes in outcomes_by_method(results, run).items():
            weights = example_weights(outcomes.noisy_wrong, outcomes.windows)
            held = pd.DataFrame(weights, outcomes.noisy_rows, range(1, weights.shape[1] + 1))
            parts.append(_example_rows(method, held, texts).assign(quantity=WINDOWS))
        for method, shares in shares_of(results, run).items():
            parts.append(_example_rows(method, shares, texts).assign(quantity=SHARES))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


WINDOWS = "share of windows with the layer that revert the example"
SHARES = "share of the layer in the example"
"""Meaning of a cell in the figure of examples: for methods with windows, and for shares."""


def example_weights(wrong: BoolArray, known: Sequence[range]) -> FloatArray:
    """Return layer weights (n, L) from `wrong` (n, W): whether each window reverts each example."""
    depth = max(window.stop for window in known)
    return layer_weights(window_matrix(wrong.astype(np.float64), depth, known))


def spread(weights: FloatArray) -> IntArray:
    """Return rows of examples, sorted from low layers to high ones; if many, evenly spaced ones."""
    held = np.nan_to_num(weights).clip(0)
    order = np.argsort(centres_of_gravity(held), kind="stable")  # never reverted: NaN, last
    if len(order) > MOST_DRAWN:
        order = order[np.linspace(0, len(order) - 1, MOST_DRAWN).round().astype(int)]
    return order


def _example_rows(method: str, by_layer: pd.DataFrame, texts: pd.DataFrame) -> pd.DataFrame:
    """Return the share of each layer in each noisy label: one row per pair, with the text.

    Examples are chosen and ordered by `spread`.
    """
    chosen = by_layer.iloc[spread(by_layer.to_numpy())].rename_axis("example").reset_index()
    rows = chosen.melt("example", var_name="layer", value_name="share").astype({"layer": int})
    rows = rows.merge(texts, on="example")
    short = rows["text"].str.slice(0, 60) + "  #" + rows["example"].astype(str)
    return rows.assign(method=method, row=short)


def example_block(results: "Results", runs: "list[pd.DataFrame]") -> dict[str, Any] | None:
    """Return the noisy examples of one task for the page, with the results of each method.

    `runs` has one row of the table of runs for each model. None without noisy examples.
    """
    keys = ["example", "text", "original", "assigned"]
    texts = [examples_of(results, run, noisy_only=True)[keys] for run in runs]
    noisy = pd.concat(texts).drop_duplicates()
    if noisy.empty:
        return None
    shown = noisy.head(MOST_LISTED)
    labels = sorted({*shown["original"], *shown["assigned"]})
    place = {label: i for i, label in enumerate(labels)}
    rows = [[int(e), _cut(t), place[o], place[a]] for e, t, o, a in shown.itertuples(index=False)]
    numbered = shown.assign(place=np.arange(len(shown)))
    places = [
        texts_of_run.merge(numbered, on=keys).set_index("example")["place"]
        for texts_of_run in texts
    ]
    by_run = [_bits(results, run, mine) for run, mine in zip(runs, places, strict=True)]
    return {
        "labels": labels,
        "rows": rows,
        "left": len(noisy) - len(shown),
        "runs": [record for one in by_run for record in one],
    }


def _bits(results: "Results", one_run: pd.DataFrame, places: "pd.Series") -> list[dict[str, Any]]:
    """Return, for each method that changes layers, its results for the examples at `places`.

    These are either the windows that revert them, as bits, or the shares of the layers in their
    labels.
    """
    about = one_run.iloc[0]
    head = {"model": str(about["model"]), "seed": int(about["seed"])}
    blocks = []
    for method, outcomes in outcomes_by_method(results, one_run).items():
        kept = np.isin(outcomes.noisy_rows, places.index)
        bits = np.packbits(outcomes.noisy_wrong[kept]).tobytes()
        blocks.append(
            {
                **head,
                "method": method,
                "rows": places.loc[outcomes.noisy_rows[kept].tolist()].tolist(),
                "depth": int(about["depth"]),
                "windows": [[window.start + 1, window.stop] for window in outcomes.windows],
                "bits": base64.b64encode(bits).decode(),
            }
        )
    for method, shares in shares_of(results, one_run).items():
        some = shares[shares.index.isin(places.index)]
        percent = (100 * some.fillna(0)).round().astype(int).to_numpy().tolist()
        rows = places.loc[some.index].tolist()
        blocks.append({**head, "method": method, "rows": rows, "held": percent})
    return blocks


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} … ({len(text)} characters)"
