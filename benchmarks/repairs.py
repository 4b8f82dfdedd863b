"""How often a repair's verdict is right, and which repair works: `python -m benchmarks.repairs`.

Embedded models memorise flipped labels, with several seeds, and are repaired in every way. A model
that never saw the labels is the reference of another seed, judged as if it were a repair: it should
be called removed. A sham hides labels and should never be. The rule was chosen with seeds 1 to 3,
so these are not counted. Writes repairs.csv, curves, a figure and the tables of the documentation.
Runs are kept in --out, so that it goes on where it was left.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd

from benchmarks.findings import put
from memloc.data.perturb import add_noise
from memloc.data.sources import load_task, subsample
from memloc.methods.halves import fit
from memloc.paths import RELEARNING, REPAIR, REPAIRS
from memloc.records import Task, read_json
from memloc.repairs import (
    AGAIN,
    BACKWARD,
    BEFORE,
    HEAD,
    LAYERS,
    OTHERS,
    RANDOM,
    REFERENCE,
    RETRAINED,
    Judgement,
    Repaired,
    RepairSettings,
    _Workshop,
    relearnt_at,
    repair,
)
from memloc.reporting.figures import save_spec
from memloc.reporting.tables import markdown
from memloc.run import Run
from memloc.stats.intervals import wilson
from memloc.training.train import train

HERE = Path(__file__).with_suffix(".csv")
LEARNT_AGAIN = Path(__file__).with_name("relearning.csv")
"""Means over runs and orders, by repair and update."""
PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "wrong_labels.md"
PICTURE = PAGE.parents[1] / "images" / "relearning.svg"
PAIRS = (("tiny-opt", "tiny-topic"),)
SEEDS, EXAMPLES, RATE = range(4, 12), 60, 0.2
LEARNT = {"finetune.measure_every": 10, "finetune.learning_rate": 1e-3}
ANOTHER = "another reference"
"""A model that never saw the labels, judged as if it were a repair."""
SHAM = "all but these trained"
"""On the original labels, with the layers that hold the noisy ones as they were."""
WAYS = (BEFORE, REFERENCE, ANOTHER, LAYERS, RETRAINED, RANDOM, OTHERS, HEAD, SHAM, AGAIN)


def main() -> None:
    """Train and repair what is missing, and write the tables."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/repairs"))
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for seed, (model, name) in product(options.seeds, PAIRS):
        make(model, noisy_task(name), options.out / name / model / f"seed-{seed}", seed)
        print(model, name, seed, flush=True)
    found = pd.concat(every(options.out), ignore_index=True)
    found.to_csv(HERE, index=False)
    courses(options.out).to_csv(LEARNT_AGAIN, index=False)
    show()


def noisy_task(name: str) -> Task:
    """The same texts and flipped labels for all seeds."""
    return add_noise(subsample(load_task(name), EXAMPLES, 1), RATE, 1)


def make(model: str, task: Task, folder: Path, seed: int) -> None:
    """A run, what repairs make of it, and a sham."""
    home = folder / "repaired"
    if (home / f"sham-{RELEARNING}").is_file():
        return
    run = train(model, task, folder, seed=seed, settings=LEARNT, weights=("final", "reference"))
    if not (home / REPAIR).is_file():
        repair(run, home)
    table, curve = sham(run, str(read_json(home / REPAIR)["layers"]))
    table.to_csv(home / f"sham-{REPAIRS}", index=False)
    curve.to_csv(home / f"sham-{RELEARNING}", index=False)


def sham(run: Run, layers: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The final model, whose other layers and head learn the original labels: it predicts no noise.

    The `layers` that hold the noisy labels ("layers 1, 2") stay as they are, so none is removed.
    """
    workshop, model = _Workshop(run, RepairSettings(), ()), run.load("final")
    held = {int(layer) - 1 for layer in layers.partition(" ")[2].split(", ")}
    rest = [layer for layer in range(run.depth) if layer not in held]
    every, how = np.arange(len(run.noisy.original))[None], (run.settings.finetune, [run.seed])
    began = time.perf_counter()
    fit([model], run.encode(model), every, run.noisy.original, how, layers=rest)
    row = workshop._scores(SHAM, tuple(rest), model, time.perf_counter() - began)
    curve = workshop._relearnt(SHAM, model)
    steps = relearnt_at(curve, workshop.level).mean()
    passes = float(BACKWARD * run.settings.finetune.epochs * every.size * run.depth)
    return pd.DataFrame([{**row, "block_passes": passes, "relearnt_updates": float(steps)}]), curve


def read(folder: Path) -> Repaired:
    """What was written of a repair, with the sham."""
    home = folder / "repaired"
    parts = [
        pd.concat([pd.read_csv(home / f"{kind}{name}") for kind in ("", "sham-")])
        for name in (REPAIRS, RELEARNING)
    ]
    table, curves = (part.reset_index(drop=True) for part in parts)
    updates = table["relearnt_updates"]
    table["relearning"] = updates / float(updates[table["way"] == REFERENCE].iloc[0])
    level = float(read_json(home / REPAIR)["level"])
    return Repaired(home, table, curves, LAYERS, RepairSettings(), level)


def every(out: Path) -> Iterator[pd.DataFrame]:
    """Of each run, one row per repair with its verdict, and the other seeds' references."""
    for model, name in PAIRS:
        files = sorted((out / name / model).glob(f"seed-*/repaired/sham-{RELEARNING}"))
        runs = {file.parents[1].name: read(file.parents[1]) for file in files}
        for seed, found in runs.items():
            others = {s: other for s, other in runs.items() if s != seed}
            judged = _with_others(found, others)
            verdicts = [judged.judge(way) for way in judged.table["way"]]
            facts = {"model": model, "task": name, "seed": seed.removeprefix("seed-")}
            yield judged.table.assign(**facts, verdict=verdicts, band_low=found.band[0])


def _with_others(found: Repaired, others: dict[str, Repaired]) -> Repaired:
    """The references of other seeds as rows of this repair's table."""
    steps, rows = found.row(REFERENCE)["relearnt_updates"], [found.table]
    for seed, other in others.items():
        row = {**other.row(REFERENCE), "way": f"{ANOTHER} {seed}"}
        row["relearning"] = row["relearnt_updates"] / steps
        rows.append(pd.DataFrame([row]))
    table = pd.concat(rows, ignore_index=True)
    return replace(found, table=table)


def courses(out: Path) -> pd.DataFrame:
    """Labels predicted by update: means over runs and orders, and where nine in ten of them are.

    A curve that ended keeps its last value.
    """
    curves = []
    for place in sorted(out.glob(f"*/*/seed-*/repaired/sham-{RELEARNING}")):
        for (way, _), course in read(place.parents[1]).curves.groupby(["way", "order"]):
            curves.append(course.set_index("update")["predicted"].rename(str(way)))
    filled = pd.concat(curves, axis=1).sort_index().ffill()
    rows = []
    for way in dict.fromkeys(filled.columns):
        part = filled[[way]]
        ends = part.quantile(0.05, axis=1), part.quantile(0.95, axis=1)
        columns = {"mean": part.mean(axis=1), "low": ends[0], "high": ends[1]}
        rows.append(pd.DataFrame(columns).round(3).assign(way=way).reset_index())
    return pd.concat(rows, ignore_index=True)


def show() -> None:
    """Tables and figure from what was kept."""
    for name, make in TABLES.items():
        put(name, make(), PAGE)
    save_spec(figure(pd.read_csv(LEARNT_AGAIN)), PICTURE)


def kept() -> pd.DataFrame:
    """Every run's repairs; references of other seeds have one name."""
    found = pd.read_csv(HERE)
    return found.assign(way=found["way"].str.replace(rf"^{ANOTHER} .*", ANOTHER, regex=True))


def errors(found: pd.DataFrame) -> pd.DataFrame:
    """How often the relearning rule is wrong; intervals are for as many cases as there are runs."""
    cases = {
        "never saw the labels (reference of another seed), called hidden": (ANOTHER, "hidden"),
        "layers that hold the labels untouched, all others trained, called removed": (
            SHAM,
            "removed",
        ),
        "only the head replaced, called removed": (HEAD, "removed"),
        "nothing done, called removed": (BEFORE, "removed"),
    }
    rows = []
    for case, (way, verdict) in cases.items():
        wrong = found.loc[found["way"] == way, "verdict"] == verdict
        runs = len(found[["model", "task", "seed"]].drop_duplicates())
        rate = wilson(float(wrong.mean()), runs)
        ends = f"{rate.low:.2f}, {rate.high:.2f}"
        cells = {"runs": runs, "cases": len(wrong), "wrong": int(wrong.sum())}
        rows.append({"model": case, **cells, "rate": f"{rate.estimate:.2f} [{ends}]"})
    return pd.DataFrame(rows)


def by_way(found: pd.DataFrame) -> pd.DataFrame:
    """Means over runs of each way to repair, and how its verdicts fall."""
    rows = []
    for way in WAYS:
        part = found[found["way"] == way]
        counts = part["verdict"].value_counts()
        several = part["relearning"]
        verdicts = [str(counts.get(verdict, 0)) for verdict in get_args(Judgement)]
        rows.append(
            {
                "way": way,
                "noisy predicted": f"{part['noisy_predicted'].mean():.2f}",
                "clean": f"{part['clean_accuracy'].mean():.3f}",
                "test": f"{part['test_accuracy'].mean():.3f}",
                "relearning": f"{several.mean():.2f} ({several.min():.2f}–{several.max():.2f})",
                "verdicts": ", ".join(verdicts),
                "seconds": f"{part['seconds'].mean():.1f}",
                "block passes": f"{part['block_passes'].mean():,.0f}",
            }
        )
    return pd.DataFrame(rows)


def figure(curves: pd.DataFrame) -> dict[str, Any]:
    """Curves of learning the noisy labels again over the range of the references'."""
    band = curves[curves["way"] == REFERENCE].to_dict("records")
    lines = curves[curves["way"] != BEFORE].to_dict("records")
    share = {"type": "quantitative", "title": "noisy labels predicted", "axis": {"format": "%"}}
    update = {"field": "update", "type": "quantitative", "title": "updates on the noisy examples"}
    area = {"x": update, "y": {**share, "field": "low"}, "y2": {"field": "high"}}
    order = [way for way in WAYS if way in set(curves["way"])]
    color = {"field": "way", "type": "nominal", "title": None, "sort": order}
    line = {"x": update, "y": {**share, "field": "mean"}, "color": color}
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "width": 460,
        "height": 280,
        "layer": [
            {"data": {"values": band}, "mark": {"type": "area", "opacity": 0.2}, "encoding": area},
            {"data": {"values": lines}, "mark": "line", "encoding": line},
        ],
    }


TABLES: dict[str, Callable[[], str]] = {
    "errors": lambda: markdown(errors(kept())),
    "repairs": lambda: markdown(by_way(kept())),
}
"""The tables of the documentation by the names of their marks."""


if __name__ == "__main__":
    main()
