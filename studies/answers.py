"""The paper's findings beside ours, one row each: what opens docs/explanation/findings.md.

A mean is over tasks, each of which is a mean over its seeds; its interval is a t interval over
tasks. With fewer than five tasks there is none, and nothing is concluded. Coefficients are
corrected by Holm within their family: the rows on depth and a score, those on depth and the score
above the commonest label, those on layer weights, and those on events.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from memloc.reporting.derived import layers_to_undo
from memloc.reporting.results import Results
from memloc.stats import claims
from memloc.stats.intervals import Interval, t_ends

FEWEST = 5
"""Tasks from which on a mean, or a coefficient, has an interval."""
HOLDS, FAILS, UNKNOWN = "holds", "does not hold", "cannot tell"
SHARES = "M-CoG shares"
BY_PAPER, BY_SHARES = "By the paper's measures", "By exact shares"
COLUMNS = ["the paper's finding", "paper", "here", "p", "corrected p", "verdict"]
Cells = tuple[str, str, str, str]
"""A number with its interval, its p and Holm's, and the verdict on it."""
NOTHING: Cells = ("–", "–", "–", "–")
NOT_MEASURED: Cells = ("–", "–", "–", "not measured")


def answers(found: Results) -> dict[str, pd.DataFrame]:
    """Every finding with the paper's number, ours with its interval, and whether it holds."""
    rows = [*_amounts(found), *_depths(found), *_agreements(found), *_events(found)]
    ways = {BY_PAPER: 2, BY_SHARES: 3}
    missing = (NOTHING, NOT_MEASURED)
    return {
        title: pd.DataFrame([(*r[:2], *r[at]) for r in rows if r[at] != NOTHING], columns=COLUMNS)
        for title, at in ways.items()
        if any(r[at] not in missing for r in rows)
    }


Row = tuple[str, str, Cells, Cells]


def _amounts(found: Results) -> Iterator[Row]:
    windows = found.memorised("windows")
    windows = windows[windows["method"] == "swapping"]
    single = windows[windows["first"] == windows["last"]]
    shares = found.memorised("layers")
    shares = shares[shares["method"] == "shares"]
    runs = ["task", "model", "seed"]
    yield (
        "Changing a single layer undoes little",
        "mostly below .15",
        mean(single.groupby(runs)["error"].max(), 0, 0.15),
        NOTHING,
    )
    largest = mean(shares.groupby(runs)["weight"].max(), 0, 0.15)
    yield "A single layer holds little: the largest share", "below .15 if swapped", NOTHING, largest
    wide = layers_to_undo(windows).set_index(runs)["on_average"]
    yield "Layers that undo 90 %, on average", "7 to 10", mean(wide, 7, 10, ".1f"), NOTHING
    clean = windows.groupby(runs)["clean_error"].mean()
    yield "Swapping leaves clean examples alone", ".003", mean(clean, 0, 0.01, ".4f"), NOTHING


def _depths(found: Results) -> Iterator[Row]:
    depth = found.main_depths
    middle = (float(depth["layers"].max()) + 1) / 2 if len(depth) else np.nan
    of = {name: part.set_index("task")["depth"] for name, part in depth.groupby("measure")}
    none = pd.Series(dtype=float)
    yield (
        f"Early layers matter more: centre before {middle:.1f}",
        "5.2 to 6.4",
        mean(of.get("M-CoG", none), 0, middle),
        mean(of.get(SHARES, none), 0, middle),
    )
    if depth.empty:
        return
    runs, halves = found.memorised("runs"), found.memorised("generalisation")
    scores = claims.task_scores(runs, halves)
    found_of = _coefficients(depth, scores) | _coefficients(depth, scores, [SHARES])
    names = {"crossing": ".75 / .70", "memorisation": ".63 / .61", "M-CoG": ".56 / .54"}
    words = {"crossing": "crossing", "memorisation": "label probes", "M-CoG": "M-CoG"}
    for measure, paper in names.items():
        for score, number in zip(("generalisation", "validation"), paper.split(" / "), strict=True):
            exact = found_of[score, SHARES] if measure == "M-CoG" else NOTHING
            title = f"Deeper if {score} is better: {words[measure]}"
            yield title, f"ρ {number}", found_of[score, measure], exact
    # Where one label is frequent, always predicting it scores high.
    above = claims.task_scores(runs, halves.assign(score=halves["normalised"]))
    above = above[above["against"] == "generalisation"]
    events = ("crossing", "memorisation")
    found_of = _coefficients(depth, above, events)
    for measure in events:
        title = f"The same above the commonest label: {words[measure]}"
        yield title, "–", found_of["generalisation", measure], NOTHING


def _coefficients(
    depth: pd.DataFrame, scores: pd.DataFrame, measures: Sequence[str] = claims.TABLE_2
) -> dict[tuple[str, str], Cells]:
    """Coefficients of all models by score and measure of depth, which are one family."""
    table = claims.depth_and_generalisation(depth, scores, measures)
    of_all = table[table["model"] == claims.ALL].to_dict("records")
    return {(str(row["score"]), str(row["measure"])): rho(row) for row in of_all}


def _agreements(found: Results) -> Iterator[Row]:
    table = found.agreement
    if table.empty:
        return
    table = table[(table["between"] == "methods") & (table["what"] == "layer weights")]
    of = {frozenset((str(r["one"]), str(r["other"]))): rho(r) for r in table.to_dict("records")}
    for other, number in (("gradients", ".68"), ("probing", ".32"), ("retraining", ".91")):
        for one in ("swapping", "shares"):
            cells = of.get(frozenset((one, other)), NOTHING)
            both = (NOTHING, cells) if one == "shares" else (cells, NOTHING)
            paper = f"ρ {number}" if one == "swapping" else f"ρ {number} (swapping)"
            yield f"Layer weights of {one} and {other} agree", paper, *both


def _events(found: Results) -> Iterator[Row]:
    table = found.event_agreement
    if table.empty:
        return
    rows = table[table["model"] == claims.ALL].to_dict("records")
    for row, number in zip(rows, (".84", ".73"), strict=True):
        title = f"Centroids and probes agree: {row['one']}, {row['other']}"
        yield title, f"ρ {number}", rho(row), NOTHING


def mean(values: "pd.Series[float]", low: float, high: float, form: str = ".2f") -> Cells:
    """The mean over tasks, and whether its interval is within the bounds, outside, or neither."""
    tasks = values.dropna().groupby(level="task").mean() if len(values) else values
    if tasks.empty:
        return NOTHING
    if len(tasks) < FEWEST:
        return f"{tasks.mean():{form}}", "–", "–", UNKNOWN
    ends = np.maximum(t_ends(np.asarray(tasks, dtype=np.float64)), 0)  # errors, counts of layers
    found = Interval(float(tasks.mean()), *ends)
    text = f"{found.estimate:{form}} [{found.low:{form}}, {found.high:{form}}]"
    if low <= found.low and found.high <= high:
        return text, "–", "–", HOLDS
    return text, "–", "–", FAILS if found.high < low or found.low > high else UNKNOWN


def rho(row: Mapping[Hashable, Any]) -> Cells:
    """A coefficient over tasks, and whether it is significant."""
    if pd.isna(row["rho"]):
        return NOT_MEASURED if row["n"] == 0 else ("–", "–", "–", UNKNOWN)
    text = f"{row['rho']:.2f}"
    ps = _p(row["p"]), _p(row["corrected"])
    if pd.isna(row["low"]):
        return text, *ps, UNKNOWN
    text += f" [{row['low']:.2f}, {row['high']:.2f}]"
    if not row["significant"]:
        return text, *ps, "not shown"
    return text, *ps, HOLDS if row["rho"] > 0 else FAILS


def _p(p: float) -> str:
    return f"{p:.3f}" if p >= 0.001 else "< .001"
