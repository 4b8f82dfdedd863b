"""The columns of every table, which it has even where it has no row."""

KEY = ("task", "category", "model", "seed")
"""What a table starts with: which run a row is of."""
PLANT = ("planted", "first", "last", "null")
"""Which layers of a control run may change (from 1, the first and the last of them), and whether
nothing was planted there."""

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
    "layers": ("method", "layer", "weight", "low", "high", "remark"),
    "mcog": ("method", "mcog", "low", "high", "remark"),
    "windows": ("method", "first", "last", "error", "clean_error", "normalised", "n_noisy"),
    "reverted": ("method", "example", "first", "last", "wrong"),
    "examples": ("example", "text", "original", "assigned", "is_noisy"),
    "gradients": ("kind", "norm", "layer", "value"),
    "noise_probes": ("layer", "f1", "low", "high", "chance", "remark"),
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
        *("planted", "first", "last", "method", "chance", "mrr", "auroc"),
        *("planted_mass", "centre_error", "validation", "k", "accuracy"),
    ),
    "control_layers": (*PLANT, "method", "layer", "weight", "low", "high", "undone", "remark"),
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
