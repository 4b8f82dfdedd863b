"""Tables of one run, each with the run's key."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from memloc.localise.scores import LayerScores
from memloc.results.find import Found
from memloc.score.matrix import windows as all_windows
from memloc.train.run import Run

if TYPE_CHECKING:
    import pandas as pd


def run_row(found: Found, folder: Path) -> "pd.DataFrame":
    """What the run is of and what became of it; a run that is not finished memorised nothing."""
    import pandas as pd

    about, verdict = found.run.about, found.run.verdict()
    classes = len(about["task"]["label_names"])
    unseen = _last_validation(found.run)
    accuracies = ("noisy_accuracy", "clean_accuracy", "training_accuracy")
    row = {
        **found.key,
        "depth": int(about["depth"]),
        "n_classes": classes,
        "train": about["task"]["train"],
        "noisy": about["task"]["noisy"],
        "memorised": bool(verdict.get("memorised", False)),
        **{name: verdict.get(name, np.nan) for name in accuracies},
        "validation_accuracy": unseen,
        "validation_score": (unseen - 1 / classes) / (1 - 1 / classes),
        "preset": about["protocol"].get("preset", ""),
        "changes": ", ".join(f"{k}={v}" for k, v in about.get("changes", {}).items()),
        "folder": str(found.run.folder.relative_to(folder)),
    }
    return pd.DataFrame([row])


def training(found: Found) -> "Iterator[pd.DataFrame]":
    """The training curves, where there are some."""
    if _trained(found.run):
        yield found.run.training().assign(**found.key)


def layers(found: Found, scores: LayerScores) -> "pd.DataFrame":
    """A weight a layer."""
    import pandas as pd

    layer = np.arange(1, scores.depth + 1)
    values = {"weight": scores.weights, "low": scores.low, "high": scores.high}
    return pd.DataFrame({**found.key, "method": scores.method, "layer": layer, **values})


def mcog(found: Found, scores: LayerScores) -> "pd.DataFrame":
    """One row: the centre of gravity."""
    import pandas as pd

    centre = scores.mcog
    values = {"mcog": centre.estimate, "low": centre.low, "high": centre.high}
    return pd.DataFrame([{**found.key, "method": scores.method, **values}])


def windows(found: Found, scores: LayerScores) -> "Iterator[pd.DataFrame]":
    """Errors of windows, for methods that change windows."""
    import pandas as pd

    outcomes = scores.outcomes
    if outcomes is None:
        return
    errors = outcomes.errors
    yield pd.DataFrame(
        {
            **found.key,
            "method": scores.method,
            "first": [w.start + 1 for w in outcomes.windows],
            "last": [w.stop for w in outcomes.windows],
            "error": errors,
            "clean_error": outcomes.clean_errors if len(outcomes.clean_rows) else np.nan,
            "normalised": errors / _divisor(scores),
            "n_noisy": len(outcomes.noisy_rows),
        }
    )


def reverted(found: Found) -> "Iterator[pd.DataFrame]":
    """For every noisy example and window: is the assigned label no longer predicted?"""
    import pandas as pd

    for scores in found.scores():
        outcomes = scores.outcomes
        if outcomes is None:
            continue
        ends = np.array([(w.start + 1, w.stop) for w in outcomes.windows], dtype=np.int16)
        first, last = np.tile(ends, (len(outcomes.noisy_rows), 1)).T
        rows = outcomes.noisy_rows.astype(np.int32)
        yield pd.DataFrame(
            {
                **found.key,
                "method": scores.method,
                "example": np.repeat(rows, len(outcomes.windows)),
                "first": first,
                "last": last,
                "wrong": outcomes.noisy_wrong.ravel(),
            }
        )


def examples(found: Found) -> "pd.DataFrame":
    """The training examples, labels by name."""
    import pandas as pd

    task, noisy = found.run.data()
    names = np.array(task.label_names, dtype=object)
    return pd.DataFrame(
        {
            **found.key,
            "example": np.arange(len(task.train)),
            "text": [" ‖ ".join(parts) for parts in task.train.parts],
            "original": names[noisy.original],
            "assigned": names[noisy.assigned],
            "is_noisy": noisy.is_noisy,
        }
    )


def gradients(found: Found, scores: LayerScores) -> "Iterator[pd.DataFrame]":
    """Gradient norms; kind is e.g. `frozen noisy`: of the frozen weights, on noisy examples."""
    import pandas as pd

    if scores.method != "gradients":
        return
    layer = np.arange(1, scores.depth + 1)
    for name, values in scores.details.items():
        norm, _, kind = name.partition(" ")
        row = {**found.key, "kind": kind, "norm": norm}
        yield pd.DataFrame({**row, "layer": layer, "value": values})


def noise_probes(found: Found, scores: LayerScores) -> "Iterator[pd.DataFrame]":
    """F1 of the probes that look for noisy examples: mean over probe seeds, and their range."""
    import pandas as pd

    if scores.method != "probing" or not {"f1", "chance f1"} <= set(scores.details):
        return
    f1, chance = scores.details["f1"], scores.details["chance f1"]
    values = {"f1": f1.mean(1), "low": f1.min(1), "high": f1.max(1), "chance": chance.mean(1)}
    yield pd.DataFrame({**found.key, "layer": np.arange(len(f1)), **values})


def _divisor(scores: LayerScores) -> Any:
    """The error of the window of all layers where the weights were normalised by it."""
    assert scores.outcomes is not None
    full = all_windows(scores.depth)[-1]
    if not scores.about.get("normalise") or full not in scores.outcomes.windows:
        return 1.0
    error = scores.outcomes.errors[scores.outcomes.windows.index(full)]
    return error if error > 0 else np.nan


def _last_validation(run: Run) -> float:
    """Accuracy on unseen data at the last epoch of the training on noisy labels."""
    if not _trained(run):
        return float("nan")
    table = run.training()
    noisy = table[table["training"] == "noisy"].sort_values("epoch")
    return float(noisy["validation_accuracy"].iloc[-1]) if len(noisy) else float("nan")


def _trained(run: Run) -> bool:
    return (run.folder / "training.parquet").is_file()
