"""A study's results with what follows from them, each computed once."""

from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from memloc.results import Results
from memloc.score import claims

RUN = ["task", "model", "seed"]
BINARY = "-binary"


@dataclass(frozen=True)
class Findings:
    """What figures, tables and sentences are made of; only runs that memorised count."""

    results: Results
    resamples: int = claims.RESAMPLES
    """For the intervals of correlations."""

    def memorised(self, name: str) -> pd.DataFrame:
        """A table of the results, without runs that did not memorise."""
        table: pd.DataFrame = getattr(self.results, name)
        runs = self.results.runs
        kept = runs.loc[runs["memorised"].astype(bool), RUN]
        return table.merge(kept, on=RUN) if len(table) else table

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
        mcog, events = self.memorised("mcog"), self.memorised("events")
        if mcog.empty and events.empty:
            return pd.DataFrame(columns=["task", "model", "measure", "depth", "layers"])
        return claims.depths(events, mcog, self.results.runs)

    @cached_property
    def points(self) -> pd.DataFrame:
        """Depth by every measure beside how well the task generalises, by either score."""
        scores = claims.task_scores(self.results.runs, self.results.generalisation)
        long = scores.melt(["task", "model"], var_name="against", value_name="score")
        found = self.depths[~self.depths["task"].astype(str).str.endswith(BINARY)]
        return found.merge(long, on=["task", "model"]).dropna(subset=["score", "depth"])

    @cached_property
    def table_2(self) -> pd.DataFrame:
        """Depth and generalisation, correlated over tasks."""
        if self.points.empty:
            return pd.DataFrame()
        scores = claims.task_scores(self.results.runs, self.results.generalisation)
        plain = self.depths[~self.depths["task"].str.endswith(BINARY)]
        return claims.depth_and_generalisation(plain, scores, resamples=self.resamples)

    @cached_property
    def agreement(self) -> pd.DataFrame:
        """Coefficients between methods and between models, of M-CoG and of layer weights."""
        parts = []
        for what, (name, column) in COMPARED.items():
            values = self.whole(name)
            if len(values):
                for between, compare in COMPARISONS.items():
                    found = compare(values, column, resamples=self.resamples)
                    parts.append(found.assign(what=what, between=between))
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()

    @cached_property
    def event_agreement(self) -> pd.DataFrame:
        """Whether centroids and label probes tell of the same events."""
        if self.depths.empty:
            return pd.DataFrame()
        return claims.event_agreement(self.depths, resamples=self.resamples)

    @cached_property
    def binary(self) -> dict[str, str]:
        """Tasks whose binarised version is there, too."""
        tasks = set(self.results.runs["task"])
        return {t: f"{t}{BINARY}" for t in sorted(tasks) if f"{t}{BINARY}" in tasks}

    @cached_property
    def binarisation(self) -> pd.DataFrame:
        """Tasks with all their classes beside those with two."""
        if not self.binary or self.depths.empty:
            return pd.DataFrame()
        return claims.binarisation(self.depths, self.binary, resamples=self.resamples)


COMPARED = {"M-CoG": ("mcog", "mcog"), "layer weights": ("layers", "weight")}
COMPARISONS = {"methods": claims.method_agreement, "models": claims.model_agreement}
