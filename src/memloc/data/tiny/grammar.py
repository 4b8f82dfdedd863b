"""Phrases and sentences of simple English, drawn at random from the word lists."""

from dataclasses import dataclass
from typing import Literal

from numpy.random import Generator

from memloc.data.tiny import lexicon
from memloc.data.tiny.lexicon import Topic, Words, past, plural, third

Scope = Literal["all", "seen", "held"]


@dataclass(frozen=True)
class Speaker:
    """Says random things about one topic; `scope` tells which words it may use."""

    rng: Generator
    topic: Topic
    scope: Scope = "all"

    def chance(self, probability: float) -> bool:
        """True as often as `probability` says."""
        return bool(self.rng.random() < probability)

    def one_of(self, *options: str) -> str:
        """One of the options, all equally likely."""
        return options[int(self.rng.integers(len(options)))]

    def pick(self, group: Words) -> str:
        """A word: any, one seen in training, or, half of the time, one that was not."""
        if self.scope == "all":
            return self.one_of(*group.all)
        if self.scope == "held" and group.held and self.chance(0.5):
            return self.one_of(*group.held)
        return self.one_of(*group.seen)

    def person(self) -> str:
        """A kind of people of the topic."""
        return self.pick(self.topic.people)

    def thing(self) -> str:
        """A kind of things of the topic."""
        return self.pick(self.topic.things)

    def verb(self) -> str:
        """Something that people do with things."""
        return self.pick(self.topic.verbs if self.chance(0.75) else lexicon.ANY_VERBS)

    def of_thing(self) -> str:
        """An adjective for a thing."""
        return self.pick(self.topic.adjectives if self.chance(0.6) else lexicon.OF_THINGS)

    def of_person(self) -> str:
        """An adjective for a person."""
        return self.pick(lexicon.OF_PEOPLE)

    def polar(self, positive: bool) -> str:
        """An adjective that praises or condemns."""
        return self.pick(lexicon.POSITIVE if positive else lexicon.NEGATIVE)

    def feeling(self, positive: bool) -> str:
        """A verb of liking or hating."""
        return self.pick(lexicon.LIKE if positive else lexicon.HATE)


def any_speaker(rng: Generator, scope: Scope = "all") -> Speaker:
    """A speaker on a random topic."""
    return Speaker(rng, lexicon.TOPICS[int(rng.integers(len(lexicon.TOPICS)))], scope)


def the(noun: str, many: bool = False, adjective: str = "") -> str:
    """A noun phrase: `the muddy cows`."""
    return " ".join(["the", *adjective.split(), plural(noun) if many else noun])


def be(many: bool) -> str:
    """`was` or `were`."""
    return "were" if many else "was"


def some_thing(speaker: Speaker) -> tuple[str, bool]:
    """A noun phrase about things, and whether it is plural."""
    many = speaker.chance(0.4)
    return the(speaker.thing(), many, speaker.of_thing() if speaker.chance(0.4) else ""), many


def some_person(speaker: Speaker) -> tuple[str, bool]:
    """A noun phrase about people, and whether it is plural."""
    many = speaker.chance(0.5)
    return the(speaker.person(), many, speaker.of_person() if speaker.chance(0.3) else ""), many


def fact(speaker: Speaker) -> str:
    """Something that happened or is so."""
    kinds = (active, active, passive, description, located)
    return kinds[int(speaker.rng.integers(len(kinds)))](speaker)


def active(speaker: Speaker) -> str:
    """`the bakers near the cake serve the sweet pie in the kitchen .`"""
    subject, many = some_person(speaker)
    verb = speaker.verb()
    present = verb if many else third(verb)
    form = present if speaker.chance(0.6) else past(verb)
    where = f" in the {speaker.pick(speaker.topic.places)}" if speaker.chance(0.3) else ""
    return f"{subject}{_attractor(speaker)} {form} {some_thing(speaker)[0]}{where} ."


def passive(speaker: Speaker) -> str:
    """`the sweet pie was served by the bakers .`"""
    what, many = some_thing(speaker)
    return f"{what} {be(many)} {past(speaker.verb())} by {some_person(speaker)[0]} ."


def description(speaker: Speaker) -> str:
    """`the pies near the cake are sweet .`"""
    human = speaker.chance(0.4)
    subject, many = some_person(speaker) if human else some_thing(speaker)
    quality = speaker.of_person() if human else speaker.of_thing()
    return f"{subject}{_attractor(speaker)} {_is_or_was(speaker, many)} {quality} ."


def located(speaker: Speaker) -> str:
    """`the pies are in the bakery .`"""
    what, many = some_thing(speaker) if speaker.chance(0.6) else some_person(speaker)
    return f"{what} {_is_or_was(speaker, many)} in the {speaker.pick(speaker.topic.places)} ."


def _is_or_was(speaker: Speaker, many: bool) -> str:
    return ("are" if many else "is") if speaker.chance(0.6) else be(many)


def _attractor(speaker: Speaker) -> str:
    """Sometimes a second noun, whose number says nothing about the verb's."""
    if not speaker.chance(0.35):
        return ""
    return f" {speaker.pick(lexicon.PREPOSITIONS)} {the(speaker.thing(), speaker.chance(0.5))}"


def praise(speaker: Speaker, positive: bool) -> str:
    """A plain evaluation: `the cake was lovely .` or `the chef loved the cake .`"""
    return f"{_evaluation(speaker, positive)} ."


def _evaluation(speaker: Speaker, positive: bool) -> str:
    what, many = some_thing(speaker)
    if speaker.chance(0.6):
        degree = speaker.one_of("", "", "really ", "very ", "quite ")
        return f"{what} {be(many)} {degree}{speaker.polar(positive)}"
    who = speaker.one_of("i", "everybody", "we", the(speaker.person()))
    return f"{who} {past(speaker.feeling(positive))} {what}"


def negated_praise(speaker: Speaker, positive: bool) -> str:
    """An evaluation by denying its opposite: `the cake was not awful .`"""
    what, many = some_thing(speaker)
    if speaker.chance(0.5):
        return f"{what} {be(many)} {speaker.one_of('not', 'never')} {speaker.polar(not positive)} ."
    feeling = speaker.feeling(not positive)
    if speaker.chance(0.5):
        return f"nobody {past(feeling)} {what} ."
    return f"{the(speaker.person())} did not {feeling} {what} ."


def mixed_praise(speaker: Speaker, positive: bool) -> str:
    """Two evaluations, of which the main one counts."""
    main, other = _evaluation(speaker, positive), _evaluation(speaker, not positive)
    return f"{other} , but {main} ." if speaker.chance(0.6) else f"although {other} , {main} ."


def rare_praise(speaker: Speaker, positive: bool) -> str:
    """Constructions that fine-tuning data do not have."""
    what, many = some_thing(speaker)
    kind = int(speaker.rng.integers(4))
    if kind == 0:
        return f"{what} {be(many)} far from {speaker.polar(not positive)} ."
    if kind == 1:
        return f"{what} could not have been more {speaker.polar(positive)} ."
    if kind == 2:
        return f"it is hard to {speaker.feeling(not positive)} {what} ."
    return f"how {speaker.polar(positive)} {what} {be(many)} !"
