"""Writes sentences with numbers: about one result, and about a study."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import factorial
from typing import Any

import numpy as np
import pandas as pd
import yaml

from memloc.errors import counted, listed
from memloc.methods.registry import brought, by_reference, exactness, methods
from memloc.methods.result import Result, events_of
from memloc.reporting.derived import RUN, UNDONE, found_layers, largest, layers_to_undo, leading
from memloc.reporting.missing import command
from memloc.reporting.results import Results
from memloc.reporting.style import METHODS, asset, method_order
from memloc.stats.agreement import FEWEST_GROUPS
from memloc.stats.answers import told
from memloc.stats.calibration import weakness
from memloc.stats.claims import ALL, POINT, over_seeds
from memloc.stats.depth import has_interval
from memloc.stats.planted import BASELINE

SAID: dict[str, Any] = yaml.safe_load(asset("sentences.yaml"))
"""Templates of sentences and of their parts, by name."""
NAMED = 3
"""Largest number of names in a sentence; further ones are counted."""
ANSWERED = 6
"""Largest number of runs with a sentence each; with more, runs are counted."""


def phrase(name: str, **values: Any) -> str:
    """Return the sentence of this name with these values inserted."""
    return str(SAID[name]).format(**values)


def joined(clauses: Iterable[str], between: str = "; ") -> str:
    """Join clauses into one sentence, with a capital letter and a full stop."""
    text = between.join(filter(None, clauses)).removesuffix(".")
    return f"{text[:1].upper()}{text[1:]}."


def sentence(found: Result) -> str:
    """Return a sentence on a method's result for a model, with its certainty."""
    text = _told(found)
    if found.about.get("forced"):
        return phrase("forced", share=found.about.get("final_noisy_accuracy", math.nan), text=text)
    return text


def _told(found: Result) -> str:
    if found.weighs_layers:
        return " ".join([_layers_matter(found), *found.remarks])
    method = methods().get(found.method)
    if method is not None and (text := method.told(found)):
        return text
    events = events_of(found.method, found["events"]) if "events" in found.tables else None
    if events is not None:
        plain = events[events["variant"] == "plain"].to_dict("records")
        return joined(map(_happening, plain))
    tables = [f"{name} ({counted(len(t), 'row')})" for name, t in found.tables.items()]
    return f"{found.method} made {listed(tables)}."


def _layers_matter(scores: Result) -> str:
    mcog = {**asdict(scores.mcog), "method": scores.method, "depth": scores.depth}
    if math.isnan(mcog["estimate"]):
        return phrase("no_centre", **mcog)
    sure = "" if math.isnan(mcog["low"]) else phrase("centre_interval", **mcog)
    clauses = [phrase("centre", **mcog, sure=sure, most=int(np.argmax(scores.weights)) + 1)]
    if "windows" in scores.tables:
        clauses.append(f"changing {_undone(scores['windows'].assign(run=1), ['run'])}")
    return "; ".join(clauses) + "."


def _happening(event: Mapping[Any, Any]) -> str:
    """Return an event with its layer in words; mark layers whose classes are not separable."""
    layer, low, high = (layer_name(event[name]) for name in ("layer", "low", "high"))
    never = layer == "never"
    known = has_interval(event["low"], event["high"], event["never"])
    return phrase(
        "event",
        what=brought("events").get(event["event"], {}).get("means", event["event"]),
        at=layer if never else f"layer {layer}",
        sure=phrase("event_interval", low=low, high=high) if known else "",
        mark=SAID["unclear"] if not never and not event["separable"] else "",
    )


def layer_name(layer: float) -> str:
    """Return a layer in words."""
    return "never" if math.isnan(layer) else f"{layer:.0f}"


def remarks_on(table: pd.DataFrame) -> str:
    """Return the caveats of the results in a table, each once with its runs."""
    remarked = marked(table)
    sentences = []
    for remark, part in remarked.groupby("remark", sort=False) if len(remarked) else ():
        names = list(map(_name, part.drop_duplicates(RUN).to_dict("records")))
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        sentences.append(f"{str(remark).removesuffix('.')} ({', '.join(names[:NAMED])}{more}).")
    return " ".join(sentences)


def remark_on(method: str) -> str:
    """Return the caveat to show wherever weights of a method are drawn; empty if there is none."""
    about = methods()[method].report.get("intervals", "") if method in methods() else ""
    return f"{about} {weakness(method)}".strip()


def marked(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with a remark, except remarks on nulls, which hold nothing to find."""
    if "remark" not in table.columns:
        return table.head(0)
    counts = table["remark"].astype(str) != ""
    return table[counts & ~table["null"].astype(bool)] if "null" in table else table[counts]


@dataclass(frozen=True)
class Line:
    """A sentence about a study, with its section of the page."""

    section: str
    """Section of the page that the sentence belongs to."""
    text: str
    is_open: bool = False
    """True if the sentence says what could not be concluded, and why."""


@dataclass(frozen=True)
class Summary:
    """A study in sentences."""

    answers: tuple[str, ...]
    """Sentences on the layers that hold the labels: one per run, or one for many runs."""
    trust: str
    """Sentence on how far to trust the answer."""
    learnt: str
    """Sentence on what the models learnt."""
    lines: tuple[Line, ...]
    """All other sentences, section by section."""

    @property
    def answer(self) -> str:
        """Answer as one text."""
        return " ".join(self.answers)

    @property
    def found(self) -> tuple[str, ...]:
        """Sentences on what was found."""
        return tuple(line.text for line in self.lines if not line.is_open)

    @property
    def open(self) -> tuple[str, ...]:
        """Sentences on what could not be concluded, and why."""
        return tuple(line.text for line in self.lines if line.is_open)


def summarise(results: Results) -> Summary:
    """Return a study's results in sentences."""
    if results["runs"].empty:
        none = f"There is no run yet: `{command('train', results)}`."
        planted = tuple(_trust(results))  # a study may do nothing but plant
        lines = planted or (Line("where", none, is_open=True),)
        return Summary((lines[0].text,), "", "", lines[1:])
    told = (_trust, _depth, _windows, _events, _left_out, _coefficients)
    lines = tuple(line for tell in told for line in tell(results))
    return Summary(tuple(_answers(results)), _how_sure(results), _learnt(results), lines)


def _answers(results: Results) -> Iterator[str]:
    """Yield sentences on the layers that hold the labels, by the most exact method and run by
    run.
    """
    method = leading(results)
    best = METHODS[0]
    layers, answers = (
        table[table["method"] == method] for table in map(results.whole, ("layers", "answers"))
    )
    if results.memorised("runs").empty:
        yield phrase("nothing_memorised")
    elif layers.empty:
        todo = _by(" yet (`{}`)", command(best, results) or command("localise", results))
        why = phrase("not_localised", todo=todo)
        unlearnt = SAID["unlearnt_references"]
        yield phrase("nothing_named", why=unlearnt if len(results.unlearnt) else why)
    elif not exactness(method):
        yield phrase("one_method", method=method, todo=_by(": try `{}`", command(best, results)))
    elif 0 < len(answers) <= ANSWERED:
        rows = answers.to_dict("records")
        for name, row in zip(_names(rows), rows, strict=True):
            yield told(row["sentence"], row["word"] if row["half"] else "", name)
    else:
        yield _counted(results, method, answers)


def _counted(results: Results, method: str, answers: pd.DataFrame) -> str:
    """Return a sentence that counts the runs with each word and tells the centres of gravity."""
    counts = [f"{n} {word}" for word, n in answers["word"].value_counts().items()]
    mcog = results.whole("mcog")
    mcog = mcog[mcog["method"] == method]
    depth = results["runs"]["depth"].max()
    centres = _range(over_seeds(mcog, POINT, "mcog")["mcog"], ".1f")
    by = methods()[method].report.get("by", f"by {method}")
    clauses = [phrase("centres", by=by, centres=centres, depth=depth)]
    if counts:
        clauses.insert(
            0, phrase("outcomes", runs=counted(len(answers), "run"), counts=listed(counts))
        )
    return joined(clauses)


def _names(records: Sequence[Mapping[Any, Any]]) -> list[str]:
    """Return names of runs: the task, with model and seed if these differ."""
    also = [n for n in ("model", "seed") if len({row[n] for row in records}) > 1]
    words = {"model": " in {}", "seed": " with seed {}"}
    return [str(row["task"]) + "".join(words[n].format(row[n]) for n in also) for row in records]


def _how_sure(results: Results) -> str:
    """Return a sentence on how often the leading method finds planted layers, and on single
    seeds.
    """
    control = results["control"]
    method = leading(results)
    mine = control[control["method"] == method]
    if mine.empty:
        todo = _by(" (`{}`)", command("control", results))
        why = f"{method} did not look at labels" if len(control) else "nothing was"
        sentence = phrase("untested", why=why, todo=todo)
    else:
        sentence = " ".join(_tested(_means(mine)[0], _means(control)[-1]))
    return sentence + (SAID["one_seed"] if results["runs"]["seed"].nunique() == 1 else "")


def _tested(leader: Mapping[str, Any], last: Mapping[str, Any]) -> Iterator[str]:
    """Yield how exact the leading method is, and whether a trivial baseline does as well."""
    yield phrase("tested", **leader)
    if last["method"] == f"the {BASELINE}":
        easy = last["planted_mass"] >= leader["planted_mass"] / 2
        yield phrase("easy" if easy else "beaten", **last)


def _means(control: pd.DataFrame) -> list[dict[str, Any]]:
    """Return how often each method ranks a planted layer first, most exact methods first."""
    means = found_layers(control)
    best = means[means["k"] == means["k"].min()].set_index("method", drop=False)
    named = best.loc[method_order(best.index)].replace(BASELINE, f"the {BASELINE}")
    rows = named.to_dict("records")
    return [{**row, "counted": counted(row["plants"], "plant")} for row in rows]


def _learnt(results: Results) -> str:
    """Return a sentence on how many runs memorised, and how well they predict unseen examples."""
    runs = results["runs"]
    kept = results.memorised("runs")
    counts = ", ".join(counted(runs[n].nunique(), n) for n in ("model", "task", "seed"))
    whose = "its" if len(runs) == 1 else "their"
    is_texts = runs["n_classes"] == 0
    what = (
        "texts" if is_texts.all() else "wrong labels or texts" if is_texts.any() else "wrong labels"
    )
    clause = f"{len(kept)} of {counted(len(runs), 'run')} ({counts}) memorised {whose} {what}"
    clauses = [clause]
    if len(kept):
        shown = _range(kept["noisy_accuracy"], ".0%")
        clauses = [f"{clause}: {shown} of these are predicted in the end"]
    if kept["validation_accuracy"].notna().any():
        unseen = _range(kept["validation_accuracy"], ".0%")
        clauses.append(f"{unseen} of unseen examples are predicted correctly")
    return joined(clauses)


def _trust(results: Results) -> Iterator[Line]:
    judged = results.judged_runs
    compared = judged[judged["agrees"] != "–"] if len(judged) else judged
    if len(compared):
        pairs = [f"{name} in {row['agrees'].item()}" for name, row in _by_method(compared)]
        yield Line("trust", phrase("agreement", method=leading(results), others=listed(pairs)))
    if results.control.empty:
        return
    rows = _means(results.control)
    ranked, chance = [phrase("ranked", **row) for row in rows], [row["chance"] for row in rows]
    yield Line("trust", phrase("control", methods=", by ".join(ranked), chance=np.mean(chance)))
    if remarks := remarks_on(results.control_layers):
        yield Line("trust", f"Control: {remarks}", is_open=True)


def _by_method(table: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    for method in method_order(table["method"]):
        yield method, table[table["method"] == method]


def _depth(results: Results) -> Iterator[Line]:
    table = results.part("mcog", "usual").dropna(subset=["mcog"])
    for method, part in _by_method(table):
        means = over_seeds(part, POINT, "mcog").sort_values("mcog")
        first, last = means.iloc[0], means.iloc[-1]
        ends = {"first": _sure(first, "mcog", ".1f"), "last": _sure(last, "mcog", ".1f")}
        where = phrase("depth_of_one", **ends)
        if len(means) > 1:
            apart = "do not overlap" if last["low"] > first["high"] else "overlap"
            who = {"least": _point(first), "most": _point(last), "n": len(means)}
            where = phrase("depth_of_many", **ends, **who, apart=apart)
        yield Line("where", phrase("depth", method=method, where=where))


def _windows(results: Results) -> Iterator[Line]:
    for method, part in _by_method(results.whole("windows")):
        widths = layers_to_undo(part)
        best, mean = (_range(widths[n], ".0f", "all") for n in ("best", "on_average"))
        yield Line("where", f"{method.capitalize()} {_undone(part, RUN)}.")
        yield Line("where", phrase("widths", share=UNDONE, method=method, best=best, mean=mean))


UNKNOWN = "an unknown share"


def _undone(windows: pd.DataFrame, runs: list[str]) -> str:
    """Return a clause on the shares undone by changing one layer at most, and by changing all."""
    sized = windows.assign(width=windows["last"] - windows["first"] + 1)
    one, every = largest(sized[sized["width"] == 1], runs, "error"), largest(sized, runs, "width")
    parts = [
        phrase(
            "undone",
            labels=_range(e["error"], ".0%"),
            clean=_range(e["clean_error"], ".1%", UNKNOWN),
        )
        for e in (one, every)
    ]
    over = f" (over {len(every)} runs)" if len(every) > 1 else ""
    return f"one layer undoes at most {', all layers '.join(parts)}{over}"


def _events(results: Results) -> Iterator[Line]:
    events = results["plain_events"]
    for name, about in brought("events").items():
        part = events[events["event"] == name]
        if part.empty or "happens" not in about:
            continue
        unclear = int((part["layer"].notna() & ~part["separable"].astype(bool)).sum())
        more = phrase("happens_unclear", counted=counted(unclear, "run")) if unclear else ""
        layer = _range(part["layer"], ".0f", "none")
        yield Line("how", about["happens"].format(layer=layer, unclear=more))


def _left_out(results: Results) -> Iterator[Line]:
    """Yield sentences on runs and methods that are left out, and remarks of the results."""
    runs = results.runs
    weak = results.unlearnt
    mcog = results.whole("mcog")
    blind = mcog[mcog["mcog"].isna()]
    begun = runs[runs["noisy_accuracy"].isna()]
    short = runs[~runs["memorised"].astype(bool)].drop(begun.index)
    weak = weak.assign(methods=_by_the_reference(results))
    for section, name, table in (
        ("how", "begun", begun),
        ("how", "short", short),
        ("where", "weak", weak),
        ("where", "remarked", mcog),
        ("where", "blind", blind.assign(method=blind["method"].str.capitalize())),
    ):
        words = [
            phrase(name, **{str(k): v for k, v in row.items()}) for row in table.to_dict("records")
        ]
        if remarks := remarks_on(table.assign(remark=words)):
            yield Line(section, remarks, is_open=True)


def _by_the_reference(results: Results) -> str:
    """Return the names of a study's methods that depend on the reference."""
    applied = method_order(results["made"]["method"])
    wholly = [name for name in applied if name in by_reference()]
    partly = [name for name in applied if name in methods() and "reference" in methods()[name].uses]
    named = [*wholly, *(f"{name.replace('_', ' ')} with exchanged layers" for name in partly)]
    return ", ".join(named) or "all methods"


def _coefficients(results: Results) -> Iterator[Line]:
    """Yield sentences on correlations of depth, generalisation, methods and models."""
    depth, pairs = results.table_2, results.agreement
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
        tasks = results.whole("runs")["task"].nunique()
        known = {"fewest": FEWEST_GROUPS, "counted": counted(tasks, "task")}
        text = phrase("few_tasks", **known, least=1 / factorial(tasks))
        yield Line("paper", text, is_open=True)


def _correlated(about: str, table: pd.DataFrame) -> Iterator[Line]:
    """Yield the significant coefficients by their `name`, and why others are not significant."""
    is_found = _found(table)
    rows = table[is_found].sort_values("rho").to_dict("records")
    if rows:
        row_of_one = [f"{_sure(row, 'rho', '.2f')} for {row['name']}" for row in rows]
        shown = (
            listed(row_of_one)
            if len(row_of_one) <= NAMED
            else f"from {row_of_one[0]} to {row_of_one[-1]}"
        )
        significant = phrase(
            "coefficients", about=about, shown=shown, n=len(rows), every=len(table)
        )
        yield Line("paper", significant)
    for why, part in table[~is_found].groupby("why", sort=False):
        names = part["name"].tolist()
        who = listed(names) if len(names) <= NAMED else f"{len(names)} pairs"
        unsure = phrase(
            "not_from_0", rho=_range(part["rho"], ".2f"), p=_range(part["corrected"], ".2f")
        )
        text = phrase("not_known", about=about, who=who, why=str(why) or unsure)
        yield Line("paper", text, is_open=True)


def _found(table: pd.DataFrame) -> "pd.Series":
    """Return which coefficients are significant: corrected p small, and 0 outside their
    interval.
    """
    around_0 = (table["low"] <= 0) & (table["high"] >= 0)
    return table["significant"].astype(bool) & ~around_0


def _name(row: Mapping[Any, Any]) -> str:
    return f"{row['task']} · {row['model']} · seed {row['seed']}"


def _point(row: "pd.Series") -> str:
    return f"{row['task']} in {row['model']}"


def _by(form: str, command: str) -> str:
    """Insert a command into a template; empty without a command."""
    return form.format(command) if command else ""


def _sure(row: "Mapping[Any, Any] | pd.Series", name: str, form: str) -> str:
    """Return a number in words with its interval, if it has one."""
    ends = "" if pd.isna(row["low"]) else f" ({row['low']:{form}} to {row['high']:{form}})"
    return f"{row[name]:{form}}{ends}"


def _range(values: "Iterable[float]", form: str, none: str = "none") -> str:
    """Return the smallest and the largest known number, and in how many runs they are known."""
    every = pd.Series(list(values))
    known = every.dropna()
    if known.empty:
        return none
    first, last = format(known.min(), form), format(known.max(), form)
    some = f" (in {len(known)} of {len(every)} runs)" if len(known) < len(every) else ""
    return f"{first}{some}" if first == last else f"{first} to {last}{some}"
