"""Colours, markers and orders, so that a task looks the same in all figures."""

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from inspect import getdoc
from typing import TYPE_CHECKING, Any, Literal, Self

import altair as alt
import numpy as np
import pandas as pd
import yaml

from memloc.errors import lookup
from memloc.methods.registry import brought, exactness, method_names, methods
from memloc.reporting.reading import COLUMNS
from memloc.settings import Settings
from memloc.stats.claims import BINARY
from memloc.stats.planted import BASELINE

if TYPE_CHECKING:
    from memloc.reporting.results import Results


def asset(name: str) -> str:
    """Return the text of a file in `assets`."""
    return (files("memloc.reporting") / "assets" / name).read_text(encoding="utf-8")


class Exhibit(Settings):
    """A figure or a table of the page, which is written to a file, too."""

    name: str
    """Name of the exhibit, with which its files begin."""
    section: Literal["answer", "where", "how", "examples", "trust", "paper", "made"]
    """Section of the page."""
    title: str
    number: str = ""
    """Number in the paper; empty if the paper has no such exhibit."""
    table: str
    """Table of the results that the exhibit shows."""
    runs: Literal["all", "memorised", "whole", "usual"] = "all"
    """Runs of that table to show: see `results.Which`."""
    theirs: bool = False
    """True if the table belongs to a method of another package."""
    part: str = "localise"
    """Method, or part of a study, that makes its numbers."""

    def __hash__(self) -> int:
        return hash(self.name)

    def shown(self, results: "Results") -> pd.DataFrame:
        """Return the rows of the table for these runs."""
        table = results.part(self.table, self.runs)
        return drawable(table) if self.theirs else table

    @classmethod
    def read(cls, what: Literal["figures", "tables"]) -> "tuple[Self, ...]":
        """Return the exhibits of the report and of the methods, in the order of the page.

        In each section, those of methods that change layers come first, those of other methods
        last.
        """
        general = yaml.safe_load(asset(f"{what}.yaml"))
        every = [cls(name=n, **words) for n, words in (general | brought(what)).items()]
        return tuple(sorted(every, key=lambda each: each._place))

    @property
    def _place(self) -> int:
        return 1 if self.part not in methods() else 0 if exactness(self.part) else 2

    @classmethod
    def chosen(cls, every: "Sequence[Self]", names: Sequence[str]) -> "list[Self]":
        """Return the exhibits with these names; all without names."""
        known = {exhibit.name: exhibit for exhibit in every}
        return [lookup(cls.__name__.lower(), name, known) for name in names] or list(every)


@dataclass(frozen=True)
class Theirs:
    """Table of another package's method, described by its own words and columns."""

    name: str
    table: pd.DataFrame

    @property
    def words(self) -> dict[str, Any]:
        """Fields shared by figures and tables of this table."""
        what = self.name.removeprefix(f"{self._method}_")
        title = self._method.replace("_", " ").capitalize()
        return {
            "name": self.name.replace("_", "-"),
            "section": "how",
            "title": title if what == "layers" else f"{title}: {what}",
            "table": self.name,
            "runs": "memorised",
            "theirs": True,
            "part": self._method,
        }

    @property
    def about(self) -> str:
        """First paragraph of the method's description, if the method is installed."""
        method = methods().get(self._method)
        return " ".join((getdoc(method) or "").split("\n\n")[0].split()) if method else ""

    @property
    def texts(self) -> list[str]:
        """Text columns that the method added."""
        return [name for name in self._own if not is_number(self.table[name])]

    @property
    def numbers(self) -> list[str]:
        """Number columns that the method added; the interval belongs to the first."""
        return [name for name in self._own if is_number(self.table[name])]

    @property
    def ends(self) -> list[str]:
        """Columns of the interval; empty without one."""
        both = ["low", "high"]
        return both if self.numbers and set(both) <= set(self.table) else []

    @property
    def _method(self) -> str:
        return str(self.table["method"].iloc[0])

    @property
    def _own(self) -> list[str]:
        return [str(name) for name in self.table if name not in SHARED | LAYERED]


def theirs_of(results: "Results") -> list[Theirs]:
    """Return the tables of methods of other packages."""
    names = [name for name in results.tables if name not in COLUMNS]
    tables = [Theirs(name, drawable(results.memorised(name))) for name in names]
    return [result for result in tables if len(result.table)]


SHARED = {"task", "category", "model", "seed", "method", "remark"}
"""Columns that identify the run and method of a row."""
LAYERED = {"layer", "low", "high"}
"""Columns with the same meaning in every table: they are numbers, or absent."""
TAKEN = {"seeds", "name", "func", "engine", "engine_kwargs"}
"""Names that columns get, or pandas' arguments have, while figures and tables are made."""


def drawable(table: pd.DataFrame) -> pd.DataFrame:
    """Return the columns of another package's table that can be drawn: numbers and texts.

    Missing texts become empty, infinite numbers become missing.
    """
    shown = {}
    for name in map(str, table):
        values = table[name]
        if name in SHARED:
            shown[name] = values
        elif not name.isidentifier() or name in TAKEN:
            continue
        elif is_number(values):
            shown[name] = values.where(np.isfinite(values.astype(float)))
        elif name not in LAYERED and pd.api.types.infer_dtype(values.astype(object)) == "string":
            shown[name] = values.astype(object).fillna("")
    return pd.DataFrame(shown)


def is_number(values: "pd.Series") -> bool:
    """Return whether a column holds numbers."""
    return bool(pd.api.types.is_numeric_dtype(values))


_FILE = yaml.safe_load(asset("style.yaml"))
TASKS: dict[str, tuple[str, str]] = {name: tuple(look) for name, look in _FILE["tasks"].items()}
"""Colours and markers of tasks."""
TITLES: dict[str, str] = _FILE["titles"]
"""Titles of columns that are not titled by their name."""
WORDS: dict[str, dict[str, str]] = _FILE["words"]
"""Words for values, in the order in which they are drawn."""
MEANINGS: dict[str, str] = _FILE["colours"]
"""Colours of kinds of examples and labels."""
PRINT: dict[str, Any] = _FILE["print"]
"""Look of figures in files."""
METHODS = tuple(sorted(method_names("localiser"), key=lambda name: -exactness(name)))
"""memloc's own localisers, the most exact one first."""
CATEGORIES = ("nlu", "sentiment", "hate", "topic")
"""Categories of tasks, from those that need understanding to those that single words give away."""
COLOURS = ("#96614A", "#EE88EE", "#7733AA", "#EE9977")
"""Colours for names other than tasks and kinds of examples."""
SHADES = ("#BBBB77", "#888855", "#445511")
"""Colours for numbers."""
GREY = "#8a8f98"
OTHERS = ("#8C6D31", "#6655DD", "#C0504D", "#005555")
"""Colours for tasks that are not listed in `style.yaml`."""
MARKERS = ("circle", "diamond", "square", "triangle-up", "cross", "triangle-down")
ROOM = alt.Scale(zero=False, nice=False, padding=12)
"""Scale with space at its ends, so that the frame cuts no point."""


def task_style(name: str) -> tuple[str, str]:
    """Return colour and marker of a task; for unlisted tasks they are derived from the name."""
    known = TASKS.get(name.removesuffix(BINARY))
    if known is not None:
        return known
    number = zlib.crc32(name.encode())
    return OTHERS[number % len(OTHERS)], MARKERS[number // 7 % len(MARKERS)]


def _known_first(known: Iterable[str], names: Iterable[str]) -> list[str]:
    place = {name: i for i, name in enumerate(known)}
    last = len(place)
    return sorted(
        set(names), key=lambda n: (place.get(n.removesuffix(BINARY), last), n == BASELINE, n)
    )


def task_order(names: Iterable[str]) -> list[str]:
    """Sort tasks: known ones by category, then others by name."""
    return _known_first(TASKS, names)


def method_order(names: Iterable[str]) -> list[str]:
    """Sort methods: memloc's own by exactness, others by name, the best baseline last."""
    return _known_first(METHODS, names)


def order(column: str, values: Iterable[Any]) -> list[Any]:
    """Sort the values of a column for drawing: numbers by size, names in their usual order."""
    names = pd.Series(list(values)).drop_duplicates()
    if is_number(names):
        return sorted(names.tolist(), reverse=column == "width")  # wide windows on top
    known = {"task": TASKS, "method": METHODS, "category": CATEGORIES, "model": ()}
    known |= {"one": METHODS, "other": METHODS}
    return _known_first(known[column], names) if column in known else names.tolist()


def channel(
    column: str, values: Iterable[Any], title: str | None, scale: Callable[..., alt.Scale]
) -> dict[str, Any]:
    """Return the encoding of names by `colours` or `markers`, in their order.

    Args:
        column: Column of the names.
        values: Values of the column.
        title: Title of the legend; none if None.
        scale: Function that returns the scale: `colours` or `markers`.
    """
    names = order(column, values)
    shown = title or ("task" if column == "task" else None)
    encoding = {"shorthand": f"{column}:N", "title": shown, "sort": names}
    return {**encoding, "scale": scale(column, names), "legend": _legend(names)}


def markers(column: str, names: Sequence[Any]) -> alt.Scale:
    """Return a marker for each name."""
    of_tasks = column == "task"
    shapes = [
        task_style(n)[1] if of_tasks else MARKERS[i % len(MARKERS)] for i, n in enumerate(names)
    ]
    return alt.Scale(domain=names, range=shapes)


def colours(column: str, names: Sequence[Any]) -> alt.Scale:
    """Return a colour for each name."""
    if column == "task":
        return alt.Scale(domain=names, range=[task_style(name)[0] for name in names])
    if all(name in MEANINGS for name in names):
        return alt.Scale(domain=names, range=[MEANINGS[name] for name in names])
    some = SHADES if names and not isinstance(names[0], str) else COLOURS
    if len(names) > len(some):
        return alt.Scale(domain=names, scheme="viridis")
    return alt.Scale(domain=names, range=list(some[: len(names)]))


def _legend(names: Sequence[Any]) -> alt.Legend:
    long = max((len(str(name)) for name in names), default=0) > 20
    room = {"columns": 2, "labelLimit": 400} if long else {"columns": 4, "labelLimit": 180}
    return alt.Legend(orient="bottom", symbolSize=80, symbolOpacity=1, **room)


def whole_numbers(**more: Any) -> alt.Axis:
    """Return an axis of layers or epochs, which are whole numbers."""
    return alt.Axis(format="d", tickMinStep=1, **more)
