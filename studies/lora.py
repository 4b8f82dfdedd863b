"""Do adapters memorise, and in which layers? `python -m studies.lora`.

Embedded models learn the same texts with the same flipped labels, order and seed twice: with all
weights, and with low-rank adapters. Exact shares say which layers hold the labels. Before that,
ranks and rates are tried, to see which memorise at all. Writes lora.csv, lora_rates.csv, a figure
and the tables of docs/explanation/adapters.md. Runs are kept in --out, so that it goes on where it
was left.
"""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from memloc.data.perturb import add_noise
from memloc.data.sources import load_task, subsample
from memloc.data.task import Task
from memloc.methods.apply import localise
from memloc.reporting.figures import save_spec
from memloc.reporting.tables import markdown
from memloc.run.folder import Run
from memloc.run.train import train
from studies.layer_shares import (
    by_example,
    cells,
    difference,
    figure,
    interval,
    keep,
)
from studies.pages import DOCS, IMAGES, STORED, put

SHARES, TRIED = STORED / "lora.csv", STORED / "lora_rates.csv"
PAGE = DOCS / "explanation" / "adapters.md"
PICTURE = IMAGES / "adapters.svg"
TASK, EXAMPLES, NOISE = "tiny-topic", 60, 0.2
MODELS = ("tiny-gpt-neox", "tiny-bert", "tiny-opt")
SEEDS = (1, 2, 3)
RANKS, RATES = (2, 8, 32), (1e-3, 4e-3, 1.6e-2)
"""All weights learn at the first rate."""
FULL, LORA = "all weights", "LoRA"
KNOWN = 0.95
"""Share of the flipped labels that has to be known for them to count as memorised."""


def main() -> None:
    """Try ranks and rates with one model, then compare both ways to learn, and write the page."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/lora"))
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    task = add_noise(subsample(load_task(TASK), EXAMPLES, 1), NOISE, 1)
    for rank, rate in product(RANKS, RATES):
        keep(TRIED, [tried(task, options.out, rank, rate)], ("model", "rank", "rate"))
    for model, seed in product(options.models, options.seeds):
        found = Learner(model, seed, task, options.out).compared()
        keep(SHARES, found, ("model", "seed", "way"))
    show()


def tried(task: Task, out: Path, rank: int, rate: float) -> dict[str, Any]:
    """Return what the first model knows at the end, with adapters of this rank and learning
    rate.
    """
    learner = Learner(MODELS[0], SEEDS[0], task, out)
    run = learner.train(adapters(rank, rate), ("final",))
    assert run.status.final is not None
    known = {"noisy": round(run.status.final.noisy, 3), "clean": round(run.status.final.clean, 3)}
    return {"model": learner.model, "rank": rank, "rate": rate, **known}


def adapters(rank: int, rate: float) -> dict[str, Any]:
    """Settings of adapters that count twice, whatever their rank."""
    how = {"adapter": "lora", "adapter_rank": rank, "adapter_alpha": 2 * rank}
    return {**how, "learning_rate": rate}


@dataclass(frozen=True)
class Learner:
    """A model with a seed, which learns the same labels in several ways."""

    model: str
    seed: int
    task: Task
    out: Path

    def train(
        self, settings: Mapping[str, Any], weights: tuple[str, ...] = ("final", "reference")
    ) -> Run:
        """A run with these settings of fine-tuning; what is there stays."""
        way = "-".join(f"{value}" for value in settings.values())
        folder = self.out / self.model / f"seed-{self.seed}" / way
        own = {f"finetune.{name}": v for name, v in {"measure_every": 10, **settings}.items()}
        return train(
            self.model, self.task, folder, seed=self.seed, settings=own, checkpoints=weights
        )

    def compared(self) -> list[dict[str, Any]]:
        """Exact shares of the layers of models that learnt in both ways."""
        found = {
            FULL: self.train({"learning_rate": RATES[0]}),
            LORA: self.train(adapters(*chosen(pd.read_csv(TRIED)))),
        }
        scores = {
            way: localise(run, ["shares"], force=True)["shares"] for way, run in found.items()
        }
        later = difference(by_example(scores[FULL]), by_example(scores[LORA]))
        return [
            {**_facts(found[FULL], FULL), **cells(scores[FULL])},
            {**_facts(found[LORA], LORA), **cells(scores[LORA], later)},
        ]


def chosen(table: pd.DataFrame) -> tuple[int, float]:
    """Return, of the ranks and rates that memorise, the lowest rate, and the lowest rank at that
    rate.
    """
    enough = table[table["noisy"] >= KNOWN].sort_values(["rate", "rank"])
    return int(enough["rank"].iloc[0]), float(enough["rate"].iloc[0])


def _facts(run: Run, way: str) -> dict[str, Any]:
    assert run.status.final is not None
    return {
        "model": run.spec.model,
        "seed": run.seed,
        "way": way,
        "noisy": len(run.noisy_rows),
        "known": round(run.status.final.noisy, 3),
        "reference_known": round(run.reference_accuracy, 3),
    }


def show() -> None:
    """The tables and the figure of the page."""
    for name, make in TABLES.items():
        put(name, make(), PAGE)
    save_spec(figure(pd.read_csv(SHARES), "way"), PICTURE)


def rates() -> str:
    """Flipped labels known at the end by rank and rate, clean ones in brackets."""
    table = pd.read_csv(TRIED)
    table["known"] = [f"{row.noisy:.2f} ({row.clean:.2f})" for row in table.itertuples()]
    wide = table.pivot(index="rank", columns="rate", values="known").reset_index()
    wide.columns = pd.Index(["rank", *(f"rate {rate:g}" for rate in wide.columns[1:])])
    return markdown(wide)


def shares() -> str:
    """Centres and their differences, one row per model, seed and way."""
    rows = []
    for row in pd.read_csv(SHARES).to_dict("records"):
        said = {name: row[name] for name in ("model", "seed", "way")}
        said |= {"flipped": row["noisy"], "learnt": f"{row['known']:.2f}"}
        said |= {"reference": f"{row['reference_known']:.2f}", "verdict": row["outcome"]}
        said |= {"centre": interval(row, "centre"), "later by": interval(row, "later")}
        rows.append(said)
    return markdown(pd.DataFrame(rows))


def layers() -> str:
    """Return each layer's share in percent: means over models and seeds."""
    table = pd.read_csv(SHARES)
    names = [str(name) for name in table if str(name).startswith("share_")]
    each = table[names].div(table[names].sum(axis=1), axis=0).mul(100).assign(way=table["way"])
    means = each.groupby("way", sort=False)[names].mean().round(0).astype(int).reset_index()
    return markdown(means.rename(columns=lambda name: name.removeprefix("share_")))


TABLES: dict[str, Callable[[], str]] = {"rates": rates, "shares": shares, "layers": layers}
"""The tables of the page by the names of their marks."""


if __name__ == "__main__":
    main()
