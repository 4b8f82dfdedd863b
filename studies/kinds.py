"""Texts beside facts and labels in the same pre-trained models: docs/explanation/texts.md.

`python -m studies.kinds embedded FOLDER` compares them in embedded models, and `real FOLDER
--model SMOLLM2` in SmolLM2-135M (made by `studies.weights smollm2`), in groups of layers. Runs are
made in the folder, and one row for each is kept in studies/tables/texts as it is finished; what is
there already is not made again. `python -m studies.kinds page` writes the page's tables.
"""

import argparse
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import memloc
from memloc.data.task import Task
from memloc.errors import ScoreError
from memloc.model.checkpoints import save_checkpoint
from memloc.reporting.figures import save_spec
from memloc.reporting.tables import markdown
from studies.pages import IMAGES, put
from studies.text_rows import KEPT, PAGE, Row, ends, keep_rows, learnt, texts, with_t

KINDS = ("labels", "facts", "sequences")
VALUE = {"labels": "margin", "facts": "log-probability", "sequences": "log-probability"}
"""What tells layers apart in each kind."""
LEAST = 0.97
"""Control at which the kinds are compared."""


@dataclass(frozen=True)
class Design:
    """How the kinds are compared in some models."""

    models: tuple[str, ...]
    memorised: int
    clean: int
    """Number of clean examples or ordinary texts, which change every layer as well."""
    settings: dict[str, Any]
    """How all three kinds are learnt; every layer may change."""
    steps: tuple[float, ...]
    """How far the donors are from the final weights on the way to the reference."""
    shares: dict[str, Any] = field(default_factory=dict)
    """Settings of the shares."""
    spare: int = 0
    """Labels that are asked for beyond those, as their number is rounded down in each class."""

    def wanted(self) -> Iterator[Row]:
        """Yield the runs that are compared, all of a seed before those of the next one."""
        for seed in (1, 2, 3):
            for model in self.models:
                for kind in KINDS:
                    yield {"model": model, "kind": kind, "seed": seed}

    def task(self, kind: str, seed: int) -> Task:
        """Draw the examples of a kind."""
        if kind != "labels":
            return texts(kind, seed, self.memorised, self.clean)
        n = self.memorised + self.clean
        task = memloc.load_task("tiny-topic", examples=n, seed=seed)
        return memloc.add_noise(task, rate=(self.memorised + self.spare) / n, seed=seed)


LEARNT = {"finetune.repeat": 2, "finetune.keep_epochs": "none"}
EMBEDDED = Design(
    models=("tiny-gpt-neox", "tiny-opt"),
    memorised=20,
    clean=60,
    settings={
        **LEARNT,
        "finetune.learning_rate": 1e-3,
        "finetune.epochs": 40,
        "finetune.measure_every": 40,
    },
    steps=(0.4, 0.6, 0.8, 1.0),
    shares={"subsets": "sampled", "standard_error": 0.02},
)
GROUP, DEPTH = 5, 30
"""Layers of SmolLM2-135M in a group, and in all."""
REAL = Design(
    models=("smollm2-135m",),
    memorised=12,
    clean=24,
    settings={
        **LEARNT,
        "finetune.learning_rate": 2e-4,
        "finetune.epochs": 8,
        "finetune.batch_size": 8,
        "finetune.autocast": "bf16",
    },
    steps=(1.0,),
    spare=2,
    shares={
        "units": {
            f"layers {first + 1}-{first + GROUP}": tuple(
                f"*.layers.{layer}.*" for layer in range(first, first + GROUP)
            )
            for first in range(0, DEPTH, GROUP)
        }
    },
)
DESIGNS = {"embedded": (EMBEDDED, "comparison"), "real": (REAL, "real")}
"""Designs by name, each with the name of its table."""


def compared(design: Design, home: Path, key: Row, start: str | None = None) -> Row:
    """Train a run with every layer free, and say where its memory is by several donors.

    Args:
        design: How it is trained and looked at.
        home: Folder of the runs.
        key: Model, kind and seed.
        start: Folder of the model, unless it is an embedded one.
    """
    kind, seed = key["kind"], key["seed"]
    folder, began = home / "compared" / "-".join(map(str, key.values())), time.process_time()
    run = memloc.train(
        start or key["model"],
        design.task(kind, seed),
        folder,
        seed=seed,
        preset="demo",
        settings=design.settings,
        checkpoints=["final", "reference"],
    )
    row = {**key, **learnt(run), "noisy": len(run.noisy_rows)}
    row["train_seconds"] = time.process_time() - began
    if not run.memorised(0.95):
        return row
    for step in design.steps:
        found = _profile(design, run, kind, step)
        row |= {f"{name}_{step:g}": value for name, value in found.items()}
    if start is not None:
        shutil.rmtree(folder)  # more than a gigabyte
    return {**row, "seconds": time.process_time() - began}


def _profile(design: Design, run: memloc.Run, kind: str, step: float) -> Row:
    """Return what a donor undoes that is `step` of the way to the reference, and where."""
    game = memloc.Shares(donor=_donor(run, step), **design.shares)
    try:
        found = game.run(run)
    except ScoreError:
        return {"undone": 0.0}
    shares = found["shares"].query(f"value == '{VALUE[kind]}'")["share"].to_numpy()
    positive = np.clip(shares, 0, None) / np.clip(shares, 0, None).sum()
    size = GROUP if "units" in design.shares else 1
    parts = positive.reshape(-1, size).sum(1)
    return {
        "undone": found["labels"].query("is_noisy")["lost"].mean(),
        "control": found.about["control"]["kept"],
        "centre": float(positive @ np.arange(1, len(positive) + 1)),
        "first_third": float(positive[: len(positive) // 3].sum()),
        **{f"layer_{size * place + 1}": share for place, share in enumerate(parts)},
    }


def _donor(run: memloc.Run, step: float) -> str:
    """Return the donor that is `step` of the way to the reference, and make it if need be."""
    if step == 1:
        return "reference"
    donor = run.folder / "donors" / f"{step:g}"
    if not donor.is_dir():
        final, reference = run.load("final"), run.load("reference")
        with torch.no_grad():
            pairs = zip(final.model.parameters(), reference.model.parameters(), strict=True)
            for ours, theirs in pairs:
                ours.lerp_(theirs, step)
        save_checkpoint(donor, final, {"step": step})
    return f"{donor}/"


def page_tables() -> dict[str, str]:
    """Return the tables of the page, by the names of their marks, from what was kept."""
    embedded, real = (pd.read_csv(KEPT / f"{name}.csv") for _, name in DESIGNS.values())
    tables = {
        "steps": steps_table(embedded, EMBEDDED.steps[1::2]),
        "kinds": kinds_table(embedded),
        "real": real_table(real),
    }
    return {name: markdown(table) for name, table in tables.items()}


def steps_table(runs: pd.DataFrame, steps: tuple[float, ...]) -> pd.DataFrame:
    """Return means by kind and by how far the donor is from the final weights."""
    used = runs[runs["recalled"] >= 0.95]
    rows = []
    for step in steps:
        for kind in [kind for kind in KINDS if (used["kind"] == kind).any()]:
            part = used[used["kind"] == kind]
            names = ("control", "undone", "centre")
            means = {name: ends(part[f"{name}_{step:g}"]) for name in names}
            first = ends(part[f"first_third_{step:g}"])
            rows.append({"donor at": f"{step:g}", "kind": kind, **means, "layers 1 to 4": first})
    return pd.DataFrame(rows)


def kinds_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Return each kind's centre, by the reference and where control is the same for all kinds."""
    used = runs[runs["recalled"] >= 0.95]
    used = used.assign(equal=used.apply(_at_least, axis=1))
    rows = []
    for (model, kind), part in used.groupby(["model", "kind"]):
        row = {"model": model, "kind": kind, "runs": str(len(part))}
        row |= {"centre": with_t(part["centre_1"]), "at equal control": with_t(part["equal"])}
        rows.append(row)
    return pd.DataFrame(rows)


def real_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Return what was found in the real model, by kind."""
    rows = []
    for kind in [kind for kind in KINDS if (runs["kind"] == kind).any()]:
        part = runs[runs["kind"] == kind]
        used = part[part["recalled"] >= 0.95]
        names = ("control", "undone")
        rows.append(
            {
                "kind": kind,
                "memorised": f"{len(used)} of {len(part)}",
                **{name: ends(used[f"{name}_1"]) for name in names},
                "centre": with_t(used["centre_1"]),
                "layers 1 to 10": ends(used["first_third_1"]),
            }
        )
    return pd.DataFrame(rows)


def picture(runs: pd.DataFrame) -> dict[str, Any]:
    """Draw the share of each group of layers of the real model, by kind, over seeds."""
    columns = [str(name) for name in runs if str(name).startswith("layer_")]
    long = runs.melt(["kind", "seed"], columns, "group", "share")
    first = long["group"].str.extract(r"layer_(\d+)_")[0].astype(int)
    layers = first.map(lambda layer: f"{layer}–{layer + GROUP - 1}")
    order = list(dict.fromkeys(layers))
    x = {"field": "layers", "type": "nominal", "sort": order, "axis": {"labelAngle": 0}}
    x["title"] = f"layers of SmolLM2-135M, {DEPTH} in all"
    share = {"type": "quantitative", "title": "share of what is undone", "axis": {"format": "%"}}
    colour = {"field": "kind", "type": "nominal", "title": None, "sort": [*KINDS]}
    mean = {**share, "field": "share", "aggregate": "mean"}
    encoding = {"x": x, "xOffset": {"field": "kind", "sort": [*KINDS]}}
    point = {**encoding, "y": {**share, "field": "share"}}
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "data": {"values": long.assign(layers=layers).drop(columns="group").to_dict("records")},
        "width": 440,
        "height": 220,
        "layer": [
            {"mark": "bar", "encoding": {**encoding, "y": mean, "color": colour}},
            {"mark": {"type": "point", "size": 14, "color": "#444"}, "encoding": point},
        ],
    }


def _at_least(row: pd.Series) -> float:
    """Return the centre where control is LEAST, between two donors; the last one if it is more."""
    control, centre = ([row[f"{name}_{s:g}"] for s in EMBEDDED.steps] for name in MEASURED)
    known = ~np.isnan(centre)
    falling = np.array(control)[known][::-1], np.array(centre)[known][::-1]
    return float(np.interp(LEAST, *falling)) if known.any() else float("nan")


MEASURED = ("control", "centre")


def main() -> None:
    """Compare the kinds in embedded models or in a real one, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=[*DESIGNS, "page"])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs/texts"))
    parser.add_argument("--model", help="folder of SmolLM2-135M")
    asked = parser.parse_args()
    memloc.quiet()
    if asked.part == "page":
        for name, text in page_tables().items():
            put(name, text, PAGE)
        save_spec(picture(pd.read_csv(KEPT / "real.csv")), IMAGES / "texts.svg")
        return
    design, table = DESIGNS[asked.part]

    def make(key: Row) -> Row:
        return compared(design, asked.folder, key, asked.model)

    keep_rows(table, design.wanted(), make)


if __name__ == "__main__":
    main()
