"""Where the bar of the control should be: mass in planted layers by what mixtures keep.

`python -m studies.bar STUDY` looks at the plants of a study of `memloc board` (easy, decoy, loud,
and in MLPs; twelve layers). Their shares with the reference are stored there; shares with a far
donor, the pre-trained model, are sampled here. Each plant and donor is a row of `tables/bar.csv`.

The bar was chosen after these answers were seen. `python -m studies.bar --held-out FOLDER` makes
plants with other draws of noise and other seeds, cut to six layers, and asks each with four donors,
near and far; their rows are in `tables/bar_held_out.csv`. Rows that are there are not made again.
Without arguments, the tables of docs/explanation/games.md are written from those rows.
"""

import argparse
import shutil
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pandas as pd

import memloc
from memloc.errors import ScoreError
from memloc.methods.result import Result
from memloc.methods.shares import Shares
from memloc.reporting.tables import markdown
from memloc.run.folder import Run
from memloc.stats.planted import accuracy_at_k, planted_mass
from memloc.stats.subsets import LEAST_KEPT
from memloc.stats.windows import planted_layers
from memloc.store import paths
from memloc.store.files import whole_file
from studies.pages import DOCS, STORED, put

TABLE = STORED / "bar.csv"
NEEDED = 0.9
"""Share of the noisy labels that a plant must memorise to be used."""
FAR = Shares(
    donor="pretrained", subsets="sampled", noisy_examples=8, clean_examples=8, standard_error=0.06
)
FROM_RUN = ("reference", "pretrained")
DONORS = (*FROM_RUN, "epoch", "reference of another seed")
"""Donors of the held-out plants; `epoch` is the first one that was kept."""
HELD_OUT = STORED / "bar_held_out.csv"
MODELS = ("tiny-opt", "tiny-bert", "tiny-gpt-neo", "tiny-gpt-neox")
PLANTS = ("2-3", "4-5", "loud 3-4", "mlp:3-4")
SEEDS = (11, 12)
SHALLOW = memloc.LoadOptions(depth=6)
SETTINGS = {
    "control.auxiliary_examples": 48,
    "control.epochs": 40,
    "control.tries": 2,
    "finetune.repeat": 3,
    "verdict.noisy_at_least": NEEDED,
}


def read(table: Path = TABLE) -> pd.DataFrame:
    """Read the rows that are there."""
    if table.is_file():
        return pd.read_csv(table, dtype={"planted": str})
    return pd.DataFrame(columns=["model", "task", "planted", "donor", "seed"])


def _add(table: Path, row: dict[str, Any]) -> None:
    rows = pd.concat([read(table), pd.DataFrame([row])])
    with whole_file(table) as draft:
        rows.to_csv(draft, index=False, float_format="%.4g")
    print(row, flush=True)


def _is_there(table: Path, key: dict[str, Any]) -> bool:
    rows = read(table)
    return bool((rows[[*key]] == pd.Series(key)).all(axis=1).any())


def hold_out(folder: Path) -> None:
    """Make the plants that had no part in choosing the bar, and ask each with four donors.

    Each plant has a subfolder of its own, which is deleted when all its rows are there.
    """
    for seed, planted, model in product(SEEDS, PLANTS, MODELS):
        key = {"model": model, "task": "tiny-topic", "planted": planted, "seed": seed}
        left = [name for name in DONORS if not _is_there(HELD_OUT, key | {"donor": name})]
        if not left:
            continue
        home = folder / f"{model}-{planted}-{seed}".replace(" ", "-").replace(":", "-")
        task = memloc.add_noise(memloc.load_task("tiny-topic", examples=70), rate=0.25, seed=seed)
        run, other = (
            memloc.plant(
                model,
                task,
                home / name,
                planted,
                seed=its_seed,
                checkpoints=["final", "reference"],
                options=SHALLOW,
                settings=SETTINGS,
            )
            for name, its_seed in (("plant", seed), ("other-seed", seed + 100))
        )
        for name in left:
            is_usable = run.memorised(NEEDED) and run.has("reference")
            row = _row(run, _game(name, run, other)) if is_usable else {"failed": "not memorised"}
            _add(HELD_OUT, key | {"donor": name} | row)
        shutil.rmtree(home)


def _game(donor: str, run: Run, other: Run) -> Shares:
    """Return the shares by a donor of DONORS; `other` is the same plant with another seed."""
    if donor == "epoch":
        return Shares(donor=f"epoch-{run.epochs()[0]}")
    return Shares(donor=donor if donor in FROM_RUN else str(other.path("reference")))


def make(study: Path) -> None:
    """Add the plants of a study that have no row yet: near donors first, as they are stored."""
    runs = [Run.open(place.parent) for place in sorted(study.rglob(paths.RUN))]
    for donor in FROM_RUN:
        for run in runs:
            if run.plant is None or run.is_null or not run.memorised(NEEDED):
                continue
            key = {"model": run.model_name, "task": run.record.task.name}
            key |= {"planted": run.plant.planted, "donor": donor}
            if not _is_there(TABLE, key):
                _add(TABLE, key | _row(run, None if donor == "reference" else FAR))


def _row(run: Run, game: Shares | None) -> dict[str, Any]:
    """Return control and mass of a game, by default of the stored shares.

    There is no mass where exchanging all layers undoes nothing.
    """
    assert run.plant is not None
    try:
        stored = paths.result(run.folder, "shares")
        found = Result.read(stored) if game is None else game.run(run)
    except ScoreError as error:
        return {"failed": str(error)}
    planted = planted_layers(run.plant.planted)
    return {
        "control": found.about["control"]["kept"],
        "mass": planted_mass(found.weights, planted),
        "first": accuracy_at_k(found.weights, planted, len(planted)),
    }


def bar(table: Path = TABLE) -> pd.DataFrame:
    """Sum up the plants by what their mixtures keep of the clean labels."""
    each = read(table).dropna(subset=["control", "mass"])
    rows = []
    for low, high in pairwise([0, 0.5, LEAST_KEPT, 0.75, 0.9, 0.98, 1.001]):
        some = each[(each["control"] >= low) & (each["control"] < high)]
        if len(some):
            rows.append(
                {
                    "clean labels kept": f"{low:.2g} to {min(1, high):.2g}",
                    "answers": len(some),
                    "median mass": f"{some['mass'].median():.2f}",
                    "least mass": f"{some['mass'].min():.2f}",
                    "planted layers not first": int((some["first"] < 1).sum()),
                }
            )
    return pd.DataFrame(rows)


def main() -> None:
    """Make what is missing, and write the tables of the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", type=Path, nargs="?")
    parser.add_argument("--held-out", type=Path)
    given = parser.parse_args()
    if given.study:
        make(given.study)
    if given.held_out:
        hold_out(given.held_out)
    page = DOCS / "explanation" / "games.md"
    put("bar", markdown(bar()), page)
    put("held out", markdown(bar(HELD_OUT)), page)


if __name__ == "__main__":
    main()
