"""Exact layer shares: every subset of layers is swapped, and the loss is shared out among layers.

The paper's layer weight is a mean over all windows that contain a layer, which blurs: a memory in
two of twelve layers gets about a quarter of the weight. A Shapley value asks of a layer what it
adds to every subset of the others, and the values sum to what swapping all layers undoes.
"""

import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from memloc.arrays import FloatArray, IntArray, Table
from memloc.data.encode import Encoded
from memloc.errors import ScoreError, SettingsError
from memloc.methods import Method, Sizes, drawn, views
from memloc.methods.result import LayerScores
from memloc.progress import tell, track
from memloc.run.folder import Run
from memloc.seeds import generator
from memloc.settings import ours, packaged
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
from memloc.store import paths
from memloc.store.memo import ARRAYS, Maker, memo, unfinished_key
from memloc.store.records import as_table

if TYPE_CHECKING:
    from memloc.methods.mixtures import Mixtures
    from memloc.model.stack import Stack

_REPORT = packaged(__file__)
MOST_EXACT = 14
"""Layers up to which every subset is computed unless something else is asked for."""
GROUPS = 12
MOST_MEMORY = 4
"""GiB that the values of all subsets may take."""
KEPT = 0.9
"""Smallest sets are those whose swap loses, or which keep, this share of what all layers do."""
DIRECTIONS = ("necessary", "sufficient")
"""The reference's layers put into the final model, and the final model's into the reference."""


class Shares(Method):
    """Shapley values of the layers over all subsets of layers from the reference model."""

    name = "shares"
    needs = ("final", "reference")
    shows = {"shares": "shares"}
    exactness = 3
    report = {
        **_REPORT,
        "rows": {"shares": lambda table: views.shares(table, _REPORT["words"])},
    }
    version = 4
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
    """Number of groups of neighbouring layers that are swapped as one; default: 12, where layers
    are grouped at all."""
    pairs: int = ours(16, ge=2)
    """Random orders for each example, each with its reverse, where subsets are sampled."""

    def run(self, run: Run) -> LayerScores:
        """Shares by layer and by example, interactions, smallest sets, and every subset's value."""
        noisy = drawn(run.noisy_rows, self.noisy_examples, run.seed, self.name, "noisy")
        clean = drawn(run.clean_rows, self.clean_examples or len(noisy), run.seed, self.name)
        rows = np.concatenate([noisy, clean])
        plan = self.plan(run.depth, run.name, rows)
        values, remarks = _walk(self, run, plan, rows)
        lost = values[0, 0, : len(noisy)].mean(0)
        # Where nothing is memorised, there may be nothing.
        if not run.is_null and not lost[-1] > lost[0]:
            raise ScoreError(
                "There is nothing to share out: swapping all layers undoes no memorised label. "
                "Check that the labels were memorised and that the reference weights differ."
            )
        if len(noisy) < len(run.noisy_rows):
            remarks.append(f"{len(noisy)} of {len(run.noisy_rows)} noisy examples were drawn.")
        return _scores(plan, rows, len(noisy), values, [*plan.remarks, *remarks])

    def plan(self, depth: int, run: str = "", examples: Sequence[int] | IntArray = (0,)) -> "Plan":
        """Choose the subsets for a model of this depth.

        Orders are drawn anew for each run and example, so the error of sampling is independent
        between examples: every interval and test over examples contains it, and it averages out
        over runs. Without a run, the plan tells what one example costs.
        """
        if self.groups is not None and self.groups > depth:
            raise SettingsError(f"shares.groups is {self.groups}; the model has {depth} layers.")
        single = [range(layer, layer + 1) for layer in range(depth)]
        way = "groups" if self.groups else self.subsets
        if way == "exact" or (way == "auto" and depth <= MOST_EXACT):
            return Plan(single)
        n_groups = min(self.groups or GROUPS, depth)
        ends = pairwise(round(i * depth / n_groups) for i in range(n_groups + 1))
        grouped = Plan([range(first, last) for first, last in ends])
        sampled = Plan(
            single,
            np.array(
                [
                    random_orders(depth, self.pairs, generator(int(row), "orders", self.name, run))
                    for row in examples
                ]
            ),
        )
        cheapest = min(grouped, sampled, key=lambda plan: plan.layers)
        return {"groups": grouped, "sampled": sampled, "auto": cheapest}[way]

    def cost(self, sizes: Sizes) -> float:
        """Of 12 layers 8,190 a text, noisy ones and as many clean ones."""
        noisy = min(sizes.noisy, self.noisy_examples or sizes.noisy)
        texts = noisy + min(sizes.examples, self.clean_examples or noisy)
        return float(self.plan(sizes.depth).layers / sizes.depth * texts * sizes.predict)


@dataclass(frozen=True)
class Plan:
    """Which subsets of which units are computed for each example."""

    units: list[range]
    """Single layers, or groups of neighbouring layers."""
    orders: IntArray | None = None
    """Orders of the units (examples, orders, units) where subsets are sampled."""

    @property
    def exact(self) -> bool:
        """Whether every subset is computed."""
        return self.orders is None

    def subsets(self, example: int = 0) -> Sequence[int]:
        """Subsets that an example needs, ascending; bits are units."""
        if self.orders is None:
            return range(2 ** len(self.units))
        return sorted({s for passed in passed_subsets(self.orders[example]) for s in passed})

    @cached_property
    def n_values(self) -> int:
        """Number of values kept per example, that of no unit first and that of all units last."""
        n_units = len(self.units)
        return 2**n_units if self.orders is None else int(self.orders.shape[1]) * (n_units + 1)

    @cached_property
    def layers(self) -> int:
        """Number of layers that a text goes through: the mean over at most ten examples."""
        sizes = [len(unit) for unit in self.units]
        if self.orders is None:
            return sum(size * 2 ** (i + 1) for i, size in enumerate(sizes))
        counts = [count_layers(sizes, self.subsets(i)) for i in range(min(10, len(self.orders)))]
        return round(sum(counts) / len(counts))

    def memory(self, n_texts: int) -> float:
        """GiB of the values: two directions, labels and margins, four bytes each."""
        return n_texts * self.n_values * 16 / 2**30

    def kept(self, values: FloatArray, example: int, *, complements: bool = False) -> FloatArray:
        """Arrange values (..., subsets of an example) as `shares` reads them.

        All subsets stay as they are; of sampled ones each order lists what it goes through. With
        `complements`, a subset gets the value of all other units.
        """
        everything = 2 ** len(self.units) - 1
        if self.orders is None:
            return values[..., ::-1] if complements else values
        subsets = self.subsets(example)
        passed = [s for each in passed_subsets(self.orders[example]) for s in each]
        wanted = [everything ^ s for s in passed] if complements else passed
        return values[..., [bisect_left(subsets, subset) for subset in wanted]]

    def shares(self, values: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Shapley values (..., examples, U) of kept values, and their standard errors.

        The errors are those of sampling alone; they are zero where all subsets were computed.
        """
        if self.orders is None:
            found = shapley_values(values)
            return found, np.zeros_like(found)
        orders = self.orders[: values.shape[-2]]
        passed = values.reshape(*values.shape[:-1], orders.shape[1], -1)
        return sampled_values(passed, orders)

    @property
    def remarks(self) -> list[str]:
        """What the reader has to know of how subsets were chosen."""
        if self.orders is not None:
            pairs = self.orders.shape[1] // 2
            return [
                f"Shares are estimates: for each example, {pairs} random orders of the layers and "
                "their reverses were drawn. Intervals contain this error, and `se` is its part of "
                "them. Interactions and smallest sets need all subsets."
            ]
        if any(len(unit) > 1 for unit in self.units):
            return [
                f"Neighbouring layers were swapped as one, in {len(self.units)} groups; a "
                "group's share is spread evenly over its layers."
            ]
        return []


def _walk(settings: Shares, run: Run, plan: Plan, rows: IntArray) -> tuple[FloatArray, list[str]]:
    """Lost labels and margins (directions, 2, rows, subsets), and remarks on the two models.

    Finished batches are kept on disk.
    """
    from memloc.methods.mixtures import Mixtures

    every, memory = f"All subsets of {len(plan.units)} layers", plan.memory(len(rows))
    if memory > MOST_MEMORY:
        raise SettingsError(
            f"{every} take {plan.layers:,} layers for each text, and {memory:,.0f} GiB of memory "
            f"for their values, where {MOST_MEMORY} GiB are allowed: set shares.subsets to sampled "
            "or groups, or shares.noisy_examples to fewer."
        )
    final, reference = run.load("final"), run.load("reference")
    encoded, labels = run.encode(final), run.noisy.assigned[rows]
    mixtures = Mixtures(final.stack, reference.stack, plan.subsets(), plan.units)
    batches = list(mixtures.batches(encoded, rows))
    if not plan.exact:  # each example has subsets of its own
        batches = [np.array([place]) for places in batches for place in places]
    if plan.exact and len(plan.units) > MOST_EXACT:
        began = time.perf_counter()
        Mixtures(final.stack, reference.stack, [0]).logits(encoded, rows[batches[0]])
        per_layer = (time.perf_counter() - began) / len(plan.units) * len(batches)
        tell(
            f"{every}: {plan.layers:,} layers for each of {len(rows)} texts, about "
            f"{per_layer * plan.layers / 3600:.1f} hours and {memory:.1f} GiB."
        )
    folder, decided_by = run.work(settings.name), _decided_by(settings, run, plan, rows)
    maker = Maker(settings.name, settings.version)
    found = np.empty((2, 2, len(rows), plan.n_values), dtype=np.float32)
    with track(f"{run.name} · shares", len(rows)) as advance:
        for number, places in enumerate(batches):
            values = memo(
                paths.kept_batch(folder, number),
                unfinished_key(maker, {**decided_by, "places": places.tolist()}),
                lambda: {"values": _fates(mixtures, encoded, rows, labels, plan, places)},  # noqa: B023 - called at once
                ARRAYS,
            )
            found[:, :, places] = values["values"]
            advance(len(places))
    if not np.isfinite(found).all():
        raise ScoreError(f"Some mixtures of {run.name} give no numbers: its weights are damaged.")
    return found.astype(np.float64), _embeddings_differ(final.stack, reference.stack)


def _decided_by(settings: Shares, run: Run, plan: Plan, rows: IntArray) -> dict[str, Any]:
    """Return everything that decides the values of subsets."""
    return {
        "run": run.identity(settings.needs),
        "files": run.files(settings.needs),
        "name": run.name,
        "units": len(plan.units),
        "rows": rows.tolist(),
        "pairs": not plan.exact and settings.pairs,
    }


def _embeddings_differ(final: "Stack", reference: "Stack") -> list[str]:
    from memloc.model.parts import find_parts

    own, other = (dict(stack.model.named_parameters()) for stack in (final, reference))
    if all(own[name].equal(other[name]) for name in find_parts(final).embeddings):
        return []
    return [
        "The two models have different embeddings. All mixtures begin with those of the final "
        "model, so what its layers do in the reference (sufficient) includes its embeddings."
    ]


def _fates(
    mixtures: "Mixtures",
    encoded: Encoded,
    rows: IntArray,
    labels: IntArray,
    plan: Plan,
    places: IntArray,
) -> FloatArray:
    """(directions, lost and margin, places, values); the second's subsets are of final units."""
    mixtures, labels = mixtures.of(plan.subsets(places[0])), labels[places]
    parts = []
    logits = mixtures.logits(encoded, rows[places])
    for direction, each in zip(DIRECTIONS, logits, strict=True):
        values = each.cpu().numpy()
        own = np.take_along_axis(values, labels[:, None, None], axis=2)[..., 0]
        others = values.copy()
        np.put_along_axis(others, labels[:, None, None], -np.inf, axis=2)
        lost = (values.argmax(2) != labels[:, None]).astype(np.float32)
        # Units that are not the reference's are the final model's.
        from_final = direction == "sufficient"
        found = np.stack([lost, own - others.max(2)])
        parts.append(plan.kept(found, places[0], complements=from_final))
    return np.array(parts, dtype=np.float32)


def _scores(
    plan: Plan, rows: IntArray, n_noisy: int, values: FloatArray, remarks: list[str]
) -> LayerScores:
    """From values (directions, lost and margin, examples, subsets), noisy examples first."""
    noisy = values[:, :, :n_noisy]
    by_example, each_error = plan.shares(noisy)
    errors = np.sqrt((each_error**2).sum(2)) / n_noisy  # examples have orders of their own
    rng = generator(0, "bootstrap", "shares")
    sizes = np.array([len(unit) for unit in plan.units])

    def by_layer(shares: FloatArray) -> FloatArray:
        """A group's share is spread evenly over its layers."""
        return np.repeat(shares / sizes, sizes)

    def centre(lost: FloatArray) -> FloatArray:
        """Centre of gravity of the positive shares, layers from 1."""
        return centres_of_gravity(by_layer(np.maximum(0, lost.mean(0))))

    band = bootstrap(by_example[0, 0], rng=rng)
    mcog = bootstrap(by_example[0, 0], rng=rng, statistic=centre)
    tables = {
        "shares": _shares_table(by_example, errors, plan.units, rng),
        "example_shares": _examples_table(by_example, rows[:n_noisy], plan.units),
        "labels": _labels_table(rows, n_noisy, values),
    }
    if plan.exact:
        tables |= _subset_tables(plan.units, noisy[:, 0].mean(1), values[:, 0, n_noisy:].mean(1))
    about = {
        "units": [f"{u.start + 1}-{u.stop}" for u in plan.units],
        "exact": plan.exact and bool((sizes == 1).all()),
        "subsets": len(plan.subsets()),
        "layers_per_text": plan.layers,
        "standard_error": float(errors[0, 0].max()),
        "remarks": remarks,
    }
    ends = by_layer(band.low), by_layer(band.high)
    weights = by_layer(band.estimate)
    return LayerScores.of(Shares.name, weights, ends, mcog, tables=tables, about=about)


def _shares_table(
    by_example: FloatArray, errors: FloatArray, units: Sequence[range], rng: np.random.Generator
) -> Table:
    """By direction, value (labels, margin) and unit, with intervals over examples."""
    parts = []
    for d, direction in enumerate(DIRECTIONS):
        for v, value in enumerate(("labels", "margin")):
            # Necessary layers lose labels and margins, sufficient ones bring them back.
            sign = 1 if (direction == "necessary") == (value == "labels") else -1
            band = bootstrap(sign * by_example[d, v], rng=rng)
            columns = {"share": band.estimate, "low": band.low, "high": band.high}
            place = {"direction": direction, "value": value, **_ends(units)}
            parts.append({**place, **columns, "se": errors[d, v]})
    return as_table(*parts)


def _ends(units: Sequence[range]) -> dict[str, list[int]]:
    return {"first": [u.start + 1 for u in units], "last": [u.stop for u in units]}


def _examples_table(found: FloatArray, noisy: IntArray, units: Sequence[range]) -> Table:
    """What each unit holds of each noisy example.

    `share` is of the margin that it loses when units come from the reference, `lost` of its label
    (0 to 1), and `sufficient` of the margin that the final model's units bring to the reference.
    """
    ends = {name: np.tile(values, len(noisy)) for name, values in _ends(units).items()}
    example = np.repeat(noisy.astype(np.int32), len(units))
    (lost, margin), (_, gained) = ([each.ravel() for each in direction] for direction in found)
    columns = {"share": -margin, "lost": lost, "sufficient": gained}
    return as_table({"example": example, **ends, **columns})


def _labels_table(rows: IntArray, n_noisy: int, values: FloatArray) -> Table:
    """Of each noisy or clean example: how sure the final model is, and whether its label is lost.

    Lost is meant of all layers at once.
    """
    (before, margin), (after, _) = values[0, :, :, [0, -1]]
    of = {"example": rows, "is_noisy": np.arange(len(rows)) < n_noisy}
    return as_table({**of, "margin": margin, "lost": after - before})


def _subset_tables(
    units: Sequence[range], lost: FloatArray, clean_error: FloatArray
) -> dict[str, Table]:
    """What needs all subsets: interactions, all smallest sets, and the subsets themselves."""
    one, other = np.triu_indices(len(units), 1)
    first = np.array([u.start + 1 for u in units])
    pairs, sets = [], []
    for direction, values, error in zip(DIRECTIONS, lost, clean_error, strict=True):
        place = {"direction": direction, "one": first[one], "other": first[other]}
        sign = 1 if direction == "necessary" else -1  # what is kept there, not what is lost
        pairs.append({**place, "value": interactions(sign * values)[one, other]})
        for subset in smallest_sets(values, KEPT):
            layers = [layer + 1 for u in units_of(int(subset)) for layer in units[u]]
            named = {"direction": direction, "layers": ", ".join(map(str, layers))}
            sets.append({**named, "lost": values[subset], "clean_error": error[subset]})
    columns = {
        "subset": np.arange(lost.shape[1]),
        "lost": lost[0],
        "lost_with_only_these": lost[1],
        "clean_error": clean_error[0],
        "clean_error_with_only_these": clean_error[1],
    }
    return {
        "interactions": as_table(*pairs),
        "sets": as_table(sets, columns=["direction", "layers", "lost", "clean_error"]),
        "subsets": as_table(columns),
    }
