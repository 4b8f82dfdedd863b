"""How often answers are right: `python -m studies.verdicts [--out DIR] [--others N]`.

Makes runs whose answer is known (see verdict_runs) and ordinary ones, asks every method, and writes
the rates into the package, where sentences and the report read them, and the tables of the
documentation. Runs and results are kept in the folder, so that interrupted work continues. Nothing
is tuned on these runs: the margin of half of the layers, the level of 5 % and the least numbers of
examples were set before any was looked at.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from memloc.arrays import FloatArray
from memloc.methods import Method
from memloc.methods.gradients import Gradients
from memloc.methods.probing import Probing
from memloc.methods.registry import exactness
from memloc.methods.result import Result
from memloc.methods.shares import Shares
from memloc.methods.swapping import Swapping
from memloc.reporting.figures import save_figure
from memloc.run.folder import Run
from memloc.stats.calibration import RATES
from memloc.stats.evenness import ALPHA, MARGIN
from memloc.stats.intervals import wilson
from memloc.store import paths
from memloc.store.records import read_json, write_json
from studies.pages import DOCS, IMAGES, STORED, put
from studies.verdict_runs import Known, every_run

RUNS = STORED / "verdict_runs.csv"
"""One row per run and method."""
JUDGED = "judged.json"
PAGE = DOCS / "explanation" / "error_rates.md"
PICTURE = IMAGES / "verdicts.svg"
AIMS = {
    "method": "method",
    "nulls": "nulls",
    "undone in nulls": "false_undone",
    "nulls concentrated": "false_concentrated",
    "plants": "plants",
    "concentrated, right layers (1 or 2)": "power",
    "spread plants": "spread_plants",
    "spread concentrated": "false_concentrated_spread",
}
MORE = {
    "method": "method",
    "spread even": "even",
    "right layers (4)": "power_width_4",
    "a wrong layer": "wrong_layers",
    "ordinary runs": "ordinary",
    "cannot tell": "unknown",
}
"""Titles of columns, and the rates that they show."""
METHODS: tuple[Method, ...] = (Swapping(), Shares())
OTHERS: tuple[Method, ...] = (Gradients(), Probing(seeds=(0,)))
"""Methods that change no layer; one probe a layer, as they take long."""


@dataclass(frozen=True)
class Judged:
    """Answer of a method for a run whose true answer is known."""

    method: str
    kind: str
    model: str
    task: str
    first: int
    last: int
    word: str
    layers: list[int]
    """The smallest set that holds half; for profiles alone, those above an even share."""
    p: float | None
    """Of the first question; none of methods that change no layer."""
    sentence: str = ""

    @property
    def right(self) -> bool:
        """True if the word is concentrated, with half of it in planted layers."""
        return self.word == "concentrated" and set(self.layers) <= self.planted

    @property
    def planted(self) -> set[int]:
        """Layers that hold the memory, from 1."""
        return set(range(self.first, self.last + 1))

    @property
    def width(self) -> int:
        """Number of planted layers."""
        return self.last - self.first + 1


def main() -> None:
    """Make missing runs, ask the methods, and write the rates."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/verdicts"))
    parser.add_argument("--others", type=int, default=0, help="runs to ask the other methods of")
    options = parser.parse_args()
    torch.set_num_threads(1)
    every = every_run(options.out)
    judged: list[Judged] = []
    for known in every:
        run = known.make()
        judged += [] if run is None else [ask(run, known, method) for method in METHODS]
        print(known.folder, "did not memorise" if run is None else "", flush=True)
        write(judged)
    for known in every[: options.others]:
        run = known.make()
        judged += [] if run is None else [ask(run, known, method) for method in OTHERS]
    write(judged)
    show()


def write(judged: Sequence[Judged]) -> None:
    """Write the rates of every method into the package, and the answers for every run here."""
    pd.DataFrame(judged).to_csv(RUNS, index=False)
    methods = sorted({each.method for each in judged}, key=lambda name: (-exactness(name), name))
    found = [rates_of(name, [j for j in judged if j.method == name]) for name in methods]
    RATES.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def kept() -> list[Judged]:
    """Return the stored answers for every run."""
    # Left to itself, pandas takes the word "null" for a missing value.
    table = pd.read_csv(RUNS, keep_default_na=False, na_values={"p": [""]})
    rows = table.to_dict("records")
    lists = [{**row, "layers": json.loads(row["layers"])} for row in rows]
    return [Judged(**{str(k): _or_none(v) for k, v in row.items()}) for row in lists]


def _or_none(value: Any) -> Any:
    return None if isinstance(value, float) and np.isnan(value) else value


def show() -> None:
    """Write the rates into the documentation: the tables of its page, and the figure."""
    found = json.loads(RATES.read_text(encoding="utf-8"))
    put("measured", f"{as_tables(found)}\n", PAGE)
    save_figure("calibration", pd.DataFrame(found), PICTURE)


def as_tables(found: Sequence[Mapping[str, Any]]) -> str:
    """Return one table of the rates that have goals, and one of further measurements."""
    tables = []
    for columns in (AIMS, MORE):
        lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
        for row in found:
            lines.append(f"| {' | '.join(_cell(row, name) for name in columns.values())} |")
        tables.append("\n".join(lines))
    return "\n\n".join(tables)


def _cell(row: Mapping[str, Any], name: str) -> str:
    value = row[name]
    if f"{name}_low" not in row:
        return str(value)
    ends = f"{row[f'{name}_low']:.2f}, {row[f'{name}_high']:.2f}" if value is not None else ""
    return "–" if value is None else f"{value:.2f} [{ends}]"


def ask(run: Run, known: Known, method: Method) -> Judged:
    """Return one method's answer for one run; it is stored in the run's folder."""
    path = paths.result(run.folder, method.name) / JUDGED
    if path.is_file():
        return Judged(**read_json(path)["judged"])
    found = _found(run, method).with_answer(n_classes=len(run.task.label_names))
    answer = found.answer
    word, layers = (
        (answer.word, answer.layers) if answer.undone is not None else by_profile(found.weights)
    )
    judged = Judged(
        method=method.name,
        kind=known.kind,
        model=known.suite.model,
        task=known.suite.name,
        first=known.window.start + 1,
        last=known.window.stop,
        word=word,
        layers=list(layers),
        p=answer.undone.p if answer.undone is not None else None,
        sentence=answer.sentence,
    )
    found.write(path.parent)
    write_json(path, {"judged": asdict(judged)})
    return judged


def by_profile(weights: FloatArray) -> tuple[str, tuple[int, ...]]:
    """Return the word that weights suggest by themselves, without a test, and the layers above."""
    positive = np.maximum(0, np.nan_to_num(weights))
    if not positive.any():
        return "cannot tell", ()
    shares = positive / positive.sum()
    if 1 / (shares**2).sum() >= MARGIN * len(shares):
        return "even", ()
    return "concentrated", tuple(int(i) + 1 for i in np.flatnonzero(shares > 1 / len(shares)))


def _found(run: Run, method: Method) -> Result:
    """Return a method's result; for a null in which nothing is undone, a few orders of layers are
    enough.

    The first question is about all layers at once, and every order ends with all layers.
    """
    if isinstance(method, Shares) and run.is_null:
        short = Shares(subsets="sampled", standard_error=0.1).found(run)
        if short.answer.word == "cannot tell":
            return short
    return method.found(run)


def rates_of(method: str, judged: Sequence[Judged]) -> dict[str, Any]:
    """Return how many runs there are of each kind, and how often their answers are right or
    wrong.
    """
    nulls, plants, spread, ordinary = (
        [j for j in judged if j.kind == k] for k in ("null", "plant", "spread", "ordinary")
    )
    narrow = [plant for plant in plants if plant.width <= 2]
    every = {f"power_width_{w}": [p for p in plants if p.width == w] for w in (1, 2, 4)}
    asked = [null.p for null in nulls if null.p is not None]
    return {
        "method": method,
        "nulls": len(nulls),
        "plants": len(plants),
        "spread_plants": len(spread),
        "ordinary": len(ordinary),
        **_rate("false_undone", [p <= ALPHA for p in asked]),
        **_rate("false_concentrated", [n.word == "concentrated" for n in nulls]),
        **_rate("false_concentrated_spread", [s.word == "concentrated" for s in spread]),
        **_rate("power", [plant.right for plant in narrow]),
        **{k: v for n, ps in every.items() for k, v in _rate(n, [p.right for p in ps]).items()},
        **_rate("wrong_layers", [_is_wrong(plant) for plant in plants]),
        **_rate("even", [s.word == "even" for s in spread]),
        **_rate("unknown", [o.word == "cannot tell" for o in ordinary]),
        "null_p": sorted(asked),
    }


def _is_wrong(plant: Judged) -> bool:
    return plant.word == "concentrated" and not plant.right


def _rate(name: str, hits: Sequence[bool]) -> dict[str, float | None]:
    if not hits:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    found = wilson(float(np.mean(hits)), len(hits))
    ends = {f"{name}_low": round(found.low, 4), f"{name}_high": round(found.high, 4)}
    return {name: round(found.estimate, 4), **ends}


if __name__ == "__main__":
    main()
