"""A study's results with what follows from them, each computed once."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from memloc.arrays import BoolArray, FloatArray, IntArray
from memloc.methods import by_reference
from memloc.methods.result import Outcomes
from memloc.protocol import Protocol
from memloc.reporting.results import COLUMNS, Results
from memloc.reporting.style import Theirs, method_order, plain
from memloc.stats import claims
from memloc.stats.calibration import TRUSTED, rates
from memloc.stats.claims import BINARY, POINT, over_seeds
from memloc.stats.depth import centres_of_gravity, event_depths
from memloc.stats.intervals import bootstrap_ends, wilson
from memloc.stats.windows import (
    layer_weights,
    planted_layers,
    window_matrix,
    windows_between,
)

RUN = ["task", "model", "seed"]
MOST_EXAMPLES = 40
"""Rows of the picture of examples."""
UNDONE = 0.9
"""Share of the memorised labels that counts as undone."""


@dataclass(frozen=True)
class Findings:
    """What figures, tables and sentences are made of; only runs that memorised count.

    What the reference decides counts only where the reference learnt its own labels.
    """

    results: Results

    @property
    def protocol(self) -> Protocol:
        """The study's settings."""
        return self.results.protocol

    def table(self, place: str) -> pd.DataFrame:
        """The table at a place: `whole.layers` is `whole("layers")`, `events` an attribute.

        `results.runs` is an attribute of the results.
        """
        of, _, name = place.rpartition(".")
        if of not in {"", "results"}:
            return pd.DataFrame(getattr(self, of)(name))
        return pd.DataFrame(getattr(self.results if of else self, name))

    @property
    def theirs(self) -> list[Theirs]:
        """Tables of methods that are not memloc's own."""
        names = [name for name in self.results.tables if name not in COLUMNS]
        found = [Theirs(name, self.plain(name)) for name in names]
        return [each for each in found if len(each.table)]

    def plain(self, name: str) -> pd.DataFrame:
        """What can be shown of a table of somebody else's method."""
        return plain(self.memorised(name))

    @property
    def calibration(self) -> pd.DataFrame:
        """How often each method's answers are right, as memloc measured; if there are any here."""
        results = self.results
        judged = len(results.answers) + len(results.control_answers)
        return pd.DataFrame(rates().values()) if judged else pd.DataFrame()

    def memorised(self, name: str) -> pd.DataFrame:
        """A table of the results, without runs that did not memorise.

        Without rows that an unlearnt reference decided, too: swapping, centroids of variants.
        """
        table: pd.DataFrame = getattr(self.results, name)
        if table.empty:
            return table
        # A column of somebody else's table may have any name: ours keeps this one.
        found = table.merge(self._kept[[*RUN, "unlearnt"]], on=RUN, suffixes=("_theirs", ""))
        decided: Any = found.get("variant", "plain") != "plain"
        if "method" in found:
            decided = found["method"].isin(by_reference())
        found = found[~(found.pop("unlearnt") & decided)].reset_index(drop=True)
        return self._weighed(found) if name == "mcog" else found

    def _weighed(self, mcog: pd.DataFrame) -> pd.DataFrame:
        """A table of M-CoG as the protocol has them: of each seed, or of the mean weights."""
        if self.protocol.summary.mcog == "mean over seeds":
            return mcog
        return claims.weigh_mean_weights(mcog, self.results.layers)

    @cached_property
    def _kept(self) -> pd.DataFrame:
        """Runs that memorised, and whether their reference weights do not know their own labels."""
        runs, needed = self.results.runs, self.protocol.verdict.noisy_at_least
        kept = runs[runs["memorised"].astype(bool)]
        return kept.assign(unlearnt=kept["reference_accuracy"] < needed)

    @property
    def unlearnt(self) -> pd.DataFrame:
        """Runs that memorised, but whose reference weights do not know their own labels."""
        return self._kept[self._kept["unlearnt"].astype(bool)]

    def outcomes_of(self, run: pd.DataFrame) -> dict[str, Outcomes]:
        """What windows of one run (a row of `runs`) revert, by methods that can be trusted."""
        left_out = by_reference() if self._is_unlearnt(run) else set()
        found = self.results.outcomes_of(run)
        return {method: outcomes for method, outcomes in found.items() if method not in left_out}

    def shares_of(self, run: pd.DataFrame) -> pd.DataFrame | None:
        """What each layer holds of each noisy example of one run, if its reference learnt."""
        return None if self._is_unlearnt(run) else self.results.example_shares_of(run)

    def _is_unlearnt(self, run: pd.DataFrame) -> bool:
        return len(run[RUN].merge(self.unlearnt[RUN])) > 0

    def whole(self, name: str) -> pd.DataFrame:
        """The same without binarised tasks, which are only compared with the whole ones."""
        table = self.memorised(name)
        return table[~table["task"].astype(str).str.endswith(BINARY)]

    def first_runs(self) -> list[pd.DataFrame]:
        """One row of `runs` a task and model: of those that memorised, the least seed."""
        rows = self._kept.groupby(POINT, sort=False)["seed"].idxmin()
        return [self.results.runs.loc[[row]] for row in rows]

    @cached_property
    def events(self) -> pd.DataFrame:
        """Events with the depth of their model; nothing swapped."""
        runs = self.results.runs[[*RUN, "depth"]]
        events = self.memorised("events")
        return events[events["variant"] == "plain"].merge(runs, on=RUN)

    @cached_property
    def depths(self) -> pd.DataFrame:
        """How deep memorisation is by every measure: `claims.depths`."""
        return self._depths(self.memorised("events"), self.memorised("mcog"))

    @cached_property
    def main_depths(self) -> pd.DataFrame:
        """The same of the main study: without binarised tasks and the larger models."""
        return self._depths(self._main("events"), self._main("mcog"))

    def _depths(self, events: pd.DataFrame, mcog: pd.DataFrame) -> pd.DataFrame:
        if mcog.empty and events.empty:
            return pd.DataFrame(columns=["task", "model", "measure", "depth", "layers"])
        return claims.depths(events, mcog, self.results.runs)

    @cached_property
    def points(self) -> pd.DataFrame:
        """Depth by every measure beside how well the task generalises, both with their ends."""
        if self.main_depths.empty:
            return pd.DataFrame()
        return self.main_depths.merge(self.scores, on=POINT).dropna(subset=["score", "depth"])

    @cached_property
    def scores(self) -> pd.DataFrame:
        """How well each task and model generalises: `claims.task_scores`."""
        return claims.task_scores(self._main("runs"), self._main("generalisation"))

    @cached_property
    def table_2(self) -> pd.DataFrame:
        """Depth and generalisation, correlated over tasks."""
        if self.points.empty:
            return pd.DataFrame()
        return claims.depth_and_generalisation(
            self.main_depths, self.scores, settings=self.protocol.agreement
        )

    def _main(self, name: str) -> pd.DataFrame:
        """A table without binarised tasks and without the larger models, if there are others."""
        table = self.whole(name)
        is_large = table["model"].isin(self._large)
        return table if is_large.all() else table[~is_large]

    def of_usual_depth(self, name: str) -> pd.DataFrame:
        """The same without models that have more or fewer layers than most."""
        return self.usual(self.whole(name))

    def usual(self, table: pd.DataFrame) -> pd.DataFrame:
        """A table without models that have more or fewer layers than most."""
        runs = self.results.runs
        same = runs.loc[runs["depth"] == usual_depth(runs), "model"]
        return table[table["model"].isin(same)]

    @cached_property
    def _large(self) -> list[str]:
        """Models with more layers than most: those of appendix B."""
        runs = self.results.runs
        return list(dict.fromkeys(runs.loc[runs["depth"] > usual_depth(runs), "model"]))

    @cached_property
    def agreement(self) -> pd.DataFrame:
        """Coefficients between methods and between models, of M-CoG and of layer weights."""
        parts = []
        for what, (name, column) in COMPARED.items():
            values = self.whole(name)
            if len(values):
                if column == "mcog":  # models may have other depths
                    values = values.merge(self.results.runs[[*RUN, "depth"]], on=RUN, how="left")
                    values["mcog"] /= values["depth"]
                for between in ("methods", "models"):
                    found = claims.agreement(values, column, between, self.protocol.agreement)
                    parts.append(found.assign(what=what, between=between))
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()

    @cached_property
    def order_agreement(self) -> pd.DataFrame:
        """Whether models order the tasks alike, by each method: `claims.order_agreement`."""
        return claims.order_agreement(self._main("mcog"), self.protocol.agreement)

    @cached_property
    def event_agreement(self) -> pd.DataFrame:
        """Whether centroids and label probes tell of the same events."""
        if self.main_depths.empty:
            return pd.DataFrame()
        return claims.event_agreement(self.main_depths, self.protocol.agreement)

    @cached_property
    def size_agreement(self) -> pd.DataFrame:
        """Whether larger models, by name or by depth, put memorisation of the same tasks deeper."""
        depths = self.depths[~self.depths["task"].astype(str).str.endswith(BINARY)]
        models, larger = list(dict.fromkeys(depths["model"])), set(self._large)
        small = [name for name in models if name not in larger]
        parts = [
            claims.size_agreement(depths, large, small, self.protocol.agreement).assign(large=large)
            for large in models
            if large in larger and small
        ]
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()

    @cached_property
    def binarisation(self) -> pd.DataFrame:
        """Tasks with all their classes beside those with two."""
        if self.binary_depths.empty:
            return pd.DataFrame()
        return claims.binarisation(self.binary_depths, self.protocol.agreement)

    @cached_property
    def binary_depths(self) -> pd.DataFrame:
        """Depths of tasks with all their classes and with two, of the seeds that have both."""
        found = self._depths(self.paired("events", "event"), self.paired("mcog", "method"))
        by_task = self.protocol.summary.binarised_events == "task means"
        return claims.over_models(found) if by_task and len(found) else found

    def paired(self, name: str, by: str) -> pd.DataFrame:
        """A table of tasks with all their classes and with two, of the seeds that have both."""
        found = claims.same_seeds(self.memorised(name), by)
        return self._weighed(found) if name == "mcog" else found

    @cached_property
    def leading(self) -> str:
        """The method that the answer is by: exact shares if there are some, else the paper's."""
        localised = method_order(self.memorised("layers")["method"])
        return [*localised, *method_order(self.results.control_layers["method"]), ""][0]

    @cached_property
    def strip(self) -> pd.DataFrame:
        """What each layer of a task and model holds by the leading method.

        Planted runs follow, as means over those with the same layers. Weights are shares of their
        (positive) sum, so that methods can be compared.
        """
        runs = self.memorised("layers").assign(planted="", inside=False, first=0)
        plants = self.results.control_layers
        plants = plants[~plants["null"].astype(bool)]
        planted = plants.assign(inside=is_planted(plants), task="", model="")
        both = pd.concat([runs, planted], ignore_index=True)
        if self.leading not in TRUSTED:  # weights of others are not what a layer holds
            return both.head(0)
        both = both[both["method"] == self.leading]
        keys = [*POINT, "planted", "inside", "first", "layer"]
        found = over_seeds(both, keys, "weight").sort_values("layer", kind="stable")
        whole = found.groupby([*POINT, "planted"])["weight"].transform(lambda w: w.clip(0).sum())
        ends = {name: found[name] / whole for name in ("weight", "low", "high")}
        return found.assign(**ends, method=self.leading).reset_index(drop=True)

    @property
    def paired_mcog(self) -> pd.DataFrame:
        """Centres of gravity of tasks with all their classes and with two, usual models only."""
        return self.usual(self.paired("mcog", "method"))

    @cached_property
    def example_layers(self) -> pd.DataFrame:
        """Noisy examples by layer, with their texts; of one seed, by methods that change layers.

        By windows, a cell is the example's own layer weight: over window widths, the mean share of
        the windows with that layer that revert the example. By shares, it is the layer's part of
        the label's margin. Examples are ordered by where they are held; of many, evenly spaced ones
        are drawn.
        """
        parts = []
        for run in self.first_runs():
            texts = self.results.examples_of(run, noisy_only=True).drop(columns="is_noisy")
            for method, outcomes in self.outcomes_of(run).items():
                weights = example_weights(outcomes.noisy_wrong, outcomes.windows)
                held = pd.DataFrame(weights, outcomes.noisy_rows, range(1, weights.shape[1] + 1))
                parts.append(_example_rows(method, held, texts))
            shares = self.shares_of(run)
            if shares is not None:
                parts.append(_example_rows("shares", shares, texts))
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()

    @cached_property
    def single_layers(self) -> pd.DataFrame:
        """Figure 4: what changing one layer does at most, one row per run and method."""
        same_layer = self.protocol.summary.single_layer == "largest mean"
        return single_layers(self.whole("windows"), same_layer=same_layer)


def example_weights(wrong: BoolArray, known: Sequence[range]) -> FloatArray:
    """Layer weights (n, L) of each example from which of the windows revert it: `wrong` (n, W)."""
    depth = max(window.stop for window in known)
    return layer_weights(window_matrix(wrong.astype(np.float64), depth, known))


def spread(weights: FloatArray) -> IntArray:
    """Rows of examples from those reverted in low layers to high ones; of many, evenly spaced."""
    held = np.nan_to_num(weights).clip(0)
    order = np.argsort(centres_of_gravity(held), kind="stable")  # never reverted: NaN, last
    if len(order) > MOST_EXAMPLES:
        order = order[np.linspace(0, len(order) - 1, MOST_EXAMPLES).round().astype(int)]
    return order


def _example_rows(method: str, weights: pd.DataFrame, texts: pd.DataFrame) -> pd.DataFrame:
    """One row per example, in their order, and layer."""
    chosen = weights.iloc[spread(weights.to_numpy())].rename_axis("example").reset_index()
    rows = chosen.melt("example", var_name="layer", value_name="share").astype({"layer": int})
    rows = rows.merge(texts, on="example")
    short = rows["text"].str.slice(0, 60) + "  #" + rows["example"].astype(str)
    return rows.assign(method=method, row=short)


def single_layers(windows: pd.DataFrame, *, same_layer: bool) -> pd.DataFrame:
    """The windows of one layer with the largest errors, with Wilson intervals.

    Of each seed, or, if `same_layer`, of the layers' means over seeds: then errors are divided by
    that of all layers where layer weights are, but the difference to clean ones stays a plain one.
    """
    run, point = [*RUN, "method"], [*POINT, "method"]
    sure = wilson(*(windows[n].to_numpy(np.float64) for n in ("error", "n_noisy")))
    difference = windows["error"] - windows["clean_error"]
    found = windows.assign(low=sure.low, high=sure.high, difference=difference)
    if same_layer:
        # Errors of a run are divided by one number; NaN where no error is above zero.
        most = windows.groupby(run)[["normalised", "error"]].transform("max")
        share = (most["normalised"] / most["error"]).fillna(1.0)
        ends = {end: found[end] * share for end in ("low", "high")}
        found = found.assign(error=found["normalised"], **ends).dropna(subset="error")
    single = found[found["first"] == found["last"]]
    if not same_layer:
        return largest(single, run)
    means = single.groupby([*point, "first"])[["error"]].mean().reset_index()
    return single.merge(largest(means, point)[[*point, "first"]])


def largest(table: pd.DataFrame, key: list[str], value: str = "error") -> pd.DataFrame:
    """Of each group the row with the largest value; of several, the first."""
    return table.loc[table.groupby(key)[value].idxmax()] if len(table) else table


COMPARED = {"M-CoG": ("mcog", "mcog"), "layer weights": ("layers", "weight")}


def is_planted(layers: pd.DataFrame) -> BoolArray:
    """Whether labels were planted in the layer that each row is of; in nulls there are none."""
    places = zip(layers["layer"] - 1, layers["planted"], layers["null"], strict=True)
    inside = [layer in planted_layers(str(plant)) and not null for layer, plant, null in places]
    return np.array(inside, dtype=bool)


def over_groups(table: pd.DataFrame, by: Sequence[str], value: str, group: str) -> pd.DataFrame:
    """Mean of `value` over the models or methods (`group`) of each, of which seeds are averaged.

    `low` and `high` are the ends of the 95 % bootstrap interval over the groups; where there is
    one group only, they hold its seeds' intervals. The column `n` counts groups.
    """
    each = over_seeds(table, [*by, group], value).dropna(subset=[value])
    rows = []
    for key, part in each.groupby(list(by), sort=False):
        row = dict(zip(by, key, strict=True)) | {value: part[value].mean(), "n": len(part)}
        low, high = part["low"].min(), part["high"].max()
        if len(part) > 1:
            low, high = bootstrap_ends(part[value].to_numpy(np.float64))
        rows.append({**row, "low": low, "high": high})
    return pd.DataFrame(rows, columns=[*by, value, "low", "high", "n"])


def counted_events(table: pd.DataFrame) -> pd.DataFrame:
    """Events with numbers to average: never is the layer after the last of the model's `depth`.

    `never` and `unclear` mark those, and events where classes cannot be told apart.
    """
    depth = table["depth"].to_numpy(np.float64)
    numbers = event_depths(table, depth)
    never = table["layer"].isna()
    unclear = ~never & ~table["separable"].astype(bool)
    return table.assign(**numbers, never=never.astype(int), unclear=unclear.astype(int))


def usual_depth(table: pd.DataFrame) -> int:
    """How many layers most models have, by the columns `model` and `depth`; of no model: 0.

    Layers of other models cannot be averaged or compared with theirs.
    """
    found = table.drop_duplicates("model")["depth"].mode()
    return int(found.iloc[0]) if len(found) else 0


def layers_to_undo(windows: pd.DataFrame) -> pd.DataFrame:
    """How many layers to change for UNDONE of what all layers undo; one row per run and method.

    `best` is the width of the narrowest window that does it. `on_average` is the paper's reading of
    Figure 3: the first row of the window matrix, in which all layers are 1, whose mean over layers
    is that large. NaN where no width is enough.
    """
    keys = ["task", "model", "seed", "method"]
    rows = []
    for key, part in windows.groupby(keys, sort=False):
        enough = part.loc[part["normalised"] >= UNDONE, "last"] - part["first"] + 1
        known = windows_between(part["first"], part["last"])
        shares = part["normalised"].to_numpy(np.float64)
        average = np.nan
        if np.isfinite(shares).all():
            matrix = window_matrix(shares, int(part["last"].max()), known)
            wide = np.flatnonzero(matrix.mean(axis=1) >= UNDONE)
            average = float(wide[0]) + 1 if len(wide) else np.nan
        counts = {"best": enough.min(), "on_average": average}
        rows.append({**dict(zip(keys, key, strict=True)), **counts})
    return pd.DataFrame(rows, columns=[*keys, "best", "on_average"])
