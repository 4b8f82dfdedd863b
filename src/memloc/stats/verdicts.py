"""Is it localised at all? Three questions of what each layer undoes of each example's label.

A profile of layers can be drawn for anything, also where there is nothing to find. So a verdict
asks three questions in this order; a localised memory is one for which all have the answer yes:

1. *Is anything undone?* Swapping all layers must lose more noisy labels than clean ones. The test
   permutes which examples are noisy, among examples that the model is about equally sure of.
2. *Is it concentrated?* Take two noisy examples at random: how much of their shares is in the same
   layers? One over that is the effective number of layers: 1 if all is in one layer, L if all L
   have the same share. The margin is half of the layers: memory is concentrated if the number is
   below it, and spread if it is above, both by a test. If neither is sure, nobody can tell.
3. *Where?* Layers with more than an even share, with the familywise error held over all layers
   (max-T: a studentised bootstrap of whole examples).

Shares are arrays (examples, layers); a row sums to 1 if swapping all layers loses the example's
label and to 0 if not. Examples of one run are not independent of its training, so a verdict is
about that run; over several runs, each counts once (`over_runs`, `corrected`).
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from memloc.arrays import (
    BoolArray,
    FloatArray,
    IntArray,
    Table,
)
from memloc.errors import ScoreError, counted
from memloc.seeds import generator
from memloc.stats.intervals import wilson
from memloc.stats.subsets import subset_sizes
from memloc.stats.whereabouts import whereabouts
from memloc.stats.windows import layers_name, windows
from memloc.store.records import as_table

GOAL = 0.8
"""The share of spread memories that a method should call spread."""
ALPHA = 0.05
"""The error that each question may make."""
MARGIN = 0.5
"""Memory in effectively fewer than this share of the layers is concentrated, in more it is not."""
FEWEST = 20
"""Noisy examples below which nothing is concluded."""
FEWEST_UNDONE = 10
"""Undone labels below which it is not asked where they were."""
RESAMPLES = 9999
AT_ONCE = 1_000_000
"""Numbers of a resample drawn at once, 8 MB of them."""
NEAR = 1e-9
"""Numbers that differ by less are ties."""
STRATA, IN_STRATUM = 4, 5
"""Strata of loss at most, and how many noisy and how many clean examples each needs."""
TRUSTED = ("shares", "swapping", "retraining")
"""Methods that change layers, the most exact one first."""
RATES = Path(__file__).with_name("verdicts.json")
"""How often verdicts are right, as `python -m studies.verdicts` measured."""

Outcome = Literal["localised", "spread", "cannot tell"]
NOTHING = "nothing is undone"
"""Why a verdict cannot be told where changing layers changes no label for sure."""


@dataclass(frozen=True)
class Answer:
    """One question, and what the data say to it."""

    question: str
    statistic: str
    """What is measured."""
    value: float
    null: str
    """What it is compared with."""
    p: float
    sentence: str
    low: float | None = None
    high: float | None = None
    """Ends of the value's 90 % interval, if it has one."""

    @property
    def holds(self) -> bool:
        """Whether the answer is yes."""
        return self.p <= ALPHA


@dataclass(frozen=True)
class LayerVerdict:
    """`localised` in some layers, `spread` over them, or `cannot tell`, and why."""

    outcome: Outcome
    sentence: str
    layers: tuple[int, ...] = ()
    """From 1; those that hold a localised memory."""
    p: float = 1.0
    """The largest p of the answers that the outcome stands on; 1 if it cannot be told."""
    answers: tuple[Answer, ...] = ()
    notes: tuple[str, ...] = ()
    """What to bear in mind, one sentence each."""
    answer: str = ""
    """How much is where, with intervals, whatever the outcome; empty if nothing is undone."""

    def record(self) -> dict[str, Any]:
        """As JSON has it."""
        found: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return found

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> "LayerVerdict":
        """From its record."""
        lists = {"layers": tuple(record["layers"]), "notes": tuple(record["notes"])}
        answers = tuple(Answer(**answer) for answer in record["answers"])
        return cls(**{**record, **lists, "answers": answers})


@dataclass(frozen=True)
class Evidence:
    """What a method that changes layers knows of each example."""

    shares: FloatArray
    """(noisy examples, layers): each layer's share in the loss of the assigned label."""
    clean_lost: FloatArray
    """(clean examples,): whether swapping all layers loses the label."""
    margins: FloatArray | None = None
    """(noisy and clean examples,): how sure the unchanged model is; without it, no strata."""
    elsewhere: FloatArray | None = None
    """(noisy examples,): whether swapping another reference into the reference loses the label."""
    n_classes: int | None = None
    sets: FloatArray | None = None
    """(2^L,): share of noisy labels that swapping each set of layers loses, where all are known."""

    def __post_init__(self) -> None:
        shares, clean = self.shares, self.clean_lost
        if not len(shares) or not len(clean):
            raise ScoreError(
                f"A verdict needs noisy and clean examples, found {len(shares)} and {len(clean)}."
            )
        if not (np.isfinite(shares).all() and np.isfinite(clean).all()):
            raise ScoreError("A layer's share is not a number: run the method again.")


def judge(evidence: Evidence, method: str = "shares") -> LayerVerdict:
    """The verdict on a run, by a method that changes layers."""
    shares, clean = evidence.shares, evidence.clean_lost
    undone = is_anything_undone(evidence)
    if len(shares) < FEWEST:
        found = cannot_tell(
            f"there are only {counted(len(shares), 'noisy example')} and {FEWEST} are needed; of "
            f"so few, a swap that undoes less than {detectable(len(shares), len(clean)):.0%} of "
            "the labels would be overlooked in more than one of five runs",
            (undone,),
        )
    elif not undone.holds:
        found = cannot_tell(f"{NOTHING}. {undone.sentence}", (undone,))
    elif (n_undone := int((shares.sum(1) > 0.5).sum())) < FEWEST_UNDONE:
        few = f"only {counted(n_undone, 'label')} undone, too few to see by which layers"
        found = cannot_tell(few, (undone,))
    else:
        found = _located(shares, undone, method)
    where = whereabouts(shares) if undone.holds else None
    answer = where.sentence if where is not None else ""
    return replace(found, notes=_notes(evidence, found.layers), answer=answer)


def too_few(noisy: int, examples: int, n_classes: int) -> str:
    """A warning that no verdict will be possible with so few noisy examples; empty with enough."""
    if not 0 < noisy < FEWEST:
        return ""
    # Rounding may cost one noisy example in each class.
    enough = math.ceil((FEWEST + n_classes) * examples / noisy)
    return (
        f"NO VERDICT WILL BE POSSIBLE: {counted(noisy, 'noisy example')} of {examples:,} and "
        f"{FEWEST} noisy ones are needed. With the same share of noisy labels, {enough:,} examples "
        "suffice."
    )


def _located(shares: FloatArray, undone: Answer, method: str) -> LayerVerdict:
    """Once something is undone: where."""
    concentrated, spread = how_many_layers(shares)
    where, layers = which_layers(shares)
    if concentrated.holds and where.holds:
        p = max(undone.p, concentrated.p, where.p)
        sentence = f"Localised in {layers_name(layers)}. {concentrated.sentence}"
        return LayerVerdict("localised", sentence, layers, p, (undone, concentrated, where))
    if spread.holds:
        p = max(undone.p, spread.p)
        sentence = f"Spread over the layers. {spread.sentence}"
        return LayerVerdict("spread", sentence, (), p, (undone, spread))
    why = where.sentence if concentrated.holds else _in_between(concentrated, where, method)
    return cannot_tell(why, (undone, concentrated, where))


def _in_between(found: Answer, where: Answer, method: str) -> str:
    """Neither is sure, and what would help; layers that stand out are named all the same."""
    number = f"Effectively {found.value:.1f} layers hold what a change undoes"
    ends = f"90 % interval {found.low:.1f} to {found.high:.1f}"
    unsure = f"{number} ({ends}), neither clearly fewer than half of all nor clearly more"
    named = f"{unsure}; {where.sentence}" if where.holds else f"{unsure}."
    return f"{named} More noisy examples would help. {weakness(method)}".rstrip()


def cannot_tell(why: str, answers: tuple[Answer, ...] = ()) -> LayerVerdict:
    """No verdict, and why."""
    text = why.rstrip(".")
    sentence = f"Cannot tell: {text[0].lower() + text[1:]}."
    return LayerVerdict("cannot tell", sentence, answers=answers)


def is_anything_undone(evidence: Evidence) -> Answer:
    """The share of noisy labels that are lost minus that of clean ones."""
    noisy, clean = evidence.shares.sum(1), evidence.clean_lost
    strata = _strata(evidence)
    is_noisy = np.arange(len(noisy) + len(clean)) < len(noisy)
    p = permuted_p(np.concatenate([noisy, clean]), is_noisy, strata)
    within = f" within {strata.max() + 1} strata of loss" if strata.any() else ""
    null = f"the same with noisy and clean examples permuted{within}"
    said = (
        f"Changing all layers undoes {noisy.mean():.0%} of {len(noisy)} noisy labels and "
        f"{clean.mean():.0%} of {len(clean)} clean ones"
    )
    if evidence.elsewhere is not None:  # of the same examples, so pairs are drawn
        p = max(p, float(above_p((noisy - evidence.elsewhere)[:, None])[0]))
        null += "; what another reference undoes in the reference"
        said += f"; another reference undoes {evidence.elsewhere.mean():.0%} in the reference"
    statistic = "noisy minus clean labels lost when all layers are swapped"
    value = float(noisy.mean() - clean.mean())
    return Answer("Is anything undone?", statistic, value, null, p, f"{said} ({_p(p)}).")


def how_many_layers(shares: FloatArray) -> tuple[Answer, Answer]:
    """Whether it is concentrated, and whether it is spread: the two sides of the margin.

    The effective number of layers is one over the overlap of examples. Its interval and the two
    tests are a jackknife's, with Student's t: examples are left out in turn. The error grows with
    the overlap, so a small overlap would look surer than it is: below the margin, the error is
    taken as large as it would be at the margin.
    """
    from scipy.stats import t

    n, n_layers = shares.shape
    value, margin = overlap(shares), MARGIN * n_layers
    without = _overlaps_without(shares)
    error = math.sqrt((n - 1) / n * float(((without - without.mean()) ** 2).sum()))
    above = value - 1 / margin
    if abs(above) < NEAR:  # a tie, so neither side is sure however small the error is
        above, error = 0.0, max(error, NEAR)
    error *= max(1.0, 1 / margin / max(value, 1 / n_layers))
    score = above / error if error > 0 else math.copysign(math.inf, above)
    half = float(t.ppf(1 - ALPHA, n - 1)) * error
    number, low, high = (_effective(c, n_layers) for c in (value, value + half, value - half))

    def side(question: str, other: str, p: float) -> Answer:
        null = f"{margin:g} layers or {other}, half of all"
        said = (
            f"Effectively {number:.1f} of {n_layers} layers hold what a change undoes (90 % "
            f"interval {low:.1f} to {high:.1f}; {margin:g} or {other}: {_p(p)})."
        )
        return Answer(question, "effective number of layers", number, null, p, said, low, high)

    return (
        side("Is it concentrated?", "more", float(t.sf(score, n - 1))),
        side("Is it spread?", "fewer", float(t.cdf(score, n - 1))),
    )


def which_layers(shares: FloatArray) -> tuple[Answer, tuple[int, ...]]:
    """The layers (from 1) with more than an even share, max-T over all layers."""
    p = above_p(shares - shares.mean(axis=1, keepdims=True))
    found = p <= ALPHA
    layers = tuple(int(layer) + 1 for layer in np.flatnonzero(found))
    value = float(shares[:, found].sum() / shares.sum())
    held = f"of what is undone is in {layers_name(layers)}" if layers else "is in no layer for sure"
    said = f"{value:.0%} {held} ({_p(float(p.min()))} over all layers)."
    null = "an even share of every layer (max-T over layers)"
    statistic = "share of these layers in what is undone"
    return Answer("Where?", statistic, value, null, float(p.min()), said), layers


def overlap(shares: FloatArray) -> float:
    """What two different examples have in the same layers, (n, L) to a number; even shares: 1/L.

    Σ φ_e·φ_f / Σ u_e u_f over all e ≠ f, where φ_e is the row of an example and u_e its sum.
    """
    totals = shares.sum(1)
    same = (shares.sum(0) ** 2).sum() - (shares**2).sum()
    every = totals.sum() ** 2 - (totals**2).sum()
    return float(same / every) if every > 0 else math.nan


def _overlaps_without(shares: FloatArray) -> FloatArray:
    """The overlap (n,) when each example is left out in turn."""
    totals, squares = shares.sum(1), (shares**2).sum(1)
    same = ((shares.sum(0) - shares) ** 2).sum(1) - (squares.sum() - squares)
    every = (totals.sum() - totals) ** 2 - ((totals**2).sum() - totals**2)
    return np.asarray(same / every)


def permuted_p(values: FloatArray, is_noisy: BoolArray, strata: IntArray) -> float:
    """P of the sum over noisy examples when noisy and clean ones change places within strata."""
    rng = generator(0, "verdict", "undone")
    drawn = np.zeros(RESAMPLES)
    for stratum in range(int(strata.max()) + 1):
        inside = strata == stratum
        # Labels are lost or not: what counts is how many of the noisy places each value gets.
        levels, counts = np.unique(values[inside].round(6), return_counts=True)
        n_noisy = int(np.count_nonzero(is_noisy & inside))
        drawn += rng.multivariate_hypergeometric(counts, n_noisy, size=RESAMPLES) @ levels
    return _at_least(drawn, float(values[is_noisy].sum()))


def above_p(values: FloatArray) -> FloatArray:
    """Max-T p-values (L,) that the columns of `values` (n, L) have means above 0.

    T is a column's mean over its standard error, and the null distribution is that of the largest T
    when the rows of the centred values are drawn with replacement. Half of each variance is the
    mean variance of all columns: a column in which no example happens to differ would otherwise
    look certain. Skewed shares keep the level, which flipping signs does not.
    """
    rng = generator(0, "verdict", "where")
    means, n = values.mean(0), len(values)
    observed = _studentised(means, values.var(0), n)
    centred = values - means
    largest = []
    for first in range(0, RESAMPLES, step := max(1, AT_ONCE // n)):
        counts = rng.multinomial(n, np.full(n, 1 / n), size=min(step, RESAMPLES - first)) / n
        drawn = counts @ centred
        largest.append(_studentised(drawn, counts @ centred**2 - drawn**2, n).max(-1))
    null = np.concatenate(largest)
    return np.array([_at_least(null, t) for t in observed])


def _studentised(means: FloatArray, variances: FloatArray, n: int) -> FloatArray:
    """Means (..., L) over their standard errors, each variance drawn half-way to the mean one."""
    pooled = variances.mean(-1, keepdims=True)
    error = np.sqrt(np.maximum(0, variances + pooled) / 2 / max(1, n - 1))
    return np.asarray(means / np.maximum(error, NEAR))


def line_shares(lost: BoolArray, depth: int, known: Sequence[range]) -> FloatArray:
    """Shares (n, depth) from windows alone; `lost` (n, W) says what each window loses.

    They are the Shapley values if a set of layers is worth the sum of its runs of neighbours
    (Myerson's value of a line). A window of w layers with m neighbours gives each of its layers
    P / w and takes P / m from each neighbour; P = w! m! / (w + m)! is how likely it is that all
    its layers come before its neighbours in a random order. Rows sum to what the full window loses.
    """
    if set(known) != set(windows(depth)):
        raise ScoreError(
            f"Shares of layers need all {len(windows(depth))} windows of {depth} layers, found "
            f"{len(known)}: run the method on every width."
        )
    gives = np.zeros((len(known), depth))
    for row, window in zip(gives, known, strict=True):
        beside = [layer for layer in (window.start - 1, window.stop) if 0 <= layer < depth]
        likely = 1 / math.comb(len(window) + len(beside), len(window))
        row[window.start : window.stop] = likely / len(window)
        row[beside] = -likely / max(1, len(beside))
    return np.asarray(lost.astype(np.float64) @ gives)


def judge_weights(method: str, weights: FloatArray) -> LayerVerdict:
    """Of a method that changes no layer: weights do not say that there is anything to find."""
    outcome, layers = by_profile(weights)
    looks = {"cannot tell": "say nothing", "spread": "look spread over the layers"}
    said = looks.get(outcome, f"look localised in {layers_name(layers)}")
    return cannot_tell(
        f"{method} changes no layer, so it does not see whether anything is undone. Its weights "
        f"{said}. {weakness(method)}"
    )


def weakness(method: str) -> str:
    """What the calibration says against a method's profiles; to be said wherever one is drawn."""
    found = rates().get(method)
    if found is None:
        return f"How often {method} is right has not been measured."
    if method not in TRUSTED:
        return (
            f"In memloc's calibration, weights of {method} look localised in "
            f"{found['false_localised']:.0%} of {found['nulls']} runs with nothing to find, and in "
            f"the right layers in {found['power']:.0%} of the planted ones."
        )
    if found["spread"] < GOAL:
        return (
            f"In memloc's calibration, {method} called only {found['spread']:.0%} of "
            f"{found['spread_plants']} memories spread that were spread on purpose; shares are "
            "surer."
        )
    return ""


def by_profile(weights: FloatArray) -> tuple[Outcome, tuple[int, ...]]:
    """What weights look like by themselves: the same margin, and no test."""
    positive = np.maximum(0, np.nan_to_num(weights))
    if not positive.any():
        return "cannot tell", ()
    shares = positive / positive.sum()
    if 1 / (shares**2).sum() >= MARGIN * len(shares):
        return "spread", ()
    return "localised", tuple(int(i) + 1 for i in np.flatnonzero(shares > 1 / len(shares)))


def trust(method: str) -> int:
    """Place of a method among all, for sorting: whose verdict comes first."""
    return TRUSTED.index(method) if method in TRUSTED else len(TRUSTED)


def detectable(n_noisy: int, n_clean: int) -> float:
    """The share of noisy labels undone that four of five runs show, if no clean label is lost."""
    from scipy.stats import binom, hypergeom

    undone = np.arange(1, n_noisy + 1)
    enough = undone[hypergeom.pmf(undone, n_noisy + n_clean, undone, n_noisy) <= ALPHA]
    shares = np.linspace(0, 1, 101)
    if not len(enough):
        return 1.0
    return float(shares[binom.sf(enough[0] - 1, n_noisy, shares) >= 0.8][0])


def corrected(ps: Sequence[float]) -> FloatArray:
    """Holm's p-values: what is significant holds for all that are shown together."""
    order = np.argsort(ps)
    steps = np.asarray(ps, dtype=np.float64)[order] * np.arange(len(order), 0, -1)
    found = np.empty(len(order))
    found[order] = np.minimum(1, np.maximum.accumulate(steps))
    return found


def over_runs(verdicts: Table) -> Table:
    """By method: how many runs are localised, spread or cannot be told, each counting once.

    `verdicts` has a row for each run and method; the share of localised ones has Wilson's interval.
    """

    def counts(part: Table) -> dict[str, float]:
        is_kind = {kind: part["outcome"] == kind for kind in get_args(Outcome)}
        numbers = {f"n_{k.replace(' ', '_')}": int(found.sum()) for k, found in is_kind.items()}
        share = _share("localised", is_kind["localised"])
        return {"runs": len(part), **share, **numbers, "findings": int(part["finding"].sum())}

    return _by_method(verdicts, counts)


def over_plants(verdicts: Table) -> Table:
    """By method: how many plants are localised in the right layers, and how many nulls at all."""

    def counts(part: Table) -> dict[str, float]:
        null = part["null"].astype(bool)
        called = part.loc[null, "outcome"] == "localised"
        told = ~null & (part["outcome"] != "cannot tell")
        sizes = {"plants": int((~null).sum()), "nulls": int(null.sum()), "told": int(told.sum())}
        # Without any verdict, none was wrong either.
        right = part.loc[~null & bool(told.any()), "right"]
        return {**sizes, **_share("right", right), **_share("called", called)}

    return _by_method(verdicts, counts)


@cache
def rates() -> dict[str, dict[str, Any]]:
    """How often verdicts are right, by method."""
    return {row["method"]: row for row in json.loads(RATES.read_text(encoding="utf-8"))}


def _by_method(verdicts: Table, counts: Callable[[Table], dict[str, float]]) -> Table:
    parts = sorted(verdicts.groupby("method", sort=False), key=lambda part: trust(str(part[0])))
    return as_table([{"method": name, **counts(part)} for name, part in parts])


def _share(name: str, hits: Any) -> dict[str, float]:
    return wilson(float(hits.mean()) if len(hits) else math.nan, len(hits)).named(name)


def _strata(evidence: Evidence) -> IntArray:
    """Equal parts of all examples by loss, as many as have enough of both kinds in each."""
    n_noisy, n = len(evidence.shares), len(evidence.shares) + len(evidence.clean_lost)
    if evidence.margins is not None:
        place = np.argsort(np.argsort(evidence.margins, kind="stable"), kind="stable")
        for n_strata in range(STRATA, 1, -1):
            strata = np.asarray(place * n_strata // n, dtype=np.int64)
            kinds = (strata[:n_noisy], strata[n_noisy:])
            if all(np.bincount(kind, minlength=n_strata).min() >= IN_STRATUM for kind in kinds):
                return strata
    return np.zeros(n, dtype=np.int64)


def other_sets(lost: FloatArray, layers: Sequence[int]) -> str:
    """What these layers (from 1) undo alone, beside all other sets of as many; `lost` is (2^L,)."""
    sizes = subset_sizes(len(lost).bit_length() - 1)
    undone = lost - lost[0]
    own = undone[sum(1 << layer - 1 for layer in layers)]
    others = int(np.count_nonzero(sizes == len(layers))) - 1
    as_much = int(np.count_nonzero(undone[sizes == len(layers)] >= own - NEAR)) - 1
    return (
        f"Swapping {layers_name(layers)} alone undoes {own / undone[-1]:.0%} of what all layers "
        f"undo; of the {others:,} other sets of as many layers, {as_much or 'none'} "
        f"undo{'es' if as_much < 2 else ''} as much."
    )


def _notes(evidence: Evidence, layers: Sequence[int]) -> tuple[str, ...]:
    notes = [other_sets(evidence.sets, layers)] if layers and evidence.sets is not None else []
    if evidence.elsewhere is None:
        notes.append(
            "There is one reference, so clean examples are the only comparison: what another "
            "reference would undo is not known."
        )
    if evidence.n_classes == 2:
        notes.append(
            "With two classes, a lost label is always the original one again, even where swapping "
            "merely breaks the model; the clean examples show that."
        )
    return tuple(notes)


def _effective(overlap: float, n_layers: int) -> float:
    return float(np.clip(1 / overlap, 1, n_layers)) if overlap > 0 else float(n_layers)


def _at_least(drawn: FloatArray, observed: float) -> float:
    """P of a permutation test; ties count against the finding, and what was observed is one."""
    near = NEAR * max(1.0, abs(observed))
    return float((1 + np.count_nonzero(drawn >= observed - near)) / (1 + len(drawn)))


def _p(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
