"""Takes memorised labels out of a model, and tests whether they are gone or only hidden.

Layers that hold the labels are replaced by the reference's, or reset and retrained on the clean
examples. A label that is no longer predicted may still be there: it is then learnt again in fewer
updates than by a model that never saw it. So every repaired model is taught the noisy labels anew,
beside the reference, and beside repairs of other layers.
"""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch

from memloc import paths
from memloc.errors import DataError, SettingsError, StoreError, counted
from memloc.identity import hashed
from memloc.methods.apply import localise, open_run
from memloc.methods.halves import fit
from memloc.methods.mixtures import final_with
from memloc.methods.shares import MOST_EXACT
from memloc.models.device import suitable_threads
from memloc.models.load import Classifier
from memloc.models.parts import find_parts
from memloc.progress import track
from memloc.records import FloatArray, IntArray, as_stored, read_json, whole_file, write_json
from memloc.reporting.figures import save_spec
from memloc.run import Run
from memloc.seeds import generator
from memloc.settings import Settings, checked, ours, packaged
from memloc.stats.windows import layers_name
from memloc.training.checkpoints import save_checkpoint
from memloc.training.predict import encode_for, predict

BEFORE, REFERENCE = "before", "reference"
LAYERS, RETRAINED, AGAIN = "reference's layers", "retrained layers", "fine-tuned again"
RANDOM, OTHERS, HEAD = "random layers", "other layers", "head alone"
WAYS = {"layers": LAYERS, "retrain": RETRAINED}
"""What repairs, by the name that is asked for."""
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
    orders: int = ours(6, ge=2)
    """Orders of the data in which labels are learnt again; the reference's give the band."""
    gone: float = ours(0.1, ge=0, lt=1)
    """Share of noisy labels, above what the reference predicts, that may still be predicted."""


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
        """The same of any repair."""
        row, reference = self.row(way), self.row(REFERENCE)
        if row["noisy_predicted"] > reference["noisy_predicted"] + self.settings.gone:
            return "still there"
        if self.untold:
            return "cannot tell"
        margin, updates = 1 - self.band[0], row["relearning"]
        if updates + margin < 1:
            return "hidden"
        return "removed" if updates - margin > FAR_BELOW else "cannot tell"

    @cached_property
    def untold(self) -> str:
        """Why updates of the reference are no yardstick; empty if they are."""
        curves = self._reference.groupby("order")["predicted"]
        if self.level == 1:
            return "all noisy labels are the same, so that a model learns to say nothing else"
        if (curves.first() >= self.level).any():
            return f"a model that never saw them predicts {self.level:.0%} from the start"
        if (curves.max() < self.level).any():
            return (
                f"a model that never saw them does not learn {self.level:.0%} of them in "
                f"{self.settings.relearn_epochs} epochs (--set relearn_epochs="
                f"{2 * self.settings.relearn_epochs})"
            )
        return ""

    @cached_property
    def band(self) -> tuple[float, float]:
        """Where the mean updates of another model that never saw the labels are to be expected.

        Relative to the reference's: a 95 % prediction interval, 1 ± t s √(2/n) / mean with s over
        the reference's n orders, and no narrower than from one measurement to the next.
        """
        from scipy.stats import t

        steps, n = relearnt_at(self._reference, self.level), self.settings.orders
        between = float(t.ppf(0.975, n - 1) * steps.std(ddof=1) * np.sqrt(2 / n))
        apart = float(self._reference["update"].iloc[1])
        margin = max(between, apart) / max(1, float(steps.mean()))
        return 1 - margin, 1 + margin

    @cached_property
    def _reference(self) -> pd.DataFrame:
        return self.curves[self.curves["way"] == REFERENCE]

    def sentences(self) -> list[str]:
        """The verdict for people."""
        row, before = self.row(self.chosen), self.row(BEFORE)
        more = f"with more orders (--set orders={2 * self.settings.orders}) it may be"
        why = self.untold or f"the updates vary too much; {more}"
        said = {
            "removed": "the labels are removed: they are learnt again no sooner than new ones",
            "hidden": "the labels are hidden, not removed: they are learnt again sooner",
            "still there": "the labels are still there",
            "cannot tell": f"whether they are removed cannot be told: {why}",
        }
        repairs = [way for way in self.table["way"] if way not in {BEFORE, REFERENCE}]
        removed = [
            f"{way} ({self.row(way)['layers']})" for way in repairs if self.judge(way) == "removed"
        ]
        counts = (
            f" ({row['relearning']:.2f} times the updates of a model that never saw them; for "
            f"another such model, {self.band[0]:.2f} to {self.band[1]:.2f} are to be expected)"
        )
        first = (
            f"{self.chosen[0].upper()}{self.chosen[1:]} ({row['layers']}): "
            f"{row['noisy_predicted']:.0%} of the noisy labels are predicted "
            f"({before['noisy_predicted']:.0%} before), and {said[self.verdict]}"
            f"{'' if self.untold else counts}."
        )
        names = ("clean_accuracy", "test_accuracy")
        clean, test = (f"from {before[name]:.1%} to {row[name]:.1%}" for name in names)
        unseen = "" if np.isnan(before["test_accuracy"]) else f", on test examples {test}"
        second = (
            f"Accuracy on clean training examples went {clean}{unseen}; of all repairs that were "
            f"compared, {', '.join(removed) or 'none'} removed the labels."
        )
        return [first, second]


FAR_BELOW = 0.5
"""Labels that may be learnt again in so few updates, relative to the reference's, are not removed:
where that is within the margin, it cannot be told."""


def repair(
    run: Run | str | Path,
    folder: str | Path,
    *,
    settings: Mapping[str, Any] | None = None,
    device: str | None = None,
) -> Repaired:
    """Write a checkpoint into `folder` from which the run's memorised labels are gone, and test it.

    The smallest set of layers whose replacement loses nine tenths of what all layers lose is found
    by exact shares. `settings` are those of `RepairSettings`, such as `{"way": "retrain"}`.
    """
    opened, home = open_run(run, device), Path(folder)
    chosen = checked(RepairSettings, settings or {})
    _refuse(opened, home)
    # Smallest sets need all subsets, and a deeper model has too many of single layers.
    subsets = {"shares.subsets": "groups"} if opened.depth > MOST_EXACT else {}
    scores = localise(opened, ["shares"], settings=subsets)["shares"]
    workshop = _Workshop(opened, chosen, _smallest(scores))
    with suitable_threads(opened.record.width):
        table, curves = workshop.compare()
        found = Repaired(home, table, curves, WAYS[chosen.way], chosen, workshop.level)
        verdicts = [found.judge(way) for way in table["way"]]
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
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if there and not known & there:
        raise StoreError(
            f"{folder} is there already and was not written by memloc repair: choose another "
            "folder with --out."
        )


def _smallest(scores: Any) -> tuple[int, ...]:
    """Of the smallest sets that lose enough, the one that loses most; layers from 0."""
    sets = scores["sets"]
    necessary = sets[sets["direction"] == "necessary"]
    if not len(necessary):
        raise SettingsError("No set of layers loses the memorised labels: there is nothing to do.")
    best = necessary.sort_values("lost", ascending=False, kind="stable").iloc[0]
    return tuple(int(layer) - 1 for layer in str(best["layers"]).split(", "))


@dataclass(frozen=True)
class _Workshop:
    """A run's models, taken apart and put together in several ways."""

    run: Run
    settings: RepairSettings
    layers: tuple[int, ...]

    def compare(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """One row per way, and the curves of learning the noisy labels again."""
        rows, curves = [], []
        with track(f"{self.run.name} · repair", len(self.ways)) as advance:
            for number, way in enumerate(self.ways):
                row, curve = self._compared(way, self.run.work("repair") / f"{number}.json")
                updates = float(relearnt_at(curve, self.level).mean())
                rows.append({**row, "relearnt_updates": updates})
                curves.append(curve)
                advance(1)
        table = pd.DataFrame(rows)
        never_saw = table.loc[table["way"] == REFERENCE, "relearnt_updates"].iloc[0]
        relearning = table["relearnt_updates"] / (never_saw or np.nan)
        return table.assign(relearning=relearning), pd.concat(curves, ignore_index=True)

    def _compared(self, way: str, path: Path) -> tuple[dict[str, Any], pd.DataFrame]:
        """What becomes of a model that is made in a way; kept, so that a repair can go on."""
        kept = read_json(path) if path.is_file() else {}
        if kept.get("identity") != self.identity:
            layers, make = self.ways[way]
            began = time.perf_counter()
            model = make()
            row = self._scores(way, layers, model, time.perf_counter() - began)
            curve = self._relearnt(way, model).to_dict("list")
            kept = {"identity": self.identity, "row": row, "curve": curve}
            write_json(path, kept)
        with as_stored(path):
            return {**kept["row"]}, pd.DataFrame(kept["curve"])

    @cached_property
    def identity(self) -> str:
        """Of all that decides what is compared."""
        weights = ("final", "reference", "pretrained")
        facts = {
            "run": self.run.identity(weights),
            "files": self.run.files(weights),
            "settings": self.settings.model_dump(mode="json", exclude={"way", "relearnt", "gone"}),
            "layers": self.layers,
            "updates": UPDATES,
            "until": max(ENOUGH, self.level),
        }
        return hashed(facts)

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
        fit([model], self.run.encode(model), rows[None], labels, how, layers=layers)
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
        """How the noisy labels alone are learnt again, in several orders; weights are put back."""
        kept = {name: values.clone() for name, values in model.model.state_dict().items()}
        frames = []
        for order in range(1, self.settings.orders + 1):
            frames.append(self._relearn(model, order).assign(way=way, order=order))
            model.model.load_state_dict(kept)
        return pd.concat(frames, ignore_index=True)

    def _relearn(self, model: Classifier, order: int) -> pd.DataFrame:
        run, usual = self.run, self.run.settings.finetune
        noisy, labels = run.task.train.take(run.noisy_rows), run.noisy.assigned[run.noisy_rows]
        texts = encode_for(model, noisy, run.settings.text.max_tokens)
        batch = min(usual.batch_size, -(-len(labels) // UPDATES))
        training = usual.replace({"epochs": self.settings.relearn_epochs, "batch_size": batch})
        interval = -(-len(labels) // (batch * UPDATES))
        updates, shares, until = 0, list[float](), max(ENOUGH, self.level)

        def look(done: int) -> None:
            nonlocal updates
            updates += done
            if updates % interval == 0:
                shares.append(float((predict(model.stack, texts).argmax(1) == labels).mean()))

        look(0)
        every: IntArray = np.arange(len(labels))[None]
        how = training, [order]
        fit([model], texts, every, labels, how, look, is_done=lambda _: shares[-1] >= until)
        return pd.DataFrame({"update": np.arange(len(shares)) * interval, "predicted": shares})


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


def _write(found: Repaired, workshop: _Workshop) -> None:
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
    """Relearning curves, means over orders, over the range of the reference's."""
    curves = found.curves.groupby(["way", "update"])["predicted"]
    drawn = curves.agg(mean="mean", low="min", high="max").reset_index()
    spec: dict[str, Any] = packaged(__file__)
    parts = drawn[drawn["way"] == REFERENCE], drawn[drawn["way"] != BEFORE]
    for layer, part in zip(spec["layer"], parts, strict=True):
        layer["data"] = {"values": part.to_dict("records")}
    title = spec["title"].format(orders=counted(found.settings.orders, "order"))
    return {**spec, "title": title}
