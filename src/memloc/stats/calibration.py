"""Rates of right answers, measured on runs whose answer is known, and counts of answers over
runs.
"""

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
"""Share of even memories that a method is expected to call even."""
RATES = Path(__file__).with_name("calibration.json")
"""File with the rates of right answers that `python -m studies.verdicts` measured."""
WORDS = ("concentrated", "uneven", "even", "cannot tell")


@cache
def rates() -> dict[str, dict[str, Any]]:
    """Return, by method, how often its answers are right."""
    return {row["method"]: row for row in json.loads(RATES.read_text(encoding="utf-8"))}


def weakness(method: str) -> str:
    """Return what the calibration found against a method's profiles; empty if nothing."""
    known = rates().get(method)
    if known is None:
        return f"How often {method} is right has not been measured."
    if known["false_undone"] is None:  # it exchanges no layer
        return (
            f"In memloc's calibration, weights of {method} look concentrated in "
            f"{known['false_concentrated']:.0%} of {known['nulls']} runs with nothing to find, and "
            f"in the right layers in {known['power']:.0%} of the planted ones."
        )
    if known["even"] < GOAL:
        return (
            f"In memloc's calibration, {method} called only {known['even']:.0%} of "
            f"{known['spread_plants']} memories even that were spread on purpose; shares are surer."
        )
    return ""


def over_runs(answers: Table) -> Table:
    """Count, by method, the runs with each word; shares have Wilson's intervals.

    `answers` has one row per run and method.
    """

    def counts(part: Table) -> dict[str, Any]:
        numbers = {f"n_{w.replace(' ', '_')}": int((part["word"] == w).sum()) for w in WORDS}
        share = _share("concentrated", part["word"] == "concentrated")
        primary = part["primary"].all()
        is_compared = part["agrees"] != ""
        findings = str(int(part["finding"].sum())) if primary else "–"
        agrees = (
            f"{(part['agrees'] == 'yes').sum()} of {is_compared.sum()}"
            if is_compared.any()
            else "–"
        )
        return {"runs": len(part), **share, **numbers, "findings": findings, "agrees": agrees}

    return _by_method(answers, counts)


def over_plants(answers: Table) -> Table:
    """Count, by method, plants whose layers are named correctly and nulls called concentrated."""

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
