"""Where the bar of the control stands: mass in planted layers against what mixtures keep.

`python -m studies.bar STUDY` looks at the plants of a study of `memloc board` (easy, decoy, loud,
and in MLPs; twelve layers). Their shares with the reference are stored there; shares with a far
donor, the pre-trained model, are sampled here. Each plant and donor is a row of `tables/bar.csv`;
rows that are there are not made again. Without a study, the table of docs/explanation/games.md is
written from those rows.
"""

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd

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


def read() -> pd.DataFrame:
    """Read the rows that are there."""
    columns: dict[str, list[Any]] = {"model": [], "task": [], "planted": [], "donor": []}
    return pd.read_csv(TABLE) if TABLE.is_file() else pd.DataFrame(columns)


def make(study: Path) -> None:
    """Add the plants of a study that have no row yet: near donors first, as they are stored."""
    runs = [Run.open(place.parent) for place in sorted(study.rglob(paths.RUN))]
    for donor in ("reference", "pretrained"):
        for run in runs:
            if run.plant is None or run.is_null or not run.memorised(NEEDED):
                continue
            key = {"model": run.model_name, "task": run.record.task.name}
            key |= {"planted": run.plant.planted, "donor": donor}
            done = read()
            if not (done[[*key]] == pd.Series(key)).all(axis=1).any():
                table = pd.concat([done, pd.DataFrame([key | _row(run, donor)])])
                with whole_file(TABLE) as draft:
                    table.to_csv(draft, index=False, float_format="%.4g")
                print(table.iloc[-1].to_dict(), flush=True)


def _row(run: Run, donor: str) -> dict[str, Any]:
    """Return control and mass; no mass where exchanging all layers undoes nothing."""
    assert run.plant is not None
    try:
        near = donor == "reference"
        found = Result.read(paths.result(run.folder, "shares")) if near else FAR.run(run)
    except ScoreError as error:
        return {"failed": str(error)}
    planted = planted_layers(run.plant.planted)
    return {
        "control": found.about["control"]["kept"],
        "mass": planted_mass(found.weights, planted),
        "first": accuracy_at_k(found.weights, planted, len(planted)),
    }


def bar() -> pd.DataFrame:
    """Sum up the plants by what their mixtures keep of the clean labels."""
    each = read().dropna(subset=["control", "mass"])
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


if __name__ == "__main__":
    if len(sys.argv) > 1:
        make(Path(sys.argv[1]))
    put("bar", markdown(bar()), DOCS / "explanation" / "games.md")
