"""Tables of the paper and others: tidy numbers for machines, the paper's layout for people."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from memloc.arrays import FloatArray
from memloc.errors import lookup
from memloc.reporting.derived import counted_events
from memloc.reporting.results import Results
from memloc.reporting.sentences import phrase, remarks_on
from memloc.reporting.style import Exhibit, Theirs, method_order, theirs_of
from memloc.stats.agreement import FEWEST_GROUPS
from memloc.stats.claims import POINT, over_seeds
from memloc.store.files import whole_file
from memloc.store.records import write_table

DAGGER = "†"
FORMATS = {"csv": "csv", "parquet": "parquet", "markdown": "md", "latex": "tex"}
"""Suffixes of files by the name of the format."""


class TableExhibit(Exhibit):
    """A table of the report and of `memloc tables`, described in `tables.yaml` or by a method."""

    columns: dict[str, str | None] | None = None
    """Titles for people with their columns, each optionally with the ends of its interval."""
    wide: tuple[str, ...] = ()
    """Titles whose values become columns, which contain the last of `columns`."""
    note: str = ""
    """Text below the table on its intervals and on why some are missing."""

    def layout(self, tidy: pd.DataFrame) -> pd.DataFrame:
        """Return the table in the layout for people, as in Markdown, LaTeX and on the page."""
        shown = SUMMARIES[self.name](tidy) if self.name in SUMMARIES else tidy
        if self.columns is not None:
            shown = in_columns(shown, self.columns)
        return _pivoted(shown, list(self.wide)) if self.wide else shown

    def said_of(self, tidy: pd.DataFrame) -> str:
        """Return the table's note, followed by the remarks of the results in it."""
        note = self.note.format(**_computed(tidy)) if "{" in self.note else self.note
        return f"{note} {remarks_on(tidy)}".strip()


TABLES = TableExhibit.read("tables")


def tables_of(results: Results) -> list[TableExhibit]:
    """Return the described tables, and those of other packages' methods."""
    return [*TABLES, *map(table_of, theirs_of(results))]


def table_of(theirs: Theirs) -> TableExhibit:
    """Return a description of another package's table; if it is by layer, people read the drawn
    number.
    """
    by_layer = ["layer"] if "layer" in theirs.table else []
    numbers = theirs.numbers[:1] if by_layer else theirs.numbers
    first = ["task", "model", "seed", *theirs.texts, *by_layer]
    columns: dict[str, str | None] = dict.fromkeys([*first, *numbers])
    if theirs.ends:
        columns[numbers[0]] = f"{numbers[0]} low high"
    is_wide = numbers and not theirs.table.duplicated(first).any()
    wide = tuple(by_layer) if is_wide else ()
    return TableExhibit(**theirs.words, columns=columns, wide=wide, note=theirs.about)


def _computed(tidy: pd.DataFrame) -> dict[str, str]:
    """Return the parts of notes that explain stars, brackets and averaged methods."""
    known = tidy[tidy["rho"].notna()]
    intervals = [phrase("over_tasks")] if known["low"].notna().any() else []
    if known["low"].isna().any():
        intervals.append(phrase("no_interval", fewest=FEWEST_GROUPS))
    unclear = "n_inseparable" in known and (known["n_inseparable"] > 0).any()
    words = [phrase("permuted"), *([phrase("dagger", mark=DAGGER)] if unclear else []), *intervals]
    parts = {"coefficients": " ".join(words), "intervals": " ".join(intervals)}
    return {**parts, "averaged": _averaged(tidy) if "methods" in tidy else ""}


def _averaged(tidy: pd.DataFrame) -> str:
    """Return the methods that the mean centre of gravity averages, in a sentence."""
    methods = [name for name in tidy.loc[tidy["measure"] == "M-CoG", "methods"] if name][:1]
    *others, last = method_order(methods[0].split(", ")) if methods else [""]
    if not others:
        return f" M-CoG is that of {last}." if last else ""
    return phrase("averaged", others=", ".join(others), last=last)


def write_tables(
    results: Results, folder: Path, file_format: str = "csv", only: Sequence[str] = ()
) -> tuple[list[Path], list[TableExhibit]]:
    """Write all tables, or only some; return the files, and the tables without results.

    Args:
        results: Results of a study.
        folder: Folder of the files.
        file_format: Format: csv, parquet, markdown or latex.
        only: Names of the tables to write; all by default.
    """
    ending = lookup("table format", file_format, FORMATS)
    written, missing = [], []
    for table in TableExhibit.chosen(tables_of(results), only):
        tidy = table.shown(results)
        if tidy.empty:
            missing.append(table)
            continue
        path = folder / f"{table.name}.{ending}"
        _write(table, tidy, path)
        written.append(path)
    return written, missing


def _write(exhibit: TableExhibit, tidy: pd.DataFrame, path: Path) -> None:
    if path.suffix == ".parquet":
        return write_table(path, tidy, {"table": exhibit.name, "title": exhibit.title})
    if path.suffix == ".csv":
        text = tidy.to_csv(index=False)
    elif path.suffix == ".md":
        text = markdown(as_text(exhibit, tidy), exhibit.said_of(tidy))
    else:
        text = latex(as_text(exhibit, tidy), exhibit.title, exhibit.name, exhibit.said_of(tidy))
    with whole_file(path) as draft:
        draft.write_text(text, encoding="utf-8")
    return None


def as_text(exhibit: TableExhibit, tidy: pd.DataFrame) -> pd.DataFrame:
    """Return the layout for people with texts in all cells."""
    text = exhibit.layout(tidy).map(cell).astype(str)
    return text.rename(columns=lambda name: str(name).replace("_", " "))


def cell(value: object) -> str:
    """Return a value as text for people."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or (isinstance(value, float) and pd.isna(value)):
        return "–"
    if isinstance(value, float):
        return f"{value:.2f}" if abs(value) >= 0.005 or value == 0 else f"{value:.1e}"
    return str(value)


def markdown(table: pd.DataFrame, note: str = "") -> str:
    """Return a table of texts as Markdown."""
    head = [str(name) for name in table.columns]
    rows = [head, ["---"] * len(head), *table.to_numpy().tolist()]
    lines = ["| " + " | ".join(str(c).replace("|", "\\|") for c in row) + " |" for row in rows]
    return "\n".join([*lines, *(["", note] if note else [])]) + "\n"


def latex(table: pd.DataFrame, title: str, name: str, note: str = "") -> str:
    """Return a table of texts as LaTeX with booktabs rules.

    Args:
        table: Table of texts.
        title: Caption of the table.
        name: Label for references.
        note: Text below the table.
    """
    escaped = table.map(_tex).rename(columns=_tex).style.hide(axis="index")
    caption = _tex(f"{title}{'' if title.endswith('?') else '.'} {note}" if note else title)
    columns = "l" * len(table.columns)
    return str(
        escaped.to_latex(
            hrules=True,
            caption=caption,
            label=f"tab:{name}",
            position_float="centering",
            column_format=columns,
        )
    )


TEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        **{sign: f"\\{sign}" for sign in "&%$#_{}"},
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "ρ": r"$\rho$",
        **{sign: f"${sign}$" for sign in "<>"},
        "»": r"$\gg$",
        "≤": r"$\le$",
        "–": "--",
        "−": "$-$",
    }
)
"""Replacements for characters that TeX reads as commands or that its usual fonts lack."""


def _tex(text: object) -> str:
    return str(text).translate(TEX)


def table_3(tidy: pd.DataFrame) -> pd.DataFrame:
    """Round large numbers as papers do."""
    return tidy.assign(**{n: tidy[n].map(rounded) for n in ("tokens", "steps", "parameters")})


def rounded(number: float | None) -> str:
    """Return a number as papers print it: 1,234,000 is 1.2M."""
    if number is None or math.isnan(number):
        return "–"
    for size, sign in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            digits = ".0f" if number >= 100 * size else ".2g"
            return f"{number / size:{digits}}{sign}"
    return f"{number:.0f}"


def mcog(tidy: pd.DataFrame) -> pd.DataFrame:
    """Average M-CoG over seeds, with the outermost ends of the seeds' intervals."""
    return over_seeds(tidy, [*POINT, "method"], "mcog")


def events(tidy: pd.DataFrame) -> pd.DataFrame:
    """Average events over seeds; never counts as the layer after the last.

    The text says in how many seeds an event never happens or its classes are not separable.
    """
    counted = counted_events(tidy)
    keys = [*POINT, "event"]
    means = over_seeds(counted, keys, "layer")
    sums = counted.groupby(keys, sort=False)[["never", "unclear"]].sum()
    texts = estimates(means["layer"], means["low"], means["high"])
    for name, word in (("never", "never"), ("unclear", "not separable")):
        text = [f"; {n} {word}" if n else "" for n in sums[name]]
        texts = list(map("".join, zip(texts, text, strict=True)))
    return means.assign(text=texts)


def plants_told(tidy: pd.DataFrame) -> pd.DataFrame:
    """Return shares of right answers as text; `cannot tell` for methods without any answer."""
    right = estimates(tidy["right"], tidy["right_low"], tidy["right_high"])
    shown = ["cannot tell" if n else text for n, text in zip(tidy["told"] == 0, right, strict=True)]
    return tidy.assign(right=shown)


SUMMARIES: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "models": table_3,
    "mcog": mcog,
    "events": events,
    "control-answers": plants_told,
}
"""Functions that summarise a table for people, by the table's name."""


def in_columns(tidy: pd.DataFrame, columns: Mapping[str, str | None]) -> pd.DataFrame:
    """Return columns by their titles, numbers with intervals, and methods in their usual order."""
    columns_found: dict[str, Any] = {}
    for title, named in columns.items():
        value, *ends = named.rsplit(maxsplit=2) if named else [title]
        if value in tidy:
            marks = _marks(tidy) if value == "rho" and "significant" in tidy else None
            columns_found[title] = tidy[value]
            if ends:
                low, high = (tidy[end] for end in ends)
                columns_found[title] = estimates(tidy[value], low, high, marks)
    shown = pd.DataFrame(columns_found)
    if "method" not in shown:
        return shown
    order = method_order(shown["method"])
    return shown.sort_values("method", key=lambda names: names.map(order.index), kind="stable")


def _marks(tidy: pd.DataFrame) -> list[str]:
    unclear = tidy["n_inseparable"] > 0 if "n_inseparable" in tidy else [False] * len(tidy)
    return [
        ("*" if sure else "") + (DAGGER if unsure else "")
        for sure, unsure in zip(tidy["significant"], unclear, strict=True)
    ]


def estimates(
    values: "pd.Series",
    low: "pd.Series | FloatArray",
    high: "pd.Series | FloatArray",
    marks: list[str] | None = None,
) -> list[str]:
    """Return numbers with their intervals as texts.

    Args:
        values: The numbers.
        low: Lower ends of the intervals.
        high: Upper ends of the intervals.
        marks: Marks to append to the numbers; none by default.
    """
    every = zip(values, marks or [""] * len(values), low, high, strict=True)
    return [_estimate(*numbers) for numbers in every]


def _estimate(value: float, mark: str, low: float, high: float) -> str:
    if np.isnan(value):
        return "–"
    ends = "" if np.isnan(low) or np.isnan(high) else f" [{low:.2f}, {high:.2f}]"
    return f"{value:.2f}{mark}{ends}"


def _pivoted(shown: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Spread the last column over the values of the columns `by`; rows keep their order."""
    *index, value = shown.columns.drop(by)
    rows = pd.MultiIndex.from_frame(shown.sort_index()[index].drop_duplicates())
    names = shown[by].astype(str).agg(" ".join, axis=1)
    wide = shown.assign(name=names).pivot(index=index, columns="name", values=value)
    return wide.loc[rows, names.unique()].reset_index().rename_axis(columns=None)
