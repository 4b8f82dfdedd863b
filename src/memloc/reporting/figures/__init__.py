"""One function a figure: a tidy table in, an Altair chart out, for the page and for files alike."""

from memloc.reporting.figures.control import control_accuracy, control_layers, gradient_steps
from memloc.reporting.figures.figure import FORMATS, save_figure
from memloc.reporting.figures.generalisation import (
    agreement,
    depth_and_generalisation,
    memorisation_map,
)
from memloc.reporting.figures.layers import (
    binarised,
    layer_curves,
    mcog_by_model,
    mcog_over_methods,
    mcog_over_models,
    noise_probes,
    training_curves,
)
from memloc.reporting.figures.positions import centroid_trajectories, events, label_probes
from memloc.reporting.figures.windows import example_layers, single_layers, window_matrices

__all__ = [
    "FORMATS",
    "agreement",
    "binarised",
    "centroid_trajectories",
    "control_accuracy",
    "control_layers",
    "depth_and_generalisation",
    "events",
    "example_layers",
    "gradient_steps",
    "label_probes",
    "layer_curves",
    "mcog_by_model",
    "mcog_over_methods",
    "mcog_over_models",
    "memorisation_map",
    "noise_probes",
    "save_figure",
    "single_layers",
    "training_curves",
    "window_matrices",
]
