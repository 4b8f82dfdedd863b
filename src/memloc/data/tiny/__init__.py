"""The embedded suite: graded tasks in simple English, made up by a small generator.

>>> splits = generate("tiny-sentiment", seed=1)
>>> texts, labels = splits["train"]
>>> len(texts), sorted(set(labels))
(400, [0, 1])
"""

import hashlib
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.random import Generator

from memloc.data.tiny import lexicon
from memloc.data.tiny.tasks import SUITE, TinyTask
from memloc.errors import lookup

__all__ = ["DEFAULT_SIZES", "SUITE", "TinyTask", "generate", "vocabulary"]

Split = tuple[list[tuple[str, ...]], list[int]]

DEFAULT_SIZES: Mapping[str, int] = MappingProxyType({"train": 400, "validation": 400})


def generate(
    name: str, seed: int = 1, sizes: Mapping[str, int] = DEFAULT_SIZES
) -> dict[str, Split]:
    """The splits of a task: texts (as tuples of parts) and labels, balanced, without duplicates.

    Every split but `train` has words and constructions that `train` has not.
    """
    task = lookup("embedded task", name, SUITE)
    taken: set[tuple[str, ...]] = set()
    return {
        split: _split(task, generator_of(name, split, seed=seed), split != "train", size, taken)
        for split, size in sizes.items()
    }


def vocabulary() -> list[str]:
    """Every word and punctuation mark of the suite, sorted."""
    return sorted(lexicon.all_words())


def _split(
    task: TinyTask, rng: Generator, held_out: bool, size: int, taken: set[tuple[str, ...]]
) -> Split:
    """`size` new examples; classes differ by one example at most. Adds their texts to `taken`."""
    n_classes = len(task.label_names)
    room = Counter(
        {label: (size + n_classes - 1 - label) // n_classes for label in range(n_classes)}
    )
    texts: list[tuple[str, ...]] = []
    labels: list[int] = []
    while len(texts) < size:
        parts, label = task.make(rng, held_out)
        if room[label] == 0 or parts in taken:
            continue
        room[label] -= 1
        taken.add(parts)
        texts.append(parts)
        labels.append(label)
    return texts, labels


def generator_of(*names: str, seed: int) -> Generator:
    """A generator of its own for each name and seed, the same on every platform."""
    digest = hashlib.sha256("/".join(names).encode()).digest()
    entropy = [seed, int.from_bytes(digest[:8], "big")]
    return Generator(np.random.PCG64(np.random.SeedSequence(entropy)))
