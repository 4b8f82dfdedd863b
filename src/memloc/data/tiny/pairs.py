"""Pairs of sentences: a scene, and a claim that follows from it or does not."""

from dataclasses import dataclass, replace

from memloc.data.tiny import lexicon
from memloc.data.tiny.grammar import Speaker, the
from memloc.data.tiny.lexicon import OPPOSITES, SYNONYMS, VERB_SYNONYMS, past


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
