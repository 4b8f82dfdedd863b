"""Exact shares: every subset of units comes from a donor, and the loss is shared out among units.

The paper's layer weight is a mean over all windows that contain a layer, which blurs: a memory in
two of twelve layers gets about a quarter of the weight. A Shapley value asks of a unit what it adds
to every subset of the others, and the values sum to what exchanging all units undoes.
"""

import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import or_
from typing import TYPE_CHECKING, Literal

import numpy as np

from memloc.arrays import FloatArray, IntArray, Table
from memloc.data.encode import Encoded
from memloc.errors import ScoreError, SettingsError
from memloc.methods import Method, Sizes, drawn
from memloc.methods.result import LayerScores
from memloc.progress import tell, track
from memloc.run.folder import Run
from memloc.seeds import generator
from memloc.settings import ours
from memloc.stats.depth import centres_of_gravity
from memloc.stats.intervals import bootstrap
from memloc.stats.subsets import (
    alone,
    control,
    count_layers,
    interactions,
    passed_subsets,
    random_orders,
    sampled_values,
    shapley_values,
    smallest_sets,
    units_of,
)
from memloc.store.files import whole_file
from memloc.store.identity import hashed
from memloc.store.records import as_table, versions

if TYPE_CHECKING:
    from memloc.methods.mixtures import Mixtures
    from memloc.model.stack import Stack
    from memloc.model.units import Units

MOST_EXACT = 14
"""Units up to which every subset is computed unless something else is asked for."""
MOST_MEMORY = 4
"""GiB that the values of all subsets may take."""
KEPT = 0.9
"""Smallest sets are those whose exchange undoes this share of what all units do."""


class Shares(Method):
    """Shapley values of the units over all subsets of units from the donor."""

    name = "shares"
    needs = ("final", "reference")
    shows = {"shares": "shares"}
    version = 5
    scratch = True

    units: str | dict[str, tuple[str, ...]] = ours("layers")
    """What is exchanged: `layers`, `sublayers` (attention and MLP of each layer, each with its
    norm), or names of your own units with the parameters (patterns such as `*.mlp.*`) of each."""
    noisy_examples: int | None = ours(500, ge=1)
    """Number of noisy examples, drawn at random; `null`: all."""
    clean_examples: int | None = ours(None, ge=1)
    """Number of clean examples whose error is measured; default: as many as noisy ones."""
    subsets: Literal["auto", "exact", "sampled"] = ours("auto")
    """`exact`: every subset of units; `sampled`: the subsets that random orders of the units go
    through. `auto`: exact up to 14 units, sampled above."""
    pairs: int = ours(16, ge=2)
    """Random orders for each example, each with its reverse, where subsets are sampled."""

    def run(self, run: Run) -> LayerScores:
        """Shares by unit and by example, interactions, smallest sets, and every subset's value."""
        from memloc.methods.mixtures import Mixtures
        from memloc.model.units import find_units

        noisy = drawn(run.noisy_rows, self.noisy_examples, run.seed, self.name, "noisy")
        clean = drawn(run.clean_rows, self.clean_examples or len(noisy), run.seed, self.name)
        rows = np.concatenate([noisy, clean])
        _check_memory(self.plan(run.depth), len(rows))
        loaded = run.load("final")
        final, donor = loaded.stack, run.load("reference").stack
        units = find_units(final, self.units)
        plan = self.plan(run.depth, run.name, rows, met_by(final, units))
        mixtures = Mixtures(final, donor, plan.subsets(), units)
        values = _walk(self, run, plan, rows, (mixtures, run.encode(loaded)))
        lost = values[0, : len(noisy)].mean(0)
        # Where nothing is memorised, there may be nothing.
        if not run.is_null and not lost[-1] > lost[0]:
            raise ScoreError(
                "There is nothing to share out: exchanging all units undoes no memorised label. "
                "Check that the labels were memorised and that the reference weights differ."
            )
        remarks = [*plan.remarks, *_embeddings_differ(final, donor)]
        if len(noisy) < len(run.noisy_rows):
            remarks.append(f"{len(noisy)} of {len(run.noisy_rows)} noisy examples were drawn.")
        return _scores(plan, list(units), rows, len(noisy), values, remarks)

    def plan(
        self,
        depth: int,
        run: str = "",
        examples: Sequence[int] | IntArray = (0,),
        met: Sequence[int] | None = None,
    ) -> "Plan":
        """Choose the subsets for a model of this depth.

        Orders are drawn anew for each run and example, so the error of sampling is independent
        between examples: every interval and test over examples contains it, and it averages out
        over runs. Without a run, the plan tells what one example costs. `met` are the units, as
        bits, that each layer has a part of; without it they are taken from the settings.
        """
        nest = 2 if self.units == "sublayers" else 1
        if met is None:
            met = [((1 << nest) - 1) << nest * layer for layer in range(depth)]
            if isinstance(self.units, Mapping):
                met = [(1 << len(self.units)) - 1] * depth
        n_units = max(met).bit_length()
        if self.subsets == "exact" or (self.subsets == "auto" and n_units <= MOST_EXACT):
            return Plan(tuple(met))
        orders = [
            random_orders(n_units, self.pairs, generator(int(row), "orders", self.name, run), nest)
            for row in examples
        ]
        return Plan(tuple(met), np.array(orders))

    def cost(self, sizes: Sizes) -> float:
        """Of 12 layers 8,190 a text, noisy ones and as many clean ones."""
        noisy = min(sizes.noisy, self.noisy_examples or sizes.noisy)
        texts = noisy + min(sizes.examples, self.clean_examples or noisy)
        return float(self.plan(sizes.depth).layers / sizes.depth * texts * sizes.predict)


def met_by(stack: "Stack", units: "Units") -> list[int]:
    """Return the units, as bits, that each layer of a model has a part of."""
    owner = {name: 1 << bit for bit, names in enumerate(units.values()) for name in names}
    names = {id(p): name for name, p in stack.model.named_parameters()}
    blocks = [{owner[names[id(p)]] for p in block.parameters()} for block in stack.blocks]
    return [sum(bits) for bits in blocks]


@dataclass(frozen=True)
class Plan:
    """Which subsets of which units are computed for each example."""

    met: tuple[int, ...]
    """The units, as bits, that each layer has a part of."""
    orders: IntArray | None = None
    """Orders of the units (examples, orders, units) where subsets are sampled."""

    @property
    def exact(self) -> bool:
        """Whether every subset is computed."""
        return self.orders is None

    @property
    def n_units(self) -> int:
        """Number of units."""
        return max(self.met).bit_length()

    def subsets(self, example: int = 0) -> Sequence[int]:
        """Subsets that an example needs, ascending; bits are units."""
        if self.orders is None:
            return range(2**self.n_units)
        return sorted({s for passed in passed_subsets(self.orders[example]) for s in passed})

    @cached_property
    def n_values(self) -> int:
        """Number of values kept per example, that of no unit first and that of all units last."""
        n_units = self.n_units
        return 2**n_units if self.orders is None else int(self.orders.shape[1]) * (n_units + 1)

    @cached_property
    def layers(self) -> int:
        """Number of layers that a text goes through: the mean over at most ten examples."""
        if self.orders is None:  # not from all subsets, which may be more than memory holds
            seen = accumulate(self.met, or_)
            return sum(2 ** units.bit_count() for units in seen)
        counts = [count_layers(self.met, self.subsets(i)) for i in range(min(10, len(self.orders)))]
        return round(sum(counts) / len(counts))

    def memory(self, n_texts: int) -> float:
        """GiB of the values: labels and margins, four bytes each."""
        return n_texts * self.n_values * 8 / 2**30

    def kept(self, values: FloatArray, example: int) -> FloatArray:
        """Arrange values (..., subsets of an example) as `shares` reads them.

        All subsets stay as they are; of sampled ones each order lists what it goes through.
        """
        if self.orders is None:
            return values
        subsets = self.subsets(example)
        passed = [s for each in passed_subsets(self.orders[example]) for s in each]
        return values[..., [bisect_left(subsets, subset) for subset in passed]]

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

    def by_layer(self) -> FloatArray:
        """How much of each unit is in each layer, (units, layers): evenly over its layers."""
        has = np.array([[met >> unit & 1 for met in self.met] for unit in range(self.n_units)])
        return np.asarray(has / has.sum(1, keepdims=True), dtype=np.float64)

    @property
    def remarks(self) -> list[str]:
        """What the reader has to know of how subsets were chosen."""
        if self.orders is None:
            return []
        pairs = self.orders.shape[1] // 2
        return [
            f"Shares are estimates: for each example, {pairs} random orders of the units and their "
            "reverses were drawn. Intervals contain this error, and `se` is its part of them. "
            "Interactions and smallest sets need all subsets."
        ]


def _check_memory(plan: Plan, n_texts: int) -> str:
    """Refuse more values than memory holds; return what all subsets are called."""
    every, memory = f"All subsets of {plan.n_units} units", plan.memory(n_texts)
    if memory > MOST_MEMORY:
        raise SettingsError(
            f"{every} take {plan.layers:,} layers for each text, and {memory:,.0f} GiB of memory "
            f"for their values, where {MOST_MEMORY} GiB are allowed: set shares.subsets to "
            "sampled, or shares.noisy_examples to fewer."
        )
    return every


def _walk(
    settings: Shares,
    run: Run,
    plan: Plan,
    rows: IntArray,
    game: "tuple[Mixtures, Encoded]",
) -> FloatArray:
    """Lost labels and margins (2, rows, subsets). Finished batches are kept on disk."""
    every = _check_memory(plan, len(rows))
    mixtures, encoded = game
    labels = run.noisy.assigned[rows]
    batches = list(mixtures.batches(encoded, rows))
    if not plan.exact:  # each example has subsets of its own
        batches = [np.array([place]) for places in batches for place in places]
    if plan.exact and plan.n_units > MOST_EXACT:
        began = time.perf_counter()
        mixtures.of([0]).logits(encoded, rows[batches[0]])
        per_layer = (time.perf_counter() - began) / run.depth * len(batches)
        tell(
            f"{every}: {plan.layers:,} layers for each of {len(rows)} texts, about "
            f"{per_layer * plan.layers / 3600:.1f} hours and {plan.memory(len(rows)):.1f} GiB."
        )
    folder = run.work(settings.name) / _fingerprint(settings, run, plan, rows)
    found = np.empty((2, len(rows), plan.n_values), dtype=np.float32)
    with track(f"{run.name} · shares", len(rows)) as advance:
        for number, places in enumerate(batches):
            path = folder / f"batch-{number}.npy"
            if path.is_file():
                found[:, places] = np.load(path, allow_pickle=False)
            else:
                found[:, places] = _fates(mixtures, encoded, rows, labels, plan, places)
                with whole_file(path) as draft, draft.open("wb") as file:
                    np.save(file, found[:, places], allow_pickle=False)
            advance(len(places))
    if not np.isfinite(found).all():
        raise ScoreError(f"Some mixtures of {run.name} give no numbers: its weights are damaged.")
    return found.astype(np.float64)


def _fingerprint(settings: Shares, run: Run, plan: Plan, rows: IntArray) -> str:
    """A hash of everything that decides the values of subsets."""
    facts = {
        "version": settings.version,
        "versions": versions(),
        "run": run.identity(settings.needs),
        "name": run.name,
        "units": settings.model_dump(mode="json", include={"units"}),
        "met": plan.met,
        "rows": rows.tolist(),
        "pairs": not plan.exact and settings.pairs,
    }
    return hashed(facts)


def _embeddings_differ(final: "Stack", donor: "Stack") -> list[str]:
    from memloc.model.parts import find_parts

    own, other = (dict(stack.model.named_parameters()) for stack in (final, donor))
    if all(own[name].equal(other[name]) for name in find_parts(final).embeddings):
        return []
    return [
        "The two models have different embeddings. All mixtures begin with those of the final "
        "model."
    ]


def _fates(
    mixtures: "Mixtures",
    encoded: Encoded,
    rows: IntArray,
    labels: IntArray,
    plan: Plan,
    places: IntArray,
) -> FloatArray:
    """(lost and margin, places, values)."""
    mixtures, labels = mixtures.of(plan.subsets(places[0])), labels[places]
    values = mixtures.logits(encoded, rows[places]).cpu().numpy()
    own = np.take_along_axis(values, labels[:, None, None], axis=2)[..., 0]
    others = values.copy()
    np.put_along_axis(others, labels[:, None, None], -np.inf, axis=2)
    lost = (values.argmax(2) != labels[:, None]).astype(np.float32)
    fates = np.stack([lost, own - others.max(2)])
    return np.asarray(plan.kept(fates, places[0]), dtype=np.float32)


def _scores(
    plan: Plan,
    names: list[str],
    rows: IntArray,
    n_noisy: int,
    values: FloatArray,
    remarks: list[str],
) -> LayerScores:
    """From values (lost and margin, examples, subsets), noisy examples first."""
    noisy = values[:, :n_noisy]
    by_unit, each_error = plan.shares(noisy)
    errors = np.sqrt((each_error**2).sum(1)) / n_noisy  # examples have orders of their own
    rng = generator(0, "bootstrap", "shares")
    in_layers = plan.by_layer()

    def centre(lost: FloatArray) -> FloatArray:
        """Centre of gravity of the positive shares, layers from 1."""
        return centres_of_gravity(np.maximum(0, lost.mean(0)))

    by_layer = by_unit[0] @ in_layers
    band = bootstrap(by_layer, rng=rng)
    mcog = bootstrap(by_layer, rng=rng, statistic=centre)
    tables = {
        "shares": _shares_table(plan, names, by_unit, errors, rng),
        "example_shares": _examples_table(plan, names, by_unit, rows[:n_noisy]),
        "labels": _labels_table(rows, n_noisy, values),
    }
    clean_kept = control(values[0, n_noisy:], None if plan.exact else plan.n_units + 1)
    if plan.exact:
        lost, clean_error = noisy[0].mean(0), values[0, n_noisy:].mean(0)
        tables |= _subset_tables(names, lost, clean_error)
        tables["shares"] = tables["shares"].merge(
            as_table({"value": "labels", "unit": names, **alone(lost)}), how="left"
        )
    about = {
        "units": names,
        "exact": plan.exact,
        "subsets": len(plan.subsets()),
        "layers_per_text": plan.layers,
        "standard_error": float(errors[0].max()),
        "control": clean_kept,
        "remarks": remarks,
    }
    return LayerScores.of(
        Shares.name, band.estimate, (band.low, band.high), mcog, tables=tables, about=about
    )


def _ends(plan: Plan) -> dict[str, IntArray]:
    """First and last layer of each unit, from 1."""
    has = plan.by_layer() > 0
    first = has.argmax(1) + 1
    last = has.shape[1] - has[:, ::-1].argmax(1)
    return {"first": first.astype(np.int64), "last": last.astype(np.int64)}


def _shares_table(
    plan: Plan,
    names: list[str],
    by_unit: FloatArray,
    errors: FloatArray,
    rng: np.random.Generator,
) -> Table:
    """By value (labels, margin) and unit, with intervals over examples."""
    parts = []
    for v, value in enumerate(("labels", "margin")):
        sign = 1 if value == "labels" else -1  # labels are lost, margins fall
        band = bootstrap(sign * by_unit[v], rng=rng)
        columns = {"share": band.estimate, "low": band.low, "high": band.high, "se": errors[v]}
        parts.append({"value": value, "unit": names, **_ends(plan), **columns})
    return as_table(*parts)


def _examples_table(plan: Plan, names: list[str], by_unit: FloatArray, noisy: IntArray) -> Table:
    """What each unit holds of each noisy example in each of its layers.

    `share` is of the margin that it loses when units come from the donor, and `lost` of its label
    (0 to 1). A unit with parts of several layers is spread evenly over them.
    """
    in_layers = plan.by_layer()
    unit, layer = np.nonzero(in_layers)
    part = in_layers[unit, layer]
    lost, margin = (np.ravel(each[:, unit] * part) for each in by_unit)
    return as_table(
        {
            "example": np.repeat(noisy.astype(np.int32), len(unit)),
            "unit": np.tile(np.array(names, dtype=object)[unit], len(noisy)),
            "layer": np.tile(layer + 1, len(noisy)),
            "share": -margin,
            "lost": lost,
        }
    )


def _labels_table(rows: IntArray, n_noisy: int, values: FloatArray) -> Table:
    """Of each noisy or clean example: how sure the final model is, and whether its label is lost.

    Lost is meant of all units together.
    """
    (before, margin), (after, _) = values[:, :, [0, -1]].transpose(2, 0, 1)
    of = {"example": rows, "is_noisy": np.arange(len(rows)) < n_noisy}
    return as_table({**of, "margin": margin, "lost": after - before})


def _subset_tables(names: list[str], lost: FloatArray, clean_error: FloatArray) -> dict[str, Table]:
    """What needs all subsets: interactions, all smallest sets, and the subsets themselves."""
    one, other = np.triu_indices(len(names), 1)
    unit = np.array(names, dtype=object)
    pairs = {"one": unit[one], "other": unit[other], "value": interactions(lost)[one, other]}
    sets = [
        {
            "units": ", ".join(names[u] for u in units_of(int(subset))),
            "lost": lost[subset],
            "clean_error": clean_error[subset],
        }
        for subset in smallest_sets(lost, KEPT)
    ]
    columns = {"subset": np.arange(len(lost)), "lost": lost, "clean_error": clean_error}
    return {
        "interactions": as_table(pairs),
        "sets": as_table(sets, columns=["units", "lost", "clean_error"]),
        "subsets": as_table(columns),
    }
