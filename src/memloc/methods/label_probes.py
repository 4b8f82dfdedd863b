"""Label probes: from which layer on can the assigned label be read better than the original one?

One probe learns the assigned labels, one the original ones, one the original labels shuffled
(chance). Each is tested on test examples of its own split, noisy and clean ones separately. Chance
may also be the F1 of the shuffled labels themselves, without a probe.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from memloc.arrays import BoolArray, FloatArray, IntArray, Table
from memloc.errors import counted
from memloc.methods import Method, Sizes, views
from memloc.methods.positions import check_labels
from memloc.methods.result import Result
from memloc.protocol import ProbeSettings
from memloc.run.folder import Run
from memloc.seeds import generator
from memloc.settings import ours, packaged, paper
from memloc.stats.depth import LEVEL, event, first_true
from memloc.stats.intervals import RESAMPLES, percentiles, resampled
from memloc.store.records import as_table

if TYPE_CHECKING:
    from memloc.methods.probes import Probes

_REPORT = packaged(__file__)
CURVES = (("noisy", "assigned"), ("noisy", "original"), ("clean", "original"))
"""Curves of F1: the examples that are tested, and the labels that they are asked for."""
NOISY_ASSIGNED, NOISY_ORIGINAL, CLEAN = range(len(CURVES))
UNLEARNT = (
    "The label probes did not learn: F1 of clean examples is not above chance in most layers."
)


class LabelProbes(Method, ProbeSettings):
    """F1 of assigned and original labels by layer, and the events they define; section 5."""

    name = "label_probes"
    labels_only = "texts have no labels to probe for"
    kind = "analysis"
    needs = ("final",)
    shows = {"layers": "label_probes"}
    report = {
        **_REPORT,
        "rows": {"label-probes": lambda table: views.label_probes(table, _REPORT["words"])},
    }

    margin: float = paper(0.10, "§5", gt=0, lt=1)
    """Margin by which F1 of assigned labels exceeds F1 of original ones: memorisation »
    generalisation.
    """
    share: float = paper(0.9, "§5", gt=0, lt=1)
    """Share of the best F1 above chance, on clean examples, that defines the 90 % event."""
    first_layer: int = ours(1, ge=0, le=1)
    """First layer that can have an event; 0 is the input of the first block."""
    chance: Literal["probes of shuffled labels", "shuffled labels"] = ours(
        "probes of shuffled labels"
    )
    """Source of the F1 by chance: probes that learnt shuffled labels, or these labels alone."""

    @classmethod
    def picture(cls, found: Result) -> str:
        """Draw F1 by layer, one line per kind of example and label."""
        return views.probes_picture(found["layers"], _REPORT["words"]["what"])

    def run(self, run: Run) -> Result:
        """Return the tables `layers`, `events` and `seeds`."""
        from memloc.methods.probes import alike_remarks

        self.check(run)
        probes = self._trained(run)
        is_noisy = run.noisy.is_noisy
        n_classes = run.task.n_classes
        rng = generator(0, "bootstrap", "label probes")

        def means(counts: IntArray) -> FloatArray:
            return mean_over_seeds(weighted_f1(probes, is_noisy, counts, n_classes))

        tables = f1_tables(resampled(means, len(is_noisy), rng), self)
        once = np.ones((1, len(is_noisy)), dtype=np.int64)
        by_seed = weighted_f1(probes, is_noisy, once, n_classes)[0]
        remarks = _remarks(by_seed)
        if not self.standardise:
            remarks += alike_remarks(run.vectors("final", self.last_layer), self.name)
        about = {"level": LEVEL, "resamples": RESAMPLES, "remarks": remarks}
        return Result(self.name, {**tables, "seeds": _seeds_table(by_seed, self.seeds)}, about)

    def check(self, run: Run) -> None:
        """Refuse data whose labels before noise are unknown."""
        check_labels(run.task, run.noisy)

    def _trained(self, run: Run) -> "dict[str, Probes]":
        """Return the probes by the labels they learnt; `chance` learnt shuffled labels, or is these
        labels.
        """
        from memloc.methods.probes import Target, shuffled, train_probes

        dealt = shuffled(run.noisy.original, self.seeds)
        learnt = {"assigned": run.noisy.assigned, "original": run.noisy.original, "chance": dealt}
        untrained = self.chance == "shuffled labels"
        if untrained:
            del learnt["chance"]
        targets = {name: Target(labels, run.task.n_classes) for name, labels in learnt.items()}
        vectors = run.vectors("final", self.last_layer)
        probes = train_probes(vectors, targets, self, run.device)
        if untrained:
            original = probes["original"]
            shuffled_labels = np.take_along_axis(dealt, original.rows, axis=1)
            predicted = np.broadcast_to(shuffled_labels, original.predicted.shape)
            probes["chance"] = replace(original, predicted=predicted)
        return probes

    def cost(self, sizes: Sizes) -> float:
        """Return the seconds for three times the probes of all layers and the vectors of one
        model.
        """
        probes = self.epochs * sizes.examples * sizes.probe
        return 3 * probes + sizes.examples * sizes.predict


def weighted_f1(
    probes: Mapping[str, "Probes"], is_noisy: BoolArray, counts: IntArray, n_classes: int
) -> FloatArray:
    """Return the F1 of test examples when each is drawn `counts` (draws, examples) times.

    The result is (draws, curves, 2, layers 0..L, probe seeds): for each of `CURVES`, F1 and the F1
    of shuffled labels; NaN where a seed has no such test example.

    Args:
        probes: Probes by the labels that they learnt.
        is_noisy: Whether each example is noisy.
        counts: How often each example is drawn.
        n_classes: Number of classes.
    """
    from memloc.methods.probes import drawn_f1

    by_curve = []
    for examples, labels in CURVES:
        drawn = (counts * (is_noisy if examples == "noisy" else ~is_noisy)).astype(np.float64)
        both = probes[labels], probes["chance"]
        by_curve.append(
            np.stack([drawn_f1(target, drawn, range(n_classes)) for target in both], axis=1)
        )
    return np.stack(by_curve, axis=1)


def mean_over_seeds(f1: FloatArray) -> FloatArray:
    """Return the mean over the last axis, of the probe seeds that have such test examples."""
    known = ~np.isnan(f1)
    count = known.sum(-1)
    return np.asarray(np.nan_to_num(f1).sum(-1) / np.where(count > 0, count, np.nan))


def f1_tables(found: FloatArray, settings: LabelProbes) -> dict[str, Table]:
    """Return the tables `layers` and `events` of F1 (1 + draws, curves, 2, 0..L); row 0 is the
    data.
    """
    parts: list[dict[str, Any]] = []
    for place, (examples, labels) in enumerate(CURVES):
        (f1, chance), drawn = found[0, place], found[1:, place, 0]
        low, high = percentiles(drawn[~np.isnan(drawn).any(1)])
        named = {"layer": np.arange(len(f1)), "examples": examples, "labels": labels}
        parts.append({**named, "f1": f1, "low": low, "high": high, "chance": chance})
    readable = parts[CLEAN]["low"] > parts[CLEAN]["chance"]
    holds = {"ninety": ninety(found, settings)}
    # Without a noisy example to test on, in the data or in a draw, nothing can be said.
    known = np.asarray(~np.isnan(found[:, NOISY_ASSIGNED, 0]).all(1))
    if known[0]:
        holds = {"memorisation": memorisation(found, settings)[known], **holds}
    rows = []
    for name, condition in holds.items():
        found_at = event(condition[0], condition[1:], first_true, settings.first_layer)
        rows.append(found_at.row("label probes", name, readable))
    events = as_table(rows)
    events.insert(1, "variant", "plain")
    return {"layers": as_table(*parts), "events": events}


def memorisation(found: FloatArray, settings: LabelProbes) -> BoolArray:
    """Return the layers where, on noisy examples, F1 of assigned labels exceeds that of original
    ones.

    The result has the layers in which events are sought, `first_layer`..L; so has that of
    `ninety`.
    """
    assigned, original = found[:, NOISY_ASSIGNED, 0], found[:, NOISY_ORIGINAL, 0]
    return np.asarray(assigned > original + settings.margin)[:, settings.first_layer :]


def ninety(found: FloatArray, settings: LabelProbes) -> BoolArray:
    """Return the layers where F1 on clean examples reaches the set share of the way from chance to
    best.

    Chance is the mean over layers, as shuffled labels do not depend on layers. If the best F1 is
    not above chance, no layer qualifies.
    """
    f1 = found[:, CLEAN, 0, settings.first_layer :]
    chance = found[:, CLEAN, 1].mean(1, keepdims=True)
    span = f1.max(1, keepdims=True) - chance
    return np.asarray((span > 0) & (f1 - chance >= settings.share * span))


def _seeds_table(by_seed: FloatArray, seeds: tuple[int, ...]) -> Table:
    layer, place = (index.ravel() for index in np.indices(by_seed.shape[2:]))
    parts = []
    for (examples, labels), values in zip(CURVES, by_seed, strict=True):
        of = {"layer": layer, "examples": examples, "labels": labels}
        f1, chance = values.reshape(2, -1)
        parts.append({**of, "probe_seed": np.array(seeds)[place], "f1": f1, "chance": chance})
    return as_table(*parts)


def _remarks(by_seed: FloatArray) -> list[str]:
    remarks = []
    without = np.isnan(by_seed[NOISY_ASSIGNED, 0, 0])
    if without.any():
        seeds = counted(len(without), "probe seed")
        remarks.append(f"No noisy example to test on: {without.sum()} of {seeds}.")
    f1, chance = mean_over_seeds(by_seed[CLEAN])[:, 1:]
    return [*remarks, UNLEARNT] if (f1 <= chance).mean() > 0.5 else remarks
