"""Every figure: which table it is drawn from, what is chosen in it, what it says."""

from collections.abc import Callable
from functools import partial

import pandas as pd

from memloc.report import figures as draw
from memloc.report.figures.figure import Figure
from memloc.report.findings import Findings


def _of(name: str) -> Callable[[Findings], pd.DataFrame]:
    return lambda findings: findings.memorised(name)


def _whole(name: str) -> Callable[[Findings], pd.DataFrame]:
    return lambda findings: findings.whole(name)


def _any(name: str) -> Callable[[Findings], pd.DataFrame]:
    return lambda findings: getattr(findings.results, name)


def _both(findings: Findings) -> pd.DataFrame:
    table, binary = findings.memorised("mcog"), findings.binary
    return table[table["task"].isin([*binary, *binary.values()])]


def _texts(findings: Findings) -> pd.DataFrame:
    """What windows revert, with the texts; of one seed, as it is much."""
    results = findings.results
    parts = []
    for run in findings.first_runs():
        texts = results.examples_of(run)[["example", "text", "original", "assigned"]]
        parts.append(results.reverted_of(run).merge(texts, on="example"))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


FIGURES: tuple[Figure, ...] = (
    Figure(
        "control-methods",
        "control",
        "How often each method finds planted layers",
        "Wrong labels were planted in two known layers. The bars say which share of the k layers "
        "that a method ranks highest are planted ones, over all planted windows, with 95 % "
        "intervals; the dashed line is chance.",
        "2, left",
        _any("control"),
        draw.control_accuracy,
        part="control",
    ),
    Figure(
        "control-tasks",
        "control",
        "The same, task by task",
        "Share of the k best layers that are planted ones, by task.",
        "2, middle",
        _any("control"),
        partial(draw.control_accuracy, panel="task"),
        part="control",
    ),
    Figure(
        "control-models",
        "control",
        "The same, model by model",
        "Share of the k best layers that are planted ones, by model.",
        "2, right",
        _any("control"),
        partial(draw.control_accuracy, panel="model"),
        part="control",
    ),
    Figure(
        "control-layers",
        "control",
        "What a method sees of planted layers",
        "Weights divided by the largest; the frame is around the layers where the labels were "
        "planted. `nothing`: a null plant, where no method should see anything.",
        "",
        _any("control_layers"),
        draw.control_layers,
        ("model", "task", "method"),
        part="control",
    ),
    Figure(
        "gradient-steps",
        "control",
        "What the gradients' post-processing does",
        "Norms of the mean gradient of each layer in the control set-up: of the frozen weights, of "
        "clean and of noisy examples; then scaled to sum 1, without and with the two steps.",
        "21",
        _any("control_gradients"),
        draw.gradient_steps,
        ("model", "task", "norm"),
        part="control",
    ),
    Figure(
        "layers",
        "layers",
        "How much each layer matters",
        "Layer weights by a method's own measure; bands hold the 95 % intervals of all seeds. A "
        "click on a task in the legend leaves it alone.",
        "5, 13 and 18",
        _whole("layers"),
        draw.layer_curves,
        ("model", "method"),
    ),
    Figure(
        "noise-probes",
        "layers",
        "Where noisy examples can be told from clean ones",
        "F1 of probes for noisy examples; bands hold the range over probe seeds, dashes are "
        "probes of shuffled labels.",
        "5 and 13, bottom",
        _whole("noise_probes"),
        draw.noise_probes,
        ("model",),
        part="probing",
    ),
    Figure(
        "single-layers",
        "layers",
        "One layer is not enough",
        "The largest memorisation error that changing a single layer brings; rules hold the 95 % "
        "intervals of all seeds.",
        "4",
        _whole("windows"),
        draw.single_layers,
    ),
    Figure(
        "mcog-models",
        "depth",
        "Centre of gravity, model by model",
        "The memorisation centre of gravity (M-CoG) of the layer weights; rules hold the 95 % "
        "intervals of all seeds.",
        "6",
        _whole("mcog"),
        draw.mcog_by_model,
        ("method",),
    ),
    Figure(
        "mcog-over-models",
        "depth",
        "Centre of gravity by method",
        "Mean over models and seeds, a standard deviation to either side.",
        "7, left",
        _whole("mcog"),
        draw.mcog_over_models,
    ),
    Figure(
        "mcog-over-methods",
        "depth",
        "Centre of gravity by model",
        "Mean over methods and seeds, a standard deviation to either side.",
        "7, right",
        _whole("mcog"),
        draw.mcog_over_methods,
    ),
    Figure(
        "events",
        "depth",
        "When memorisation wins",
        "By centroids: crossing against classification initiation. By label probes: memorisation » "
        "generalisation against the 90 % event. Rules: a standard deviation over runs, or the "
        "interval of the only one. `Never` counts as the layer after the last.",
        "12, 17 and 20",
        lambda findings: findings.events,
        draw.events,
        ("source", "models", "set"),
        part="centroids",
    ),
    Figure(
        "binarised",
        "depth",
        "All classes against two of them",
        "M-CoG of tasks with all their classes and with the two most frequent ones; rules are a "
        "standard deviation over models.",
        "19",
        _both,
        draw.binarised,
        ("method",),
        part="binarised",
    ),
    Figure(
        "generalisation",
        "depth",
        "Depth and generalisation",
        "Depth of memorisation against the generalisation score (by models trained on halves) or "
        "the validation score; a point a task and model, means over seeds.",
        "Table 2",
        lambda findings: findings.points,
        draw.depth_and_generalisation,
        ("measure", "against"),
    ),
    Figure(
        "agreement",
        "depth",
        "Do methods agree, and models?",
        "Rank correlations over tasks and models (between methods) or tasks and methods (between "
        "models); a star: p > .05. Intervals are bootstrapped over tasks.",
        "8 and 9",
        lambda findings: findings.agreement,
        draw.agreement,
        ("between", "what"),
    ),
    Figure(
        "training",
        "run",
        "How the labels were learnt",
        "What is predicted at every epoch of the training on noisy labels; mean and range over "
        "seeds.",
        "",
        _any("training"),
        draw.training_curves,
        ("model", "task"),
        part="train",
    ),
    Figure(
        "windows",
        "run",
        "What changing windows of layers undoes",
        "Memorisation error by number of layers changed at once and layer: the mean over the "
        "windows that contain the layer, changing all of them being 100 %.",
        "3 and 16",
        _of("windows"),
        draw.window_matrices,
        ("model", "task", "method"),
    ),
    Figure(
        "centroids",
        "run",
        "How noisy examples change class",
        "Positions between the centroid of the assigned class (0) and of the original one (1): "
        "mean, its interval, and the central 75 % of examples. Hollow points: the classes are no "
        "further apart than by chance.",
        "10, 11 and 15",
        _of("centroids"),
        draw.centroid_trajectories,
        ("model", "task", "variant"),
        part="centroids",
    ),
    Figure(
        "label-probes",
        "run",
        "Which label can be read off",
        "F1 of probes for the assigned and for the original label, with 95 % intervals; grey: "
        "probes of shuffled labels.",
        "14",
        _of("label_probes"),
        draw.label_probes,
        ("model", "task"),
        part="label_probes",
    ),
    Figure(
        "memorisation",
        "run",
        "The memorisation map",
        "Every point is a training example: how probable its label is to models trained on it, and "
        "to models that never saw it. Top left is memorised, top right learnt from others.",
        "",
        _any("memorisation"),
        draw.memorisation_map,
        ("model", "task"),
        part="generalisation",
    ),
    Figure(
        "examples",
        "examples",
        "Which layers revert which example",
        "Noisy examples, evenly spaced from those that are reverted in low layers to those in high "
        "ones: among windows with that layer, the share that reverts the example.",
        "",
        _texts,
        draw.example_layers,
        ("model", "task", "method"),
    ),
)
