"""Requests in a polite or in a rude tone."""

from memloc.data.tiny.grammar import Speaker, the
from memloc.data.tiny.lexicon import past

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
