"""Means over seeds and runs, each with an interval."""

from collections.abc import Sequence

import numpy as np
import pandas as pd


def over_seeds(
    table: pd.DataFrame, by: Sequence[str], value: str, ends: tuple[str, str] = ("low", "high")
) -> pd.DataFrame:
    """Mean of `value` over the seeds of each group, from the lowest lower end to the highest upper.

    With one seed that is the run's own interval; with several it holds every seed's.
    """
    low, high = ends
    named = {value: (value, "mean"), low: (low, "min"), high: (high, "max")}
    return _grouped(table, by, {**named, "seeds": ("seed", "nunique")})


def over_runs(table: pd.DataFrame, by: Sequence[str], value: str) -> pd.DataFrame:
    """Mean of `value` over the runs of each group, and a standard deviation to either side.

    With one run the ends are the run's own interval, `low` and `high`.
    """
    named = {"mean": (value, "mean"), "sd": (value, "std"), "runs": (value, "count")}
    ends = {"one_low": ("low", "min"), "one_high": ("high", "max")}
    found = _grouped(table, by, {**named, **ends})
    alone = found["runs"] <= 1
    found["low"] = np.where(alone, found.pop("one_low"), found["mean"] - found["sd"])
    found["high"] = np.where(alone, found.pop("one_high"), found["mean"] + found["sd"])
    return found.rename(columns={"mean": value})


def _grouped(
    table: pd.DataFrame, by: Sequence[str], named: dict[str, tuple[str, str]]
) -> pd.DataFrame:
    grouped = table.groupby(list(by), sort=False, observed=True, dropna=False)
    return pd.DataFrame(grouped.agg(**named)).reset_index()
