"""Layer swapping: which labels are lost when layers come from the reference model?"""

from typing import TYPE_CHECKING

import numpy as np

from memloc.methods.base import Method, Sizes
from memloc.methods.result import LayerScores, Outcomes, from_outcomes
from memloc.progress import track
from memloc.records import BoolArray, IntArray
from memloc.seeds import generator
from memloc.settings import ours, paper

if TYPE_CHECKING:
    from memloc.data.encode import Encoded
    from memloc.methods.sweep import Sweep
    from memloc.run import Run


class Swapping(Method):
    """Lends windows of the reference's layers to the final model; section 3.1 of the paper."""

    name = "swapping"
    needs = ("final", "reference")

    normalise: bool = paper(True, "§3.1")
    """Whether the error of the full window counts as 1.0."""
    clean_examples: int | None = ours(None, ge=1)
    """Number of clean examples whose error is measured, drawn at random; default: all."""

    def run(self, run: "Run") -> LayerScores:
        """Which noisy (and clean) labels are lost under every window, and what layers weigh."""
        from memloc.methods.sweep import Sweep
        from memloc.models.check import check_pair

        final, reference = run.load("final"), run.load("reference")
        check_pair(final, reference, "reference")
        clean = _sample(run.clean_rows, self.clean_examples, run.seed)
        sweep = Sweep(final.stack, reference.stack)
        rows, n_noisy = np.concatenate([run.noisy_rows, clean]), len(run.noisy_rows)
        wrong, unchanged = _wrong(sweep, run, run.encode(final), rows)
        outcomes = Outcomes(
            tuple(sweep.windows), run.noisy_rows, wrong[:n_noisy], clean, wrong[n_noisy:]
        )
        about = {
            "final_clean_accuracy": 1 - float(unchanged[n_noisy:].mean()),
            "clean_examples": len(clean),
            "memory_mb": sweep.used / 1e6,
        }
        normalise = self.normalise and not run.is_null
        return from_outcomes(self.name, outcomes, run.depth, normalise=normalise, about=about)

    def cost(self, sizes: Sizes) -> float:
        """One sweep: windows share the layers before them and while they grow."""
        depth = sizes.depth
        blocks = depth + depth * (depth + 1) / 2 + (depth - 1) * depth * (depth + 1) / 6
        return blocks / depth * sizes.examples * sizes.predict


def _sample(rows: IntArray, n: int | None, seed: int) -> IntArray:
    if n is None or n >= len(rows):
        return rows
    return np.sort(generator(seed, "swapping", "clean").choice(rows, n, replace=False))


def _wrong(
    sweep: "Sweep", run: "Run", encoded: "Encoded", rows: IntArray
) -> tuple[BoolArray, BoolArray]:
    """Whether an example's label is not predicted: (rows, windows), and by the unchanged model."""
    wrong = np.zeros((len(rows), len(sweep.windows) + 1), dtype=np.bool_)
    labels, lengths = run.noisy.assigned[rows], encoded.lengths[rows]
    with track(f"{run.name} · swapping", int(lengths.sum())) as advance:
        for places, logits in sweep.logits(encoded, rows):
            predicted = logits.argmax(-1).cpu().numpy()
            wrong[places] = predicted != labels[places, np.newaxis]
            advance(int(lengths[places].sum()))
    return wrong[:, :-1], wrong[:, -1]
