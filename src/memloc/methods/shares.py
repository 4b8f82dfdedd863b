"""Exact layer shares: every subset of layers is swapped, and the loss is shared out among layers.

The paper's layer weight is a mean over all windows that contain a layer, which blurs: a memory in
two of twelve layers gets about a quarter of the weight. A Shapley value asks of a layer what it
adds to every subset of the others, and the values sum to what swapping all layers undoes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from memloc.errors import ScoreError, SettingsError
from memloc.identity import hashed
from memloc.methods.base import Method, Sizes
from memloc.methods.result import LayerScores
from memloc.progress import track
from memloc.records import FloatArray, IntArray, whole_file
from memloc.seeds import generator
from memloc.settings import ours
from memloc.stats.depth import centres_of_gravity
from memloc.stats.intervals import bootstrap
from memloc.stats.subsets import interactions, shapley_values, smallest_sets, units_of

if TYPE_CHECKING:
    import pandas as pd

    from memloc.methods.mixtures import Mixed
    from memloc.run import Run

MOST_EXACT = 14
"""Layers up to which every subset is computed; deeper models are cut into groups of layers."""
GROUPS = 12
LEVEL = 0.95
KEPT = 0.9
"""Smallest sets are those whose swap loses, or which keep, this share of what all layers do."""
DIRECTIONS = ("necessary", "sufficient")
"""The reference's layers put into the final model, and the final model's into the reference."""


class Shares(Method):
    """Shapley values of the layers over all subsets of layers from the reference model."""

    name = "shares"
    needs = ("final", "reference")
    version = 2
    scratch = True

    clean_examples: int | None = ours(None, ge=1)
    """Number of clean examples whose error is measured; default: as many as are noisy."""
    groups: int | None = ours(None, ge=2, le=MOST_EXACT)
    """Number of groups of neighbouring layers that are swapped together; default: single layers
    up to 14 layers, and 12 groups in deeper models."""

    def run(self, run: "Run") -> LayerScores:
        """Shares by layer and by example, interactions, smallest sets, and every subset's value."""
        units = units_for(run.depth, self.groups)
        noisy = run.noisy_rows
        clean = _sample(run.clean_rows, self.clean_examples or len(noisy), run.seed)
        rows = np.concatenate([noisy, clean])
        values = _walk(self, run, units, rows)
        found = _Values(values[:, :, : len(noisy)], values[0, 0, len(noisy) :])
        if not run.is_null:  # where nothing is memorised, there may be nothing
            _refuse_nothing(found)
        whole = values[0, :, :, [0, -1]]  # under none and all of the reference's layers
        labels = _labels_table(rows, len(noisy), whole)
        return _scores(found, noisy, units, run.depth, labels)

    def cost(self, sizes: Sizes) -> float:
        """2^(U + 1) - 2 units a text, noisy ones and as many clean ones."""
        units = len(units_for(sizes.depth, self.groups))
        texts = sizes.noisy + min(sizes.examples, self.clean_examples or sizes.noisy)
        return float((2 ** (units + 1) - 2) / units * texts * sizes.predict)


def units_for(depth: int, groups: int | None) -> list[range]:
    """Layers one by one, or in groups of neighbours that are as equal as can be."""
    if groups is not None and groups > depth:
        raise SettingsError(f"shares.groups is {groups}; the model has {depth} layers.")
    n_units = groups or (depth if depth <= MOST_EXACT else GROUPS)
    ends = [round(i * depth / n_units) for i in range(n_units + 1)]
    return [range(first, last) for first, last in pairwise(ends)]


@dataclass(frozen=True)
class _Values:
    """What the noisy labels' fate is under every subset, (examples, 2^U) each, and clean errors."""

    noisy: FloatArray
    """(directions, lost and margin, noisy examples, 2^U)."""
    clean_wrong: FloatArray
    """(clean examples, 2^U): by the final model's head, is the label no longer predicted?"""


def _walk(settings: Shares, run: "Run", units: Sequence[range], rows: IntArray) -> FloatArray:
    """Lost labels and margins (directions, 2, rows, 2^U); finished batches are kept on disk."""
    from memloc.methods.mixtures import Mixtures
    from memloc.models.check import check_pair

    final, reference = run.load("final"), run.load("reference")
    check_pair(final, reference, "reference")
    encoded, labels = run.encode(final), run.noisy.assigned[rows]
    mixtures = Mixtures(final.stack, reference.stack, units)
    facts = {"run": run.identity(settings.needs), "units": len(units), "rows": rows.tolist()}
    folder = run.work(settings.name) / hashed(facts)
    found = np.empty((2, 2, len(rows), 2 ** len(units)), dtype=np.float32)
    batches = list(mixtures.batches(encoded, rows))
    with track(f"{run.name} · shares", len(rows)) as advance:
        for number, places in enumerate(batches):
            path = folder / f"batch-{number}.npy"
            if path.is_file():
                found[:, :, places] = np.load(path, allow_pickle=False)
            else:
                mixed = mixtures.logits(encoded, rows, places)
                found[:, :, places] = _fates(mixed, labels[places])
                with whole_file(path) as draft, draft.open("wb") as file:
                    np.save(file, found[:, :, places], allow_pickle=False)
            advance(len(places))
    if not np.isfinite(found).all():
        raise ScoreError(f"Some mixtures of {run.name} give no numbers: its weights are damaged.")
    return found.astype(np.float64)


def _fates(mixed: "Mixed", labels: IntArray) -> FloatArray:
    """(directions, lost and margin, texts, 2^U); subsets of the second are of the final's units."""
    parts = []
    for logits, flip in ((mixed.final, False), (mixed.reference, True)):
        values = logits.cpu().numpy()
        own = np.take_along_axis(values, labels[:, None, None], axis=2)[..., 0]
        others = values.copy()
        np.put_along_axis(others, labels[:, None, None], -np.inf, axis=2)
        margin = own - others.max(2)
        lost = (values.argmax(2) != labels[:, None]).astype(np.float32)
        # Without the reference's units the others are the final's: the complement, read backwards.
        parts.append([lost[:, ::-1], margin[:, ::-1]] if flip else [lost, margin])
    return np.array(parts, dtype=np.float32)


def _refuse_nothing(found: _Values) -> None:
    lost = found.noisy[0, 0].mean(0)
    if not lost[-1] > lost[0]:
        raise ScoreError(
            "There is nothing to share out: swapping all layers undoes no memorised label. Check "
            "that the labels were memorised and that the reference weights differ."
        )


def _scores(
    found: _Values, noisy: IntArray, units: Sequence[range], depth: int, labels: "pd.DataFrame"
) -> LayerScores:
    by_example = shapley_values(found.noisy)
    rng = generator(0, "bootstrap", "shares")
    lost = by_example[0, 0]
    band = bootstrap(lost, rng=rng, level=LEVEL)
    sizes = np.array([len(unit) for unit in units])
    where = np.repeat(np.arange(len(units)), sizes)
    """The unit of each layer; a group's share is spread evenly over its layers."""
    spread = [np.asarray(v)[where] / sizes[where] for v in (band.estimate, band.low, band.high)]
    centre = bootstrap(lost, rng=rng, level=LEVEL, statistic=lambda v: _centre(v, where, sizes))
    mcog = centre.at()
    subsets = found.noisy[:, 0].mean(1)
    tables = {
        "shares": _shares_table(by_example, units, rng),
        "example_shares": _examples_table(by_example[0], noisy, units),
        "labels": labels,
        "interactions": _interactions_table(interactions(subsets[0]), units),
        "sets": _sets_table(subsets, units),
        "subsets": _subsets_table(subsets, found.clean_wrong.mean(0)),
    }
    about = {"units": [f"{u.start + 1}-{u.stop}" for u in units], "exact": len(units) == depth}
    ends = (spread[1], spread[2])
    return LayerScores.of(Shares.name, spread[0], ends, mcog, tables=tables, about=about)


def _centre(values: FloatArray, where: IntArray, sizes: IntArray) -> FloatArray:
    """Centre of gravity of the positive shares, layers from 1."""
    shares = np.maximum(0, values.mean(0))[where] / sizes[where]
    return np.asarray(centres_of_gravity(shares))


def _shares_table(
    by_example: FloatArray, units: Sequence[range], rng: np.random.Generator
) -> "pd.DataFrame":
    """By direction, value (labels, margin) and unit, with intervals over examples."""
    import pandas as pd

    frames = []
    for direction, of_direction in zip(DIRECTIONS, by_example, strict=True):
        for value, shares in zip(("labels", "margin"), of_direction, strict=True):
            # Necessary layers lose labels and margins, sufficient ones bring them back.
            sign = 1 if (direction == "necessary") == (value == "labels") else -1
            band = bootstrap(sign * shares, rng=rng, level=LEVEL)
            columns = {"share": band.estimate, "low": band.low, "high": band.high}
            place = {"direction": direction, "value": value, **_ends(units)}
            frames.append(pd.DataFrame({**place, **columns}))
    return pd.concat(frames, ignore_index=True)


def _ends(units: Sequence[range]) -> dict[str, list[int]]:
    return {"first": [u.start + 1 for u in units], "last": [u.stop for u in units]}


def _examples_table(found: FloatArray, noisy: IntArray, units: Sequence[range]) -> "pd.DataFrame":
    """What each unit holds of each noisy example: of its margin, and of its label (0 to 1)."""
    import pandas as pd

    n_units = len(units)
    ends = {name: np.tile(values, len(noisy)) for name, values in _ends(units).items()}
    example = np.repeat(noisy.astype(np.int32), n_units)
    lost, margin = found[0].ravel(), -found[1].ravel()
    return pd.DataFrame({"example": example, **ends, "share": margin, "lost": lost})


def _labels_table(rows: IntArray, n_noisy: int, whole: FloatArray) -> "pd.DataFrame":
    """Of each noisy or clean example: how sure the final model is, and whether its label is lost.

    `whole` (2, lost and margin, rows) is under none and under all of the reference's layers.
    """
    import pandas as pd

    (before, margin), (after, _) = whole
    is_noisy = np.arange(len(rows)) < n_noisy
    return pd.DataFrame(
        {"example": rows, "is_noisy": is_noisy, "margin": margin, "lost": after - before}
    )


def _interactions_table(found: FloatArray, units: Sequence[range]) -> "pd.DataFrame":
    import pandas as pd

    one, other = np.triu_indices(len(units), 1)
    first = np.array([u.start + 1 for u in units])
    return pd.DataFrame({"one": first[one], "other": first[other], "value": found[one, other]})


def _sets_table(subsets: FloatArray, units: Sequence[range]) -> "pd.DataFrame":
    """All smallest sets of units that are necessary, and all that are sufficient."""
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for direction, values in zip(DIRECTIONS, subsets, strict=True):
        for subset in smallest_sets(values, KEPT):
            layers = [layer + 1 for u in units_of(int(subset)) for layer in units[u]]
            named = ", ".join(map(str, layers))
            rows.append({"direction": direction, "layers": named, "lost": values[subset]})
    return pd.DataFrame(rows, columns=["direction", "layers", "lost"])


def _subsets_table(subsets: FloatArray, clean: FloatArray) -> "pd.DataFrame":
    """Of every subset: labels lost when it is the reference's, or when it alone is the final's."""
    import pandas as pd

    columns = {"lost": subsets[0], "lost_with_only_these": subsets[1], "clean_error": clean}
    return pd.DataFrame({"subset": np.arange(len(clean)), **columns})


def _sample(rows: IntArray, n: int, seed: int) -> IntArray:
    if n >= len(rows):
        return rows
    return np.sort(generator(seed, "shares", "clean").choice(rows, n, replace=False))
