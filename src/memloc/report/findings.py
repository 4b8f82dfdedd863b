"""A study's results with what follows from them, each computed once."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from memloc.config import FILE, read_study
from memloc.protocol import Protocol, preset
from memloc.records import FloatArray
from memloc.report.means import usual_depth, wilson_ends
from memloc.results import Results
from memloc.score import claims
from memloc.score.depth import event_depth
from memloc.train.run import Run

RUN = ["task", "model", "seed"]
POINT = ["task", "model"]
BINARY = "-binary"


@dataclass(frozen=True)
class Findings:
    """What figures, tables and sentences are made of; only runs that memorised count."""

    results: Results
    resamples: int = claims.RESAMPLES
    """For the intervals of correlations."""

    @cached_property
    def protocol(self) -> Protocol:
        """The study's settings; of runs without a study, the first one's."""
        folder = self.results.folder
        if (folder / FILE).is_file():
            return read_study(folder).study.protocol
        runs = [folder / str(name) for name in self.results.runs["folder"]]
        there = [path for path in runs if (path / "run.json").is_file()]
        return Run.open(there[0]).protocol if there else preset("paper")

    def memorised(self, name: str) -> pd.DataFrame:
        """A table of the results, without runs that did not memorise."""
        table: pd.DataFrame = getattr(self.results, name)
        runs = self.results.runs
        kept = runs.loc[runs["memorised"].astype(bool), RUN]
        found = table.merge(kept, on=RUN) if len(table) else table
        return self._weighed(found) if name == "mcog" else found

    def _weighed(self, mcog: pd.DataFrame) -> pd.DataFrame:
        """A table of M-CoG as the protocol has them: of each seed, or of the mean weights."""
        if self.protocol.summary.mcog == "mean over seeds":
            return mcog
        return claims.weigh_mean_weights(mcog, self.results.layers)

    def whole(self, name: str) -> pd.DataFrame:
        """The same without binarised tasks, which are only compared with the whole ones."""
        table = self.memorised(name)
        return table[~table["task"].astype(str).str.endswith(BINARY)]

    def first_runs(self) -> list[pd.DataFrame]:
        """One row of `runs` a task and model: of those that memorised, the least seed."""
        runs = self.results.runs
        kept = runs[runs["memorised"].astype(bool)]
        rows = kept.groupby(["task", "model"], sort=False)["seed"].idxmin()
        return [runs.loc[[row]] for row in rows]

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
        depths = self.main_depths.merge(depth_ends(self), on=[*POINT, "measure"], how="left")
        return depths.merge(score_ends(self), on=POINT).dropna(subset=["score", "depth"])

    @cached_property
    def table_2(self) -> pd.DataFrame:
        """Depth and generalisation, correlated over tasks."""
        if self.points.empty:
            return pd.DataFrame()
        scores = claims.task_scores(self._main("runs"), self._main("generalisation"))
        return claims.depth_and_generalisation(
            self.main_depths, scores, settings=self.protocol.agreement, resamples=self.resamples
        )

    def _main(self, name: str) -> pd.DataFrame:
        """A table without binarised tasks and without the larger models, if there are others."""
        table = self.whole(name)
        is_large = table["model"].isin(self._large)
        return table if is_large.all() else table[~is_large]

    def usual(self, table: pd.DataFrame) -> pd.DataFrame:
        """A table without models that have more or fewer layers than most."""
        runs = self.results.runs
        same = runs.loc[runs["depth"] == usual_depth(runs), "model"]
        return table[table["model"].isin(same)]

    @cached_property
    def _large(self) -> list[str]:
        return [Path(name).name for name in self.protocol.models.large]

    @cached_property
    def agreement(self) -> pd.DataFrame:
        """Coefficients between methods and between models, of M-CoG and of layer weights."""
        parts = []
        for what, (name, column) in COMPARED.items():
            values = self.whole(name)
            if len(values):
                if column == "mcog":  # models may have other depths
                    values = values.assign(mcog=_share_of_layers(values, self.results.runs))
                for between, compare in COMPARISONS.items():
                    settings = self.protocol.agreement
                    found = compare(values, column, settings, resamples=self.resamples)
                    parts.append(found.assign(what=what, between=between))
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()

    @cached_property
    def event_agreement(self) -> pd.DataFrame:
        """Whether centroids and label probes tell of the same events."""
        if self.main_depths.empty:
            return pd.DataFrame()
        settings = self.protocol.agreement
        return claims.event_agreement(self.main_depths, settings, resamples=self.resamples)

    @cached_property
    def size_agreement(self) -> pd.DataFrame:
        """Whether larger models, by name or by depth, put memorisation of the same tasks deeper."""
        depths = self.depths[~self.depths["task"].astype(str).str.endswith(BINARY)]
        runs, models = self.results.runs, list(dict.fromkeys(depths["model"]))
        deeper = set(runs.loc[runs["depth"] > usual_depth(runs), "model"])
        larger = deeper.union(self._large)
        small = [name for name in models if name not in larger]
        parts = [
            claims.size_agreement(
                depths, large, small, self.protocol.agreement, resamples=self.resamples
            ).assign(large=large)
            for large in models
            if large in larger and small
        ]
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()

    @cached_property
    def binary(self) -> dict[str, str]:
        """Tasks whose binarised version is there, too."""
        tasks = set(self.results.runs["task"])
        return {t: f"{t}{BINARY}" for t in sorted(tasks) if f"{t}{BINARY}" in tasks}

    @cached_property
    def binarisation(self) -> pd.DataFrame:
        """Tasks with all their classes beside those with two."""
        if not self.binary or self.binary_depths.empty:
            return pd.DataFrame()
        settings, resamples = self.protocol.agreement, self.resamples
        return claims.binarisation(self.binary_depths, self.binary, settings, resamples=resamples)

    @cached_property
    def binary_depths(self) -> pd.DataFrame:
        """Depths of tasks with all their classes and with two, of the seeds that have both."""
        found = self._depths(self.paired("events", "event"), self.paired("mcog", "method"))
        by_task = self.protocol.summary.binarised_events == "task means"
        return claims.over_models(found) if by_task and len(found) else found

    def paired(self, name: str, by: str) -> pd.DataFrame:
        """A table of tasks with all their classes and with two, of the seeds that have both."""
        found = claims.same_seeds(self.memorised(name), self.binary, by)
        return self._weighed(found) if name == "mcog" else found

    @cached_property
    def single_layers(self) -> pd.DataFrame:
        """Figure 4: what changing one layer does at most, one row per run and method."""
        same_layer = self.protocol.summary.single_layer == "largest mean"
        return single_layers(self.whole("windows"), same_layer=same_layer)


def single_layers(windows: pd.DataFrame, *, same_layer: bool) -> pd.DataFrame:
    """The windows of one layer with the largest errors, with Wilson intervals.

    Of each seed, or, if `same_layer`, of the layers' means over seeds: then errors are divided by
    that of all layers where layer weights are, but the difference to clean ones stays a plain one.
    """
    run, point = [*RUN, "method"], [*POINT, "method"]
    low, high = wilson_ends(*(windows[n].to_numpy(np.float64) for n in ("error", "n_noisy")))
    difference = windows["error"] - windows["clean_error"]
    found = windows.assign(low=low, high=high, difference=difference)
    if same_layer:
        # Errors of a run are divided by one number; NaN where no error is above zero.
        most = windows.groupby(run)[["normalised", "error"]].transform("max")
        share = (most["normalised"] / most["error"]).fillna(1.0)
        ends = {end: found[end] * share for end in ("low", "high")}
        found = found.assign(error=found["normalised"], **ends).dropna(subset="error")
    single = found[found["first"] == found["last"]]
    if not same_layer:
        return _largest(single, run)
    means = single.groupby([*point, "first"])[["error"]].mean().reset_index()
    return single.merge(_largest(means, point)[[*point, "first"]])


def _largest(table: pd.DataFrame, key: list[str]) -> pd.DataFrame:
    """Of each group the row with the largest error; of several, the first."""
    return table.loc[table.groupby(key)["error"].idxmax()] if len(table) else table


def _share_of_layers(mcog: pd.DataFrame, runs: pd.DataFrame) -> FloatArray:
    depth = mcog.merge(runs[[*RUN, "depth"]], on=RUN, how="left")["depth"]
    return np.asarray(mcog["mcog"].to_numpy(float) / depth.to_numpy(float))


COMPARED = {"M-CoG": ("mcog", "mcog"), "layer weights": ("layers", "weight")}
COMPARISONS = {"methods": claims.method_agreement, "models": claims.model_agreement}


def depth_ends(findings: Findings) -> pd.DataFrame:
    """What holds the seeds' intervals, by task, model and measure of depth.

    Those of `M-CoG`, a mean over methods, are the means of the methods' ends.
    """
    mcog = findings.memorised("mcog")
    methods = _ends(mcog.assign(measure="M-CoG " + mcog["method"].astype(str)), "depth")
    shared = _measured_everywhere(findings.main_depths)
    mean = methods[methods["measure"].isin(shared)].groupby(POINT)[["depth_low", "depth_high"]]
    events = findings.events
    depth = events["depth"].to_numpy(float)
    filled = {n: event_depth(events[n].to_numpy(float), depth) for n in ("low", "high")}
    parts = [
        methods,
        mean.mean().reset_index().assign(measure="M-CoG"),
        _ends(events.assign(measure=events["event"], **filled), "depth"),
    ]
    return pd.concat([part for part in parts if len(part)], ignore_index=True)


def score_ends(findings: Findings) -> pd.DataFrame:
    """Either score (`against`) by task and model, with what holds the seeds' intervals."""
    runs, generalisation = findings.memorised("runs"), findings.memorised("generalisation")
    scores = claims.task_scores(runs, generalisation)
    long = scores.melt(POINT, var_name="against", value_name="score")
    chance = 1 / runs["n_classes"]
    unseen = (runs[n].to_numpy(float) for n in ("validation_accuracy", "validation"))
    low, high = ((end - chance) / (1 - chance) for end in wilson_ends(*unseen))
    parts = [
        _ends(generalisation.assign(against="generalisation"), "score", "against"),
        _ends(runs.assign(against="validation", low=low, high=high), "score", "against"),
    ]
    ends = pd.concat([part for part in parts if len(part)], ignore_index=True)
    return long.merge(ends, on=[*POINT, "against"], how="left")


def _ends(table: pd.DataFrame, name: str, by: str = "measure") -> pd.DataFrame:
    named = {f"{name}_low": ("low", "min"), f"{name}_high": ("high", "max")}
    return pd.DataFrame(table.groupby([*POINT, by]).agg(**named)).reset_index()


def _measured_everywhere(depths: pd.DataFrame) -> set[str]:
    """The single methods' measures that every task and model with one has."""
    single = depths[depths["measure"].str.startswith("M-CoG ")]
    points = len(single[POINT].drop_duplicates())
    counts = single.groupby("measure").size()
    return set(counts[counts == points].index)
