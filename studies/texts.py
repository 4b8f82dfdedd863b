"""Planted texts, their nulls, and how texts are taken out again: docs/explanation/texts.md.

`python -m studies.texts plants FOLDER`, `nulls FOLDER` and `repairs FOLDER` keep runs in the folder
and rows for each, as it is finished, in studies/tables/texts; what is there already is not made
again. `python -m studies.texts page` writes the page's tables.
"""

import argparse
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import memloc
from memloc.data.task import Task
from memloc.labels.repair import Workshop
from memloc.labels.repaired import Repaired, relative
from memloc.methods.mixtures import final_with
from memloc.protocol import common_preset
from memloc.reporting.tables import markdown
from memloc.run.spec import RunSpec
from memloc.run.train import make_run
from memloc.stats.intervals import wilson
from memloc.stats.planted import accuracy_at_k
from memloc.stats.windows import planted_layers, split_kind
from studies.pages import put
from studies.text_rows import KEPT, PAGE, Row, ends, keep_rows, learnt, texts

MODELS = ("tiny-gpt-neox", "tiny-opt", "tiny-gpt-neo")
EASY = ("2-3", "6-7", "11-12")
PARTS = ("mlp:6-7", "attention:6-7")
HARD = ("equal 6-7", "decoy 6-7")
MEMORISED, ORDINARY = 20, 40
"""Number of texts that are planted, and of those that change all layers."""
SETTINGS = {
    "finetune.repeat": 4,
    "finetune.keep_epochs": "none",
    "finetune.measure_every": 40,
    "control.epochs": 40,
    "control.learning_rate": 4e-3,
    "control.auxiliary_learning_rate": 3e-4,
    "control.rate_factor": 1.6,
    "control.tries": 3,
}
SHARES = {"shares.subsets": "sampled", "shares.standard_error": 0.02}


@cache
def sequences(seed: int) -> Task:
    """Return random words to plant, others for each seed."""
    return texts("sequences", seed, MEMORISED, ORDINARY)


def wanted_plants() -> Iterator[Row]:
    """Yield the plants; those that matter most come first."""
    for seed, layers in ((1, (*EASY, PARTS[0], *HARD)), (2, EASY), (1, PARTS[1:]), (3, EASY)):
        for planted in layers:
            for model in MODELS:
                yield {"model": model, "planted": planted, "seed": seed}


def wanted_nulls() -> Iterator[Row]:
    """Yield nulls; they never see the texts, so no layers tell them apart, but seeds do."""
    for seed in range(1, 26):
        for model in MODELS:
            yield {"model": model, "planted": "6-7", "seed": seed}


def plant(home: Path, key: Row) -> Row:
    """Plant texts and say what is found; the reference is the same for all layers."""
    folder = home / "plants" / "-".join(map(str, key.values())).replace(":", "-").replace(" ", "-")
    task, seed = sequences(key["seed"]), key["seed"]
    given: dict[str, Any] = {"layers": key["planted"], "seed": seed, "settings": SETTINGS}
    run = memloc.plant(key["model"], task, folder, checkpoints=["final"], **given)
    row = {**key, **learnt(run)}
    if run.status.final is None or not run.memorised(0.95):
        return row
    _lend_reference(home, run, key)
    return row | _found(run, key["planted"])


def null(home: Path, key: Row) -> Row:
    """Train the null of a plant of this model and seed, and say what is found."""
    protocol = common_preset("demo").replace(SETTINGS)
    task, folder = sequences(key["seed"]), home / "nulls" / f"{key['model']}-{key['seed']}"
    spec = RunSpec.of(key["model"], task, key["seed"], protocol.for_run())
    spec = spec.planted(key["planted"], None, protocol)
    run = make_run(spec.null(spec.settings), folder, ["final"], task=task)
    _lend_reference(home, run, key)
    return {**key, **learnt(run), **_found(run, key["planted"])}


def _lend_reference(home: Path, run: memloc.Run, key: Row) -> None:
    """Give a run the reference of its model and seed, which learns the ordinary texts alone."""
    kind = split_kind(key["planted"])[0]
    name = f"{key['model']}-{key['seed']}"
    if kind != "easy":  # of another rate, or disguised
        name += f"-{key['planted']}-{run.settings.finetune.learning_rate:g}".replace(" ", "-")
    kept = home / "references" / name
    if not kept.is_dir():
        make_run(run.spec, run.folder, ["reference"], task=run.task)
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(run.path("reference"), kept)
    elif not run.has("reference"):
        shutil.copytree(kept, run.path("reference"))


def _found(run: memloc.Run, planted: str) -> Row:
    """Return where shares, by tokens and by log-probability, and weights' distance point."""
    own, began = planted_layers(planted), time.process_time()
    units = "sublayers" if ":" in planted else "layers"
    asked = {**SHARES, "shares.units": units}
    both = memloc.localise(run, ["shares", "weight_distance"], settings=asked)
    shares, distance = both["shares"], both["weight_distance"]
    tokens = shares["shares"].query("value == 'tokens'")["share"].to_numpy()
    answer, part = shares.answer, np.nan
    if units == "sublayers":
        table = shares["units"].query("value == 'log-probability'")
        names = [f"{planted.split(':', maxsplit=1)[0]} {layer + 1}" for layer in own]
        part = _mass(table["share"], np.flatnonzero(table["unit"].isin(names)))
    half = {layer - 1 for layer in answer.layers}
    return {
        "undone": shares["labels"].query("is_noisy")["lost"].mean(),
        "control": shares.about["control"]["kept"],
        "mass": _mass(shares.weights, own),
        "mass_tokens": _mass(tokens, own),
        "mass_part": part,
        "mass_distance": _mass(distance.weights, own),
        **{f"at_{k}": accuracy_at_k(shares.weights, own, k) for k in (1, 2)},
        "word": answer.word,
        "right": bool(half) and half <= {*own},
        "seconds": time.process_time() - began,
    }


def _mass(weights: Any, own: Any) -> float:
    """Return the part of the positive weights that is in some layers."""
    positive = np.clip(np.asarray(weights, dtype=np.float64), 0, None)
    return float(positive[[*own]].sum() / positive.sum()) if positive.any() else float("nan")


def wanted_repairs() -> Iterator[Row]:
    """Yield the runs that are repaired: texts that any layer may hold, and planted ones."""
    for seed, model in enumerate(MODELS, 1):
        yield {"model": model, "planted": "anywhere", "seed": seed}
    for model in MODELS[:2]:
        yield {"model": model, "planted": "equal 2-3", "seed": 1}


def repair(home: Path, key: Row) -> list[Row]:
    """Repair a small model that memorised sequences, in every way; return one row for each."""
    folder = home / "to repair" / "-".join(map(str, key.values())).replace(" ", "-")
    task = texts("sequences", key["seed"], MEMORISED, 60)
    options = memloc.LoadOptions(depth=REPAIRED)
    given: dict[str, Any] = {"seed": key["seed"], "settings": LEARNT, "options": options}
    if key["planted"] == "anywhere":
        run = memloc.train(key["model"], task, folder, **given)
    else:
        given["settings"] = LEARNT | PLANTED
        run = memloc.plant(key["model"], task, folder, layers=key["planted"], **given)
    fewer = {"yardsticks": 4, "orders": 2, "epochs": 30}
    found = memloc.repair(run, folder.with_name(f"{folder.name} repaired"), settings=fewer)
    if run.plant is not None:
        found = _with_planted(run, key["planted"], found)
    rows = found.table.to_dict("records")
    return [key | {str(name): value for name, value in row.items()} for row in rows]


def _with_planted(run: memloc.Run, planted: str, found: Repaired) -> Repaired:
    """Add the repair that takes all planted layers from the reference, after which no texts are
    left.
    """
    layers = tuple(planted_layers(planted))
    model = final_with(run, layers, "reference")
    row, curve = Workshop(run, found.settings, layers).measure(TRUTH, model, layers)
    table = relative(pd.DataFrame([*found.table.to_dict("records"), row]))
    whole = replace(found, table=table, curves=pd.concat([found.curves, curve]))
    table.loc[table["way"] == TRUTH, "verdict"] = whole.judge(TRUTH)
    return whole


TRUTH = "planted layers"


REPAIRED = 4
"""Layers of the models that are repaired."""
LEARNT = {
    "finetune.learning_rate": 1e-3,
    "finetune.epochs": 40,
    "finetune.repeat": 2,
    "finetune.measure_every": 40,
    "finetune.keep_epochs": "none",
}
PLANTED = {
    "control.epochs": 80,
    "control.learning_rate": 1.5e-3,
    "control.rate_factor": 1.4,
    "control.tries": 3,
    "finetune.measure_every": 80,
}
"""Settings of plants that are repaired."""
PARTS_OF_STUDY: Mapping[
    str, tuple[Callable[[], Iterator[Row]], Callable[[Path, Row], Row | list[Row]]]
] = {
    "plants": (wanted_plants, plant),
    "nulls": (wanted_nulls, null),
    "repairs": (wanted_repairs, repair),
}
GROUPS = {
    "easy": "two layers",
    "parts": "attention or MLP",
    "equal": "equal rates",
    "decoy": "decoys elsewhere",
}


def page_tables() -> dict[str, str]:
    """Return the tables of the page, by the names of their marks, from what was kept."""
    plants, nulls = (pd.read_csv(KEPT / f"{name}.csv") for name in ("plants", "nulls"))
    tables = {
        "plants": plants_table(plants),
        "nulls": nulls_table(plants, nulls),
        "repairs": repairs_table(pd.read_csv(KEPT / "repairs.csv")),
    }
    return {name: markdown(table) for name, table in tables.items()}


def repairs_table(found: pd.DataFrame) -> pd.DataFrame:
    """Return how each repair compares, over runs whose texts any layer may hold, and over plants.

    Of plants, relearning and the verdicts are shown.
    """
    way = found["way"].str.replace(r"yardstick \d+", "yardsticks", regex=True)
    is_planted = found["planted"] != "anywhere"
    rows = []
    for name in dict.fromkeys(way):
        free, planted = (found[(way == name) & (is_planted == kind)] for kind in (False, True))
        means = free[[*REPAIR_COLUMNS]].mean().rename(REPAIR_COLUMNS).map("{:.2f}".format)
        row = {"way": name, **means.replace("nan", "–"), "relearning": ends(free["relearning"])}
        row["verdict"] = _counts(free["verdict"])
        row["relearning, planted"] = ends(planted["relearning"])
        rows.append({**row, "verdict, planted": _counts(planted["verdict"])})
    return pd.DataFrame(rows)


def _counts(words: pd.Series) -> str:
    """Return each word with its number."""
    return ", ".join(f"{word} {n}" for word, n in words.value_counts(sort=False).items()) or "–"


REPAIR_COLUMNS = {
    "noisy_predicted": "recalled",
    "clean_accuracy": "ordinary recalled",
    "perplexity": "perplexity",
}


def _group(planted: str) -> str:
    kind = split_kind(planted)[0]
    return "parts" if ":" in planted else kind


def plants_table(plants: pd.DataFrame) -> pd.DataFrame:
    """Return one row per group of plants: how well each way finds the planted layers."""
    rows = []
    for group, part in plants.groupby(plants["planted"].map(_group)):
        used = part[part["recalled"] >= 0.95]
        right = used[["at_1", "at_2"]].eq(1).all(axis=1)
        rows.append(
            {
                "plants": GROUPS[str(group)],
                "memorised": f"{len(used)} of {len(part)}",
                "both layers first": f"{right.sum()} of {len(right)}",
                "named right": _rate(used["right"].astype(bool)),
                "mass": ends(used["mass"]),
                "by tokens": ends(used["mass_tokens"]),
                "right part": ends(used["mass_part"]).partition(" ")[0],
                "weight distance": ends(used["mass_distance"]),
                "control": ends(used["control"]),
            }
        )
    order = {name: place for place, name in enumerate(GROUPS.values())}
    return pd.DataFrame(rows).sort_values("plants", key=lambda names: names.map(order))


def nulls_table(plants: pd.DataFrame, nulls: pd.DataFrame) -> pd.DataFrame:
    """Return what is undone and what is said of plants and of nulls."""
    rows = []
    for name, part in (("plants", plants[plants["recalled"] >= 0.95]), ("nulls", nulls)):
        said = part["word"].isin(["concentrated", "uneven"])
        undone = ends(part["undone"])
        found = {"runs": name, "number": str(len(part)), "tokens undone": undone}
        rows.append({**found, "called concentrated or uneven": _rate(said)})
    return pd.DataFrame(rows)


def _rate(hits: pd.Series) -> str:
    found = wilson(float(hits.mean()), float(len(hits)))
    return f"{hits.mean():.2f} [{float(found.low):.2f}, {float(found.high):.2f}]"


def main() -> None:
    """Run a part of the study, or write its page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=[*PARTS_OF_STUDY, "page"])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs/texts"))
    options = parser.parse_args()
    memloc.quiet()
    if options.part == "page":
        for name, text in page_tables().items():
            put(name, text, PAGE)
    else:
        wanted, make = PARTS_OF_STUDY[options.part]
        keep_rows(options.part, wanted(), partial(make, options.folder))


if __name__ == "__main__":
    main()
