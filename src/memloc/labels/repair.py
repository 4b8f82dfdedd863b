"""Takes memorised labels out of a model, and tests whether they are gone or only hidden.

Layers that hold the labels are replaced by the reference's, or reset and retrained on the clean
examples. A label that is no longer predicted may still be there: it is then learnt again in fewer
updates than by a model that never saw it. So every repaired model is taught the noisy labels anew,
beside yardsticks: models that were trained on the clean examples alone, from several seeds.
"""

import copy
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch

from memloc.arrays import FloatArray, IntArray
from memloc.engine.loop import in_stacks, members_at_once
from memloc.errors import (
    DataError,
    SettingsError,
    StoreError,
    counted,
)
from memloc.methods.apply import localise, open_run
from memloc.methods.halves import fit
from memloc.methods.mixtures import final_with
from memloc.methods.shares import MOST_EXACT
from memloc.model.device import pick_device, suitable_threads
from memloc.model.load import Classifier
from memloc.model.parts import find_parts
from memloc.model.predict import encode_for, predict
from memloc.progress import Advance, track
from memloc.protocol import FineTuneSettings
from memloc.reporting.figures import save_spec
from memloc.reporting.sentences import SAID, say
from memloc.run.checkpoints import save_checkpoint
from memloc.run.folder import Run
from memloc.seeds import generator, number
from memloc.settings import (
    Settings,
    checked,
    ours,
    packaged,
)
from memloc.stats.intervals import prediction_margin
from memloc.stats.windows import layers_name
from memloc.store import paths
from memloc.store.files import is_draft, whole_file
from memloc.store.memo import RECORD, Maker, memo, unfinished_key
from memloc.store.records import write_json

MAKER = Maker("repair", 1)
BEFORE, REFERENCE = "before", "reference"
LAYERS, RETRAINED, AGAIN = "reference's layers", "retrained layers", "fine-tuned again"
RANDOM, OTHERS, HEAD = "random layers", "other layers", "head alone"
YARDSTICK = "yardstick"
WAYS = {"layers": LAYERS, "retrain": RETRAINED}
"""What repairs, by the name that is asked for."""
Layers = tuple[int, ...] | None
"""Layers that change, from 0; None: not blocks."""
Group = tuple[list[str], Layers, Callable[[], list[Classifier]]]
"""Models that are made together: their names, the layers that change, and how they are made."""
Judgement = Literal["removed", "hidden", "still there", "cannot tell"]
BACKWARD = 3
"""Passes of a block in an update: forwards, and about two backwards."""


class RepairSettings(Settings):
    """How a model is repaired and tested."""

    way: Literal["layers", "retrain"] = ours("layers")
    """`layers`: put in the reference's; `retrain`: reset them and train them on clean examples."""
    epochs: int = ours(3, ge=1)
    """Passes over the clean examples where layers are retrained, or all are fine-tuned again."""
    relearn_epochs: int = ours(30, ge=1)
    """Passes over the noisy examples at most, while their labels are learnt again."""
    relearnt: float = ours(0.5, gt=0, lt=1)
    """Updates count until so many noisy labels are known, beyond what always saying one gets."""
    orders: int = ours(3, ge=1)
    """Orders of the data in which every model learns the labels again."""
    yardsticks: int = ours(8, ge=2)
    """Models trained from the pre-trained weights on the clean examples alone, each from its own
    seed; how much they differ says what to expect of a model without the labels."""
    gone: float = ours(0.1, ge=0, lt=1)
    """Share of noisy labels, above what the yardsticks predict, that may still be predicted."""


@dataclass(frozen=True)
class Repaired:
    """The repaired model's folder, and how it compares with other repairs."""

    folder: Path
    table: pd.DataFrame
    """One row per model: labels still predicted, accuracies, updates to relearn, cost, verdict."""
    curves: pd.DataFrame
    """Share of noisy labels predicted by model, order and update while they are learnt again."""
    chosen: str
    settings: RepairSettings
    level: float
    """Share of the noisy labels at which updates are counted."""

    def row(self, way: str) -> Mapping[str, Any]:
        """The row of a model."""
        return dict(self.table.set_index("way").loc[way])

    @cached_property
    def verdict(self) -> Judgement:
        """Removed only if labels are neither predicted nor learnt again sooner than new ones."""
        return self.judge(self.chosen)

    def judge(self, way: str) -> Judgement:
        """The same of any model."""
        row = self.row(way)
        if row["noisy_predicted"] > self.may_predict:
            return "still there"
        if self.untold or self.is_damaged(way):
            return "cannot tell"
        low = self.band[0]
        if row["relearning"] < low:
            return "hidden"
        return "removed" if row["relearning"] * low > FAR_BELOW else "cannot tell"

    @cached_property
    def may_predict(self) -> float:
        """The largest share of noisy labels that a model without them may predict, as by chance."""
        shares = self.yardsticks["noisy_predicted"].to_numpy(np.float64)
        return float(shares.mean() + max(self.settings.gone, prediction_margin(shares)))

    def is_damaged(self, way: str) -> bool:
        """Whether a model no longer knows the clean examples: it then learns slowly anyway."""
        known = self.yardsticks["clean_accuracy"].to_numpy(np.float64)
        least = known.mean() - max(self.settings.gone, prediction_margin(known))
        return bool(self.row(way)["clean_accuracy"] < least)

    @cached_property
    def untold(self) -> str:
        """Why updates of the yardsticks say nothing; empty if they do."""
        is_yardstick = self.curves["way"].str.startswith(YARDSTICK)
        curves = self.curves[is_yardstick].groupby(["way", "order"])["predicted"]
        epochs, reasons = self.settings.relearn_epochs, SAID["repair_untold"]
        if self.level == 1:
            return str(reasons["same"])
        if (curves.first() >= self.level).any():
            return str(reasons["known"]).format(level=self.level)
        if (curves.max() < self.level).any():
            return str(reasons["slow"]).format(level=self.level, epochs=epochs, more=2 * epochs)
        return ""

    @cached_property
    def band(self) -> tuple[float, float]:
        """Where the updates of another model that never saw the labels are to be expected.

        Relative to the yardsticks' geometric mean: a 95 % prediction interval for one more
        training, of logarithms, and no narrower than from one measurement to the next.
        """
        updates = self.yardsticks["relearnt_updates"].to_numpy(np.float64)
        apart = float(self.curves["update"].iloc[1])
        resolved = np.log1p(apart / geometric_mean(updates))
        margin = max(prediction_margin(np.log(updates)), resolved)
        return float(np.exp(-margin)), float(np.exp(margin))

    @cached_property
    def yardsticks(self) -> pd.DataFrame:
        """The rows of the models that never saw the labels, nor their texts."""
        return self.table[self.table["way"].str.startswith(YARDSTICK)]

    def sentences(self) -> list[str]:
        """The verdict for people, what it cost in accuracy, and which repairs work."""
        row, before = self.row(self.chosen), self.row(BEFORE)
        low, high = self.band
        vary = say("repair_vary", yardsticks=2 * self.settings.yardsticks)
        damaged = SAID["repair_untold"]["damaged"] if self.is_damaged(self.chosen) else ""
        why = self.untold or damaged or vary
        counts = say("repair_counts", relearning=row["relearning"], low=low, high=high)
        facts = {
            "way": f"{self.chosen[0].upper()}{self.chosen[1:]}",
            "layers": row["layers"],
            "noisy": row["noisy_predicted"],
            "before": before["noisy_predicted"],
            "verdict": SAID["repair_verdicts"][self.verdict].format(why=why),
            "counts": "" if self.untold else counts,
        }
        accuracies = {
            f"{name}_{when}": which[f"{name}_accuracy"]
            for name in ("clean", "test")
            for when, which in (("before", before), ("after", row))
        }
        tested = "repair_untested" if np.isnan(before["test_accuracy"]) else "repair_tested"
        removed = [
            f"{way} ({self.row(way)['layers']})"
            for way in self.repairs
            if self.judge(way) == "removed"
        ]
        return [
            say("repaired", **facts),
            say(tested, **accuracies),
            say("repairs_compared", removed=", ".join(removed) or "none"),
        ]

    @property
    def repairs(self) -> list[str]:
        """The names of all that was made from the final weights to repair them."""
        others = {BEFORE, REFERENCE, *self.yardsticks["way"]}
        return [way for way in self.table["way"] if way not in others]


FAR_BELOW = 0.5
"""Labels that may be learnt again in so few updates, relative to the yardsticks', are not removed:
where that is within the margin, it cannot be told."""
Announce = Callable[["Workshop"], None]
"""Told before work begins."""


def repair(
    run: Run | str | Path,
    folder: str | Path,
    *,
    settings: Mapping[str, Any] | None = None,
    device: str | None = None,
    announce: Announce = lambda _workshop: None,
) -> Repaired:
    """Write a checkpoint into `folder` from which the run's memorised labels are gone, and test it.

    The smallest set of layers whose replacement loses nine tenths of what all layers lose is found
    by exact shares. `settings` are those of `RepairSettings`, such as `{"way": "retrain"}`.
    `announce` is told what there is to do before work begins.
    """
    opened, home = open_run(run, device), Path(folder)
    chosen = checked(RepairSettings, settings or {})
    _refuse(opened, home)
    announce(Workshop(opened, chosen))
    # Smallest sets need all subsets, and a deeper model has too many of single layers.
    subsets = {"shares.subsets": "groups"} if opened.depth > MOST_EXACT else {}
    scores = localise(opened, ["shares"], settings=subsets)["shares"]
    workshop = Workshop(opened, chosen, _smallest(scores))
    with suitable_threads(opened.record.width):
        table, curves = workshop.compare()
        found = Repaired(home, table, curves, WAYS[chosen.way], chosen, workshop.level)
        own = set(found.yardsticks["way"])
        verdicts = [YARDSTICK if way in own else found.judge(way) for way in table["way"]]
        found = replace(found, table=table.assign(verdict=verdicts))
        _write(found, workshop)
    return found


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
    there = {path.name for path in files if not is_draft(Path(path.name))}
    if there and not known & there:
        raise StoreError(
            f"{folder} is there already and was not written by memloc repair: choose another "
            "folder with --out."
        )


def _smallest(scores: Any) -> tuple[int, ...]:
    """Of the smallest sets that lose enough, the one that loses most; layers from 0."""
    sets = scores["sets"]
    if not len(sets):
        raise SettingsError("No set of layers loses the memorised labels: there is nothing to do.")
    best = sets.sort_values("lost", ascending=False, kind="stable").iloc[0]
    return tuple(int(layer) - 1 for layer in str(best["layers"]).split(", "))


@dataclass(frozen=True)
class Workshop:
    """A run's models, taken apart and put together in several ways."""

    run: Run
    settings: RepairSettings
    layers: tuple[int, ...] = ()
    """The layers, from 0, that are replaced or retrained."""
    advance: Advance = lambda _updates: None

    def compare(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """One row per way and yardstick, and the curves of learning the noisy labels again."""
        rows: list[dict[str, Any]] = []
        curves: list[pd.DataFrame] = []
        with track(f"{self.run.name} · repair", sum(self.updates(self.names))) as advance:
            shown = replace(self, advance=advance)
            for place, group in enumerate(shown.groups):
                found, curve = shown._compared(place, group)
                rows += found
                curves.append(curve)
        return relative(pd.DataFrame(rows)), pd.concat(curves, ignore_index=True)

    def _compared(self, place: int, group: Group) -> tuple[list[dict[str, Any]], pd.DataFrame]:
        """Return the rows and curves of models that are made together; they are kept."""
        path = paths.kept_repairs(self.run.work("repair"), place)
        kept = memo(
            path,
            unfinished_key(MAKER, {**self.decided_by, "group": group[0]}),
            partial(self._measured, group),
            RECORD,
            reused=lambda: self.advance(sum(self.updates(group[0]))),
        )
        return [{**row} for row in kept["rows"]], pd.DataFrame(kept["curve"])

    def _measured(self, group: Group) -> dict[str, Any]:
        """Make the models of a group and measure each."""
        ways, layers, make = group
        began = time.perf_counter()
        models = make()
        seconds = (time.perf_counter() - began) / len(models)
        both = [
            self.measure(way, model, layers, seconds)
            for way, model in zip(ways, models, strict=True)
        ]
        curve = pd.concat([curve for _, curve in both], ignore_index=True)
        return {"rows": [row for row, _ in both], "curve": curve.to_dict("list")}

    def measure(
        self, way: str, model: Classifier, layers: Layers = None, seconds: float = 0.0
    ) -> tuple[dict[str, Any], pd.DataFrame]:
        """A model's row of the table, and how it learns the noisy labels again."""
        row = self._scores(way, layers, model, seconds)
        curve = self._relearnt(way, model)
        return {**row, "relearnt_updates": geometric_mean(relearnt_at(curve, self.level))}, curve

    @property
    def names(self) -> list[str]:
        """The names of all models that are compared."""
        return [way for ways, _, _ in self.groups for way in ways]

    def updates(self, ways: Sequence[str]) -> tuple[int, int]:
        """Updates at most that make these models, and that teach them the labels again."""
        run, own = self.run, self.settings
        epochs = dict.fromkeys((RETRAINED, AGAIN), own.epochs)
        epochs |= {way: run.settings.finetune.epochs for way in ways if way.startswith(YARDSTICK)}
        batches = -(-len(run.clean_rows) // run.settings.finetune.batch_size)
        again = own.relearn_epochs * -(-len(run.noisy_rows) // self.relearning.batch_size)
        making = batches * sum(epochs.get(way, 0) for way in ways)
        return making, len(ways) * own.orders * again

    @cached_property
    def decided_by(self) -> dict[str, Any]:
        """Everything that decides what is compared."""
        weights = ("final", "reference", "pretrained")
        return {
            "run": self.run.identity(weights),
            "files": self.run.files(weights),
            "settings": self.settings.model_dump(mode="json", exclude={"way", "relearnt", "gone"}),
            "layers": self.layers,
            "updates": UPDATES,
            "until": max(ENOUGH, self.level),
        }

    @cached_property
    def level(self) -> float:
        """Share at which updates are counted: half-way from always the commonest label to all.

        A model that learns nothing but wrong labels soon says the commonest of them everywhere.
        """
        labels = self.run.noisy.assigned[self.run.noisy_rows]
        commonest = float(np.bincount(labels).max() / len(labels))
        return commonest + self.settings.relearnt * (1 - commonest)

    @property
    def ways(self) -> dict[str, tuple[tuple[int, ...] | None, Callable[[], Classifier]]]:
        """By name: the layers that change (from 0; None: not blocks), and how it is made."""
        run, own, every = self.run, self.layers, tuple(range(self.run.depth))
        rest = [layer for layer in every if layer not in own]
        draw = generator(run.seed, "repair", "random")
        some = tuple(sorted(draw.choice(run.depth, len(own), replace=False).tolist()))
        others = tuple(sorted(draw.permutation(rest)[: len(own)].tolist()))
        return {
            BEFORE: ((), lambda: run.load("final")),
            REFERENCE: (every, lambda: run.load("reference")),
            LAYERS: (own, lambda: final_with(run, own, "reference")),
            RETRAINED: (own, lambda: self._learnt(final_with(run, own, "pretrained"), own)),
            RANDOM: (some, lambda: final_with(run, some, "reference")),
            OTHERS: (others, lambda: final_with(run, others, "reference")),
            HEAD: (None, self._with_head),
            AGAIN: (every, lambda: self._learnt(run.load("final"), None)),
        }

    @cached_property
    def groups(self) -> list[Group]:
        """What is made together: every way alone, yardsticks as many at a time as train as one."""
        found: list[Group] = [
            ([way], layers, alone(make)) for way, (layers, make) in self.ways.items()
        ]
        every, usual = tuple(range(self.run.depth)), self.run.settings.finetune
        start = self.run.load("pretrained").stack
        most = members_at_once(start, usual, start.device)
        numbers = range(1, self.settings.yardsticks + 1)
        for some in in_stacks(numbers, most, alike=lambda _number: 0):
            names = [f"{YARDSTICK} {number}" for number in some]
            found.append((names, every, partial(self.without_labels, some)))
        return found

    def without_labels(self, numbers: Sequence[int]) -> list[Classifier]:
        """Models that learnt the clean examples alone, from the pre-trained weights and a seed."""
        run = self.run
        seeds = [number(run.seed, "repair", YARDSTICK, each) for each in numbers]
        models = [run.load_pretrained(seed) for seed in seeds]
        for model in models:
            model.model.to(pick_device(run.device)).eval()
        rows = np.tile(run.clean_rows, (len(models), 1))
        how = run.settings.finetune, seeds
        fit(models, run.encode(models[0]), rows, run.noisy.assigned, how, self.advance)
        return models

    def _with_head(self) -> Classifier:
        """What follows the blocks from the reference: it hides labels that the blocks hold."""
        final, reference = self.run.load("final"), self.run.load("reference")
        theirs = dict(reference.model.named_parameters())
        with torch.no_grad():
            for name, parameter in final.model.named_parameters():
                if name in find_parts(final.stack).after:
                    parameter.copy_(theirs[name])
        return final

    def _learnt(self, model: Classifier, layers: Sequence[int] | None) -> Classifier:
        """The model after some or all of its layers learnt the clean examples."""
        rows, labels = self.run.clean_rows, self.run.noisy.assigned
        training = self.run.settings.finetune.replace({"epochs": self.settings.epochs})
        how = training, [self.run.seed]
        texts = self.run.encode(model)
        fit([model], texts, rows[None], labels, how, self.advance, layers=layers)
        return model

    def _scores(
        self, way: str, layers: tuple[int, ...] | None, model: Classifier, seconds: float
    ) -> dict[str, Any]:
        run, test, unseen = self.run, self.run.task.test, np.nan
        right = predict(model.stack, run.encode(model)).argmax(1) == run.noisy.assigned
        if len(test):
            texts = encode_for(model, test, run.settings.text.max_tokens)
            unseen = float((predict(model.stack, texts).argmax(1) == test.labels).mean())
        named = {None: "head", (): "none", tuple(range(run.depth)): "all layers"}
        some = layers_name([layer + 1 for layer in layers or ()])
        passes = BACKWARD * self.settings.epochs * len(run.clean_rows) * run.depth
        return {
            "way": way,
            "layers": named.get(layers, some),
            "noisy_predicted": float(right[run.noisy_rows].mean()),
            "clean_accuracy": float(right[run.clean_rows].mean()),
            "test_accuracy": unseen,
            "seconds": seconds,
            # That an example goes through to make the model, beyond the run's own trainings.
            "block_passes": float(passes) if way in {RETRAINED, AGAIN} else 0.0,
        }

    def _relearnt(self, way: str, model: Classifier) -> pd.DataFrame:
        """How the noisy labels alone are learnt again, in several orders, by copies of a model."""
        orders = range(1, self.settings.orders + 1)
        most = members_at_once(model.stack, self.relearning, model.stack.device)
        frames = [
            curve.assign(way=way)
            for some in in_stacks(orders, most, alike=lambda _order: 0)
            for curve in self._relearn([_copied(model) for _ in some], some)
        ]
        return pd.concat(frames, ignore_index=True)

    @cached_property
    def relearning(self) -> FineTuneSettings:
        """How noisy labels are learnt again: as the run learnt, in small batches."""
        usual = self.run.settings.finetune
        batch = min(usual.batch_size, -(-len(self.run.noisy_rows) // UPDATES))
        return usual.replace({"epochs": self.settings.relearn_epochs, "batch_size": batch})

    def _relearn(self, models: Sequence[Classifier], orders: Sequence[int]) -> list[pd.DataFrame]:
        """The curves of models that are taught as one, each in its own order."""
        run, training = self.run, self.relearning
        noisy, labels = run.task.train.take(run.noisy_rows), run.noisy.assigned[run.noisy_rows]
        texts = encode_for(models[0], noisy, run.settings.text.max_tokens)
        interval = -(-len(labels) // (training.batch_size * UPDATES))
        most = training.epochs * -(-len(labels) // training.batch_size)
        updates, shares, until = 0, list[list[float]](), max(ENOUGH, self.level)

        def look(done: int) -> None:
            nonlocal updates
            self.advance(done)
            updates += done // len(models)
            if updates % interval == 0:
                hits = [predict(model.stack, texts).argmax(1) == labels for model in models]
                shares.append([float(hit.mean()) for hit in hits])

        look(0)
        every: IntArray = np.tile(np.arange(len(labels)), (len(models), 1))
        how = training, list(orders)
        fit(models, texts, every, labels, how, look, is_done=lambda _: min(shares[-1]) >= until)
        self.advance(len(models) * (most - updates))  # those that it did not take
        steps = np.arange(len(shares)) * interval
        return [
            pd.DataFrame({"update": steps, "predicted": predicted, "order": order})
            for order, predicted in zip(orders, zip(*shares, strict=True), strict=True)
        ]


def alone(make: Callable[[], Classifier]) -> Callable[[], list[Classifier]]:
    """The same function for a group of one."""
    return lambda: [make()]


def _copied(model: Classifier) -> Classifier:
    """A copy with weights of its own."""
    return replace(model, model=copy.deepcopy(model.model))


def relative(table: pd.DataFrame) -> pd.DataFrame:
    """The table with updates to relearn relative to the geometric mean of the yardsticks."""
    updates = table["relearnt_updates"].to_numpy(np.float64)
    is_yardstick = table["way"].str.startswith(YARDSTICK).to_numpy()
    return table.assign(relearning=updates / geometric_mean(updates[is_yardstick]))


def geometric_mean(updates: FloatArray) -> float:
    """A mean that no single slow order decides; less than one update counts as one."""
    return float(np.exp(np.log(np.maximum(1.0, updates)).mean()))


ENOUGH = 0.95
"""Share of the noisy labels at which learning them again ends."""
UPDATES = 4
"""Updates per epoch at which batches of noisy examples aim (with one, all orders are the same),
and measurements per epoch at most."""


def relearnt_at(curves: pd.DataFrame, share: float) -> FloatArray:
    """Updates until `share` of the labels are predicted, by order; the most there were if never."""
    steps = []
    for _, curve in curves.groupby("order"):
        updates, predicted = curve["update"].to_numpy(), curve["predicted"].to_numpy()
        reached = predicted >= share
        first = int(reached.argmax()) if reached.any() else len(reached) - 1
        ends = slice(max(0, first - 1), first + 1)
        steps.append(float(np.interp(share, predicted[ends], updates[ends])))
    return np.array(steps, dtype=np.float64)


def _write(found: Repaired, workshop: Workshop) -> None:
    """The checkpoint, what was compared, and the figure."""
    run, (_, make) = workshop.run, workshop.ways[found.chosen]
    facts = {"repaired": run.name, "way": found.chosen, "layers": found.row(found.chosen)["layers"]}
    about = {**facts, "settings": found.settings.model_dump(mode="json"), "level": found.level}
    save_checkpoint(found.folder, make(), {**about, "run": run.record.model_dump(mode="json")})
    for name, table in ((paths.REPAIRS, found.table), (paths.RELEARNING, found.curves)):
        with whole_file(found.folder / name) as draft:
            table.to_csv(draft, index=False)
    save_spec(figure(found), found.folder / paths.RELEARNING_FIGURE)
    said = {"verdict": found.verdict, "sentences": found.sentences()}
    write_json(found.folder / paths.REPAIR, {**about, **said})
    shutil.rmtree(run.work("repair"), ignore_errors=True)


def figure(found: Repaired) -> dict[str, Any]:
    """Relearning curves, means over orders, over the range of the yardsticks'."""
    is_yardstick = found.curves["way"].isin(found.yardsticks["way"])
    named = found.curves.assign(way=found.curves["way"].mask(is_yardstick, f"{YARDSTICK}s"))
    curves = named.groupby(["way", "update"])["predicted"]
    drawn = curves.agg(mean="mean", low="min", high="max").reset_index()
    spec: dict[str, Any] = packaged(__file__)
    parts = drawn[drawn["way"] == f"{YARDSTICK}s"], drawn[drawn["way"] != BEFORE]
    for layer, part in zip(spec["layer"], parts, strict=True):
        layer["data"] = {"values": part.to_dict("records")}
    title = spec["title"].format(orders=counted(found.settings.orders, "order"))
    return {**spec, "title": title}
