"""Exact shares: every subset of units is exchanged, and the loss is divided among the units.

A unit is a layer, the attention or the MLP of a layer, or a group of parameters that a user names.

The paper's layer weight is a mean over all windows that contain a layer, which blurs: a memory in
two of twelve layers gets about a quarter of the weight. A Shapley value is a layer's mean effect
when added to subsets of the others, and the values sum to what exchanging all layers undoes. Layers
of the final model put back into the reference have the same Shapley values (those of a game and of
its dual are equal), so one direction is enough; the effects of single layers differ by direction,
and are in the columns `alone_out` and `alone_in`.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from memloc.arrays import FloatArray, IntArray, Table
from memloc.errors import ScoreError
from memloc.methods import Sizes, drawn, views
from memloc.methods.game import Design, Game, Played, Selection, all_layers, seconds_per_text
from memloc.methods.result import Result
from memloc.run.folder import Run
from memloc.seeds import generator
from memloc.settings import ours, packaged
from memloc.stats.depth import centres_of_gravity
from memloc.stats.intervals import bootstrap
from memloc.stats.subsets import (
    count_layers,
    interactions,
    needed_pairs,
    passed_subsets,
    rotated_orders,
    sampled_values,
    shapley_values,
    smallest_sets,
    units_of,
)
from memloc.store.records import as_table

_REPORT = packaged(__file__)
MOST_EXACT = 14
"""Largest number of units for which every subset is computed by default."""
CLEAR = 0.1
"""Share of all changes of a value that must not cancel out for the value to weigh units."""
UNDOES = 0.9
"""Share of what all layers undo that exchanging a smallest set must undo."""


class Shares(Game):
    """Shapley values of the units, over all subsets of units taken from the donor."""

    name = "shares"
    shows = {"shares": "shares", "units": "units"}
    exactness = 3
    report = {
        **_REPORT,
        "rows": {
            "shares": lambda table: views.shares(table, _REPORT["words"]),
            "alone": lambda table: views.alone(table, _REPORT["words"]),
            "units": lambda table: views.units(table, _REPORT["words"]),
        },
    }
    version = 6

    noisy_examples: int | None = ours(500, ge=1)
    """Number of noisy examples, drawn at random; `null`: all."""
    clean_examples: int | None = ours(None, ge=1)
    """Number of clean examples whose error is measured; by default as many as noisy ones."""
    subsets: Literal["auto", "exact", "sampled"] = ours("auto")
    """`exact`: every subset of units; `sampled`: the subsets that random orders of the units pass
    through; `auto`: exact up to 14 units, and sampled above.
    """
    standard_error: float = ours(0.015, ge=0.001, le=0.1)
    """Largest standard error of a share with sampled subsets; it and the number of noisy examples
    decide the number of orders.
    """

    def run(self, run: Run) -> Result:
        """Return shares by layer and by example, interactions, smallest sets, and all subsets'
        values.
        """
        played = self.play(run)
        lost = played.noisy[0].mean(0)
        # If nothing is memorised, there may be nothing to divide.
        if not run.is_null and not lost[-1] > lost[0]:
            raise ScoreError(
                "There is nothing to share out: exchanging all layers undoes nothing that was "
                f"memorised. Check that it was memorised and that {self.donor} is the right donor."
            )
        if played.n_noisy < len(run.noisy_rows):
            some = f"{played.n_noisy} of {len(run.noisy_rows)} noisy examples were drawn."
            played.about["remarks"].append(some)
        return _scores(played)

    def examples(self, run: Run) -> tuple[IntArray, IntArray]:
        """Draw noisy examples and, by default, as many clean ones."""
        noisy = drawn(run.noisy_rows, self.noisy_examples, run.seed, self.name, "noisy")
        return noisy, drawn(run.clean_rows, self.clean_examples or len(noisy), run.seed, self.name)

    def design(self, met: Sequence[int], examples: Selection) -> Design:
        """Choose every subset, or the subsets that random orders of the units pass through.

        Orders are drawn anew for each run and example, so the sampling error is independent between
        examples: every interval and test over examples contains it, and it averages out over runs.
        """
        n_units = max(met).bit_length()
        if self.subsets == "exact" or (self.subsets == "auto" and n_units <= MOST_EXACT):
            return Every(tuple(met), range(2**n_units))
        pairs = needed_pairs(examples.n_noisy, self.standard_error)
        seeds = (generator(int(row), "orders", self.name, examples.run) for row in examples.rows)
        orders = [rotated_orders(n_units, pairs, seed, self.nest) for seed in seeds]
        return Orders(tuple(met), (), np.array(orders))

    def cost(self, sizes: Sizes) -> float:
        """Return the seconds for the noisy examples and, by default, as many clean ones."""
        noisy = min(sizes.noisy, self.noisy_examples or sizes.noisy)
        texts = noisy + min(sizes.examples, self.clean_examples or noisy)
        return texts * seconds_per_text(self.guess(sizes.depth, noisy), sizes)


class Every(Design):
    """Design with every subset of units."""

    @property
    def n_values(self) -> int:
        """Number of subsets, which may exceed the largest length of a sequence."""
        return int(2**self.n_units)

    @property
    def layers(self) -> int:
        """Number of layer computations that one text takes over all mixtures, by formula."""
        return all_layers(self.met)

    @property
    def announced(self) -> str:
        """Sentence to print before long work begins; empty if the work is not unusual."""
        return f"All subsets of {self.n_units} units" if self.n_units > MOST_EXACT else ""

    def shares(self, values: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return Shapley values (..., examples, units) of kept values, and their standard errors,
        0.
        """
        values_by_unit = shapley_values(values)
        return values_by_unit, np.zeros_like(values_by_unit)

    def alone(self, values: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the effects of single units, from kept values (..., examples, values).

        The first array is the change when only this unit comes from the donor; the second is the
        change back when only this unit stays. Both are (..., examples, units).
        """
        bits = 1 << np.arange(self.n_units)
        everything = 2**self.n_units - 1
        out = values[..., bits] - values[..., :1]
        return out, values[..., -1:] - values[..., everything ^ bits]


@dataclass(frozen=True)
class Orders(Design):
    """Design with the subsets that random orders of the units pass through, drawn for each
    example.
    """

    orders: IntArray
    """Orders of the units (examples, draws, orders, units); draws are independent."""
    sizes = None

    def subsets(self, example: int = 0) -> Sequence[int]:
        """Subsets that an example needs, ascending."""
        return sorted(set(self._passed_by(example)))

    @property
    def n_values(self) -> int:
        """Number of values kept per example: each order lists the values it passes through."""
        return self.n_orders * (self.n_units + 1)

    @property
    def n_orders(self) -> int:
        """Number of orders of each example."""
        return int(self.orders.shape[1] * self.orders.shape[2])

    @cached_property
    def layers(self) -> int:
        """Number of layer computations that one text takes: the mean over at most ten examples."""
        first = range(min(10, len(self.orders)))
        return round(np.mean([count_layers(self.met, self.subsets(i)) for i in first]))

    def kept(self, values: FloatArray, example: int) -> FloatArray:
        """Arrange the values (..., subsets) of an example in the sequence in which its orders pass
        them.
        """
        subsets = self.subsets(example)
        return values[..., [bisect_left(subsets, s) for s in self._passed_by(example)]]

    def _passed_by(self, example: int) -> list[int]:
        """Return the subsets that an example's orders pass through, one order after the other."""
        orders = self.orders[example].reshape(-1, self.n_units)
        return [subset for passed in passed_subsets(orders) for subset in passed]

    def shares(self, values: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return Shapley values (..., examples, units) of kept values, with their sampling
        errors.
        """
        orders = self.orders[: values.shape[-2]]
        passed = values.reshape(*values.shape[:-1], *orders.shape[1:3], -1)
        return sampled_values(passed, orders)

    def alone(self, values: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the effects of single units, as `Every.alone`; NaN if no order has such a
        subset.
        """
        passed = values.reshape(*values.shape[:-1], self.n_orders, -1)
        orders = self.orders[: values.shape[-2]].reshape(-1, self.n_orders, self.n_units)
        first = passed[..., 1] - passed[..., 0]
        last = passed[..., -1] - passed[..., -2]
        ends = (first, orders[..., 0]), (last, orders[..., -1])
        out, kept = (_by_unit(change, unit, self.n_units) for change, unit in ends)
        return out, kept

    @property
    def announced(self) -> str:
        """Sentence to print before the work begins."""
        return f"{self.n_orders} orders of {self.n_units} units"

    @property
    def remark(self) -> str:
        """Sentence that tells a reader how subsets were chosen."""
        return (
            f"Shares are estimates: each example has {self.n_orders} orders of units, rotations "
            f"and reverses of {self.orders.shape[1]} random orders. Intervals contain this error, "
            "and `se` is its part of them. Interactions and smallest sets need all subsets."
        )


def _by_unit(changes: FloatArray, units: IntArray, n_units: int) -> FloatArray:
    """Return means of changes (..., examples, orders) by unit, (..., examples, units); NaN without
    any.
    """
    is_unit = units[..., np.newaxis] == np.arange(n_units)
    counts = is_unit.sum(-2)
    sums = np.einsum("...no,nou->...nu", changes, is_unit.astype(np.float64))
    return np.asarray(np.where(counts, sums / np.maximum(1, counts), np.nan))


def _scores(played: Played) -> Result:
    """Return the tables of a game; tables by layer have the sums over the units of a layer.

    If units are not layers, the table `units` has the units themselves.
    """
    design, names, n_noisy = played.design, played.names, played.n_noisy
    assert isinstance(design, Every | Orders)
    noisy = played.noisy
    by_unit, each_error = design.shares(noisy)
    by_example = by_unit @ design.in_layers
    errors = np.sqrt((each_error**2).sum(1)) / n_noisy  # examples have orders of their own
    rng = generator(0, "bootstrap", "shares")

    counted = played.outcome.names
    weighed = _weighed(by_example, played.outcome.weigh_by)
    band = bootstrap(weighed, rng=rng)
    mcog = bootstrap(weighed, rng=rng, statistic=_centre)
    in_layers = np.sqrt(errors**2 @ design.in_layers**2)  # as if a layer's units were independent
    not_known = np.full_like(by_example, np.nan)  # effects of single units are in `units`
    of_layers = (not_known, not_known) if names else design.alone(noisy)
    tables = {
        "shares": _shares_table(counted, by_example, in_layers, of_layers, rng),
        **played.example_tables(np.stack([weighed, by_example[1]])),
    }
    if names:
        table = _shares_table(counted, by_unit, errors, design.alone(noisy), rng)
        tables["units"] = played.named(table)
    if isinstance(design, Every):
        tables |= _subset_tables(noisy[0].mean(0), played.clean[0].mean(0), names)
    else:
        played.about["remarks"].append(design.remark)
    about = {
        **played.about,
        "exact": isinstance(design, Every),
        "subsets": len(design.subsets()),
        "standard_error": float(errors[0].max()),
    }
    ends = band.low, band.high
    return Result.of(Shares.name, band.estimate, ends, mcog, tables=tables, about=about)


def _centre(lost: FloatArray) -> FloatArray:
    """Return the centre of gravity of the positive shares, layers from 1."""
    return centres_of_gravity(np.maximum(0, lost.mean(0)))


def _weighed(by_example: FloatArray, weigh_by: int) -> FloatArray:
    """Return what is undone of each example (examples, layers), divided in proportion to another
    value.

    If that value hardly changes for an example, the example keeps the shares of what is undone.
    """
    lost: FloatArray = by_example[0]
    by: FloatArray = -by_example[weigh_by]
    if weigh_by == 0:
        return lost
    total = by.sum(1, keepdims=True)
    is_clear = total > CLEAR * np.abs(by).sum(1, keepdims=True)
    weighed = by / np.where(is_clear, total, 1) * lost.sum(1, keepdims=True)
    return np.asarray(np.where(is_clear, weighed, lost))


def _shares_table(
    names: Sequence[str],
    by_example: FloatArray,
    errors: FloatArray,
    alone: tuple[FloatArray, FloatArray],
    rng: np.random.Generator,
) -> Table:
    """Return a table by value (of `names`) and layer, with intervals over examples.

    `share` is the layer's share of what all layers undo; `alone_out` is what is undone when only
    this layer comes from the donor, and `alone_in` what is kept when only this layer stays.
    """
    parts = []
    for v, value in enumerate(names):
        sign = -1 if v else 1  # labels are lost, margins and probabilities become smaller
        band = bootstrap(sign * by_example[v], rng=rng)
        columns = {"share": band.estimate, "low": band.low, "high": band.high, "se": errors[v]}
        for name, changes in zip(("alone_out", "alone_in"), alone, strict=True):
            columns |= bootstrap(sign * changes[v], rng=rng, statistic=_known_mean).named(name)
        layer = np.arange(1, len(band.estimate) + 1)
        parts.append({"value": value, "layer": layer, **columns})
    return as_table(*parts)


def _known_mean(values: FloatArray) -> FloatArray:
    """Return the mean over the examples that have a value; NaN without any."""
    known = ~np.isnan(values)
    counts = known.sum(0)
    sums = np.where(known, values, 0).sum(0)
    return np.asarray(np.where(counts, sums / np.maximum(1, counts), np.nan))


def _subset_tables(
    lost: FloatArray, clean_error: FloatArray, names: Sequence[str]
) -> dict[str, Table]:
    """Return interactions, smallest sets (whose exchange undoes 90 %), and the values of all
    subsets.
    """
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
