"""What results say, in sentences that are computed from the numbers: of one result, of a study."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import factorial
from typing import Any

import numpy as np
import pandas as pd

from memloc.errors import counted
from memloc.methods.result import LayerScores, Result
from memloc.reporting.findings import POINT, UNDONE, Findings, layers_to_undo, over_seeds
from memloc.reporting.missing import command
from memloc.reporting.style import method_order
from memloc.stats.agreement import FEWEST_GROUPS
from memloc.stats.claims import ALL
from memloc.stats.planted import mean_scores
from memloc.stats.verdicts import NOTHING, TRUSTED
from memloc.stats.windows import consecutive

EVENTS = {
    "crossing": "noisy examples cross from their original class to the assigned one",
    "initiation": "the classes are separated",
    "memorisation": "the assigned label of noisy examples is read better than the original one",
    "ninety": "the label of clean examples is read nearly as well as at its best",
}
"""What happens, by the name of the event."""


def sentence(found: Result) -> str:
    """What a method says about a model, with how sure it is."""
    if isinstance(found, LayerScores):
        text = " ".join([_layers_matter(found), *found.remarks])
    elif found.method == "generalisation":
        text = _generalised(found)
    elif "events" in found.tables:
        text = _happenings(found)
    else:  # an analysis of somebody else
        tables = [f"{name} ({counted(len(t), 'row')})" for name, t in found.tables.items()]
        text = f"{found.method} made {_listed(tables)}."
    if found.about.get("forced"):
        share = found.about.get("final_noisy_accuracy", math.nan)
        return f"FORCED (only {share:.0%} of the noisy labels are predicted): {text}"
    return text


def _layers_matter(scores: LayerScores) -> str:
    mcog, depth = scores.mcog, scores.depth
    if math.isnan(mcog.estimate):
        return f"{scores.method}: no layer stands out, so there is no centre of gravity."
    sure = f" ({mcog.level:.0%} interval {mcog.low:.1f} to {mcog.high:.1f})"
    parts = [
        f"{scores.method}: the centre of gravity is layer {mcog.estimate:.1f} of {depth}"
        + ("" if math.isnan(mcog.low) else sure),
        f"layer {int(np.argmax(scores.weights)) + 1} matters most",
    ]
    if scores.outcomes is not None:
        parts.append(_windows(scores))
    return "; ".join(parts) + "."


def _windows(scores: LayerScores) -> str:
    assert scores.outcomes is not None
    outcomes = scores.outcomes
    every = list(zip(outcomes.errors, outcomes.clean_errors, outcomes.windows, strict=True))
    nothing = [(math.nan, math.nan)]
    single = max([(e, c) for e, c, window in every if len(window) == 1] or nothing)
    full = max([(e, c) for e, c, window in every if len(window) == scores.depth] or nothing)
    return (
        f"changing one layer undoes at most {single[0]:.0%} of the memorised labels and "
        f"{single[1]:.1%} of the clean ones, changing all {full[0]:.0%} and {full[1]:.1%}"
    )


def happening(event: Any) -> str:
    """One event in words; `never` and layers where classes cannot be told apart are named."""
    what, layer = EVENTS[event.event], event.layer
    sure = f"95 % interval {layer_name(event.low)} to {layer_name(event.high)}"
    if math.isnan(layer):
        return f"{what}: never ({sure})"
    mark = "" if event.separable else ", where the classes cannot be told apart, so beware"
    return f"{what}: layer {layer:.0f} ({sure}){mark}"


def _happenings(found: Result) -> str:
    events = found["events"]
    said = [happening(event) for event in events[events["variant"] == "plain"].itertuples()]
    return "; ".join(said).capitalize() + "."


def _generalised(found: Result) -> str:
    row = found["summary"].iloc[0]
    return (
        f"{row['score']:.0%} of the training examples (95 % interval {row['low']:.0%} to "
        f"{row['high']:.0%}) are predicted better than by chance by those of {row['models']:.0f} "
        f"models that were not trained on them, {row['clean_score']:.0%} of the clean ones; always "
        f"predicting the most frequent label would score {row['majority']:.0%}, so normalised by "
        f"that the score is {row['normalised']:.2f}; the validation score is "
        f"{row['validation_score']:.2f}."
    )


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
    told = (_memorised, _trust, _depth, _single, _events, _left_out, _generalisation, _agreement)
    lines = tuple(line for tell in (*told, _few) for line in tell(findings))
    return Summary(_answer(findings), _how_sure(findings), _learnt(findings), lines)


def _answer(findings: Findings) -> str:
    """Which layers hold what was memorised; nothing is concluded from runs that did not."""
    runs, results = findings.memorised("runs"), findings.results
    layers, method = findings.whole("layers"), findings.leading
    layers = layers[layers["method"] == method]
    if runs.empty:
        return "No layer can be named: no run has memorised its wrong labels."
    if layers.empty:
        why = "the references did not learn their own labels" if len(findings.unlearnt) else ""
        made = command("shares", results) or command("localise", results)
        todo = f"nothing was localised{_by(' yet (`{}`)', made)}"
        return f"No layer can be named: {why or todo}."
    unknown = "Whether a few layers hold the memorised labels cannot be told"
    if method not in TRUSTED:
        return f"{unknown} by {method} alone{_by(': try `{}`', command('shares', results))}."
    verdicts = findings.whole("verdicts")
    judged = verdicts[verdicts["method"] == method]
    if judged["finding"].any():
        return _judged(judged)
    said = _described(findings, layers)
    return f"{unknown}{_why_unsure(judged)} {said}" if len(judged) else said


def _why_unsure(judged: pd.DataFrame) -> str:
    """Why no verdict is sure."""
    alone = judged[judged["outcome"] != "cannot tell"]
    if len(alone):  # the verdict of a run is printed where it is made: say why this differs
        one = "a verdict does" if len(alone) == 1 else f"{len(alone)} verdicts do"
        return f" for sure (taken alone {one}, but not after correction for all that are shown)."
    if len(judged) == 1:
        return f": {str(judged['sentence'].iloc[0]).removeprefix('Cannot tell: ')}"
    return f": {' or '.join(sorted({_unsure(str(said)) for said in judged['sentence']}))}."


def _described(findings: Findings, layers: pd.DataFrame) -> str:
    """Where the weights of the leading method are, which is no verdict."""
    method = findings.leading
    points = list(layers.groupby(POINT, sort=False))
    by = " by layer shares" if method == "shares" else f" by {method}, which blurs,"
    if len(points) > NAMED:
        centres = over_seeds(findings.whole("mcog").query("method == @method"), POINT, "mcog")
        first, last = (centres.sort_values("mcog").iloc[i] for i in (0, -1))
        return (
            f"Over {len(points)} pairs of task and model, the centre of what was memorised{by} "
            f"lies between layer {first['mcog']:.1f} ({_point(first)}{_ends(first)}) and layer "
            f"{last['mcog']:.1f} ({_point(last)}{_ends(last)}) of {layers['layer'].max()}."
        )
    if len(points) == 1:
        where, held, top = _held(points[0][1])
        hold = f", which hold {held:.0%} of it" if "layers" in where else ""
        return f"Most of what was memorised{by} sits in {where}{hold}{top}."
    names = _names([part.iloc[0] for _, part in points])
    groups: dict[str, list[str]] = {}
    for name, (_, part) in zip(names, points, strict=True):
        where, held, _ = _held(part)
        groups.setdefault(where, []).append(f"{held:.0%} for {name}")
    said = "; ".join(f"in {where} ({_listed(each)})" for where, each in groups.items())
    return f"Most of what was memorised{by} sits {said}."


def _held(layers: pd.DataFrame) -> tuple[str, float, str]:
    """The fewest layers that hold more than half, their share, and the layer that holds most."""
    means = over_seeds(layers, [*POINT, "layer"], "weight")
    whole = means["weight"].clip(0).sum()
    ordered = means.sort_values("weight", ascending=False)
    held = ordered["weight"].clip(0).cumsum() / whole
    most = ordered[held.shift(fill_value=0) <= 0.5]
    top = ordered.iloc[0]
    share, low, high = (top[name] / whole for name in ("weight", "low", "high"))
    sure = "" if pd.isna(low) else f" (95 % interval {low:.0%} to {high:.0%})"
    alone = f"; layer {top['layer']} alone holds {share:.0%}{sure}"
    return layer_ranges(most["layer"]), float(held[most.index[-1]]), alone


def _judged(verdicts: pd.DataFrame) -> str:
    """What the verdicts of one method say that hold for all runs, by task and model or counted."""
    if len(verdicts) == 1:
        return str(verdicts["sentence"].iloc[0])
    sure = verdicts["finding"].astype(bool)
    outcomes = verdicts["outcome"].where(sure, "cannot tell")
    if len(verdicts) > NAMED:
        return _in_numbers(verdicts, outcomes)
    groups: dict[tuple[str, str], list[str]] = {}
    names = _names(verdicts.to_dict("records"))
    for name, outcome, row in zip(names, outcomes, verdicts.itertuples(), strict=True):
        said, why = OUTCOMES[str(outcome)], ""
        if outcome == "localised":
            said = f"sit in {layer_ranges(map(int, str(row.layers).split(', ')))}"
        elif outcome == "cannot tell":
            why = f", where {_unsure(str(row.sentence))}"
        groups.setdefault((said, why), []).append(name)
    ordered = sorted(groups.items(), key=lambda group: group[0][1] != "")  # what is sure first
    said = "; they ".join(f"{what} for {_listed(who)}{why}" for (what, why), who in ordered)
    return f"The memorised labels {said}."


def _in_numbers(verdicts: pd.DataFrame, outcomes: "pd.Series[str]") -> str:
    """In how many runs the labels are where, and why some cannot be placed."""
    counts = Counter(map(str, outcomes))
    often = Counter(", ".join(verdicts.loc[outcomes == "localised", "layers"]).split(", "))
    said = verdicts.loc[outcomes == "cannot tell", "sentence"]
    why = sorted({_unsure(str(sentence)) for sentence in said})
    more = {
        "localised": f", most often in layer {often.most_common(1)[0][0]}",
        "cannot tell": f": {'either ' if len(why) > 1 else ''}{', or '.join(why)}",
    }
    ordered = sorted(counts, key=lambda name: (name == "cannot tell", -counts[name]))
    told = [f"they {OUTCOMES[name]}{more.get(name, '')}" for name in ordered]
    runs = f"{len(verdicts)} runs that memorised labels"
    if len(told) == 1:
        return f"In all {runs}, {told[0]}."
    others = (f"; in {counts[n]}, {what}" for n, what in zip(ordered[1:], told[1:], strict=True))
    return f"In {counts[ordered[0]]} of the {runs}, {told[0]}{''.join(others)}."


def _unsure(verdict: str) -> str:
    """Why labels cannot be placed, by the sentence of their verdict, and what would help."""
    if not verdict.startswith("Cannot tell"):
        return "a verdict holds taken alone, but not after correction for all that are shown"
    if NOTHING in verdict:
        return "changing layers undoes nothing"
    return "noisy examples are too few to tell a few layers from many (more of them would help)"


def _names(rows: "Sequence[Mapping[Any, Any] | pd.Series]") -> list[str]:
    """Tasks, with their models and seeds where these differ."""
    also = [n for n in ("model", "seed") if len({row[n] for row in rows}) > 1]
    words = {"model": " in {}", "seed": " with seed {}"}
    return [str(row["task"]) + "".join(words[n].format(row[n]) for n in also) for row in rows]


def _listed(names: "Sequence[str]") -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


NAMED = 3
"""Tasks and models that the answer names; more are counted."""
OUTCOMES = {
    "localised": "sit in a few layers",
    "spread": "are spread over the layers",
    "cannot tell": "cannot be placed",
}


def layer_ranges(layers: Iterable[int]) -> str:
    """Layers as people write them: `layers 1 to 3 and 7`."""
    numbers = sorted(layers)
    parts = [_range(run[0], run[-1], "d") for run in consecutive(numbers)]
    return f"{'layer' if len(numbers) == 1 else 'layers'} {_listed(parts)}"


def _point(row: "Mapping[Any, Any] | pd.Series") -> str:
    return f"{row['task']} in {row['model']}"


def _how_sure(findings: Findings) -> str:
    """What planted layers say of the leading method, and what one seed does not."""
    control, method = findings.results.control, findings.leading
    mine = control[control["method"] == method]
    if mine.empty:
        todo = _by(" (`{}`)", command("control", findings.results))
        said = f"Not tested here: no labels were planted in known layers{todo}."
    else:
        means = mean_scores(mine, ["method"]).iloc[0]
        said = (
            f"Where labels were planted in known layers, {method} ranks a planted layer first in "
            f"{means['accuracy']:.0%} of {counted(int(means['plants']), 'plant')} (95 % interval "
            f"{means['low']:.0%} to {means['high']:.0%}; chance {means['chance']:.0%})"
        )
        mass = means.get("planted_mass")
        said += "." if mass is None else f" and puts {mass:.0%} of the weight on planted layers."
    if findings.results.runs["seed"].nunique() == 1:
        said += " There is one seed: another training may differ."
    return said


def _learnt(findings: Findings) -> str:
    """How many runs memorised, and what they know of unseen examples."""
    line = next(_memorised(findings)).text
    unseen = findings.memorised("runs")["validation_accuracy"].dropna()
    if unseen.empty:
        return line
    share = _range(unseen.min(), unseen.max(), ".0%")
    return f"{line[:-1]}; on unseen examples they are right in {share} of the cases."


def _memorised(findings: Findings) -> Iterator[Line]:
    runs = findings.results.runs
    kept = runs[runs["memorised"].astype(bool)]
    counts = [counted(runs[n].nunique(), n) for n in ("model", "task", "seed")]
    whose = "its" if len(runs) == 1 else "their"
    what = f"{len(kept)} of {counted(len(runs), 'run')} ({', '.join(counts)}) memorised {whose}"
    low, high = kept["noisy_accuracy"].min(), kept["noisy_accuracy"].max()
    share = f": {_range(low, high, '.0%')} of them are predicted in the end" if len(kept) else ""
    yield Line("how", f"{what} wrong labels{share}.")
    for row in runs[~runs["memorised"].astype(bool)].to_dict("records"):
        why = f"predicts only {row['noisy_accuracy']:.0%} of its wrong labels"
        if pd.isna(row["noisy_accuracy"]):
            why = "is not finished"
        yield Line("how", f"Nothing is concluded from {_name(row)}, which {why}.", is_open=True)


def _trust(findings: Findings) -> Iterator[Line]:
    control = findings.results.control
    if control.empty:
        how = _by(" (`{}`)", command("control", findings.results))
        unknown = "How far each method can be trusted here is not known: no labels were planted"
        if len(findings.results.runs):
            yield Line("trust", f"{unknown}{how}.", is_open=True)
        return
    means = mean_scores(control, ["method"])
    best = means[means["k"] == means["k"].min()].set_index("method")
    parts = [
        f"{m} in {best.loc[m, 'accuracy']:.0%} of {counted(best.loc[m, 'plants'], 'plant')} "
        f"({best.loc[m, 'low']:.0%} to {best.loc[m, 'high']:.0%})"
        for m in method_order(best.index)
    ]
    yield Line(
        "trust",
        f"Control: a planted layer is ranked first by {', by '.join(parts)}; "
        f"chance is {best['chance'].mean():.0%}.",
    )
    if said := remarks_on(findings.results.control_layers):
        yield Line("trust", f"Control: {said}", is_open=True)


def _depth(findings: Findings) -> Iterator[Line]:
    table = findings.usual(findings.whole("mcog")).dropna(subset=["mcog"])
    if findings.results.mcog.empty:
        how = _by(": `{}`", command("localise", findings.results))
        yield Line("where", f"Nothing was localised yet{how}.", is_open=True)
    if table.empty:
        return
    layers = f"{findings.usual(findings.results.runs)['depth'].iloc[0]} layers"
    for method in method_order(table["method"]):
        means = over_seeds(table[table["method"] == method], ["task", "model"], "mcog")
        means = means.sort_values("mcog")
        first, last = means.iloc[0], means.iloc[-1]
        if len(means) == 1:
            place = _sure(first, "mcog", ".1f")
            yield Line("where", f"By {method}, the centre of gravity is layer {place} of {layers}.")
            continue
        apart = last["low"] > first["high"]
        chosen = f"do not overlap, but they are the extremes of {len(means)}"
        verdict = chosen if apart else "overlap, so no order follows"
        yield Line(
            "where",
            f"By {method}, the centre of gravity goes from layer {_sure(first, 'mcog', '.1f')} for "
            f"{_point(first)} to {_sure(last, 'mcog', '.1f')} for {_point(last)}, of {layers}; the "
            f"two intervals {verdict}.",
        )


def _single(findings: Findings) -> Iterator[Line]:
    table = findings.whole("windows")
    keys = ["task", "model", "seed", "method"]
    for method in method_order(table["method"]):
        part = table[table["method"] == method]
        single = part[part["first"] == part["last"]]
        one = single.loc[single.groupby(keys)["error"].idxmax()]
        everything = part.loc[part.groupby(keys)["last"].transform("max") == part["last"]]
        full = everything[everything["first"] == 1]
        if one.empty or full.empty:
            continue
        yield Line(
            "where",
            f"{method.capitalize()} one layer undoes at most {_both(one)}, all layers "
            f"{_both(full)}{_of_runs(len(one))}.",
        )
        widths = layers_to_undo(part)
        yield Line(
            "where",
            f"To undo {UNDONE:.0%} of what all layers undo, {method} needs "
            f"{_widths(widths['best'])} in the best window, and {_widths(widths['on_average'])} on "
            "average over windows, which is how the paper counts (7 to 10 of 12).",
        )


def _widths(found: "pd.Series") -> str:
    known = found.dropna()
    if known.empty:
        return "more than all layers"
    low, high = int(known.min()), int(known.max())
    layers = counted(high, "layer") if low == high else f"{low} to {high} layers"
    some = f" (in {len(known)} of {counted(len(found), 'run')})" if len(known) < len(found) else ""
    return f"{layers}{some}"


def _both(windows: pd.DataFrame) -> str:
    """What changing these windows does to memorised and to clean labels."""
    error, clean = windows["error"], windows["clean_error"].dropna()
    lost = _range(clean.min(), clean.max(), ".1%") if len(clean) else "an unknown share"
    return (
        f"{_range(error.min(), error.max(), '.0%')} of the memorised labels (and {lost} of the "
        "clean ones)"
    )


def _events(findings: Findings) -> Iterator[Line]:
    table = findings.events
    for name, what in (
        ("crossing", "By centroids, noisy examples cross to their wrong class"),
        ("memorisation", "By label probes, the wrong label becomes easier to read than the right"),
    ):
        part = table[table["event"] == name]
        if part.empty:
            continue
        known = part["layer"].dropna()
        never = len(part) - len(known)
        where = f"at layer {_range(known.min(), known.max(), '.0f')}" if len(known) else "nowhere"
        unclear = int((~part.loc[known.index, "separable"].astype(bool)).sum())
        more = f"; never in {counted(never, 'run')}" if never else ""
        if unclear:
            more += f"; in {counted(unclear, 'run')} classes cannot be told apart there"
        yield Line("how", f"{what} {where}{_of_runs(len(part))}{more}.")


def _left_out(findings: Findings) -> Iterator[Line]:
    """What results say against themselves, and runs or methods that say nothing."""
    for row in findings.unlearnt.to_dict("records"):
        yield Line(
            "where",
            f"{_name(row)} is left out of swapping, of centroids with swapped layers and of what "
            "follows from them: its reference, trained on the original labels, predicts only "
            f"{row['reference_accuracy']:.0%} of them, so its layers undo what they never learnt.",
            is_open=True,
        )
    table = findings.whole("mcog")
    if said := remarks_on(table):
        yield Line("where", said, is_open=True)
    for method in method_order(table["method"]):
        part = table[table["method"] == method]
        none = part[part["mcog"].isna()]
        if len(none):
            names = ", ".join(f"{r['task']} · {r['model']}" for r in none.to_dict("records")[:3])
            more = " …" if len(none) > 3 else ""
            yield Line(
                "where",
                f"{method.capitalize()} sees no layer in {len(none)} of "
                f"{counted(len(part), 'run')} ({names}{more}), so there is no centre of gravity.",
                is_open=True,
            )


def _generalisation(findings: Findings) -> Iterator[Line]:
    """Depth and generalisation: what goes together, what is not known, what cannot be."""
    table = findings.table_2
    if table.empty:
        return
    pooled = table[table["model"] == ALL]
    for is_sure, found in ((True, sure(pooled)), (False, pooled["rho"].notna() & ~sure(pooled))):
        for score, part in pooled[found].groupby("score", sort=False):
            rows = part.to_dict("records")
            n = _range(part["n"].min(), part["n"].max(), "d")
            if is_sure:
                parts = ", ".join(f"{row['measure']} {_sure(row, 'rho', '.2f')}" for row in rows)
                text = f"Depth and the {score} score, ρ over {n} tasks and models: {parts}."
            else:
                known = [f"{_sure(row, 'rho', '.2f')}, p = {row['p']:.2f}" for row in rows]
                parts = "; ".join(map(" ".join, zip(part["measure"], known, strict=True)))
                text = (
                    f"Whether depth goes with the {score} score is not known: ρ over {n} tasks and "
                    f"models cannot be told from 0 ({parts})."
                )
            yield Line("paper", text + averaged(part), is_open=not is_sure)
    for (against, why), part in pooled[pooled["rho"].isna()].groupby(["score", "why"], sort=False):
        depth = f"Depth ({', '.join(part['measure'])}) cannot be compared with the {against} score"
        yield Line("paper", f"{depth}: {why}.{averaged(part)}", is_open=True)


def averaged(coefficients: pd.DataFrame) -> str:
    """Which methods the mean centre of gravity is over, where it is among the coefficients."""
    means = coefficients.loc[coefficients["measure"] == "M-CoG"]
    for methods in means["methods"].head(1) if "methods" in means else ():
        *others, last = method_order(methods.split(", ")) if methods else [""]
        listed = f"the mean over {', '.join(others)} and {last}"
        shared = f"{listed}, for tasks and models that have all of them"
        return f" M-CoG is {shared if others else f'that of {last}'}." if last else ""
    return ""


def _agreement(findings: Findings) -> Iterator[Line]:
    table = findings.agreement
    if table.empty:
        return
    for (between, what), part in table.groupby(["between", "what"], sort=False):
        found, known = part[sure(part)].sort_values("rho"), part.dropna(subset=["rho"])
        if len(found):
            least, most = (_pair(found.iloc[i]) for i in (0, -1))
            pairs = most if len(found) == 1 else f"from {least} to {most}"
            some = f"{len(found)} of {counted(len(part), 'pair')} significant"
            yield Line("paper", f"Agreement of {between} on {what}, ρ: {pairs}; {some}.")
            continue
        text = f"Whether {between} agree on {what} is not known: {part['why'].iloc[0]}."
        if len(known):
            pairs = "their only pair" if len(part) == 1 else f"any of {len(part)} pairs"
            text = (
                f"Whether {between} agree on {what}, task by task, is not known: ρ is "
                f"{_range(known['rho'].min(), known['rho'].max(), '.2f')}, but not significant for "
                f"{pairs} (p is at least {known['p'].min():.2f})."
            )
        yield Line("paper", text, is_open=True)


def sure(table: pd.DataFrame) -> "pd.Series":
    """Which coefficients are found: p is small, and an interval that is there leaves 0 out."""
    around_0 = (table["low"] <= 0) & (table["high"] >= 0)
    return table["significant"].astype(bool) & ~around_0


def _few(findings: Findings) -> Iterator[Line]:
    """What one seed, one task or a few do not allow."""
    if findings.results.runs["seed"].nunique() == 1:
        seed = "There is one seed, so how much another training would change is not known."
        yield Line("trust", seed, is_open=True)
    if findings.whole("mcog")["task"].nunique() == 1:
        yield Line("paper", "There is one task, so tasks cannot be compared.", is_open=True)
    tables = [table for table in (findings.table_2, findings.agreement) if len(table)]
    if any((table["rho"].notna() & table["low"].isna()).any() for table in tables):
        tasks = findings.whole("runs")["task"].nunique()
        yield Line(
            "paper",
            f"With fewer than {FEWEST_GROUPS} tasks there is no interval for ρ, and p, for which "
            f"whole tasks are permuted, cannot be below {1 / factorial(tasks):.2f} with "
            f"{counted(tasks, 'task')}.",
            is_open=True,
        )


def _name(row: Mapping[Any, Any]) -> str:
    return f"{row['task']} · {row['model']} · seed {row['seed']}"


def _by(form: str, command: str) -> str:
    """The command that makes something, where there is one."""
    return form.format(command) if command else ""


def _sure(row: "Mapping[Any, Any] | pd.Series", name: str, form: str) -> str:
    """A number with its interval, where it has one."""
    ends = "" if pd.isna(row["low"]) else f" ({row['low']:{form}} to {row['high']:{form}})"
    return f"{row[name]:{form}}{ends}"


def _pair(row: "pd.Series") -> str:
    return f"{_sure(row, 'rho', '.2f')} for {row['one']} and {row['other']}"


def _ends(row: "pd.Series") -> str:
    return "" if pd.isna(row["low"]) else f"; 95 % interval {row['low']:.1f} to {row['high']:.1f}"


def _range(low: float, high: float, form: str) -> str:
    first, last = format(low, form), format(high, form)
    return first if first == last else f"{first} to {last}"


def _of_runs(n: int) -> str:
    """What a range is over."""
    return "" if n == 1 else f" (over {n} runs)"
