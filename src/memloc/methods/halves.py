"""Trains models on random halves of labelled texts and collects their predictions for all examples.

Predictions for examples that a model was not trained on measure generalisation; their difference to
the predictions of models that were is counterfactual memorisation. The predictions of each model
are stored, and computed again only if its data, weights or settings change. The analysis
`generalisation` and `memloc find` share all of this.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from memloc.arrays import BoolArray, FloatArray, IntArray, Table
from memloc.data.task import Examples, hash_examples
from memloc.errors import counted
from memloc.methods import Method, Sizes, views
from memloc.methods.result import Result
from memloc.model.device import pick_device
from memloc.progress import Advance, track
from memloc.protocol import MEMORISED_ONLY, NOT_DECIDING, FineTuneSettings
from memloc.run.folder import Run
from memloc.run.records import at_the_end
from memloc.seeds import generator, number
from memloc.settings import packaged, paper, published
from memloc.stats.depth import LEVEL
from memloc.stats.intervals import RESAMPLES, Interval, bootstrap
from memloc.store import paths
from memloc.store.memo import ARRAYS, Arrays, Maker, recall, unfinished_key
from memloc.store.records import as_table

if TYPE_CHECKING:
    from memloc.model.load import Classifier

_REPORT = packaged(__file__)


class Generalisation(Method):
    """Share of labels that models predict without having seen them; section 5, footnote 8."""

    name = "generalisation"
    labels_only = "it trains classifiers on halves of the labels"
    kind = "analysis"
    needs = ("final", "pretrained")
    shows = {"summary": "generalisation", "examples": "memorisation"}
    report = {**_REPORT, "rows": {"memorisation": views.memorisation_map}}
    version = 2

    models: int = paper(30, "§5, footnote 8", ge=2)
    """Number of models, each trained on half of the data."""
    share: float = paper(0.5, "§5, footnote 8", gt=0, lt=1)
    """Share of the training examples that each model sees."""
    epochs: int = published(10, ge=1)
    """Passes over the half that a model sees."""
    learning_rate: float = published(3e-5, gt=0)
    """Peak learning rate of the schedule."""

    @classmethod
    def told(cls, found: Result) -> str:
        """Return a sentence on how many labels are predicted by models that were not trained on
        them.
        """
        return str(_REPORT["sentence"].format(**found["summary"].iloc[0]))

    @classmethod
    def picture(cls, found: Result) -> str:
        """Write the mean probability of the label with and without training on it."""
        return views.halves_picture(found["examples"])

    def run(self, run: Run) -> Result:
        """Return the score, and for every example the predictions of models with and without it."""
        labels = run.noisy.assigned
        halves = half_models(pool_of(run, self), self.models)
        examples = examples_table(halves, labels)
        examples.insert(1, "is_noisy", run.noisy.is_noisy)
        sizes = run.task.n_classes, self.models
        tables = {
            "summary": summary(examples, labels, *sizes, validation_score(run)),
            "examples": examples,
            "models": _models_table(halves, labels),
        }
        about = {"level": LEVEL, "resamples": RESAMPLES, "remarks": _remarks(examples)}
        return Result(self.name, tables, about)

    def training(self, usual: FineTuneSettings) -> FineTuneSettings:
        """Return the settings of fine-tuning with this method's rate and epochs."""
        return usual.replace({"learning_rate": self.learning_rate, "epochs": self.epochs})

    def cost(self, sizes: Sizes) -> float:
        """Return the seconds for training every model on its half and predicting all examples."""
        learnt = self.epochs * self.share * sizes.examples * sizes.update
        return self.models * (learnt + sizes.examples * sizes.predict)


@dataclass(frozen=True)
class Half:
    """One model's predictions for every example."""

    trained: BoolArray
    """(examples,): whether the model was trained on the example."""
    logits: NDArray[np.float32]
    """(examples, classes): logits of the model."""

    @property
    def chances(self) -> FloatArray:
        """(examples, classes): the probability of each label."""
        from scipy.special import softmax

        return np.asarray(softmax(self.logits.astype(np.float64), axis=1))

    def right(self, labels: IntArray) -> BoolArray:
        """Return for each example whether the model predicts this label, (examples,)."""
        return np.asarray(self.logits.argmax(1) == labels)


@dataclass(frozen=True)
class Pool:
    """Labelled texts, the weights that every model starts from, and the settings of training."""

    name: str
    examples: Examples
    """Examples with the labels that are learnt."""
    label_names: tuple[str, ...]
    load: "Callable[[int], Classifier]"
    """Function that loads the pre-trained weights with a new head from a seed."""
    weights_hash: str
    training: FineTuneSettings
    max_tokens: int
    share: float
    seed: int
    folder: Path
    """Folder in which finished models are kept."""
    device: str = "auto"

    @cached_property
    def groups(self) -> IntArray:
        """Number of each example's text, from 0; copies of a text share one number."""
        first: dict[tuple[str, ...], int] = {}
        return np.array([first.setdefault(p, len(first)) for p in self.examples.parts], np.int64)

    def rows(self, model: int) -> IntArray:
        """Return the examples that a model (from 1) is trained on; copies of a text stay in one
        half.
        """
        n_texts = int(self.groups.max()) + 1
        return np.flatnonzero(
            np.isin(self.groups, trained_half(n_texts, self.share, self.seed, model))
        )

    def start(self, seed: int) -> "Classifier":
        """Return the weights that a model starts from, with an adapter if the settings ask for
        one.
        """
        from memloc.model.adapters import with_adapter

        started = with_adapter(self.load(seed), self.training, seed)
        started.model.to(pick_device(self.device))
        return started

    def updates(self, model: int) -> int:
        """Return the number of updates of a model's training."""
        return self.training.epochs * -(-len(self.rows(model)) // self.training.batch_size)

    @cached_property
    def key(self) -> str:
        """Cache key of the models' predictions; it does not depend on their number or order."""
        decided_by = {
            "share": self.share,
            "finetune": self.training.model_dump(mode="json", exclude=_NOT_DECIDING),
            "examples": hash_examples(self.examples),
            "start": [self.weights_hash, len(self.label_names), self.seed, self.max_tokens],
        }
        return unfinished_key(Maker(Generalisation.name, Generalisation.version), decided_by)


_NOT_DECIDING = {name.split(".")[-1] for name in (*NOT_DECIDING, *MEMORISED_ONLY)}


def pool_of(run: Run, method: Generalisation) -> Pool:
    """Return the training texts of a run with their assigned labels."""
    adopted = run.status.adopted.get("pretrained")
    return Pool(
        name=run.name,
        examples=Examples(run.task.train.parts, run.noisy.assigned),
        label_names=run.task.label_names,
        load=run.load_pretrained,
        weights_hash=adopted.hash if adopted else run.record.weights_hash,
        training=method.training(run.settings.finetune),
        max_tokens=run.settings.text.max_tokens,
        share=method.share,
        seed=run.seed,
        folder=run.work("generalisation"),
        device=run.device,
    )


def trained_half(n: int, share: float, seed: int, model: int) -> IntArray:
    """Return which of `n` texts a model is trained on.

    Args:
        n: Number of texts.
        share: Share of the texts that the model sees.
        seed: Seed of the run.
        model: Number of the model, from 1.
    """
    order = generator(seed, "generalisation", "half", model).permutation(n)
    return np.sort(order[: min(n - 1, max(1, round(share * n)))])


def half_models(pool: Pool, models: int) -> list[Half]:
    """Return the predictions of this many models: stored ones are read, missing models are
    trained.
    """
    halves = kept_halves(pool, models)
    missing = [model for model in range(1, models + 1) if model not in halves]
    if missing:
        total = sum(pool.updates(model) for model in missing)
        with track(f"{pool.name} · models on halves", total) as advance:
            halves |= train_halves(pool, missing, advance)
    return [halves[model] for model in range(1, models + 1)]


def kept_halves(pool: Pool, models: int) -> dict[int, Half]:
    """Return the stored predictions of models, by number from 1, up to this many models."""
    halves: dict[int, Half] = {}
    for model in range(1, models + 1):
        if model not in halves:
            kept = recall(paths.kept_models(pool.folder, model), pool.key, ARRAYS)
            halves |= {} if kept is None else _halves(kept)
    return {model: half for model, half in halves.items() if model <= models}


def _halves(kept: Arrays) -> dict[int, Half]:
    both = zip(kept["trained"], kept["logits"], strict=True)
    return dict(zip(kept["models"].tolist(), (Half(*columns) for columns in both), strict=True))


def train_halves(
    pool: Pool, models: Sequence[int], advance: Advance = lambda _steps: None
) -> dict[int, Half]:
    """Train models (numbered from 1) on their halves; store and return their predictions."""
    from memloc.engine.fit import fit
    from memloc.engine.learner import Learner, Part, Watch
    from memloc.model.predict import encode_for

    def learner(model: int) -> Learner:
        seed = number(pool.seed, "generalisation", model)
        start = partial(pool.start, seed)
        return Learner(str(model), start, pool.examples.labels, seed, (Part(pool.rows(model)),))

    texts = encode_for(pool.start(pool.seed), pool.examples, pool.max_tokens)
    every = np.arange(len(texts))
    learners = [learner(model) for model in models]
    halves: dict[int, Half] = {}
    for ready in fit(learners, texts, pool.training, watch=Watch(advance), ask=every):
        numbers = [int(trained.name) for trained in ready]
        arrays = {
            "models": np.array(numbers),
            "trained": np.stack([np.isin(every, pool.rows(model)) for model in numbers]),
            "logits": np.stack([trained.logits for trained in ready]),
        }
        # Models trained in one pass are stored in one file, so nothing depends on interruptions.
        ARRAYS.write(paths.kept_models(pool.folder, numbers[0]), arrays, pool.key)
        halves |= _halves(arrays)
    return halves


def examples_table(halves: Sequence[Half], labels: IntArray) -> Table:
    """Return one row per example: mean probability of its label with and without training on it.

    A value is NaN if no model is of that kind.
    """
    every = np.arange(len(labels))
    count = np.sum([half.trained for half in halves], axis=0)
    with_it = mean_chances(halves, trained=True)[every, labels]
    without = mean_chances(halves, trained=False)[every, labels]
    return as_table(
        {
            "example": every,
            "trained": with_it,
            "held_out": without,
            "counterfactual": with_it - without,
            "n_trained": count,
            "n_held_out": len(halves) - count,
        }
    )


def mean_chances(halves: Sequence[Half], *, trained: bool) -> FloatArray:
    """Return (examples, classes): mean probabilities by models trained on an example, or without
    it.

    They are NaN where there is no such model. Models are added one by one to save memory.
    """
    total, count = np.zeros(halves[0].logits.shape), np.zeros((len(halves[0].trained), 1))
    for half in halves:
        chosen = half.trained[:, None] == trained
        total += np.where(chosen, half.chances, 0)
        count += chosen
    return np.asarray(total / np.where(count > 0, count, np.nan))


def summary(
    examples: Table, assigned: IntArray, n_classes: int, models: int, validation: float
) -> Table:
    """Return one row: the shares of all and of clean examples that generalise, with intervals.

    `majority` is the score of always predicting the most frequent of the `assigned` labels, and
    `normalised` is the score relative to it: (score - majority) / (1 - majority).

    Args:
        examples: Table of `examples_table`.
        assigned: Assigned labels.
        n_classes: Number of classes.
        models: Number of models.
        validation: Score on validation data.
    """
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
    return as_table([row])


def generalised(examples: Table, n_classes: int) -> Interval:
    """Return the share of examples whose mean held-out probability exceeds 1 / `n_classes`.

    Examples that every model was trained on do not count.
    """
    held_out = examples["held_out"].dropna().to_numpy(np.float64)
    above = (held_out > 1 / n_classes).astype(np.float64)
    if len(above) == 0:
        return Interval(np.nan, np.nan, np.nan)
    rng = generator(0, "bootstrap", "generalisation")
    return bootstrap(above, rng=rng)


def validation_score(run: Run) -> float:
    """Return (accuracy - chance) / (1 - chance) of the final weights on unseen data; NaN without
    any.
    """
    chance = 1 / run.task.n_classes
    accuracy = at_the_end(run.training(), "noisy", "validation_accuracy")
    return (accuracy - chance) / (1 - chance)


def _models_table(halves: Sequence[Half], labels: IntArray) -> Table:
    rows = [
        {
            "model": model,
            "trained_accuracy": half.right(labels)[half.trained].mean(),
            "held_out_accuracy": half.right(labels)[~half.trained].mean(),
        }
        for model, half in enumerate(halves, start=1)
    ]
    return as_table(rows)


def _remarks(examples: Table) -> list[str]:
    never = counted(int(examples["held_out"].isna().sum()), "example")
    sentence = f"Not counted, as every model was trained on them: {never}."
    return [sentence] if examples["held_out"].isna().any() else []
