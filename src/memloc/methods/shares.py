"""Exact shares: every subset of units is exchanged, and the loss is shared out among the units.

A unit is a layer, the attention or the MLP of a layer, or a group of parameters that a user names.

The paper's layer weight is a mean over all windows that contain a layer, which blurs: a memory in
two of twelve layers gets about a quarter of the weight. A Shapley value asks of a layer what it
adds to every subset of the others, and the values sum to what exchanging all layers undoes. Layers
of the final model put back into the reference have the same Shapley values (those of a game and of
its dual are equal), so one direction is enough; what single layers do alone differs, and is in the
columns `alone_out` and `alone_in`.
"""

import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import or_
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from memloc.arrays import FloatArray, IntArray, Table
from memloc.data.encode import Encoded
from memloc.errors import ScoreError, SettingsError
from memloc.methods import Method, Sizes, drawn, views
from memloc.methods.result import Result
from memloc.progress import tell, track
from memloc.run.folder import Run
from memloc.seeds import generator
from memloc.settings import ours, packaged
from memloc.stats.depth import centres_of_gravity
from memloc.stats.intervals import bootstrap
from memloc.stats.subsets import (
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
from memloc.stats.undone import label_margins
from memloc.store import paths
from memloc.store.memo import ARRAYS, Maker, memo, unfinished_key
from memloc.store.records import as_table

if TYPE_CHECKING:
    from memloc.methods.mixtures import Mixtures
    from memloc.model.stack import Stack
    from memloc.model.units import Units

_REPORT = packaged(__file__)
MOST_EXACT = 14
"""Units up to which every subset is computed unless something else is asked for."""
MOST_MEMORY = 4
"""GiB that the values of all subsets may take."""
UNDOES = 0.9
"""Share of what all layers undo that the exchange of a smallest set must undo."""


class Shares(Method):
    """Shapley values of the layers over all subsets of layers from the reference model."""

    name = "shares"
    needs = ("final", "reference")
    shows = {"shares": "shares"}
    exactness = 3
    report = {
        **_REPORT,
        "rows": {
            "shares": lambda table: views.shares(table, _REPORT["words"]),
            "alone": lambda table: views.alone(table, _REPORT["words"]),
        },
    }
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
    through. `auto`: exact up to 14 units, and sampled above."""
    pairs: int = ours(16, ge=2)
    """Random orders for each example, each with its reverse, where subsets are sampled."""

    def run(self, run: Run) -> Result:
        """Shares by layer and by example, interactions, smallest sets, and every subset's value."""
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
                "There is nothing to share out: exchanging all layers undoes no memorised label. "
                "Check that the labels were memorised and that the reference weights differ."
            )
        remarks = [*plan.remarks, *_embeddings_differ(final, donor)]
        if len(noisy) < len(run.noisy_rows):
            remarks.append(f"{len(noisy)} of {len(run.noisy_rows)} noisy examples were drawn.")
        names = [] if self.units == "layers" else list(units)
        return _scores(plan, rows, len(noisy), values, (names, remarks))

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
    return [sum({owner[names[id(p)]] for p in block.parameters()}) for block in stack.blocks]


@dataclass(frozen=True)
class Plan:
    """Which subsets of units are computed for each example."""

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
        if self.orders is None:
            return int(2**self.n_units)
        return int(self.orders.shape[1]) * (self.n_units + 1)

    @cached_property
    def layers(self) -> int:
        """Number of layers that a text goes through: the mean over at most ten examples."""
        if self.orders is None:  # not counted one by one: there may be very many
            return sum(2 ** seen.bit_count() for seen in accumulate(self.met, or_))
        first = range(min(10, len(self.orders)))
        return round(np.mean([count_layers(self.met, self.subsets(i)) for i in first]))

    @cached_property
    def in_layers(self) -> FloatArray:
        """How much of each unit is in each layer, (units, layers): evenly over its layers."""
        has = np.array([[met >> unit & 1 for met in self.met] for unit in range(self.n_units)])
        return np.asarray(has / has.sum(1, keepdims=True), dtype=np.float64)

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
        """Shapley values (..., examples, units) of kept values, and their standard errors.

        The errors are those of sampling alone; they are zero where all subsets were computed.
        """
        if self.orders is None:
            found = shapley_values(values)
            return found, np.zeros_like(found)
        orders = self.orders[: values.shape[-2]]
        passed = values.reshape(*values.shape[:-1], orders.shape[1], -1)
        return sampled_values(passed, orders)

    def alone(self, values: FloatArray) -> tuple[FloatArray, FloatArray]:
        """What single units do alone, from kept values (..., examples, values).

        First what changes when only this unit comes from the reference; then what changes back
        when only this unit stays. Both are (..., examples, units), NaN where an example's
        sampled orders have no such subset.
        """
        if self.orders is None:
            bits = 1 << np.arange(self.n_units)
            everything = 2**self.n_units - 1
            out = values[..., bits] - values[..., :1]
            return out, values[..., -1:] - values[..., everything ^ bits]
        orders = self.orders[: values.shape[-2]]
        passed = values.reshape(*values.shape[:-1], orders.shape[1], -1)
        first = passed[..., 1] - passed[..., 0]
        last = passed[..., -1] - passed[..., -2]
        ends = (first, orders[..., 0]), (last, orders[..., -1])
        out, kept = (_by_unit(change, unit, self.n_units) for change, unit in ends)
        return out, kept

    @property
    def remarks(self) -> list[str]:
        """What the reader has to know of how subsets were chosen."""
        if self.orders is None:
            return []
        pairs = self.orders.shape[1] // 2
        return [
            f"Shares are estimates: for each example, {pairs} random orders of the layers and "
            "their reverses were drawn. Intervals contain this error, and `se` is its part of "
            "them. Interactions and smallest sets need all subsets."
        ]


def _by_unit(changes: FloatArray, units: IntArray, n_units: int) -> FloatArray:
    """Mean of changes (..., examples, orders) of these units: (..., examples, units), or NaN."""
    is_unit = units[..., np.newaxis] == np.arange(n_units)
    counts = is_unit.sum(-2)
    sums = np.einsum("...no,nou->...nu", changes, is_unit.astype(np.float64))
    return np.asarray(np.where(counts, sums / np.maximum(1, counts), np.nan))


def _check_memory(plan: Plan, n_texts: int) -> None:
    """Refuse more values than memory may hold."""
    if (memory := plan.memory(n_texts)) > MOST_MEMORY:
        raise SettingsError(
            f"All subsets of {plan.n_units} units take {plan.layers:,} layers for each text, and "
            f"{memory:,.0f} GiB of memory for their values, where {MOST_MEMORY} GiB are allowed: "
            "set shares.subsets to sampled, or shares.noisy_examples to fewer."
        )


def _walk(
    settings: Shares, run: Run, plan: Plan, rows: IntArray, game: "tuple[Mixtures, Encoded]"
) -> FloatArray:
    """Lost labels and margins (2, rows, subsets). Finished batches are kept on disk."""
    _check_memory(plan, len(rows))
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
            f"All subsets of {plan.n_units} units: {plan.layers:,} layers for each of {len(rows)} "
            f"texts, about {per_layer * plan.layers / 3600:.1f} hours and "
            f"{plan.memory(len(rows)):.1f} GiB."
        )
    folder, decided_by = run.work(settings.name), _decided_by(settings, run, plan, rows)
    maker = Maker(settings.name, settings.version)
    found = np.empty((2, len(rows), plan.n_values), dtype=np.float32)
    with track(f"{run.name} · shares", len(rows)) as advance:
        for number, places in enumerate(batches):
            values = memo(
                paths.kept_batch(folder, number),
                unfinished_key(maker, {**decided_by, "places": places.tolist()}),
                lambda: {"values": _fates(mixtures, encoded, rows, labels, plan, places)},  # noqa: B023 - called at once
                ARRAYS,
            )
            found[:, places] = values["values"]
            advance(len(places))
    if not np.isfinite(found).all():
        raise ScoreError(f"Some mixtures of {run.name} give no numbers: its weights are damaged.")
    return found.astype(np.float64)


def _decided_by(settings: Shares, run: Run, plan: Plan, rows: IntArray) -> dict[str, Any]:
    """Return everything that decides the values of subsets."""
    return {
        "run": run.identity(settings.needs),
        "files": run.files(settings.needs),
        "name": run.name,
        "units": settings.model_dump(mode="json", include={"units"}),
        "met": plan.met,
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
        "model, so what is kept when one layer stays (alone_in) includes its embeddings."
    ]


def _fates(
    mixtures: "Mixtures",
    encoded: Encoded,
    rows: IntArray,
    labels: IntArray,
    plan: Plan,
    places: IntArray,
) -> FloatArray:
    """Whether labels are lost, and their margins: (2, places, values)."""
    mixtures, labels = mixtures.of(plan.subsets(places[0])), labels[places]
    logits = mixtures.logits(encoded, rows[places]).cpu().numpy()
    lost = (logits.argmax(2) != labels[:, None]).astype(np.float32)
    found = np.stack([lost, label_margins(logits, labels)])
    return plan.kept(found, places[0]).astype(np.float32)


def _scores(
    plan: Plan,
    rows: IntArray,
    n_noisy: int,
    values: FloatArray,
    said: tuple[list[str], list[str]],
) -> Result:
    """From values (lost and margin, examples, subsets), noisy examples first.

    `said` are the names of the units, empty if they are layers, and remarks. Tables by layer have
    the sums over the units of a layer; the table `units` has the units themselves.
    """
    names, remarks = said
    noisy, clean = values[:, :n_noisy], values[:, n_noisy:]
    by_unit, each_error = plan.shares(noisy)
    by_example = by_unit @ plan.in_layers
    errors = np.sqrt((each_error**2).sum(1)) / n_noisy  # examples have orders of their own
    rng = generator(0, "bootstrap", "shares")

    band = bootstrap(by_example[0], rng=rng)
    mcog = bootstrap(by_example[0], rng=rng, statistic=_centre)
    in_layers = np.sqrt(errors**2 @ plan.in_layers**2)  # as if a layer's units were independent
    not_known = np.full_like(by_example, np.nan)  # what a layer's units do alone is in `units`
    of_layers = (not_known, not_known) if names else plan.alone(noisy)
    tables = {
        "shares": _shares_table(by_example, in_layers, of_layers, rng),
        "example_shares": _examples_table(by_example, rows[:n_noisy]),
        "labels": _labels_table(rows, n_noisy, values),
    }
    if names:
        table = _shares_table(by_unit, errors, plan.alone(noisy), rng)
        tables["units"] = _named(plan, table, names)
    if plan.exact:
        tables |= _subset_tables(noisy[0].mean(0), clean[0].mean(0), names)
    about = {
        "exact": plan.exact,
        "subsets": len(plan.subsets()),
        "layers_per_text": plan.layers,
        "units": names or "layers",
        "standard_error": float(errors[0].max()),
        "control": control(clean[0], exact=plan.exact),
        "remarks": remarks,
    }
    ends = band.low, band.high
    return Result.of(Shares.name, band.estimate, ends, mcog, tables=tables, about=about)


def _centre(lost: FloatArray) -> FloatArray:
    """Return the centre of gravity of the positive shares, layers from 1."""
    return centres_of_gravity(np.maximum(0, lost.mean(0)))


def _shares_table(
    by_example: FloatArray,
    errors: FloatArray,
    alone: tuple[FloatArray, FloatArray],
    rng: np.random.Generator,
) -> Table:
    """By value (labels, margin) and layer, with intervals over examples.

    `share` is the layer's share of what all layers undo; `alone_out` is what is undone when only
    this layer comes from the reference, and `alone_in` what is kept when only this layer stays.
    """
    parts = []
    for v, value in enumerate(("labels", "margin")):
        sign = 1 if value == "labels" else -1  # labels are lost, margins become smaller
        band = bootstrap(sign * by_example[v], rng=rng)
        columns = {"share": band.estimate, "low": band.low, "high": band.high, "se": errors[v]}
        for name, changes in zip(("alone_out", "alone_in"), alone, strict=True):
            columns |= bootstrap(sign * changes[v], rng=rng, statistic=_known_mean).named(name)
        layer = np.arange(1, len(band.estimate) + 1)
        parts.append({"value": value, "layer": layer, **columns})
    return as_table(*parts)


def _named(plan: Plan, table: Table, names: Sequence[str]) -> Table:
    """Return a table of units, numbered as layers, with their names, first and last layers."""
    has = plan.in_layers > 0
    first = has.argmax(1) + 1
    last = has.shape[1] - has[:, ::-1].argmax(1)
    unit = table["layer"].to_numpy() - 1
    known = {"unit": np.array(names, dtype=object)[unit], "first": first[unit], "last": last[unit]}
    return table.drop(columns="layer").assign(**known)


def _known_mean(values: FloatArray) -> FloatArray:
    """Mean over the examples that have a value; NaN without any."""
    known = ~np.isnan(values)
    counts = known.sum(0)
    sums = np.where(known, values, 0).sum(0)
    return np.asarray(np.where(counts, sums / np.maximum(1, counts), np.nan))


def _examples_table(found: FloatArray, noisy: IntArray) -> Table:
    """What each layer holds of each noisy example: `share` of its margin, `lost` of its label."""
    depth = found.shape[-1]
    example = np.repeat(noisy.astype(np.int32), depth)
    layer = np.tile(np.arange(1, depth + 1), len(noisy))
    lost, margin = (each.ravel() for each in found)
    return as_table({"example": example, "layer": layer, "share": -margin, "lost": lost})


def _labels_table(rows: IntArray, n_noisy: int, values: FloatArray) -> Table:
    """Margin of the final model, and whether exchanging all layers loses the label, by example."""
    (before, margin), (after, _) = values[:, :, [0, -1]].transpose(2, 0, 1)
    of = {"example": rows, "is_noisy": np.arange(len(rows)) < n_noisy}
    return as_table({**of, "margin": margin, "lost": after - before})


def _subset_tables(
    lost: FloatArray, clean_error: FloatArray, names: Sequence[str]
) -> dict[str, Table]:
    """Interactions, smallest sets (whose exchange undoes 90 %), and the values of all subsets."""
    n_units = len(lost).bit_length() - 1
    one, other = np.triu_indices(n_units, 1)
    unit = np.array(names, dtype=object) if names else np.arange(1, n_units + 1)
    pairs = {"one": unit[one], "other": unit[other], "value": interactions(lost)[one, other]}
    sets = [
        {
            "layers": ", ".join(str(unit[u]) for u in units_of(int(subset))),
            "lost": lost[subset],
            "clean_error": clean_error[subset],
        }
        for subset in smallest_sets(lost, UNDOES)
    ]
    columns = {"subset": np.arange(len(lost)), "lost": lost, "clean_error": clean_error}
    return {
        "interactions": as_table(pairs),
        "sets": as_table(sets, columns=["layers", "lost", "clean_error"]),
        "subsets": as_table(columns),
    }
