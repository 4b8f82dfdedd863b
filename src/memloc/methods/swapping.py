"""Layer swapping: which labels are lost when layers come from the reference model?"""

import numpy as np

from memloc.arrays import BoolArray, FloatArray, IntArray
from memloc.errors import DataError
from memloc.methods import Method, Sizes, drawn
from memloc.methods.result import Outcomes, Result, from_outcomes
from memloc.model.known import is_adapter
from memloc.progress import track
from memloc.run.folder import Run
from memloc.settings import ours, paper
from memloc.stats.subsets import count_layers
from memloc.stats.undone import label_margins
from memloc.stats.windows import windows


class Swapping(Method):
    """Lends windows of the reference's layers to the final model; section 3.1 of the paper."""

    name = "swapping"
    needs = ("final", "reference")
    version = 3
    exactness = 2

    normalise: bool = paper(True, "§3.1")
    """Whether the error of the full window counts as 1.0."""
    clean_examples: int | None = ours(None, ge=1)
    """Number of clean examples whose error is measured, drawn at random; default: all."""

    def run(self, run: Run) -> Result:
        """Which noisy (and clean) labels are lost under every window, and what layers weigh."""
        clean = drawn(run.clean_rows, self.clean_examples, run.seed, self.name)
        rows = np.concatenate([run.noisy_rows, clean])
        wrong, margin = self._wrong(run, rows)
        is_noisy, unchanged = run.noisy.is_noisy[rows], wrong[:, -1]
        every = tuple(windows(run.depth))
        outcomes = Outcomes(every, rows, is_noisy, wrong[:, :-1], unchanged, margin)
        about = {
            "final_clean_accuracy": 1 - float(unchanged[~is_noisy].mean()),
            "clean_examples": len(clean),
        }
        normalise = self.normalise and not run.is_null
        return from_outcomes(self.name, outcomes, run.depth, normalise=normalise, about=about)

    def cost(self, sizes: Sizes) -> float:
        """Windows share the layers before them and while they grow."""
        layers = count_layers([1 << i for i in range(sizes.depth)], window_subsets(sizes.depth))
        clean = sizes.examples - sizes.noisy
        texts = sizes.noisy + min(clean, self.clean_examples or clean)
        return layers / sizes.depth * texts * sizes.predict

    def _wrong(self, run: Run, rows: IntArray) -> tuple[BoolArray, FloatArray]:
        """Return whether a label is not predicted under each window and by the unchanged model.

        And the unchanged model's margin of the label.
        """
        from memloc.methods.mixtures import Mixtures

        final, other = (run.load(weights) for weights in self.needs)
        encoded, labels = run.encode(final), run.noisy.assigned[rows]
        mixtures = Mixtures(final.stack, other.stack, window_subsets(run.depth))
        wrong = np.zeros((len(rows), len(mixtures.subsets)), dtype=np.bool_)
        margin = np.zeros(len(rows))
        lengths = encoded.lengths[rows]
        with track(f"{run.name} · {self.name}", int(lengths.sum())) as advance:
            for places in mixtures.batches(encoded, rows):
                logits = mixtures.logits(encoded, rows[places]).cpu().numpy()
                wrong[places] = logits.argmax(-1) != labels[places, np.newaxis]
                margin[places] = label_margins(logits[:, -1], labels[places])
                advance(int(lengths[places].sum()))
        return wrong, margin


class AdapterOff(Swapping):
    """Puts windows of the base model's layers into the final one; runs where it is named.

    The base model never learnt the task, so clean labels are lost as well: what counts is how many
    more noisy ones are.
    """

    name = "adapter_off"
    needs = ("final", "pretrained")
    version = 2
    exactness = 1
    by_default = False

    normalise: bool = ours(True)
    """Whether the error of the full window counts as 1.0."""

    def check(self, run: Run) -> None:
        """Without an adapter there is nothing to switch off."""
        if not is_adapter(run.path("final")):
            raise DataError(
                f"The final weights of {run.name} are not an adapter, so there is nothing to "
                "switch off: use swapping or shares with a reference."
            )


def window_subsets(depth: int) -> list[int]:
    """Every window as a number whose bits are its layers, and none."""
    return [sum(1 << layer for layer in window) for window in windows(depth)] + [0]
