"""Models trained on random halves of labelled texts: what does each say of every example?

What a model says of examples that it was not trained on is generalisation; the difference to models
that were is counterfactual memorisation. What each model says is kept in a file, and made again
only where its data, weights or settings are others. The analysis `generalisation` and `memloc find`
share all this.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from memloc.arrays import (
    BoolArray,
    FloatArray,
    IntArray,
    Table,
)
from memloc.data.task import Examples, hash_examples
from memloc.errors import counted
from memloc.methods import Method, Sizes
from memloc.methods.result import Result
from memloc.model.device import pick_device
from memloc.progress import Advance, track
from memloc.protocol import MEMORISED_ONLY, NOT_DECIDING, FineTuneSettings
from memloc.run.folder import Run, at_the_end
from memloc.seeds import generator, number
from memloc.settings import paper, published
from memloc.stats.depth import LEVEL
from memloc.stats.intervals import RESAMPLES, Interval, bootstrap
from memloc.store.identity import hashed
from memloc.store.records import (
    as_stored,
    as_table,
    read_table,
    versions,
    write_table,
)

if TYPE_CHECKING:
    from memloc.model.load import Classifier


class Generalisation(Method):
    """The share of labels that models predict without having seen them; section 5, footnote 8."""

    name = "generalisation"
    kind = "analysis"
    needs = ("final", "pretrained")
    shows = {"summary": "generalisation", "examples": "memorisation"}
    version = 2

    models: int = paper(30, "§5, footnote 8", ge=2)
    """Number of models that are trained on half of the data."""
    share: float = paper(0.5, "§5, footnote 8", gt=0, lt=1)
    """Share of the training examples that each model sees."""
    epochs: int = published(10, ge=1)
    """Passes over that half."""
    learning_rate: float = published(3e-5, gt=0)
    """Peak of the schedule."""

    def run(self, run: Run) -> Result:
        """The score, and for every example what models with and without it say."""
        labels = run.noisy.assigned
        found = half_models(pool_of(run, self), self.models)
        examples = examples_table(found, labels)
        examples.insert(1, "is_noisy", run.noisy.is_noisy)
        sizes = run.task.n_classes, self.models
        tables = {
            "summary": summary(examples, labels, *sizes, validation_score(run)),
            "examples": examples,
            "models": _models_table(found, labels),
        }
        about = {"level": LEVEL, "resamples": RESAMPLES, "remarks": _remarks(examples)}
        return Result(self.name, tables, about)

    def training(self, usual: FineTuneSettings) -> FineTuneSettings:
        """Fine-tuning as usual, with this method's rate and epochs."""
        return usual.replace({"learning_rate": self.learning_rate, "epochs": self.epochs})

    def cost(self, sizes: Sizes) -> float:
        """Every model learns its half and looks at all examples."""
        learnt = self.epochs * self.share * sizes.examples * sizes.update
        return self.models * (learnt + sizes.examples * sizes.predict)


@dataclass(frozen=True)
class Half:
    """What one model says of every example."""

    trained: BoolArray
    """(examples,): whether it was trained on it."""
    logits: NDArray[np.float32]
    """(examples, classes)."""

    @property
    def chances(self) -> FloatArray:
        """(examples, classes): the probability of each label."""
        from scipy.special import softmax

        return np.asarray(softmax(self.logits.astype(np.float64), axis=1))

    def right(self, labels: IntArray) -> BoolArray:
        """(examples,): whether these labels are what it predicts."""
        return np.asarray(self.logits.argmax(1) == labels)


@dataclass(frozen=True)
class Pool:
    """Labelled texts, the weights that every model starts from, and how it learns its half."""

    name: str
    examples: Examples
    """With the labels that are learnt."""
    label_names: tuple[str, ...]
    load: "Callable[[int], Classifier]"
    """The pre-trained weights with a new head from a seed."""
    weights_hash: str
    training: FineTuneSettings
    max_tokens: int
    share: float
    seed: int
    folder: Path
    """Where finished models are kept."""
    device: str = "auto"

    @cached_property
    def examples_hash(self) -> str:
        """Of texts and labels: asked for each model, and of 100,000 texts it takes a while."""
        return hash_examples(self.examples)

    @cached_property
    def groups(self) -> IntArray:
        """The number of each example's text, from 0: copies of a text have the same."""
        first: dict[tuple[str, ...], int] = {}
        return np.array([first.setdefault(p, len(first)) for p in self.examples.parts], np.int64)

    def rows(self, model: int) -> IntArray:
        """The examples that a model (from 1) is trained on; copies of a text go together."""
        n_texts = int(self.groups.max()) + 1
        return np.flatnonzero(np.isin(self.groups, half_of(n_texts, self.share, self.seed, model)))

    def start(self, seed: int) -> "Classifier":
        """The weights that a model starts from, with an adapter if it learns with one."""
        from memloc.model.adapters import with_adapter

        started = with_adapter(self.load(seed), self.training, seed)
        started.model.to(pick_device(self.device))
        return started

    def updates(self, model: int) -> int:
        """How many updates a model needs."""
        return self.training.epochs * -(-len(self.rows(model)) // self.training.batch_size)

    def identity(self, model: int) -> str:
        """A hash of what decides a model's answers: not how many models there are."""
        facts = {
            "version": Generalisation.version,
            "versions": versions(),
            "model": model,
            "share": self.share,
            "finetune": self.training.model_dump(mode="json", exclude=_NOT_DECIDING),
            "examples": self.examples_hash,
            "start": [self.weights_hash, len(self.label_names), self.seed, self.max_tokens],
        }
        return hashed(facts)

    def path(self, model: int) -> Path:
        """The file of a model's answers."""
        return self.folder / f"model-{model}.parquet"


_NOT_DECIDING = {name.split(".")[-1] for name in (*NOT_DECIDING, *MEMORISED_ONLY)}


def pool_of(run: Run, method: Generalisation) -> Pool:
    """The training texts of a run with their assigned labels."""
    adopted = run.record.adopted.get("pretrained")
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


def half_of(n: int, share: float, seed: int, model: int) -> IntArray:
    """Which of `n` texts a model (from 1) is trained on."""
    order = generator(seed, "generalisation", "half", model).permutation(n)
    return np.sort(order[: min(n - 1, max(1, round(share * n)))])


def half_models(pool: Pool, models: int) -> list[Half]:
    """What so many models say: those that are kept are read, the others are trained."""
    from memloc.engine.fit import whole

    numbers = range(1, models + 1)
    kept = {model: found for model in numbers if (found := _read(pool, model)) is not None}
    # Files of models above the last number count where they were trained in one pass with others.
    others = {name for _, names in kept.values() for name in names} - {*map(str, numbers)}
    more = {name: found[1] for name in others if (found := _read(pool, int(name))) is not None}
    done = whole({str(model): names for model, (_, names) in kept.items()} | more)
    missing = [model for model in numbers if str(model) not in done]
    halves = {model: half for model, (half, _) in kept.items()}
    if missing:
        total = sum(pool.updates(model) for model in missing)
        with track(f"{pool.name} · models on halves", total) as advance:
            halves |= train_halves(pool, missing, advance)
    return [halves[model] for model in numbers]


def train_halves(
    pool: Pool, models: Sequence[int], advance: Advance = lambda _steps: None
) -> dict[int, Half]:
    """Train models (from 1) on their halves, keep what they say and return it."""
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
    found = {}
    for ready in fit(learners, texts, pool.training, watch=Watch(advance), ask=every):
        for trained in ready:
            model = int(trained.name)
            found[model] = Half(np.isin(every, pool.rows(model)), trained.logits)
            _write(pool, model, found[model], trained.trained_with)
    return found


def _write(pool: Pool, model: int, half: Half, trained_with: Sequence[str]) -> None:
    columns = {f"logit_{i}": logits for i, logits in enumerate(half.logits.T)}
    table = as_table({"trained": half.trained, **columns})
    note = {"identity": pool.identity(model), "trained_with": list(trained_with)}
    write_table(pool.path(model), table, note)


def _read(pool: Pool, model: int) -> tuple[Half, list[str]] | None:
    """What a model said, and the models that were trained in one pass with it.

    None where it was not kept, or was made of something else.
    """
    path = pool.path(model)
    if not path.is_file():
        return None
    table, note = read_table(path)
    if note.get("identity") != pool.identity(model) or "trained_with" not in note:
        return None
    columns = [f"logit_{i}" for i in range(len(pool.label_names))]
    with as_stored(path):
        logits = table[columns].to_numpy(np.float32, copy=True)
        half = Half(table["trained"].to_numpy(bool, copy=True), logits)
        return half, list(note["trained_with"])


def examples_table(halves: Sequence[Half], labels: IntArray) -> Table:
    """One row per example: mean probability of its label with and without training on it.

    NaN where no model is of that kind.
    """
    every, count = np.arange(len(labels)), np.sum([half.trained for half in halves], axis=0)
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
    """(examples, classes): mean probabilities by models that were trained on it, or held it out.

    NaN where there are none. One model after the other, as all of them at once take memory.
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
    """One row: the shares of all and of clean examples that generalise, with intervals.

    `majority` is the score of always predicting the most frequent of the `assigned` labels, and
    `normalised` what is left of the score above it: (score - majority) / (1 - majority).
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
    """Share of examples whose mean held-out probability exceeds 1 / `n_classes`.

    Examples that no model held out do not count.
    """
    held_out = examples["held_out"].dropna().to_numpy(np.float64)
    above = (held_out > 1 / n_classes).astype(np.float64)
    if len(above) == 0:
        return Interval(np.nan, np.nan, np.nan)
    rng = generator(0, "bootstrap", "generalisation")
    return bootstrap(above, rng=rng)


def validation_score(run: Run) -> float:
    """(accuracy - chance) / (1 - chance) of the final weights on unseen data; NaN without any."""
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
    said = f"Not counted, as every model was trained on them: {never}."
    return [said] if examples["held_out"].isna().any() else []
