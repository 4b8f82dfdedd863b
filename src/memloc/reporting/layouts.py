"""What tables hold: tidy numbers with their intervals, and the paper's layout of them."""

from collections.abc import Callable

import numpy as np
import pandas as pd

from memloc.records import FloatArray
from memloc.reporting.figures.style import method_order, task_order
from memloc.reporting.findings import BINARY, POINT, Findings
from memloc.reporting.means import (
    RESAMPLES,
    bootstrap_ends,
    counted_events,
    over_seeds,
)
from memloc.reporting.pretraining import layer_parameters, pretraining, rounded
from memloc.seeds import generator
from memloc.stats.agreement import FEWEST_GROUPS
from memloc.stats.intervals import bootstrap_counts, wilson
from memloc.stats.planted import MEASURES, distances, mean_scores

NO_INTERVAL = f"No interval: fewer than {FEWEST_GROUPS} tasks."
UNEVEN = (
    "Where classes are uneven, the generalisation score is high for whoever always predicts the "
    "most frequent label: see the table of scores."
)
PERMUTED = (
    "For p, whole tasks are permuted (all orders up to eight tasks): it is small where both sides "
    "agree on how tasks differ, whatever all tasks share."
)


def tasks(findings: Findings) -> pd.DataFrame:
    """One row a task: the paper's Table 1 for the tasks that are here."""
    from memloc.data.tasks import PAPER_TASKS, known_tasks

    known, runs = known_tasks(), findings.results.runs
    first = {row["task"]: row for row in runs.drop_duplicates("task").to_dict("records")}
    rows = []
    for task in task_order(runs["task"]):
        paper = PAPER_TASKS.get(task.removesuffix(BINARY))
        about = known[task].description if task in known else "own data"
        row = first[task]
        rows.append(
            {
                "category": row["category"],
                "dataset": task,
                "task": paper.description if paper and paper.name == task else about,
                "domain": paper.domain if paper else "–",
                "size": row["train"],
                "noisy": row["noisy"],
                "labels": row["n_classes"],
            }
        )
    return pd.DataFrame(rows)


def models(findings: Findings) -> pd.DataFrame:
    """One row a model: the paper's Table 3 for the models that are here."""
    results = findings.results
    rows = {}
    for record, run in zip(results.records, results.runs.to_dict("records"), strict=True):
        name = record.model
        rows[run["model"]] = {
            "model": run["model"],
            **{key: pretraining(name).get(key) for key in ("corpus", "tokens", "steps")},
            "parameters": layer_parameters(name, results.folder / run["folder"]),
            "layers": record.depth,
            "width": record.width,
            "loaded from": name,
            "weights": record.weights_hash,
        }
    return pd.DataFrame(list(rows.values()))


def table_3(tidy: pd.DataFrame) -> pd.DataFrame:
    """Large numbers the way papers have them."""
    large = {n: [rounded(None if pd.isna(v) else v) for v in tidy[n]] for n in LARGE}
    return tidy.assign(**large)


LARGE = ("tokens", "steps", "parameters")


def table_2(tidy: pd.DataFrame) -> pd.DataFrame:
    """One column per model, one row per score and measure."""
    rows = ["score", "measure"]
    named = tidy.assign(measure=tidy["measure"].replace("memorisation", "mem. » gen."))
    wide = named.assign(text=coefficients(tidy)).pivot(index=rows, columns="model", values="text")
    wide = wide.loc[list(map(tuple, named[rows].drop_duplicates().to_numpy()))]
    return wide[list(dict.fromkeys(tidy["model"]))].reset_index().rename_axis(columns=None)


def scores(tidy: pd.DataFrame) -> pd.DataFrame:
    """One row per run: its score, that of the most frequent label, and what is left above it."""
    texts = {
        "score": estimates(tidy["score"], tidy["low"], tidy["high"]),
        "normalised": _named(tidy, "normalised"),
        "clean examples only": estimates(
            tidy["clean_score"], tidy["clean_low"], tidy["clean_high"]
        ),
    }
    shown = [*POINT, "seed", "score", "majority", "normalised", "clean examples only", "models"]
    return tidy.assign(**texts)[shown]


def table_4(tidy: pd.DataFrame) -> pd.DataFrame:
    """One column per model and norm, one row per choice of steps."""
    steps = ["subtract_clean", "divide_frozen"]
    found = wilson(*(tidy[n].to_numpy(np.float64) for n in ("accuracy", "plants")))
    named = tidy.assign(column=tidy["model"] + " " + tidy["norm"])
    named["text"] = estimates(tidy["accuracy"], found.low, found.high)
    wide = named.pivot(index=steps, columns="column", values="text").reset_index()
    wide[steps] = wide[steps].map(lambda on: "yes" if on else "no")
    names = {"subtract_clean": "subtracting clean", "divide_frozen": "normalising frozen"}
    return wide.rename(columns=names).rename_axis(columns=None)


def control(findings: Findings) -> pd.DataFrame:
    """Accuracy and the other measures of every method and k, each with its ends."""
    scores = findings.results.control
    if scores.empty:
        return scores
    found = mean_scores(scores, ["method"])
    tested = scores if scores["validation"].all() else scores[~scores["validation"].astype(bool)]
    for name in MEASURES:
        ends = [
            bootstrap_ends(part[name].to_numpy(np.float64))
            for part in (
                tested[(tested["method"] == m) & (tested["k"] == k)]
                for m, k in found[["method", "k"]].itertuples(index=False)
            )
        ]
        found[[f"{name}_low", f"{name}_high"]] = ends
    return found


def control_rows(tidy: pd.DataFrame) -> pd.DataFrame:
    """One row per method and k."""
    texts = {
        "accuracy": estimates(tidy["accuracy"], tidy["low"], tidy["high"]),
        **{n: _named(tidy, n) for n in MEASURES},
    }
    shown = ["method", "k", "accuracy", "chance", *MEASURES, "plants"]
    return _by_method(tidy.assign(**texts))[shown]


def nulls(findings: Findings) -> pd.DataFrame:
    """What the control set-up says of nulls, with the ends of what it leaves without."""
    found = findings.results.nulls
    if found.empty:
        return found
    plants = distances(findings.results.control_layers)
    rows = []
    for method in found["method"]:
        part = plants[plants["method"] == method]
        null = part["null"].astype(bool)
        ends = {"apart": _apart_ends(part.loc[~null, "distance"], part.loc[null, "distance"])}
        for name, kind in (("undone_planted", ~null), ("undone_null", null)):
            ends[name] = bootstrap_ends(part.loc[kind, "undone"].to_numpy(np.float64))
        rows.append({f"{n}_{e}": ends[n][i] for n in ends for i, e in enumerate(ENDS)})
    return pd.concat([found, pd.DataFrame(rows, index=found.index)], axis=1)


def null_rows(tidy: pd.DataFrame) -> pd.DataFrame:
    """One row per method."""
    shown = {words: _named(tidy, name) for name, words in NULLS.items()}
    return _by_method(tidy[["method", "plants", "nulls"]].assign(**shown))


ENDS = ("low", "high")
NULLS = {
    "called": "nulls called localised",
    "apart": "planted further from uniform",
    "undone_planted": "labels undone, planted",
    "undone_null": "labels undone, null",
}


def mean_over_seeds(value: str, columns: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Means over seeds with the seeds' least and greatest end: one row per task and model."""

    def layout(tidy: pd.DataFrame) -> pd.DataFrame:
        found = over_seeds(tidy, [*POINT, columns], value)
        wide = _a_column_each(found, columns, estimates(found[value], found["low"], found["high"]))
        return wide[[*POINT, *method_order(wide.columns.drop(POINT))]]

    return layout


def events(tidy: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds, one row per task and model; never counts as the layer after the last.

    What never happens in some seeds, or where classes cannot be told apart, is said.
    """
    counted, keys = counted_events(tidy), [*POINT, "event"]
    found = over_seeds(counted, keys, "layer")
    sums = counted.groupby(keys, sort=False)[["never", "unclear"]].sum()
    texts = estimates(found["layer"], found["low"], found["high"])
    said = [
        "".join(f"; {n} {word}" for n, word in ((a, "never"), (b, "not separable")) if n)
        for a, b in sums[["never", "unclear"]].itertuples(index=False)
    ]
    return _a_column_each(found, "event", [a + b for a, b in zip(texts, said, strict=True)])


def _a_column_each(found: pd.DataFrame, columns: str, texts: list[str]) -> pd.DataFrame:
    """Texts by task and model in the order that these have, a column each of `columns`."""
    wide = found.assign(text=texts).pivot(index=POINT, columns=columns, values="text")
    wide = wide.loc[list(map(tuple, found[POINT].drop_duplicates().to_numpy()))]
    return wide.reset_index().rename_axis(columns=None)


def runs(tidy: pd.DataFrame) -> pd.DataFrame:
    """The columns that a person looks for first."""
    unseen = (tidy[n].to_numpy(np.float64) for n in ("validation_accuracy", "validation"))
    found = wilson(*unseen)
    accuracies = estimates(tidy["validation_accuracy"], found.low, found.high)
    shown = ["task", "model", "seed", "train", "noisy", "memorised", "noisy_accuracy"]
    shown += ["clean_accuracy", "reference_accuracy", "validation_accuracy", "preset"]
    return tidy.assign(validation_accuracy=accuracies)[shown]


def matrix(tidy: pd.DataFrame) -> pd.DataFrame:
    """Coefficients as texts, with p, the number of pairs, and why some are not there."""
    first = [name for name in COMPARED if name in tidy.columns]
    return tidy.assign(**{"ρ": coefficients(tidy)})[[*first, "ρ", "p", "n", "why"]]


def orders(tidy: pd.DataFrame) -> pd.DataFrame:
    """One row per method: mean ρ with its interval, and the range over pairs of models."""
    ranges = [f"{a:.2f} to {b:.2f}" for a, b in tidy[["least", "largest"]].to_numpy()]
    texts = {"mean ρ": estimates(tidy["rho"], tidy["low"], tidy["high"]), "single pairs": ranges}
    return _by_method(tidy.assign(**texts))[["method", *texts, "pairs", "models", "tasks"]]


def order_note(tidy: pd.DataFrame) -> str:
    """What is averaged, and what the paper has."""
    known = "In brackets: 95 % bootstrap interval over tasks."
    return (
        "Mean over pairs of models of ρ over tasks between their M-CoG, as the paper has it for "
        f"retraining (.85). {NO_INTERVAL if tidy['low'].isna().any() else known}"
    )


COMPARED = (
    *("between", "what", "one", "other", "centroids", "label_probes"),
    *("measure", "large", "model"),
)


def binarised(findings: Findings) -> pd.DataFrame:
    """Tasks with all their classes beside those with two; differences with their ends."""
    found, depths = findings.binarisation, findings.binary_depths
    if found.empty:
        return found
    whole = {two: many for many, two in findings.binary.items()}
    two = depths[depths["task"].isin(whole)].assign(task=depths["task"].map(whole))
    both = depths.merge(two, on=[*POINT, "measure"], suffixes=("", "_two"))
    both["difference"] = both["depth_two"] - both["depth"]
    rows = []
    for measure in found["measure"]:
        part = both[both["measure"] == measure]
        plain = part["difference"].to_numpy(np.float64)
        ends = bootstrap_ends(plain, part["task"]), bootstrap_ends(np.abs(plain), part["task"])
        rows.append([*ends[0], *ends[1]])
    names = [f"{n}_{end}" for n in DIFFERENCES for end in ENDS]
    return pd.concat([found, pd.DataFrame(rows, columns=names, index=found.index)], axis=1)


DIFFERENCES = ("mean_difference", "mean_absolute")


def binarised_rows(tidy: pd.DataFrame) -> pd.DataFrame:
    """One row per measure."""
    texts = {n: _named(tidy, n) for n in DIFFERENCES}
    found = tidy.assign(**{"ρ": coefficients(tidy)}, **texts)
    return found[["measure", "ρ", "p", "n", *DIFFERENCES, "why"]]


def coefficients(tidy: pd.DataFrame) -> list[str]:
    """ρ with its interval, a star where it is not significant, a dagger where points are unsure."""
    marks = [
        ("" if sure else "*") + (DAGGER if unclear else "")
        for sure, unclear in zip(tidy["significant"], _unclear(tidy), strict=True)
    ]
    return estimates(tidy["rho"], tidy["low"], tidy["high"], marks)


DAGGER = "†"


def _unclear(tidy: pd.DataFrame) -> "list[bool]":
    """Which coefficients have points that are events where classes cannot be told apart."""
    named = tidy.get("n_inseparable")
    return [False] * len(tidy) if named is None else [bool(n > 0) for n in named]


def coefficient_note(tidy: pd.DataFrame) -> str:
    """What stars and brackets say, or why there are no brackets."""
    known = tidy[tidy["rho"].notna()]
    words = [f"*: p > .05. {PERMUTED}"]
    if any(_unclear(known)):
        words.append(f"{DAGGER}: some events are at layers where classes cannot be told apart.")
    if known["low"].notna().any():
        words.append("In brackets: 95 % bootstrap interval over tasks.")
    if known["low"].isna().any():
        words.append(NO_INTERVAL)
    return " ".join(words)


def table_2_note(tidy: pd.DataFrame) -> str:
    """The same, and which methods the mean centre of gravity is over."""
    means = tidy.loc[(tidy["measure"] == "M-CoG") & (tidy["methods"] != ""), "methods"]
    words = f" M-CoG is {averaged(means.iloc[0])}." if len(means) else ""
    return f"{coefficient_note(tidy)}{words} {UNEVEN}"


def averaged(methods: str) -> str:
    """Of what a centre of gravity is the mean, from the names of the methods."""
    names = method_order(methods.split(", "))
    if len(names) == 1:
        return f"that of {names[0]}"
    listed = f"{', '.join(names[:-1])} and {names[-1]}"
    return f"the mean over {listed}, for tasks and models that have all of them"


def estimates(
    values: "pd.Series",
    low: "pd.Series | FloatArray",
    high: "pd.Series | FloatArray",
    marks: list[str] | None = None,
) -> list[str]:
    """Numbers with their intervals as texts."""
    every = zip(values, marks or [""] * len(values), low, high, strict=True)
    return [_estimate(*each) for each in every]


def _named(tidy: pd.DataFrame, name: str) -> list[str]:
    return estimates(tidy[name], tidy[f"{name}_low"], tidy[f"{name}_high"])


def _estimate(value: float, mark: str, low: float, high: float) -> str:
    if np.isnan(value):
        return "–"
    ends = "" if np.isnan(low) or np.isnan(high) else f" [{low:.2f}, {high:.2f}]"
    return f"{value:.2f}{mark}{ends}"


def _by_method(table: pd.DataFrame) -> pd.DataFrame:
    order = method_order(table["method"])
    return table.sort_values("method", key=lambda names: names.map(order.index), kind="stable")


def _apart_ends(real: "pd.Series", null: "pd.Series") -> tuple[float, float]:
    """Ends of how often a number of `real` is above one of `null`, both of which are resampled."""
    if min(len(real), len(null)) < 2:
        return np.nan, np.nan
    one, other = real.to_numpy(np.float64)[:, None], null.to_numpy(np.float64)
    wins = (one > other) + (one == other) / 2
    rng = generator(0, "bootstrap", "nulls")
    drawn = [bootstrap_counts(n, RESAMPLES, rng) / n for n in wins.shape]
    low, high = np.quantile(((drawn[0] @ wins) * drawn[1]).sum(1), [0.025, 0.975])
    return float(low), float(high)
