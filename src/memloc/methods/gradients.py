"""Forgetting gradients: where would a model change most to unlearn its noisy labels?

A memorised text has the gradient of its continuation. A language model has no new head that could
be trained alone, so its gradients are relative to those of the pre-trained weights.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import numpy as np

from memloc.arrays import FloatArray, IntArray, Table
from memloc.errors import ScoreError
from memloc.methods import Method, Sizes, views
from memloc.methods.result import Result
from memloc.model.device import tokens_per_batch
from memloc.progress import track
from memloc.run.folder import Run
from memloc.seeds import generator
from memloc.settings import ours, packaged, paper
from memloc.stats.depth import LEVEL, centre_of_gravity, centres_of_gravity, relative_to_frozen
from memloc.stats.intervals import Interval
from memloc.store.records import as_table

if TYPE_CHECKING:
    from memloc.model.load import Classifier
    from memloc.model.shape import Shape
    from memloc.model.stack import Stack

_REPORT = packaged(__file__)
MEMORY = 2**30
"""Bytes for the groups' gradients; if fewer groups fit, intervals are wider."""

Norms = dict[str, FloatArray]
"""Norms of each block's mean gradient, (layers,), by name, such as `L1 noisy`."""
NoisyAndClean = tuple[IntArray, IntArray]
"""Rows of the noisy examples of a group, and of its clean ones."""
MEAN = {True: "difference", False: "noisy"}
"""Name of the mean gradient that weighs layers, by whether the clean one is subtracted."""


class Gradients(Method):
    """Norms of each block's mean gradient, noisy minus clean, relative to those of θ_F."""

    name = "gradients"
    labels_only = ""
    needs = ("memorised", "frozen")
    shows = {"gradients": "gradients"}
    report = {
        **_REPORT,
        "rows": {"gradient-steps": lambda table: views.gradient_steps(table, _REPORT["steps"])},
        "derives": {"post_processing": views.post_processing},
    }

    objective: Literal["loss", "logit"] = paper("loss", "§3.1")
    """Value that is differentiated: the negative loss, or the raw logit of the label or tokens."""
    norm: Literal["L1", "L2"] = paper("L1", "appendix E")
    """Norm of a block's gradient, over all of its parameters."""
    subtract_clean: bool = paper(True, "appendix E")
    """Subtract the mean gradient of an equal number of clean examples first."""
    divide_frozen: bool = paper(True, "appendix E")
    """Divide the norm by that of the frozen model, θ_F."""
    interval_groups: int = ours(8, ge=0)
    """Number of groups of examples left out in turn for the intervals; 0: no intervals."""

    def run(self, run: Run) -> Result:
        """Return layer weights that sum to 1, with intervals over examples."""
        from memloc.methods.forgetting import LabelledTexts, measure

        loaded = self._load(run)
        groups, note = self.groups(run, loaded[""].stack)
        data = LabelledTexts(run.encode(loaded[""]), run.noisy.assigned, self)
        norms: Norms = {}
        left_out: Norms = {}
        total = len(loaded) * sum(len(rows) for group in groups for rows in group)
        with track(f"{run.name} · gradients", total) as advance:
            for of, model in loaded.items():
                measured, left_out[of] = measure(model.stack, data, groups, advance)
                norms |= {name.replace(" ", f" {of}", 1): n for name, n in measured.items()}
        return self._scores(norms, left_out, note)

    @property
    def weighed(self) -> str:
        """Name of the mean gradient whose norm weighs a layer."""
        return MEAN[self.subtract_clean]

    def _load(self, run: Run) -> "dict[str, Classifier]":
        """Load the memorised weights, under "", and if needed those to divide by, under "frozen
        ".
        """
        loaded = {"": run.load("memorised")}
        if self.divide_frozen:
            loaded["frozen "] = run.load("frozen")
        return loaded

    def groups(
        self, run: Run, stack: "Stack", memory: int = MEMORY
    ) -> tuple[list[NoisyAndClean], str]:
        """Return random groups of noisy and as many clean examples, and a note on the intervals."""
        noisy, clean = run.noisy_rows, run.clean_rows
        if len(noisy) == 0 or len(clean) == 0:
            raise ScoreError(
                f"{run.name} has {len(noisy)} noisy and {len(clean)} clean examples; gradients "
                "compare the two."
            )
        rng = generator(run.seed, "gradients clean")
        clean = rng.choice(clean, min(len(noisy), len(clean)), replace=False)
        noisy, asked = rng.permutation(noisy), self.interval_groups
        size = 8 * sum(p.numel() for block in stack.blocks for p in block.parameters())
        fitting = min(asked, len(noisy), len(clean), memory // size)
        if fitting < 2:
            why = f"two examples of each kind and {2 * size / 1e6:.0f} MB are needed"
            if asked < 2:
                why = f"gradients.interval_groups is {asked}"
            return [(noisy, clean)], f"none: {why}"
        cut = np.array_split(noisy, fitting), np.array_split(clean, fitting)
        return list(zip(*cut, strict=True)), f"jackknife over {fitting} groups of examples"

    def _scores(self, norms: Norms, left_out: Norms, note: str) -> Result:
        weights = variant(norms, self.norm, self.subtract_clean, self.divide_frozen)
        without = left_out[""]
        if len(without):
            frozen = left_out["frozen "] if self.divide_frozen else None
            without = post_processed(without, frozen)
        low, high = jackknife(weights, without)
        mcog = centre_of_gravity(weights)
        ends = jackknife(np.array(mcog), centres_of_gravity(without))
        first, last = (float(np.clip(end, 1, len(weights))) for end in ends)
        return Result.of(
            self.name,
            weights,
            (np.clip(low, 0, None), high),
            Interval(mcog, first, last),
            tables={"gradients": norms_table(norms)},
            about={"intervals": note},
        )

    def memory(self, shape: "Shape", training: float) -> float:  # noqa: ARG002
        """Return the bytes of two models, of the groups' gradients with their sums, and of a batch.

        Args:
            shape: Size of the model.
            training: Bytes of a training, which is not needed.
        """
        blocks = shape.block_bytes
        groups = max(1, min(self.interval_groups, MEMORY // int(2 * blocks)))
        # Of each group a noisy and a clean gradient, and as many of all groups, of all but one,
        # and of the batch.
        gradients = 2 * blocks * (groups + 2) + blocks
        return 2 * shape.bytes + gradients + shape.states(tokens_per_batch(shape.width))

    def cost(self, sizes: Sizes) -> float:
        """Return the seconds for two models on the noisy examples and as many clean ones."""
        return 4 * sizes.noisy * sizes.update


def norms_table(norms: Norms) -> Table:
    """Return one row per layer and kind; `frozen noisy` is θ_F's gradient of noisy examples."""
    parts = []
    for name, values in norms.items():
        norm, _, kind = name.partition(" ")
        layer = np.arange(1, len(values) + 1)
        parts.append({"kind": kind, "norm": norm, "layer": layer, "value": values})
    return as_table(*parts)


def variant(
    details: Mapping[str, FloatArray], norm: str, subtract: bool, divide: bool
) -> FloatArray:
    """Return layer weights computed with some steps of the post-processing.

    Args:
        details: Norms of mean gradients by kind.
        norm: L1 or L2.
        subtract: Whether clean gradients are subtracted.
        divide: Whether norms are divided by the frozen model's.
    """
    frozen = details[f"{norm} frozen {MEAN[subtract]}"] if divide else None
    return post_processed(details[f"{norm} {MEAN[subtract]}"], frozen)


def post_processed(norms: FloatArray, frozen: FloatArray | None) -> FloatArray:
    """Return norms (..., layers), divided by the frozen model's if given, scaled to sum 1."""
    try:
        weights = norms if frozen is None else relative_to_frozen(norms, frozen)
    except ScoreError as error:
        raise ScoreError(f"{error} Set gradients.divide_frozen to false.") from None
    total = weights.sum(axis=-1, keepdims=True)
    if not (np.isfinite(total) & (total > 0)).all():
        raise ScoreError(f"Layers cannot be weighed: their gradients sum to {total.min():g}.")
    return np.asarray(weights / total)


def jackknife(estimate: FloatArray, left_out: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the ends of the interval of `estimate` (...); `left_out` (G, ...) lacks one group
    each.

    SE² = (G - 1) / G · Σ (value without g - their mean)²; the interval is estimate ± t · SE, where
    t is Student's with G - 1 degrees of freedom, as groups are few. NaN without groups.
    """
    from scipy import stats

    n = len(left_out)
    if n < 2:
        return np.full_like(estimate, np.nan), np.full_like(estimate, np.nan)
    reach = stats.t.ppf((1 + LEVEL) / 2, n - 1) * np.sqrt((n - 1) * left_out.var(axis=0))
    return estimate - reach, estimate + reach
