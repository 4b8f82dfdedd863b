"""All figures of a study as files: one for every choice of task, model and method."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

from memloc.errors import lookup
from memloc.progress import track
from memloc.reporting.figures.every import FIGURES
from memloc.reporting.figures.figure import FORMATS, Drawn, Figure, save_spec
from memloc.reporting.findings import Findings
from memloc.results import Results

WIDTH = 90
"""Characters of a line below the title."""


def write_figures(
    results: Results, folder: Path, kind: str = "png", only: Sequence[str] = ()
) -> tuple[list[Path], list[Figure]]:
    """Write what can be drawn, or those called `only`; the files, and figures without results."""
    lookup("figure format", kind, {name: name for name in FORMATS})
    known = {figure.name: figure for figure in FIGURES}
    chosen = [lookup("figure", name, known) for name in only] or list(FIGURES)
    findings = Findings(results)
    drawn = {figure: figure.drawn(findings) for figure in chosen}
    jobs = [(f, d, c) for f, d in drawn.items() if d is not None for c in d.choices(f.choose)]
    written = []
    with track("figures", len(jobs)) as advance:
        for figure, chart, choice in jobs:
            path = folder / f"{'-'.join(_words(figure.name, choice))}.{kind}"
            save_spec(_titled(figure, chart, choice), path)
            written.append(path)
            advance(1)
    return written, [figure for figure, found in drawn.items() if found is None]


def _titled(figure: Figure, drawn: Drawn, choice: Mapping[str, Any]) -> dict[str, Any]:
    lines = [" · ".join(map(str, choice.values())), *wrap(drawn.remarks(choice), WIDTH)]
    title = {"text": figure.title, "subtitle": lines}
    return {**drawn.with_rows(choice), "title": title}


def _words(name: str, choice: Mapping[str, Any]) -> Iterator[str]:
    yield name
    for value in choice.values():
        yield re.sub(r"[^\w.]+", "-", str(value)).strip("-").lower()
