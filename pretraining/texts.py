"""Makes the texts of the study `sequences`: `python -m pretraining.texts`.

Two files have 40 texts that can only be memorised, and 100 ordinary ones of the language that the
embedded models were pre-trained on: random words after random words, and facts (who did it to what)
that nothing else tells.
"""

import csv
from collections.abc import Callable
from pathlib import Path

from numpy.random import Generator

from pretraining.documents import document
from pretraining.language import any_speaker, generator_of, past, the, vocabulary

HOME = Path(__file__).parent.parent / "src/memloc/study/examples"
MEMORISED, ORDINARY = 40, 100
PROMPT, CONTINUATION = 7, 4
"""Words of a sequence."""
Text = tuple[str, str]


def main() -> None:
    """Write both files next to the study that reads them."""
    for name, make in MAKERS.items():
        with (HOME / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerows([("prompt", "continuation", "memorised"), *rows_of(name, make)])


def rows_of(name: str, make: Callable[[Generator], Text]) -> list[tuple[str, str, str]]:
    """Memorised texts, then ordinary ones."""
    rng = generator_of("texts", name, seed=1)
    memorised = unlike_texts(make, rng, MEMORISED)
    ordinary = unlike_texts(sentence, rng, ORDINARY)
    return [(*text, "yes") for text in memorised] + [(*text, "no") for text in ordinary]


def unlike_texts(make: Callable[[Generator], Text], rng: Generator, n: int) -> list[Text]:
    """Texts of which no two have the same prompt."""
    found: dict[str, str] = {}
    while len(found) < n:
        prompt, continuation = make(rng)
        found.setdefault(prompt, continuation)
    return list(found.items())


def sequence(rng: Generator) -> Text:
    """Random words, and more random words."""
    words = [word for word in vocabulary() if word.isalpha()]
    drawn = [str(word) for word in rng.choice(words, PROMPT + CONTINUATION)]
    return " ".join(drawn[:PROMPT]), " ".join(drawn[PROMPT:])


def fact(rng: Generator) -> Text:
    """Somebody does something to a thing, of which two words tell which one."""
    who, what = any_speaker(rng), any_speaker(rng)
    subject = the(who.pick("people"), adjective=who.pick("of_people"))
    return f"{subject} {past(who.verb())} the", f"{what.of_thing()} {what.pick('things')}"


def sentence(rng: Generator) -> Text:
    """An ordinary beginning, and how it goes on."""
    words: list[str] = []
    while len(words) < PROMPT + CONTINUATION:
        words = " ".join(document(rng)).split()
    return " ".join(words[:PROMPT]), " ".join(words[PROMPT : PROMPT + CONTINUATION])


MAKERS = {"sequences": sequence, "facts": fact}

if __name__ == "__main__":
    main()
