"""Which way of sampling subsets gives the most exact shares for the same number of layers?

`python -m studies.sampling FOLDER` trains ordinary runs of the embedded models there, computes the
value of every subset of layers for every noisy example (and, for sublayers, of every subset that
nested orders can go through), samples from these tables in several ways, and writes
`tables/sampling.csv` and the table in docs/explanation/localisers.md.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

import memloc
from memloc.arrays import FloatArray, IntArray
from memloc.methods.mixtures import Mixtures
from memloc.model.units import find_units
from memloc.reporting.tables import markdown
from memloc.seeds import generator
from studies.pages import DOCS, STORED, put
from studies.ways import DEPTH, WAYS, Table, Way

RUNS = (
    ("tiny-opt", "tiny-topic"),
    ("tiny-bert", "tiny-topic"),
    ("tiny-gpt-neo", "tiny-sentiment"),
    ("tiny-gpt-neox", "tiny-politeness"),
    ("tiny-opt", "tiny-entailment"),
)
"""Model and task of each run; sublayers are sampled in the first and third."""
NESTED = (0, 2)
N_NESTED = 10
"""Noisy examples whose subsets of sublayers are computed: 53,248 of each."""
REPEATS = 40
EXAMPLES = 60
"""Examples over which a mean is taken when an error is shown."""
TABLE = STORED / "sampling.csv"
PAGE = DOCS / "explanation" / "localisers.md"


def measured(tables: list[Table], way: Way) -> tuple[float, float]:
    """Layers per text, and the error of the mean over EXAMPLES examples (of the worst unit)."""
    layers, errors = [], []
    for number, table in enumerate(tables):
        rng = generator(number, "sampling")
        off = np.zeros((REPEATS, table.n_units))
        n = len(table.values)
        for repeat in range(REPEATS):
            drawn = [way(table, example, rng) for example in range(n)]
            off[repeat] = np.mean([shares for shares, _ in drawn], axis=0) - table.truth
            layers += [count for _, count in drawn[:2]]
        errors.append(np.sqrt((off**2).mean(0) * n / EXAMPLES).max())
    return float(np.mean(layers)), float(np.mean(errors))


def compare(tables: dict[int, list[Table]]) -> pd.DataFrame:
    """One row per way and number of orders."""
    rows = []
    for way, sizes in WAYS.items():
        for nest, ways in sizes.items():
            for each in ways:
                layers, error = measured(tables[nest], each)
                players = "12 layers" if nest == 1 else "24 sublayers"
                rows.append({"units": players, "way": way, "layers": layers, "error": error})
                print(rows[-1], flush=True)
    found = pd.DataFrame(rows)
    # As if more were drawn until a text goes through 600 layers.
    return found.assign(at_600=found["error"] * np.sqrt(found["layers"] / 600)).round(4)


def make(folder: Path) -> dict[int, list[Table]]:
    """Train the runs and compute their tables, or read those that are there."""
    found: dict[int, list[Table]] = {1: [], 2: []}
    for number, (model, task) in enumerate(RUNS):
        noisy = memloc.add_noise(memloc.load_task(task), rate=0.15, seed=1)
        run = memloc.train(model, noisy, folder / f"{model}-{task}", seed=1, preset="demo")
        found[1].append(Table(*kept(run, 1), 1))
        if number in NESTED:
            found[2].append(Table(*kept(run, 2), 2))
    return found


def kept(run: memloc.Run, nest: int) -> tuple[FloatArray, IntArray]:
    """The values (examples, subsets) of a run's noisy examples, computed once."""
    path = run.folder / f"subsets-{nest}.npz"
    if not path.is_file():
        rows = run.noisy_rows if nest == 1 else run.noisy_rows[:N_NESTED]
        subsets = np.arange(2**DEPTH) if nest == 1 else np.array(sorted(nested_subsets()))
        np.savez_compressed(
            path, values=np.stack([*lost(run, nest, rows, subsets)]), subsets=subsets
        )
    with np.load(path) as stored:
        return stored["values"].astype(np.float64), stored["subsets"]


def nested_subsets() -> Iterator[int]:
    """The subsets of sublayers in which at most one layer is split."""
    for subset in range(2**DEPTH):
        whole = sum(3 << 2 * layer for layer in range(DEPTH) if subset >> layer & 1)
        yield whole
        yield from (
            whole | part << 2 * layer
            for layer in range(DEPTH)
            if not subset >> layer & 1
            for part in (1, 2)
        )


def lost(run: memloc.Run, nest: int, rows: IntArray, subsets: IntArray) -> Iterator[FloatArray]:
    """Whether each subset loses the label, example by example."""
    final, donor = run.load("final"), run.load("reference")
    units = find_units(final.stack, "layers" if nest == 1 else "sublayers")
    mixtures, encoded = Mixtures(final.stack, donor.stack, units), run.encode(final)
    for row in rows[:, np.newaxis]:
        values = mixtures.values(encoded, row, run.noisy.assigned[row], subsets.tolist())
        yield values[0, 0].bool().numpy()


def main() -> None:
    """Write the table; without a folder, write the page from the stored one."""
    if len(sys.argv) > 1:
        compare(make(Path(sys.argv[1]))).to_csv(TABLE, index=False)
    found = pd.read_csv(TABLE).astype({"layers": int})
    cost = found["units"].map({"12 layers": 680, "24 sublayers": 1800})
    nearest = (found["layers"] - cost).abs().groupby([found["units"], found["way"]]).idxmin()
    found = found.loc[nearest].rename(columns={"at_600": "at 600"})
    put("sampling", markdown(found.astype(str)), PAGE)


if __name__ == "__main__":
    main()
