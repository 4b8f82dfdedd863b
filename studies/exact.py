"""What the runs of `studies.evidence` say: tables for docs/explanation/real_models.md.

Files to download have one row per run; the page has one per task, so that it stays short when runs
are added. One run of a task has an interval over examples, several have their range.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
import pandas as pd

from memloc.arrays import FloatArray
from memloc.methods.early import LEAST_GAP
from memloc.reporting.results import Results, settings_of
from memloc.reporting.tables import markdown
from memloc.stats import claims
from memloc.stats.answers import corrected
from memloc.stats.depth import centres_of_gravity
from memloc.stats.intervals import t_ends
from studies.answers import BY_SHARES, answers, rho
from studies.evidence import STAGES, Registered
from studies.stored import KEPT, kept

Column: TypeAlias = Callable[[pd.DataFrame], str]
"""How a column is summed up over the runs of a task."""
STUDY = Registered()
KEY = ["task", "seed"]
OF_STAGES = {"runs", "training", "answers"}
"""Tables that the first stage has whole."""
SAME, CLOSE = 0.9, 0.5
"""Least correlation of shares, and largest distance of centres, of the same answer."""
MEASURES = {
    "crossing": "crossing",
    "memorisation": "label probes",
    "M-CoG swapping": "centre of windows",
    "M-CoG gradients": "centre of gradients",
    "M-CoG shares": "centre of shares",
}
"""Measures of depth, and what they are called on the page."""
LEVEL = 0.05
"""Corrected p up to which a difference counts as shown."""


def evidence(generalisation: pd.DataFrame) -> Results:
    """Return the runs of the study; scores of tasks come from a study of the same examples."""
    found = joined(STUDY)
    known = generalisation["task"].isin(found.runs["task"])
    return found.with_tables(generalisation=generalisation[known])


def joined(study: Registered) -> Results:
    """Join the stages of a study's runs."""
    first, *others = (
        kept(study.folder / stage) for stage in ("layers", "time", "probes", "retraining")
    )
    tables = dict(first.tables)
    for name in KEPT:
        parts = [getattr(each, name) for each in (first, *others)]
        if name not in OF_STAGES and any(map(len, parts)):
            tables[name] = pd.concat([part for part in parts if len(part)])
    return Results(study.folder, settings_of(study.folder, []), tables)


def texts(found: Results) -> dict[str, str]:
    """Return what stands on the page, by the names of its marks."""
    when, early = by_task(times(found), WHEN), by_task(donors(found), DONORS)
    return {
        "standing": f"{standing(found)}\n{precision(found)}",
        "exact": markdown(answers(found)[BY_SHARES]),
        "profile": f"{markdown(profile(found))}\n{parts(found)}",
        "depth": markdown(depth(found)),
        "where": markdown(by_task(held(found), WHERE)),
        "donors": markdown(early) if len(early) else "No early donor is compared yet.\n",
        "when": markdown(when) if len(when) else "No timeline is computed yet.\n",
    }


def files(found: Results) -> dict[str, pd.DataFrame]:
    """Return the tables with one row per run, by the names of their files."""
    tables = {"where": held(found), "when": times(found), "donors": donors(found)}
    return {"cost": _read("costs")} | {name: table for name, table in tables.items() if len(table)}


def standing(found: Results) -> str:
    """Return how many pieces of each stage are computed, and how many runs memorised."""
    missing = {*STUDY.left()}
    every = pd.DataFrame([*dict.fromkeys(STUDY.order())])
    every["done"] = [piece not in missing for piece in dict.fromkeys(STUDY.order())]
    counts = every.groupby("stage")["done"].agg(["sum", "size"])
    computed = counts["sum"].astype(str) + " of " + counts["size"].astype(str)
    row = computed.reindex([*STAGES]).to_frame().T
    memorised = found.runs["memorised"].astype(bool)
    row["memorised"] = f"{memorised.sum()} of {len(memorised)}"
    row["tasks"] = found.runs["task"].nunique()
    row["draws of noise"] = found.runs["seed"].nunique()
    return markdown(row)


def precision(found: Results) -> str:
    """Say whether a training in float32 gives the same answer, by the rule of the study."""
    other = kept(STUDY.folder / "float32")
    if other.runs.empty:
        return "The shares of a training in float32 are missing, so the rule on bfloat16 is open.\n"
    one, two = (_shares(each).loc[tuple(other.runs[KEY].iloc[0])] for each in (found, other))
    r, centres = np.corrcoef(one, two)[0, 1], (_centre(one), _centre(two))
    learnt = bool(other.runs["memorised"].all())
    same = learnt and r >= SAME and abs(centres[0] - centres[1]) < CLOSE
    return (
        f"TREC in float32 gives {'the same' if same else 'another'} answer by the rule: shares "
        f"correlate by {r:.2f}, with centres {centres[0]:.2f} (bfloat16) and {centres[1]:.2f}.\n"
    )


def _shares(found: Results) -> pd.DataFrame:
    """Return the shares of the layers, one row per run."""
    layers = found.memorised("layers")
    return layers[layers["method"] == "shares"].pivot_table("weight", KEY, "layer", sort=False)


def _centre(shares: pd.Series) -> float:
    return float(centres_of_gravity(np.maximum(0, np.asarray(shares, dtype=np.float64))))


def depth(found: Results) -> pd.DataFrame:
    """Return whether depth goes with either score over tasks, one row per measure of depth.

    P-values are corrected (Holm) over all measures and both scores.
    """
    scores = claims.task_scores(found.memorised("runs"), found.memorised("generalisation"))
    measured = [name for name in MEASURES if name in found.depths["measure"].to_numpy()]
    table = claims.depth_and_generalisation(found.depths, scores, measured)
    rows = []
    for measure, part in table[table["model"] == claims.ALL].groupby("measure", sort=False):
        row = {"depth": MEASURES[str(measure)], "tasks": int(part["n"].max())}
        for found_of in part.to_dict("records"):
            text, _, p, _ = rho(found_of)
            row[f"ρ with {found_of['score']}"] = text
            row |= {"corrected p" + " " * (found_of["score"] == "validation"): p}
        rows.append(row)
    return pd.DataFrame(rows)


def profile(found: Results) -> pd.DataFrame:
    """Return the share of each layer: the mean over tasks of means over seeds, and its interval."""
    tasks = _shares(found).groupby("task").mean()
    low, high = np.transpose([t_ends(values) for values in tasks.to_numpy(float).T])
    rows = {"mean share": tasks.mean(), "low": low, "high": high}
    table = pd.DataFrame(rows, index=tasks.columns).T.map("{:.3f}".format)
    return table.rename(columns=str).rename_axis("layer").reset_index()


def held(found: Results) -> pd.DataFrame:
    """Return one row per run: where its wrong labels are by exact shares."""
    tables = [found.memorised(name) for name in ("mcog", "answers", "layers")]
    mcog, said, layers = (table[table["method"] == "shares"] for table in tables)
    best = layers.loc[layers.groupby(KEY)["weight"].idxmax()]
    rows = mcog[[*KEY, "mcog", "low", "high"]].rename(columns={"mcog": "centre"})
    rows = rows.rename(columns={"low": "centre_low", "high": "centre_high"})
    rows = rows.merge(said[[*KEY, "word", "half", "undone", "corrected"]], on=KEY)
    names = {"layer": "top_layer", "weight": "top", "low": "top_low", "high": "top_high"}
    rows = rows.merge(best[[*KEY, *names]].rename(columns=names), on=KEY)
    return rows.merge(attention(), on=KEY, how="left")


def attention() -> pd.DataFrame:
    """Return the part of all shares that is in attention, one row per run that was split."""
    if not (STUDY.folder / "parts.csv").is_file():
        return pd.DataFrame(columns=[*KEY, "attention"])
    table = _read("parts")
    kind = table["unit"].str.split().str[0]
    sums = table.assign(kind=kind).pivot_table("share", KEY, "kind", aggfunc="sum")
    return (sums["attention"] / sums.sum(axis=1)).rename("attention").reset_index()


def parts(found: Results) -> str:
    """Say what part of the shares is in the first half of the layers, and in attention."""
    shares = _shares(found).groupby("task").mean().to_numpy(float)
    half = shares[:, : shares.shape[1] // 2].sum(1) / shares.sum(1)
    in_attention = held(found).groupby("task")["attention"].mean().dropna().to_numpy(float)
    texts = []
    for tasks in (half, in_attention):
        low, high = t_ends(tasks)
        texts.append(f"{tasks.mean():.2f} [{low:.2f}, {high:.2f}]")
    return (
        f"The first half of the layers holds {texts[0]} of the shares. Attention holds {texts[1]}, "
        f"and has a third\nof the layers' weights. Both are over {len(half)} tasks.\n"
    )


def times(found: Results) -> pd.DataFrame:
    """Return one row per run: when and where noisy and clean labels were learnt.

    P-values are corrected (Holm) over both questions of all runs.
    """
    table = found.memorised("timeline_summary").set_index([*KEY, "examples"])
    if table.empty:
        return pd.DataFrame(columns=KEY)
    rows = pd.DataFrame(
        {
            f"{what}_{kind}": table.xs(kind, level="examples")[what]
            for what in ("epoch", "centre", "top_layers")
            for kind in ("noisy", "clean")
        }
    )
    ps = table.xs("noisy", level="examples")[["p_epoch", "p_centre"]]
    exact: FloatArray = corrected(ps.to_numpy(float).ravel().tolist()).reshape(-1, 2)
    return rows.assign(p_epoch=exact[:, 0], p_centre=exact[:, 1]).reset_index()


def donors(found: Results) -> pd.DataFrame:
    """Return one row per run: shares of the same examples by the early donor and by the reference.

    The reference's are those of the examples that the early donor was compared on. An early donor
    that undoes nothing has no shares, and memloc refuses one that knows hardly fewer wrong labels
    than clean ones. Runs whose reference did not learn are left out.
    """
    if not (STUDY.folder / "early_donors.csv").is_file():
        return pd.DataFrame(columns=KEY)
    early, reference = _read("early_shares"), _read("reference_shares")
    both = early.merge(reference, on=[*KEY, "example"], suffixes=("", "_reference"))
    layers = [str(column) for column in early.filter(like="layer_")]
    learnt, rows = _shares(found).reset_index()[KEY], []
    for row in _read("early_donors").merge(learnt).to_dict("records"):
        own = both[(both[KEY] == [row[name] for name in KEY]).all(axis=1)]
        one, other = (own[[f"{n}{end}" for n in layers]].mean() for end in ("", "_reference"))
        if len(own):
            row |= {"r": np.corrcoef(one, other)[0, 1], "examples": len(own)}
            row |= {"early_centre": _centre(one), "reference_centre": _centre(other)}
        if row["knows_clean"] - row["knows_noisy"] < LEAST_GAP:
            row["answer"] = "refused"
        rows.append(row)
    return pd.DataFrame(rows, columns=[*KEY, *ABOUT_DONORS])


ABOUT_DONORS = ["r", "early_centre", "reference_centre", "epoch", "knows_clean", "knows_noisy"]
ABOUT_DONORS += ["undone", "damaged", "answer", "examples"]


def _read(name: str) -> pd.DataFrame:
    return pd.read_csv(STUDY.folder / f"{name}.csv")


def by_task(rows: pd.DataFrame, columns: Mapping[str, Column]) -> pd.DataFrame:
    """Return one row per task, with each column summed up over the task's runs."""
    made = [
        {"task": task, "runs": len(part), **{name: text(part) for name, text in columns.items()}}
        for task in dict.fromkeys(piece.task for piece in STUDY.order())
        if len(part := rows[rows["task"] == task])
    ]
    return pd.DataFrame(made)


def number(name: str, form: str = ".2f") -> Column:
    """Return how a column is summed up: one run with its interval, several with their range."""

    def text(rows: pd.DataFrame) -> str:
        values = rows[name].dropna().astype(float)
        if values.empty:
            return "–"
        ends = [rows[f"{name}_{end}"].iloc[0] for end in ("low", "high") if f"{name}_{end}" in rows]
        if len(values) > 1:
            return f"{values.mean():{form}} ({values.min():{form}}–{values.max():{form}})"
        return f"{values.iloc[0]:{form}}" + (
            f" [{ends[0]:{form}}, {ends[1]:{form}}]" if ends else ""
        )

    return text


def words(name: str) -> Column:
    """Return how a column of words is summed up: all of them, in the order of the runs."""
    return lambda rows: "; ".join(map(str, rows[name].dropna())) or "–"


def shown(p: str, larger: str, smaller: str) -> Column:
    """Return how often a column is significantly larger than another one."""

    def text(rows: pd.DataFrame) -> str:
        is_shown = (rows[p] <= LEVEL) & (rows[larger] > rows[smaller])
        return f"{is_shown.sum()} of {len(rows)}"

    return text


WHERE: dict[str, Column] = {
    "undone": number("undone"),
    "half is in layers": words("half"),
    "answer": words("word"),
    "centre": number("centre"),
    "largest share": number("top"),
    "its layer": words("top_layer"),
    "part of attention": number("attention"),
}
WHEN: dict[str, Column] = {
    "half by epoch: noisy": number("epoch_noisy", "g"),
    "clean": number("epoch_clean", "g"),
    "noisy later": shown("p_epoch", "epoch_noisy", "epoch_clean"),
    "centre: noisy": number("centre_noisy"),
    "clean ": number("centre_clean"),
    "noisy deeper": shown("p_centre", "centre_noisy", "centre_clean"),
    "less deep": shown("p_centre", "centre_clean", "centre_noisy"),
}
DONORS: dict[str, Column] = {
    "epoch": number("epoch", "g"),
    "it knows: clean": number("knows_clean"),
    "wrong": number("knows_noisy"),
    "undone": number("undone"),
    "damaged": number("damaged"),
    "its answer": words("answer"),
    "r of shares": number("r"),
    "centre": number("early_centre"),
    "by reference": number("reference_centre"),
}
