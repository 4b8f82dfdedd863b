"""Exact layer shares: every subset of layers is swapped, and the loss is shared out among layers.

The paper's layer weight is a mean over all windows that contain a layer, which blurs: a memory in
two of twelve layers gets about a quarter of the weight. A Shapley value asks of a layer what it
adds to every subset of the others, and the values sum to what swapping all layers undoes.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from memloc.errors import ScoreError, SettingsError
from memloc.identity import hashed
from memloc.methods import Method, Sizes, drawn
from memloc.methods.result import LayerScores
from memloc.progress import tell, track
from memloc.records import FloatArray, IntArray, whole_file
from memloc.seeds import generator
from memloc.settings import ours
from memloc.stats.depth import centres_of_gravity
from memloc.stats.intervals import bootstrap
from memloc.stats.subsets import (
    count_layers,
    interactions,
    passed_subsets,
    random_orders,
    sampled_values,
    shapley_values,
    smallest_sets,
    units_of,
)

if TYPE_CHECKING:
    import pandas as pd

    from memloc.data.encode import Encoded
    from memloc.methods.mixtures import Mixtures
    from memloc.models.stack import Stack
    from memloc.run import Run

MOST_EXACT = 14
"""Layers up to which every subset is computed unless something else is asked for."""
GROUPS = 12
MOST_MEMORY = 2**32
"""Bytes that the values of all subsets may take."""
KEPT = 0.9
"""Smallest sets are those whose swap loses, or which keep, this share of what all layers do."""
DIRECTIONS = ("necessary", "sufficient")
"""The reference's layers put into the final model, and the final model's into the reference."""


class Shares(Method):
    """Shapley values of the layers over all subsets of layers from the reference model."""

    name = "shares"
    needs = ("final", "reference")
    version = 3
    scratch = True

    noisy_examples: int | None = ours(500, ge=1)
    """Number of noisy examples, drawn at random; `null`: all."""
    clean_examples: int | None = ours(None, ge=1)
    """Number of clean examples whose error is measured; default: as many as noisy ones."""
    subsets: Literal["auto", "exact", "groups", "sampled"] = ours("auto")
    """`exact`: every subset of layers; `groups`: of groups of neighbouring layers; `sampled`: the
    subsets that random orders of the layers go through. `auto`: exact up to 14 layers, and above
    the cheaper of the other two."""
    groups: int | None = ours(None, ge=2, le=MOST_EXACT)
    """Number of groups of neighbouring layers that are swapped together; default: 12, where layers
    are grouped at all."""
    pairs: int = ours(16, ge=2)
    """Random orders, each with its reverse, where subsets are sampled."""

    def run(self, run: "Run") -> LayerScores:
        """Shares by layer and by example, interactions, smallest sets, and every subset's value."""
        plan = self.plan(run.depth)
        noisy = drawn(run.noisy_rows, self.noisy_examples, run.seed, self.name, "noisy")
        clean = drawn(run.clean_rows, self.clean_examples or len(noisy), run.seed, self.name)
        rows = np.concatenate([noisy, clean])
        values, remarks = _walk(self, run, plan, rows)
        found = Found(plan, rows, len(noisy), values)
        if not run.is_null:  # where nothing is memorised, there may be nothing
            _refuse_nothing(found)
        if len(noisy) < len(run.noisy_rows):
            remarks.append(f"{len(noisy)} of {len(run.noisy_rows)} noisy examples were drawn.")
        return _scores(found, run.depth, [*plan.remarks, *remarks])

    def plan(self, depth: int) -> "Plan":
        """Which subsets are computed for a model of this depth."""
        if self.groups is not None and self.groups > depth:
            raise SettingsError(f"shares.groups is {self.groups}; the model has {depth} layers.")
        single = [range(layer, layer + 1) for layer in range(depth)]
        way = "groups" if self.groups else self.subsets
        if way == "exact" or (way == "auto" and depth <= MOST_EXACT):
            return Plan(single)
        grouped = Plan(_grouped(depth, min(self.groups or GROUPS, depth)))
        rng = generator(0, "orders", self.name)
        sampled = Plan(single, random_orders(depth, self.pairs, rng))
        cheapest = min(grouped, sampled, key=lambda plan: plan.layers)
        return {"groups": grouped, "sampled": sampled, "auto": cheapest}[way]

    def cost(self, sizes: Sizes) -> float:
        """Of 12 layers 8,190 a text, noisy ones and as many clean ones."""
        noisy = min(sizes.noisy, self.noisy_examples or sizes.noisy)
        texts = noisy + min(sizes.examples, self.clean_examples or noisy)
        return float(self.plan(sizes.depth).layers / sizes.depth * texts * sizes.predict)


@dataclass(frozen=True)
class Plan:
    """Which subsets of which units are computed."""

    units: list[range]
    """Layers one by one, or groups of neighbours."""
    orders: IntArray | None = None
    """Of the units, where subsets are sampled."""

    @property
    def exact(self) -> bool:
        """Whether every subset is computed."""
        return self.orders is None

    @cached_property
    def subsets(self) -> Sequence[int]:
        """Numbers whose bits are the units."""
        if self.orders is None:
            return range(2 ** len(self.units))
        return sorted({subset for passed in passed_subsets(self.orders) for subset in passed})

    @cached_property
    def layers(self) -> int:
        """That each text goes through."""
        sizes = [len(unit) for unit in self.units]
        if self.exact:
            return sum(size * 2 ** (i + 1) for i, size in enumerate(sizes))
        return count_layers(sizes, self.subsets)

    @property
    def bytes_per_text(self) -> int:
        """Of the values: two directions, labels and margins, four bytes each."""
        return 16 * (2 ** len(self.units) if self.exact else len(self.subsets))

    @cached_property
    def complements(self) -> IntArray:
        """Where the subset of all other units is; orders are paired with their reverses."""
        if self.exact:
            return np.arange(len(self.subsets))[::-1]
        places = {subset: place for place, subset in enumerate(self.subsets)}
        everything = 2 ** len(self.units) - 1
        return np.array([places[everything ^ subset] for subset in self.subsets])

    def shares(self, values: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Shapley values (..., U) of values (..., subsets), and their standard errors."""
        if self.orders is None:
            found = shapley_values(values)
            return found, np.zeros_like(found)
        places = {subset: place for place, subset in enumerate(self.subsets)}
        passed = [[places[s] for s in each] for each in passed_subsets(self.orders)]
        return sampled_values(values[..., np.array(passed)], self.orders)

    @property
    def remarks(self) -> list[str]:
        """What the reader has to know of how subsets were chosen."""
        if self.orders is not None:
            pairs = len(self.orders) // 2
            return [
                f"Shares are estimates from {pairs} random orders of the layers and their reverses "
                f"({len(self.subsets):,} of 2^{len(self.units)} subsets); `se` is their standard "
                "error. Interactions and smallest sets need all subsets."
            ]
        if any(len(unit) > 1 for unit in self.units):
            return [
                f"Neighbouring layers were swapped together, in {len(self.units)} groups; a "
                "group's share is spread evenly over its layers."
            ]
        return []


def _grouped(depth: int, n_groups: int) -> list[range]:
    """Groups of neighbours that are as equal as can be."""
    ends = [round(i * depth / n_groups) for i in range(n_groups + 1)]
    return [range(first, last) for first, last in pairwise(ends)]


@dataclass(frozen=True)
class Found:
    """What becomes of the labels of some examples under every subset."""

    plan: Plan
    rows: IntArray
    n_noisy: int
    """Noisy examples come first."""
    values: FloatArray
    """(directions, lost and margin, examples, subsets)."""

    @property
    def noisy(self) -> FloatArray:
        """Those of the noisy examples."""
        return self.values[:, :, : self.n_noisy]

    @property
    def clean_error(self) -> FloatArray:
        """(directions, subsets)."""
        return np.asarray(self.values[:, 0, self.n_noisy :].mean(1))


def _walk(settings: Shares, run: "Run", plan: Plan, rows: IntArray) -> tuple[FloatArray, list[str]]:
    """Lost labels and margins (directions, 2, rows, subsets), and remarks on the two models.

    Finished batches are kept on disk.
    """
    from memloc.methods.mixtures import Mixtures
    from memloc.models.check import check_pair

    _refuse_too_many(plan, len(rows))
    final, reference = run.load("final"), run.load("reference")
    check_pair(final, reference, "reference")
    encoded, labels = run.encode(final), run.noisy.assigned[rows]
    mixtures = Mixtures(final.stack, reference.stack, plan.subsets, plan.units)
    batches = list(mixtures.batches(encoded, rows))
    if plan.exact and len(plan.units) > MOST_EXACT:
        _tell_cost(plan, encoded, [rows[b] for b in batches], (final.stack, reference.stack))
    facts = {"run": run.identity(settings.needs), "units": len(plan.units), "rows": rows.tolist()}
    folder = run.work(settings.name) / hashed({**facts, "pairs": not plan.exact and settings.pairs})
    found = np.empty((2, 2, len(rows), len(plan.subsets)), dtype=np.float32)
    with track(f"{run.name} · shares", len(rows)) as advance:
        for number, places in enumerate(batches):
            path = folder / f"batch-{number}.npy"
            if path.is_file():
                found[:, :, places] = np.load(path, allow_pickle=False)
            else:
                found[:, :, places] = _fates(mixtures, encoded, rows[places], labels[places], plan)
                with whole_file(path) as draft, draft.open("wb") as file:
                    np.save(file, found[:, :, places], allow_pickle=False)
            advance(len(places))
    if not np.isfinite(found).all():
        raise ScoreError(f"Some mixtures of {run.name} give no numbers: its weights are damaged.")
    return found.astype(np.float64), _embeddings_differ(final.stack, reference.stack)


def _refuse_too_many(plan: Plan, n_texts: int) -> None:
    needed = plan.bytes_per_text * n_texts
    if needed > MOST_MEMORY:
        raise SettingsError(
            f"All subsets of {len(plan.units)} layers take {plan.layers:,} layers for each text, "
            f"and {needed / 2**30:,.0f} GiB of memory for their values, where "
            f"{MOST_MEMORY / 2**30:.0f} GiB are allowed: set shares.subsets to sampled or groups, "
            "or shares.noisy_examples to fewer."
        )


def _tell_cost(
    plan: Plan, encoded: "Encoded", batches: list[IntArray], stacks: "tuple[Stack, Stack]"
) -> None:
    from memloc.methods.mixtures import Mixtures

    plain = Mixtures(*stacks, [0])
    began = time.perf_counter()
    plain.logits(encoded, batches[0])
    seconds = (time.perf_counter() - began) / len(plan.units) * plan.layers * len(batches)
    texts = sum(map(len, batches))
    tell(
        f"All subsets of {len(plan.units)} layers: {plan.layers:,} layers for each of {texts} "
        f"texts, about {seconds / 3600:.1f} hours and "
        f"{plan.bytes_per_text * texts / 2**30:.1f} GiB."
    )


def _embeddings_differ(final: "Stack", reference: "Stack") -> list[str]:
    from memloc.models.parts import find_parts

    own, other = (dict(stack.model.named_parameters()) for stack in (final, reference))
    if all(own[name].equal(other[name]) for name in find_parts(final).embeddings):
        return []
    return [
        "The two models have different embeddings. All mixtures begin with those of the final "
        "model, so what its layers do in the reference (sufficient) includes its embeddings."
    ]


def _fates(
    mixtures: "Mixtures", encoded: "Encoded", rows: IntArray, labels: IntArray, plan: Plan
) -> FloatArray:
    """(directions, lost and margin, texts, subsets); the second's subsets are of final units."""
    parts = []
    for direction, logits in zip(DIRECTIONS, mixtures.logits(encoded, rows), strict=True):
        values = logits.cpu().numpy()
        own = np.take_along_axis(values, labels[:, None, None], axis=2)[..., 0]
        others = values.copy()
        np.put_along_axis(others, labels[:, None, None], -np.inf, axis=2)
        lost = (values.argmax(2) != labels[:, None]).astype(np.float32)
        found = np.stack([lost, own - others.max(2)])
        # Units that are not the reference's are the final model's.
        parts.append(found[..., plan.complements] if direction == "sufficient" else found)
    return np.array(parts, dtype=np.float32)


def _refuse_nothing(found: Found) -> None:
    lost = found.noisy[0, 0].mean(0)
    if not lost[-1] > lost[0]:
        raise ScoreError(
            "There is nothing to share out: swapping all layers undoes no memorised label. Check "
            "that the labels were memorised and that the reference weights differ."
        )


def _scores(found: Found, depth: int, remarks: list[str]) -> LayerScores:
    plan = found.plan
    by_example, _ = plan.shares(found.noisy)
    _, errors = plan.shares(found.noisy.mean(2))
    rng = generator(0, "bootstrap", "shares")
    lost = by_example[0, 0]
    band = bootstrap(lost, rng=rng)
    sizes = np.array([len(unit) for unit in plan.units])
    where = np.repeat(np.arange(len(plan.units)), sizes)
    """The unit of each layer; a group's share is spread evenly over its layers."""
    spread = [np.asarray(v)[where] / sizes[where] for v in (band.estimate, band.low, band.high)]
    centre = bootstrap(lost, rng=rng, statistic=lambda v: _centre(v, where, sizes))
    tables = {
        "shares": _shares_table(by_example, errors, plan.units, rng),
        "example_shares": _examples_table(by_example, found.rows[: found.n_noisy], plan.units),
        "labels": _labels_table(found),
    }
    if plan.exact:
        tables |= _subset_tables(found)
    about = {
        "units": [f"{u.start + 1}-{u.stop}" for u in plan.units],
        "exact": plan.exact and len(plan.units) == depth,
        "subsets": len(plan.subsets),
        "layers_per_text": plan.layers,
        "standard_error": float(errors[0, 0].max()),
        "remarks": remarks,
    }
    ends = (spread[1], spread[2])
    return LayerScores.of(Shares.name, spread[0], ends, centre.at(), tables=tables, about=about)


def _centre(values: FloatArray, where: IntArray, sizes: IntArray) -> FloatArray:
    """Centre of gravity of the positive shares, layers from 1."""
    shares = np.maximum(0, values.mean(0))[where] / sizes[where]
    return np.asarray(centres_of_gravity(shares))


def _shares_table(
    by_example: FloatArray, errors: FloatArray, units: Sequence[range], rng: np.random.Generator
) -> "pd.DataFrame":
    """By direction, value (labels, margin) and unit, with intervals over examples."""
    import pandas as pd

    frames = []
    for d, direction in enumerate(DIRECTIONS):
        for v, value in enumerate(("labels", "margin")):
            # Necessary layers lose labels and margins, sufficient ones bring them back.
            sign = 1 if (direction == "necessary") == (value == "labels") else -1
            band = bootstrap(sign * by_example[d, v], rng=rng)
            columns = {"share": band.estimate, "low": band.low, "high": band.high}
            place = {"direction": direction, "value": value, **_ends(units)}
            frames.append(pd.DataFrame({**place, **columns, "se": errors[d, v]}))
    return pd.concat(frames, ignore_index=True)


def _ends(units: Sequence[range]) -> dict[str, list[int]]:
    return {"first": [u.start + 1 for u in units], "last": [u.stop for u in units]}


def _examples_table(found: FloatArray, noisy: IntArray, units: Sequence[range]) -> "pd.DataFrame":
    """What each unit holds of each noisy example.

    `share` is of the margin that it loses when units come from the reference, `lost` of its label
    (0 to 1), and `sufficient` of the margin that the final model's units bring to the reference.
    """
    import pandas as pd

    ends = {name: np.tile(values, len(noisy)) for name, values in _ends(units).items()}
    example = np.repeat(noisy.astype(np.int32), len(units))
    (lost, margin), (_, gained) = ([each.ravel() for each in direction] for direction in found)
    columns = {"share": -margin, "lost": lost, "sufficient": gained}
    return pd.DataFrame({"example": example, **ends, **columns})


def _labels_table(found: Found) -> "pd.DataFrame":
    """Of each noisy or clean example: how sure the final model is, and whether its label is lost.

    Lost is meant of all layers together.
    """
    import pandas as pd

    (before, margin), (after, _) = found.values[0, :, :, [0, -1]]
    is_noisy = np.arange(len(found.rows)) < found.n_noisy
    return pd.DataFrame(
        {"example": found.rows, "is_noisy": is_noisy, "margin": margin, "lost": after - before}
    )


def _subset_tables(found: Found) -> "dict[str, pd.DataFrame]":
    """What needs all subsets: interactions, all smallest sets, and the subsets themselves."""
    import pandas as pd

    units, lost, clean = found.plan.units, found.noisy[:, 0].mean(1), found.clean_error
    one, other = np.triu_indices(len(units), 1)
    first = np.array([u.start + 1 for u in units])
    pairs, sets = [], []
    for direction, values, error in zip(DIRECTIONS, lost, clean, strict=True):
        place = {"direction": direction, "one": first[one], "other": first[other]}
        sign = 1 if direction == "necessary" else -1  # what is kept there, not what is lost
        pairs.append(pd.DataFrame({**place, "value": interactions(sign * values)[one, other]}))
        for subset in smallest_sets(values, KEPT):
            layers = [layer + 1 for u in units_of(int(subset)) for layer in units[u]]
            named = {"direction": direction, "layers": ", ".join(map(str, layers))}
            sets.append({**named, "lost": values[subset], "clean_error": error[subset]})
    columns: dict[str, Any] = {
        "subset": np.arange(len(found.plan.subsets)),
        "lost": lost[0],
        "lost_with_only_these": lost[1],
        "clean_error": clean[0],
        "clean_error_with_only_these": clean[1],
    }
    return {
        "interactions": pd.concat(pairs, ignore_index=True),
        "sets": pd.DataFrame(sets, columns=["direction", "layers", "lost", "clean_error"]),
        "subsets": pd.DataFrame(columns),
    }
