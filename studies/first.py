"""Are clean labels learnt before wrong ones? Training curves of a study, for the findings' page."""

import numpy as np
import pandas as pd

from memloc.arrays import FloatArray
from memloc.reporting.results import Results
from memloc.stats import claims
from memloc.stats.agreement import correlation
from memloc.stats.answers import corrected
from memloc.stats.intervals import t_ends

CURVES = {
    "noisy_accuracy": "wrong labels known",
    "clean_accuracy": "clean labels known",
    "noisy_as_original": "noisy examples as their right label",
    "gap": "clean minus wrong",
}
"""Columns of a training curve, and what they are called on the page."""

ABOVE = "generalisation above the commonest label"


def learning(found: Results) -> pd.DataFrame:
    """Return one row per quarter of the epochs: means over tasks, with intervals."""
    curve = gaps(found)
    rows = []
    for quarter, part in curve.groupby("quarter"):
        tasks = part.groupby("task")[[*CURVES]].mean()
        cells = {text: _mean(tasks[name].to_numpy(float)) for name, text in CURVES.items()}
        rows.append({"of all epochs": f"{quarter:.0%}", **cells})
    return pd.DataFrame(rows)


def _mean(tasks: FloatArray) -> str:
    """Return the mean over tasks with its t interval; no share or difference is above 1."""
    low, high = np.clip(t_ends(tasks), -1 if tasks.min() < 0 else 0, 1)
    return f"{tasks.mean():.2f} [{low:.2f}, {high:.2f}]"


def gaps(found: Results) -> pd.DataFrame:
    """Return each quarter of every training on noisy labels, with clean minus noisy accuracy."""
    curve = found.memorised("training")
    curve = curve[curve["training"] == "noisy"].dropna(subset="noisy_accuracy")
    last = curve.groupby([*claims.POINT, "seed"])["epoch"].transform("max")
    curve = curve.assign(quarter=curve["epoch"] / last)
    curve = curve[curve["quarter"].isin([0.25, 0.5, 0.75, 1])]
    return curve.assign(gap=curve["clean_accuracy"] - curve["noisy_accuracy"])


def by_generalisation(found: Results) -> pd.DataFrame:
    """Return ρ over tasks of each score and the gap after a quarter of the epochs.

    P-values are corrected (Holm) over the three scores.
    """
    curve = gaps(found)
    early = curve[curve["quarter"] == 0.25].groupby("task")["gap"].mean()
    runs, halves = found.memorised("runs"), found.memorised("generalisation")
    scores = claims.task_scores(runs, halves)
    above = claims.task_scores(runs, halves.assign(score=halves["normalised"]))
    above = above[above["against"] == "generalisation"].assign(against=ABOVE)
    rows = []
    for name, part in pd.concat([scores, above]).groupby("against", sort=False):
        pairs = pd.concat([early, part.groupby("task")["score"].mean()], axis=1, join="inner")
        rho = correlation(*pairs.to_numpy(float).T)
        text = f"{rho.rho:.2f} [{rho.low:.2f}, {rho.high:.2f}]"
        rows.append({"score": name, "tasks": rho.n, "ρ": text, "p": rho.p})
    table = pd.DataFrame(rows)
    table["corrected p"] = [f"{p:.3f}" for p in corrected(table["p"].tolist())]
    return table.drop(columns="p")
