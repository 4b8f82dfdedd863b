"""Results in sentences, computed from the numbers."""

import math

import numpy as np
import pandas as pd

from memloc.methods.result import LayerScores


def sentence(scores: LayerScores) -> str:
    """What a method says about a model, with how sure it is."""
    return " ".join([_finding(scores), *scores.remarks])


def remarks_on(table: pd.DataFrame) -> str:
    """What the results in a table say against themselves, each sentence once with its runs."""
    found, said = marked(table), []
    for remark, part in found.groupby("remark", sort=False) if len(found) else ():
        runs = part[["task", "model", "seed"]].drop_duplicates().itertuples(index=False)
        names = [f"{task} · {model} · seed {seed}" for task, model, seed in runs]
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        said.append(f"{str(remark).removesuffix('.')} ({', '.join(names[:SHOWN])}{more}).")
    return " ".join(said)


def marked(table: pd.DataFrame) -> pd.DataFrame:
    """The rows that have a remark; of nulls, in which there is nothing to find, none counts."""
    if "remark" not in table.columns:
        return table.head(0)
    counts = table["remark"].astype(str) != ""
    return table[counts & ~table["null"].astype(bool)] if "null" in table else table[counts]


SHOWN = 3
"""Runs that are named; the others are counted."""


def _finding(scores: LayerScores) -> str:
    mcog, depth = scores.mcog, scores.depth
    if math.isnan(mcog.estimate):
        return f"{scores.method}: no layer stands out, so there is no centre of gravity."
    sure = f" ({mcog.level:.0%} interval {mcog.low:.1f} to {mcog.high:.1f})"
    parts = [
        f"{scores.method}: the centre of gravity is layer {mcog.estimate:.1f} of {depth}"
        + ("" if math.isnan(mcog.low) else sure),
        f"layer {int(np.argmax(scores.weights)) + 1} matters most",
    ]
    if scores.outcomes is not None:
        parts.append(_windows(scores))
    text = "; ".join(parts) + "."
    if scores.about.get("forced"):
        share = scores.about.get("final_noisy_accuracy", float("nan"))
        return f"FORCED (only {share:.0%} of the noisy labels are predicted): {text}"
    return text


def _windows(scores: LayerScores) -> str:
    assert scores.outcomes is not None
    outcomes = scores.outcomes
    every = list(zip(outcomes.errors, outcomes.clean_errors, outcomes.windows, strict=True))
    nothing = [(math.nan, math.nan)]
    single = max([(e, c) for e, c, window in every if len(window) == 1] or nothing)
    full = max([(e, c) for e, c, window in every if len(window) == scores.depth] or nothing)
    return (
        f"changing one layer undoes at most {single[0]:.0%} of the memorised labels and "
        f"{single[1]:.1%} of the clean ones, changing all {full[0]:.0%} and {full[1]:.1%}"
    )
