"""Planted runs: stores their results, and writes the tables of docs/explanation/planted.md.

`python -m studies.control STUDY ...` keeps what the methods found in the plants of these studies
in studies/tables/planted and writes the tables of the page; without a study, the tables alone.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import ClassVar

import pandas as pd

from memloc.methods.registry import exactness, trivial_names
from memloc.reporting.tables import markdown
from memloc.stats.board import by_kind
from memloc.stats.calibration import over_plants
from memloc.stats.depth import centres_of_gravity
from memloc.stats.planted import (
    BASELINE,
    MEASURES,
    mean_scores,
    null_claims,
    plant_scores,
)
from memloc.stats.windows import planted_layers
from studies.kept import Kept, found_in
from studies.pages import DOCS, LINE, STORED, put

PAGE = DOCS / "explanation" / "planted.md"
KS = (1, 2)
PAPER = {
    ("swapping", 1): 0.97,
    ("swapping", 2): 0.97,
    ("retraining", 1): 0.98,
    ("retraining", 2): 0.97,
    ("gradients", 1): 0.65,
    ("gradients", 2): 0.57,
    ("probing", 1): 0.62,
    ("probing", 2): 0.48,
}
"""accuracy@k by method, as in the paper."""


@dataclass(frozen=True)
class Planted(Kept):
    """Results of methods in planted runs and in nulls."""

    folder: ClassVar = STORED / "planted"

    layers: pd.DataFrame
    answers: pd.DataFrame
    plants: pd.DataFrame

    @classmethod
    def of(cls, studies: Sequence[Path]) -> "Planted":
        """From finished studies."""
        return cls(*found_in(studies))


def page_tables(found: Planted) -> dict[str, str]:
    """Return the tables of each part of the page."""
    is_apart = found.layers["planted"].str.contains("+", regex=False)
    windows = plant_scores(found.layers[~is_apart], KS)
    apart = plant_scores(found.layers[is_apart], KS)
    nulls = null_claims(found.layers[~is_apart])
    parts = {
        "windows": [
            _beside_the_paper(methods_table(windows)),
            _by(windows, "planted", _accuracies),
        ],
        "sharpness": [_by(windows, "planted", _mass), _centres(found.layers[~is_apart])],
        "nulls": [_claims(nulls), _undone(nulls), _answers(found.answers)],
        "apart": [methods_table(apart)],
    }
    texts = {name: "\n".join(map(markdown, tables)) for name, tables in parts.items()}
    texts["windows"] += f"\n{to_beat()}\n"
    is_apart = found.plants["planted"].str.contains("+", regex=False)
    said = {"windows": found.plants[~is_apart], "apart": found.plants[is_apart]}
    return texts | {name: f"{memorised(part)}\n\n{texts[name]}" for name, part in said.items()}


def to_beat() -> str:
    """Return a sentence on the best trivial baseline, which these plants were made without."""
    kinds = by_kind(pd.read_parquet(STORED / "board" / "layers.parquet"), trivial_names())
    (best,) = kinds[(kinds["method"] == BASELINE) & (kinds["kind"] == "easy")].to_dict("records")
    numbers = [f"{best[name]:.2f}" for name in ("accuracy_1", "accuracy_2", "planted_mass")]
    return fill(
        "Trivial baselines did not look at these plants. On the board's easy plants, the best of "
        f"them has an accuracy@1 of {numbers[0]}, an accuracy@2 of {numbers[1]} and a planted mass "
        f"of {numbers[2]}: that is the line to beat.",
        LINE,
        break_on_hyphens=False,
    )


def files(found: Planted) -> dict[str, str]:
    """Return the tables to download, by the names of their files: accuracy@1 / accuracy@2."""
    is_apart = found.layers["planted"].str.contains("+", regex=False)
    windows = plant_scores(found.layers[~is_apart], KS)
    return {
        f"windows_{name}.csv": _by(windows, name, _accuracies).to_csv(index=False)
        for name in ("task", "model")
    }


def memorised(plants: pd.DataFrame) -> str:
    """Return a sentence on how many plants memorised."""
    real = plants[~plants["null"].astype(bool)]
    used, again = real["used"].astype(bool), real["tries"] > 1
    never = [f"{row.model}, {row.task}, layers {row.planted}" for row in real[~used].itertuples()]
    last = f"; not used, because they did not: {'; '.join(never)}" if never else ""
    return fill(
        f"{used.sum()} of {len(real)} plants memorised, {(used & again).sum()} of them at a higher "
        f"rate{last}.",
        LINE,
        break_on_hyphens=False,
    )


def methods_table(scores: pd.DataFrame, by: Sequence[str] = ("method",)) -> pd.DataFrame:
    """Return means over plants, by method and by further columns."""
    rows = []
    for key, part in mean_scores(scores, by).groupby([*by], sort=False):
        at = part.set_index("k")
        accuracies = {f"accuracy@{k}": _with_ends(*at.loc[k, ENDS]) for k in KS}
        means = {SHOWN.get(n, n.replace("_", " ")): f"{at[n].iloc[0]:.2f}" for n in MEASURES}
        rows.append([*key, str(at["plants"].iloc[0]), *accuracies.values(), *means.values()])
    columns = [*by, "plants", *accuracies, *means]
    table = pd.DataFrame(rows, columns=columns)
    return _sorted(table).sort_values(list(by[:-1]), kind="stable") if by[:-1] else _sorted(table)


ENDS = ["accuracy", "low", "high"]
SHOWN = {"auroc": "AUROC"}


def _sorted(table: pd.DataFrame) -> pd.DataFrame:
    """Sort rows by method, the most exact one first."""
    return table.sort_values(
        "method", key=lambda names: names.map(lambda n: (-exactness(n), n)), kind="stable"
    )


def _with_ends(value: float, low: float, high: float) -> str:
    return f"{value:.2f} [{low:.2f}, {high:.2f}]"


def _beside_the_paper(table: pd.DataFrame) -> pd.DataFrame:
    def said(method: str) -> str:
        found = [PAPER.get((method, k)) for k in KS]
        return " / ".join(f"{x:.2f}" for x in found if x is not None) or "–"

    return table.assign(**{"paper: @1 / @2": table["method"].map(said)})


def _by(scores: pd.DataFrame, column: str, shown: Callable[[pd.DataFrame], str]) -> pd.DataFrame:
    """Return one row per method and one column per task, model or window, with `shown` of these
    plants.
    """
    found = {key: shown(part) for key, part in scores.groupby(["method", column])}
    table = pd.Series(found).unstack().fillna("–").rename_axis("method")
    if column == "planted":
        table = table[sorted(table.columns, key=lambda name: planted_layers(str(name)))].add_prefix(
            "layers "
        )
    else:
        table = table.rename_axis(columns=None)
    return _sorted(table.reset_index())


def _accuracies(part: pd.DataFrame) -> str:
    return " / ".join(f"{part.loc[part['k'] == k, 'accuracy'].mean():.2f}" for k in KS)


def _mass(part: pd.DataFrame) -> str:
    return f"{part.loc[part['k'] == 1, 'planted_mass'].mean():.2f}"


def _centres(layers: pd.DataFrame) -> pd.DataFrame:
    """Return the centre of the (positive) weights, by window."""
    return _by(layers[~layers["null"].astype(bool)], "planted", _centre)


def _centre(part: pd.DataFrame) -> str:
    weights = part.pivot(index=["task", "model", "seed"], columns="layer", values="weight")
    return f"{centres_of_gravity(weights.clip(lower=0).to_numpy()).mean():.1f}"


def _claims(nulls: pd.DataFrame) -> pd.DataFrame:
    numbers = {"distance_planted": "distance, planted", "distance_null": "distance, null"}
    numbers |= {"threshold": "threshold"}
    table = nulls[["method", "nulls"]].astype(str)
    for old, new in numbers.items():
        table[new] = nulls[old].map("{:.2f}".format)
    table["called"] = [_with_ends(*row) for row in nulls[CALLED].to_numpy()]
    table["apart"] = nulls["apart"].map("{:.2f}".format)
    return _sorted(table)


CALLED = ["called", "called_low", "called_high"]


def _undone(nulls: pd.DataFrame) -> pd.DataFrame:
    known = nulls.dropna(subset=["undone_planted"])
    names = {"undone_planted": "labels undone, planted", "undone_null": "labels undone, null"}
    shown = {new: known[old].map("{:.0%}".format) for old, new in names.items()}
    return _sorted(known[["method"]].assign(**shown))


def _answers(answers: pd.DataFrame) -> pd.DataFrame:
    """Return the answers for plants in windows and for nulls."""
    judged = answers[~answers["planted"].str.contains("+", regex=False)]
    found = _sorted(over_plants(judged[judged["method"].map(exactness) > 0]))
    rows = found.assign(
        **{
            "right layers": [_with_ends(*r) for r in found[RIGHT].to_numpy()],
            "called concentrated": [_with_ends(*r) for r in found[CALLED].to_numpy()],
        }
    )
    columns = ["method", "plants", "right layers", "nulls", "called concentrated"]
    return rows[columns].astype(str).rename(columns={"method": "answer by"})


RIGHT = ["right", "right_low", "right_high"]


def main() -> None:
    """Store the results of studies, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("studies", type=Path, nargs="*", help="folders of studies with plants")
    options = parser.parse_args()
    if options.studies:
        Planted.of(options.studies).keep()
    for name, text in page_tables(Planted.kept()).items():
        put(name, text, PAGE)
    for name, text in files(Planted.kept()).items():
        (PAGE.with_suffix("") / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
