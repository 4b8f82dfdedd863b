"""Generalisation: how well is an example predicted by models that were not trained on it?

Some models are trained on random halves of the training examples, with their assigned labels. What
a model says of the examples that it was not trained on is generalisation; the difference to models
that were is counterfactual memorisation. Each model is a piece of work of its own: it is kept in a
file when it is done, and made again only for other settings.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from memloc.errors import counted
from memloc.identity import hashed
from memloc.methods.base import Method, Sizes
from memloc.methods.drift import LEVEL, RESAMPLES
from memloc.methods.result import Result
from memloc.progress import Advance, track
from memloc.protocol import MEMORISED_ONLY, NOT_DECIDING, FineTuneSettings
from memloc.records import BoolArray, FloatArray, IntArray, as_stored, read_table, write_table
from memloc.run import at_the_end
from memloc.seeds import generator, number
from memloc.settings import paper, published
from memloc.stats.intervals import Interval, bootstrap

if TYPE_CHECKING:
    import pandas as pd

    from memloc.data.encode import Encoded
    from memloc.models.stack import Stack
    from memloc.run import Run


@dataclass(frozen=True)
class Half:
    """What one model says of every training example's assigned label."""

    trained: BoolArray
    """(examples,): whether it was trained on it."""
    probability: FloatArray
    """(examples,): of the assigned label."""
    right: BoolArray
    """(examples,): whether that is what it predicts."""


class Generalisation(Method):
    """The share of labels that models predict without having seen them; section 5, footnote 8."""

    name = "generalisation"
    kind = "analysis"
    needs = ("final", "pretrained")

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
        models = range(1, self.models + 1)
        kept = {model: _read(run, self, model) for model in models}
        made = _train(run, self, [model for model in models if kept[model] is None])
        found = [kept[model] or made[model] for model in models]
        examples = examples_table(found, run.noisy.is_noisy)
        tables = {
            "summary": self._summary(run, examples),
            "examples": examples,
            "models": _models_table(found),
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


def half_of(n: int, share: float, seed: int, model: int) -> IntArray:
    """Rows of the `n` examples that a model (from 1) is trained on."""
    order = generator(seed, "generalisation", "half", model).permutation(n)
    return np.sort(order[: min(n - 1, max(1, round(share * n)))])


def examples_table(halves: Sequence[Half], is_noisy: BoolArray) -> "pd.DataFrame":
    """One row per example: mean probability of its assigned label with and without training on it.

    NaN where no model is of that kind.
    """
    import pandas as pd

    trained = np.stack([half.trained for half in halves])
    probability = np.stack([half.probability for half in halves])
    with_it, without = _mean_where(probability, trained), _mean_where(probability, ~trained)
    return pd.DataFrame(
        {
            "example": np.arange(len(is_noisy)),
            "is_noisy": is_noisy,
            "trained": with_it,
            "held_out": without,
            "counterfactual": with_it - without,
            "n_trained": trained.sum(0),
            "n_held_out": (~trained).sum(0),
        }
    )


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


def train_half(
    run: "Run", settings: Generalisation, model: int, advance: Advance = lambda _steps: None
) -> Half:
    """Train one model (from 1) on its half, keep what it says and return it."""
    from memloc.models.device import pick_device
    from memloc.training.predict import predict

    assigned = run.noisy.assigned
    seed = number(run.seed, "generalisation", model)
    rows = half_of(len(assigned), settings.share, run.seed, model)
    start = run.load_pretrained(seed)
    start.model.to(pick_device(run.device))
    encoded = run.encode(start)
    fit = settings.training(run), seed, advance
    _fit(start.stack, encoded, rows, assigned[rows], fit)
    logits = predict(start.stack, encoded)
    half = Half(
        np.isin(np.arange(len(assigned)), rows),
        probability_of(logits, assigned),
        logits.argmax(1) == assigned,
    )
    _write(run, settings, model, half)
    return half


def probability_of(logits: NDArray[np.floating], labels: IntArray) -> FloatArray:
    """The probability of each row's label."""
    scores = logits.astype(np.float64)
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return np.asarray(powers[np.arange(len(labels)), labels] / powers.sum(1))


def _train(run: "Run", settings: Generalisation, models: Sequence[int]) -> dict[int, Half]:
    if not models:
        return {}
    training = settings.training(run)
    size = len(half_of(len(run.noisy.assigned), settings.share, run.seed, 1))
    updates = training.epochs * -(-size // training.batch_size)
    with track(f"{run.name} · generalisation", len(models) * updates) as advance:
        return {model: train_half(run, settings, model, advance) for model in models}


def _fit(
    stack: "Stack",
    encoded: "Encoded",
    rows: IntArray,
    labels: IntArray,
    how: tuple[FineTuneSettings, int, Advance],
) -> None:
    import torch

    from memloc.training.gathering import merged
    from memloc.training.loop import (
        Objective,
        counted_groups,
        learning,
        learning_groups,
        logits_of,
        train_epoch,
    )

    settings, seed, advance = how
    groups = learning_groups(stack, embeddings=not settings.freeze_embeddings)
    logits = logits_of(stack, encoded)
    counted = counted_groups(stack, groups, settings)
    with learning(stack.model, [*groups, *counted]) as tensors:
        objective = Objective(
            name="generalisation",
            logits=lambda batch: logits(rows[batch]),
            labels=torch.from_numpy(labels).to(stack.device),
            lengths=encoded.lengths[rows],
            tensors=merged(tensors[: len(groups)]),
            counted=merged(tensors[len(groups) :]),
            parameters=merged(groups),
            settings=settings,
        )
        for epoch in range(1, settings.epochs + 1):
            train_epoch([objective], seed, epoch, advance)


def _path(run: "Run", model: int) -> Path:
    return run.work("generalisation") / f"model-{model}.parquet"


_NOT_DECIDING = {name.split(".")[-1] for name in (*NOT_DECIDING, *MEMORISED_ONLY)}


def _identity(run: "Run", settings: Generalisation, model: int) -> str:
    """A hash of what decides a model's answers: not how many models there are."""
    facts = {
        "model": model,
        "share": settings.share,
        "finetune": settings.training(run).model_dump(mode="json", exclude=_NOT_DECIDING),
        "run": run.identity(["pretrained"]),
    }
    return hashed(facts)


def _write(run: "Run", settings: Generalisation, model: int, half: Half) -> None:
    import pandas as pd

    columns = {"trained": half.trained, "probability": half.probability, "right": half.right}
    identity = _identity(run, settings, model)
    write_table(_path(run, model), pd.DataFrame(columns), {"identity": identity})


def _read(run: "Run", settings: Generalisation, model: int) -> Half | None:
    """What was kept of a model that is done, if it is of these settings."""
    path = _path(run, model)
    if not path.is_file():
        return None
    table, note = read_table(path)
    if note.get("identity") != _identity(run, settings, model):
        return None
    columns = (("trained", bool), ("probability", np.float64), ("right", bool))
    with as_stored(path):
        return Half(*(table[name].to_numpy(kind, copy=True) for name, kind in columns))


def _mean_where(values: FloatArray, chosen: BoolArray) -> FloatArray:
    count = chosen.sum(0)
    return np.asarray((values * chosen).sum(0) / np.where(count > 0, count, np.nan))


def _models_table(halves: Sequence[Half]) -> "pd.DataFrame":
    import pandas as pd

    rows = [
        {
            "model": model,
            "trained_accuracy": half.right[half.trained].mean(),
            "held_out_accuracy": half.right[~half.trained].mean(),
        }
        for model, half in enumerate(halves, start=1)
    ]
    return pd.DataFrame(rows)


def _remarks(examples: "pd.DataFrame") -> list[str]:
    never = int(examples["held_out"].isna().sum())
    return [f"Held out by no model, so not counted: {counted(never, 'example')}."] if never else []
