"""The tables of many runs: their columns, how they are stacked, and those of planted runs."""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from memloc.errors import StoreError
from memloc.methods.gradients import norms_from, variants
from memloc.protocol import ControlSettings
from memloc.run import Run
from memloc.stats.agreement import accuracy_at_k
from memloc.stats.planted import null_claims, plant_scores
from memloc.stats.verdicts import ALPHA, corrected
from memloc.stats.windows import planted_layers

if TYPE_CHECKING:
    import pandas as pd

_FILE = yaml.safe_load((files("memloc.results") / "columns.yaml").read_text(encoding="utf-8"))
KEY: tuple[str, ...] = tuple(_FILE["run"])
"""What a table starts with: which run a row is of."""
PLANT: tuple[str, ...] = tuple(_FILE["plant"])
"""Which layers of a control run may change (from 1), and whether nothing was planted there."""
COLUMNS: dict[str, list[str]] = {
    table: [name for each in columns for name in _FILE.get(each, [each])]
    for table, columns in _FILE["tables"].items()
}
POST_PROCESSED_AT = 2
"""Appendix E reports accuracy@2."""

Keyed = Sequence[tuple[Mapping[str, Any], Any]]
"""Parts of a table, each with the key that stands before its rows."""


def stacked(name: str, parts: Keyed) -> "pd.DataFrame":
    """The table of this name from its parts, which are all of pandas or all of Arrow."""
    import pandas as pd
    import pyarrow as pa

    if not parts:
        return pd.DataFrame(columns=COLUMNS[name])
    keys, tables = zip(*parts, strict=True)
    for key, table in parts:
        there = {*key, *(table.columns if isinstance(table, pd.DataFrame) else table.column_names)}
        if lacking := sorted(set(COLUMNS[name]) - there):
            raise StoreError(
                f"A table of {name} ({key['task']}, {key['model']}) has no column {lacking[0]}: it "
                "is damaged or of another version; run what made it again."
            )
    if isinstance(tables[0], pd.DataFrame):
        body = pd.concat(tables, ignore_index=True)
    else:  # a study has thousands of small ones
        body = pa.concat_tables(tables, promote_options="permissive").to_pandas()
    rows = np.repeat(np.arange(len(keys)), [len(table) for table in tables])
    before = pd.DataFrame([dict(key) for key in keys]).take(rows).reset_index(drop=True)
    twice = [column for column in before if column in body]
    whole: pd.DataFrame = pd.concat([before, body.drop(columns=twice)], axis=1)
    return whole[COLUMNS[name]]


def control_tables(
    planted: Sequence[tuple[Mapping[str, Any], Run]],
    found: Mapping[str, Keyed],
    settings: ControlSettings,
) -> "dict[str, pd.DataFrame]":
    """The tables of the control set-up, empty where nothing was planted."""
    undone = {
        _plant(key, "method"): rows["error"].to_numpy().max() for key, rows in found["windows"]
    }
    layers = [
        ({**key, "undone": float(undone.get(_plant(key, "method"), np.nan))}, rows)
        for key, rows in found["layers"]
    ]
    weights = stacked("control_layers", layers)
    norms = stacked("control_gradients", found["gradients"])
    return {
        "control": plant_scores(weights, settings.ks, settings.validation_tasks)[
            COLUMNS["control"]
        ],
        "control_layers": weights,
        "control_gradients": norms,
        "nulls": null_claims(weights),
        "control_verdicts": control_verdicts(found["verdicts"]),
        "plants": _plants(planted, found["mcog"]),
        "post_processing": _post_processing(norms, settings.validation_tasks),
    }


def verdicts(found: Keyed) -> "pd.DataFrame":
    """What each method says of each run, and whether it still holds for all that are shown.

    `found` are records of verdicts. `corrected` are Holm's p-values over all runs and methods that
    can judge; a finding is significant after that.
    """
    table = _verdict_rows(found, COLUMNS["verdicts"])
    able = np.array([bool(record["answers"]) for _, record in found], dtype=bool)
    table["corrected"] = 1.0
    table.loc[able, "corrected"] = corrected(table.loc[able, "p"].tolist())
    table["finding"] = table["corrected"] <= ALPHA
    return table[COLUMNS["verdicts"]]


def control_verdicts(found: Keyed) -> "pd.DataFrame":
    """The same of planted runs; `right`: localised, and in planted layers alone."""
    table = _verdict_rows(found, COLUMNS["control_verdicts"])
    rows = zip(table["outcome"], found, strict=True)
    table["right"] = [
        outcome == "localised" and set(record["layers"]) <= set(_planted_in(key))
        for outcome, (key, record) in rows
    ]
    return table[COLUMNS["control_verdicts"]]


def _planted_in(key: Mapping[str, Any]) -> Sequence[int]:
    return [] if key["null"] else [layer + 1 for layer in planted_layers(str(key["planted"]))]


def _verdict_rows(found: Keyed, columns: Sequence[str]) -> "pd.DataFrame":
    import pandas as pd

    rows = [
        {**key, **{name: record[name] for name in ("outcome", "p", "sentence")}}
        | {"layers": ", ".join(map(str, record["layers"]))}
        for key, record in found
    ]
    return pd.DataFrame(rows, columns=list(columns))


def _plant(key: Mapping[str, Any], *more: str) -> tuple[Any, ...]:
    return tuple(key[name] for name in (*KEY, *PLANT, *more))


def _plants(planted: Sequence[tuple[Mapping[str, Any], Run]], mcog: Keyed) -> "pd.DataFrame":
    """One row per plant: the rate that was needed, the accuracies, whether it was used."""
    import pandas as pd

    methods: dict[tuple[Any, ...], list[str]] = {}
    for key, _ in mcog:
        methods.setdefault(_plant(key), []).append(key["method"])
    rows = []
    for key, run in planted:
        final, used = run.record.final, methods.get(_plant(key), [])
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
    return pd.DataFrame(rows, columns=COLUMNS["plants"])


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
                rows.append((model, norm, subtract, divide, accuracy))
    steps = COLUMNS["post_processing"][:-2]
    grouped = pd.DataFrame(rows, columns=[*steps, "accuracy"]).groupby(steps, sort=False)
    means = grouped["accuracy"].agg(["mean", "size"]).reset_index()
    return means.rename(columns={"mean": "accuracy", "size": "plants"})
