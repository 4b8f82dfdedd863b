"""What planted runs say of the methods, over all plants of a study."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from memloc.methods.gradients import norms_from, variants
from memloc.protocol import ControlSettings
from memloc.results.columns import COLUMNS
from memloc.run import Run
from memloc.stats.agreement import accuracy_at_k
from memloc.stats.planted import null_claims, plant_scores
from memloc.stats.windows import planted_layers

if TYPE_CHECKING:
    import pandas as pd

POST_PROCESSED_AT = 2
"""Appendix E reports accuracy@2."""
PLANT = ["task", "category", "model", "seed", "planted", "first", "last", "null"]

Keyed = Sequence[tuple[Mapping[str, Any], Any]]


def control_tables(
    planted: Sequence[tuple[Mapping[str, Any], Run]],
    found: Mapping[str, Keyed],
    settings: ControlSettings,
) -> "dict[str, pd.DataFrame]":
    """The tables of the control set-up, empty where nothing was planted."""
    layers = _layers(found["layers"], found["windows"])
    norms = _frame("control_gradients", found["gradients"])
    scores = plant_scores(layers, settings.ks, settings.validation_tasks)
    return {
        "control": scores[list(COLUMNS["control"])],
        "control_layers": layers,
        "control_gradients": norms,
        "nulls": null_claims(layers),
        "plants": _plants(planted, found["mcog"]),
        "post_processing": _post_processing(norms, settings.validation_tasks),
    }


def _frame(name: str, parts: Keyed) -> "pd.DataFrame":
    import pandas as pd

    columns = list(COLUMNS[name])
    frames = [rows.to_pandas().assign(**key) for key, rows in parts]
    whole = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=columns)
    return whole[columns]


def _layers(layers: Keyed, windows: Keyed) -> "pd.DataFrame":
    """Weights, and the largest share of labels that changing layers undid."""
    undone = {_name(key): float(np.max(rows["error"].to_numpy())) for key, rows in windows}
    filled = [({**key, "undone": undone.get(_name(key), np.nan)}, rows) for key, rows in layers]
    return _frame("control_layers", filled)


def _name(key: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(key[name] for name in (*PLANT, "method"))


def _plants(planted: Sequence[tuple[Mapping[str, Any], Run]], mcog: Keyed) -> "pd.DataFrame":
    """One row per plant: the rate that was needed, the accuracies, whether it was used."""
    import pandas as pd

    methods: dict[tuple[Any, ...], list[str]] = {}
    for key, _ in mcog:
        methods.setdefault(tuple(key[name] for name in PLANT), []).append(key["method"])
    rows = []
    for key, run in planted:
        final, used = run.record.final, methods.get(tuple(key[name] for name in PLANT), [])
        rows.append(
            {
                **key,
                "learning_rate": run.settings.finetune.learning_rate,
                "tries": max(1, len(run.record.attempts)),
                "training_accuracy": final.training if final else np.nan,
                "noisy_accuracy": final.noisy if final else np.nan,
                "methods": ", ".join(used),
                "used": bool(used),
            }
        )
    return pd.DataFrame(rows, columns=list(COLUMNS["plants"]))


def _post_processing(norms: "pd.DataFrame", validation_tasks: Sequence[str]) -> "pd.DataFrame":
    """Appendix E: accuracy@2 of gradients with each step on and off, on the validation tasks."""
    import pandas as pd

    rows = []
    chosen = norms[norms["task"].isin(validation_tasks) & ~norms["null"].astype(bool)]
    for key, part in chosen.groupby(["model", "planted", "task", "seed"], sort=False):
        model, planted, found = key[0], planted_layers(str(key[1])), norms_from(part)
        for norm in ("L1", "L2"):
            for (subtract, divide), weights in variants(found, norm).items():
                accuracy = accuracy_at_k(weights, planted, POST_PROCESSED_AT)
                step = {"subtract_clean": subtract, "divide_frozen": divide}
                rows.append({"model": model, "norm": norm, **step, "accuracy": accuracy})
    steps = ["model", "norm", "subtract_clean", "divide_frozen"]
    grouped = pd.DataFrame(rows, columns=[*steps, "accuracy"]).groupby(steps, sort=False)
    means = grouped["accuracy"].agg(["mean", "size"]).reset_index()
    return means.rename(columns={"mean": "accuracy", "size": "plants"})
