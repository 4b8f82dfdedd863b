"""The tasks of the embedded suite, easy ones first. A task is one function and one entry below."""

from collections.abc import Callable
from dataclasses import dataclass

from numpy.random import Generator

from memloc.data.tiny import grammar, lexicon
from memloc.data.tiny.grammar import Speaker, any_speaker
from memloc.data.tiny.mistakes import spoiled
from memloc.data.tiny.pairs import other_claim, restatement, scene
from memloc.data.tiny.requests import request

Example = tuple[tuple[str, ...], int]
"""The parts of a text (two for a pair) and its label."""


@dataclass(frozen=True)
class TinyTask:
    """A task whose examples are made up on demand."""

    name: str
    category: str
    """As in the paper: topic, sentiment, hate (here a harmless stand-in) or nlu."""
    description: str
    label_names: tuple[str, ...]
    make: Callable[[Generator, bool], Example]
    """Makes one example; with True, of held-out data: more words and constructions."""


def topic(rng: Generator, held_out: bool) -> Example:
    """Which of six topics do these facts belong to?"""
    speaker = _speaker(rng, held_out)
    return (grammar.fact(speaker),), lexicon.TOPICS.index(speaker.topic)


def sentiment(rng: Generator, held_out: bool) -> Example:
    """Is this opinion good or bad, denials and concessions included?"""
    speaker, label = _speaker(rng, held_out), int(rng.integers(2))
    kinds = [grammar.praise] * 12 + [grammar.negated_praise] * 5 + [grammar.mixed_praise] * 3
    if held_out:
        kinds += [grammar.rare_praise] * 2
    return (kinds[int(rng.integers(len(kinds)))](speaker, bool(label)),), label


def politeness(rng: Generator, held_out: bool) -> Example:
    """Is this request polite or rude?"""
    speaker, label = _speaker(rng, held_out), int(rng.integers(2))
    return (request(speaker, polite=bool(label), unusual=held_out and speaker.chance(0.4)),), label


def acceptability(rng: Generator, held_out: bool) -> Example:
    """Is this sentence well formed?"""
    speaker, label = _speaker(rng, held_out), int(rng.integers(2))
    sentence = grammar.fact(speaker)
    return (sentence if label else spoiled(speaker, sentence),), label


def entailment(rng: Generator, held_out: bool) -> Example:
    """Does the second sentence follow from the first?"""
    speaker, label = _speaker(rng, held_out), int(rng.integers(2))
    first = scene(speaker)
    claim = (restatement if label else other_claim)(speaker, first)
    return (first.sentence(), claim), label


def _speaker(rng: Generator, held_out: bool) -> Speaker:
    return any_speaker(rng, "held" if held_out else "seen")


_TOPIC_NAMES = tuple(topic.name for topic in lexicon.TOPICS)

SUITE: dict[str, TinyTask] = {
    task.name: task
    for task in (
        TinyTask("tiny-topic", "topic", "What is it about?", _TOPIC_NAMES, topic),
        TinyTask(
            "tiny-sentiment", "sentiment", "Good or bad?", ("negative", "positive"), sentiment
        ),
        TinyTask("tiny-politeness", "hate", "Polite or rude?", ("rude", "polite"), politeness),
        TinyTask("tiny-acceptability", "nlu", "Well formed?", ("wrong", "right"), acceptability),
        TinyTask("tiny-entailment", "nlu", "Does it follow?", ("no", "yes"), entailment),
    )
}
