"""What the studies of texts share: how texts are drawn, and how rows are kept and summed up."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import memloc
from memloc.data.task import Task
from memloc.seeds import generator
from memloc.stats.intervals import t_ends
from memloc.store.files import whole_file
from studies.pages import DOCS, STORED

KEPT = STORED / "texts"
PAGE = DOCS / "explanation" / "texts.md"
EXAMPLES = Path(memloc.__file__).parent / "study" / "examples"
COLUMNS: dict[str, Any] = {"prompt": "prompt", "continuation": "continuation", "flag": "memorised"}
Row = dict[str, Any]


def texts(name: str, seed: int, memorised: int, ordinary: int) -> Task:
    """Draw texts of the embedded file `name`, some to memorise and some ordinary ones."""
    table = pd.read_csv(EXAMPLES / f"{name}.csv")
    rng = generator(seed, "texts", name)
    flagged = table["memorised"] == "yes"
    rows = [
        rng.choice(np.flatnonzero(kind), n, replace=False)
        for kind, n in ((flagged, memorised), (~flagged, ordinary))
    ]
    drawn = table.iloc[np.sort(np.concatenate(rows))].reset_index(drop=True)
    return memloc.load_csv(drawn, **COLUMNS, name=name)


def keep_rows(name: str, wanted: Iterator[Row], make: Callable[[Row], Row | list[Row]]) -> None:
    """Make what is missing of a table of the study, the row or the rows of one key at a time."""
    path = KEPT / f"{name}.csv"
    for key in wanted:
        table = pd.read_csv(path) if path.is_file() else pd.DataFrame(columns=[*key])
        if (table[[*key]].astype(str) == [str(v) for v in key.values()]).all(axis=1).any():
            continue
        made = make(key)
        rows = made if isinstance(made, list) else [made]
        whole = pd.DataFrame([*table.to_dict("records"), *rows])
        with whole_file(path) as draft:
            whole.to_csv(draft, index=False, float_format="%.4g")


def learnt(run: memloc.Run) -> Row:
    """Return how well a run recalls its texts and ordinary ones, and after how many tries."""
    final, tries = run.status.final, len(run.status.attempts) + 1
    assert final is not None
    rate = run.settings.finetune.learning_rate
    return {"tries": tries, "rate": rate, "recalled": final.noisy, "ordinary": final.clean}


def ends(values: pd.Series) -> str:
    """Return the mean and the range."""
    known = values.dropna()
    if not len(known):
        return "–"
    return f"{known.mean():.2f} ({known.min():.2f}–{known.max():.2f})"


def with_t(values: pd.Series) -> str:
    """Return the mean with its 95 % interval by t over seeds."""
    known = values.dropna().to_numpy(np.float64)
    if len(known) < 2:
        return f"{known.mean():.1f}" if len(known) else "–"
    low, high = t_ends(known)
    return f"{known.mean():.1f} [{low:.1f}, {high:.1f}]"
