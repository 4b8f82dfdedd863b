"""Results of repairs: a verdict on each, in numbers, sentences and a figure.

A label that is no longer predicted may still be in the weights: it is then learnt again in fewer
updates than by the yardsticks, models trained on the clean examples alone.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from memloc.arrays import FloatArray
from memloc.display import Card, Shown
from memloc.errors import counted
from memloc.settings import Settings, ours, packaged
from memloc.stats.intervals import prediction_margin, tolerance_margin

BEFORE, REFERENCE = "before", "reference"
LAYERS, RETRAINED, AGAIN = "reference's layers", "retrained layers", "fine-tuned again"
ASCENT = "gradient ascent"
RANDOM, OTHERS, HEAD = "random layers", "other layers", "head alone"
YARDSTICK = "yardstick"
WAYS = {"layers": LAYERS, "retrain": RETRAINED}
"""Repairs whose checkpoint is written, by the value of the setting `way`."""
Judgement = Literal["removed", "hidden", "still there", "cannot tell"]
FAR_BELOW = 0.5
"""Share of the yardsticks' updates below which relearnt labels do not count as removed.

If the margin of error includes this share, the verdict is `cannot tell`.
"""
USUAL = 0.8
"""Share of the models without the labels that are near enough to the yardsticks' mean (and some
more, which are above) for labels to be called removed."""


class RepairSettings(Settings):
    """Settings for repairing a model and testing the repair."""

    way: Literal["layers", "retrain"] = ours("layers")
    """`layers`: insert the reference's layers; `retrain`: reset them and train on clean
    examples.
    """
    epochs: int = ours(3, ge=1)
    """Passes over the clean examples when layers are retrained or the whole model is fine-tuned."""
    relearn_epochs: int = ours(30, ge=1)
    """Largest number of passes over the noisy examples while their labels are learnt again."""
    relearnt: float = ours(0.5, gt=0, lt=1)
    """Share of noisy labels, beyond that of always predicting one label, at which updates count."""
    orders: int = ours(3, ge=1)
    """Number of orders of the data in which every model learns the labels again."""
    yardsticks: int = ours(8, ge=2)
    """Number of models trained from the pre-trained weights on the clean examples alone, each from
    its own seed; their spread shows what to expect of a model without the labels.
    """
    gone: float = ours(0.1, ge=0, lt=1)
    """Share of noisy labels, beyond what the yardsticks predict, that a repair may still
    predict.
    """


@dataclass(frozen=True, repr=False)
class Repaired(Shown):
    """Folder of the repaired model, and its comparison with other repairs."""

    folder: Path
    table: pd.DataFrame
    """One row per model: labels still predicted, accuracies, updates to relearn, cost, verdict."""
    curves: pd.DataFrame
    """Share of noisy labels predicted while relearning, by model, order and update."""
    chosen: str
    settings: RepairSettings
    level: float
    """Share of predicted noisy labels at which updates are counted."""

    def card(self) -> Card:
        """Return the verdict, with the table of compared models."""
        columns = ["way", "layers", "noisy_predicted", "clean_accuracy", "verdict"]
        rows = self.table[[name for name in columns if name in self.table]].to_dict("records")
        return Card(f"Repaired model in {self.folder}: {self.verdict}", self.sentences(), rows=rows)

    def plot(self) -> Any:
        """Return the relearning curves as an Altair chart."""
        import altair

        return altair.Chart.from_dict(figure(self))

    def row(self, way: str) -> Mapping[str, Any]:
        """Return the table's row of the model made in this way."""
        return dict(self.table.set_index("way").loc[way])

    @cached_property
    def verdict(self) -> Judgement:
        """Verdict on the repair: removed only if labels are neither predicted nor relearnt
        sooner.
        """
        return self.judge(self.chosen)

    def judge(self, way: str) -> Judgement:
        """Return the verdict on any of the compared models."""
        row = self.row(way)
        if row["noisy_predicted"] > self.may_predict:
            return "still there"
        if self.untold or self.is_damaged(way):
            return "cannot tell"
        hidden_below, removed_from = self.limits
        if row["relearning"] < hidden_below:
            return "hidden"
        is_usual = row["relearning"] >= removed_from
        is_told = row["relearning"] * self.band[0] > FAR_BELOW
        return "removed" if is_usual and is_told else "cannot tell"

    @property
    def is_texts(self) -> bool:
        """Return whether texts rather than labels were removed."""
        return "perplexity" in self.table

    @cached_property
    def may_predict(self) -> float:
        """Largest share of noisy labels that a model without them is allowed to predict."""
        shares = self.yardsticks["noisy_predicted"].to_numpy(np.float64)
        return float(shares.mean() + max(self.settings.gone, prediction_margin(shares)))

    def is_damaged(self, way: str) -> bool:
        """Return whether a model lost the clean examples as well, so that it would learn slowly
        anyway.
        """
        known = self.yardsticks["clean_accuracy"].to_numpy(np.float64)
        least = known.mean() - max(self.settings.gone, prediction_margin(known))
        return bool(self.row(way)["clean_accuracy"] < least)

    @cached_property
    def untold(self) -> str:
        """Reason why the yardsticks' updates say nothing; empty if they do."""
        is_yardstick = self.curves["way"].str.startswith(YARDSTICK)
        curves = self.curves[is_yardstick].groupby(["way", "order"])["predicted"]
        epochs = self.settings.relearn_epochs
        reasons = _texts()["untold"]
        if self.level == 1:
            return str(reasons["same"])
        if (curves.first() >= self.level).any():
            return str(reasons["known"]).format(level=self.level)
        if (curves.max() < self.level).any():
            return str(reasons["slow"]).format(level=self.level, epochs=epochs, more=2 * epochs)
        return ""

    @cached_property
    def band(self) -> tuple[float, float]:
        """Range expected for the updates of another model that never saw the labels.

        It is relative to the yardsticks' geometric mean: a 95 % prediction interval, on logarithms,
        for one more training, and at least as wide as the distance between two measurements.
        """
        margin = max(prediction_margin(self._logarithms), self._resolved)
        return float(np.exp(-margin)), float(np.exp(margin))

    @cached_property
    def limits(self) -> tuple[float, float]:
        """Relative updates below which labels are hidden, and from which on they are removed.

        Between the two nothing can be told. A few yardsticks leave their own spread uncertain: a
        model is called hidden only if it is outside of a tolerance interval, and removed only if
        most models without the labels are as far from the mean.
        """
        apart = max(tolerance_margin(self._logarithms), 2 * self._resolved)
        near = max(prediction_margin(self._logarithms, USUAL), self._resolved)
        return float(np.exp(-apart)), float(np.exp(-near))

    @property
    def _logarithms(self) -> FloatArray:
        """Logarithms of the yardsticks' updates."""
        return np.asarray(np.log(self.yardsticks["relearnt_updates"].to_numpy(np.float64)))

    @property
    def _resolved(self) -> float:
        """Logarithm of the smallest change that measurements can tell."""
        apart = float(self.curves["update"].iloc[1])
        return float(np.log1p(apart / np.exp(self._logarithms.mean())))

    @cached_property
    def yardsticks(self) -> pd.DataFrame:
        """Rows of the models that never saw the noisy examples."""
        return self.table[self.table["way"].str.startswith(YARDSTICK)]

    def sentences(self) -> list[str]:
        """Return sentences on the verdict, its cost in accuracy, and the repairs that work."""
        row, before = self.row(self.chosen), self.row(BEFORE)
        low, high = self.band
        damaged = _texts()["untold"]["damaged"] if self.is_damaged(self.chosen) else ""
        why = self.untold or damaged or self._unsure(row["relearning"])
        counts = _say("counts", relearning=row["relearning"], low=low, high=high)
        facts = {
            "way": f"{self.chosen[0].upper()}{self.chosen[1:]}",
            "layers": row["layers"],
            "noisy": row["noisy_predicted"],
            "before": before["noisy_predicted"],
            "verdict": _texts()["verdicts"][self.verdict].format(why=why),
            "counts": "" if self.untold else counts,
        }
        whens = {"before": before, "after": row}
        accuracies = {
            f"{name}_{when}": which[f"{name}_accuracy"]
            for name in ("clean", "test")
            for when, which in whens.items()
        }
        tested = "untested" if np.isnan(before["test_accuracy"]) else "tested"
        if self.is_texts:
            tested = "recalled"
            accuracies |= {f"perplexity_{k}": v["perplexity"] for k, v in whens.items()}
        removed = [
            f"{way} ({self.row(way)['layers']})"
            for way in self.repairs
            if self.judge(way) == "removed"
        ]
        sentences = [
            _say("repaired", **facts),
            _say(tested, **accuracies),
            _say("compared", removed=", ".join(removed) or "none"),
        ]
        return [_worded(sentence) for sentence in sentences] if self.is_texts else sentences

    def _unsure(self, relearning: float) -> str:
        """Return why relative updates are neither far from the yardsticks' nor near enough."""
        n_yardsticks = self.settings.yardsticks
        hidden, removed = self.limits
        name = "near" if hidden <= relearning < removed else "vary"
        return _say(
            name, own=n_yardsticks, hidden=hidden, removed=removed, yardsticks=2 * n_yardsticks
        )

    @property
    def repairs(self) -> list[str]:
        """Names of all repairs made from the final weights."""
        others = {BEFORE, REFERENCE, *self.yardsticks["way"]}
        return [way for way in self.table["way"] if way not in others]


def relative(table: pd.DataFrame) -> pd.DataFrame:
    """Add the column of updates to relearn, relative to the yardsticks' geometric mean."""
    updates = table["relearnt_updates"].to_numpy(np.float64)
    is_yardstick = table["way"].str.startswith(YARDSTICK).to_numpy()
    return table.assign(relearning=updates / geometric_mean(updates[is_yardstick]))


def geometric_mean(updates: FloatArray) -> float:
    """Return the geometric mean, which no single slow order dominates; each value is at least
    one.
    """
    return float(np.exp(np.log(np.maximum(1.0, updates)).mean()))


def figure(found: Repaired) -> dict[str, Any]:
    """Return the chart of relearning curves, as means over orders, over the yardsticks' range."""
    is_yardstick = found.curves["way"].isin(found.yardsticks["way"])
    named = found.curves.assign(way=found.curves["way"].mask(is_yardstick, f"{YARDSTICK}s"))
    curves = named.groupby(["way", "update"])["predicted"]
    drawn = curves.agg(mean="mean", low="min", high="max").reset_index()
    words = json.dumps(_texts()["figure"])
    spec: dict[str, Any] = json.loads(_worded(words) if found.is_texts else words)
    parts = drawn[drawn["way"] == f"{YARDSTICK}s"], drawn[drawn["way"] != BEFORE]
    for layer, part in zip(spec["layer"], parts, strict=True):
        layer["data"] = {"values": part.to_dict("records")}
    title = spec["title"].format(orders=counted(found.settings.orders, "order"))
    return {**spec, "title": title}


def _worded(said: str) -> str:
    """Return a sentence about labels in the words for texts."""
    for of_labels, of_texts in _texts()["of_texts"].items():
        said = said.replace(of_labels, of_texts)
    return said


def _say(name: str, **facts: Any) -> str:
    return str(_texts()[name]).format(**facts)


@cache
def _texts() -> dict[str, Any]:
    return dict(packaged(__file__))
