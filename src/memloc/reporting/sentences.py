"""What results say, in sentences that are computed from the numbers: of one result, of a study."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import factorial
from typing import Any

import numpy as np
import pandas as pd
import yaml

from memloc.errors import counted, listed
from memloc.methods.result import Result, events_of
from memloc.reporting.findings import (
    RUN,
    UNDONE,
    Findings,
    largest,
    layers_to_undo,
)
from memloc.reporting.missing import command
from memloc.reporting.style import asset, method_order
from memloc.stats.agreement import FEWEST_GROUPS
from memloc.stats.calibration import TRUSTED
from memloc.stats.claims import ALL, POINT, over_seeds
from memloc.stats.depth import has_interval
from memloc.stats.planted import mean_scores
from memloc.stats.windows import layer_ranges

SAID: dict[str, Any] = yaml.safe_load(asset("sentences.yaml"))
"""Sentences and parts of them, by name."""


def say(name: str, **values: Any) -> str:
    """The sentence of this name with these values in it."""
    return str(SAID[name]).format(**values)


def sentence(found: Result) -> str:
    """What a method says about a model, with how sure it is."""
    events = events_of(found.method, found["events"]) if "events" in found.tables else None
    if found.weighs_layers:
        text = " ".join([_layers_matter(found), *found.remarks])
    elif found.method == "generalisation":
        text = say("generalised", **found["summary"].iloc[0])
    elif events is not None:
        text = _happenings(events)
    else:  # an analysis of somebody else
        tables = [f"{name} ({counted(len(t), 'row')})" for name, t in found.tables.items()]
        text = f"{found.method} made {listed(tables)}."
    if found.about.get("forced"):
        return say("forced", share=found.about.get("final_noisy_accuracy", math.nan), text=text)
    return text


def _layers_matter(scores: Result) -> str:
    mcog = {**asdict(scores.mcog), "method": scores.method, "depth": scores.depth}
    if math.isnan(mcog["estimate"]):
        return say("no_centre", **mcog)
    sure = "" if math.isnan(mcog["low"]) else say("centre_interval", **mcog)
    text = say("centre", **mcog, sure=sure, most=int(np.argmax(scores.weights)) + 1)
    if "windows" in scores.tables:
        text += f"; changing {_undone(scores['windows'].assign(run=1), ['run'])}"
    return f"{text}."


def _happenings(events: pd.DataFrame) -> str:
    """Events in words; `never` and layers where classes cannot be told apart are named."""
    said = []
    for event in events[events["variant"] == "plain"].to_dict("records"):
        layer, low, high = (layer_name(event[name]) for name in ("layer", "low", "high"))
        at = layer if layer == "never" else f"layer {layer}"
        unclear = layer != "never" and not event["separable"]
        mark = SAID["unclear"] if unclear else ""
        what = SAID["events"].get(event["event"], event["event"])
        known = has_interval(event["low"], event["high"], event["never"])
        sure = say("event_interval", low=low, high=high) if known else ""
        said.append(say("event", what=what, at=at, sure=sure, mark=mark))
    return "; ".join(said).capitalize() + "."


def layer_name(layer: float) -> str:
    """A layer as people read it."""
    return "never" if math.isnan(layer) else f"{layer:.0f}"


def remarks_on(table: pd.DataFrame) -> str:
    """What the results in a table say against themselves, each sentence once with its runs."""
    found, said = marked(table), []
    for remark, part in found.groupby("remark", sort=False) if len(found) else ():
        names = list(map(_name, part.drop_duplicates(["task", "model", "seed"]).to_dict("records")))
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        said.append(f"{str(remark).removesuffix('.')} ({', '.join(names[:SHOWN])}{more}).")
    return " ".join(said)


def marked(table: pd.DataFrame) -> pd.DataFrame:
    """The rows that have a remark; of nulls, in which there is nothing to find, none counts."""
    if "remark" not in table.columns:
        return table.head(0)
    counts = table["remark"].astype(str) != ""
    return table[counts & ~table["null"].astype(bool)] if "null" in table else table[counts]


SHOWN = 3
"""Runs that are named; the others are counted."""


@dataclass(frozen=True)
class Line:
    """A sentence about a study."""

    section: str
    """Which section of the page it belongs to."""
    text: str
    is_open: bool = False
    """It says what could not be concluded, and why."""


@dataclass(frozen=True)
class Summary:
    """A study in sentences."""

    answer: str
    """One sentence: which layers hold what was memorised."""
    trust: str
    """How far to trust it."""
    learnt: str
    """What the models learnt."""
    lines: tuple[Line, ...]
    """Everything else, section by section."""

    @property
    def found(self) -> tuple[str, ...]:
        """What was found."""
        return tuple(line.text for line in self.lines if not line.is_open)

    @property
    def open(self) -> tuple[str, ...]:
        """What could not be concluded, and why."""
        return tuple(line.text for line in self.lines if line.is_open)


def summarise(findings: Findings) -> Summary:
    """The sentences of a study."""
    if findings.results.runs.empty:
        none = f"There is no run yet: `{command('train', findings.results)}`."
        planted = tuple(_trust(findings))  # a study may do nothing but plant
        lines = planted or (Line("where", none, is_open=True),)
        return Summary(lines[0].text, "", "", lines[1:])
    told = (_trust, _depth, _windows, _events, _left_out, _coefficients)
    lines = tuple(line for tell in told for line in tell(findings))
    return Summary(_answer(findings), _how_sure(findings), _learnt(findings), lines)


def _answer(findings: Findings) -> str:
    """Which layers hold what was memorised; nothing is concluded from runs that did not."""
    results, method = findings.results, findings.leading
    layers, mcog, answers = (
        table[table["method"] == method]
        for table in map(findings.whole, ("layers", "mcog", "answers"))
    )
    if findings.memorised("runs").empty:
        return say("nothing_memorised")
    if layers.empty:
        made = command("shares", results) or command("localise", results)
        why = say("not_localised", todo=_by(" yet (`{}`)", made))
        return say(
            "nothing_named", why=SAID["unlearnt_references"] if len(findings.unlearnt) else why
        )
    if method not in TRUSTED:
        return say("one_method", method=method, todo=_by(": try `{}`", command("shares", results)))
    if 0 < len(answers) <= NAMED:
        return _placed(answers)
    said = _counted_words(answers) if len(answers) else ""
    return f"{said} {_described(layers, mcog)}".lstrip()


def _placed(answers: pd.DataFrame) -> str:
    """How much is where in each of a few runs, one sentence each."""
    rows = answers.to_dict("records")
    return " ".join(
        f"{name}: {row['sentence'][0].lower()}{row['sentence'][1:]}"
        for name, row in zip(_names(rows), rows, strict=True)
    )


def _counted_words(answers: pd.DataFrame) -> str:
    """In how many runs the memorised labels are concentrated, uneven or even."""
    counts = answers["word"].value_counts()
    parts = [f"{word} in {n}" for word, n in counts.items() if word != "cannot tell"]
    if unknown := int(counts.get("cannot tell", 0)):
        parts.append(f"not to be placed in {unknown}")
    return f"Of {counted(len(answers), 'run')}, the memorised labels are {listed(parts)}."


def _described(layers: pd.DataFrame, mcog: pd.DataFrame) -> str:
    """Where the weights of a method and their centres are, which is no verdict."""
    method = layers["method"].iloc[0]
    by = "by layer shares" if method == "shares" else f"by {method}, which blurs,"
    points = [part for _, part in layers.groupby(POINT, sort=False)]
    if len(points) > NAMED:
        centres = _range(over_seeds(mcog, POINT, "mcog")["mcog"], ".1f")
        return say("centres", by=by, centres=centres, depth=layers["layer"].max())
    groups: dict[str, list[str]] = {}
    for name, part in zip(_names([part.iloc[0] for part in points]), points, strict=True):
        where, held = _held(part)
        groups.setdefault(where, []).append(f"{held:.0%} for {name}")
    said = "; ".join(f"in {where} ({listed(each)})" for where, each in groups.items())
    return say("most", by=by, where=said)


def _held(layers: pd.DataFrame) -> tuple[str, float]:
    """The fewest layers that hold more than half, and the share that they hold."""
    weights = layers.groupby("layer")["weight"].mean().clip(0).sort_values(ascending=False)
    held = weights.cumsum() / weights.sum()
    most = held[held.shift(fill_value=0) <= 0.5]
    return layer_ranges(most.index), float(most.iloc[-1])


def _names(rows: "Sequence[Mapping[Any, Any] | pd.Series]") -> list[str]:
    """Tasks, with their models and seeds where these differ."""
    also = [n for n in ("model", "seed") if len({row[n] for row in rows}) > 1]
    words = {"model": " in {}", "seed": " with seed {}"}
    return [str(row["task"]) + "".join(words[n].format(row[n]) for n in also) for row in rows]


NAMED = 3
"""What is named in a sentence; more are counted."""


def _how_sure(findings: Findings) -> str:
    """What planted layers say of the leading method, and what one seed does not."""
    control, method = findings.results.control, findings.leading
    mine = control[control["method"] == method]
    if mine.empty:
        todo = _by(" (`{}`)", command("control", findings.results))
        why = f"{method} did not look at labels" if len(control) else "no labels were"
        said = say("untested", why=why, todo=todo)
    else:
        said = say("tested", **_means(mine)[0])
    return said + (SAID["one_seed"] if findings.results.runs["seed"].nunique() == 1 else "")


def _means(control: pd.DataFrame) -> list[dict[str, Any]]:
    """How often each method ranks a planted layer first, the one to trust most first."""
    means = mean_scores(control, ["method"])
    best = means[means["k"] == means["k"].min()].set_index("method", drop=False)
    rows = best.loc[method_order(best.index)].to_dict("records")
    return [{**row, "counted": counted(row["plants"], "plant")} for row in rows]


def _learnt(findings: Findings) -> str:
    """How many runs memorised, and what they know of unseen examples."""
    runs, kept = findings.results.runs, findings.memorised("runs")
    counts = ", ".join(counted(runs[n].nunique(), n) for n in ("model", "task", "seed"))
    whose = "its" if len(runs) == 1 else "their"
    said = f"{len(kept)} of {counted(len(runs), 'run')} ({counts}) memorised {whose} wrong labels"
    if len(kept):
        said += f": {_range(kept['noisy_accuracy'], '.0%')} of them are predicted in the end"
    if kept["validation_accuracy"].notna().any():
        unseen = _range(kept["validation_accuracy"], ".0%")
        said += f"; on unseen examples they are right in {unseen} of the cases"
    return f"{said}."


def _trust(findings: Findings) -> Iterator[Line]:
    if findings.results.control.empty:
        return
    rows = _means(findings.results.control)
    ranked, chance = [say("ranked", **row) for row in rows], [row["chance"] for row in rows]
    yield Line("trust", say("control", methods=", by ".join(ranked), chance=np.mean(chance)))
    if said := remarks_on(findings.results.control_layers):
        yield Line("trust", f"Control: {said}", is_open=True)


def _by_method(table: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    for method in method_order(table["method"]):
        yield method, table[table["method"] == method]


def _depth(findings: Findings) -> Iterator[Line]:
    table = findings.usual(findings.whole("mcog")).dropna(subset=["mcog"])
    for method, part in _by_method(table):
        means = over_seeds(part, POINT, "mcog").sort_values("mcog")
        first, last = means.iloc[0], means.iloc[-1]
        ends = {"first": _sure(first, "mcog", ".1f"), "last": _sure(last, "mcog", ".1f")}
        where = say("depth_of_one", **ends)
        if len(means) > 1:
            apart = "do not overlap" if last["low"] > first["high"] else "overlap"
            who = {"least": _point(first), "most": _point(last), "n": len(means)}
            where = say("depth_of_many", **ends, **who, apart=apart)
        yield Line("where", say("depth", method=method, where=where))


def _windows(findings: Findings) -> Iterator[Line]:
    for method, part in _by_method(findings.whole("windows")):
        widths = layers_to_undo(part)
        best, mean = (_range(widths[n], ".0f", "all") for n in ("best", "on_average"))
        yield Line("where", f"{method.capitalize()} {_undone(part, RUN)}.")
        yield Line("where", say("widths", share=UNDONE, method=method, best=best, mean=mean))


UNKNOWN = "an unknown share"


def _undone(windows: pd.DataFrame, run: list[str]) -> str:
    """What changing one layer undoes at most, and what changing all of them does."""
    sized = windows.assign(width=windows["last"] - windows["first"] + 1)
    one, every = largest(sized[sized["width"] == 1], run, "error"), largest(sized, run, "width")
    said = [
        say(
            "undone",
            labels=_range(e["error"], ".0%"),
            clean=_range(e["clean_error"], ".1%", UNKNOWN),
        )
        for e in (one, every)
    ]
    over = f" (over {len(every)} runs)" if len(every) > 1 else ""
    return f"one layer undoes at most {', all layers '.join(said)}{over}"


def _events(findings: Findings) -> Iterator[Line]:
    for name, words in SAID["happens"].items():
        part = findings.events[findings.events["event"] == name]
        if part.empty:
            continue
        unclear = int((part["layer"].notna() & ~part["separable"].astype(bool)).sum())
        more = say("happens_unclear", counted=counted(unclear, "run")) if unclear else ""
        layer = _range(part["layer"], ".0f", "none")
        yield Line("how", words.format(layer=layer, unclear=more))


def _left_out(findings: Findings) -> Iterator[Line]:
    """Runs and methods that say nothing, and what results say against themselves."""
    runs, weak, mcog = findings.results.runs, findings.unlearnt, findings.whole("mcog")
    blind = mcog[mcog["mcog"].isna()]
    begun = runs[runs["noisy_accuracy"].isna()]
    short = runs[~runs["memorised"].astype(bool)].drop(begun.index)
    for section, name, table in (
        ("how", "begun", begun),
        ("how", "short", short),
        ("where", "weak", weak),
        ("where", "remarked", mcog),
        ("where", "blind", blind.assign(method=blind["method"].str.capitalize())),
    ):
        words = [
            say(name, **{str(k): v for k, v in row.items()}) for row in table.to_dict("records")
        ]
        if said := remarks_on(table.assign(remark=words)):
            yield Line(section, said, is_open=True)


def _coefficients(findings: Findings) -> Iterator[Line]:
    """Depth and generalisation, methods and models: what goes together, and what is not known."""
    depth, pairs = findings.table_2, findings.agreement
    tables = []
    if len(depth):
        what = "Correlation of depth with the " + depth["score"] + " score"
        named = depth.assign(about=what, name=depth["measure"])
        tables.append(named[named["model"] == ALL])
    if len(pairs):
        what = "Agreement of " + pairs["between"] + " on " + pairs["what"]
        tables.append(pairs.assign(about=what, name=pairs["one"] + " with " + pairs["other"]))
    for table in tables:
        for about, group in table.groupby("about", sort=False):
            yield from _correlated(str(about), group)
    if any((table["rho"].notna() & table["low"].isna()).any() for table in tables):
        tasks = findings.whole("runs")["task"].nunique()
        known = {"fewest": FEWEST_GROUPS, "counted": counted(tasks, "task")}
        text = say("few_tasks", **known, least=1 / factorial(tasks))
        yield Line("paper", text, is_open=True)


def _correlated(about: str, table: pd.DataFrame) -> Iterator[Line]:
    """Coefficients by their `name`: those that are found, and why others are not."""
    is_found = _found(table)
    rows = table[is_found].sort_values("rho").to_dict("records")
    if rows:
        each = [f"{_sure(row, 'rho', '.2f')} for {row['name']}" for row in rows]
        shown = listed(each) if len(each) <= NAMED else f"from {each[0]} to {each[-1]}"
        found = say("coefficients", about=about, shown=shown, n=len(rows), every=len(table))
        yield Line("paper", found)
    for why, part in table[~is_found].groupby("why", sort=False):
        names = part["name"].tolist()
        who = listed(names) if len(names) <= NAMED else f"{len(names)} pairs"
        unsure = say("not_from_0", rho=_range(part["rho"], ".2f"), p=_range(part["p"], ".2f"))
        text = say("not_known", about=about, who=who, why=str(why) or unsure)
        yield Line("paper", text, is_open=True)


def _found(table: pd.DataFrame) -> "pd.Series":
    """Which coefficients are found: p is small, and an interval that is there leaves 0 out."""
    around_0 = (table["low"] <= 0) & (table["high"] >= 0)
    return table["significant"].astype(bool) & ~around_0


def _name(row: Mapping[Any, Any]) -> str:
    return f"{row['task']} · {row['model']} · seed {row['seed']}"


def _point(row: "pd.Series") -> str:
    return f"{row['task']} in {row['model']}"


def _by(form: str, command: str) -> str:
    """The command that makes something, where there is one."""
    return form.format(command) if command else ""


def _sure(row: "Mapping[Any, Any] | pd.Series", name: str, form: str) -> str:
    """A number with its interval, where it has one."""
    ends = "" if pd.isna(row["low"]) else f" ({row['low']:{form}} to {row['high']:{form}})"
    return f"{row[name]:{form}}{ends}"


def _range(values: "Iterable[float]", form: str, none: str = "none") -> str:
    """From the least to the largest of the numbers that are known, and in how many runs."""
    every = pd.Series(list(values))
    known = every.dropna()
    if known.empty:
        return none
    first, last = format(known.min(), form), format(known.max(), form)
    some = f" (in {len(known)} of {len(every)} runs)" if len(known) < len(every) else ""
    return f"{first}{some}" if first == last else f"{first} to {last}{some}"
