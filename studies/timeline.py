"""Time and parts as ground truth: staged plants and their nulls, plants in parts, early donors.

`python -m studies.timeline --out FOLDER PART …` runs the parts `staged`, `sublayers`, `hard` and
`donors` (default: all). Each plant or run is one row of a table in `studies/tables/timeline`; rows
that are there are not made again, and weights are deleted once their row is written. Plants have
five layers and the runs of `donors` eight, so that all subsets of layers are cheap.
The tables of docs/guides/timeline.md are written from the rows that are there; without `--out`,
nothing else is done.
"""

import argparse
import shutil
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import memloc
from memloc.arrays import IntArray
from memloc.methods.early import LEAST_GAP, early_donor
from memloc.methods.shares import Shares
from memloc.methods.timeline import ALPHA, Timeline, learnt_after
from memloc.model.predict import predict
from memloc.reporting.tables import markdown
from memloc.run.folder import Run
from memloc.run.plant import make_null
from memloc.stats.windows import read_plant
from memloc.store import paths
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
STAGE = 14
"""The epoch from which on the second group of a staged plant is learnt, of 36."""
EPOCHS = 36
STAGED = tuple(
    f"{one}/{other}@{STAGE}"
    for pair in (("1-2", "4-5"), ("1-2", "3-4"), ("2-3", "4-5"))
    for one, other in (pair, pair[::-1])
)
WITH_NULL = STAGED[:3]
"""The staged plants whose nulls are made as well."""
NEEDED = 0.9
"""Share of the noisy labels that a plant must memorise to be used."""
SUBLAYERS = ("mlp:2-3", "attention:2-3", "mlp:4-5", "attention:4-5")
HARD = ("equal mlp:3-4", "equal attention:3-4")
EASY = {
    "control.auxiliary_examples": 32,
    "control.tries": 2,
    "verdict.noisy_at_least": NEEDED,
    "finetune.repeat": 3,
}
Row = dict[str, Any]


def staged(model: str, planted: str, folder: Path) -> Row:
    """Plant two groups of noisy labels in stages and look for both by `Timeline`."""
    changes = {**EASY, "control.epochs": EPOCHS, "control.learning_rate": 7e-4}
    task = _task(60, rate=0.3)
    weights = ["final"]
    run = memloc.plant(
        model, task, folder / "plant", planted, weights=weights, options=PLANTED, settings=changes
    )
    null = {}
    if planted in WITH_NULL:
        null = _of_null(make_null(run, folder / "null", weights))
    return {"noisy_learnt": run.status.final.noisy, **_found(run), **null}  # type: ignore[union-attr]


def _of_null(run: Run) -> Row:
    """What is said of a staged plant with its original labels: there is no difference to find."""
    found = Timeline(epochs=tuple(run.epochs()[::5])).run(run)["summary"]
    best = early_donor(run)
    return {
        "null_p_epoch": found["p_epoch"].iloc[0],
        "null_p_centre": found["p_centre"].iloc[0],
        "null_gap": np.nan if best is None else best.gap,
    }


def parts(model: str, planted: str, folder: Path) -> Row:
    """Plant in attention or MLPs and look for the part by shares of sublayers."""
    changes = {**EASY, "control.epochs": 30, "control.learning_rate": 1e-3}
    run = memloc.plant(
        model,
        _task(60, rate=0.3),
        folder,
        planted,
        weights=["final", "reference"],
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
        weights=["final", "reference"],
        options=memloc.LoadOptions(depth=8),
        settings=settings,
    )
    best = early_donor(run)
    assert best is not None
    found = {name: Shares(donor=name).run(run) for name in ("reference", best.weights)}
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
    """Where and when `Timeline` finds each group, and when the model itself predicts it.

    `Timeline` is given every third kept epoch, and the truth is told by all of them. What is `off`
    is the median example of a group, in checkpoints that `Timeline` was given; a share `near` of
    the examples is within one of them. `map` is how far off the map is.
    """
    assert run.plant is not None
    epochs = run.epochs()[::3]
    timeline = Timeline(epochs=tuple(epochs), clean_examples=6)
    learnt = timeline.run(run)["learnt"].set_index("example")
    games = [timeline._shares(run, paths.epoch(epoch)) for epoch in epochs]
    shares = np.stack([game["shares"] for game in games])
    place = {row: number for number, row in enumerate(games[0]["rows"].tolist())}
    ends = np.array([*epochs, EPOCHS])
    when = pd.Series(np.searchsorted(ends, learnt["epoch"]), index=learnt.index)
    predicted = np.searchsorted(ends, _predicted(run))
    control = (
        Shares(donor=paths.epoch(epochs[0]), noisy_examples=1, clean_examples=12)
        .run(run)
        .about["control"]
    )
    row: Row = {"checkpoints": len(epochs), "control": control["kept"]}
    for number, group in enumerate(read_plant(run.plant.planted), 1):
        rows = run.noisy_rows[run.planted_groups[run.noisy_rows] == number - 1]
        rows = np.array([each for each in rows if each in learnt.index])
        held = shares[:, [place[each] for each in rows]].mean(1)  # (epochs, layers)
        weights, own = held[0].clip(min=0), [*group.layers]
        ahead = held[:, own].sum(1) < held[0, own].sum() / 2
        half = ahead.argmax() if ahead.any() else len(epochs)
        truth = np.median(predicted[rows])
        row |= {
            f"epoch_{number}": float(ends[int(np.median(when[rows]))]),
            f"off_{number}": float(abs(np.median(when[rows]) - truth)),
            f"near_{number}": float((abs(when[rows] - predicted[rows]) <= 1).mean()),
            f"map_{number}": float(abs(half - truth)),
            f"found_{number}": len({*np.argsort(-weights)[: len(own)]} & {*own}),
            f"mass_{number}": weights[own].sum() / weights.sum(),
        }
    return row


def _predicted(run: Run) -> IntArray:
    """For each example, from which epoch on the checkpoints themselves predict its label."""
    epochs = run.epochs()
    wrong = []
    for epoch in epochs:
        loaded = run.load(paths.epoch(epoch))
        logits = predict(loaded.stack, run.encode(loaded))
        wrong.append(logits.argmax(1) != run.noisy.assigned)
    return np.array([*epochs, EPOCHS])[learnt_after(np.array(wrong))]


PARTS: Mapping[str, tuple[Callable[[str, str, Path], Row], tuple[str, ...]]] = {
    "staged": (staged, STAGED),
    "sublayers": (parts, SUBLAYERS),
    "hard": (parts, HARD),
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
        asked = {
            "both layers of both groups first": staged[["found_1", "found_2"]] == 2,
            "epochs of both groups within one checkpoint": staged[["off_1", "off_2"]] <= 1,
            "both in the map within one checkpoint": staged[["map_1", "map_2"]] <= 1,
        }
        add("staged", {what: right.all(axis=1) for what, right in asked.items()})
        add("staged", {"groups in the right order": staged["epoch_1"] < staged["epoch_2"]})
        nulls = staged.reindex(columns=["null_p_epoch", "null_p_centre", "null_gap"]).dropna()
        if len(nulls):
            no_claim = (nulls.drop(columns="null_gap") >= ALPHA).all(axis=1)
            add("nulls", {"no difference claimed": no_claim})
            add("nulls", {"no early donor offered": nulls["null_gap"] < LEAST_GAP})
    for part, name in (("sublayers", "easy parts"), ("hard", "hard parts")):
        if len(found := memorised(part)):
            add(name, {"mass at least .9": found["mass"] >= 0.9})
            add(name, {"right kind at least .9": found["right_kind"] >= 0.9})
            add(name, {"both parts first": found["found"] == 2})
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
