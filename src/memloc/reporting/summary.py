"""A study in sentences, every one computed from its numbers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import factorial
from typing import Any

import pandas as pd

from memloc.errors import counted
from memloc.reporting.figures.style import method_order
from memloc.reporting.findings import Findings
from memloc.reporting.layouts import averaged
from memloc.reporting.means import UNDONE, layers_to_undo, over_seeds
from memloc.reporting.missing import command
from memloc.reporting.sentences import remarks_on
from memloc.stats.agreement import FEWEST_GROUPS
from memloc.stats.claims import ALL
from memloc.stats.planted import mean_scores


@dataclass(frozen=True)
class Summary:
    """What was found, and what could not be concluded and why."""

    found: tuple[str, ...]
    open: tuple[str, ...]


def summarise(findings: Findings) -> Summary:
    """The sentences of a study."""
    if findings.results.runs.empty:
        none = f"There is no run yet: `{command('train', findings.results)}`."
        planted = tuple(_trust(findings))  # a study may do nothing but plant
        return Summary(planted, () if planted else (none,))
    found = (
        *_memorised(findings),
        *_trust(findings),
        *_depth(findings),
        *_single(findings),
        *_events(findings),
        *_generalisation(findings),
        *_agreement(findings),
    )
    return Summary(found, tuple(_open(findings)))


def _memorised(findings: Findings) -> Iterator[str]:
    runs = findings.results.runs
    kept = runs[runs["memorised"].astype(bool)]
    counts = [counted(runs[n].nunique(), n) for n in ("model", "task", "seed")]
    whose = "its" if len(runs) == 1 else "their"
    what = f"{len(kept)} of {counted(len(runs), 'run')} ({', '.join(counts)}) memorised {whose}"
    if kept.empty:
        yield f"{what} wrong labels."
        return
    low, high = kept["noisy_accuracy"].min(), kept["noisy_accuracy"].max()
    yield f"{what} wrong labels: {_range(low, high, '.0%')} of them are predicted in the end."


def _trust(findings: Findings) -> Iterator[str]:
    control = findings.results.control
    if control.empty:
        return
    means = mean_scores(control, ["method"])
    best = means[means["k"] == means["k"].min()].set_index("method")
    parts = [
        f"{m} in {best.loc[m, 'accuracy']:.0%} of {counted(best.loc[m, 'plants'], 'plant')} "
        f"({best.loc[m, 'low']:.0%} to {best.loc[m, 'high']:.0%})"
        for m in method_order(best.index)
    ]
    yield (
        f"Control: a planted layer is ranked first by {', by '.join(parts)}; "
        f"chance is {best['chance'].mean():.0%}."
    )


def _depth(findings: Findings) -> Iterator[str]:
    table = findings.usual(findings.whole("mcog")).dropna(subset=["mcog"])
    if table.empty:
        return
    layers = f"{findings.usual(findings.results.runs)['depth'].iloc[0]} layers"
    for method in method_order(table["method"]):
        means = over_seeds(table[table["method"] == method], ["task", "model"], "mcog")
        means = means.sort_values("mcog")
        first, last = means.iloc[0], means.iloc[-1]
        if len(means) == 1:
            yield f"By {method}, the centre of gravity is layer {_place(first)} of {layers}."
            continue
        apart = last["low"] > first["high"]
        chosen = f"do not overlap, but they are the extremes of {len(means)}"
        verdict = chosen if apart else "overlap, so no order follows"
        yield (
            f"By {method}, the centre of gravity goes from layer {_place(first)} for "
            f"{first['task']} in {first['model']} to {_place(last)} for {last['task']} in "
            f"{last['model']}, of {layers}; the two intervals {verdict}."
        )


def _single(findings: Findings) -> Iterator[str]:
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
        yield (
            f"{method.capitalize()} one layer undoes at most {_both(one)}, all layers "
            f"{_both(full)}{_of_runs(len(one))}."
        )
        widths = layers_to_undo(part)
        yield (
            f"To undo {UNDONE:.0%} of them, {method} needs {_widths(widths['best'])} in the best "
            f"window, and {_widths(widths['on_average'])} on average over windows, which is how "
            "the paper counts (7 to 10 of 12)."
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


def _events(findings: Findings) -> Iterator[str]:
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
        yield f"{what} {where}{_of_runs(len(part))}{more}."


def _generalisation(findings: Findings) -> Iterator[str]:
    table = findings.table_2
    if table.empty:
        return
    pooled = table[table["model"] == ALL]
    for score, part in pooled[sure(pooled)].groupby("score", sort=False):
        parts = [f"{row['measure']} {_rho(row)}" for row in part.to_dict("records")]
        n = _range(part["n"].min(), part["n"].max(), "d")
        yield (
            f"Depth and the {score} score, ρ over {n} tasks and models: {', '.join(parts)}."
            f"{_averaged(part)}"
        )


def _averaged(coefficients: pd.DataFrame) -> str:
    """Which methods the mean centre of gravity is over, where it is among the coefficients."""
    means = coefficients.loc[coefficients["measure"] == "M-CoG", "methods"]
    return "".join(f" M-CoG is {averaged(methods)}." for methods in means.head(1) if methods)


def _agreement(findings: Findings) -> Iterator[str]:
    table = findings.agreement
    if table.empty:
        return
    for (between, what), part in table.groupby(["between", "what"], sort=False):
        known = part[sure(part)].sort_values("rho")
        if known.empty:
            continue
        least, most = (_pair(known.iloc[i]) for i in (0, -1))
        pairs = most if len(known) == 1 else f"from {least} to {most}"
        some = f"{len(known)} of {counted(len(part), 'pair')} significant"
        yield f"Agreement of {between} on {what}, ρ: {pairs}; {some}."


def sure(table: pd.DataFrame) -> "pd.Series":
    """Which coefficients are found: p is small, and an interval that is there leaves 0 out."""
    around_0 = (table["low"] <= 0) & (table["high"] >= 0)
    return table["significant"].astype(bool) & ~around_0


def _references(findings: Findings) -> Iterator[str]:
    """Runs whose weights without noise did not learn: what is put in from there undoes anything."""
    for row in findings.unlearnt.to_dict("records"):
        yield (
            f"{_name(row)} is left out of swapping, of centroids with swapped layers and of what "
            "follows from them: its reference, trained on the original labels, predicts only "
            f"{row['reference_accuracy']:.0%} of them, so its layers undo what they never learnt."
        )


def _remarks(findings: Findings) -> Iterator[str]:
    """What results say against themselves, in runs and in planted ones."""
    on_runs = remarks_on(findings.whole("mcog"))
    on_plants = remarks_on(findings.results.control_layers)
    yield from [on_runs] if on_runs else []
    yield from [f"Control: {on_plants}"] if on_plants else []


def _name(row: Mapping[Any, Any]) -> str:
    return f"{row['task']} · {row['model']} · seed {row['seed']}"


def _open(findings: Findings) -> Iterator[str]:
    results = findings.results
    for row in results.runs[~results.runs["memorised"].astype(bool)].to_dict("records"):
        share = row["noisy_accuracy"]
        why = f"predicts only {share:.0%} of its wrong labels"
        if pd.isna(share):
            why = "is not finished"
        yield f"Nothing is concluded from {_name(row)}, which {why}."
    yield from _references(findings)
    yield from _remarks(findings)
    if results.control.empty:
        yield (
            "How far each method can be trusted here is not known: no labels were planted"
            f"{_by(' (`{}`)', command('control', results))}."
        )
    if results.runs["seed"].nunique() == 1:
        yield "There is one seed, so how much another training would change is not known."
    if results.mcog.empty:
        yield f"Nothing was localised yet{_by(': `{}`', command('localise', results))}."
    if findings.whole("mcog")["task"].nunique() == 1:
        yield "There is one task, so tasks cannot be compared."
    yield from _nowhere(findings)
    yield from _unrelated(findings)
    yield from _disagreement(findings)
    if any(_lacks_intervals(table) for table in (findings.table_2, findings.agreement)):
        tasks = findings.whole("runs")["task"].nunique()
        yield (
            f"With fewer than {FEWEST_GROUPS} tasks there is no interval for ρ, and p, for which "
            f"whole tasks are permuted, cannot be below {1 / factorial(tasks):.2f} with "
            f"{counted(tasks, 'task')}."
        )


def _nowhere(findings: Findings) -> Iterator[str]:
    """Methods that found nothing to weigh."""
    table = findings.whole("mcog")
    for method in method_order(table["method"]):
        part = table[table["method"] == method]
        none = part[part["mcog"].isna()]
        if len(none):
            names = ", ".join(f"{r['task']} · {r['model']}" for r in none.to_dict("records")[:3])
            more = " …" if len(none) > 3 else ""
            yield (
                f"{method.capitalize()} sees no layer in {len(none)} of "
                f"{counted(len(part), 'run')} ({names}{more}), so there is no centre of gravity."
            )


def _unrelated(findings: Findings) -> Iterator[str]:
    """Depth and generalisation where nothing significant was found, or nothing could be."""
    table = findings.table_2
    if table.empty:
        return
    pooled = table[table["model"] == ALL]
    for score, part in pooled[pooled["rho"].notna() & ~sure(pooled)].groupby("score", sort=False):
        parts = [f"{r['measure']} {_rho(r)}, p = {r['p']:.2f}" for r in part.to_dict("records")]
        n = _range(part["n"].min(), part["n"].max(), "d")
        yield (
            f"Whether depth goes with the {score} score is not known: ρ over {n} tasks and models "
            f"cannot be told from 0 ({'; '.join(parts)}).{_averaged(part)}"
        )
    lacking = pooled[pooled["rho"].isna()]
    for (against, reason), part in lacking.groupby(["score", "why"], sort=False):
        measures = ", ".join(part["measure"])
        yield (
            f"Depth ({measures}) cannot be compared with the {against} score: {reason}."
            f"{_averaged(part)}"
        )


def _disagreement(findings: Findings) -> Iterator[str]:
    table = findings.agreement
    if table.empty:
        return
    for (between, what), part in table.groupby(["between", "what"], sort=False):
        known = part.dropna(subset=["rho"])
        if sure(part).any():
            continue
        if known.empty:
            yield f"Whether {between} agree on {what} is not known: {part['why'].iloc[0]}."
            continue
        pairs = "their only pair" if len(part) == 1 else f"any of {len(part)} pairs"
        yield (
            f"Whether {between} agree on {what}, task by task, is not known: ρ is "
            f"{_range(known['rho'].min(), known['rho'].max(), '.2f')}, but not significant for "
            f"{pairs} (p is at least {known['p'].min():.2f})."
        )


def _by(form: str, command: str) -> str:
    """The command that makes something, where there is one."""
    return form.format(command) if command else ""


def _lacks_intervals(table: pd.DataFrame) -> bool:
    return len(table) > 0 and bool((table["rho"].notna() & table["low"].isna()).any())


def _rho(row: "Mapping[Any, Any] | pd.Series") -> str:
    ends = "" if pd.isna(row["low"]) else f" ({row['low']:.2f} to {row['high']:.2f})"
    return f"{row['rho']:.2f}{ends}"


def _pair(row: "pd.Series") -> str:
    return f"{_rho(row)} for {row['one']} and {row['other']}"


def _place(row: "pd.Series") -> str:
    if pd.isna(row["low"]):
        return f"{row['mcog']:.1f}"
    return f"{row['mcog']:.1f} ({row['low']:.1f} to {row['high']:.1f})"


def _range(low: float, high: float, form: str) -> str:
    first, last = format(low, form), format(high, form)
    return first if first == last else f"{first} to {last}"


def _of_runs(n: int) -> str:
    """What a range is over."""
    return "" if n == 1 else f" (over {n} runs)"
