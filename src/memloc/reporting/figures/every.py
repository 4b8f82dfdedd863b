"""Every figure: which table it is drawn from, what is chosen in it, what it says."""

from collections.abc import Callable
from functools import partial

import pandas as pd

from memloc.reporting import figures as draw
from memloc.reporting.figures.figure import Figure
from memloc.reporting.figures.windows import example_weights, spread
from memloc.reporting.findings import Findings


def _of(name: str) -> Callable[[Findings], pd.DataFrame]:
    return lambda findings: findings.memorised(name)


def _whole(name: str) -> Callable[[Findings], pd.DataFrame]:
    return lambda findings: findings.whole(name)


def _usual(name: str) -> Callable[[Findings], pd.DataFrame]:
    """Without models of other depth than most, for means over models."""
    return lambda findings: findings.usual(findings.whole(name))


def _any(name: str) -> Callable[[Findings], pd.DataFrame]:
    return lambda findings: getattr(findings.results, name)


def _both(findings: Findings) -> pd.DataFrame:
    return findings.usual(findings.paired("mcog", "method"))


def _texts(findings: Findings) -> pd.DataFrame:
    """What windows revert, with the texts; of one seed and the examples that are drawn."""
    results = findings.results
    parts = []
    for run in findings.first_runs():
        texts = results.examples_of(run, noisy_only=True).drop(columns="is_noisy")
        for outcomes in findings.outcomes_of(run):
            drawn = outcomes.take(spread(example_weights(outcomes.wrong, outcomes.windows)))
            parts.append(drawn.table().merge(texts, on="example"))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


FIGURES: tuple[Figure, ...] = (
    Figure(
        "control-methods",
        "control",
        "How often each method finds planted layers",
        "Wrong labels were planted in known layers. The bars say which share of the k layers that "
        "a method ranks highest are planted ones (where fewer than k are planted: which share of "
        "those): means over planted runs with 95 % Wilson intervals; the grey mark is chance.",
        "2, left",
        _any("control"),
        draw.control_accuracy,
        part="control",
    ),
    Figure(
        "control-tasks",
        "control",
        "Planted layers found, task by task",
        "Share of the k best layers that are planted ones, by task; 95 % Wilson intervals.",
        "2, middle",
        _any("control"),
        partial(draw.control_accuracy, panel="task"),
        part="control",
    ),
    Figure(
        "control-models",
        "control",
        "Planted layers found, model by model",
        "Share of the k best layers that are planted ones, by model; 95 % Wilson intervals.",
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
        "planted. `nothing`: a null, where there is nothing to see. A hover shows the weight with "
        "its 95 % interval.",
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
        "clean and of noisy examples; then scaled to sum 1, without and with the two steps. Panel "
        "a is of noisy examples, which panel f is divided by; the published code draws clean ones "
        "there, and every line of the paper is a mean over MRPC and TREC, not one task. Single "
        "numbers: there are no intervals.",
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
        "Layer weights by a method's own measure, mean over seeds; bands reach from the lowest to "
        "the highest end of the seeds' 95 % intervals (bootstrap over examples; gradients: "
        "jackknife over groups of examples). A click on a task in the legend leaves it alone.",
        "5, 13 and 18",
        _whole("layers"),
        draw.layer_curves,
        ("model", "method"),
    ),
    Figure(
        "noise-probes",
        "layers",
        "Where noisy examples can be told from clean ones",
        "F1 of probes for noisy examples, mean over model and probe seeds; bands are the range "
        "over these seeds, dashes the mean of probes of shuffled labels (no interval).",
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
        "The largest memorisation error that changing a single layer brings, found seed by seed, "
        "then the mean over seeds (with `summary.single_layer: largest mean`, as in the published "
        "code, the largest of the layers' means, normalised for retraining); rules reach from the "
        "lowest to the highest end of the seeds' 95 % Wilson intervals. A hover shows the error on "
        "clean examples and the difference.",
        "4",
        lambda findings: findings.single_layers,
        draw.single_layers,
    ),
    Figure(
        "mcog-models",
        "depth",
        "Centre of gravity, model by model",
        "The memorisation centre of gravity (M-CoG) of the layer weights, mean over seeds (of "
        "weights averaged over seeds where `summary.mcog` is `of mean weights`); rules reach from "
        "the lowest to the highest end of the seeds' 95 % intervals (bootstrap over examples; "
        "gradients: jackknife over groups of examples). How far models order the tasks alike is in "
        "the table of orders.",
        "6",
        _whole("mcog"),
        draw.mcog_by_model,
        ("method",),
    ),
    Figure(
        "mcog-over-models",
        "depth",
        "Centre of gravity by method",
        "Mean over models of the same depth, seeds averaged first; rules are 95 % bootstrap "
        "intervals over models. Of a single model: what holds its seeds' own intervals.",
        "7, left",
        _usual("mcog"),
        draw.mcog_over_models,
    ),
    Figure(
        "mcog-over-methods",
        "depth",
        "Centre of gravity by model",
        "Mean over methods, seeds averaged first; rules are 95 % bootstrap intervals over methods. "
        "Of a single method: what holds its seeds' own intervals.",
        "7, right",
        _whole("mcog"),
        draw.mcog_over_methods,
    ),
    Figure(
        "events",
        "depth",
        "When memorisation wins",
        "By centroids: crossing against classification initiation. By label probes: memorisation » "
        "generalisation against the 90 % event. Rules: of all models, 95 % bootstrap intervals "
        "over models; of one, what holds its seeds' 95 % intervals (bootstrap over examples). "
        "`Never` counts as the layer after the last. Hollow: in some runs an event is at a layer "
        "where the classes cannot be told apart. All models: those of the same depth as most.",
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
        "M-CoG of tasks with all their classes and with the two most frequent ones, of the seeds "
        "that have both, mean over models; rules are 95 % bootstrap intervals over models. Of a "
        "single model: what holds its seeds' own intervals.",
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
        "the validation score; one point per task and model, means over seeds. Rules reach from "
        "the lowest to the highest end of the seeds' 95 % intervals (validation: Wilson's; others: "
        "bootstrap over examples; of M-CoG, the mean over methods that most have, the means of the "
        "methods' ends). Hollow: an event at a layer where the classes cannot be told apart.",
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
        "models); a star: p > .05, where whole tasks are permuted: agreement that all tasks share "
        "does not make p small. Below them: 95 % bootstrap intervals over tasks, which need five "
        "tasks.",
        "8 and 9",
        lambda findings: findings.agreement,
        draw.agreement,
        ("between", "what"),
    ),
    Figure(
        "training",
        "run",
        "How the labels were learnt",
        "What is predicted at every epoch of the training on noisy labels, mean over seeds; bands "
        "are the range over seeds, of which one alone has none.",
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
        "windows that contain the layer, changing all of them being 100 %; mean over seeds. A "
        "hover shows what holds the seeds' 95 % Wilson intervals, the error on clean examples in "
        "the same windows, and the difference.",
        "3 and 16",
        _of("windows"),
        draw.window_matrices,
        ("model", "task", "method"),
    ),
    Figure(
        "centroids",
        "run",
        "How noisy examples change class",
        "Positions between the centroid of the assigned class (0) and of the original one (1). "
        "Points: mean over examples and seeds; rules: what holds the seeds' 95 % bootstrap "
        "intervals of it; bands: the central 75 % of examples. Hollow points: the classes are no "
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
        "F1 of probes for the assigned and for the original label, mean over seeds; bands reach "
        "from the lowest to the highest end of the seeds' 95 % bootstrap intervals over examples. "
        "Grey: probes of shuffled labels (no interval).",
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
        "to models that never saw it, of the first seed. Top left is memorised, top right learnt "
        "from others. A hover says over how many models a mean is; intervals are not kept.",
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
        "ones: among windows with that layer, the share that reverts the example in the first "
        "seed. Counts, so there is no interval.",
        "",
        _texts,
        draw.example_layers,
        ("model", "task", "method"),
    ),
)
