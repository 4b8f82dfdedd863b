"""Removes memorised labels or texts from a model, and tests whether they are gone or only hidden.

Layers that hold the labels are replaced by the reference's, or reset and retrained on the clean
examples. A label that is no longer predicted may still be in the weights: it is then learnt again
in fewer updates than by a model that never saw it. So every repaired model is taught the noisy
labels again, and so are yardsticks: models trained on the clean examples alone, from several seeds.
Memorised texts are repaired in the same way: a text counts as predicted if it is recalled, ordinary
texts are the clean examples, and gradient ascent, the usual method, is compared as well.
"""

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from memloc.arrays import FloatArray, IntArray
from memloc.data.encode import Encoded
from memloc.engine.fit import fit, fit_all
from memloc.engine.learner import LEFT_OUT, Learner, Part, Watch
from memloc.engine.passes import Trained
from memloc.errors import DataError, SettingsError, StoreError, checked_arguments
from memloc.labels.repaired import (
    AGAIN,
    ASCENT,
    BEFORE,
    HEAD,
    LAYERS,
    OTHERS,
    RANDOM,
    REFERENCE,
    RETRAINED,
    WAYS,
    YARDSTICK,
    Repaired,
    RepairSettings,
    figure,
    geometric_mean,
    relative,
)
from memloc.methods.apply import localise, open_run
from memloc.methods.mixtures import final_with
from memloc.methods.shares import UNDOES
from memloc.model.checkpoints import save_checkpoint
from memloc.model.device import pick_device, suitable_threads
from memloc.model.load import Classifier
from memloc.model.parts import find_parts
from memloc.model.predict import continued, encode_for, predicted
from memloc.progress import Advance, announce, track
from memloc.protocol import FineTuneSettings
from memloc.run.folder import Run
from memloc.seeds import generator, number
from memloc.settings import checked
from memloc.stats.windows import layers_name
from memloc.store import paths
from memloc.store.files import is_draft, whole_file
from memloc.store.memo import RECORD, Maker, recall, unfinished_key
from memloc.store.records import write_json

MAKER = Maker("repair", 2)
Layers = tuple[int, ...] | None
"""Layers, from 0, that a repair changes; None if it changes no block."""
BACKWARD = 3
"""Cost of an update in forward passes of a block: one forwards, about two backwards."""


@checked_arguments
def repair(
    run: Run | str | Path,
    folder: str | Path,
    *,
    settings: Mapping[str, Any] | None = None,
    device: str | None = None,
) -> Repaired:
    """Remove a run's memorised labels, test the repaired model, and write it into `folder`.

    Exact shares give the smallest set of layers whose replacement loses nine tenths of what all
    layers lose.

    Args:
        run: A run with final, reference and pre-trained weights, or its folder.
        folder: Folder of the repaired checkpoint.
        settings: Settings that differ from the defaults of `RepairSettings`, such as `{"way":
            "retrain"}`.
        device: `auto`, `cpu`, `cuda` or `mps`; by default the run's.
    """
    opened = open_run(run, device)
    home = Path(folder)
    chosen = checked(RepairSettings, settings or {})
    _refuse(opened, home)
    announce("repair", Workshop(opened, chosen))
    scores = localise(opened, ["shares"])["shares"]
    # Smallest sets need all subsets, of which a deeper model has too many.
    layers = _smallest(scores) if scores.about["exact"] else _leading(scores.weights)
    workshop = Workshop(opened, chosen, layers)
    with suitable_threads(opened.record.width):
        table, curves = workshop.compare()
        repaired = Repaired(home, table, curves, WAYS[chosen.way], chosen, workshop.level)
        yardsticks = set(repaired.yardsticks["way"])
        verdicts = [YARDSTICK if way in yardsticks else repaired.judge(way) for way in table["way"]]
        repaired = replace(repaired, table=table.assign(verdict=verdicts))
        _write(repaired, workshop)
    return repaired


def _refuse(run: Run, folder: Path) -> None:
    for weights in ("final", "reference", "pretrained"):
        run.require(weights)
    if not len(run.clean_rows):
        raise DataError(f"{run.name} has no clean examples to keep.")
    if run.settings.finetune.adapter != "none":
        raise SettingsError(
            f"{run.name} was trained with an adapter, and repair trains all weights: merge the "
            "adapters into checkpoints, and repair a run that adopts those."
        )
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder} is a file: name a folder with --out.")
    known = {paths.REPAIR, paths.PROVENANCE}  # a repair that was interrupted left no more
    files = folder.iterdir() if folder.is_dir() else ()
    names = {path.name for path in files if not is_draft(Path(path.name))}
    if names and not known & names:
        raise StoreError(
            f"{folder} is there already and was not written by memloc repair: choose another "
            "folder with --out."
        )


def _smallest(scores: Any) -> tuple[int, ...]:
    """Return the layers, from 0, that lose most among the smallest sets that lose enough."""
    sets = scores["sets"]
    if not len(sets):
        raise SettingsError("No set of layers loses the memorised labels: there is nothing to do.")
    best = sets.sort_values("lost", ascending=False, kind="stable").iloc[0]
    return tuple(int(layer) - 1 for layer in str(best["layers"]).split(", "))


def _leading(weights: FloatArray) -> tuple[int, ...]:
    """Return the smallest number of layers, from 0, that hold nine tenths of the positive
    shares.
    """
    positive = np.maximum(0, weights)
    order = np.argsort(-positive, kind="stable")
    needed = int(np.searchsorted(np.cumsum(positive[order]), UNDOES * positive.sum())) + 1
    return tuple(sorted(order[:needed].tolist()))


@dataclass(frozen=True)
class Workshop:
    """Makes and tests several repairs of one run."""

    run: Run
    settings: RepairSettings
    layers: tuple[int, ...] = ()
    """Layers, from 0, that are replaced or retrained."""
    advance: Advance = lambda _updates: None

    def compare(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return one row per repair and yardstick, and the curves of relearning the noisy
        labels.
        """
        kept: dict[str, Any] = {}
        for way in self.names:
            stored = recall(self._path(way), self.key, RECORD)
            kept |= stored or {}
        missing = [way for way in self.names if way not in kept]
        with track(f"{self.run.name} · repair", sum(self.updates(self.names))) as advance:
            advance(sum(self.updates([*kept])))
            shown = replace(self, advance=advance)
            for ready, seconds in shown._made(missing):
                measured = {}
                for way, model in ready.items():
                    row, curve = shown.measure(way, model, self._changed(way), seconds)
                    measured[way] = {"row": row, "curve": curve.to_dict("list")}
                # Models made at the same time are stored in one file.
                RECORD.write(self._path(next(iter(ready))), measured, self.key)
                kept |= measured
        curves = [pd.DataFrame(kept[way]["curve"]) for way in self.names]
        rows = [kept[way]["row"] for way in self.names]
        return relative(pd.DataFrame(rows)), pd.concat(curves, ignore_index=True)

    def _made(self, names: Sequence[str]) -> Iterator[tuple[dict[str, Classifier], float]]:
        """Yield the named models, one or several at a time, with the seconds each of them took."""
        for way, (_, make) in self.ways.items():
            if way in names:
                began = time.perf_counter()
                model = make()
                yield {way: model}, time.perf_counter() - began
        began = time.perf_counter()
        for ready in self.without_labels([name for name in names if name.startswith(YARDSTICK)]):
            seconds = (time.perf_counter() - began) / len(ready)
            yield {trained.name: trained.model for trained in ready}, seconds
            began = time.perf_counter()

    def _path(self, way: str) -> Path:
        return paths.kept_repairs(self.run.work("repair"), self.names.index(way))

    def _changed(self, way: str) -> Layers:
        every = tuple(range(self.run.depth))
        return every if way.startswith(YARDSTICK) else self.ways[way][0]

    def measure(
        self, way: str, model: Classifier, layers: Layers = None, seconds: float = 0.0
    ) -> tuple[dict[str, Any], pd.DataFrame]:
        """Return a model's row of the table, and its curve of learning the noisy labels again.

        Args:
            way: Name of the repair or yardstick.
            model: The model to measure.
            layers: Layers, from 0, that were changed.
            seconds: Seconds that making the model took.
        """
        row = self._scores(way, layers, model, seconds)
        curve = self._relearnt(way, model)
        return {**row, "relearnt_updates": geometric_mean(relearnt_at(curve, self.level))}, curve

    @property
    def names(self) -> list[str]:
        """Names of all compared models."""
        numbers = range(1, self.settings.yardsticks + 1)
        return [*self.ways, *(f"{YARDSTICK} {number}" for number in numbers)]

    def updates(self, ways: Sequence[str]) -> tuple[int, int]:
        """Return the largest number of updates for making these models and for relearning the
        labels.
        """
        run, settings = self.run, self.settings
        epochs = dict.fromkeys((RETRAINED, AGAIN, ASCENT), settings.epochs)
        epochs |= {way: run.settings.finetune.epochs for way in ways if way.startswith(YARDSTICK)}
        rows = {way: len(run.clean_rows) for way in epochs}
        rows |= {way: len(self._rows_without_labels) for way in ways if way.startswith(YARDSTICK)}
        size = run.settings.finetune.batch_size
        again = settings.relearn_epochs * -(-len(run.noisy_rows) // self.relearning.batch_size)
        making = sum(epochs[way] * -(-rows[way] // size) for way in ways if way in epochs)
        return making, len(ways) * settings.orders * again

    @cached_property
    def key(self) -> str:
        """Cache key of the comparison: everything that decides it."""
        weights = ("final", "reference", "pretrained")
        decided_by = {
            "run": self.run.identity(weights),
            "files": self.run.files(weights),
            "settings": self.settings.model_dump(mode="json", exclude={"way", "relearnt", "gone"}),
            "layers": self.layers,
            "updates": UPDATES,
            "until": max(ENOUGH, self.level),
        }
        return unfinished_key(MAKER, decided_by)

    @cached_property
    def level(self) -> float:
        """Share of predicted labels at which updates are counted.

        It is half-way between always predicting the most frequent label and predicting all of them:
        a model trained on wrong labels alone soon predicts the most frequent one everywhere.
        """
        if self.run.task.is_texts:  # to recall one is not to recall another
            return self.settings.relearnt
        labels = self.run.noisy.assigned[self.run.noisy_rows]
        commonest = float(np.bincount(labels).max() / len(labels))
        return commonest + self.settings.relearnt * (1 - commonest)

    @property
    def ways(self) -> dict[str, tuple[Layers, Callable[[], Classifier]]]:
        """For each repair, the layers it changes (from 0; None: no block) and the function that
        makes it.
        """
        run = self.run
        chosen = self.layers
        every = tuple(range(self.run.depth))
        rest = [layer for layer in every if layer not in chosen]
        draw = generator(run.seed, "repair", "random")
        some = tuple(sorted(draw.choice(run.depth, len(chosen), replace=False).tolist()))
        others = tuple(sorted(draw.permutation(rest)[: len(chosen)].tolist()))
        ways: dict[str, tuple[Layers, Callable[[], Classifier]]] = {
            BEFORE: ((), lambda: run.load("final")),
            REFERENCE: (every, lambda: run.load("reference")),
            LAYERS: (chosen, lambda: final_with(run, chosen, "reference")),
            RETRAINED: (
                chosen,
                lambda: self._learnt(final_with(run, chosen, "pretrained"), chosen),
            ),
            RANDOM: (some, lambda: final_with(run, some, "reference")),
            OTHERS: (others, lambda: final_with(run, others, "reference")),
            HEAD: (None, self._with_head),
            AGAIN: (every, lambda: self._learnt(run.load("final"), None)),
        }
        if run.task.is_texts:
            ways[ASCENT] = every, self._ascended
        return ways

    def without_labels(self, names: Sequence[str]) -> Iterator[list[Trained]]:
        """Yield models that learnt the clean examples alone, each from its own seed.

        The seed is the number at the end of a name.
        """
        run, rows = self.run, self._rows_without_labels
        labels = np.where(run.noisy.is_noisy, LEFT_OUT, run.noisy.assigned)

        def start(seed: int) -> Classifier:
            model = run.load_pretrained(seed)
            model.model.to(pick_device(run.device)).eval()
            return model

        learners = []
        for name in names:
            seed = number(run.seed, "repair", YARDSTICK, int(name.split()[-1]))
            load = partial(start, seed)
            learners.append(Learner(name, load, labels, seed, (Part(rows),)))
        texts = run.encode(run.load("pretrained"))
        yield from fit(learners, texts, run.settings.finetune, watch=Watch(self.advance))

    @property
    def _rows_without_labels(self) -> IntArray:
        """Rows that yardsticks go through in an epoch.

        A language model has no new head, so yardsticks of texts differ by their order alone. They
        go through the reference's rows, memorised texts without their loss, and take as many
        updates: the reference could be one of them.
        """
        if not self.run.task.is_texts:
            return self.run.clean_rows
        is_noisy = self.run.noisy.is_noisy
        times = np.where(is_noisy, self.run.settings.finetune.repeat, 1)
        return np.repeat(np.arange(len(times)), times)

    def _with_head(self) -> Classifier:
        """Return the model with everything after the blocks from the reference, which hides the
        labels.
        """
        final, reference = self.run.load("final"), self.run.load("reference")
        theirs = dict(reference.model.named_parameters())
        with torch.no_grad():
            for name, parameter in final.model.named_parameters():
                if name in find_parts(final.stack).after:
                    parameter.copy_(theirs[name])
        return final

    def _learnt(self, model: Classifier, layers: Sequence[int] | None) -> Classifier:
        """Return the model after training all or some of its layers on the clean examples."""
        run = self.run
        changes = {"epochs": self.settings.epochs, "frozen_dropout": True}
        part = Part(run.clean_rows, None if layers is None else tuple(layers))
        learner = Learner("repair", lambda: model, run.noisy.assigned, run.seed, (part,))
        training = run.settings.finetune.replace(changes)
        (trained,) = fit_all([learner], run.encode(model), training, Watch(self.advance))
        return trained.model

    def _ascended(self) -> Classifier:
        """Return the model after gradient ascent on the memorised texts, until few are recalled."""
        run = self.run
        model = run.load("final")
        texts = run.encode(model)
        labels = run.noisy.assigned
        rows = run.noisy_rows

        def is_done(trained: Trained) -> bool:
            recalled = trained.predicted(texts)[rows] == labels[rows]
            return bool(recalled.mean() <= self.settings.gone)

        training = run.settings.finetune.replace({"epochs": self.settings.epochs})
        learner = Learner("ascent", lambda: model, labels, run.seed, (Part(rows),), unlearns=True)
        (trained,) = fit_all([learner], texts, training, Watch(self.advance, after_epoch=is_done))
        return trained.model

    def _scores(
        self, way: str, layers: tuple[int, ...] | None, model: Classifier, seconds: float
    ) -> dict[str, Any]:
        run, test, unseen = self.run, self.run.task.test, np.nan
        encoded = run.encode(model)
        right = predicted(model.stack, encoded) == run.noisy.assigned
        if len(test):
            texts = encode_for(model, test, run.settings.text.max_tokens)
            unseen = float((predicted(model.stack, texts) == test.labels).mean())
        named = {None: "head", (): "none", tuple(range(run.depth)): "all layers"}
        some = layers_name([layer + 1 for layer in layers or ()])
        passes = BACKWARD * self.settings.epochs * len(run.clean_rows) * run.depth
        return {
            "way": way,
            "layers": named.get(layers, some),
            "noisy_predicted": float(right[run.noisy_rows].mean()),
            "clean_accuracy": float(right[run.clean_rows].mean()),
            "test_accuracy": unseen,
            **self._perplexity(model, encoded),
            "seconds": seconds,
            # Blocks that an example passes to make the model, beyond the run's own trainings.
            "block_passes": float(passes) if way in {RETRAINED, AGAIN} else 0.0,
        }

    def _perplexity(self, model: Classifier, encoded: Encoded) -> dict[str, float]:
        """Return the perplexity of the continuations of ordinary texts; nothing for a task of
        labels.
        """
        if not self.run.task.is_texts:
            return {}
        predictions = continued(model.stack, encoded)
        rows = self.run.clean_rows
        mean = predictions.log_probability[rows].sum() / predictions.is_token[rows].sum()
        return {"perplexity": float(np.exp(-mean))}

    def _relearnt(self, way: str, model: Classifier) -> pd.DataFrame:
        """Teach copies of a model the noisy labels in several orders, and return their curves."""
        orders = range(1, self.settings.orders + 1)
        shares = self._relearn(model, orders)
        longest = max(map(len, shares))
        steps = np.arange(longest) * self._interval
        frames = []
        for order, curve in zip(orders, shares, strict=True):
            # A model that knows the labels stops learning; its share stays constant.
            predicted = curve + curve[-1:] * (longest - len(curve))
            frames.append(pd.DataFrame({"update": steps, "predicted": predicted, "order": order}))
        return pd.concat(frames, ignore_index=True).assign(way=way)

    @cached_property
    def relearning(self) -> FineTuneSettings:
        """Settings for learning the noisy labels again: the run's own, with small batches."""
        usual = self.run.settings.finetune
        batch = min(usual.batch_size, -(-len(self.run.noisy_rows) // UPDATES))
        return usual.replace({"epochs": self.settings.relearn_epochs, "batch_size": batch})

    @property
    def _interval(self) -> int:
        """Number of updates between two measurements."""
        return -(-len(self.run.noisy_rows) // (self.relearning.batch_size * UPDATES))

    def _relearn(self, model: Classifier, orders: Sequence[int]) -> list[list[float]]:
        """Teach copies of a model the noisy labels, each in its own order.

        Returns, for each order, the shares of the labels that its copy predicts, measurement by
        measurement.
        """
        run = self.run
        noisy = run.task.train.take(run.noisy_rows)
        labels = run.noisy.assigned[run.noisy_rows]
        texts = encode_for(model, noisy, run.settings.text.max_tokens)
        shares: dict[str, list[float]] = {str(order): [] for order in orders}
        known: dict[str, list[float]] = {}
        until = max(ENOUGH, self.level)
        updates = 0

        def advance(done: int) -> None:
            nonlocal updates
            updates += done
            self.advance(done)

        def look(trained: Trained, update: int) -> None:
            if update % self._interval == 0:
                hits = trained.predicted(texts) == labels
                shares[trained.name].append(float(hits.mean()))

        def is_done(trained: Trained) -> bool:
            if shares[trained.name][-1] >= until:
                known.setdefault(trained.name, shares[trained.name][:])
            return trained.name in known

        learners = [Learner(str(order), model.copied, labels, order) for order in orders]
        fit_all(learners, texts, self.relearning, Watch(advance, look, is_done))
        most = sum(learner.updates(texts, self.relearning) for learner in learners)
        self.advance(most - updates)  # those that it did not take
        return [known.get(name, own) for name, own in shares.items()]


ENOUGH = 0.95
"""Share of predicted noisy labels at which relearning ends."""
UPDATES = 4
"""Target number of updates per epoch on the noisy examples, and limit of measurements per epoch.

With one update per epoch, all orders would be equal.
"""


def relearnt_at(curves: pd.DataFrame, share: float) -> FloatArray:
    """Return the updates, by order, until `share` of the labels are predicted; the last if
    never.
    """
    steps = []
    for _, curve in curves.groupby("order"):
        updates, predicted = curve["update"].to_numpy(), curve["predicted"].to_numpy()
        reached = predicted >= share
        first = int(reached.argmax()) if reached.any() else len(reached) - 1
        ends = slice(max(0, first - 1), first + 1)
        steps.append(float(np.interp(share, predicted[ends], updates[ends])))
    return np.array(steps, dtype=np.float64)


def _write(found: Repaired, workshop: Workshop) -> None:
    """Write the checkpoint, the tables of the comparison, and the figure."""
    from memloc.reporting.figures import save_spec

    run, (_, make) = workshop.run, workshop.ways[found.chosen]
    facts = {"repaired": run.name, "way": found.chosen, "layers": found.row(found.chosen)["layers"]}
    about = {**facts, "settings": found.settings.model_dump(mode="json"), "level": found.level}
    save_checkpoint(found.folder, make(), {**about, "run": run.record.model_dump(mode="json")})
    for name, table in ((paths.REPAIRS, found.table), (paths.RELEARNING, found.curves)):
        with whole_file(found.folder / name) as draft:
            table.to_csv(draft, index=False)
    save_spec(figure(found), found.folder / paths.RELEARNING_FIGURE)
    results = {"verdict": found.verdict, "sentences": found.sentences()}
    write_json(found.folder / paths.REPAIR, {**about, **results})
    shutil.rmtree(run.work("repair"), ignore_errors=True)
