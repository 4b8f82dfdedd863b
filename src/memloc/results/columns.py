"""The columns of every table, which it has even where it has no row."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import pandas as pd

KEY = ("task", "category", "model", "seed")
"""What a table starts with: which run a row is of."""
PLANT = ("first", "last", "null")
"""Which layers of a control run may change (from 1), and whether nothing was planted there."""

_AFTER_KEY: dict[str, tuple[str, ...]] = {
    "runs": (
        *("depth", "n_classes", "train", "noisy", "validation", "memorised", "noisy_accuracy"),
        *("clean_accuracy", "training_accuracy", "reference_accuracy"),
        *("validation_accuracy", "validation_score", "preset", "changes", "folder"),
    ),
    "training": (
        *("training", "epoch", "loss", "accuracy", "macro_f1", "noisy_accuracy", "clean_accuracy"),
        *("noisy_as_original", "validation_accuracy", "seconds"),
    ),
    "layers": ("method", "layer", "weight", "low", "high"),
    "mcog": ("method", "mcog", "low", "high"),
    "windows": ("method", "first", "last", "error", "clean_error", "normalised", "n_noisy"),
    "reverted": ("method", "example", "first", "last", "wrong"),
    "examples": ("example", "text", "original", "assigned", "is_noisy"),
    "gradients": ("kind", "norm", "layer", "value"),
    "noise_probes": ("layer", "f1", "low", "high", "chance"),
    "centroids": (
        *("variant", "layer", "kind", "mean", "low", "high", "mean_low", "mean_high"),
        *("separability", "by_chance", "separable"),
    ),
    "events": ("source", "variant", "event", "layer", "low", "high", "never", "separable"),
    "label_probes": ("layer", "examples", "labels", "f1", "low", "high", "chance"),
    "generalisation": (
        *("score", "clean_score", "low", "high", "clean_low", "clean_high"),
        *("majority", "normalised", "normalised_low", "normalised_high"),
        *("validation_score", "models"),
    ),
    "memorisation": (
        *("example", "is_noisy", "trained", "held_out", "counterfactual"),
        *("n_trained", "n_held_out"),
    ),
    "control": (
        *("first", "last", "method", "chance", "mrr", "auroc"),
        *("validation", "k", "accuracy"),
    ),
    "control_layers": (*PLANT, "method", "layer", "weight", "low", "high", "undone"),
    "control_gradients": (*PLANT, "norm", "kind", "layer", "value"),
    "plants": (
        *(*PLANT, "learning_rate", "tries", "training_accuracy", "noisy_accuracy"),
        *("methods", "used"),
    ),
}

COLUMNS: dict[str, tuple[str, ...]] = {
    **{name: (*KEY, *columns) for name, columns in _AFTER_KEY.items()},
    "nulls": (
        *("method", "plants", "nulls", "distance_planted", "distance_null", "threshold"),
        *("called", "called_low", "called_high", "apart", "undone_planted", "undone_null"),
    ),
    "post_processing": (
        *("model", "norm", "subtract_clean", "divide_frozen", "accuracy", "plants"),
    ),
}


Columns: TypeAlias = Mapping[str, Any]
"""A table as its columns, each an array."""


def stacked(
    name: str, parts: "Iterable[tuple[Mapping[str, Any], Columns | pd.DataFrame]]"
) -> "pd.DataFrame":
    """The table of this name from its parts, each with the key that stands before its rows."""
    import pandas as pd

    found = list(parts)
    if not found:
        return pd.DataFrame(columns=list(COLUMNS[name]))
    keys, tables = zip(*found, strict=True)
    wanted = [column for column in COLUMNS[name] if column not in keys[0]]
    # Columns, not frames: a study has thousands of small ones.
    body = {c: _joined([table[c] for table in tables]) for c in wanted}
    return keyed(name, pd.DataFrame(body), keys, [len(table[wanted[0]]) for table in tables])


def keyed(
    name: str, table: "pd.DataFrame", keys: "Sequence[Mapping[str, Any]]", sizes: Sequence[int]
) -> "pd.DataFrame":
    """The table of this name from the rows of several parts, so many of each."""
    import numpy as np
    import pandas as pd

    rows = np.repeat(np.arange(len(keys)), sizes)
    before = pd.DataFrame([dict(key) for key in keys]).take(rows).reset_index(drop=True)
    return pd.concat([before, table], axis=1)[list(COLUMNS[name])]


def _joined(columns: "Sequence[Any]") -> Any:
    import numpy as np
    import pandas as pd

    if isinstance(columns[0], pd.Series):
        return pd.concat(columns, ignore_index=True)
    return np.concatenate(columns)
