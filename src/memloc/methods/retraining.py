"""Layer retraining: which labels are lost when layers are trained again on clean examples?

For a language model: which memorised texts are lost when layers are trained on ordinary texts.
"""

import numpy as np

from memloc.arrays import FloatArray, IntArray
from memloc.methods import Method, Sizes
from memloc.methods.result import Outcomes, Result, from_outcomes
from memloc.progress import track
from memloc.run.folder import Run
from memloc.settings import ours, paper, published
from memloc.stats.undone import label_margins
from memloc.stats.windows import windows


class Retraining(Method):
    """Resets windows of the final model's layers and trains them on clean examples; section 3.1."""

    name = "retraining"
    labels_only = ""
    exactness = 1
    needs = ("final", "pretrained")
    version = 4

    learning_rate: float = published(3e-5, gt=0)
    """Peak learning rate of a schedule with the shape of fine-tuning's."""
    batch_size: int = published(8, ge=1)
    """Examples per update."""
    epochs: int = paper(5, "§3.1", ge=1)
    """Passes over the clean examples."""
    seed: int = published(42, ge=0)
    """Seed of the order of the data."""
    frozen_dropout: bool = ours(False)
    """Run the frozen blocks with dropout."""
    trains_pooler: bool = ours(True)
    """Train the pooler with the window, as head and final norm are."""
    normalise: bool = paper(True, "§3.1")
    """Divide errors by that of the full window, so that it counts as 1.0."""
    widths: tuple[int, ...] | None = ours(None)
    """Widths of the windows to retrain, in addition to the full window needed to normalise; all by
    default.
    """

    def run(self, run: Run) -> Result:
        """Return which noisy (and held-out clean) labels are lost after retraining each window."""
        from memloc.methods.retrainer import missed, prepared, window_errors

        setup = prepared(run, self)
        before = missed(setup)
        every = self.windows(run.depth)
        with track(f"{run.name} · retraining", len(every) * setup.updates) as advance:
            errors = window_errors(setup, every, advance)
        lost = [np.concatenate([errors[w].noisy_wrong, errors[w].clean_wrong]) for w in every]
        rows = setup.looked_at
        is_noisy = run.noisy.is_noisy[rows]
        margin = _margins(run, rows)
        outcomes = Outcomes(tuple(every), rows, is_noisy, np.stack(lost, axis=1), before, margin)
        about = {"trained_on": len(setup.train)}
        normalise = self.normalise and not run.is_null
        return from_outcomes(self.name, outcomes, run.depth, normalise=normalise, about=about)

    def windows(self, depth: int) -> list[range]:
        """Return the windows that are retrained, narrow ones first."""
        wanted = {*(range(1, depth) if self.widths is None else self.widths), depth}
        return [window for window in windows(depth) if len(window) in wanted]

    def cost(self, sizes: Sizes) -> float:
        """Return the seconds: a window is trained from its first layer on, on average that share of
        all layers.
        """
        depth = sizes.depth
        learnt = self.epochs * (sizes.examples - 2 * sizes.noisy) * sizes.update
        whole = self.frozen_dropout or sizes.all_gradients
        share = 1.0 if whole else (2 * depth + 1) / (3 * depth)
        return len(self.windows(depth)) * (share * learnt + 2 * sizes.noisy * sizes.predict)


def _margins(run: Run, rows: IntArray) -> FloatArray:
    """Return the final model's margin of each example's label, or a text's log-probability."""
    from memloc.model.predict import continued, predict

    final = run.load("final")
    if run.task.is_texts:
        predictions = continued(final.stack, run.encode(final))
        means = predictions.log_probability.sum(1) / predictions.is_token.sum(1)
        return np.asarray(means[rows], dtype=np.float64)
    return label_margins(predict(final.stack, run.encode(final))[rows], run.noisy.assigned[rows])
