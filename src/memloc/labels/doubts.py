"""Decides which labels are wrong, from probabilities by models that did not see the examples.

Arrays in, arrays out. `chances` are (examples, classes), `labels` (examples,). Three published
methods are combined: confident learning (Northcutt, Jiang and Chuang, 2021, doi
10.1613/jair.1.12125) as in cleanlab's `find_label_issues`; cleanlab's margin adjusted by class; and
the proportion of a known component in a mixture (Blanchard, Lee and Scott, 2010).
"""

from dataclasses import dataclass

import numpy as np

from memloc.arrays import BoolArray, FloatArray, IntArray
from memloc.seeds import generator
from memloc.stats.intervals import percentiles

LEAST = 10
"""Smallest number of labels that an estimate of random errors is based on."""
CLEARLY = 25
"""Estimated number of random errors from which they count as real.

Clean texts and texts with human errors have estimates of 12 to 22, whatever their number, because
of `LEAST`.
"""
RESAMPLES = 200
CLOSE = 1e-6
"""Difference below which probabilities count as equal."""


@dataclass(frozen=True)
class Judged:
    """Judgement on each label, and on all labels as a whole, by held-out probabilities."""

    doubt: FloatArray
    """(examples,): cleanlab's margin adjusted by class; the higher, the less the label fits."""
    order: IntArray
    """Rows of the examples, the most doubtful first."""
    wrong: BoolArray
    """(examples,): true if the label is likely wrong."""
    suggested: IntArray
    """(examples,): label that the models predict."""
    by_class: bool
    """True if `doubt` decides the order; otherwise the probability of the given label does."""
    random: tuple[float, float, float]
    """Estimated number of labels that are wrong as if drawn at random, with the ends of its
    interval.
    """

    @property
    def is_random(self) -> bool:
        """Return whether the estimate of random errors is clearly above that of clean texts."""
        return self.random[0] > CLEARLY


def judge(chances: FloatArray, labels: IntArray) -> Judged:
    """Order the labels by doubt and decide which are likely wrong.

    The adjusted margin gives the better order where people confuse some classes. It gives the worse
    one where errors look random, and where a class is rare: the usual probability of a rare class
    is low, so it seems a likely label for every text. If errors look random, the number of labels
    called wrong is at most the estimated number of such errors.
    """
    doubt = adjusted_margin(chances, labels)
    given = chances[np.arange(len(labels)), labels]
    random = random_errors(chances, labels)
    is_random = random[0] > CLEARLY
    smallest = np.bincount(labels, minlength=chances.shape[1]).min()
    has_rare_class = smallest < len(labels) / chances.shape[1] / 2  # half of an even share
    by_class = bool(not is_random and not has_rare_class)
    order = np.argsort(-doubt if by_class else given, kind="stable")
    wrong = label_issues(chances, labels)
    if is_random:
        wrong[order[round(random[0]) :]] = False
    return Judged(doubt, order, wrong, chances.argmax(1), by_class, random)


def usual(chances: FloatArray, labels: IntArray) -> FloatArray:
    """Return (classes,): the mean probability of a class among its own examples; 0 without any.

    Models are more confident about some classes than about others.
    """
    of_class = [column[labels == number] for number, column in enumerate(chances.T)]
    return np.array([of.mean() if len(of) else 0.0 for of in of_class])


def adjusted_margin(chances: FloatArray, labels: IntArray) -> FloatArray:
    """Return (examples,): how far the likeliest other label exceeds the given one, relative to
    `usual`.

    This is the same as cleanlab's normalised margin with adjusted probabilities, up to scale.
    """
    above = chances - usual(chances, labels)
    is_given = labels[:, None] == np.arange(chances.shape[1])
    return np.asarray(np.where(is_given, -np.inf, above).max(1) - above[is_given])


def label_issues(chances: FloatArray, labels: IntArray) -> BoolArray:
    """Return (examples,): the labels that confident learning prunes, by noise rate.

    For each pair of classes, the joint counts give the number of labels to prune, and the margin
    their order. A label that the models predict themselves is kept.
    """
    counts = _keep_one(joint_counts(chances, labels))
    wrong = np.zeros(len(labels), dtype=bool)
    for given in range(chances.shape[1]):
        rows = np.flatnonzero(labels == given)
        for true in np.flatnonzero(counts[given]) if len(rows) > 1 else ():
            if true != given:
                margin = chances[rows, true] - chances[rows, given]
                wrong[rows[np.argsort(-margin)[: counts[given, true]]]] = True
    every = np.arange(len(labels))
    return np.asarray(wrong & (chances.max(1) > chances[every, labels] + CLOSE))


def joint_counts(chances: FloatArray, labels: IntArray) -> IntArray:
    """Return (classes, classes): the estimated number of examples by given and by true label.

    An example counts for the class whose probability reaches the usual one for that class; for the
    likeliest if there are several. Rows are scaled to the number of examples with that label.
    """
    n_classes = chances.shape[1]
    sizes = np.bincount(labels, minlength=n_classes)
    limits = np.where(sizes > 0, np.maximum(usual(chances, labels), 2 * CLOSE), np.inf)
    reached = chances >= limits - CLOSE
    true = np.where(reached.sum(1) > 1, chances.argmax(1), reached.argmax(1))
    counts = np.zeros((n_classes, n_classes))
    np.add.at(counts, (labels[reached.any(1)], true[reached.any(1)]), 1)
    np.fill_diagonal(counts, np.maximum(1, counts.diagonal()))
    counts = (counts.T / counts.sum(1) * sizes).T
    return np.stack([_rounded(row) for row in counts / counts.sum() * len(labels)])


def _rounded(row: FloatArray) -> IntArray:
    """Round numbers to integers with the same sum."""
    whole = row.round()
    while (missing := round(row.sum()) - int(whole.sum())) != 0:
        step = 1 if missing > 0 else -1
        whole[np.argsort(row - whole)[::-step][: abs(missing)]] += step
    return np.asarray(whole.astype(np.int64))


def _keep_one(counts: IntArray) -> IntArray:
    """Return counts with at least one right label per class, taken evenly from its wrong labels."""
    right = np.maximum(1, counts.diagonal())
    others = np.maximum(1, np.count_nonzero(counts, axis=1) - 1)
    kept = np.maximum(0, counts - ((right - counts.diagonal()) / others)[:, None])
    np.fill_diagonal(kept, right)
    return np.asarray(kept.astype(np.int64))


def random_errors(chances: FloatArray, labels: IntArray) -> tuple[float, float, float]:
    """Estimate how many labels are wrong as if drawn at random; return it with a 95 % interval.

    The models did not see an example, so their probabilities do not depend on its label: random
    wrong labels have the same probabilities as the other labels of a text. If a share of those
    other labels lies below a limit, the same share of the random wrong labels does. The limit under
    which the fewest given labels lie gives the estimate. Errors between similar classes have other
    probabilities and are not counted. The interval is over resampled texts.
    """
    n, n_classes = chances.shape
    is_given = labels[:, None] == np.arange(n_classes)
    limits = np.unique(np.quantile(chances[is_given], np.linspace(0, 1, 201)))
    places = np.searchsorted(limits, chances)
    given, others = places[is_given], places[~is_given]

    def estimated(counts: FloatArray | IntArray) -> float:
        below, likewise = (
            np.bincount(place, np.repeat(counts, times), len(limits) + 1)[:-1].cumsum()
            for place, times in ((given, 1), (others, n_classes - 1))
        )
        return _fewest(below, likewise / (n_classes - 1) / n)

    rng = generator(0, "bootstrap", "random errors")
    drawn = (np.bincount(rng.integers(n, size=n), minlength=n) for _ in range(RESAMPLES))
    low, high = percentiles(np.array([estimated(weights) for weights in drawn]))
    return estimated(np.ones(n)), float(low), float(high)


def _fewest(below: FloatArray, share_of_others: FloatArray) -> float:
    """Return the smallest estimate over all limits with at least `LEAST` labels below."""
    n = below[-1]
    enough = (below >= min(LEAST, n)) & (share_of_others > 0)
    return (
        float(min(n, (below[enough] / share_of_others[enough]).min())) if enough.any() else float(n)
    )
