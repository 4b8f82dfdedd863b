"""Simple English, made up: the language of the embedded tasks and of the models' pre-training.

The words are in `language.yaml`; the order in which they are drawn decides the texts.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeVar

import numpy as np
from numpy.random import Generator

from memloc.settings import packaged

T = TypeVar("T")
Scope = Literal["all", "seen", "held"]


class Words(NamedTuple):
    """Words that may stand in the same place."""

    seen: tuple[str, ...]
    """May appear everywhere."""
    held: tuple[str, ...]
    """Never appear in a training split."""

    @property
    def all(self) -> tuple[str, ...]:
        """Seen and held-out words."""
        return self.seen + self.held


def _groups(texts: Mapping[str, str]) -> dict[str, Words]:
    """Words by the name of their group, which is written "a b c / d"."""
    halves = ((name, text.partition("/")) for name, text in texts.items())
    return {name: Words(tuple(a.split()), tuple(b.split())) for name, (a, _, b) in halves}


LEXICON = packaged(__file__)
WORDS = _groups(LEXICON["words"])
TOPICS = {name: WORDS | _groups(texts) for name, texts in LEXICON["topics"].items()}
"""What people do, use and say in one corner of life, and what they say everywhere."""


def generator_of(*names: str, seed: int) -> Generator:
    """A generator of its own for each name and seed, the same on every platform."""
    digest = hashlib.sha256("/".join(names).encode()).digest()
    entropy = [seed, int.from_bytes(digest[:8], "big")]
    return Generator(np.random.PCG64(np.random.SeedSequence(entropy)))


def vocabulary() -> list[str]:
    """Every form of every word and punctuation mark that a text of the suite may contain."""
    others = {*LEXICON["opposites"].values(), *LEXICON["synonyms"].values()}
    others |= {*LEXICON["function_words"].split(), *map(past, LEXICON["verb_synonyms"].values())}
    return sorted(others | forms(lambda group: group.all))


def forms(choose: Callable[[Words], tuple[str, ...]]) -> set[str]:
    """Every form of the chosen words of every group."""
    found: set[str] = set()
    for groups in TOPICS.values():
        chosen = {name: choose(group) for name, group in groups.items()}
        verbs = chosen["verbs"] + chosen["any_verbs"]
        nouns = chosen["people"] + chosen["things"]
        found.update(*chosen.values(), map(plural, nouns + verbs))
        found.update(map(past, verbs + chosen["like"] + chosen["hate"]))
    return found


def plural(noun: str) -> str:
    """The plural of a regular noun; a regular verb's form for he, she and it is built alike."""
    return noun + "es" if noun.endswith(("s", "sh", "ch", "x")) else _y_to_ie(noun) + "s"


def past(verb: str) -> str:
    """The past tense of a regular verb, which is its participle too."""
    stem = _y_to_ie(verb)
    return stem + "d" if stem.endswith("e") else stem + "ed"


def _y_to_ie(word: str) -> str:
    return word[:-1] + "ie" if word.endswith("y") and word[-2] not in "aeiou" else word


@dataclass(frozen=True)
class Speaker:
    """Says random things about one topic; `scope` tells which words it may use."""

    rng: Generator
    topic: str
    scope: Scope = "all"

    def chance(self, probability: float) -> bool:
        """True as often as `probability` says."""
        return bool(self.rng.random() < probability)

    def one_of(self, *options: T) -> T:
        """One of the options, all equally likely."""
        return options[int(self.rng.integers(len(options)))]

    def pick(self, name: str) -> str:
        """A word of a group: any, one seen in training, or, half of the time, one that was not."""
        group = TOPICS[self.topic][name]
        if self.scope == "all":
            return self.one_of(*group.all)
        if self.scope == "held" and group.held and self.chance(0.5):
            return self.one_of(*group.held)
        return self.one_of(*group.seen)

    def verb(self) -> str:
        """Something that people do with things."""
        return self.pick("verbs" if self.chance(0.75) else "any_verbs")

    def of_thing(self) -> str:
        """An adjective for a thing."""
        return self.pick("adjectives" if self.chance(0.6) else "of_things")

    def polar(self, positive: bool) -> str:
        """An adjective that praises or condemns."""
        return self.pick("positive" if positive else "negative")

    def feeling(self, positive: bool) -> str:
        """A verb of liking or hating."""
        return self.pick("like" if positive else "hate")

    def some_thing(self) -> tuple[str, bool]:
        """A noun phrase about things, and whether it is plural."""
        many = self.chance(0.4)
        return the(self.pick("things"), many, self.of_thing() if self.chance(0.4) else ""), many

    def some_person(self) -> tuple[str, bool]:
        """A noun phrase about people, and whether it is plural."""
        many = self.chance(0.5)
        person = self.pick("people")
        return the(person, many, self.pick("of_people") if self.chance(0.3) else ""), many


def any_speaker(rng: Generator, scope: Scope = "all") -> Speaker:
    """A speaker on a random topic."""
    return Speaker(rng, list(TOPICS)[int(rng.integers(len(TOPICS)))], scope)


def the(noun: str, many: bool = False, adjective: str = "") -> str:
    """A noun phrase: `the muddy cows`."""
    return " ".join(["the", *adjective.split(), plural(noun) if many else noun])


def be(many: bool) -> str:
    """`was` or `were`."""
    return "were" if many else "was"


def fact(speaker: Speaker) -> str:
    """Something that happened or is so."""
    return speaker.one_of(active, active, passive, description, located)(speaker)


def active(speaker: Speaker) -> str:
    """`the bakers near the cake serve the sweet pie in the kitchen .`"""
    subject, many = speaker.some_person()
    verb = speaker.verb()
    present = verb if many else plural(verb)
    form = present if speaker.chance(0.6) else past(verb)
    where = f" in the {speaker.pick('places')}" if speaker.chance(0.3) else ""
    return f"{subject}{_attractor(speaker)} {form} {speaker.some_thing()[0]}{where} ."


def passive(speaker: Speaker) -> str:
    """`the sweet pie was served by the bakers .`"""
    what, many = speaker.some_thing()
    return f"{what} {be(many)} {past(speaker.verb())} by {speaker.some_person()[0]} ."


def description(speaker: Speaker) -> str:
    """`the pies near the cake are sweet .`"""
    human = speaker.chance(0.4)
    subject, many = speaker.some_person() if human else speaker.some_thing()
    quality = speaker.pick("of_people") if human else speaker.of_thing()
    return f"{subject}{_attractor(speaker)} {_is_or_was(speaker, many)} {quality} ."


def located(speaker: Speaker) -> str:
    """`the pies are in the bakery .`"""
    what, many = speaker.some_thing() if speaker.chance(0.6) else speaker.some_person()
    return f"{what} {_is_or_was(speaker, many)} in the {speaker.pick('places')} ."


def _is_or_was(speaker: Speaker, many: bool) -> str:
    return ("are" if many else "is") if speaker.chance(0.6) else be(many)


def _attractor(speaker: Speaker) -> str:
    """Sometimes a second noun, whose number says nothing about the verb's."""
    if not speaker.chance(0.35):
        return ""
    return f" {speaker.pick('prepositions')} {the(speaker.pick('things'), speaker.chance(0.5))}"


def praise(speaker: Speaker, positive: bool) -> str:
    """A plain evaluation: `the cake was lovely .` or `the chef loved the cake .`"""
    return f"{_evaluation(speaker, positive)} ."


def _evaluation(speaker: Speaker, positive: bool) -> str:
    what, many = speaker.some_thing()
    if speaker.chance(0.6):
        degree = speaker.one_of("", "", "really ", "very ", "quite ")
        return f"{what} {be(many)} {degree}{speaker.polar(positive)}"
    who = speaker.one_of("i", "everybody", "we", the(speaker.pick("people")))
    return f"{who} {past(speaker.feeling(positive))} {what}"


def negated_praise(speaker: Speaker, positive: bool) -> str:
    """An evaluation by denying its opposite: `the cake was not awful .`"""
    what, many = speaker.some_thing()
    if speaker.chance(0.5):
        return f"{what} {be(many)} {speaker.one_of('not', 'never')} {speaker.polar(not positive)} ."
    feeling = speaker.feeling(not positive)
    if speaker.chance(0.5):
        return f"nobody {past(feeling)} {what} ."
    return f"{the(speaker.pick('people'))} did not {feeling} {what} ."


def mixed_praise(speaker: Speaker, positive: bool) -> str:
    """Two evaluations, of which the main one counts."""
    main, other = _evaluation(speaker, positive), _evaluation(speaker, not positive)
    return f"{other} , but {main} ." if speaker.chance(0.6) else f"although {other} , {main} ."


def rare_praise(speaker: Speaker, positive: bool) -> str:
    """Constructions that fine-tuning data do not have."""
    what, many = speaker.some_thing()
    kinds: tuple[Callable[[], str], ...] = (
        lambda: f"{what} {be(many)} far from {speaker.polar(not positive)} .",
        lambda: f"{what} could not have been more {speaker.polar(positive)} .",
        lambda: f"it is hard to {speaker.feeling(not positive)} {what} .",
        lambda: f"how {speaker.polar(positive)} {what} {be(many)} !",
    )
    return speaker.one_of(*kinds)()


def request(speaker: Speaker, polite: bool, unusual: bool = False) -> str:
    """`would you kindly serve the soup ?` or `stop talking and serve the soup !`"""
    kind = ("unusual_" if unusual else "") + ("polite" if polite else "rude")
    template: str = speaker.one_of(*LEXICON["requests"][kind])
    verb = speaker.verb()
    adjective = speaker.of_thing() if speaker.chance(0.4) else ""
    it = the(speaker.pick("things"), speaker.chance(0.3), adjective)
    return template.format(do=verb, did=past(verb), it=it, who=speaker.pick("people"))


def spoiled(speaker: Speaker, sentence: str) -> str:
    """The sentence with one mistake: a verb of the wrong number, or a determiner lost or late."""
    tokens = sentence.split()
    verb = next((at for at, token in enumerate(tokens) if token in _NUMBERS), None)
    if verb is not None and speaker.chance(0.6):
        tokens[verb] = _NUMBERS[tokens[verb]]
        return " ".join(tokens)
    at = speaker.one_of(*(at for at, token in enumerate(tokens) if token == "the"))
    if speaker.chance(0.5):
        return " ".join(tokens[:at] + tokens[at + 1 :])
    tokens[at], tokens[at + 1] = tokens[at + 1], tokens[at]
    return " ".join(tokens)


_VERBS = {w: plural(w) for g in TOPICS.values() for w in (*g["verbs"].all, *g["any_verbs"].all)}
_PAIRS = {"are": "is", "were": "was"} | _VERBS
_NUMBERS = _PAIRS | {one: many for many, one in _PAIRS.items()}
"""Verbs by the form that they have with the other number."""


@dataclass(frozen=True)
class Scene:
    """Someone did something to someone, both of them described."""

    actor: str
    verb: str
    target: str
    actor_is: str = ""
    target_is: str = ""

    def sentence(self, *, passive: bool = False) -> str:
        """`the happy chef followed the old waiter .`, or the passive of it."""
        who = the(self.actor, adjective=self.actor_is)
        whom = the(self.target, adjective=self.target_is)
        if passive:
            return f"{whom} was {past(self.verb)} by {who} ."
        return f"{who} {past(self.verb)} {whom} ."


def scene(speaker: Speaker) -> Scene:
    """A random scene between two people."""
    actor = target = speaker.pick("people")
    while target == actor:
        target = speaker.pick("people")
    verb = speaker.pick("any_verbs")
    return Scene(actor, verb, target, speaker.pick("of_people"), speaker.pick("of_people"))


def restatement(speaker: Speaker, said: Scene) -> str:
    """A claim that follows: other words, fewer words, or the passive."""
    claim = _other_verb(speaker, said)
    if speaker.chance(0.5):
        claim = replace(claim, actor_is=LEXICON["synonyms"].get(claim.actor_is, claim.actor_is))
    return _shortened(speaker, claim)


def other_claim(speaker: Speaker, said: Scene) -> str:
    """A claim that does not follow: roles exchanged, or someone described as the opposite."""
    if speaker.chance(0.75):
        claim = replace(said, actor=said.target, target=said.actor)
        if speaker.chance(0.5):
            claim = replace(claim, actor_is=said.target_is, target_is=said.actor_is)
        return _shortened(speaker, _other_verb(speaker, claim))
    claim = replace(said, actor_is=LEXICON["opposites"][said.actor_is])
    return claim.sentence(passive=speaker.chance(0.5))


def _other_verb(speaker: Speaker, claim: Scene) -> Scene:
    if speaker.chance(0.5):
        return replace(claim, verb=LEXICON["verb_synonyms"].get(claim.verb, claim.verb))
    return claim


def _shortened(speaker: Speaker, claim: Scene) -> str:
    if speaker.chance(0.3):
        claim = replace(claim, actor_is="")
    if speaker.chance(0.3):
        claim = replace(claim, target_is="")
    return claim.sentence(passive=speaker.chance(0.6))
