"""How often answers are right, as measured on runs whose answer is known, and counts over runs."""

import json
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from memloc.arrays import FloatArray, Table
from memloc.stats.evenness import MARGIN
from memloc.stats.intervals import wilson
from memloc.store.records import as_table

GOAL = 0.8
"""The share of even memories that a method should call even."""
TRUSTED = ("shares", "swapping", "retraining")
"""Methods that exchange layers, the most exact one first."""
RATES = Path(__file__).with_name("calibration.json")
"""How often answers are right, as `python -m studies.verdicts` measured."""
WORDS = ("concentrated", "uneven", "even", "cannot tell")


@cache
def rates() -> dict[str, dict[str, Any]]:
    """Return how often answers are right, by method."""
    return {row["method"]: row for row in json.loads(RATES.read_text(encoding="utf-8"))}


def trust(method: str) -> int:
    """Return the place of a method among all, for sorting: whose answer comes first."""
    return TRUSTED.index(method) if method in TRUSTED else len(TRUSTED)


def weakness(method: str) -> str:
    """Say what the calibration found against a method's profiles; empty if nothing."""
    found = rates().get(method)
    if found is None:
        return f"How often {method} is right has not been measured."
    if method not in TRUSTED:
        return (
            f"In memloc's calibration, weights of {method} look concentrated in "
            f"{found['false_concentrated']:.0%} of {found['nulls']} runs with nothing to find, and "
            f"in the right layers in {found['power']:.0%} of the planted ones."
        )
    if found["even"] < GOAL:
        return (
            f"In memloc's calibration, {method} called only {found['even']:.0%} of "
            f"{found['spread_plants']} memories even that were spread on purpose; shares are surer."
        )
    return ""


def by_profile(weights: FloatArray) -> tuple[str, tuple[int, ...]]:
    """Return the word that weights suggest by themselves, without a test, and the layers above."""
    positive = np.maximum(0, np.nan_to_num(weights))
    if not positive.any():
        return "cannot tell", ()
    shares = positive / positive.sum()
    if 1 / (shares**2).sum() >= MARGIN * len(shares):
        return "even", ()
    return "concentrated", tuple(int(i) + 1 for i in np.flatnonzero(shares > 1 / len(shares)))


def over_runs(answers: Table) -> Table:
    """Count, by method, how many runs have each word; the shares have Wilson's intervals.

    `answers` has one row per run and method.
    """

    def counts(part: Table) -> dict[str, float]:
        numbers = {f"n_{w.replace(' ', '_')}": int((part["word"] == w).sum()) for w in WORDS}
        share = _share("concentrated", part["word"] == "concentrated")
        return {"runs": len(part), **share, **numbers, "findings": int(part["finding"].sum())}

    return _by_method(answers, counts)


def over_plants(answers: Table) -> Table:
    """Count, by method, plants whose layers are named right, and nulls called concentrated."""

    def counts(part: Table) -> dict[str, float]:
        null = part["null"].astype(bool)
        called = part.loc[null, "word"] == "concentrated"
        told = ~null & (part["word"] != "cannot tell")
        sizes = {"plants": int((~null).sum()), "nulls": int(null.sum()), "told": int(told.sum())}
        # Without any answer, none was wrong either.
        right = part.loc[~null & bool(told.any()), "right"]
        return {**sizes, **_share("right", right), **_share("called", called)}

    return _by_method(answers, counts)


def _by_method(answers: Table, counts: Callable[[Table], dict[str, float]]) -> Table:
    parts = sorted(answers.groupby("method", sort=False), key=lambda part: trust(str(part[0])))
    return as_table([{"method": name, **counts(part)} for name, part in parts])


def _share(name: str, hits: Any) -> dict[str, float]:
    return wilson(float(hits.mean()) if len(hits) else math.nan, len(hits)).named(name)
