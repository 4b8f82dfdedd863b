"""The board: what is kept of its plants, and the tables and picture of docs/explanation/control.md.

`python -m studies.board STUDY ...` adds what methods found in the plants of `memloc board` to
studies/tables/board, and writes the page; without a study, the page alone.
"""

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from memloc.arrays import FloatArray
from memloc.methods.registry import methods, trivial_names
from memloc.reporting.figures import save_spec
from memloc.reporting.tables import markdown
from memloc.stats.board import by_kind, by_method
from memloc.stats.planted import BASELINE, plant_scores
from memloc.stats.windows import PLANT_KINDS, split_kind
from memloc.store import paths
from memloc.study.board import RECIPES, cost
from studies.control import memorised
from studies.kept import Kept, found_in, found_inside, plants_with
from studies.pages import DOCS, IMAGES, LINE, STORED, put

PAGE = DOCS / "explanation" / "control.md"
PICTURE = IMAGES / "board.svg"
KEPT = 0.9
"""Share of clean labels that mixtures must keep on average for shares to be trusted here."""
WANTED = 0.7
"""Mass that shares should have on hard plants whose mixtures keep KEPT of the clean labels."""
FIRST = ("shares", "swapping", "retraining", "gradients", "probing")
"""memloc's and the paper's methods, in the order of the tables; peers and baselines follow."""


@dataclass(frozen=True)
class Board(Kept):
    """What methods found in the plants of the board and in nulls."""

    folder: ClassVar = STORED / "board"

    layers: pd.DataFrame
    answers: pd.DataFrame
    plants: pd.DataFrame
    checks: pd.DataFrame
    """One row per plant that shares looked at: see `checked`."""
    inside: pd.DataFrame
    """One row per plant in MLPs: how shares of sublayers find it, see `kept.found_inside`."""

    @classmethod
    def of(cls, studies: Sequence[Path]) -> "Board":
        """From studies, finished or not."""
        layers, answers, plants = found_in(studies)
        tries = RECIPES["full"]["study"]["overrides"]["control.tries"]
        is_done = plants["used"] | (plants["tries"] == tries)  # of a study that was stopped
        return cls(
            layers,
            answers,
            plants[is_done],
            pd.DataFrame([row for study in studies for row in checked(study)]),
            pd.DataFrame([row for study in studies for row in inside_layers(study)]),
        )

    def joined(self, other: "Board") -> "Board":
        """Add the rows of another board; those that are here stay as they are."""
        ours, theirs = vars(self), vars(other)
        names = ["task", "model", "planted", "null", "method", "layer"]
        joined = {name: pd.concat([table, theirs[name]]) for name, table in ours.items()}
        return Board(
            **{
                name: table.drop_duplicates([n for n in names if n in table])
                for name, table in joined.items()
            }
        )


def inside_layers(study: Path) -> Iterator[dict[str, Any]]:
    """Look for each plant in MLPs by shares of sublayers, with twelve of its noisy examples."""
    for run, _ in plants_with(study, "subsets"):
        assert run.plant is not None
        if ":" in run.plant.planted:
            names = {"model": run.model_name, "task": run.record.task.name}
            found = found_inside(run, noisy_examples=12, standard_error=0.03)
            yield {**names, "planted": run.plant.planted, **found}


def checked(study: Path) -> Iterator[dict[str, Any]]:
    """What exchanging layers does in each real plant, from the values of all subsets.

    `r2`: how much of the variance over layers of what exchanging a layer alone undoes is explained
    by its share, and by the shares of layers in random order. The named layers are the fewest with
    half of the shares: what is undone when they are exchanged (`sufficient`), when all others are
    (`others`), and at most when one of them is left out (`without_one`), relative to all layers.
    """
    for run, folder in plants_with(study, "subsets"):
        assert run.plant is not None
        shares = pd.read_parquet(folder / "shares.parquet").query("value == 'labels'")
        lost = pd.read_parquet(folder / "subsets.parquet")["lost"].to_numpy()
        found = shares["share"].to_numpy()
        about = json.loads((folder / paths.ABOUT).read_text(encoding="utf-8"))
        yield {
            "model": run.model_name,
            "task": run.record.task.name,
            "planted": run.plant.planted,
            "control": about["about"]["control"]["kept"],
            **_predicted(found, shares["alone_out"].to_numpy()),
            **_named(found, (lost - lost[0]) / (lost[-1] - lost[0])),
        }


def _predicted(shares: FloatArray, alone: FloatArray) -> dict[str, float]:
    rng = np.random.default_rng(0)
    others = [r2(rng.permutation(shares), alone) for _ in range(200)]
    return {"r2": r2(shares, alone), "r2_random": float(np.mean(others))}


def r2(one: FloatArray, other: FloatArray) -> float:
    """Return the squared correlation; not a number where one of them does not vary."""
    if not one.std() or not other.std():
        return np.nan
    return float(np.corrcoef(one, other)[0, 1] ** 2)


def _named(shares: FloatArray, undone: FloatArray) -> dict[str, Any]:
    order = np.argsort(-shares, kind="stable")
    held = np.cumsum(np.maximum(0, shares)[order]) / np.maximum(0, shares).sum()
    chosen = order[: int(np.searchsorted(held, 0.5)) + 1]
    bits = int((1 << chosen).sum())
    smaller = [undone[bits ^ (1 << int(layer))] for layer in chosen]
    return {
        "named": len(chosen),
        "sufficient": undone[bits],
        "others": undone[(len(undone) - 1) ^ bits],
        "without_one": max(smaller),
    }


def ordered(found: Iterable[Any]) -> list[str]:
    """Return methods in the order of the tables: our own, peers, trivial baselines, their best."""
    known = methods()
    peers = [name for name, kind in known.items() if not kind.by_default and not kind.is_trivial]
    every = (*FIRST, *peers, *trivial_names(), BASELINE)
    return [name for name in every if name in {*found}]


def table(board: Board) -> pd.DataFrame:
    """Return planted mass by kind, and over all kinds accuracy, nulls, disguises and cost."""
    kinds = by_kind(board.layers, trivial_names())
    there = [kind for kind in PLANT_KINDS if kind in {*kinds["kind"]}]
    every = by_method(board.layers, board.answers, trivial_names()).set_index("method")
    rows = []
    for name in ordered(kinds["method"]):
        mine = kinds[kinds["method"] == name].set_index("kind")
        masses = {k: _interval(mine.loc[k].to_dict()) if k in mine.index else "–" for k in there}
        rows.append({"method": name, **masses, **_over_kinds(mine), **_of_nulls(every, name)})
    plants = kinds[kinds["method"] == "shares"].set_index("kind")["plants"]
    rows.append({"method": "plants", **plants.astype(int).astype(str)})
    return pd.DataFrame(rows).fillna("–")


def _interval(row: Mapping[Any, Any]) -> str:
    low, high = row["planted_mass_low"], row["planted_mass_high"]
    ends = "" if np.isnan(low) else f" [{low:.2f}, {high:.2f}]"
    return f"{row['planted_mass']:.2f}{ends}"


def _over_kinds(mine: pd.DataFrame) -> dict[str, str]:
    counts = mine["plants"] / mine["plants"].sum()
    first, second, error = (
        (mine[column] * counts).sum() for column in ("accuracy_1", "accuracy_2", "centre_error")
    )
    return {
        "plants": f"{mine['plants'].sum():.0f}",
        "@1 / @2": f"{first:.2f} / {second:.2f}",
        "centre error": f"{error:.1f}",
    }


def _of_nulls(every: pd.DataFrame, name: str) -> dict[str, str]:
    row = every.loc[name]
    changed, called = row["changed_by_disguise"], row["called"]
    ends = f" of {row['nulls']:.0f} [{row['called_low']:.2f}, {row['called_high']:.2f}]"
    return {
        "nulls called localised": "–" if np.isnan(called) else f"{called:.2f}{ends}",
        "changed by a disguise": "–" if np.isnan(changed) else f"{changed:.2f}",
        "cost": "–" if name == BASELINE else f"{cost(name):,.0f}",
    }


def checks_table(board: Board) -> pd.DataFrame:
    """Means of the checks by kind of plant."""
    kinds = [split_kind(name)[0] for name in board.checks["planted"]]
    numbers = ["control", "r2", "r2_random", "named", "sufficient", "others", "without_one"]
    means = board.checks.assign(kind=kinds).groupby("kind")[numbers].mean()
    means = means.reindex([kind for kind in PLANT_KINDS if kind in means.index])
    titles = {
        "control": "clean labels kept",
        "r2": "R²",
        "r2_random": "R², random layers",
        "named": "named layers",
        "sufficient": "undone by them",
        "others": "by all others",
        "without_one": "without one of them",
    }
    return means.map("{:.2f}".format).rename(columns=titles).reset_index()


def inside_table(board: Board) -> pd.DataFrame:
    """Return how well shares of sublayers find plants in MLPs, by kind."""
    found = board.inside.assign(kind=[split_kind(name)[0] for name in board.inside["planted"]])
    rows = []
    for kind in [kind for kind in PLANT_KINDS if kind in {*found["kind"]}]:
        part = found[found["kind"] == kind]
        numbers = {"mass": "planted MLPs", "right_kind": "all MLPs", "control": "clean labels kept"}
        means = {title: f"{part[name].mean():.2f}" for name, title in numbers.items()}
        least = {"least, planted MLPs": f"{part['mass'].min():.2f}"}
        both = {"both first": f"{(part['found'] == 2).sum()} of {len(part)}"}
        rows.append({"kind": kind, **means, **least, **both})
    return pd.DataFrame(rows)


def called(board: Board) -> str:
    """Say how often nulls would be called localised without a look at what is undone."""
    claims = by_method(board.layers, board.answers[:0]).set_index("method")
    told = [
        f"{name} {row['called']:.2f} of {row['nulls']:.0f}"
        for name, row in claims.reindex(FIRST[:3]).to_dict("index").items()
    ]
    return fill(f"By weights alone: {', '.join(told)}.", LINE, break_on_hyphens=False)


def trusted(board: Board) -> str:
    """Say how much weight shares put on planted layers where mixtures keep clean labels."""
    scores = plant_scores(board.layers[board.layers["method"] == "shares"], (1,))
    found = scores.merge(board.checks, on=["task", "model", "planted"])
    parts = []
    for kept, rows in found.groupby(found["control"] >= KEPT):
        masses = rows["planted_mass"]
        least, median = f"{masses.min():.2f}", f"{masses.median():.2f}"
        some = f"{len(rows)} of {len(found)} plants"
        where = f"keep at least {KEPT:g} of the clean labels" if kept else "keep fewer"
        few = f"{(masses < WANTED).sum()} have less than {WANTED:g}"
        mass = f"the least mass of shares is {least}, the median {median}"
        parts.append(f"{some} {where}; {mass}, and {few}")
    said = "".join(f"{part}. " for part in reversed(parts))
    return fill(said.strip(), LINE, break_on_hyphens=False)


def parts(board: Board) -> dict[str, str]:
    """The generated parts of the page."""
    nulls = int(board.plants["null"].sum())
    said = f"{memorised(board.plants)} Nulls: {nulls}."
    return {
        "board": f"{said}\n\n{markdown(table(board))}",
        "called": f"{called(board)}\n",
        "trusted": f"{trusted(board)}\n",
        "inside": markdown(inside_table(board)),
        "checks": markdown(checks_table(board)),
    }


def picture(board: Board) -> dict[str, Any]:
    """Methods by kinds of plants, coloured by planted mass."""
    kinds = by_kind(board.layers, trivial_names())
    order = ordered(kinds["method"])
    table = kinds[kinds["method"].isin(order)].assign(
        text=kinds["planted_mass"].map("{:.2f}".format)
    )
    values = table[["method", "kind", "planted_mass", "text"]].to_dict("records")
    axes = {
        "x": {"field": "kind", "sort": [*PLANT_KINDS], "title": "kind of plant"},
        "y": {"field": "method", "sort": order, "title": None},
    }
    colour: dict[str, Any] = {
        "field": "planted_mass",
        "type": "quantitative",
        "title": "planted mass",
    }
    colour |= {"scale": {"scheme": "blues", "domain": [0, 1]}}
    white = {"condition": {"test": "datum.planted_mass > 0.5", "value": "white"}, "value": "black"}
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "data": {"values": values},
        "encoding": axes,
        "width": 260,
        "layer": [
            {"mark": "rect", "encoding": {"color": colour}},
            {"mark": "text", "encoding": {"text": {"field": "text"}, "color": white}},
        ],
    }


def main() -> None:
    """Keep what studies found, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("studies", type=Path, nargs="*", help="folders that `memloc board` wrote")
    options = parser.parse_args()
    if options.studies:
        Board.kept().joined(Board.of(options.studies)).keep()
    board = Board.kept()
    for name, text in parts(board).items():
        put(name, text, PAGE)
    save_spec(picture(board), PICTURE)


if __name__ == "__main__":
    main()
