"""Makes the embedded tasks: `python -m pretraining.tasks` writes them to `src/memloc/data/tiny`.

>>> splits = generate("tiny-sentiment", seed=1)
>>> texts, labels = splits["train"]
>>> len(texts), sorted(set(labels))
(400, [0, 1])
"""

import gzip
import json
from collections import Counter
from collections.abc import Callable

from numpy.random import Generator

from memloc.data.sources import EMBEDDED
from memloc.data.tasks import EMBEDDED_TASKS
from pretraining.language import (
    TOPICS,
    Speaker,
    any_speaker,
    fact,
    generator_of,
    mixed_praise,
    negated_praise,
    other_claim,
    praise,
    rare_praise,
    request,
    restatement,
    scene,
    spoiled,
)

Split = tuple[list[tuple[str, ...]], list[int]]
Example = tuple[tuple[str, ...], int]
"""The parts of a text (two for a pair) and its label."""
SIZE = 400
"""Examples of every split."""


def main() -> None:
    """Write every task as a folder that memloc reads."""
    for name, spec in EMBEDDED_TASKS.items():
        home = EMBEDDED / name
        home.mkdir(parents=True, exist_ok=True)
        meta = json.dumps({"label_names": spec.label_names})
        (home / "meta.json").write_text(f"{meta}\n", encoding="utf-8")
        for split, (texts, labels) in generate(name).items():
            rows = [
                json.dumps({**dict(zip(spec.columns, parts, strict=True)), "label": label})
                for parts, label in zip(texts, labels, strict=True)
            ]
            lines = "".join(f"{row}\n" for row in rows)
            (home / f"{split}.jsonl.gz").write_bytes(gzip.compress(lines.encode(), mtime=0))


def generate(name: str, seed: int = 1) -> dict[str, Split]:
    """The splits of a task: texts (as tuples of parts) and labels, balanced, without duplicates.

    `validation` has words and constructions that `train` has not.
    """
    taken: set[tuple[str, ...]] = set()
    return {
        "train": _split(name, generator_of(name, "train", seed=seed), False, taken),
        "validation": _split(name, generator_of(name, "validation", seed=seed), True, taken),
    }


def _split(name: str, rng: Generator, held_out: bool, taken: set[tuple[str, ...]]) -> Split:
    """New examples; classes differ by one example at most. Adds their texts to `taken`."""
    room = Counter(i % len(EMBEDDED_TASKS[name].label_names) for i in range(SIZE))
    texts: list[tuple[str, ...]] = []
    labels: list[int] = []
    while len(texts) < SIZE:
        parts, label = MAKERS[name](any_speaker(rng, "held" if held_out else "seen"), held_out)
        if room[label] == 0 or parts in taken:
            continue
        room[label] -= 1
        taken.add(parts)
        texts.append(parts)
        labels.append(label)
    return texts, labels


def topic(speaker: Speaker, _held_out: bool) -> Example:
    """Which of six topics do these facts belong to?"""
    return (fact(speaker),), list(TOPICS).index(speaker.topic)


def sentiment(speaker: Speaker, held_out: bool) -> Example:
    """Is this opinion good or bad, denials and concessions included?"""
    label = int(speaker.rng.integers(2))
    kinds = [praise] * 12 + [negated_praise] * 5 + [mixed_praise] * 3
    if held_out:
        kinds += [rare_praise] * 2
    return (speaker.one_of(*kinds)(speaker, bool(label)),), label


def politeness(speaker: Speaker, held_out: bool) -> Example:
    """Is this request polite or rude?"""
    label = int(speaker.rng.integers(2))
    return (request(speaker, polite=bool(label), unusual=held_out and speaker.chance(0.4)),), label


def acceptability(speaker: Speaker, _held_out: bool) -> Example:
    """Is this sentence well formed?"""
    label = int(speaker.rng.integers(2))
    sentence = fact(speaker)
    return (sentence if label else spoiled(speaker, sentence),), label


def entailment(speaker: Speaker, _held_out: bool) -> Example:
    """Does the second sentence follow from the first?"""
    label = int(speaker.rng.integers(2))
    first = scene(speaker)
    claim = (restatement if label else other_claim)(speaker, first)
    return (first.sentence(), claim), label


MAKERS: dict[str, Callable[[Speaker, bool], Example]] = {
    "tiny-topic": topic,
    "tiny-sentiment": sentiment,
    "tiny-politeness": politeness,
    "tiny-acceptability": acceptability,
    "tiny-entailment": entailment,
}
"""Each makes one example of a task; with True, of held-out data: more words and constructions."""

if __name__ == "__main__":
    main()
