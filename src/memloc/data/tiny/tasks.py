"""The tasks of the embedded suite, easy ones first. A task is one function and one entry below."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from numpy.random import Generator

from memloc.data.tiny import grammar, lexicon
from memloc.data.tiny.grammar import Speaker, any_speaker, the
from memloc.data.tiny.lexicon import OPPOSITES, SYNONYMS, VERB_SYNONYMS, past, third

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


@dataclass(frozen=True)
class Scene:
    """Someone did something to someone, both of them described."""

    actor: str
    verb: str
    target: str
    actor_is: str = ""
    target_is: str = ""

    def sentence(self) -> str:
        """`the happy chef followed the old waiter .`"""
        return f"{self._who()} {past(self.verb)} {self._whom()} ."

    def passive(self) -> str:
        """`the old waiter was followed by the happy chef .`"""
        return f"{self._whom()} was {past(self.verb)} by {self._who()} ."

    def _who(self) -> str:
        return the(self.actor, adjective=self.actor_is)

    def _whom(self) -> str:
        return the(self.target, adjective=self.target_is)


def scene(speaker: Speaker) -> Scene:
    """A random scene between two people."""
    actor = target = speaker.person()
    while target == actor:
        target = speaker.person()
    verb = speaker.pick(lexicon.ANY_VERBS)
    return Scene(actor, verb, target, speaker.of_person(), speaker.of_person())


def restatement(speaker: Speaker, said: Scene) -> str:
    """A claim that follows: other words, fewer words, or the passive."""
    claim = said
    if speaker.chance(0.5):
        claim = replace(claim, verb=VERB_SYNONYMS.get(claim.verb, claim.verb))
    if speaker.chance(0.5):
        claim = replace(claim, actor_is=SYNONYMS.get(claim.actor_is, claim.actor_is))
    return _shortened(speaker, claim)


def other_claim(speaker: Speaker, said: Scene) -> str:
    """A claim that does not follow: roles exchanged, or someone described as the opposite."""
    if speaker.chance(0.75):
        claim = replace(said, actor=said.target, target=said.actor)
        if speaker.chance(0.5):
            claim = replace(claim, actor_is=said.target_is, target_is=said.actor_is)
        if speaker.chance(0.5):
            claim = replace(claim, verb=VERB_SYNONYMS.get(claim.verb, claim.verb))
        return _shortened(speaker, claim)
    claim = replace(said, actor_is=OPPOSITES[said.actor_is])
    return claim.passive() if speaker.chance(0.5) else claim.sentence()


def _shortened(speaker: Speaker, claim: Scene) -> str:
    if speaker.chance(0.3):
        claim = replace(claim, actor_is="")
    if speaker.chance(0.3):
        claim = replace(claim, target_is="")
    return claim.passive() if speaker.chance(0.6) else claim.sentence()


POLITE = (
    "could you please {do} {it} ?",
    "would you kindly {do} {it} ?",
    "may i ask you to {do} {it} ?",
    "i would be grateful if you {did} {it} .",
    "sorry to bother you , but could you {do} {it} ?",
    "it would be very kind if you {did} {it} now .",
    "do you have time to {do} {it} ?",
    "if you have a moment , {do} {it} .",
)
RUDE = (
    "{do} {it} now !",
    "you must {do} {it} at once !",
    "why have you not {did} {it} yet ?",
    "stop talking and {do} {it} !",
    "could you {do} {it} for once ?",
    "would you ever {do} {it} ?",
    "sorry , but you must {do} {it} .",
    "if you had a mind , you would {do} {it} .",
)
UNUSUAL_POLITE = (
    "whenever it suits you , {do} {it} .",
    "we thank you for your help , {do} {it} .",
    "i hope you might {do} {it} .",
    "{do} {it} , please , dear {who} .",
)
UNUSUAL_RUDE = (
    "what are you waiting for ? {do} {it} .",
    "you never {did} {it} for me .",
    "do you ever {do} {it} , lazy {who} ?",
    "{do} {it} , please , or go away .",
)


def request(speaker: Speaker, polite: bool, unusual: bool = False) -> str:
    """`would you kindly serve the soup ?` or `stop talking and serve the soup !`"""
    template = speaker.one_of(*TEMPLATES[polite, unusual])
    verb = speaker.verb()
    adjective = speaker.of_thing() if speaker.chance(0.4) else ""
    it = the(speaker.thing(), speaker.chance(0.3), adjective)
    return template.format(do=verb, did=past(verb), it=it, who=speaker.person())


TEMPLATES = {
    (True, False): POLITE,
    (False, False): RUDE,
    (True, True): UNUSUAL_POLITE,
    (False, True): UNUSUAL_RUDE,
}
