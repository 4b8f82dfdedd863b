"""Do real models agree on where they keep what they memorised? Tables for the page of findings.

The models of the study `wide`, beside the narrower encoder of the study `evidence` on the same
tasks. Depth is in per cent of a model's layers, so that twelve and thirty layers can be compared.
What the models were expected to show was written down before their results: `decoder.md`.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd

from memloc.reporting.results import Results
from memloc.reporting.tables import markdown
from memloc.stats import claims
from memloc.stats.agreement import correlation
from studies.answers import rho
from studies.evidence import ENCODER, Registered
from studies.exact import MEASURES, joined

WIDE = Registered("wide")
FEWEST = 5
"""Tasks from which on a coefficient has an interval."""


def together(encoder: Results) -> Results:
    """Join the runs of all real models, on the tasks that they have in common."""
    wide = joined(WIDE)
    tables = dict(wide.tables)
    for name, table in encoder.tables.items():
        if "task" in table:
            parts = [table[table["task"].isin(WIDE.file["tasks"])], wide.tables[name]]
            tables[name] = pd.concat([part for part in parts if len(part)] or parts)
    return Results(wide.folder, wide.protocol, tables)


def texts(found: Results) -> dict[str, str]:
    """Return what stands on the page, by the names of its marks."""
    if not _are_several(found):
        return dict.fromkeys(("models", "orders", "predicted"), "No wide model is computed yet.\n")
    names, order = " · ".join(dict.fromkeys(found.runs["model"])), orders(found)
    return {
        "models": f"In each cell: {names}.\n\n{markdown(by_task(found))}",
        "orders": markdown(order) if len(order) else "Too few tasks to compare orders yet.\n",
        "predicted": markdown(predicted(found)),
    }


def files(found: Results) -> dict[str, pd.DataFrame]:
    """Return the tables to download, by the names of their files."""
    if not _are_several(found):
        return {}
    cost = pd.read_csv(WIDE.folder / "costs.csv")
    tables = {"depths": depths(found), "orders": orders(found), "predicted": predicted(found)}
    return {**tables, "cost": cost}


def _are_several(found: Results) -> bool:
    return found.runs["model"].nunique() > 1


def depths(found: Results) -> pd.DataFrame:
    """Return one row per task, model and measure: the depth in per cent of the model's layers."""
    table = found.depths
    table = table[table["measure"].isin(MEASURES)]
    return table.assign(per_cent=100 * table["depth"] / table["layers"])[
        ["task", "model", "measure", "per_cent", "n", "n_never", "n_inseparable"]
    ]


def by_task(found: Results) -> pd.DataFrame:
    """Return one row per task: every model's validation score and depths, one after the other."""
    names = list(dict.fromkeys(found.runs["model"]))
    scores = _validation(found).pivot_table("score", "task", "model")
    table = pd.DataFrame({"validation score": _side_by_side(scores, names, ".2f")})
    depth = depths(found)
    for measure in (name for name in MEASURES if name in depth["measure"].to_numpy()):
        wide = depth[depth["measure"] == measure].pivot_table("per_cent", "task", "model")
        table[f"{MEASURES[measure]}, %"] = _side_by_side(wide, names, ".0f")
    order = [task for task in WIDE.file["tasks"] if task in table.index]
    return table.reindex(order).fillna("–").rename_axis("task").reset_index()


def _side_by_side(table: pd.DataFrame, names: list[str], form: str) -> "pd.Series[str]":
    cells = table.reindex(columns=names).map(lambda v: "–" if pd.isna(v) else f"{v:{form}}")
    return cells.agg(" · ".join, axis=1)


def orders(found: Results) -> pd.DataFrame:
    """Return one row per measure: do models agree on the order of tasks, and is depth where the
    validation score is better?

    The first is the mean ρ over pairs of models, on the tasks that all have; the second is over the
    points of all models, with p from permuting whole tasks.
    """
    table, rows = found.depths, []
    models = table.groupby("task")["model"].nunique()
    table = table[table["task"].isin(models.index[models == table["model"].nunique()])]
    depth = table.assign(method=table["measure"], mcog=table["depth"] / table["layers"])
    agreed = claims.order_agreement(depth[depth["measure"].isin(MEASURES)])
    of = {row["method"]: row for row in agreed.to_dict("records")}
    measures = [name for name in MEASURES if name in of]
    scores = _validation(found).assign(against="validation")
    by_score = claims.depth_and_generalisation(table, scores, measures)
    by_score = by_score[(by_score["score"] == "validation") & (by_score["model"] == claims.ALL)]
    for row in by_score.to_dict("records"):
        pairs = of[row["measure"]]
        enough = pairs["tasks"] >= FEWEST
        ends = f" [{pairs['low']:.2f}, {pairs['high']:.2f}]" if enough else ""
        coefficient, _, corrected, verdict = rho(row)
        rows.append(
            {
                "measure": MEASURES[str(row["measure"])],
                "models agree on the order, ρ": f"{pairs['rho']:.2f}{ends}",
                "models": pairs["models"],
                "tasks": pairs["tasks"],
                "deeper if validation is better, ρ": coefficient,
                "corrected p": corrected,
                "verdict": verdict,
            }
        )
    return pd.DataFrame(rows)


def _validation(found: Results) -> pd.DataFrame:
    """Return the validation scores of tasks and models."""
    runs = found.memorised("runs")
    scores = claims.task_scores(runs, found.memorised("generalisation"))
    return scores[scores["against"] == "validation"]


class Expected(NamedTuple):
    """What a prediction says: how its number is computed of a model's results, and when it is
    right.
    """

    sentence: str
    number: Callable[[Results], "float | None"]
    is_right: Callable[[float], bool]


ORDERS = {
    "crossing": {"rte": 1.0, "cola": 2.0, "wic": 2.3, "emotion": 3.0, "sst2": 4.0, "trec": 7.3},
    "memorisation": {
        **{"rte": 1.0, "wic": 2.3, "cola": 4.0, "sst2": 6.3, "trec": 8.0, "emotion": 8.5}
    },
}
"""Layers of the narrow encoder in the study `twelve`, from which the predictions were made."""


def _of_tasks(found: Results, measure: str) -> "pd.Series[float]":
    table = depths(found)
    return table[table["measure"] == measure].set_index("task")["per_cent"]


def _whole(values: "pd.Series[float]") -> "pd.Series[float] | None":
    """Return the values in the order of the tasks if every task has one."""
    tasks = WIDE.file["tasks"]
    return values.loc[tasks] if {*tasks} <= {*values.dropna().index} else None


def _rho(values: "pd.Series[float]", others: "pd.Series[float]") -> float:
    pairs = pd.concat([values, others], axis=1).loc[values.index]
    return correlation(*pairs.to_numpy(float).T).rho


def _in_order(measure: str) -> Callable[[Results], float | None]:
    def number(found: Results) -> float | None:
        values = _whole(_of_tasks(found, measure))
        known = pd.Series(ORDERS[measure])
        return None if values is None else _rho(values, known)

    return number


def _deeper(found: Results) -> float | None:
    """Return by how much ρ of crossing and score is above the larger of 0 and that of windows."""
    scores = _validation(found).set_index("task")["score"]
    rhos = []
    for measure in ("crossing", "M-CoG swapping"):
        if (values := _whole(_of_tasks(found, measure))) is None:
            return None
        rhos.append(_rho(values, scores))
    above: float = rhos[0] - max(0.0, np.nan_to_num(rhos[1]))
    return above


def _central(found: Results) -> float | None:
    values = _whole(_of_tasks(found, "M-CoG swapping"))
    return None if values is None else float(values.between(43, 56).sum())


def _largest(name: str, method: str, value: str, below: float) -> Callable[[Results], float | None]:
    """Count the tasks in which no single layer reaches a value."""

    def number(found: Results) -> float | None:
        table = found.memorised(name)
        table = table[table["method"] == method]
        if name == "windows":
            table = table[table["first"] == table["last"]]
        values = _whole(table.groupby("task")[value].max())
        return None if values is None else float((values < below).sum())

    return number


def _clean_first(found: Results) -> float | None:
    """Count the tasks in which half of the clean labels are learnt at an earlier epoch."""
    table = found.memorised("timeline_summary")
    if table.empty:
        return None
    wide = table.pivot_table("epoch", "task", "examples")
    earlier = _whole((wide["clean"] < wide["noisy"]).astype(float))
    return None if earlier is None else float(earlier.sum())


ALL, MOST = 6, 5
"""All tasks, and those in which a prediction about most of them must be right."""
ALIKE = 0.6
"""Least ρ of two orders of tasks that count as one."""
_swapped = _largest("windows", "swapping", "error", 0.15)
_shared = _largest("layers", "shares", "weight", 0.25)
PREDICTED = [
    Expected("tasks cross in the encoder's order", _in_order("crossing"), lambda v: v >= ALIKE),
    Expected("so does label probes' event", _in_order("memorisation"), lambda v: v >= ALIKE),
    Expected("crossing goes with the score, and more than windows", _deeper, lambda v: v > 0),
    Expected("windows are centred at 43 % to 56 %, tasks", _central, lambda v: v == ALL),
    Expected("no swapped layer undoes .15, tasks", _swapped, lambda v: v >= MOST),
    Expected("clean labels are learnt first, tasks", _clean_first, lambda v: v >= MOST),
    Expected("no layer has a share of .25, tasks", _shared, lambda v: v >= MOST),
]


def predicted(found: Results) -> pd.DataFrame:
    """Return one row per prediction: its number in each wide model, and whether it is right."""
    wide = [name for name in dict.fromkeys(found.runs["model"]) if name != ENCODER]
    rows = []
    for at, expected in enumerate(PREDICTED, 1):
        row: dict[str, object] = {"#": at, "prediction": expected.sentence}
        for name in wide:
            number = expected.number(found.only(model=name))
            row[name] = "not computed yet" if number is None else _said(number, expected)
        rows.append(row)
    return pd.DataFrame(rows)


def _said(number: float, expected: Expected) -> str:
    return f"{number:.3g}: {'right' if expected.is_right(number) else 'wrong'}"
