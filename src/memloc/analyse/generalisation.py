"""Generalisation: how well is an example predicted by models that were not trained on it?

Some models are trained on random halves of the training examples, with their assigned labels. What
a model says of the examples that it was not trained on is generalisation; the difference to models
that were is counterfactual memorisation. Each model is a piece of work of its own: it is kept in a
file when it is done, and made again only for other settings.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from memloc.analyse.drift import LEVEL, RESAMPLES
from memloc.analyse.material import Material
from memloc.analyse.store import Analysis
from memloc.data.encode import Encoded
from memloc.models.stack import Stack
from memloc.progress import Advance, track
from memloc.protocol import FineTuneSettings
from memloc.records import BoolArray, FloatArray, IntArray, as_stored, read_table, write_table
from memloc.score.uncertainty import Interval, bootstrap
from memloc.seeds import generator, number
from memloc.train.evaluate import predict
from memloc.train.finetune import Objective, learning, learning_groups, logits_of, train_epoch
from memloc.train.gathering import merged
from memloc.train.provenance import plain
from memloc.train.run import MEMORISED_ONLY, NOT_DECIDING
from memloc.train.training import Recipe

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Half:
    """What one model says of every training example's assigned label."""

    trained: BoolArray
    """(examples,): whether it was trained on it."""
    probability: FloatArray
    """(examples,): of the assigned label."""
    right: BoolArray
    """(examples,): whether that is what it predicts."""


def generalisation(material: Material) -> Analysis:
    """The score, and for every example what models with and without it say."""
    models = range(1, material.protocol.generalisation.models + 1)
    kept = {model: _read(material, model) for model in models}
    made = _train(material, [model for model in models if kept[model] is None])
    found = [kept[model] or made[model] for model in models]
    examples = examples_table(found, material.noisy.is_noisy)
    score = validation_score(material)
    tables = {
        "summary": summary(examples, material.task.n_classes, len(models), score),
        "examples": examples,
        "models": _models_table(found),
    }
    about = {"level": LEVEL, "resamples": RESAMPLES, "remarks": _remarks(examples)}
    return Analysis("generalisation", tables, about)


def half_of(n: int, share: float, seed: int, model: int) -> IntArray:
    """Rows of the `n` examples that a model (from 1) is trained on."""
    order = generator(seed, "generalisation", "half", model).permutation(n)
    return np.sort(order[: min(n - 1, max(1, round(share * n)))])


def examples_table(halves: Sequence[Half], is_noisy: BoolArray) -> "pd.DataFrame":
    """A row an example: mean probability of its assigned label with and without training on it.

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
    examples: "pd.DataFrame", n_classes: int, models: int, validation: float
) -> "pd.DataFrame":
    """One row: the shares of all and of clean examples that generalise, with intervals."""
    import pandas as pd

    clean = examples[~examples["is_noisy"]]
    every, only_clean = (generalised(part, n_classes) for part in (examples, clean))
    row = {
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


def validation_score(material: Material) -> float:
    """(accuracy - chance) / (1 - chance) of the final weights on unseen data."""
    table = material.run.training()
    noisy = table[table["training"] == "noisy"].sort_values("epoch")
    chance = 1 / material.task.n_classes
    return float((noisy["validation_accuracy"].iloc[-1] - chance) / (1 - chance))


def train_half(material: Material, model: int, advance: Advance = lambda _steps: None) -> Half:
    """Train one model (from 1) on its half, keep what it says and return it."""
    n = len(material.noisy.assigned)
    settings, seed = _settings(material), number(material.run.seed, "generalisation", model)
    rows = half_of(n, material.protocol.generalisation.share, material.run.seed, model)
    start = material.run.load_pretrained(seed)
    start.model.to(material.device)
    encoded = material.encode(start)
    _fit(start.stack, encoded, rows, material.noisy.assigned[rows], (settings, seed, advance))
    logits = predict(start.stack, encoded)
    half = Half(
        np.isin(np.arange(n), rows),
        probability_of(logits, material.noisy.assigned),
        logits.argmax(1) == material.noisy.assigned,
    )
    _write(material, model, half)
    return half


def probability_of(logits: NDArray[np.floating], labels: IntArray) -> FloatArray:
    """The probability of each row's label."""
    scores = logits.astype(np.float64)
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return np.asarray(powers[np.arange(len(labels)), labels] / powers.sum(1))


def _train(material: Material, models: Sequence[int]) -> dict[int, Half]:
    if not models:
        return {}
    settings, n = _settings(material), len(material.noisy.assigned)
    size = len(half_of(n, material.protocol.generalisation.share, material.run.seed, 1))
    updates = settings.epochs * -(-size // settings.batch_size)
    with track(f"{material.run.name} · generalisation", len(models) * updates) as advance:
        return {model: train_half(material, model, advance) for model in models}


def _settings(material: Material) -> FineTuneSettings:
    """Fine-tuning as for a model of this size, with the rate and the epochs of this analysis."""
    model = material.run.about["model"]
    recipe = Recipe(model, material.task, protocol=material.protocol, noisy=material.noisy)
    own = material.protocol.generalisation
    return recipe.settings.replace({"learning_rate": own.learning_rate, "epochs": own.epochs})


def _fit(
    stack: Stack,
    encoded: Encoded,
    rows: IntArray,
    labels: IntArray,
    how: tuple[FineTuneSettings, int, Advance],
) -> None:
    settings, seed, advance = how
    groups = learning_groups(stack, embeddings=not settings.freeze_embeddings)
    logits = logits_of(stack, encoded)
    with learning(stack.model, groups) as tensors:
        objective = Objective(
            name="generalisation",
            logits=lambda batch: logits(rows[batch]),
            labels=torch.from_numpy(labels).to(stack.device),
            lengths=encoded.lengths[rows],
            tensors=merged(tensors),
            parameters=merged(groups),
            settings=settings,
        )
        for epoch in range(1, settings.epochs + 1):
            train_epoch([objective], seed, epoch, advance)


def _path(material: Material, model: int) -> Path:
    return material.work / "generalisation" / f"model-{model}.parquet"


_NOT_DECIDING = {name.split(".")[1] for name in (*NOT_DECIDING, *MEMORISED_ONLY)}


def _identity(material: Material, model: int) -> dict[str, Any]:
    """What decides a model's answers: not how many models there are."""
    facts = {
        "model": model,
        "inputs": material.run.inputs,
        "seed": material.run.seed,
        "share": material.protocol.generalisation.share,
        "text": material.protocol.text.model_dump(),
        "finetune": _settings(material).model_dump(exclude=_NOT_DECIDING),
    }
    return plain(facts)


def _write(material: Material, model: int, half: Half) -> None:
    import pandas as pd

    columns = {"trained": half.trained, "probability": half.probability, "right": half.right}
    identity = _identity(material, model)
    write_table(_path(material, model), pd.DataFrame(columns), {"half": identity})


def _read(material: Material, model: int) -> Half | None:
    """What was kept of a model that is done, if it is of these settings."""
    path = _path(material, model)
    if not path.is_file():
        return None
    table, note = read_table(path)
    if note.get("half") != _identity(material, model):
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
    return [f"{never} examples were held out by no model and do not count."] if never else []
