"""Tables of one run, without its key."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from memloc.errors import StoreError
from memloc.localise.scores import DETAIL
from memloc.results.columns import COLUMNS, KEY, Columns
from memloc.results.find import Found
from memloc.results.reading import (
    Reverted,
    Scores,
    count_split,
    read_reverted,
    read_training_examples,
)
from memloc.train.run import Run, at_the_end

if TYPE_CHECKING:
    import pandas as pd


def run_row(found: Found, folder: Path, training: "pd.DataFrame") -> "pd.DataFrame":
    """What the run is of and what became of it; a run that is not finished memorised nothing."""
    import pandas as pd

    about, verdict = found.run.about, found.run.verdict()
    classes = len(about["task"]["label_names"])
    unseen = at_the_end(training, "noisy", "validation_accuracy")
    accuracies = ("noisy_accuracy", "clean_accuracy", "training_accuracy")
    row = {
        "depth": int(about["depth"]),
        "n_classes": classes,
        "train": about["task"]["train"],
        "noisy": about["task"]["noisy"],
        "validation": _n_validation(found.run),
        "memorised": bool(verdict.get("memorised", False)),
        **{name: verdict.get(name, np.nan) for name in accuracies},
        "reference_accuracy": at_the_end(training, "original", "accuracy"),
        "validation_accuracy": unseen,
        "validation_score": (unseen - 1 / classes) / (1 - 1 / classes),
        "preset": about["protocol"].get("preset", ""),
        "changes": ", ".join(f"{k}={v}" for k, v in about.get("changes", {}).items()),
        "folder": str(found.run.folder.relative_to(folder)),
    }
    return pd.DataFrame([row])


def training(found: Found) -> "pd.DataFrame":
    """The training curves; empty where there are none yet."""
    import pandas as pd

    if not (found.run.folder / "training.parquet").is_file():
        return pd.DataFrame(columns=[c for c in COLUMNS["training"] if c not in KEY])
    curves = found.run.training()
    lacking = sorted({c for c in COLUMNS["training"] if c not in KEY} - set(curves.columns))
    if lacking:
        path = found.run.folder / "training.parquet"
        raise StoreError(f"{path} has no column {lacking[0]}; delete it and train again.")
    return curves


def layers(scores: Scores) -> Columns:
    """A weight a layer."""
    names = {"weight": "weight", "low": "weight low", "high": "weight high"}
    values = {name: scores.values[quantity] for name, quantity in names.items()}
    return {"layer": np.arange(1, scores.depth + 1), **values}


def mcog(scores: Scores) -> Columns:
    """One row: the centre of gravity."""
    names = {"mcog": "mcog", "low": "mcog low", "high": "mcog high"}
    return {name: scores.values[quantity] for name, quantity in names.items()}


def windows(scores: Scores) -> Columns | None:
    """Errors of windows, for methods that change windows."""
    table = scores.windows
    return table and {**table, "normalised": table["error"] / _divisor(scores)}


def outcomes_of(found: Found) -> list[Reverted]:
    """Which windows undo which noisy example, for each method that changes windows."""
    read = map(read_reverted, found.score_files())
    return [outcomes for outcomes in read if outcomes is not None]


def examples(found: Found, *, noisy_only: bool = False) -> "pd.DataFrame":
    """The training examples, labels by name."""
    import pandas as pd

    rows = read_training_examples(found.run.folder / "labels.parquet", noisy_only=noisy_only)
    names = np.array(found.run.about["task"]["label_names"], dtype=object)
    return pd.DataFrame(
        {
            "example": rows["row"].to_numpy(np.int64),
            "text": [" ‖ ".join(parts) for parts in rows["parts"]],
            "original": names[rows["original"]],
            "assigned": names[rows["assigned"]],
            "is_noisy": rows["is_noisy"].to_numpy(bool),
        }
    )


def gradients(scores: Scores) -> Columns | None:
    """Gradient norms; kind is e.g. `frozen noisy`: of the frozen weights, on noisy examples."""
    if scores.method != "gradients":
        return None
    names = scores.details()
    norms = [name.removeprefix(DETAIL).partition(" ") for name in names]
    sizes = [len(scores.values[name]) for name in names]
    return {
        "kind": np.repeat(np.array([kind for _, _, kind in norms], dtype=object), sizes),
        "norm": np.repeat(np.array([norm for norm, _, _ in norms], dtype=object), sizes),
        "layer": np.concatenate([scores.layers[name] for name in names]),
        "value": np.concatenate([scores.values[name] for name in names]),
    }


def noise_probes(scores: Scores) -> Columns | None:
    """F1 of the probes that look for noisy examples: mean over probe seeds, and their range."""
    names = [f"{DETAIL}{name}" for name in ("f1", "chance f1")]
    if scores.method != "probing" or not set(names) <= set(scores.details()):
        return None
    f1, chance = (scores.values[name].reshape(scores.depth + 1, -1) for name in names)
    values = {"f1": f1.mean(1), "low": f1.min(1), "high": f1.max(1), "chance": chance.mean(1)}
    return {"layer": np.arange(len(f1)), **values}


def _divisor(scores: Scores) -> float:
    """The error of the window of all layers where the weights were normalised by it."""
    assert scores.windows is not None
    first, last, errors = (scores.windows[name] for name in ("first", "last", "error"))
    full = errors[(first == 1) & (last == scores.depth)]
    if not scores.about.get("normalise") or not len(full):
        return 1.0
    return float(full[0]) if full[0] > 0 else np.nan


def _n_validation(run: Run) -> int:
    """How many examples the accuracy on unseen data is measured on."""
    path = run.folder / "labels.parquet"
    return count_split(path, "validation") if path.is_file() else 0
