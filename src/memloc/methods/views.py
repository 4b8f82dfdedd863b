"""Rows that memloc's own methods show in figures and in the terminal, computed from their
tables.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from memloc.arrays import Table
from memloc.display import sparkline
from memloc.seeds import generator

CASE = ("task", "category", "model")
"""Columns that identify a task, its category and a model; their seeds are averaged."""
MOST_POINTS = 300
"""Largest number of noisy, and of clean, examples drawn for one task and model."""


def with_words(table: Table, column: str, words: Mapping[Any, str]) -> Table:
    """Return the table with words for the values of a column, sorted in the order of the words."""
    place = {value: i for i, value in enumerate(words)}
    ordered = table.sort_values(column, key=lambda values: values.map(place), kind="stable")
    return ordered.assign(**{column: ordered[column].map(words)})


def shares(table: Table, words: Mapping[str, Mapping[str, str]]) -> Table:
    """Return shares by layer and value, means over seeds."""
    from memloc.stats.claims import over_seeds

    means = over_seeds(table, [*CASE, "value", "layer"], "share")
    return with_words(means, "value", words["value"])


def alone(table: Table, words: Mapping[str, Mapping[str, str]]) -> Table:
    """Return effects of single layers: means over seeds, with ends that enclose the seeds'
    intervals.
    """
    import pandas as pd

    known = table.dropna(subset=list(words["what"]))
    ends = {"share": "", "low": "_low", "high": "_high"}
    parts = [
        known.assign(
            what=words_for_end, **{name: known[f"{column}{end}"] for name, end in ends.items()}
        )
        for column, words_for_end in words["what"].items()
    ]
    how = {"share": "mean", "low": "min", "high": "max"}
    keys = [*CASE, "value", "what", "layer"]
    means = pd.concat(parts).groupby(keys, sort=False).agg(how).reset_index()
    # Margins first: single layers rarely turn a whole label.
    return with_words(means, "value", dict(reversed(list(words["value"].items()))))


def units(table: Table, words: Mapping[str, Mapping[str, str]]) -> Table:
    """Return shares of the units of each layer, means over seeds; `kind` is a unit's name without
    number.
    """
    from memloc.stats.claims import over_seeds

    one = table["first"] == table["last"]
    first, last = table["first"].astype(str), table["last"].astype(str)
    kind = table["unit"].str.replace(r"[\d.]+", "", regex=True).str.strip(" .:-")
    named = table.assign(layers=first.where(one, first + "-" + last), kind=kind)
    keys = [*CASE, "value", "unit", "kind", "layers", "first"]
    means = over_seeds(named, keys, "share").sort_values("first", kind="stable")
    return with_words(means, "value", words["value"])


def mean_positions(table: Table, words: Mapping[str, Mapping[str, str]]) -> Table:
    """Return mean positions between the class centroids, means over seeds.

    A layer counts as separable if it is separable in every seed.
    """
    how = dict.fromkeys(("mean", "low", "high", "separability", "by_chance"), "mean")
    how |= {"mean_low": "min", "mean_high": "max", "separable": "all"}
    keys = ["task", "model", "variant", "layer", "kind"]
    named = with_words(table, "kind", words["kind"])
    return named.groupby(keys, sort=False).agg(how).reset_index()


def timeline(table: Table) -> Table:
    """Return what layers learnt by epoch, mean over seeds with the same kept epochs."""
    keys = [*CASE, "examples", "after", "epoch", "layer"]
    how = dict.fromkeys(("share", "noisy_accuracy", "clean_accuracy"), "mean")
    how |= {"low": "min", "high": "max"}
    return table.groupby(keys, sort=False).agg(how).reset_index()


def label_probes(table: Table, words: Mapping[str, Mapping[str, str]]) -> Table:
    """Return F1 by the examples that probes are tested on and the labels they are asked for."""
    from memloc.stats.claims import over_seeds

    named = with_words(table.assign(what=_probed(table)), "what", words["what"])
    return over_seeds(named, ["task", "model", "what", "layer"], "f1", ["chance"])


def _probed(table: Table) -> Any:
    return table["examples"] + " " + table["labels"]


def planted_names(table: Table) -> Any:
    """Return names for rows of planted runs and of nulls: "layers 1-2", "nothing in 1-2"."""
    layers = table["planted"]
    return ("layers " + layers).where(~table["null"].astype(bool), "nothing in " + layers)


def gradient_steps(table: Table, steps: Mapping[str, Sequence[str]]) -> Table:
    """Return norms of the mean gradients by layer and step of the post-processing.

    Steps a to c are plain norms; later ones are scaled to sum 1. Steps that divide by norms of
    frozen weights are left out if these are missing.
    """
    import pandas as pd

    named = table.sort_values(["null", "first"], kind="stable").assign(planted=planted_names)
    plant = ["task", "model", "norm", "planted", "seed"]
    norms = named.pivot_table(index=[*plant, "layer"], columns="kind", values="value", sort=False)
    parts = []
    for step, (kind, *over) in steps.items():
        if {kind, *over} <= set(norms):
            value = norms[kind] / (norms[over[0]].replace(0, np.nan) if over else 1)
            if step[0] not in "abc":
                value /= value.groupby(plant, sort=False).transform("sum")
            parts.append(value.rename("value").reset_index().assign(step=step))
    return pd.concat(parts, ignore_index=True)


def post_processing(results: Any) -> Table:
    """Return accuracy@2 of gradient norms with each step on and off (appendix E)."""
    from memloc.stats.planted import processed_accuracy

    norms = results["control_gradients"]
    tasks = results.protocol.control.validation_tasks
    return processed_accuracy(norms[norms["task"].isin(tasks)])


def memorisation_map(table: Table) -> Table:
    """Return probabilities of the label with and without training on it, for a sample of
    examples.
    """
    import pandas as pd

    named = table.assign(example_kind=table["is_noisy"].map({True: "noisy", False: "clean"}))
    keys = ["task", "model", "example_kind"]
    parts = [_sampled(part) for _, part in named.groupby(keys, sort=False)]
    means, counts = ("trained", "held_out", "counterfactual"), ("n_trained", "n_held_out")
    drawn = pd.concat(parts)[[*keys, "example", *means, *counts]]
    # Noisy examples last, so that they are drawn over the others.
    return drawn.sort_values("example_kind", kind="stable", ignore_index=True)


def _sampled(part: Table) -> Table:
    one: Table = part[part["seed"] == part["seed"].min()]
    if len(one) <= MOST_POINTS:
        return one
    first = one.iloc[0]
    rng = generator(0, "memorisation map", first["task"], first["model"], first["example_kind"])
    return one.take(np.sort(rng.choice(len(one), MOST_POINTS, replace=False)))


def text_curves(title: str, every: Iterable[tuple[str, Sequence[float], str]]) -> str:
    """Draw one line per curve: its name, a bar for each value, and a remark at its end."""
    lines = list(every)
    width = max(len(name) for name, _, _ in lines)
    drawn = (f"{name:{width}} |{sparkline(values)}| {end}" for name, values, end in lines)
    return "\n".join([title, *drawn])


def positions_picture(layers: Table, events: Table) -> str:
    """Draw where noisy examples are between their two classes, one line per variant."""
    noisy = layers[(layers["kind"] == "noisy") & (layers["layer"] > 0)].sort_values("layer")
    lines = []
    for event in events[events["event"] == "crossing"].to_dict("records"):
        never = math.isnan(event["layer"])
        end = "crossing never" if never else f"crossing {event['layer']:.0f}"
        if not never and not event["separable"]:
            end += ", where the classes cannot be told apart"
        values = noisy.loc[noisy["variant"] == event["variant"], "mean"]
        lines.append((event["variant"], values.tolist(), end))
    title = (
        f"where noisy examples are, layer 1 to {noisy['layer'].max()}: full original class, empty "
        "assigned"
    )
    return text_curves(title, lines)


def probes_picture(layers: Table, words: Mapping[str, str]) -> str:
    """Draw F1 of label probes by layer, one line per kind of example and label."""
    shown = layers.query("layer > 0").sort_values("layer")
    lines = []
    for kind, name in words.items():
        f1 = shown.loc[_probed(shown) == kind, "f1"]
        lines.append((name, f1.tolist(), f"{f1.iloc[-1]:.2f}"))
    return text_curves(f"F1 of label probes, layer 1 to {shown['layer'].max()}", lines)


def timeline_picture(table: Table) -> str:
    """Draw what the layers learnt of noisy labels, one line per kept epoch."""
    noisy = table[table["examples"] == "noisy"]
    top = max(noisy["share"].max(), 1e-9)
    lines = []
    for (after, epoch), part in noisy.groupby(["after", "epoch"]):
        learnt = part.sort_values("layer")["share"]
        end = f"{learnt.sum():+z.0%} of the noisy labels"
        lines.append((f"epoch {after} to {epoch}", (learnt / top).tolist(), end))
    return text_curves(f"noisy labels learnt, layer 1 to {noisy['layer'].max()}", lines)


def halves_picture(examples: Table) -> str:
    """Write the mean probability of the label with and without training on it."""
    lines = ["mean probability of the label         trained on  held out  difference"]
    for is_noisy, name in ((True, "noisy examples"), (False, "clean examples")):
        part = examples[examples["is_noisy"] == is_noisy]
        means = [part[column].mean() for column in ("trained", "held_out", "counterfactual")]
        lines.append(f"{name:37} {means[0]:10.2f}  {means[1]:8.2f}  {means[2]:10.2f}")
    return "\n".join(lines)
