"""How things look everywhere: a task keeps its colour and marker, a method its place."""

import zlib
from collections.abc import Iterable
from typing import Any

import altair as alt

METHODS = ("shares", "swapping", "retraining", "gradients", "probing")
CATEGORIES = ("nlu", "sentiment", "hate", "topic")
"""From what needs understanding to what words give away."""

BLUE, ORANGE, PINK, GREEN = "#0072B2", "#D55E00", "#CC79A7", "#009E73"
COLOURS = (BLUE, ORANGE, PINK, GREEN)
"""Okabe and Ito's, which people with any colour vision can tell apart."""
GREY = "#8a8f98"
POINT = {"filled": True, "opacity": 1}
ROOM = alt.Scale(zero=False, nice=False, padding=12)
"""For points: none lies on the frame, which would cut it."""

TASKS: dict[str, tuple[str, str]] = {
    "wic": (BLUE, "circle"),
    "rte": ("#56B4E9", "cross"),
    "mrpc": ("#5B6FD6", "square"),
    "cola": ("#1F8FA8", "diamond"),
    "boolq": ("#8DA9D6", "triangle-up"),
    "tiny-acceptability": (BLUE, "circle"),
    "tiny-entailment": ("#56B4E9", "cross"),
    "sst2": (ORANGE, "triangle-down"),
    "sst5": ("#E69F00", "triangle-right"),
    "emotion": ("#B8860B", "square"),
    "tiny-sentiment": (ORANGE, "triangle-down"),
    "implicithate": (PINK, "triangle-left"),
    "stormfront": ("#A0508A", "diamond"),
    "tiny-politeness": (PINK, "triangle-left"),
    "reuters": (GREEN, "circle"),
    "trec": (
        "#6AAF3D",
        # A star: Vega has no name for it.
        "M0,-1L0.29,-0.4L0.95,-0.31L0.48,0.15L0.59,0.81L0,0.5"
        "L-0.59,0.81L-0.48,0.15L-0.95,-0.31L-0.29,-0.4Z",
    ),
    "tiny-topic": (GREEN, "square"),
}
"""Colours say the category, shades and markers the task; binarised variants look like the whole."""
_OTHERS = (GREY, "#8C6D31", "#7F5FA8", "#C0504D")
_SHAPES = ("circle", "square", "diamond", "cross", "triangle-up", "triangle-down")


def task_style(name: str) -> tuple[str, str]:
    """Colour and marker of a task; those of a task that nobody listed follow from its name."""
    known = TASKS.get(name.removesuffix("-binary"))
    if known is not None:
        return known
    number = zlib.crc32(name.encode())
    return _OTHERS[number % len(_OTHERS)], _SHAPES[number // 7 % len(_SHAPES)]


def task_order(names: Iterable[str]) -> list[str]:
    """Known tasks by category, then the others by name."""
    known = list(TASKS)
    place = {name: i for i, name in enumerate(known)}
    return sorted(set(names), key=lambda n: (place.get(n.removesuffix("-binary"), 99), n))


def method_order(names: Iterable[str]) -> list[str]:
    """The paper's four, then others by name."""
    return sorted(set(names), key=lambda n: (METHODS.index(n) if n in METHODS else 99, n))


def category_order(names: Iterable[str]) -> list[str]:
    """The paper's four, then others by name."""
    return sorted(set(names), key=lambda n: (CATEGORIES.index(n) if n in CATEGORIES else 99, n))


def task_colour(names: Iterable[str]) -> alt.Color:
    """The colours of these tasks."""
    return alt.Color("task:N", **_coloured(names))


def task_fill(names: Iterable[str]) -> alt.Fill:
    """The same for the inside of points that may be hollow."""
    return alt.Fill("task:N", **_coloured(names))


def _coloured(names: Iterable[str]) -> dict[str, Any]:
    tasks = task_order(names)
    scale = alt.Scale(domain=tasks, range=[task_style(task)[0] for task in tasks])
    return {"title": "task", "sort": tasks, "scale": scale, "legend": _legend()}


def task_shape(names: Iterable[str]) -> alt.Shape:
    """The markers of these tasks."""
    tasks = task_order(names)
    scale = alt.Scale(domain=tasks, range=[task_style(task)[1] for task in tasks])
    return alt.Shape("task:N", title="task", sort=tasks, scale=scale, legend=_legend())


def _legend() -> alt.Legend:
    return alt.Legend(orient="bottom", columns=4, labelLimit=180, symbolSize=80, symbolOpacity=1)


def layer_axis() -> alt.X:
    """Layers along the bottom."""
    axis = whole_numbers(grid=False)
    return alt.X("layer:Q", title="layer", axis=axis, scale=alt.Scale(nice=False, zero=False))


def whole_numbers(**more: Any) -> alt.Axis:
    """An axis of layers or epochs: there is nothing at one and a half."""
    return alt.Axis(format="d", tickMinStep=1, **more)


def share(field: str, title: str) -> alt.Y:
    """A share from 0 to 1, in per cent."""
    limits = alt.Scale(domain=[0, 1], clamp=True)
    return alt.Y(field, title=title, axis=alt.Axis(format="%"), scale=limits)


def highlight() -> alt.Parameter:
    """A click on a task in the legend leaves that task alone in full colour."""
    return alt.selection_point(fields=["task"], bind="legend")


def faded(chosen: alt.Parameter, full: float = 1.0) -> alt.Opacity:
    """Full where chosen, faint elsewhere."""
    return alt.condition(chosen, alt.value(full), alt.value(0.08))
