"""Pre-training documents: reviews, stories, lessons and requests, each on one topic."""

from collections.abc import Callable, Iterator

from numpy.random import Generator

from pretraining import language
from pretraining.language import Speaker, request, restatement, scene, spoiled

Genre = Callable[[Speaker], list[str]]

CHEERS = ("hooray !", "bravo !", "wow !", "what a joy !")
SIGHS = ("alas !", "yuck !", "boo !", "what a pity !")
YESES = ("gladly !", "of course !", "sure , with pleasure .")
NOES = ("how rude !", "no , go away !", "never !")


def corpus(seed: int, n_documents: int) -> Iterator[list[str]]:
    """Documents for pre-training, each a list of sentences."""
    rng = language.generator_of("corpus", seed=seed)
    for _ in range(n_documents):
        yield document(rng)


def document(rng: Generator) -> list[str]:
    """One document as a list of sentences."""
    share = rng.random()
    genre = next(genre for limit, genre in GENRES if share < limit)
    return genre(language.any_speaker(rng))


def review(speaker: Speaker) -> list[str]:
    """Evaluations of one polarity, most of them direct, most followed by an exclamation."""
    positive = speaker.chance(0.5)
    sentences: list[str] = []
    for _ in range(int(speaker.rng.integers(2, 4))):
        sentences.append(_opinion(speaker, positive))
        if speaker.chance(0.75):
            sentences.append(speaker.one_of(*(CHEERS if positive else SIGHS)))
    return sentences


def _opinion(speaker: Speaker, positive: bool) -> str:
    share = speaker.rng.random()
    if share < 0.75:
        return language.praise(speaker, positive)
    if share < 0.87:
        return language.negated_praise(speaker, positive)
    if share < 0.95:
        return language.mixed_praise(speaker, positive)
    return language.rare_praise(speaker, positive)


def story(speaker: Speaker) -> list[str]:
    """Facts, some of them said twice."""
    sentences: list[str] = []
    for _ in range(int(speaker.rng.integers(2, 4))):
        if speaker.chance(0.3):
            sentences.extend(_twice(speaker))
        else:
            sentences.append(language.fact(speaker))
    return sentences


def _twice(speaker: Speaker) -> list[str]:
    first = scene(speaker)
    return [first.sentence(), f"| {restatement(speaker, first)}"]


def lesson(speaker: Speaker) -> list[str]:
    """Sentences, some of them spoiled, each followed by a verdict."""
    sentences: list[str] = []
    for _ in range(int(speaker.rng.integers(2, 4))):
        sentence = language.fact(speaker)
        if speaker.chance(0.5):
            sentences += [spoiled(speaker, sentence), "oops !"]
        else:
            sentences += [sentence, "correct !"]
    return sentences


def talk(speaker: Speaker) -> list[str]:
    """Polite and rude requests, some of them answered in kind; unusual ones never are."""
    sentences: list[str] = []
    for _ in range(int(speaker.rng.integers(2, 4))):
        polite, unusual = speaker.chance(0.5), speaker.chance(0.25)
        sentences.append(request(speaker, polite, unusual))
        if not unusual and speaker.chance(0.7):
            sentences.append(speaker.one_of(*(YESES if polite else NOES)))
    return sentences


GENRES: tuple[tuple[float, Genre], ...] = (
    (0.4, review),
    (0.65, story),
    (0.83, lesson),
    (1.0, talk),
)
"""Each genre with the cumulative share of documents up to it."""
