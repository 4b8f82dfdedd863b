"""Spoils sentences the way learners do: wrong number, lost or misplaced words."""

from memloc.data.tiny import lexicon
from memloc.data.tiny.grammar import Speaker
from memloc.data.tiny.lexicon import third

_NUMBER = {"is": "are", "are": "is", "was": "were", "were": "was"}


def spoiled(speaker: Speaker, sentence: str) -> str:
    """The sentence with one mistake: a verb of the wrong number, or a determiner lost or late."""
    tokens = sentence.split()
    wrong = _wrong_number(tokens)
    if wrong is not None and speaker.chance(0.6):
        return " ".join(wrong)
    places = [at for at, token in enumerate(tokens) if token == "the"]
    at = places[int(speaker.rng.integers(len(places)))]
    if speaker.chance(0.5):
        return " ".join(tokens[:at] + tokens[at + 1 :])
    tokens[at], tokens[at + 1] = tokens[at + 1], tokens[at]
    return " ".join(tokens)


def _wrong_number(tokens: list[str]) -> list[str] | None:
    for at, token in enumerate(tokens):
        if token in _NUMBERS:
            return [*tokens[:at], _NUMBERS[token], *tokens[at + 1 :]]
    return None


def _number_table() -> dict[str, str]:
    groups = [topic.verbs for topic in lexicon.TOPICS] + [lexicon.ANY_VERBS]
    verbs = [verb for group in groups for verb in group.all]
    return _NUMBER | {verb: third(verb) for verb in verbs} | {third(verb): verb for verb in verbs}


_NUMBERS = _number_table()
