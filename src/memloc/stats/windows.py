"""Windows of layers: the window matrix, layer weights, and names of windows and plants."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from memloc.arrays import BoolArray, FloatArray
from memloc.errors import ScoreError, SettingsError, counted, listed

SUBLAYERS = ("attention", "mlp")
"""Names of a layer's parts, each of which includes its norm."""


@dataclass(frozen=True)
class Group:
    """Layers that one group of a plant's noisy examples may change, and the epoch it is learnt
    from.
    """

    layers: tuple[int, ...]
    """Layers, from 0, that the group may change."""
    part: str = ""
    """Part of the layers that the group may change (`attention` or `mlp`); empty for whole
    layers.
    """
    first_epoch: int = 1
    """Epoch from which on the group is learnt."""
    last_epoch: int | None = None
    """The epoch after which it is not seen again; None: it is learnt to the end."""

    def __str__(self) -> str:
        part = f"{self.part}:" if self.part else ""
        epoch = f"@{self.first_epoch}" if self.first_epoch > 1 or self.last_epoch else ""
        epoch += f"-{self.last_epoch}" if self.last_epoch else ""
        return f"{part}{_joined(sorted(set(self.layers)))}{epoch}"


Groups: TypeAlias = tuple[Group, ...]
"""All groups of a plant."""


def windows(n_layers: int) -> list[range]:
    """Return every run of consecutive layers (from 0), narrow ones first: n(n + 1)/2 windows."""
    return [
        range(first, first + width)
        for width in range(1, n_layers + 1)
        for first in range(n_layers - width + 1)
    ]


def window_matrix(
    errors: FloatArray, depth: int, known: Sequence[range] | None = None
) -> FloatArray:
    """Return the window matrix (..., depth, depth) of errors (..., W): row width - 1, column layer.

    A cell is the mean error over the windows of that width that contain that layer. `known` lists
    the windows of `errors` in order, if they are not `windows(depth)`; cells without a known window
    are NaN.
    """
    means, unknown = _window_means(depth, tuple(windows(depth) if known is None else known))
    _check_errors(errors, n_windows=means.shape[1])
    matrix = (errors @ means.T).reshape(*errors.shape[:-1], depth, depth)
    matrix[..., unknown] = np.nan
    return matrix


def normalised(errors: FloatArray, full: int = -1) -> FloatArray:
    """Return errors (..., W) divided by the full window's error, which is at position `full`."""
    whole = errors[..., full]
    if not (whole > 0).all():
        raise ScoreError(
            "Errors cannot be normalised: changing all layers at once undid no memorised label, "
            "so check that the examples were memorised and that the other weights differ."
        )
    return errors / whole[..., np.newaxis]


def full_window(depth: int, known: Sequence[range]) -> int:
    """Return the position of the window of all `depth` layers among the `known` windows."""
    if range(depth) not in known:
        raise ScoreError(
            f"Errors cannot be normalised without the window of all {depth} layers: run that "
            "window too, or switch `normalise` off."
        )
    return known.index(range(depth))


def layer_weights(matrix: FloatArray) -> FloatArray:
    """Return layer weights (..., L): column means of the matrix (..., widths, L).

    A row that lacks only some layers is left out for all layers: wide windows have larger errors,
    so layers are comparable only over the same widths. If no row is left, weights are NaN.
    """
    complete = ~np.isnan(matrix).any(axis=-1, keepdims=True)
    n_rows = complete.sum(axis=-2)
    total = np.where(complete, matrix, 0.0).sum(axis=-2)
    return np.where(n_rows > 0, total / np.maximum(n_rows, 1), np.nan)


@lru_cache(maxsize=16)
def _window_means(depth: int, known: tuple[range, ...]) -> tuple[FloatArray, BoolArray]:
    """Return the map (depth², W) from errors to cells, and which cells have no window."""
    _check_windows(depth, known)
    belongs = np.zeros((depth, depth, len(known)))
    for position, window in enumerate(known):
        belongs[len(window) - 1, window.start : window.stop, position] = 1
    counts = belongs.sum(axis=-1)
    means = (belongs / np.maximum(counts, 1)[..., np.newaxis]).reshape(depth**2, len(known))
    unknown = counts == 0
    means.flags.writeable = unknown.flags.writeable = False  # every caller shares them
    return means, unknown


def _check_windows(depth: int, known: tuple[range, ...]) -> None:
    possible = set(windows(depth))
    strange = [window for window in known if window not in possible]
    if strange:
        raise ScoreError(f"{strange[0]} is not a window of consecutive layers among {depth}.")
    if not known or len(set(known)) < len(known):
        raise ScoreError(f"Each window must be there once, at least one: found {len(known)}.")


def _check_errors(errors: FloatArray, n_windows: int) -> None:
    if errors.ndim == 0 or errors.shape[-1] != n_windows:
        raise ScoreError(
            f"Expected errors of {counted(n_windows, 'window')}, found shape {errors.shape}."
        )
    if not np.isfinite(errors).all():
        raise ScoreError("A window's error is not a number: leave out windows that were not run.")


def windows_between(first: Iterable[int], last: Iterable[int]) -> list[range]:
    """Return the windows with these first and last layers, counted from 1."""
    return [range(int(a) - 1, int(b)) for a, b in zip(first, last, strict=True)]


def read_window(text: str) -> range:
    """Read a window from text: `6-7`, or `3` for one layer."""
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", text.strip())
    if match is None or int(match[1]) < 1:
        raise SettingsError(f"{text!r} is no window of layers: write 6-7, or 3 for one layer.")
    window = range(int(match[1]) - 1, int(match[2] or match[1]))
    if not window:
        raise SettingsError(f"Window {text} is empty: its first layer comes after its last.")
    return window


def window_name(window: range) -> str:
    """Write a window with both ends: `6-7`, `3-3`."""
    return f"{window.start + 1}-{window.stop}"


def layers_name(layers: Sequence[int]) -> str:
    """Write layers one by one: `layers 1, 2, 3`."""
    return f"layer{'s' if len(layers) > 1 else ''} {', '.join(map(str, layers))}"


def layer_ranges(layers: Iterable[int]) -> str:
    """Write layers as text: `layers 1 to 3 and 7`, `layers 1 and 2`."""
    numbers = sorted(layers)
    parts: list[str] = []
    for run in consecutive(numbers):
        parts += [f"{run.start} to {run.stop - 1}"] if len(run) > 2 else map(str, run)
    return f"{'layer' if len(numbers) == 1 else 'layers'} {listed(parts)}"


PLANT_KINDS = ("easy", "equal", "decoy", "loud")
"""Kinds of plants, such as `easy` for `6-7` and `equal` for `equal 6-7`; see `PlantSpec`."""


def split_kind(text: str) -> tuple[str, str]:
    """Return the kind of a plant and its layers: `decoy 6-7` has the kind decoy and layers 6-7."""
    match = re.fullmatch(r"\s*([a-z]+)\s+(.*)", text)
    kind, layers = match.groups() if match else ("easy", text)
    if kind not in PLANT_KINDS:
        raise SettingsError(
            f"No kind of plant is called {kind!r}: write layers such as 6-7, or one of "
            f"{listed(PLANT_KINDS)} before them, as in decoy 6-7."
        )
    return kind, layers


def named_plant(text: str) -> str:
    """Return the unique spelling of a plant: `6-7`, `decoy 2+9`."""
    kind, _ = split_kind(text)
    layers = plant_name(read_plant(text))
    return layers if kind == "easy" else f"{kind} {layers}"


def read_plant(text: str) -> Groups:
    """Read the layers and first epoch of each group of a plant's noisy examples.

    `6-7` is a window; `2+9` are layers 2 and 9; `mlp:6-7` are the MLPs of a window. With
    `2-3/9-10@21`, half of the noisy examples may change layers 2-3, and the other half, from epoch
    21 on, layers 9-10. A word in front is the kind of the plant.
    """
    return tuple(_read_group(group) for group in split_kind(text)[1].split("/"))


def _read_group(text: str) -> Group:
    rest, at, epoch = text.partition("@")
    part, colon, layers = rest.rpartition(":")
    part = part.strip()
    if colon and part not in SUBLAYERS:
        raise SettingsError(f"{text!r} names no part of a layer: write mlp:6-7 or attention:6-7.")
    stage = re.fullmatch(r"\s*([1-9]\d*)(?:-(\d+))?\s*", epoch)
    if at and (stage is None or (stage[2] and int(stage[2]) < int(stage[1]))):
        raise SettingsError(
            f"{text!r} does not say in which epochs it is learnt: write 9-10@21, or 9-10@21-40."
        )
    chosen = {layer for window in layers.split("+") for layer in read_window(window)}
    first, last = stage.groups() if stage else ("1", None)
    return Group(tuple(sorted(chosen)), part, int(first), int(last) if last else None)


def plant_name(groups: Groups) -> str:
    """Write the layers of a plant in their unique spelling."""
    return "/".join(map(str, groups))


def consecutive(layers: Sequence[int]) -> list[range]:
    """Return sorted layers as the smallest number of windows."""
    starts = [layer for layer in layers if layer - 1 not in layers]
    ends = [layer + 1 for layer in layers if layer + 1 not in layers]
    return [range(start, end) for start, end in zip(starts, ends, strict=True)]


def _joined(layers: list[int]) -> str:
    runs = consecutive(layers)
    if len(runs) == 1:
        return window_name(runs[0])
    return "+".join(window_name(run) if len(run) > 1 else str(run.start + 1) for run in runs)


def planted_layers(text: str) -> list[int]:
    """Return the layers, from 0, of all groups of a plant."""
    return sorted({layer for group in read_plant(text) for layer in group.layers})


def usual_plants(depth: int, width: int) -> list[str]:
    """Return the names of the first, the middle and the last `width` layers."""
    starts = dict.fromkeys((0, (depth - width) // 2, depth - width))
    names = [window_name(range(start, start + width)) for start in starts]
    check_plant(names[0], depth)
    return names


def every_window(depth: int, width: int) -> list[str]:
    """Return the names of the windows of `width` layers at every position."""
    check_plant(window_name(range(width)), depth)
    return [window_name(range(start, start + width)) for start in range(depth - width + 1)]


def check_inside(layers: Sequence[int], name: str, depth: int) -> None:
    """Refuse a window that reaches beyond the model's layers."""
    if min(layers) < 0 or max(layers) >= depth:
        raise SettingsError(f"Window {name} is outside the model, which has layers 1-{depth}.")


def check_plant(name: str, depth: int, epochs: int | None = None) -> None:
    """Refuse a plant that no run can have.

    That is one with layers outside the model or with all of its layers, with groups that share a
    layer, or with a group that begins after `epochs` (not checked without `epochs`).
    """
    groups = read_plant(name)
    layers = planted_layers(name)
    check_inside(layers, name, depth)
    end = max(group.last_epoch or group.first_epoch for group in groups)
    if epochs is not None and end > epochs:
        raise SettingsError(
            f"{name} needs epoch {end}, but training has {counted(epochs, 'epoch')}: begin and end "
            "earlier or train longer (control.epochs)."
        )
    if len(layers) == depth and not any(group.part for group in groups):
        raise SettingsError(
            f"Window {name} has {depth} of {counted(depth, 'layer')}: plant in some, not in all."
        )
    if len(layers) < sum(len(group.layers) for group in groups):
        raise SettingsError(
            f"Groups of {name} share a layer: give each group of examples layers of its own."
        )
