"""Checks of shares on ordinary runs: what repairs of layers achieve, named sets, mixtures, draws.

`python -m studies.checks FOLDER` trains ordinary runs of tiny models, looks at them, and keeps a
row for each in studies/tables/checks; it continues where it stopped. With `--plants STUDY`, plants
of `memloc board` are looked at, too. Without a folder, it only writes docs/explanation/checks.md.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy import stats

import memloc
from memloc.arrays import BoolArray, FloatArray
from memloc.engine.fit import fit
from memloc.engine.learner import Learner, Part
from memloc.methods.protocol import preset
from memloc.methods.retrainer import prepared
from memloc.methods.shares import Shares
from memloc.model.checkpoints import save_checkpoint
from memloc.model.predict import evaluating, length_batches, predict, to_batch
from memloc.model.stack import Prepared, Stack
from memloc.reporting.tables import markdown
from memloc.run.folder import Run
from memloc.seeds import generator
from memloc.stats.answers import half_of
from memloc.stats.planted import planted_mass
from memloc.stats.subsets import shapley_values, subset_sizes
from memloc.stats.undone import label_margins
from memloc.stats.windows import planted_layers, read_plant
from memloc.store import paths
from memloc.store.files import whole_file
from studies.board import r2
from studies.kept import plants_with
from studies.pages import DOCS, STORED, put

TABLES = STORED / "checks"
PAGE = DOCS / "explanation" / "checks.md"
MODELS = ("tiny-opt", "tiny-gpt-neo")
SETTINGS = {"finetune.learning_rate": 8e-4, "finetune.epochs": 20, "finetune.measure_every": 10}
DRAWS: dict[str, dict[str, Any]] = {
    "first": {},
    "noise": {"noise": 2},
    "noise 3": {"noise": 3},
    "noise 4": {"noise": 4},
    "seed": {"seed": 2},
    "rate": {"settings": {"finetune.learning_rate": 5e-4, "finetune.epochs": 30}},
}
"""What differs from the first run of a model."""
SETS = 8
"""Random sets of layers that are retrained, each as large as the named one."""
MIXTURES = 48
"""Random mixtures whose states are looked at."""
OTHER_ORDER = 1000
Row = dict[str, Any]


def trained(model: str, draw: str, folder: Path) -> Run:
    """Train an ordinary run: the first one of a model, or one in which a draw differs."""
    given: Row = {"noise": 1, "seed": 1, "settings": {}} | DRAWS[draw]
    task = memloc.load_task("tiny-topic", examples=96)
    noisy = memloc.add_noise(task, rate=0.25, seed=given["noise"])
    settings = SETTINGS | given["settings"]
    checkpoints = ["final", "reference"]
    return memloc.train(
        model, noisy, folder, seed=given["seed"], checkpoints=checkpoints, settings=settings
    )


def looked_at(run: Run, donor: str = "reference") -> tuple[Row, pd.DataFrame]:
    """Compute shares and their checks: a row for the run, and one for each of its layers."""
    game = Shares(donor=donor)
    found, lost = game.run(run), game.play(run).noisy[0]
    weights = found.weights
    row = {
        "word": found.answered(n_classes=len(run.task.label_names)).word,
        "undone": float(lost[:, -1].mean()),
        "control": found.about["control"]["kept"],
        "named": "+".join(str(layer) for layer in half_of(weights)),
        **judged(lost, generator(0, "halves", run.name)),
        **distances(run, donor),
    }
    table = pd.DataFrame({"layer": np.arange(1, run.depth + 1), "share": weights})
    return row, table


def judged(lost: FloatArray, rng: np.random.Generator) -> Row:
    """Name layers by half of the examples, and test the set on the others.

    `lost` (examples, subsets) says whether an example's label is lost when a subset is exchanged.
    `p_necessary` and `p_sufficient` are the shares of all sets of the same size that undo as much,
    or keep as much when all others are exchanged. `p_rest`: a sign test whether labels are still
    there once the set is exchanged. `p_minimal`: the largest p of sign tests, one for each layer of
    the set, whether leaving it out undoes less.
    """
    order = rng.permutation(len(lost))
    naming, testing = np.array_split(order, 2)
    depth = lost.shape[1].bit_length() - 1
    layers = [layer - 1 for layer in half_of(shapley_values(lost[naming].mean(0)))]
    bits = sum(1 << layer for layer in layers)
    full, undone = lost.shape[1] - 1, lost[testing].mean(0)
    same = np.flatnonzero(subset_sizes(depth) == len(layers))
    smaller = [sign_p(lost[testing, bits], lost[testing, bits ^ 1 << layer]) for layer in layers]
    return {
        "size": len(layers),
        "necessary": undone[bits],
        "random_necessary": undone[same].mean(),
        "p_necessary": (undone[same] >= undone[bits]).mean(),
        "sufficient": 1 - undone[full ^ bits],
        "random_sufficient": 1 - undone[full ^ same].mean(),
        "p_sufficient": (undone[full ^ same] <= undone[full ^ bits]).mean(),
        "p_rest": sign_p(lost[testing, full], lost[testing, bits]),
        "p_minimal": max(smaller),
    }


def sign_p(ones: FloatArray, others: FloatArray) -> float:
    """Return the p-value of a one-sided sign test that `ones` are larger than `others`."""
    more, fewer = int((ones > others).sum()), int((ones < others).sum())
    return float(stats.binomtest(more, more + fewer, alternative="greater").pvalue) if more else 1.0


def distances(run: Run, donor: str = "reference") -> Row:
    """Say how far states of random mixtures are from those of both models, at the readout.

    Medians over mixtures and examples of the distance to the nearer model, relative to the distance
    between the two; and the share of states that are farther from both than they are from each
    other.
    """
    final, other = run.load("final").stack, run.load(donor).stack
    rng = generator(0, "mixtures", run.name)
    sets: list[BoolArray] = [np.zeros(run.depth, bool), np.ones(run.depth, bool)]
    sets += [rng.permutation(run.depth) < rng.integers(1, run.depth) for _ in range(MIXTURES)]
    encoded = run.encode(run.load("final"))
    row: Row = {}
    for name, rows in (("noisy", run.noisy_rows), ("clean", run.clean_rows)):
        parts = []
        with evaluating(final.model), evaluating(other.model):
            for picked in length_batches(final, encoded.lengths[rows]):
                ready = final.prepare(to_batch(encoded, rows[picked], final.device))
                parts.append(torch.stack([_mixed(final, other, ready, each) for each in sets]))
        states = torch.cat(parts, 1).double()
        away = torch.stack([(states[2:] - states[parent]).norm(dim=-1) for parent in (0, 1)])
        nearer = (away.amin(0) / (states[0] - states[1]).norm(dim=-1)).numpy()
        row |= {f"{name}_median": np.median(nearer), f"{name}_outside": (nearer > 1).mean()}
        row[f"{name}_95"] = np.quantile(nearer, 0.95)
    return row


def _mixed(final: Stack, other: Stack, ready: Prepared, exchanged: BoolArray) -> torch.Tensor:
    state = ready.state
    for index, call in enumerate(ready.calls):
        state = (other if exchanged[index] else final).run(index, state, call)
    return final.vectors(state, ready)


def retrained(run: Run, sets: Sequence[Sequence[int]]) -> pd.DataFrame:
    """Say what is lost when each set of layers (from 0) is trained again, in a row for each set.

    The layers go back to their pretrained weights and learn the clean examples, some of which are
    held out. `undone` and `damage` are the shares of noisy and of held-out labels that are lost,
    `margin` is by how much the margin of the noisy ones falls.
    """
    setup = prepared(run, preset("demo").method("retraining"))  # type: ignore[arg-type]
    rows, noisy = setup.looked_at, len(setup.noisy)
    labels = setup.labels[rows]
    before = label_margins(predict(setup.final.stack, setup.texts, rows), labels)
    learners = [
        Learner(
            str(number),
            partial(setup.reset, layers),  # type: ignore[arg-type]
            setup.labels,
            setup.seed,
            (Part(setup.train, tuple(layers), setup.still),),
        )
        for number, layers in enumerate(sets)
    ]
    found = {}
    for ready in fit(learners, setup.texts, setup.settings, ask=rows):
        for each in ready:
            after = label_margins(each.logits, labels)
            lost, fallen = (after < 0) & (before > 0), before - after
            means = lost[:noisy].mean(), lost[noisy:].mean(), fallen[:noisy].mean()
            found[int(each.name)] = dict(zip(("undone", "damage", "margin"), means, strict=True))
    return pd.DataFrame([found[number] for number in range(len(sets))])


def edited(run: Run, shares: FloatArray) -> tuple[Row, pd.DataFrame]:
    """Retrain each layer alone, the named set, and random sets of its size."""
    rng = generator(0, "random sets", run.name)
    named = [layer - 1 for layer in half_of(shares)]
    others = [rng.choice(run.depth, len(named), replace=False).tolist() for _ in range(SETS)]
    sets = [named, *others]
    found = retrained(run, [*([layer] for layer in range(run.depth)), *sets])
    undone = found["undone"].to_numpy()[run.depth :]
    held = np.array([shares[one].sum() for one in sets])
    row = {
        "edit_named": undone[0],
        "edit_random": undone[1:].mean(),
        "edit_best": undone[1:].max(),
        "edit_r2": r2(held, undone),
        "edit_r2_random": r2(held[1:], undone[1:]),
    }
    return row, found[: run.depth]


def other_order(run: Run, folder: Path) -> Path:
    """Train the reference once more, on the data in another order, from the same head."""
    if not folder.is_dir():
        start = partial(run.load_start, run.seed, run.task.label_names)
        seed = run.seed + OTHER_ORDER
        learner = Learner("original", start, run.noisy.original, seed)
        texts = run.encode(run.load("final"))
        for (each,) in fit([learner], texts, run.settings.finetune):
            save_checkpoint(folder, each.model, {})
    return folder


def ordinary(out: Path) -> Iterator[tuple[Row, pd.DataFrame]]:
    """Yield what is missing of the ordinary runs."""
    done = {(row["model"], row["draw"]) for row in read("runs").to_dict("records")}
    for draw in DRAWS:
        for model in MODELS:
            key = {"model": model, "draw": draw}
            if (model, draw) not in done:
                run = trained(model, draw, out / f"{model}-{draw}")
                row, layers = looked_at(run)
                more, edits = edited(run, layers["share"].to_numpy())
                learnt = {"learnt": run.status.final.noisy}  # type: ignore[union-attr]
                yield key | learnt | row | more, layers.join(edits).assign(**key)
            if draw == "first" and (model, "order") not in done:
                run = Run.open(out / f"{model}-{draw}")
                donor = other_order(run, out / f"{model}-order")
                row, layers = looked_at(run, str(donor))
                yield {**key, "draw": "order", **row}, layers.assign(**{**key, "draw": "order"})


def planted(study: Path) -> Iterator[tuple[Row, pd.DataFrame]]:
    """Yield what is missing of the plants of a study that is there.

    The reference of a plant with a null is compared with the null, which is the same training on
    the data in another order. Plants in a part of their layers are asked for the part, too.
    """
    done = {(row["model"], row["draw"]) for row in read("runs").to_dict("records")}
    for run, _ in plants_with(study, "shares"):
        assert run.plant is not None
        name = run.plant.planted
        key = {"model": run.model_name, "draw": f"plant {name}, {run.record.task.name}"}
        if (key["model"], key["draw"]) in done:
            continue
        row, layers = looked_at(run)
        null = run.folder.with_name(run.folder.name.replace("window-", "null-", 1))
        if (null / paths.RUN).is_file() and Run.open(null).has("final"):
            other = Shares(donor=str(Run.open(null).path("final")))
            weights = other.run(run).weights
            row["r_order"] = np.corrcoef(weights, layers["share"])[0, 1]
            for end, found, game in (("", layers["share"], Shares()), ("_order", weights, other)):
                row["mass" + end] = planted_mass(np.asarray(found), planted_layers(name))
                row["earlier" + end] = lost_before(run, planted_layers(name), game)
        yield key | row | parts_of(run), layers.assign(**key)


def lost_before(run: Run, planted: Sequence[int], game: Shares) -> float:
    """Return the share of noisy labels lost by exchanging all layers before the planted ones."""
    return float(game.play(run).noisy[0].mean(0)[(1 << planted[0]) - 1])


def parts_of(run: Run) -> Row:
    """Say how much of the shares of sublayers is in the planted ones; nothing of whole layers."""
    assert run.plant is not None
    (group,) = read_plant(run.plant.planted)
    if not group.part:
        return {}
    table = Shares(units="sublayers", clean_examples=12).run(run)["units"]
    held = table[table["value"] == "labels"].set_index("unit")["share"].clip(lower=0)
    own = [f"{group.part} {layer + 1}" for layer in group.layers]
    return {"part_mass": held[own].sum() / held.sum()}


def read(name: str) -> pd.DataFrame:
    """Read the rows of a table that are there."""
    path = TABLES / f"{name}.csv"
    return pd.read_csv(path) if path.is_file() else pd.DataFrame({"model": [], "draw": []})


def keep(found: Iterator[tuple[Row, pd.DataFrame]]) -> None:
    """Add rows to the tables as they come; a run is done when its row is in `runs`, the last."""
    for row, layers in found:
        for name, part in (("layers", layers), ("runs", pd.DataFrame([row]))):
            table = pd.concat([read(name), part])
            table = table.drop_duplicates([c for c in ("model", "draw", "layer") if c in table])
            with whole_file(TABLES / f"{name}.csv") as draft:
                table.to_csv(draft, index=False, float_format="%.4g")
        print(row, flush=True)


def edits_table() -> pd.DataFrame:
    """Say what retraining layers undoes, and how much of it shares predict."""
    layers = read("layers").dropna(subset=["margin"])
    runs = read("runs").sort_values(["model", "draw"])
    rng = np.random.default_rng(0)
    rows = []
    for row in runs.dropna(subset=["edit_named"]).to_dict("records"):
        mine = layers[(layers["model"] == row["model"]) & (layers["draw"] == row["draw"])]
        share, margin = mine["share"].to_numpy(), mine["margin"].to_numpy()
        by_chance = [r2(rng.permutation(share), margin) for _ in range(500)]
        rows.append(
            {
                "run": f"{row['model']}, {row['draw']}",
                "best layer alone": mine["undone"].max(),
                "R², margins": r2(share, margin),
                "R², random order": np.mean(by_chance),
                "named layers": row["edit_named"],
                "random sets": row["edit_random"],
                "best random set": row["edit_best"],
                "R², sets": row["edit_r2"],
                "R², random sets": row["edit_r2_random"],
            }
        )
    columns = ["share", "margin"]
    pooled = layers[columns] - layers.groupby(["model", "draw"])[columns].transform("mean")
    rows.append({"run": "all, by layer", "R², margins": r2(*pooled.to_numpy().T)})
    return _shown(rows)


def sets_table() -> pd.DataFrame:
    """Return the tests of named sets."""
    columns = {
        "size": "layers",
        "necessary": "undone by them",
        "random_necessary": "by random sets",
        "p_necessary": "p, undone",
        "sufficient": "kept by them",
        "random_sufficient": "by random sets alone",
        "p_sufficient": "p, kept",
        "p_rest": "p, others hold",
        "p_minimal": "p, each is needed",
    }
    runs = read("runs").sort_values(["model", "draw"])
    rows = runs[runs["draw"].isin(KIND_OF_DRAW)].to_dict("records")
    return _shown(
        [
            {"run": f"{row['model']}, {row['draw']}"}
            | {new: row[old] for old, new in columns.items()}
            for row in rows
        ]
    )


def distances_table() -> pd.DataFrame:
    """Return distances of the states of mixtures, by kind of run."""
    runs = read("runs")
    kind = runs["draw"].where(~runs["draw"].str.startswith("plant"), "plant").replace(KIND_OF_DRAW)
    numbers = {
        f"{name}_{what}": f"{name}: {said}"
        for name in ("noisy", "clean")
        for what, said in (("median", "median"), ("95", "95 %"), ("outside", "farther than 1"))
    }
    means = runs.assign(kind=kind).groupby("kind")[[*numbers]].mean().rename(columns=numbers)
    means.insert(0, "runs", kind.value_counts())
    rows = means.rename_axis("models").reset_index()
    return _shown([{str(n): v for n, v in row.items()} for row in rows.to_dict("records")])


def plants_table() -> pd.DataFrame:
    """Return what another reference and finer units say of plants."""
    runs = read("runs").sort_values(["draw", "model"])
    rows = runs[runs["draw"].str.startswith("plant ")].to_dict("records")
    return _shown(
        [
            {
                "plant": str(row["draw"]).removeprefix("plant "),
                "model": row["model"],
                "word": row["word"],
                "planted mass": row.get("mass", np.nan),
                "mass by null": row.get("mass_order", np.nan),
                "r": row.get("r_order", np.nan),
                "lost in front": row.get("earlier", np.nan),
                "lost in front by null": row.get("earlier_order", np.nan),
                "mass in planted part": row.get("part_mass", np.nan),
            }
            for row in rows
        ]
    )


KIND_OF_DRAW = dict.fromkeys((*DRAWS, "order"), "ordinary")
SAID = {
    "noise": "other wrong labels",
    "noise 3": "other wrong labels (3)",
    "noise 4": "other wrong labels (4)",
    "seed": "another training seed",
    "rate": "another rate and length",
    "order": "a reference that saw another order",
}


def draws_table() -> pd.DataFrame:
    """Compare the shares of each run with those of the first run of its model."""
    layers, runs = read("layers"), read("runs").set_index(["model", "draw"])
    rows = []
    for model, draw in runs.index:
        if draw.startswith("plant"):
            continue
        own, first = (
            layers[(layers["model"] == model) & (layers["draw"] == name)].sort_values("layer")
            for name in (draw, "first")
        )
        row, positive = runs.loc[(model, draw)], own["share"].clip(lower=0)
        rows.append(
            {
                "model": model,
                "differs in": SAID.get(draw, "(the first)"),
                "word": row["word"],
                "layers with half": ", ".join(str(row["named"]).split("+")),
                "first six": positive[:6].sum() / positive.sum(),
                "r of shares": np.corrcoef(own["share"], first["share"])[0, 1],
                "undone": row["undone"],
                "clean labels kept": row["control"],
            }
        )
    return _shown(sorted(rows, key=lambda row: (row["model"], row["differs in"])))


def _shown(rows: Sequence[Row]) -> pd.DataFrame:
    """Numbers with two digits, p-values with three."""

    def cell(name: str, value: Any) -> str:
        if isinstance(value, str | int | np.integer):
            return str(value)
        if np.isnan(value):
            return "–"
        return f"{value:.3f}" if name.startswith("p,") else f"{value:.2f}"

    return pd.DataFrame([{n: cell(n, v) for n, v in row.items()} for row in rows]).fillna("–")


TABLES_OF_PAGE: dict[str, Callable[[], str]] = {
    "edits": lambda: markdown(edits_table()),
    "sets": lambda: markdown(sets_table()),
    "mixtures": lambda: markdown(distances_table()),
    "draws": lambda: markdown(draws_table()),
    "planted": lambda: markdown(plants_table()),
}


def main() -> None:
    """Make what is missing, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--plants", type=Path, help="a folder that `memloc board` wrote")
    given = parser.parse_args()
    if given.folder:
        keep(ordinary(given.folder))
    if given.plants:
        keep(planted(given.plants))
    for name, table in TABLES_OF_PAGE.items():
        put(name, table(), PAGE)


if __name__ == "__main__":
    main()
