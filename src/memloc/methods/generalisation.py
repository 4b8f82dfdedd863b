"""Generalisation: how well is an example predicted by models that were not trained on it?

Some models are trained on random halves of the training examples, with their assigned labels; see
`halves`, which they are shared by with `memloc find`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from memloc.errors import counted
from memloc.methods.base import Method, Sizes
from memloc.methods.drift import LEVEL, RESAMPLES
from memloc.methods.halves import Half, examples_table, half_models, pool_of
from memloc.methods.result import Result
from memloc.protocol import FineTuneSettings
from memloc.records import IntArray
from memloc.run import at_the_end
from memloc.seeds import generator
from memloc.settings import paper, published
from memloc.stats.intervals import Interval, bootstrap

if TYPE_CHECKING:
    import pandas as pd

    from memloc.run import Run


class Generalisation(Method):
    """The share of labels that models predict without having seen them; section 5, footnote 8."""

    name = "generalisation"
    kind = "analysis"
    needs = ("final", "pretrained")
    version = 2

    models: int = paper(30, "§5, footnote 8", ge=2)
    """Number of models that are trained on half of the data."""
    share: float = paper(0.5, "§5, footnote 8", gt=0, lt=1)
    """Share of the training examples that each model sees."""
    epochs: int = published(10, ge=1)
    """Passes over that half."""
    learning_rate: float = published(3e-5, gt=0)
    """Peak of the schedule."""

    def run(self, run: "Run") -> Result:
        """The score, and for every example what models with and without it say."""
        labels = run.noisy.assigned
        found = half_models(pool_of(run, self.training(run), self.share), self.models)
        examples = examples_table(found, labels)
        examples.insert(1, "is_noisy", run.noisy.is_noisy)
        tables = {
            "summary": self._summary(run, examples),
            "examples": examples,
            "models": _models_table(found, labels),
        }
        about = {"level": LEVEL, "resamples": RESAMPLES, "remarks": _remarks(examples)}
        return Result(self.name, tables, about)

    def _summary(self, run: "Run", examples: "pd.DataFrame") -> "pd.DataFrame":
        n_classes, score = run.task.n_classes, validation_score(run)
        return summary(examples, run.noisy.assigned, n_classes, self.models, score)

    def training(self, run: "Run") -> FineTuneSettings:
        """Fine-tuning as in the run, with this method's rate and epochs."""
        own = {"learning_rate": self.learning_rate, "epochs": self.epochs}
        return run.settings.finetune.replace(own)

    def cost(self, sizes: Sizes) -> float:
        """Every model learns its half and looks at all examples."""
        learnt = self.epochs * self.share * sizes.examples * sizes.update
        return self.models * (learnt + sizes.examples * sizes.predict)


def summary(
    examples: "pd.DataFrame", assigned: IntArray, n_classes: int, models: int, validation: float
) -> "pd.DataFrame":
    """One row: the shares of all and of clean examples that generalise, with intervals.

    `majority` is the score of always predicting the most frequent of the `assigned` labels, and
    `normalised` what is left of the score above it: (score - majority) / (1 - majority).
    """
    import pandas as pd

    clean = examples[~examples["is_noisy"]]
    every, only_clean = (generalised(part, n_classes) for part in (examples, clean))
    majority = float(np.bincount(assigned).max() / len(assigned))
    above = [(s - majority) / (1 - majority) for s in (every.estimate, every.low, every.high)]
    row = {
        **dict(zip(("normalised", "normalised_low", "normalised_high"), above, strict=True)),
        "majority": majority,
        "score": every.estimate,
        "clean_score": only_clean.estimate,
        "low": every.low,
        "high": every.high,
        "clean_low": only_clean.low,
        "clean_high": only_clean.high,
        "validation_score": validation,
        "models": models,
    }
    return pd.DataFrame([row])


def generalised(examples: "pd.DataFrame", n_classes: int) -> Interval:
    """Share of examples whose mean held-out probability exceeds 1 / `n_classes`.

    Examples that no model held out do not count.
    """
    held_out = examples["held_out"].dropna().to_numpy(np.float64)
    above = (held_out > 1 / n_classes).astype(np.float64)
    if len(above) == 0:
        return Interval(np.nan, np.nan, np.nan, LEVEL)
    rng = generator(0, "bootstrap", "generalisation")
    return bootstrap(above, rng=rng, n_resamples=RESAMPLES, level=LEVEL).at()


def validation_score(run: "Run") -> float:
    """(accuracy - chance) / (1 - chance) of the final weights on unseen data; NaN without any."""
    chance = 1 / run.task.n_classes
    accuracy = at_the_end(run.training(), "noisy", "validation_accuracy")
    return (accuracy - chance) / (1 - chance)


def _models_table(halves: Sequence[Half], labels: IntArray) -> "pd.DataFrame":
    import pandas as pd

    rows = [
        {
            "model": model,
            "trained_accuracy": half.right(labels)[half.trained].mean(),
            "held_out_accuracy": half.right(labels)[~half.trained].mean(),
        }
        for model, half in enumerate(halves, start=1)
    ]
    return pd.DataFrame(rows)


def _remarks(examples: "pd.DataFrame") -> list[str]:
    never = int(examples["held_out"].isna().sum())
    return (
        [f"Not counted, as every model was trained on them: {counted(never, 'example')}."]
        if never
        else []
    )
