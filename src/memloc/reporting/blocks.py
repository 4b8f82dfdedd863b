"""Tables and examples as small blocks of text that a page unpacks when it shows them."""

import base64
import gzip
import json
from typing import Any

import numpy as np
import pandas as pd

from memloc.records import FloatArray
from memloc.reporting.findings import Findings

MOST_EXAMPLES = 2500
"""Noisy examples of one task on the page; the others are in the files."""
LONGEST = 600
"""Characters of a text on the page."""
DIGITS = 5
"""Of numbers on the page, which are for looking."""


def packed(value: Any) -> str:
    """JSON, compressed, as base64; the same value is always the same text."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def columns_of(rows: pd.DataFrame) -> dict[str, Any]:
    """A table by columns; texts as places in a list of the different ones."""
    return {"n": len(rows), "columns": {str(n): _column(rows[n]) for n in rows.columns}}


def _column(values: "pd.Series") -> dict[str, Any]:
    if pd.api.types.is_bool_dtype(values):
        return {"values": [bool(v) for v in values]}
    if pd.api.types.is_numeric_dtype(values):
        return {"values": _numbers(values.to_numpy(np.float64, na_value=np.nan))}
    codes, levels = pd.factorize(values.astype(str))
    return {"levels": list(levels), "values": codes.tolist()}


def _numbers(values: FloatArray) -> list[Any]:
    known = np.isfinite(values)
    if (values[known] % 1 == 0).all():
        return [int(v) if there else None for v, there in zip(values, known, strict=True)]
    short = np.char.mod(f"%.{DIGITS}g", values)  # a text each, in one go
    return [float(v) if there else None for v, there in zip(short, known, strict=True)]


def example_block(findings: Findings, runs: "list[pd.DataFrame]") -> dict[str, Any] | None:
    """Noisy examples of one task's runs (one row of `runs` each), and what windows do to them.

    A bit for each example and window of each run. None where there are no noisy examples.
    """
    texts = [findings.results.examples_of(run, noisy_only=True) for run in runs]
    keys = ["example", "text", "original", "assigned"]
    noisy = pd.concat([t[keys] for t in texts]).drop_duplicates()
    if noisy.empty:
        return None
    shown = noisy.head(MOST_EXAMPLES)
    labels = sorted({*shown["original"], *shown["assigned"]})
    place = {label: i for i, label in enumerate(labels)}
    rows = [[int(e), _cut(t), place[o], place[a]] for e, t, o, a in shown.itertuples(index=False)]
    found = [_bits(findings, run, t[keys], shown) for run, t in zip(runs, texts, strict=True)]
    return {
        "labels": labels,
        "rows": rows,
        "left": len(noisy) - len(shown),
        "runs": [each for one in found for each in one],
    }


def _bits(
    findings: Findings, run: pd.DataFrame, texts: pd.DataFrame, shown: pd.DataFrame
) -> list[dict[str, Any]]:
    """Of every method that changes windows: which of the examples shown each window reverts."""
    numbered = shown.assign(place=np.arange(len(shown)))
    mine = texts.merge(numbered, on=list(shown.columns)).set_index("example")["place"]
    found = []
    for outcomes in findings.outcomes_of(run):
        kept = outcomes.take(np.flatnonzero(np.isin(outcomes.examples, mine.index)))
        places = mine.loc[kept.examples.tolist()].tolist()
        found.append(
            {
                "model": str(run["model"].iloc[0]),
                "seed": int(run["seed"].iloc[0]),
                "method": outcomes.method,
                "depth": int(outcomes.windows.max()),
                "windows": outcomes.windows.tolist(),
                "rows": None if places == list(range(len(shown))) else places,
                "bits": base64.b64encode(np.packbits(kept.wrong).tobytes()).decode(),
            }
        )
    shares = findings.shares_of(run)
    if shares is not None:
        kept_shares = shares[shares.index.isin(mine.index)]
        places = mine.loc[kept_shares.index.tolist()].tolist()
        found.append(
            {
                "model": str(run["model"].iloc[0]),
                "seed": int(run["seed"].iloc[0]),
                "method": "shares",
                "rows": None if places == list(range(len(shown))) else places,
                "shares": (100 * kept_shares.fillna(0)).round().astype(int).to_numpy().tolist(),
            }
        )
    return found


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} … ({len(text)} characters)"
