"""Takes memorised labels out of a model, and tests whether they are gone or only hidden.

Layers that hold the labels are replaced by the reference's, or reset and retrained on the clean
examples. A label that is no longer predicted may still be there: it is then learnt again in fewer
updates than by a model that never saw it. So every repaired model is taught the noisy labels anew,
beside the reference, and beside repairs of other layers.
"""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from memloc import paths
from memloc.errors import DataError, SettingsError, StoreError, counted
from memloc.identity import hashed
from memloc.methods.apply import localise
from memloc.methods.halves import fit
from memloc.methods.shares import MOST_EXACT
from memloc.models.device import suitable_threads
from memloc.progress import track
from memloc.records import FloatArray, IntArray, as_stored, read_json, whole_file, write_json
from memloc.run import Run
from memloc.seeds import generator
from memloc.settings import Settings, checked, ours

if TYPE_CHECKING:
    import pandas as pd

    from memloc.models.load import Classifier

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
    table: "pd.DataFrame"
    """One row per model: labels still predicted, accuracies, updates to relearn, cost, verdict."""
    curves: "pd.DataFrame"
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
    def _reference(self) -> "pd.DataFrame":
        return self.curves[self.curves["way"] == REFERENCE]

    def sentences(self) -> list[str]:
        """The verdict for people."""
        row, before = self.row(self.chosen), self.row(BEFORE)
        several = f"with more orders (--set orders={2 * self.settings.orders}) it may be"
        said = {
            "removed": "the labels are removed: they are learnt again no sooner than new ones",
            "hidden": "the labels are hidden, not removed: they are learnt again sooner",
            "still there": "the labels are still there",
            "cannot tell": "whether they are removed cannot be told: "
            + (self.untold or f"the updates vary too much; {several}"),
        }
        others = {way: self.judge(way) for way in self.table["way"] if way not in NOT_REPAIRS}
        removed = [f"{way} ({row['layers']})" for way, how in others.items() if how == "removed"]
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
        second = (
            f"Accuracy on clean training examples went from {before['clean_accuracy']:.1%} to "
            f"{row['clean_accuracy']:.1%}{_test(before, row)}; of all repairs that were compared, "
            f"{', '.join(removed) or 'none'} removed the labels."
        )
        return [first, second]


FAR_BELOW = 0.5
"""Labels that may be learnt again in so few updates, relative to the reference's, are not removed:
where that is within the margin, it cannot be told."""
NOT_REPAIRS = {BEFORE, REFERENCE}


def _test(before: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    if np.isnan(before["test_accuracy"]):
        return ""
    return f", on test examples from {before['test_accuracy']:.1%} to {row['test_accuracy']:.1%}"


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
    opened = run if isinstance(run, Run) else Run.open(run)
    chosen = checked(RepairSettings, settings or {})
    home = Path(folder)
    _refuse(opened, home)
    # Smallest sets need all subsets, and a deeper model has too many of single layers.
    subsets = {"shares.subsets": "groups"} if opened.depth > MOST_EXACT else {}
    scores = localise(opened, ["shares"], settings=subsets, device=device)["shares"]
    opened = opened if device is None else Run(opened.folder, opened.record, device)
    workshop = _Workshop(opened, chosen, _smallest(scores))
    rows, curves = workshop.compare()
    import pandas as pd

    made = WAYS[chosen.way]
    found = Repaired(home, pd.DataFrame(rows), curves, made, chosen, workshop.level)
    verdicts = [found.judge(way) for way in found.table["way"]]
    found = replace(found, table=found.table.assign(verdict=verdicts))
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
    made: "list[Classifier]" = field(default_factory=list)
    """The repaired model, once it was compared."""

    def compare(self) -> "tuple[list[dict[str, Any]], pd.DataFrame]":
        """One row per way, and the curves of learning the noisy labels again."""
        import pandas as pd

        rows, curves = [], []
        with track(f"{self.run.name} · repair", len(self.ways)) as advance:
            for way, (layers, make) in self.ways.items():
                row, curve = self._kept(way) or self._compared(way, layers, make)
                steps = relearnt_at(curve, self.level)
                rows.append({**row, "relearnt_updates": float(steps.mean())})
                curves.append(curve)
                advance(1)
        never_seen = next(r["relearnt_updates"] for r in rows if r["way"] == REFERENCE)
        for row in rows:
            row["relearning"] = row["relearnt_updates"] / never_seen if never_seen else np.nan
        return rows, pd.concat(curves, ignore_index=True)

    @property
    def chosen(self) -> "Classifier":
        """The repaired model; made again if it was compared before an interruption."""
        return self.made[0] if self.made else self.ways[WAYS[self.settings.way]][1]()

    def _compared(
        self, way: str, layers: tuple[int, ...] | None, make: "Callable[[], Classifier]"
    ) -> "tuple[dict[str, Any], pd.DataFrame]":
        """What becomes of a model that is made in a way; kept, so that a repair can go on."""
        began = time.perf_counter()
        model = make()
        row = self._scores(way, layers, model, time.perf_counter() - began)
        curve = self._relearnt(way, model)
        kept = {"identity": self.identity, "row": row, "curve": curve.to_dict("list")}
        write_json(self._file(way), kept)
        if way == WAYS[self.settings.way]:
            self.made.append(model)
        return row, curve

    def _kept(self, way: str) -> "tuple[dict[str, Any], pd.DataFrame] | None":
        """What was found of the same before."""
        import pandas as pd

        path = self._file(way)
        record = read_json(path) if path.is_file() else {}
        if record.get("identity") != self.identity:
            return None
        with as_stored(path):
            return {**record["row"]}, pd.DataFrame(record["curve"])

    def _file(self, way: str) -> Path:
        return self.run.work("repair") / f"{[*self.ways].index(way)}.json"

    @cached_property
    def identity(self) -> str:
        """Of all that decides what is compared."""
        weights = ("final", "reference", "pretrained")
        settings = self.settings.model_dump(mode="json", exclude={"way", "relearnt", "gone"})
        facts = {"run": self.run.identity(weights), "files": self.run.files(weights)}
        until = max(ENOUGH, self.level)
        chosen = {"settings": settings, "layers": self.layers, "updates": UPDATES, "until": until}
        return hashed({**facts, **chosen})

    @cached_property
    def level(self) -> float:
        """Share at which updates are counted: half-way from always the commonest label to all.

        A model that learns nothing but wrong labels soon says the commonest of them everywhere.
        """
        labels = self.run.noisy.assigned[self.run.noisy_rows]
        commonest = float(np.bincount(labels).max() / len(labels))
        return commonest + self.settings.relearnt * (1 - commonest)

    @property
    def ways(self) -> "dict[str, tuple[tuple[int, ...] | None, Callable[[], Classifier]]]":
        """By name: the layers that change (from 0; None: not blocks), and how it is made."""
        depth, own = self.run.depth, self.layers
        rest = [layer for layer in range(depth) if layer not in own]
        draw = generator(self.run.seed, "repair", "random")
        some = tuple(sorted(int(i) for i in draw.choice(depth, len(own), replace=False)))
        others = tuple(sorted(int(i) for i in draw.permutation(rest)[: len(own)]))
        every = tuple(range(depth))
        return {
            BEFORE: ((), lambda: self.run.load("final")),
            REFERENCE: (every, lambda: self.run.load("reference")),
            LAYERS: (own, lambda: self._with_reference(own)),
            RETRAINED: (own, lambda: self._retrained(own)),
            RANDOM: (some, lambda: self._with_reference(some)),
            OTHERS: (others, lambda: self._with_reference(others)),
            HEAD: (None, self._with_head),
            AGAIN: (every, self._again),
        }

    def _with_reference(self, layers: Sequence[int]) -> "Classifier":
        final, reference = self.run.load("final"), self.run.load("reference")
        for layer in layers:
            final.stack.blocks[layer].load_state_dict(reference.stack.blocks[layer].state_dict())
        return final

    def _with_head(self) -> "Classifier":
        """What follows the blocks from the reference: it hides labels that the blocks hold."""
        import torch

        from memloc.models.parts import find_parts

        final, reference = self.run.load("final"), self.run.load("reference")
        theirs = dict(reference.model.named_parameters())
        with torch.no_grad():
            for name, parameter in final.model.named_parameters():
                if name in find_parts(final.stack).after:
                    parameter.copy_(theirs[name])
        return final

    def _retrained(self, layers: Sequence[int]) -> "Classifier":
        final, start = self.run.load("final"), self.run.load("pretrained")
        for layer in layers:
            final.stack.blocks[layer].load_state_dict(start.stack.blocks[layer].state_dict())
        return self._learn_clean(final, layers)

    def _again(self) -> "Classifier":
        return self._learn_clean(self.run.load("final"), None)

    def _learn_clean(self, model: "Classifier", layers: Sequence[int] | None) -> "Classifier":
        rows, labels = self.run.clean_rows, self.run.noisy.assigned
        how = self._training(self.settings.epochs), [self.run.seed]
        with suitable_threads(self.run.record.width):
            fit([model], self.run.encode(model), rows[None], labels, how, layers=layers)
        return model

    def _training(self, epochs: int) -> Any:
        return self.run.settings.finetune.replace({"epochs": epochs})

    def _scores(
        self, way: str, layers: tuple[int, ...] | None, model: "Classifier", seconds: float
    ) -> dict[str, Any]:
        from memloc.training.predict import encode_for, predict

        run, test = self.run, self.run.task.test
        with suitable_threads(self.run.record.width):
            said = predict(model.stack, run.encode(model)).argmax(1)
            texts = encode_for(model, test, run.settings.text.max_tokens)
            unseen = predict(model.stack, texts).argmax(1) if len(test) else np.zeros(0)
        right = said == run.noisy.assigned
        named = {None: "head", (): "none", tuple(range(run.depth)): "all layers"}
        some = "layer" + "s" * (len(layers or ()) > 1)
        some += " " + ", ".join(str(layer + 1) for layer in layers or ())
        return {
            "way": way,
            "layers": named.get(layers, some),
            "noisy_predicted": float(right[run.noisy_rows].mean()),
            "clean_accuracy": float(right[run.clean_rows].mean()),
            "test_accuracy": float((unseen == test.labels).mean()) if len(test) else np.nan,
            "seconds": seconds,
            "block_passes": self._passes(way),
        }

    def _passes(self, way: str) -> float:
        """Blocks that an example went through to make the model, beyond the run's own trainings."""
        if way not in {RETRAINED, AGAIN}:
            return 0.0
        return float(BACKWARD * self.settings.epochs * len(self.run.clean_rows) * self.run.depth)

    def _relearnt(self, way: str, model: "Classifier") -> "pd.DataFrame":
        """How the noisy labels alone are learnt again, in several orders; weights are put back."""
        import pandas as pd

        kept = {name: values.clone() for name, values in model.model.state_dict().items()}
        frames = []
        for order in range(1, self.settings.orders + 1):
            frames.append(self._relearn(model, order).assign(way=way, order=order))
            model.model.load_state_dict(kept)
        return pd.concat(frames, ignore_index=True)

    def _relearn(self, model: "Classifier", order: int) -> "pd.DataFrame":
        import pandas as pd

        from memloc.training.predict import encode_for, predict

        run, labels = self.run, self.run.noisy.assigned[self.run.noisy_rows]
        batch = min(run.settings.finetune.batch_size, -(-len(labels) // UPDATES))
        settings = self._training(self.settings.relearn_epochs).replace({"batch_size": batch})
        noisy = run.task.train.take(run.noisy_rows)
        texts = encode_for(model, noisy, run.settings.text.max_tokens)
        interval = -(-len(labels) // (batch * UPDATES))
        updates, shares, until = 0, list[float](), max(ENOUGH, self.level)

        def look(done: int) -> None:
            nonlocal updates
            updates += done
            if updates % interval == 0:
                shares.append(float((predict(model.stack, texts).argmax(1) == labels).mean()))

        with suitable_threads(self.run.record.width):
            look(0)
            every: IntArray = np.arange(len(labels))[None]
            how = settings, [order]
            fit([model], texts, every, labels, how, look, is_done=lambda _: shares[-1] >= until)
        return pd.DataFrame({"update": np.arange(len(shares)) * interval, "predicted": shares})


ENOUGH = 0.95
"""Share of the noisy labels at which learning them again ends."""
UPDATES = 4
"""Updates per epoch at which batches of noisy examples aim (with one, all orders are the same),
and measurements per epoch at most."""


def relearnt_at(curves: "pd.DataFrame", share: float) -> FloatArray:
    """Updates until `share` of the labels are predicted, by order; the most there were if never."""
    steps = []
    for _, curve in curves.groupby("order"):
        updates, predicted = curve["update"].to_numpy(), curve["predicted"].to_numpy()
        (above,) = np.nonzero(predicted >= share)
        if not len(above):
            steps.append(float(updates[-1]))
        elif above[0] == 0:
            steps.append(0.0)
        else:
            ends = slice(above[0] - 1, above[0] + 1)
            steps.append(float(np.interp(share, predicted[ends], updates[ends])))
    return np.array(steps, dtype=np.float64)


def _write(found: Repaired, workshop: _Workshop) -> None:
    """The checkpoint, what was compared, and the figure."""
    from memloc.reporting.figures import save_spec
    from memloc.training.checkpoints import save_checkpoint

    run = workshop.run
    facts = {"repaired": run.name, "way": found.chosen, "layers": found.row(found.chosen)["layers"]}
    about = {**facts, "settings": found.settings.model_dump(mode="json"), "level": found.level}
    save_checkpoint(
        found.folder, workshop.chosen, {**about, "run": run.record.model_dump(mode="json")}
    )
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
    band = drawn[drawn["way"] == REFERENCE].to_dict("records")
    lines = drawn[drawn["way"] != BEFORE].to_dict("records")
    share = {"type": "quantitative", "title": "noisy labels predicted", "axis": {"format": "%"}}
    update = {"field": "update", "type": "quantitative", "title": "updates on the noisy examples"}
    area = {"x": update, "y": {**share, "field": "low"}, "y2": {"field": "high"}}
    line = {"x": update, "y": {**share, "field": "mean"}, "color": {"field": "way", "title": None}}
    title = counted(found.settings.orders, "order")
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "title": f"Learning the noisy labels again (means over {title}; band: the reference)",
        "width": 420,
        "height": 260,
        "layer": [
            {"data": {"values": band}, "mark": {"type": "area", "opacity": 0.2}, "encoding": area},
            {"data": {"values": lines}, "mark": "line", "encoding": line},
        ],
    }
