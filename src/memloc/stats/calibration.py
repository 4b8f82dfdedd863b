"""Rates of right answers, measured on runs whose answer is known, and counts over runs."""

import json
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from memloc.arrays import Table
from memloc.stats.intervals import wilson
from memloc.store.records import as_table

GOAL = 0.8
"""Share of even memories that a method should call even."""
RATES = Path(__file__).with_name("calibration.json")
"""File with the rates of right answers that `python -m studies.verdicts` measured."""
WORDS = ("concentrated", "uneven", "even", "cannot tell")


@cache
def rates() -> dict[str, dict[str, Any]]:
    """Return how often answers are right, by method."""
    return {row["method"]: row for row in json.loads(RATES.read_text(encoding="utf-8"))}


def weakness(method: str) -> str:
    """Say what the calibration found against a method's profiles; empty if nothing."""
    found = rates().get(method)
    if found is None:
        return f"How often {method} is right has not been measured."
    if found["false_undone"] is None:  # it exchanges no layer
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


def over_runs(answers: Table) -> Table:
    """Count, by method, how many runs have each word; the shares have Wilson's intervals.

    `answers` has one row per run and method.
    """

    def counts(part: Table) -> dict[str, Any]:
        numbers = {f"n_{w.replace(' ', '_')}": int((part["word"] == w).sum()) for w in WORDS}
        share = _share("concentrated", part["word"] == "concentrated")
        primary, said = part["primary"].all(), part["agrees"] != ""
        findings = str(int(part["finding"].sum())) if primary else "–"
        agrees = f"{(part['agrees'] == 'yes').sum()} of {said.sum()}" if said.any() else "–"
        return {"runs": len(part), **share, **numbers, "findings": findings, "agrees": agrees}

    return _by_method(answers, counts)


def over_plants(answers: Table) -> Table:
    """Count, by method, plants whose layers are named right, and nulls called concentrated."""

    def counts(part: Table) -> dict[str, Any]:
        null = part["null"].astype(bool)
        called = part.loc[null, "word"] == "concentrated"
        told = ~null & (part["word"] != "cannot tell")
        sizes = {"plants": int((~null).sum()), "nulls": int(null.sum()), "told": int(told.sum())}
        # Without any answer, none was wrong either.
        right = part.loc[~null & bool(told.any()), "right"]
        return {**sizes, **_share("right", right), **_share("called", called)}

    return _by_method(answers, counts)


def _by_method(answers: Table, counts: Callable[[Table], dict[str, Any]]) -> Table:
    parts = answers.groupby("method", sort=False)
    return as_table([{"method": name, **counts(part)} for name, part in parts])


def _share(name: str, hits: Any) -> dict[str, float]:
    return wilson(float(hits.mean()) if len(hits) else math.nan, len(hits)).named(name)
