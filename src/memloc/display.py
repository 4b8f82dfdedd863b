"""Shows results as a few lines in a terminal or a small card in a notebook."""

import html
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from memloc.progress import visible

MOST_LINES = 5
"""Largest number of lines in a `repr`."""
MOST_ROWS = 6
"""Largest number of table rows on a card."""
LONGEST = 160
"""Largest number of characters of a line or table cell; longer ones are cut."""
BARS = " ▁▂▃▄▅▆▇█"
COLOUR = "0, 114, 178"
"""Colour of a layer's share, as red, green and blue; it is legible on white and on black."""


@dataclass(frozen=True)
class Card:
    """Parts of an object to show: title, sentences, weights and rows."""

    title: str
    sentences: Sequence[str] = ()
    weights: Sequence[float] = ()
    """One number per layer, drawn as a strip."""
    rows: Sequence[Mapping[Any, Any]] = ()
    """First rows of a table, shown in notebooks."""


class Shown(ABC):
    """An object that is displayed as a card."""

    @abstractmethod
    def card(self) -> Card:
        """Return the title, sentences, weights and rows to show."""

    def __repr__(self) -> str:
        """Return the card as text of at most five lines."""
        card = self.card()
        strip = [f"|{sparkline(scaled(card.weights))}|"] if len(card.weights) else []
        lines = [cut(card.title), *strip, *map(cut, card.sentences)]
        return "\n".join(lines[:MOST_LINES])

    def _repr_html_(self) -> str:
        """Return the card as HTML, for notebooks."""
        card = self.card()
        title, *sentences = (
            html.escape(cut(s)) for s in (card.title, *card.sentences[:MOST_LINES])
        )
        lines = "".join(f"<p style='margin:.2em 0'>{line}</p>" for line in sentences)
        return f"<div><b>{title}</b>{_strip(card.weights)}{lines}{_table(card)}</div>"


class Plotted(Shown):
    """An object that the report draws as a figure."""

    drawn_by: ClassVar[Callable[[Any], Any]]
    """Function that draws the object; `memloc` sets it, as this module does not import the
    report.
    """

    def plot(self) -> Any:
        """Return the report's figure of this object as an Altair chart."""
        return type(self).drawn_by(self)


def sparkline(values: Sequence[float]) -> str:
    """Draw values from 0 (empty) to 1 (full) as bars; a missing number is a dot."""
    last = len(BARS) - 1
    return "".join(
        "·" if math.isnan(value) else BARS[round(min(1.0, max(0.0, value)) * last)]
        for value in values
    )


def scaled(weights: Sequence[float]) -> list[float]:
    """Divide all weights by the largest one."""
    top = max((w for w in map(float, weights) if w > 0), default=1.0)
    return [float(weight) / top for weight in weights]


def cut(text: str) -> str:
    """Return a text on one line of at most `LONGEST` characters."""
    line = visible(" ".join(str(text).split()))
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


def _strip(weights: Sequence[float]) -> str:
    """Draw one cell per layer, darker for larger weights."""
    cells = [
        f"<td style='background:rgba({COLOUR},{0.0 if math.isnan(share) else max(0.0, share):.2f});"
        f"padding:.3em .5em;text-align:center'>{number}</td>"
        for number, share in enumerate(scaled(weights), start=1)
    ]
    return f"<table><tr><th>layer</th>{''.join(cells)}</tr></table>" if cells else ""


def _table(card: Card) -> str:
    if not card.rows:
        return ""
    head = "".join(f"<th>{html.escape(str(name))}</th>" for name in card.rows[0])
    body = "".join(
        f"<tr>{''.join(f'<td>{html.escape(_cell(value))}</td>' for value in row.values())}</tr>"
        for row in card.rows[:MOST_ROWS]
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else cut(value)
