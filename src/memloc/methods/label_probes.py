"""Label probes: from which layer on can the assigned label be read better than the original one?

One probe learns the assigned labels, one the original ones, one the original labels dealt out anew
(chance). Each is tested on test examples of its own split, noisy and clean ones apart. Chance may
also be the F1 of the labels dealt out anew themselves, without a probe.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from memloc.errors import counted
from memloc.methods import Method, Sizes
from memloc.methods.positions import check_labels
from memloc.methods.result import Result
from memloc.protocol import ProbeSettings
from memloc.records import BoolArray, FloatArray, IntArray
from memloc.seeds import generator
from memloc.settings import ours, paper
from memloc.stats.depth import LEVEL, Event, event, first_layer
from memloc.stats.intervals import RESAMPLES, counts_in_chunks, joined, percentiles

if TYPE_CHECKING:
    import pandas as pd

    from memloc.run import Run
    from memloc.training.probes import Probes

CURVES = (("noisy", "assigned"), ("noisy", "original"), ("clean", "original"))
"""Which examples are asked for which labels."""


@dataclass(frozen=True)
class Curve:
    """F1 of one kind of test examples for one kind of labels; one row per draw of the examples."""

    f1: FloatArray
    """(draws, layers 0..L, probe seeds); NaN where a seed has no such test example."""
    chance: FloatArray
    """The same for shuffled labels."""


class LabelProbes(Method, ProbeSettings):
    """F1 by layer of assigned and original labels, and the events that they make; section 5."""

    name = "label_probes"
    kind = "analysis"
    needs = ("final",)

    margin: float = paper(0.10, "§5", gt=0, lt=1)
    """F1 of assigned labels exceeds F1 of original ones by this: memorisation » generalisation."""
    share: float = paper(0.9, "§5", gt=0, lt=1)
    """Share of the best F1 above chance, on clean examples, that makes the 90 % event."""
    first_layer: int = ours(1, ge=0, le=1)
    """The first layer that can have an event; 0 is the input of the first block."""
    chance: Literal["probes of shuffled labels", "shuffled labels"] = ours(
        "probes of shuffled labels"
    )
    """Whose F1 is chance: that of probes that learnt shuffled labels, or of these labels alone."""

    def run(self, run: "Run") -> Result:
        """The tables `layers`, `events` and `seeds`."""
        noisy, n_classes = run.noisy, run.task.n_classes
        self.check(run)
        probes = self._trained(run)
        once = np.ones((1, len(noisy.is_noisy)), dtype=np.int64)
        estimates = curves(probes, noisy.is_noisy, once, n_classes)
        tables = summarise(estimates, _resampled(probes, noisy.is_noisy, n_classes), self)
        about = {"level": LEVEL, "resamples": RESAMPLES, "remarks": _remarks(estimates)}
        return Result(self.name, {**tables, "seeds": _seeds_table(estimates, self.seeds)}, about)

    def check(self, run: "Run") -> None:
        """Refuse data whose labels before noise are not known."""
        check_labels(run.task, run.noisy)

    def _trained(self, run: "Run") -> "dict[str, Probes]":
        """The probes by what they learnt; `chance` learnt shuffled labels, or is these labels."""
        from memloc.models.device import pick_device
        from memloc.training.probes import Target, shuffled, train_probes

        dealt = shuffled(run.noisy.original, self.seeds)
        learnt = {"assigned": run.noisy.assigned, "original": run.noisy.original, "chance": dealt}
        untrained = self.chance == "shuffled labels"
        if untrained:
            del learnt["chance"]
        targets = {name: Target(labels, run.task.n_classes) for name, labels in learnt.items()}
        vectors = run.vectors("final", self.last_layer)
        probes = train_probes(vectors, targets, self, str(pick_device(run.device)))
        return probes | {"chance": guessing(probes["original"], dealt)} if untrained else probes

    def cost(self, sizes: Sizes) -> float:
        """Three times the probes of all layers, and the vectors of one model."""
        probes = self.epochs * sizes.examples * sizes.probe
        return 3 * probes + sizes.examples * sizes.predict


def guessing(probes: "Probes", dealt: IntArray) -> "Probes":
    """As `probes`, but "predicting" at every layer the labels `dealt` (seeds, examples) to them."""
    predicted = np.take_along_axis(dealt, probes.rows, axis=1)
    return replace(probes, predicted=np.broadcast_to(predicted, probes.predicted.shape))


def curves(
    probes: Mapping[str, "Probes"], is_noisy: BoolArray, counts: IntArray, n_classes: int
) -> dict[tuple[str, str], Curve]:
    """The three curves when example i is there `counts[:, i]` times, (draws, examples)."""
    from memloc.training.probes import drawn_f1

    found, classes = {}, range(n_classes)
    for examples, labels in CURVES:
        drawn = (counts * (is_noisy if examples == "noisy" else ~is_noisy)).astype(np.float64)
        f1, chance = (drawn_f1(probes[name], drawn, classes) for name in (labels, "chance"))
        found[examples, labels] = Curve(f1, chance)
    return found


def summarise(
    estimates: Mapping[tuple[str, str], Curve],
    resampled: Mapping[tuple[str, str], Curve],
    settings: LabelProbes,
) -> "dict[str, pd.DataFrame]":
    """The tables `layers` and `events`."""
    import pandas as pd

    layers = pd.concat(
        [_layers_table(key, estimates[key], resampled[key]) for key in CURVES], ignore_index=True
    )
    clean = layers[(layers["examples"] == "clean")]
    readable = (clean["low"] > clean["chance"]).to_numpy()
    found = {"ninety": [ninety(part, settings) for part in (estimates, resampled)]}
    own = memorisation(estimates, settings)
    # Without a noisy example to test on, in the data or in a draw, nothing can be said.
    if not np.isnan(_over_seeds(estimates["noisy", "assigned"].f1)).all():
        known = ~np.isnan(_over_seeds(resampled["noisy", "assigned"].f1)).all(1)
        found = {"memorisation": [own, memorisation(resampled, settings)[known]], **found}
    rows = [
        _event(own[0], others, settings).row("label probes", name, readable)
        for name, (own, others) in found.items()
    ]
    events = pd.DataFrame(rows)
    events.insert(1, "variant", "plain")
    return {"layers": layers, "events": events}


def memorisation(found: Mapping[tuple[str, str], Curve], settings: LabelProbes) -> BoolArray:
    """Layers where, on noisy examples, F1 of assigned labels exceeds that of original ones.

    The layers are those in which events are sought: `first_layer`..L, also in `ninety`.
    """
    assigned, original = (
        _over_seeds(found["noisy", labels].f1) for labels in ("assigned", "original")
    )
    return np.asarray(assigned > original + settings.margin)[:, settings.first_layer :]


def ninety(found: Mapping[tuple[str, str], Curve], settings: LabelProbes) -> BoolArray:
    """Layers where F1 on clean examples has come so far from chance to its best.

    Chance is the mean over layers, which shuffled labels do not know; where the best is not above
    it, that is never.
    """
    clean = found["clean", "original"]
    f1 = _over_seeds(clean.f1)[:, settings.first_layer :]
    chance = _over_seeds(clean.chance).mean(1, keepdims=True)
    span = f1.max(1, keepdims=True) - chance
    return np.asarray((span > 0) & (f1 - chance >= settings.share * span))


def _event(own: BoolArray, others: BoolArray, settings: LabelProbes) -> Event:
    """The first of the layers that holds, `own` (layers,) and `others` (resamples, layers)."""
    found = event(own, others, first_layer)
    ends = {name: getattr(found, name) for name in ("layer", "low", "high")}
    return replace(found, **{n: layer + settings.first_layer - 1 for n, layer in ends.items()})


def _resampled(
    probes: Mapping[str, "Probes"], is_noisy: BoolArray, n_classes: int
) -> dict[tuple[str, str], Curve]:
    chunks = counts_in_chunks(len(is_noisy), RESAMPLES, generator(0, "bootstrap", "label probes"))
    parts = [curves(probes, is_noisy, counts, n_classes) for counts in chunks]
    return {key: joined([part[key] for part in parts]) for key in CURVES}


def _over_seeds(f1: FloatArray) -> FloatArray:
    """Mean over the probe seeds that have such test examples."""
    there = ~np.isnan(f1)
    count = there.sum(-1)
    return np.asarray(np.nan_to_num(f1).sum(-1) / np.where(count > 0, count, np.nan))


def _layers_table(key: tuple[str, str], own: Curve, others: Curve) -> "pd.DataFrame":
    import pandas as pd

    drawn = _over_seeds(others.f1)
    low, high = percentiles(drawn[~np.isnan(drawn).any(1)])
    return pd.DataFrame(
        {
            "layer": np.arange(len(low)),
            "examples": key[0],
            "labels": key[1],
            "f1": _over_seeds(own.f1)[0],
            "low": low,
            "high": high,
            "chance": _over_seeds(own.chance)[0],
        }
    )


def _seeds_table(
    estimates: Mapping[tuple[str, str], Curve], seeds: tuple[int, ...]
) -> "pd.DataFrame":
    import pandas as pd

    frames = []
    for (examples, labels), curve in estimates.items():
        layer, place = (index.ravel() for index in np.indices(curve.f1[0].shape))
        frames.append(
            pd.DataFrame(
                {
                    "layer": layer,
                    "examples": examples,
                    "labels": labels,
                    "probe_seed": np.array(seeds)[place],
                    "f1": curve.f1[0].ravel(),
                    "chance": curve.chance[0].ravel(),
                }
            )
        )
    return pd.concat(frames, ignore_index=True)


UNLEARNT = (
    "The label probes did not learn: F1 of clean examples is not above chance in most layers."
)


def _remarks(estimates: Mapping[tuple[str, str], Curve]) -> list[str]:
    said = []
    without = np.isnan(estimates["noisy", "assigned"].f1[0, 0])
    if without.any():
        seeds = counted(len(without), "probe seed")
        said.append(f"No noisy example to test on: {without.sum()} of {seeds}.")
    clean = estimates["clean", "original"]
    f1, chance = (_over_seeds(part)[0, 1:] for part in (clean.f1, clean.chance))
    return [*said, UNLEARNT] if (f1 <= chance).mean() > 0.5 else said
