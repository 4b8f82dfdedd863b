"""Time and parts as ground truth: staged plants and their nulls, plants in parts, early donors.

`python -m studies.timeline --out FOLDER PART …` runs the parts `staged`, `nulls`, `sublayers`
and `donors` (default: all). Each plant or run is one row of a table in `studies/tables/timeline`;
rows that are there are not made again, and weights are deleted once their row is written. Plants
have five layers and the runs of `donors` eight, so that all subsets of layers are cheap.
The tables of docs/guides/timeline.md are written from the rows that are there; without `--out`,
nothing else is done.
"""

import argparse
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import memloc
from memloc.methods.early import LEAST_GAP, early_donor
from memloc.methods.shares import Shares
from memloc.methods.timeline import ALPHA, Timeline
from memloc.protocol import common_preset
from memloc.reporting.tables import markdown
from memloc.run.folder import Run
from memloc.run.spec import RunSpec
from memloc.run.train import make_run
from memloc.stats.windows import read_plant
from memloc.store.files import whole_file
from studies.kept import found_inside
from studies.pages import DOCS, STORED, put

TABLES = STORED / "timeline"
GUIDE = DOCS / "guides" / "timeline.md"
MODELS = ("tiny-opt", "tiny-bert", "tiny-gpt-neo", "tiny-gpt-neox")
TASKS = (
    *("tiny-topic", "tiny-sentiment", "tiny-politeness", "tiny-topic 2"),
    *("tiny-entailment", "tiny-acceptability"),
)
"""Tasks of early donors, with a seed other than 1; the last two hardly generalise."""
PLANTED = memloc.LoadOptions(depth=5)
STAGES = ("@4-12", "@16-21")
"""The epochs in which the groups of a staged plant are learnt, of 23."""
EPOCHS = 23
STAGED = tuple(
    f"{one}{STAGES[0]}/{other}{STAGES[1]}"
    for pair in (("1-2", "4-5"), ("1-2", "3-4"), ("2-3", "4-5"))
    for one, other in (pair, pair[::-1])
)
NULLS = ("1", "2", "3", "4", "5", "6")
"""The seeds of nulls."""
NEEDED = 0.9
"""Share of the noisy labels that a plant must memorise to be used."""
SUBLAYERS = ("mlp:2-3", "attention:2-3", "mlp:4-5", "attention:4-5")
EASY = {
    "control.auxiliary_examples": 32,
    "control.tries": 2,
    "verdict.noisy_at_least": NEEDED,
    "finetune.repeat": 3,
}
SLOW = {"control.auxiliary_learning_rate": 2e-5, "control.learning_rate": 2e-3, "control.tries": 1}
"""Rates of plants in stages: the auxiliary task hardly makes the model forget what is not repeated.
"""
Row = dict[str, Any]


def staged(model: str, planted: str, folder: Path) -> Row:
    """Plant two groups of noisy labels in stages and look for both by `Timeline`.

    In the epochs of a stage, the model is given the noisy labels of that group alone, and these
    change its layers alone (the first ones the head as well): that is the truth.
    """
    changes = {**EASY, **SLOW, "control.epochs": EPOCHS, "finetune.repeat": 10}
    task, weights = _task(60, rate=0.3), ["final"]
    run = memloc.plant(
        model, task, folder, planted, checkpoints=weights, options=PLANTED, settings=changes
    )
    return {"noisy_learnt": run.status.final.noisy, **_found(run)}  # type: ignore[union-attr]


def null(model: str, seed: str, folder: Path) -> Row:
    """Train on right labels alone; a difference of the ones called noisy would be false."""
    task = _task(60, rate=0.3, seed=int(seed))
    task = replace(task, noise=replace(task.labels, assigned=task.labels.original, origin=""))
    settings = common_preset("demo").replace(
        {"finetune.learning_rate": 1e-3, "finetune.epochs": 12}
    )
    spec = RunSpec.of(model, task, int(seed), settings.for_run(), PLANTED)
    run = make_run(spec, folder, ["final"], task=task)
    found = Timeline().run(run)["summary"]
    best = early_donor(run)
    return {
        "learnt": run.status.final.clean,  # type: ignore[union-attr]
        "p_epoch": found["p_epoch"].iloc[0],
        "p_centre": found["p_centre"].iloc[0],
        "gap": np.nan if best is None else best.gap,
    }


def parts(model: str, planted: str, folder: Path) -> Row:
    """Plant in attention or MLPs and look for the part by shares of sublayers."""
    changes = {**EASY, "control.epochs": 30, "control.learning_rate": 1e-3}
    run = memloc.plant(
        model,
        _task(60, rate=0.3),
        folder,
        planted,
        checkpoints=["final", "reference"],
        options=PLANTED,
        settings=changes,
    )
    learnt = {"noisy_learnt": run.status.final.noisy}  # type: ignore[union-attr]
    return learnt | found_inside(run, standard_error=0.03)


def donors(model: str, task: str, folder: Path) -> Row:
    """Compare shares against the best early epoch with those against the reference."""
    settings = {"finetune.learning_rate": 8e-4, "finetune.epochs": 20}
    name, _, seed = task.partition(" ")
    run = memloc.train(
        model,
        _task(96, name, seed=int(seed or 1)),
        folder,
        seed=int(seed or 1),
        checkpoints=["final", "reference"],
        options=memloc.LoadOptions(depth=8),
        settings=settings,
    )
    best = early_donor(run)
    assert best is not None
    found = {name: Shares(donor=name).run(run) for name in ("reference", best.checkpoint)}
    one, other = (each.weights for each in found.values())
    row: Row = {"epoch": best.epoch, "gap": best.gap, "r": np.corrcoef(one, other)[0, 1]}
    for name, each in zip(("reference", "early"), found.values(), strict=True):
        labels = each["labels"]
        lost = labels.groupby("is_noisy")["lost"].mean()
        row |= {f"{name}_undone": lost[True], f"{name}_damage": lost[False]}
        row[f"{name}_control"] = each.about["control"]["kept"]
    row["noisy_learnt"] = run.status.final.noisy  # type: ignore[union-attr]
    return row


def _task(examples: int, name: str = "tiny-topic", rate: float = 0.17, seed: int = 1) -> Any:
    return memloc.add_noise(memloc.load_task(name, examples=examples), rate=rate, seed=seed)


def _found(run: Run) -> Row:
    """Where and when `Timeline` finds each group, against the stage in which it was given.

    `off` says by how many checkpoints the median example of a group is outside its stage, and `map`
    how far the epoch is by which half of what the planted layers hold was learnt. A share `within`
    of the examples is in the stage, and a share `chance` of all checkpoints is in it or next to it.
    Layers are `found` in the shares against the last checkpoint before the median example was
    learnt.
    """
    assert run.plant is not None
    timeline = Timeline(clean_examples=6)
    learnt = timeline.run(run)["learnt"].set_index("example")
    donors = timeline.donors(run)
    games = [timeline._shares(run, donor) for donor in donors.values()]
    shares = np.stack([game["shares"] for game in games])
    place = {row: number for number, row in enumerate(games[0]["rows"].tolist())}
    ends = np.array([*donors, EPOCHS])
    when = pd.Series(np.searchsorted(ends, learnt["epoch"]), index=learnt.index)
    row: Row = {"checkpoints": len(donors)}
    for number, group in enumerate(read_plant(run.plant.planted), 1):
        rows = run.noisy_rows[run.planted_groups[run.noisy_rows] == number - 1]
        rows = np.array([each for each in rows if each in learnt.index])
        held = shares[:, [place[each] for each in rows]].mean(1)  # (epochs, layers)
        own, median = [*group.layers], int(np.median(when[rows]))
        ahead = held[:, own].sum(1) < held[0, own].sum() / 2
        half = ahead.argmax() if ahead.any() else len(donors)
        first, last = np.searchsorted(ends, [group.first_epoch, group.last_epoch or EPOCHS])
        weights = held[max(0, median - 1)].clip(min=0)
        near = min(last + 1, len(donors)) - max(first - 1, 0) + 1
        row |= {
            f"epoch_{number}": float(ends[median]),
            f"off_{number}": _outside(median, first, last),
            f"map_{number}": _outside(half, first, last),
            f"within_{number}": when[rows].between(first, last).mean(),
            f"chance_{number}": near / len(ends),
            f"found_{number}": len({*np.argsort(-weights)[: len(own)]} & {*own}),
            f"mass_{number}": weights[own].sum() / weights.sum(),
        }
    return row


def _outside(place: int, first: int, last: int) -> int:
    """By how many checkpoints a place is before the first or after the last of a stage."""
    return max(first - place, place - last, 0)


PARTS: Mapping[str, tuple[Callable[[str, str, Path], Row], tuple[str, ...]]] = {
    "staged": (staged, STAGED),
    "nulls": (null, NULLS),
    "sublayers": (parts, SUBLAYERS),
    "donors": (donors, TASKS),
}


def left(part: str) -> Iterator[tuple[str, str]]:
    """Yield the models and plants, or tasks, of a part that have no row yet."""
    done = read(part)
    for what, model in product(PARTS[part][1], MODELS):
        if not ((done["model"] == model) & (done["what"] == what)).any():
            yield model, what


def read(part: str) -> pd.DataFrame:
    """Read the rows of a part that are there."""
    path = TABLES / f"{part}.csv"
    return pd.read_csv(path) if path.is_file() else pd.DataFrame({"model": [], "what": []})


def memorised(part: str) -> pd.DataFrame:
    """Read the plants of a part that memorised enough of their labels."""
    plants = read(part)
    return plants[plants["noisy_learnt"] >= NEEDED] if len(plants) else plants


def rates() -> pd.DataFrame:
    """Sum up the plants: in how many of those that memorised what was found is right."""
    rows: list[Row] = []

    def add(plants: str, asked: dict[str, Any]) -> None:
        for what, right in asked.items():
            n, share = len(right), f"{np.mean(right):.0%}"
            rows.append({"plants": plants, "asked": what, "of": n, "right": share})

    if len(staged := memorised("staged")):
        near = staged[["chance_1", "chance_2"]].prod(axis=1).mean()
        epochs, places = staged[["off_1", "off_2"]], staged[["map_1", "map_2"]]
        asked = {
            "both layers of both groups first": staged[["found_1", "found_2"]] == 2,
            f"both epochs within one checkpoint (by chance {near:.0%})": epochs <= 1,
            "both epochs in the stage itself": epochs == 0,
            "both in the map within one checkpoint": places <= 1,
        }
        add("staged", {what: right.all(axis=1) for what, right in asked.items()})
        add("staged", {"groups in the right order": staged["epoch_1"] < staged["epoch_2"]})
    if len(nulls := read("nulls")):
        no_claim = (nulls[["p_epoch", "p_centre"]] >= ALPHA).all(axis=1)
        add("nulls", {"no difference claimed": no_claim})
        add("nulls", {"no early donor offered": nulls["gap"] < LEAST_GAP})
    if len(found := memorised("sublayers")):
        add("easy parts", {"mass at least .9": found["mass"] >= 0.9})
        add("easy parts", {"right kind at least .9": found["right_kind"] >= 0.9})
        add("easy parts", {"both parts first": found["found"] == 2})
    return pd.DataFrame(rows)


def compared() -> pd.DataFrame:
    """Correlation of early donors with references, by whether memloc would use the donor."""
    runs = memorised("donors")
    used = runs["gap"] >= LEAST_GAP
    rows = []
    for name, some in (("used", runs[used]), ("refused", runs[~used])):
        row = {"early epoch": name, "runs": len(some)}
        row |= {f"{how} r": f"{getattr(some['r'], how)():.2f}" for how in ("min", "median", "max")}
        for what in ("early_undone", "early_damage"):
            row[what.replace("early_", "") + " (mean)"] = f"{some[what].mean():.2f}"
        rows.append(row)
    return pd.DataFrame(rows)


def make(folder: Path, part: str) -> None:
    """Make the rows of a part that are missing."""
    for model, what in left(part):
        own = folder / part / f"{model}-{what.replace('/', '_').replace(':', '-')}"
        try:
            row = PARTS[part][0](model, what, own)
        except memloc.MemlocError as error:
            row = {"failed": str(error)}
        table = pd.concat([read(part), pd.DataFrame([{"model": model, "what": what, **row}])])
        with whole_file(TABLES / f"{part}.csv") as draft:
            table.to_csv(draft, index=False, float_format="%.4g")
        shutil.rmtree(own, ignore_errors=True)
        print(part, model, what, row, flush=True)


def main() -> None:
    """Make what is missing, and write the tables of the pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("parts", nargs="*", default=list(PARTS))
    given = parser.parse_args()
    if given.out:
        for part in given.parts:
            make(given.out, part)
    put("rates", markdown(rates()), GUIDE)
    put("donors", markdown(compared()), GUIDE)


if __name__ == "__main__":
    main()
