"""The columns of every table, which it has even where it has no row."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

KEY = ("task", "category", "model", "seed")
"""What a table starts with: which run a row is of."""
PLANT = ("first", "last", "null")
"""Which layers of a control run may change (from 1), and whether nothing was planted there."""

_AFTER_KEY: dict[str, tuple[str, ...]] = {
    "runs": (
        *("depth", "n_classes", "train", "noisy", "memorised", "noisy_accuracy", "clean_accuracy"),
        *("training_accuracy", "validation_accuracy", "validation_score", "preset", "changes"),
        "folder",
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
    "control_layers": (*PLANT, "method", "layer", "weight", "low", "high"),
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
        *("called", "called_low", "called_high", "apart"),
    ),
    "post_processing": (
        *("model", "norm", "subtract_clean", "divide_frozen", "accuracy", "plants"),
    ),
}


def stacked(name: str, parts: "Iterable[pd.DataFrame]") -> "pd.DataFrame":
    """The table of this name from its parts."""
    import pandas as pd

    columns = list(COLUMNS[name])
    found = [part[columns] for part in parts]
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=columns)
