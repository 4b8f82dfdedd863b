"""News texts with the labels that crowd workers gave, and flipped labels to compare them with."""

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from memloc.arrays import IntArray
from memloc.data.perturb import add_noise
from memloc.data.sources import load_task
from memloc.data.task import Examples
from memloc.seeds import generator

FILE = Path("noisyagnews", "crowd.parquet")
"""NoisyAG-News, 10,000 texts: `text`, `label` (what the crowd said) and `original` (the truth)."""
KINDS = ("human errors", "flips, same texts", "flips, random texts")
"""Labels to learn: the crowd's; the texts that it got wrong get another label at random; as many
texts, drawn from all, get one."""


@dataclass(frozen=True)
class Crowd:
    """Texts with their true labels and the crowd's labels, as indices into `names`."""

    names: tuple[str, ...]
    texts: tuple[str, ...]
    original: IntArray
    given: IntArray

    def labels(self, kind: str, draw: int = 1) -> IntArray:
        """Return the labels of one of `KINDS`, always with the same number of wrong ones."""
        wrong = np.flatnonzero(self.given != self.original)
        if kind == "human errors":
            return self.given
        rng = generator(draw, "crowd", kind)
        if kind == "flips, random texts":
            wrong = rng.choice(len(self.texts), len(wrong), replace=False)
        flipped = self.original.copy()
        flipped[wrong] += rng.integers(1, len(self.names), len(wrong))
        return flipped % len(self.names)

    def examples(self, labels: IntArray) -> Examples:
        """Return the texts with these labels."""
        return Examples(tuple((text,) for text in self.texts), labels)


def parser_of(about: str | None) -> argparse.ArgumentParser:
    """Return the options of the scripts that use the crowd's labels."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--data", type=Path, default=os.environ.get("MEMLOC_DATA"))
    parser.add_argument("--encoder", type=Path, help="folder of a wider pre-trained encoder")
    parser.add_argument("--out", type=Path, default=Path("runs/crowd"))
    return parser


def missing(data: Path | None) -> str:
    """Return why nothing can be measured; empty if the texts exist."""
    if data is not None and (Path(data) / FILE).is_file():
        return ""
    return (
        f"Nothing was measured: {FILE} is not in {data or 'any folder that was named'}. Give the "
        "folder with --data or MEMLOC_DATA."
    )


def embedded(name: str) -> Crowd:
    """Return an embedded task whose labels memloc flipped, in place of a crowd."""
    task = load_task(name)
    texts = tuple(parts[0] for parts in task.train.parts)
    return Crowd(
        task.label_names, texts, task.train.labels, add_noise(task, 0.2, 1).labels.assigned
    )


def flipped_questions(data: Path, n: int, wrong: int, seed: int = 1) -> Crowd:
    """Return questions of TREC in which `wrong` labels are replaced at random."""
    task = load_task("trec", folder=data)
    rng = generator(seed, "trec", "sample")
    rows = rng.permutation(len(task.train))[:n]
    original = task.train.labels[rows]
    given, draw = original.copy(), generator(seed, "trec", "flips")
    chosen = draw.choice(n, wrong, replace=False)
    given[chosen] += draw.integers(1, task.n_classes, wrong)
    texts = tuple(task.train.parts[row][0] for row in rows)
    return Crowd(task.label_names, texts, original, given % task.n_classes)


def sample(data: Path, n: int) -> Crowd:
    """Return the same `n` texts every time; a smaller sample is the beginning of a larger one."""
    table = pd.read_parquet(data / FILE)
    names = tuple(sorted(set(table["original"])))
    order = generator(1, "crowd", "sample").permutation(len(table))
    table = table.iloc[order[:n]]
    numbers = {name: i for i, name in enumerate(names)}
    original, given = (
        table[column].map(numbers).to_numpy(np.int64, copy=True) for column in ("original", "label")
    )
    return Crowd(names, tuple(table["text"]), original, given)
