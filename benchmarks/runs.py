"""Runs of several seeds as one, as a study trains narrow ones, beside one run after the other.

Both learn the noisy and the original labels of each run, and keep the weights and all that is
measured.
"""

import tempfile
from pathlib import Path

from benchmarks.harness import Measured, middle, side_by_side
from memloc.data.perturb import noisy_task
from memloc.data.sources import load_task
from memloc.models.device import suitable_threads
from memloc.protocol import preset
from memloc.run import Run
from memloc.training.recipe import Recipe
from memloc.training.train import train_as_one, train_run

MODEL, TASK, WEIGHTS = "tiny-opt", "tiny-topic", ("memorised", "final", "reference")
WIDTH = 64


def measure(seeds: int, epochs: int, repeats: int) -> Measured:
    """Seconds of so many runs, in batches of 8 and of 16."""
    eight, sixteen = (_turns(seeds, size, epochs, repeats) for size in (8, 16))
    mine, plain, threads = eight
    return Measured(
        stage="runs",
        hidden=WIDTH,
        ratio=_ratio(mine, plain),
        seconds=middle([turn[0] for turn in mine]),
        baseline_seconds=middle([turn[0] for turn in plain]),
        baseline="one run after the other, the two trainings of each as one",
        difference=max(abs(a - b) for a, b in zip(mine[0][2], plain[0][2], strict=True)),
        peak_mb=max(turn[1] for turn in mine),
        baseline_peak_mb=max(turn[1] for turn in plain),
        threads=threads,
        details={
            "model": MODEL,
            "seeds": seeds,
            "epochs": epochs,
            "ratio_in_batches_of_16": _ratio(*sixteen[:2]),
            "difference_is": "largest difference of a loss in the first epoch",
        },
    )


Turns = list[tuple[float, float, list[float]]]


def _turns(seeds: int, size: int, epochs: int, repeats: int) -> tuple[Turns, Turns, int]:
    settings = {"finetune.epochs": epochs, "finetune.batch_size": size}
    protocol = preset("demo").replace(settings)
    task = noisy_task(load_task(TASK), protocol.noise)
    recipes = [Recipe(MODEL, task, seed, protocol, device="cpu") for seed in range(1, 1 + seeds)]

    def trained(*, as_one: bool) -> list[float]:
        with tempfile.TemporaryDirectory() as home:
            asked = [(r, Path(home, f"seed-{r.seed}"), WEIGHTS) for r in recipes]
            if as_one:
                train_as_one(asked)
            runs: list[Run] = [train_run(*each) for each in asked]
            curves = [run.training().query("epoch == 1")["loss"] for run in runs]
            return [float(loss) for curve in curves for loss in curve]

    with suitable_threads(WIDTH) as threads:
        mine, plain = side_by_side(
            lambda: trained(as_one=True), lambda: trained(as_one=False), repeats
        )
    return mine, plain, threads


def _ratio(mine: Turns, plain: Turns) -> float:
    return middle([p[0] / m[0] for m, p in zip(mine, plain, strict=True)])
