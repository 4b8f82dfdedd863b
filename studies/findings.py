"""Compares our studies with the paper's findings: `python -m studies.findings`.

Writes the short tables and the figures of docs/explanation/findings.md and real_models.md, and the
long tables as CSV files beside them. The numbers come from studies/tables: `evidence` is the real
encoder with exact shares and a draw of noise per seed, `wide` models of the paper's size, `twelve`
the same encoder with one draw and by the paper's measures, and `small` the embedded suite. Numbers
of the paper are those of its text, or read off its figures.
"""

import shutil
from collections.abc import Callable, Hashable, Mapping
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import fill
from typing import Any

import pandas as pd

from memloc.reporting.derived import layers_to_undo
from memloc.reporting.figures import write_figures
from memloc.reporting.results import Results
from memloc.reporting.tables import markdown
from memloc.stats import claims
from studies import exact, first, models
from studies.answers import BY_PAPER, answers
from studies.crossings import RULES, crossings
from studies.pages import DOCS, IMAGES, LINE, STORED, put
from studies.stored import kept

PAGE, REAL = (DOCS / "explanation" / name for name in ("findings.md", "real_models.md"))
FILES = PAGE.with_suffix("")
"""Folder of the tables to download."""
KEPT, RETRIED, SCALED, SMALL = (STORED / name for name in ("twelve", "retried", "scaled", "small"))
COST = KEPT / "cost.csv"
PICTURES = {
    "twelve-events.svg": ("events", {"source": "centroids", "models": "all-models"}),
    "twelve-depth.svg": ("generalisation", {"measure": "crossing", "against": "generalisation"}),
    "evidence-shares.svg": ("shares", {"value": "labels"}),
}
"""Figures of the report by file, whose name begins with the study; each with what is chosen."""
RUN, POINT = ["task", "model", "seed"], ["task", "model"]
WIDTHS = "7 to 10"
"""Layers that undo memorisation, read off the means over windows in Figure 3."""
TABLE_2 = {
    ("generalisation", "crossing"): ".75 (.72–.94)",
    ("generalisation", "memorisation"): ".63 (.69–.94)",
    ("generalisation", "M-CoG"): ".56 (.69–.92)",
    ("validation", "crossing"): ".70 (.70–.90)",
    ("validation", "memorisation"): ".61 (.76–.90)",
    ("validation", "M-CoG"): ".54 (.52–.80)",
}
"""All models together, and the range over single ones."""
CENTRES = {
    **{"wic": 5.45, "rte": 5.2, "mrpc": 5.55, "cola": 5.8, "boolq": 5.55, "sst2": 6.0},
    **{"sst5": 5.85, "emotion": 6.4, "implicithate": 6.2, "stormfront": 5.95},
    **{"reuters": 6.3, "trec": 6.05},
}
"""M-CoG over models and methods, read off Figure 7."""
Numbers = dict[str, dict[tuple[str, ...], float]]

METHODS: Numbers = {
    "M-CoG": {
        ("retraining", "swapping"): 0.97,
        ("probing", "swapping"): 0.55,
        ("probing", "retraining"): 0.58,
        ("gradients", "swapping"): 0.79,
        ("gradients", "retraining"): 0.77,
        ("gradients", "probing"): 0.49,
    },
    "layer weights": {
        ("retraining", "swapping"): 0.91,
        ("probing", "swapping"): 0.32,
        ("probing", "retraining"): 0.39,
        ("gradients", "swapping"): 0.68,
        ("gradients", "retraining"): 0.53,
        ("gradients", "probing"): 0.14,
    },
}
MODELS: Numbers = {
    "M-CoG": {
        ("bert", "opt"): 0.74,
        ("bert", "gpt-neo"): 0.76,
        ("bert", "gpt-neox"): 0.58,
        ("gpt-neo", "opt"): 0.69,
        ("gpt-neox", "opt"): 0.40,
        ("gpt-neo", "gpt-neox"): 0.48,
    },
    "layer weights": {
        ("bert", "opt"): 0.83,
        ("bert", "gpt-neo"): 0.67,
        ("bert", "gpt-neox"): 0.74,
        ("gpt-neo", "opt"): 0.80,
        ("gpt-neox", "opt"): 0.73,
        ("gpt-neo", "gpt-neox"): 0.65,
    },
}
EVENTS = {"crossing": 0.84, "initiation": 0.73}
ORDERS = {"retraining": 0.85}


def main() -> None:
    """Write the pages' tables and figures, and the files to download."""
    for page, texts in from_kept().items():
        for name, text in texts.items():
            put(name, text, page)
    for name, text in files().items():
        (FILES / name).parent.mkdir(parents=True, exist_ok=True)
        (FILES / name).write_text(text, encoding="utf-8")
    for file, (name, choice) in PICTURES.items():
        draw(results_of_studies()[file.split("-")[0]], name, choice, IMAGES / file)


def from_kept() -> dict[Path, dict[str, str]]:
    """What stands on each page, by the names of its marks."""
    studies = results_of_studies()
    return {
        PAGE: {
            "answers": markdown(answers(studies["twelve"])[BY_PAPER]),
            "downloads": downloads(),
        },
        REAL: {
            **exact.texts(studies["evidence"]),
            "learning": markdown(first.learning(studies["twelve"])),
            "early": markdown(first.by_generalisation(studies["twelve"])),
            **models.texts(models.together(studies["evidence"])),
        },
    }


def files() -> dict[str, str]:
    """The contents of the files to download, by their names in the folder beside the page."""
    return {
        f"{study}/{name}.csv": table.to_csv(index=False, float_format="%.4g")
        for study, named in _tables().items()
        for name, table in named.items()
    }


def _tables() -> dict[str, dict[str, pd.DataFrame]]:
    """Return the tables of each study by their names."""
    studies = results_of_studies()
    found = {study: tables(results) for study, results in studies.items()}
    real = studies["twelve"]
    more = {"cost": pd.read_csv(COST), "retried": _retried(real), "scaled": _scaled(real)}
    found["twelve"] |= {**more, "probed": noise_read(_probed(real))}
    found["evidence"] = exact.files(studies["evidence"])
    wide = models.files(models.together(studies["evidence"]))
    return {**found, "wide": wide} if wide else found


def downloads() -> str:
    """Return links to the tables of each study."""
    lines = []
    for study, named in _tables().items():
        links = (f"[{name}]({FILES.name}/{study}/{name}.csv)" for name in named)
        text = f"- `{study}`: {' '.join(links)}"
        lines.append(fill(text, LINE, subsequent_indent="  ", break_long_words=False))
    return "\n".join(lines) + "\n"


@cache
def results_of_studies() -> dict[str, Results]:
    """The real encoder's two studies and that of the embedded suite."""
    found = {folder.name: kept(folder) for folder in (KEPT, SMALL)}
    return {"evidence": exact.evidence(found["twelve"].generalisation), **found}


def _retried(real: Results) -> pd.DataFrame:
    """Trainings that were repeated without success."""
    return other_settings(kept(RETRIED).runs, real.runs).drop(columns="model")


def _probed(real: Results) -> dict[str, Results]:
    """The runs that were probed in two ways, with the vectors as they are and standardised."""
    scaled = kept(SCALED)
    runs = scaled.runs[[*RUN]]
    tables = {name: getattr(real, name) for name in (*PROBES, "noise_probes")}
    same = real.with_tables(**{n: t.merge(runs, on=RUN) for n, t in tables.items()})
    return {"as they are": same, "standardised": with_probes(same, scaled)}


def _scaled(real: Results) -> pd.DataFrame:
    """The answers that change if vectors are standardised, beside those of the same runs."""
    found = _probed(real)
    before, after = (next(iter(answers(each).values())) for each in found.values())
    both = before.merge(after, on="the paper's finding")
    changed = both[both["here_x"] != both["here_y"]]
    columns = {"the paper's finding": changed["the paper's finding"]}
    for how, end in zip(found, ("_x", "_y"), strict=True):
        columns[how] = changed[f"here{end}"] + ", " + changed[f"verdict{end}"]
    return pd.DataFrame(columns)


PROBES = {
    "layers": ("method", "probing"),
    "mcog": ("method", "probing"),
    "events": ("source", "label probes"),
}
"""Which rows of a table are of probes."""


def with_probes(results: Results, others: Results) -> Results:
    """A study with the probes of another one in the place of its own."""
    both = {"noise_probes": others.noise_probes}
    for name, (column, probes) in PROBES.items():
        own, theirs = getattr(results, name), getattr(others, name)
        both[name] = pd.concat([own[own[column] != probes], theirs[theirs[column] == probes]])
    return results.with_tables(**both)


def noise_read(read: Mapping[str, Results]) -> pd.DataFrame:
    """One row per way of probing: F1 after each layer, and what shuffled labels give."""
    rows = []
    for vectors, found in read.items():
        probes = found.memorised("noise_probes")
        for column, labels in (("f1", "noisy or clean"), ("chance", "shuffled")):
            by_task = probes[probes["layer"] > 0].groupby(["task", "layer"])[column].mean()
            means = by_task.groupby("layer").mean()
            rows.append({"vectors": vectors, "labels": labels, **means.map("{:.2f}".format)})
    return pd.DataFrame(rows).rename(columns=str)


def draw(found: Results, name: str, choice: Mapping[str, str], path: Path) -> None:
    """One figure of the report as a file."""
    with TemporaryDirectory() as folder:
        written, _ = write_figures(found, Path(folder), "svg", [name])
        chosen = {f: f.stem.removeprefix(name) for f in written}
        (file,) = [f for f, words in chosen.items() if all(w in words for w in choice.values())]
        shutil.copyfile(file, path)


def tables(found: Results) -> dict[str, pd.DataFrame]:
    """Return every table of a study that has rows, by the name of its file."""
    makers: dict[str, Callable[[Results], pd.DataFrame]] = {
        "answers": all_answers,
        "standing": standing,
        "learnt": learnt,
        "repeated": repeated,
        "left_out": left_out,
        "undone": undone,
        "centres": centres,
        "events": events,
        "crossings": other_crossings,
        "table_2": table_2,
        "methods": partial(agreement, between="methods", paper=METHODS),
        "seeds": seeds_agree,
        "orders": orders,
        "models": partial(agreement, between="models", paper=MODELS),
        "labels": event_agreement,
    }
    made = {name: make(found) for name, make in makers.items()}
    return {name: table for name, table in made.items() if len(table)}


def all_answers(found: Results) -> pd.DataFrame:
    """Return the paper's findings by every measure, one row each."""
    return pd.concat([table.assign(measured=by) for by, table in answers(found).items()])


def standing(found: Results) -> pd.DataFrame:
    """How many runs of which task are finished, and which methods and analyses looked at them."""
    results, rows = found, []
    for task, runs in results.runs.dropna(subset="noisy_accuracy").groupby("task", sort=False):
        tables = {"method": results.mcog, "source": results.events}
        of = [t[t["task"] == task].drop_duplicates([*RUN, by])[by] for by, t in tables.items()]
        looked = pd.concat(of).value_counts(sort=False)
        names = [n if k == runs["memorised"].sum() else f"{n} ({k})" for n, k in looked.items()]
        sizes = {"examples": runs["train"].max(), "noisy": runs["noisy"].max()}
        row = {"task": task, "runs": len(runs), **sizes, "classes": runs["n_classes"].max()}
        rows.append({**row, "looked at by": ", ".join(map(str, names))})
    return pd.DataFrame(rows)


def learnt(found: Results) -> pd.DataFrame:
    """How well each task is known, noisy labels included; means over models and seeds."""
    runs = found.runs.dropna(subset="noisy_accuracy")  # others are not finished
    table = runs.groupby("task", sort=False).agg(
        runs=("memorised", "size"),
        seeds=("seed", "nunique"),
        memorised=("memorised", "sum"),
        noisy=("noisy_accuracy", "mean"),
        reference=("reference_accuracy", "mean"),
        validation=("validation_accuracy", "mean"),
        validation_score=("validation_score", "mean"),
    )
    scores = found.generalisation
    if len(scores):
        table["generalisation score"] = scores.groupby("task")["score"].mean()
        table["of clean examples"] = scores.groupby("task")["clean_score"].mean()
        table["of the most frequent label"] = scores.groupby("task")["majority"].mean()
        table["normalised by that"] = scores.groupby("task")["normalised"].mean()
    names = {
        "memorised": "of them memorised",
        "noisy": "noisy labels known",
        "reference": "labels that θ_O knows",
        "validation": "validation accuracy",
        "validation_score": "validation score",
    }
    return table.rename(columns=names).reset_index()


def repeated(found: Results) -> pd.DataFrame:
    """Trainings that were repeated."""
    runs = found.runs.dropna(subset="noisy_accuracy")
    return other_settings(runs, runs)


def other_settings(runs: pd.DataFrame, most: pd.DataFrame) -> pd.DataFrame:
    """Runs with other settings than `most`, and which."""
    each = runs["changes"].str.split(", ").map(set)
    usual = {part for text in most["changes"].mode()[:1] for part in str(text).split(", ")}
    changed = each.map(lambda own: ", ".join(sorted(own - usual)))
    names = {"noisy_accuracy": "noisy labels known", "reference_accuracy": "labels that θ_O knows"}
    other = runs.assign(changed=changed)[changed != ""]
    return other[[*RUN, "changed", *names]].rename(columns=names).reset_index(drop=True)


def left_out(found: Results) -> pd.DataFrame:
    """Runs that count nowhere that their reference decides."""
    return found.unlearnt[[*RUN, "reference_accuracy"]].reset_index(drop=True)


def undone(found: Results) -> pd.DataFrame:
    """Errors of swapped and retrained windows; means over models and seeds, with the range."""
    windows = found.memorised("windows")
    windows = windows.assign(width=windows["last"] - windows["first"] + 1)
    full = windows["width"] == windows.groupby([*RUN, "method"])["width"].transform("max")
    rows = []
    for (method, task), part in windows.groupby(["method", "task"], sort=False):
        single = part[part["width"] == 1]
        largest = single.loc[single.groupby(RUN)["error"].idxmax()]
        one = largest["error"]
        widths = layers_to_undo(part)
        reached = [f"{widths[n].count()} of {len(one)}" for n in ("best", "on_average")]
        at_full = part[full.loc[part.index]]
        clean = part.groupby(RUN)["clean_error"].mean()
        rows.append(
            {
                "method": method,
                "task": task,
                "one layer, at most": spread(one),
                "its clean error": largest["clean_error"].mean(),
                "best window that undoes 90 %": spread(widths["best"], ".1f"),
                "runs with one": reached[0],
                "layers that do so on average": spread(widths["on_average"], ".1f"),
                "runs that get there": reached[1],
                "the same, paper": WIDTHS,
                "all layers": at_full["error"].mean(),
                "clean error, all layers": at_full["clean_error"].mean(),
                "difference": (at_full["error"] - at_full["clean_error"]).mean(),
                "clean error, all windows": clean.mean(),
            }
        )
    return pd.DataFrame(rows)


def centres(found: Results) -> pd.DataFrame:
    """M-CoG by method: mean over models and seeds, with the range."""
    mcog = found.memorised("mcog")
    if mcog.empty:
        return mcog
    table = mcog.groupby(["task", "method"])["mcog"].apply(spread).unstack()
    paper = {task: CENTRES[str(task)] for task in table.index if task in CENTRES}
    if paper:
        table["paper, all methods"] = pd.Series(paper)
    return table.rename_axis(columns=None).reset_index()


def events(found: Results) -> pd.DataFrame:
    """Layers of events: mean and range over models (each a mean over its seeds)."""
    depths = found.depths
    depths = depths[~depths["measure"].str.startswith("M-CoG")]
    rows = []
    for (task, measure), part in depths.groupby(["task", "measure"]):
        text = spread(part["depth"], ".1f")
        marks = [f"{part[m].sum():.0f} {w}" for m, w in MARKS.items() if part[m].sum() > 0]
        rows.append({"task": task, "event": measure, "layer": "; ".join([text, *marks])})
    if not rows:
        return pd.DataFrame()
    wide = pd.DataFrame(rows).pivot(index="task", columns="event", values="layer")
    return wide.rename_axis(columns=None).reset_index()


MARKS = {"n_never": "never", "n_inseparable": "not separable"}


def other_crossings(found: Results) -> pd.DataFrame:
    """Crossings by every rule, and each one's ρ with the scores over all tasks and models."""
    centroids = found.memorised("centroids")
    if centroids.empty:
        return pd.DataFrame()
    mcog, runs = found.memorised("mcog"), found.memorised("runs")
    scores = claims.task_scores(runs, found.memorised("generalisation"))
    rows = []
    for rule in RULES:
        table = crossings(centroids[centroids["variant"] == "plain"], rule)  # type: ignore[arg-type]
        unknown = dict.fromkeys(("low", "high", "never"), float("nan"))  # no interval is asked for
        depth = claims.depths(table.assign(**unknown), mcog, runs)
        depth = depth[depth["measure"] == "crossing"]
        layers = depth.groupby("task")["depth"].mean()
        row: dict[str, object] = {"crossing": rule}
        row |= {str(task): f"{layer:.1f}" for task, layer in layers.items()}
        row["never"] = int(depth["n_never"].sum())
        row["not separable"] = int(depth["n_inseparable"].sum())
        claim = claims.depth_and_generalisation(depth, scores, ("crossing",))
        for score, part in claim[claim["model"] == claims.ALL].groupby("score", sort=False):
            row[f"ρ {score}"] = coefficient(part.to_dict("records")[0])
        rows.append(row)
    return pd.DataFrame(rows)


def table_2(found: Results) -> pd.DataFrame:
    """ρ between depth and either score, all models together and each."""
    table = found.table_2
    if table.empty:
        return table
    table = table.assign(text=[coefficient(row) for row in table.to_dict("records")])
    models = list(dict.fromkeys(table["model"]))
    wide = table.pivot_table("text", ["score", "measure"], "model", aggfunc="first", sort=False)
    methods = claims.methods_of(found.main_depths, "M-CoG")
    table = wide[models].rename_axis(columns=None).reset_index()
    rows = zip(table["score"], table["measure"], strict=True)
    table = table.assign(paper=[TABLE_2[row] for row in rows])
    return table.replace({"measure": {"M-CoG": f"M-CoG (mean over {methods})"}})


def agreement(found: Results, between: str, paper: Numbers) -> pd.DataFrame:
    """Coefficients between methods or models beside the paper's."""
    table = found.agreement
    if table.empty:
        return table
    table = table[table["between"] == between]
    rows: dict[tuple[str, ...], dict[str, object]] = {}
    for row in table.to_dict("records"):
        pair = tuple(sorted(str(row[name]).removeprefix("tiny-") for name in ("one", "other")))
        cells = rows.setdefault(pair, {between: " – ".join(pair)})
        cells[str(row["what"])] = coefficient(row)
        cells[f"{row['what']}, paper"] = paper[row["what"]].get(pair, "–")
    return pd.DataFrame(list(rows.values()))


def seeds_agree(found: Results) -> pd.DataFrame:
    """ρ between two seeds of a task and model, and between two tasks of a model and seed."""
    rows = []
    for method, part in found.memorised("layers").groupby("method", sort=False):
        matrix = part.pivot_table("weight", "layer", RUN).corr("spearman")
        matrix.columns.names = [f"{name} 2" for name in RUN]
        pairs = pd.Series(matrix.stack([0, 1, 2]), name="rho").reset_index()
        task, model, seed = (pairs[name] == pairs[f"{name} 2"] for name in RUN)
        if (task & model & ~seed).any():
            others = spread(pairs.loc[~task & model & seed, "rho"])
            same = spread(pairs.loc[task & model & ~seed, "rho"])
            rows.append({"method": method, "seeds of one task": same, "tasks of one seed": others})
    return pd.DataFrame(rows)


def orders(found: Results) -> pd.DataFrame:
    """Mean pairwise ρ of the models' M-CoG over tasks, by each method."""
    table = found.order_agreement
    return pd.DataFrame(
        {
            "method": table["method"],
            "mean ρ": table["rho"],
            "single pairs": [f"{a:.2f} to {b:.2f}" for a, b in table[["least", "largest"]].values],
            "paper": table["method"].map(ORDERS).astype(object).fillna("–"),
        }
    )


def event_agreement(found: Results) -> pd.DataFrame:
    """ρ between the events of centroids and of label probes."""
    table = found.event_agreement
    if table.empty:
        return table
    rows = [
        {
            "centroids": row["one"],
            "label probes": row["other"],
            "model": row["model"],
            "ρ": coefficient(row),
            "paper": EVENTS[row["one"]] if row["model"] == claims.ALL else "–",
        }
        for row in table.to_dict("records")
    ]
    return pd.DataFrame(rows)


def coefficient(row: Mapping[Hashable, Any]) -> str:
    """ρ with its interval if it has one, in brackets where it is not significant."""
    if pd.isna(row["rho"]):
        return "–"
    text = f"{row['rho']:.2f}"
    if pd.notna(row["low"]):
        text += f" [{row['low']:.2f}, {row['high']:.2f}]"
    return text if row["significant"] else f"({text})"


def spread(values: "pd.Series[float]", form: str = ".2f") -> str:
    """Mean, and the least and the largest."""
    values = values.dropna()
    if values.empty:
        return "–"
    low, mean, high = values.min(), values.mean(), values.max()
    if len(values) == 1:
        return f"{mean:{form}}"
    return f"{mean:{form}} ({low:{form}}–{high:{form}})"


if __name__ == "__main__":
    main()
