"""Tables of the paper and others: tidy numbers for machines, the paper's layout for people."""

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Literal

import pandas as pd
import yaml
from pydantic import BaseModel, ConfigDict

from memloc.errors import lookup
from memloc.records import whole_file, write_table
from memloc.reporting.findings import Findings
from memloc.reporting.layouts import DAGGER, LAYOUTS, TIDY, in_columns
from memloc.reporting.sentences import averaged, remarks_on
from memloc.results import Results
from memloc.stats.agreement import FEWEST_GROUPS

FORMATS = {"csv": "csv", "parquet": "parquet", "markdown": "md", "latex": "tex"}
"""Names of the formats, and the endings of their files."""


class Table(BaseModel):
    """A table of the report and of `memloc tables`, as `tables.yaml` describes it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    section: Literal["where", "how", "trust", "paper", "made"]
    """Where the page shows it."""
    title: str
    number: str = ""
    """The paper's number; empty where the paper has none."""
    table: str = ""
    """Where its numbers are: see `Findings.table`; empty: in `TIDY`."""
    columns: dict[str, str | None] | None = None
    """For people: titles, and the column of each, perhaps with the ends of its interval."""
    part: str = "localise"
    """Whose results it needs."""
    note: str = ""
    """What its intervals are, and why some are not there."""

    def tidy(self, findings: Findings) -> pd.DataFrame:
        """One row per observation, full precision: CSV and Parquet."""
        return TIDY[self.name](findings) if self.name in TIDY else findings.table(self.table)

    def layout(self, tidy: pd.DataFrame) -> pd.DataFrame:
        """As a person reads it: Markdown, LaTeX and the page."""
        if self.columns is not None:
            return in_columns(tidy, self.columns)
        return LAYOUTS[self.name](tidy) if self.name in LAYOUTS else tidy

    def said_of(self, tidy: pd.DataFrame) -> str:
        """The note, below the table for people, and what its results say against themselves."""
        note = self.note.format(**_computed(tidy)) if "{" in self.note else self.note
        return f"{note} {remarks_on(tidy)}".strip()


def read_tables() -> tuple[Table, ...]:
    """Every table, in the order of the page."""
    text = (files("memloc.reporting") / "assets/tables.yaml").read_text(encoding="utf-8")
    return tuple(Table(name=name, **words) for name, words in yaml.safe_load(text).items())


TABLES = read_tables()
PERMUTED = (
    "*: p ≤ .05. For p, whole tasks are permuted (all orders up to eight tasks): it is small where "
    "both sides agree on how tasks differ, whatever all tasks share."
)
UNCLEAR = f"{DAGGER}: some events are at layers where classes cannot be told apart."


def _computed(tidy: pd.DataFrame) -> dict[str, str]:
    """What notes say of coefficients: stars, brackets or why there are none, and their methods."""
    known = tidy[tidy["rho"].notna()]
    intervals = []
    if known["low"].notna().any():
        intervals.append("In brackets: 95 % bootstrap interval over tasks.")
    if known["low"].isna().any():
        intervals.append(f"No interval: fewer than {FEWEST_GROUPS} tasks.")
    unclear = "n_inseparable" in known and (known["n_inseparable"] > 0).any()
    words = [PERMUTED, *([UNCLEAR] if unclear else []), *intervals]
    found = {"coefficients": " ".join(words), "intervals": " ".join(intervals)}
    return {**found, "averaged": averaged(tidy) if "measure" in tidy else ""}


def write_tables(
    results: Results, folder: Path, kind: str = "csv", only: Sequence[str] = ()
) -> tuple[list[Path], list[Table]]:
    """Write what there is, or the tables called `only`; the files, and tables without results."""
    ending = lookup("table format", kind, FORMATS)
    known = {table.name: table for table in TABLES}
    chosen = [lookup("table", name, known) for name in only] or list(TABLES)
    findings = Findings(results)
    written, missing = [], []
    for table in chosen:
        tidy = table.tidy(findings)
        if tidy.empty:
            missing.append(table)
            continue
        path = folder / f"{table.name}.{ending}"
        _write(table, tidy, path)
        written.append(path)
    return written, missing


def _write(table: Table, tidy: pd.DataFrame, path: Path) -> None:
    if path.suffix == ".parquet":
        return write_table(path, tidy, {"table": table.name, "title": table.title})
    if path.suffix == ".csv":
        text = tidy.to_csv(index=False)
    elif path.suffix == ".md":
        text = markdown(as_text(table, tidy), table.said_of(tidy))
    else:
        text = latex(as_text(table, tidy), table.title, table.name, table.said_of(tidy))
    with whole_file(path) as draft:
        draft.write_text(text, encoding="utf-8")
    return None


def as_text(table: Table, tidy: pd.DataFrame) -> pd.DataFrame:
    """The layout for people, every cell a text."""
    text = table.layout(tidy).map(cell).astype(str)
    return text.rename(columns=lambda name: str(name).replace("_", " "))


def cell(value: object) -> str:
    """A value as a person reads it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or (isinstance(value, float) and pd.isna(value)):
        return "–"
    if isinstance(value, float):
        return f"{value:.2f}" if abs(value) >= 0.005 or value == 0 else f"{value:.1e}"
    return str(value)


def markdown(table: pd.DataFrame, note: str = "") -> str:
    """A table of texts as Markdown."""
    head = [str(name) for name in table.columns]
    rows = [head, ["---"] * len(head), *table.to_numpy().tolist()]
    lines = ["| " + " | ".join(str(c).replace("|", "\\|") for c in row) + " |" for row in rows]
    return "\n".join([*lines, *(["", note] if note else [])]) + "\n"


def latex(table: pd.DataFrame, title: str, name: str, note: str = "") -> str:
    """A table of texts as LaTeX with booktabs rules."""
    escaped = table.map(_tex).rename(columns=_tex).style.hide(axis="index")
    caption = _tex(f"{title}. {note}" if note else title)
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
"""What TeX reads otherwise, or its usual fonts lack; also in the caption, which pandas leaves."""


def _tex(text: object) -> str:
    return str(text).translate(TEX)
