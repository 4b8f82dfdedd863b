"""Answers which layers hold the memorised labels and how certain that is, with one word for it.

An answer consists of quantities with intervals (`Places`), a sentence of at most thirty words made
from them, and one word. The word summarises the quantities, which are always shown with it:

- `concentrated`: effectively fewer than half of the layers hold the labels, by a test at 5 %.
- `uneven`: not significantly concentrated, but some layer has more or less than an even share, by
  a test at 5 % over all layers.
- `even`: no layer differs from an even share, and the interval of the effective number of layers
  excludes concentrated memories.
- `cannot tell`: nothing is undone, too few labels are, or the interval reaches from concentrated
  to even.

Half of the layers is the margin because it treats both sides alike; 5 % is the usual level.
Examples of one run share one training, so an answer is about that run. With several runs, p-values
are corrected for their number (`corrected`).
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from memloc.arrays import BoolArray, FloatArray
from memloc.display import Card, Shown
from memloc.errors import ScoreError, counted
from memloc.seeds import generator
from memloc.stats.calibration import weakness
from memloc.stats.depth import centres_of_gravity
from memloc.stats.evenness import ALPHA, effective_layers, uneven_layers
from memloc.stats.intervals import Interval, band
from memloc.stats.undone import Undone, is_anything_undone, p_text
from memloc.stats.windows import layer_ranges, windows

FEWEST = 20
"""Number of noisy examples below which the word is `cannot tell`."""
FEWEST_UNDONE = 10
"""Number of undone labels below which the word is `cannot tell`."""
FULL = 0.9
"""Share of noisy labels undone from which a sentence speaks of all memorised labels."""
ABOUT_HALF = 0.6
"""Share held by the smallest set below which a sentence says "half" instead of the share."""
UNSURE = 0.5
"""Share of resamples that agree on the smallest set, below which the set counts as unsure."""
NAMED = 3
"""Number of layers named from an unsure set; the others are only counted."""
RESAMPLES = 9999

Word = Literal["concentrated", "uneven", "even", "cannot tell"]


@dataclass(frozen=True)
class Evidence:
    """Measurements, for each example, of a method that changes layers."""

    shares: FloatArray
    """(noisy examples, layers): each layer's share in the loss of the assigned label."""
    clean_lost: FloatArray
    """(clean examples,): whether exchanging all layers loses the label of the example."""
    margins: FloatArray
    """(noisy and clean examples,): margin of the label in the unchanged model."""
    elsewhere: FloatArray | None = None
    """(noisy examples,): whether a second reference loses the label when exchanged for the
    first.
    """
    n_classes: int | None = None
    """Number of labels that an example may have; 0 for texts, None if unknown."""

    @property
    def what(self) -> str:
        """What an example has the model memorise: a label or, without classes, a text."""
        return "text" if self.n_classes == 0 else "label"

    def __post_init__(self) -> None:
        n_noisy, n_clean = len(self.shares), len(self.clean_lost)
        if not n_noisy or not n_clean:
            raise ScoreError(
                f"An answer needs noisy and clean examples, found {n_noisy} and {n_clean}."
            )
        if not all(np.isfinite(a).all() for a in (self.shares, self.clean_lost, self.margins)):
            raise ScoreError("A layer's share is not a number: run the method again.")


@dataclass(frozen=True)
class Places:
    """Layers, counted from 1, that hold the labels undone by exchanging all layers."""

    undone: float
    """Share of the noisy labels that are undone."""
    half: tuple[int, ...]
    """Smallest set of layers that holds half of the undone labels."""
    half_held: Interval
    """Share of the undone labels that this set holds."""
    half_agreement: float
    """Share of resamples with the same smallest set."""
    first_half: Interval
    """Share of the undone labels that the first half of the layers holds."""
    last_half: Interval
    """Share of the undone labels that the last half of the layers holds."""
    centre: Interval
    """Mean of the layer numbers, weighted by their positive shares."""
    effective: Interval
    """Effective number of layers, with a 90 % interval."""
    above: tuple[int, ...]
    """Layers above an even share; the familywise error of `above` and `below` is 5 %."""
    below: tuple[int, ...]
    """Layers below an even share."""
    p_concentrated: float
    """P-value that effectively fewer than half of the layers hold the labels."""
    p_not_concentrated: float
    """P-value that effectively more than half of the layers hold the labels."""
    p_uneven: float
    """P-value that not all layers have an even share."""
    depth: int


@dataclass(frozen=True, repr=False)
class Answer(Shown):
    """Answer for one run and method: the layers, how certain they are, and one word for it."""

    word: Word
    sentence: str
    """Sentence about the layers, without the name of the run and without the word."""
    why: str
    """Tests that the word is based on."""
    p: float = 1.0
    """Largest p-value of these tests; 1 for `cannot tell`."""
    undone: Undone | None = None
    """Answer to the first question (is anything undone?); None for methods that change no layer."""
    places: Places | None = None
    """Quantities behind the sentence; None where nothing is undone."""
    notes: tuple[str, ...] = ()
    """Caveats, one sentence each."""

    @property
    def layers(self) -> tuple[int, ...]:
        """Smallest set of layers, from 1, that holds half; empty if unknown."""
        return self.places.half if self.places is not None else ()

    def __str__(self) -> str:
        """Return the sentence with the word in brackets."""
        return told(self.sentence, self.word if self.places is not None else "")

    def card(self) -> Card:
        """Return the sentence with its word, the tests behind it, and the caveats."""
        return Card(str(self), [self.why, *self.notes])

    @property
    def details(self) -> str:
        """Sentence, word, and the tests that the word is based on."""
        if self.why.startswith(self.sentence):
            return self.why
        why = self.why.removeprefix("Cannot tell: ")
        return f"{self.sentence} {self.word.capitalize()}: {why[0].lower()}{why[1:]}"

    def record(self) -> dict[str, Any]:
        """Return the answer as a JSON object."""
        as_json: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return as_json

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> "Answer":
        """Return the answer that was written as `record`."""
        undone = Undone(**record["undone"]) if record["undone"] is not None else None
        places = None
        if (stored := record["places"]) is not None:
            intervals = {k: Interval(**v) for k, v in stored.items() if isinstance(v, dict)}
            sets = {k: tuple(v) for k, v in stored.items() if isinstance(v, list)}
            places = Places(**{**stored, **intervals, **sets})
        notes = tuple(record["notes"])
        return cls(**{**record, "undone": undone, "places": places, "notes": notes})

    def row(self) -> dict[str, Any]:
        """Return the answer as one row of a table, with every column of `ROW`; unknown values are
        empty.
        """
        row = {name: np.nan if name in NUMBERS else "" for name in ROW}
        row |= {"word": self.word, "sentence": self.sentence, "why": self.why, "p": self.p}
        if (places := self.places) is None:
            return row
        row |= {n: ", ".join(map(str, getattr(places, n))) for n in ("half", "above", "below")}
        row |= {"undone": places.undone, "agreement": places.half_agreement}
        for name in INTERVALS:
            row |= getattr(places, name).named(name)
        return row


INTERVALS = ("half_held", "first_half", "last_half", "centre", "effective")
NUMBERS = ("undone", "agreement", *(f"{n}{e}" for n in INTERVALS for e in ("", "_low", "_high")))
ROW = ("word", "p", "half", "above", "below", *NUMBERS, "sentence", "why")
"""Columns of an answer in a table of several runs."""


def answer(evidence: Evidence, method: str = "") -> Answer:
    """Say where memorised labels are, from the shares of layers in each: one word and a sentence.

    The word is `concentrated`, `uneven`, `even` or `cannot tell`.
    """
    shares = evidence.shares
    undone = is_anything_undone(
        shares.sum(1), evidence.clean_lost, evidence.margins, evidence.elsewhere
    )
    n_undone = int((shares.sum(1) > 0.5).sum())
    places = where(shares) if undone.p <= ALPHA else None
    if len(shares) < FEWEST:
        few = f"there are only {counted(len(shares), 'noisy example')}, and {FEWEST} are needed"
        result = cannot_tell(few)
    elif places is None:
        result = cannot_tell(f"nothing is undone for sure. {undone.sentence}")
    elif n_undone < FEWEST_UNDONE:
        few = f"only {counted(n_undone, evidence.what)} undone, and {FEWEST_UNDONE} are needed"
        result = cannot_tell(few)
    else:
        result = _worded(places, undone, method, evidence.what)
    sentence = result.sentence if places is None else say_where(places, evidence.what)
    return replace(
        result, sentence=sentence, undone=undone, places=places, notes=tuple(_notes(evidence))
    )


def cannot_tell(why: str) -> Answer:
    """Return the answer `cannot tell` with its reason; it has no places."""
    text = why.rstrip(".")
    sentence = f"Cannot tell: {text[0].lower() + text[1:]}."
    return Answer("cannot tell", sentence, sentence)


def _worded(places: Places, undone: Undone, method: str, what: str) -> Answer:
    """Return the answer with its word for these places and the tests that the word is based on."""
    number, margin = places.effective, places.depth / 2
    text = (
        f"Effectively {number.estimate:.1f} of {places.depth} layers hold the {what}s (90 % "
        f"interval {number.low:.1f} to {number.high:.1f}"
    )
    word: Word
    if places.p_concentrated <= ALPHA:
        word, p = "concentrated", places.p_concentrated
        why = f"{text}; fewer than {margin:g}: {p_text(p)})."
    elif places.p_uneven <= ALPHA:
        word, p = "uneven", places.p_uneven
        above = f"{layer_ranges(places.above)} above" if places.above else ""
        below = f"{layer_ranges(places.below)} below" if places.below else ""
        named = ", ".join(filter(None, (above, below))) or "no layer by itself is above or below"
        why = f"{text}); {named} an even share ({p_text(p)} over all layers)."
    elif places.p_not_concentrated <= ALPHA:
        word, p = "even", places.p_not_concentrated
        why = (
            f"{text}; more than {margin:g}: {p_text(p)}), and no layer differs from an even share."
        )
    else:
        unsure = f"{text}), which reaches from concentrated to even. More noisy examples would help"
        return replace(cannot_tell(unsure), why=f"{unsure}. {weakness(method)}".rstrip())
    return Answer(word, "", why, max(undone.p, p))


def where(shares: FloatArray) -> Places | None:
    """Describe shares (examples, layers); None if exchanging all layers undoes nothing.

    All quantities are computed from the positive part of the mean profile; their 95 % intervals
    come from resampled examples.
    """
    n, depth = shares.shape
    if n < 3 or shares.sum() <= 0:
        return None
    counts = generator(0, "whereabouts").multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
    profiles = np.concatenate([shares.mean(0)[None], counts @ shares / n])
    sets = smallest_halves(profiles)
    positive = np.maximum(0, profiles)
    positive[profiles.sum(1) <= 0] = np.nan
    held = positive / positive.sum(1, keepdims=True)
    first = band(held[:, : depth // 2].sum(1))
    effective, uneven = effective_layers(shares), uneven_layers(shares)
    return Places(
        undone=float(shares.sum(1).mean()),
        half=tuple(int(layer) + 1 for layer in np.flatnonzero(sets[0])),
        half_held=_plain(band(np.where(sets[0], held, 0).sum(1))),
        half_agreement=float((sets[1:] == sets[0]).all(1).mean()),
        first_half=_plain(first),
        last_half=_plain(Interval(1 - first.estimate, 1 - first.high, 1 - first.low)),
        centre=_plain(band(centres_of_gravity(positive))),
        effective=effective.number,
        above=uneven.above,
        below=uneven.below,
        p_concentrated=effective.p_fewer,
        p_not_concentrated=effective.p_more,
        p_uneven=uneven.p,
        depth=depth,
    )


def _plain(found: Interval) -> Interval:
    """Return the interval in plain Python numbers."""
    ends = float(found.estimate), float(found.low), float(found.high)
    return Interval(*ends, level=found.level, n_dropped=int(found.n_dropped))


def smallest_halves(profiles: FloatArray) -> BoolArray:
    """Mark, in each profile (R, L), the fewest layers whose positive shares sum to half."""
    positive = np.maximum(0, profiles)
    order = np.argsort(-positive, axis=1, kind="stable")
    before = np.take_along_axis(positive, order, axis=1).cumsum(1)
    before = np.roll(before, 1, axis=1)
    before[:, 0] = 0
    marked = np.zeros(profiles.shape, dtype=bool)
    needed = before < positive.sum(1, keepdims=True) / 2 - 1e-12
    np.put_along_axis(marked, order, needed, axis=1)
    return marked


def told(sentence: str, word: str, name: str = "") -> str:
    """Return an answer as shown to readers: name of the run, sentence, and word.

    "tiny-topic: layers 1 and 2 hold half of the memorised labels; the first six hold 88 % [85, 90]
    (concentrated)." The name is optional; an answer without places has no word.
    """
    text = f"{sentence.removesuffix('.')} ({word})." if word else sentence
    return f"{name}: {text[0].lower()}{text[1:]}" if name else text


def say_where(places: Places, what: str = "label") -> str:
    """Say which layers hold half of the labels or texts, and what one half of the layers holds.

    "Layers 1 and 2 hold half of the memorised labels; the first six hold 88 % [85, 90]." With a
    name and the word, the sentence has at most thirty words.
    """
    labels = f"the memorised {what}s"
    if places.undone < FULL:
        labels = f"the undone {places.undone:.0%} of {what}s"
    held = "half" if places.half_held.estimate < ABOUT_HALF else percent(places.half_held)
    size, unsure = len(places.half), places.half_agreement < UNSURE
    names = layer_ranges(places.half).capitalize()
    if size > NAMED and (unsure or names.count(",") >= NAMED - 1):
        about = "about " if unsure else ""
        names = f"{about}{_number(size)} of {_number(places.depth)} layers"
        names = names[0].upper() + names[1:]
    text = f"{names} hold{'s' if size == 1 else ''} {held} of {labels}"
    if unsure and size <= NAMED:
        text += f" ({places.half_agreement:.0%} of resamples agree)"
    middle = places.depth // 2
    name, half, part = "first", range(1, middle + 1), places.first_half
    if part.estimate < 0.5:
        name, half, part = "last", range(middle + 1, places.depth + 1), places.last_half
    if places.depth < 4 or set(half) <= set(places.half):
        return f"{text}."
    return f"{text}; the {name} {_number(len(half))} hold {percent(part)}."


def _number(number: int) -> str:
    """Return the word for a number from two to twelve, and digits for other numbers."""
    words = "two three four five six seven eight nine ten eleven twelve"
    return words.split()[number - 2] if 2 <= number <= 12 else str(number)


def percent(share: Interval) -> str:
    """Write a share with its interval: `88 % [85, 90]`."""
    return f"{100 * share.estimate:.0f} % [{100 * share.low:.0f}, {100 * share.high:.0f}]"


def _notes(evidence: Evidence) -> Iterable[str]:
    if evidence.elsewhere is None:
        yield (
            "There is one reference, so clean examples are the only comparison: what a second "
            "reference would undo is not known."
        )
    if evidence.n_classes == 2:
        yield (
            "With two classes, a lost label is always the original one again, even where the "
            "exchange merely breaks the model; the clean examples show that."
        )


def answer_weights(method: str, weights: FloatArray) -> Answer:
    """Return the answer of a method that changes no layer: its weights cannot show what is
    undone.
    """
    half = half_of(weights)
    weighs = f"its weights are largest in {layer_ranges(half)}" if half else ""
    text = ", ".join(filter(None, (f"{method} exchanges no layer", weighs)))
    return replace(cannot_tell(text), why=f"{cannot_tell(text).sentence} {weakness(method)}")


def line_shares(lost: BoolArray | FloatArray, depth: int, known: Sequence[range]) -> FloatArray:
    """Return shares (n, depth) computed from windows alone; `lost` (n, W) is what each window
    loses.

    The shares are Shapley values of a game in which a set of layers is worth the sum of its runs of
    neighbours (Myerson's value of a line). A window of w layers with m neighbours gives each of its
    layers P / w and takes P / m from each neighbour; P = w! m! / (w + m)! is the probability that
    all its layers come before its neighbours in a random order. Rows sum to what the full window
    loses.
    """
    if set(known) != set(windows(depth)):
        raise ScoreError(
            f"Shares of layers need all {len(windows(depth))} windows of {depth} layers, found "
            f"{len(known)}: run the method on every width."
        )
    gives = np.zeros((len(known), depth))
    for row, window in zip(gives, known, strict=True):
        neighbours = [layer for layer in (window.start - 1, window.stop) if 0 <= layer < depth]
        likely = 1 / math.comb(len(window) + len(neighbours), len(window))
        row[window.start : window.stop] = likely / len(window)
        row[neighbours] = -likely / max(1, len(neighbours))
    return np.asarray(lost.astype(np.float64) @ gives)


def agrees(word: str, profile: FloatArray, layers: Sequence[int]) -> Literal["yes", "no", ""]:
    """Say whether another method agrees with a study's primary method on one run.

    Args:
        word: the primary method's word.
        profile: the primary method's weights (L,).
        layers: the smallest set of layers, from 1, that holds half by the other method.

    It agrees if these layers also hold half by the primary method. Where the primary method does
    not find layers that differ, any set will do, so nothing is said.
    """
    if word not in {"concentrated", "uneven"} or not layers:
        return ""
    positive = np.maximum(0, profile)
    return "yes" if positive[np.asarray(layers) - 1].sum() >= positive.sum() / 2 else "no"


def half_of(weights: FloatArray) -> tuple[int, ...]:
    """Return the smallest set of layers, from 1, that holds half of the positive weights (L,)."""
    positive = np.maximum(0, np.nan_to_num(weights))
    return tuple(int(layer) + 1 for layer in np.flatnonzero(smallest_halves(positive[None])[0]))


def corrected(ps: Sequence[float]) -> FloatArray:
    """Return p-values with Holm's correction for their number."""
    order = np.argsort(ps)
    steps = np.asarray(ps, dtype=np.float64)[order] * np.arange(len(order), 0, -1)
    ps_in_order = np.empty(len(order))
    ps_in_order[order] = np.minimum(1, np.maximum.accumulate(steps))
    return ps_in_order


def too_few(noisy: int, examples: int, n_classes: int) -> str:
    """Return a warning if there are too few noisy examples for any answer; empty if there are
    enough.
    """
    if not 0 < noisy < FEWEST:
        return ""
    # Rounding may cost one noisy example in each class.
    enough = math.ceil((FEWEST + n_classes) * examples / noisy)
    return (
        f"NO ANSWER WILL BE POSSIBLE: {counted(noisy, 'noisy example')} of {examples:,} and "
        f"{FEWEST} noisy ones are needed. With the same share of noisy labels, {enough:,} examples "
        "suffice."
    )
