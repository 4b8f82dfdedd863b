"""`make bench`: every stage beside the plain way, a table, and results.json."""

import argparse
import sys

from rich.console import Console
from rich.table import Table

from benchmarks import (
    centroids,
    finetuning,
    gradients,
    hidden,
    probing,
    retraining,
    shares,
    stacked,
    study,
    swapping,
)
from benchmarks.harness import CLOCKS, Measured, keep, use_clock

STAGES = {
    "finetuning": lambda: [
        finetuning.measure(hidden=64, examples=240, epochs=2, repeats=5),
        finetuning.measure(hidden=384, examples=80, epochs=2, repeats=11),
    ],
    "stacked": lambda: [stacked.measure(members=8, updates=24, repeats=2)],
    "swapping": lambda: [
        swapping.measure(hidden=64, examples=96, repeats=3),
        swapping.measure(hidden=384, examples=48, repeats=2),
    ],
    "shares": lambda: [
        shares.measure(hidden=64, examples=8, repeats=2),
        shares.measure(hidden=384, examples=2, repeats=1),
    ],
    "retraining": lambda: [
        retraining.measure(hidden=64, examples=64, epochs=3, repeats=1),
        retraining.measure(hidden=384, examples=24, epochs=3, repeats=1),
    ],
    "gradients": lambda: [
        gradients.measure(hidden=64, examples=150, repeats=3),
        gradients.measure(hidden=384, examples=60, repeats=2),
    ],
    "hidden": lambda: [
        hidden.measure(hidden=64, examples=960, repeats=3),
        hidden.measure(hidden=384, examples=240, repeats=3),
    ],
    "centroids": lambda: [
        centroids.measure(hidden=64, examples=960, repeats=3),
        centroids.measure(hidden=384, examples=240, repeats=2),
    ],
    "probing": lambda: [
        probing.measure(hidden=64, examples=400, epochs=12, repeats=2),
        probing.measure(hidden=384, examples=400, epochs=12, repeats=2),
    ],
    "study": lambda: [study.measure(repeats=5)],
}
"""Sizes at which the plain way takes about a minute."""


def main() -> None:
    """Run the stages that were named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stages", nargs="*", help=f"Some of {', '.join(STAGES)}; default: all.")
    parser.add_argument("--clock", choices=[*CLOCKS], default="wall", help="default: wall")
    asked = parser.parse_args()
    use_clock(asked.clock)
    found: list[Measured] = []
    for name in asked.stages or STAGES:
        print(f"measuring {name} …", file=sys.stderr)
        measured = STAGES[name]()
        keep(measured)
        found += measured
    Console().print(_table(found))


def _table(found: list[Measured]) -> Table:
    table = Table(title="memloc beside the plain way", caption="times faster; medians of turns")
    for column in (
        "stage",
        "hidden",
        "ratio",
        "memloc s",
        "plain s",
        "MB",
        "plain MB",
        "largest difference",
    ):
        table.add_column(column)
    for m in found:
        numbers = (m.seconds, m.baseline_seconds, m.peak_mb, m.baseline_peak_mb)
        table.add_row(
            m.stage,
            str(m.hidden),
            f"{m.ratio:.2f}",
            *(f"{x:.3g}" for x in numbers),
            f"{m.difference:.1g}",
        )
    return table


if __name__ == "__main__":
    main()
