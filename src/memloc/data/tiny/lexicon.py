"""The words of the embedded suite. In each list, what follows the slash is held out:

pre-training sees all words, fine-tuning data only those before the slash, held-out data all again.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Words:
    """Words that may stand in the same place."""

    seen: tuple[str, ...]
    """May appear everywhere."""
    held: tuple[str, ...] = ()
    """Never appear in a training split."""

    @property
    def all(self) -> tuple[str, ...]:
        """Seen and held-out words."""
        return self.seen + self.held


def words(text: str) -> Words:
    """Reads "a b c / d": a, b and c may be seen in training, d is held out."""
    seen, _, held = text.partition("/")
    return Words(tuple(seen.split()), tuple(held.split()))


@dataclass(frozen=True)
class Topic:
    """What people do, use and say in one corner of life."""

    name: str
    people: Words
    things: Words
    verbs: Words
    adjectives: Words
    places: Words


TOPICS = (
    Topic(
        "kitchen",
        people=words("baker chef waiter butcher diner / brewer"),
        things=words("soup cake pie sauce sausage salad omelette / biscuit pudding"),
        verbs=words("bake taste serve boil / roast"),
        adjectives=words("salty crispy spicy sweet / crunchy"),
        places=words("kitchen bakery / restaurant"),
    ),
    Topic(
        "sport",
        people=words("player coach runner referee swimmer / goalkeeper"),
        things=words("ball medal racket whistle puck bat jersey / trophy helmet"),
        verbs=words("kick pass toss bounce / juggle"),
        adjectives=words("golden sporty rubber sweaty / leather"),
        places=words("stadium gym / arena"),
    ),
    Topic(
        "music",
        people=words("singer drummer pianist violinist composer / guitarist"),
        things=words("song drum violin melody opera hymn ballad / guitar symphony"),
        verbs=words("play perform record rehearse / conduct"),
        adjectives=words("loud melodic rhythmic acoustic / tuneful"),
        places=words("theatre studio / hall"),
    ),
    Topic(
        "farm",
        people=words("farmer shepherd milkmaid gardener beekeeper / grower"),
        things=words("carrot turnip pumpkin cabbage bean apple onion / cherry melon"),
        verbs=words("plant harvest gather pick / water"),
        adjectives=words("muddy ripe leafy juicy / organic"),
        places=words("field meadow / orchard"),
    ),
    Topic(
        "sea",
        people=words("sailor captain fisher diver pirate / surfer"),
        things=words("boat ship canoe ferry barge yacht tanker / raft dinghy"),
        verbs=words("steer load moor row / launch"),
        adjectives=words("wooden rusty floating sandy / leaky"),
        places=words("harbour bay / dock"),
    ),
    Topic(
        "hospital",
        people=words("doctor nurse surgeon patient dentist / pharmacist"),
        things=words("pill bandage needle vaccine syringe potion ointment / tablet crutch"),
        verbs=words("prescribe inject apply test / administer"),
        adjectives=words("sterile medical bitter herbal / surgical"),
        places=words("hospital clinic / ward"),
    ),
)

POSITIVE = words(
    "wonderful excellent lovely brilliant delightful superb great good / splendid charming perfect"
)
NEGATIVE = words(
    "awful terrible horrible dreadful nasty boring bad poor / ugly disgusting miserable"
)
LIKE = words("like love admire enjoy praise / adore")
HATE = words("hate dislike despise loathe mock / detest")

OF_PEOPLE = words("happy sad fast slow calm wild old young strange normal")
OF_THINGS = words("big small old new clean dirty strange")
OPPOSITES = {
    "happy": "sad",
    "sad": "happy",
    "fast": "slow",
    "slow": "fast",
    "calm": "wild",
    "wild": "calm",
    "old": "young",
    "young": "old",
    "strange": "normal",
    "normal": "strange",
}
SYNONYMS = {
    "happy": "glad",
    "sad": "unhappy",
    "fast": "quick",
    "calm": "quiet",
    "old": "aged",
    "strange": "odd",
}
ANY_VERBS = words("watch touch need carry lift remember / inspect")
VERB_SYNONYMS = {"watch": "observe", "carry": "transport", "lift": "raise", "remember": "recall"}
PREPOSITIONS = words("near behind beside")

FUNCTION_WORDS = """
. , ! ? | the a i you it we is are was were be been have had would could may must do did not never
and but although if to of in at by for with from now yet once ever or
really very quite nobody everybody no more hard far how why what
correct oops hooray bravo wow joy alas yuck boo pity
please kindly grateful kind ask sorry bother dear thank help moment time mind whenever suits
hope might stop talking lazy waiting me your go away are gladly course pleasure sure rude
"""


def plural(noun: str) -> str:
    """The plural of a regular noun."""
    return noun + "es" if noun.endswith(("s", "sh", "ch", "x")) else _y_to_ie(noun) + "s"


def third(verb: str) -> str:
    """The form for he, she and it, which regular verbs build as nouns build their plural."""
    return plural(verb)


def past(verb: str) -> str:
    """The past tense of a regular verb, which is its participle too."""
    stem = _y_to_ie(verb)
    return stem + "d" if stem.endswith("e") else stem + "ed"


def _y_to_ie(word: str) -> str:
    return word[:-1] + "ie" if word.endswith("y") and word[-2] not in "aeiou" else word


def all_words() -> set[str]:
    """Every form of every word that a text of the suite may contain."""
    found = set(FUNCTION_WORDS.split()) | set(OPPOSITES.values()) | set(SYNONYMS.values())
    found.update(map(past, VERB_SYNONYMS.values()), PREPOSITIONS.all)
    return found | _forms(lambda group: group.all)


def held_out_words() -> set[str]:
    """Every form of every word that never appears in a training split."""
    return _forms(lambda group: group.held)


def _forms(choose: Callable[[Words], tuple[str, ...]]) -> set[str]:
    """Every form of the chosen words of every group that inflects or has held-out words."""
    found: set[str] = set()
    for group in (POSITIVE, NEGATIVE, OF_PEOPLE, OF_THINGS, LIKE, HATE):
        found.update(choose(group))
    for feelings in (LIKE, HATE):
        found.update(map(past, choose(feelings)))
    for verbs in (ANY_VERBS, *(topic.verbs for topic in TOPICS)):
        found.update(form for verb in choose(verbs) for form in (verb, third(verb), past(verb)))
    for topic in TOPICS:
        nouns = choose(topic.people) + choose(topic.things)
        found.update(nouns, map(plural, nouns), choose(topic.adjectives), choose(topic.places))
    return found
