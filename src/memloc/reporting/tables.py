"""Tables of the paper and others: tidy numbers for machines, the paper's layout for people."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from memloc.arrays import FloatArray
from memloc.errors import lookup
from memloc.model.known import TINY, tiny_folder
from memloc.reporting.findings import Findings, counted_events
from memloc.reporting.results import Results
from memloc.reporting.sentences import remarks_on, say
from memloc.reporting.style import (
    Exhibit,
    Theirs,
    asset,
    method_order,
    task_order,
)
from memloc.stats.agreement import FEWEST_GROUPS
from memloc.stats.calibration import over_plants, over_runs
from memloc.stats.claims import BINARY, POINT, over_seeds
from memloc.stats.intervals import wilson
from memloc.stats.planted import mean_scores
from memloc.store import paths
from memloc.store.files import is_draft, whole_file
from memloc.store.records import write_table

DAGGER = "†"
FORMATS = {"csv": "csv", "parquet": "parquet", "markdown": "md", "latex": "tex"}
"""Names of the formats, and the endings of their files."""


class Table(Exhibit):
    """A table of the report and of `memloc tables`, as `tables.yaml` describes it.

    Where it names no table of the findings, its numbers are in `TIDY`.
    """

    columns: dict[str, str | None] | None = None
    """For people: titles, and the column of each, perhaps with the ends of its interval."""
    wide: tuple[str, ...] = ()
    """Titles whose values get columns of their own, which show the last of `columns`."""
    note: str = ""
    """What its intervals are, and why some are not there."""

    def tidy(self, findings: Findings) -> pd.DataFrame:
        """One row per observation, full precision: CSV and Parquet."""
        return TIDY[self.name](findings) if self.name in TIDY else findings.table(self.table)

    def layout(self, tidy: pd.DataFrame) -> pd.DataFrame:
        """As a person reads it: Markdown, LaTeX and the page."""
        shown = SUMMARIES[self.name](tidy) if self.name in SUMMARIES else tidy
        if self.columns is not None:
            shown = in_columns(shown, self.columns)
        return _pivoted(shown, list(self.wide)) if self.wide else shown

    def said_of(self, tidy: pd.DataFrame) -> str:
        """The note, below the table for people, and what its results say against themselves."""
        note = self.note.format(**_computed(tidy)) if "{" in self.note else self.note
        return f"{note} {remarks_on(tidy)}".strip()


TABLES = Table.read("tables.yaml")


def tables_of(findings: Findings) -> list[Table]:
    """Every table: those of `tables.yaml`, and those of methods that are not memloc's."""
    return [*TABLES, *map(table_of, findings.theirs)]


def table_of(theirs: Theirs) -> Table:
    """A table of somebody's; of one by layer, people read the number that is drawn."""
    by_layer = ["layer"] if "layer" in theirs.table else []
    numbers = theirs.numbers[:1] if by_layer else theirs.numbers
    first = ["task", "model", "seed", *theirs.texts, *by_layer]
    columns: dict[str, str | None] = dict.fromkeys([*first, *numbers])
    if theirs.ends:
        columns[numbers[0]] = f"{numbers[0]} low high"
    is_wide = numbers and not theirs.table.duplicated(first).any()
    wide = tuple(by_layer) if is_wide else ()
    return Table(**theirs.words, columns=columns, wide=wide, note=theirs.about)


def _computed(tidy: pd.DataFrame) -> dict[str, str]:
    """What notes say of coefficients: stars, brackets or why there are none, and their methods."""
    known = tidy[tidy["rho"].notna()]
    intervals = [say("over_tasks")] if known["low"].notna().any() else []
    if known["low"].isna().any():
        intervals.append(say("no_interval", fewest=FEWEST_GROUPS))
    unclear = "n_inseparable" in known and (known["n_inseparable"] > 0).any()
    words = [say("permuted"), *([say("dagger", mark=DAGGER)] if unclear else []), *intervals]
    found = {"coefficients": " ".join(words), "intervals": " ".join(intervals)}
    return {**found, "averaged": _averaged(tidy) if "methods" in tidy else ""}


def _averaged(tidy: pd.DataFrame) -> str:
    """Which methods the mean centre of gravity is over."""
    methods = [name for name in tidy.loc[tidy["measure"] == "M-CoG", "methods"] if name][:1]
    *others, last = method_order(methods[0].split(", ")) if methods else [""]
    if not others:
        return f" M-CoG is that of {last}." if last else ""
    return say("averaged", others=", ".join(others), last=last)


def write_tables(
    results: Results, folder: Path, kind: str = "csv", only: Sequence[str] = ()
) -> tuple[list[Path], list[Table]]:
    """Write what there is, or the tables called `only`; the files, and tables without results."""
    ending = lookup("table format", kind, FORMATS)
    findings = Findings(results)
    written, missing = [], []
    for table in Table.chosen(tables_of(findings), only):
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
"""What TeX reads otherwise, or its usual fonts lack; also in the caption, which pandas leaves."""


def _tex(text: object) -> str:
    return str(text).translate(TEX)


BLOCK = re.compile(r"(^|\.)\d+\.")
"""In the name of a parameter: blocks stand in a list, so theirs are numbered."""


def tasks(findings: Findings) -> pd.DataFrame:
    """One row a task: the paper's Table 1 for the tasks that are here."""
    from memloc.data.tasks import PAPER_TASKS, known_tasks

    known, runs = known_tasks(), findings.results.runs
    found = runs.drop_duplicates("task").set_index("task").loc[task_order(runs["task"])]
    papers = [PAPER_TASKS.get(task.removesuffix(BINARY)) for task in found.index]
    about = {task: row.description for task, row in known.items()}
    columns = {
        "category": found["category"],
        "dataset": found.index,
        "task": [about.get(task, "own data") for task in found.index],
        "domain": [paper.domain if paper else "–" for paper in papers],
    }
    sizes = {"size": found["train"], "noisy": found["noisy"], "labels": found["n_classes"]}
    return pd.DataFrame({**columns, **sizes}).reset_index(drop=True)


def models(findings: Findings) -> pd.DataFrame:
    """One row a model: the paper's Table 3 for the models that are here."""
    results = findings.results
    rows = {}
    for record, run in zip(results.records, results.runs.to_dict("records"), strict=True):
        name = record.model
        rows[run["model"]] = {
            "model": run["model"],
            **{key: pretraining(name).get(key) for key in ("corpus", "tokens", "steps")},
            "parameters": layer_parameters(name, results.folder / run["folder"]),
            "layers": record.depth,
            "width": record.width,
            "loaded from": name,
            "weights": record.weights_hash,
        }
    return pd.DataFrame(list(rows.values()))


def pretraining(model: str) -> Mapping[str, Any]:
    """Corpus, tokens and steps of an embedded model or one of the paper's; others are not known."""
    if model not in TINY:
        return _known().get(model, {})
    note = json.loads((tiny_folder(model) / "pretraining.json").read_text(encoding="utf-8"))
    tokens = note["rows"] * note["length"] * note["steps"]
    return {"corpus": "embedded texts", "tokens": tokens, "steps": note["steps"]}


@cache
def _known() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(asset("pretraining.yaml"))
    return found


def layer_parameters(model: str, run: Path) -> int | None:
    """Parameters of all blocks, by the weights of the run or the embedded ones; None without."""
    places = [
        *(p for p in (run / paths.CHECKPOINTS).glob("*") if not is_draft(Path(p.name))),
        *([tiny_folder(model)] if model in TINY else []),
    ]
    for folder in places:
        files = sorted(folder.glob("*.safetensors"))
        if files:
            return sum(map(_in_blocks, files))
    return None


def _in_blocks(file: Path) -> int:
    """The head of a safetensors file says the shape of everything in it."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        shapes = json.loads(opened.read(length))
    return sum(math.prod(v["shape"]) for name, v in shapes.items() if BLOCK.search(name))


def runs(findings: Findings) -> pd.DataFrame:
    """One row per run, with the interval of its accuracy on unseen data."""
    found = findings.results.runs
    share, n = (found[name].to_numpy(np.float64) for name in ("validation_accuracy", "validation"))
    sure = wilson(share, n)
    return found.assign(validation_low=sure.low, validation_high=sure.high)


TIDY: dict[str, Callable[[Findings], pd.DataFrame]] = {
    "words": lambda findings: over_runs(findings.memorised("answers")),
    "control-answers": lambda findings: over_plants(findings.results.control_answers),
    "tasks": tasks,
    "models": models,
    "runs": runs,
    "control": lambda findings: mean_scores(findings.results.control, ["method"]),
}
"""Tables that are no attribute of findings or results, by name."""


def table_3(tidy: pd.DataFrame) -> pd.DataFrame:
    """Large numbers the way papers have them."""
    return tidy.assign(**{n: tidy[n].map(rounded) for n in ("tokens", "steps", "parameters")})


def rounded(number: float | None) -> str:
    """1,234,000 as 1.2M, the way papers have it."""
    if number is None or math.isnan(number):
        return "–"
    for size, sign in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            digits = ".0f" if number >= 100 * size else ".2g"
            return f"{number / size:{digits}}{sign}"
    return f"{number:.0f}"


def mcog(tidy: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds with the seeds' least and greatest end."""
    return over_seeds(tidy, [*POINT, "method"], "mcog")


def events(tidy: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds in words; never counts as the layer after the last.

    What never happens in some seeds, or where classes cannot be told apart, is said.
    """
    counted, keys = counted_events(tidy), [*POINT, "event"]
    found = over_seeds(counted, keys, "layer")
    sums = counted.groupby(keys, sort=False)[["never", "unclear"]].sum()
    texts = estimates(found["layer"], found["low"], found["high"])
    for name, word in (("never", "never"), ("unclear", "not separable")):
        said = [f"; {n} {word}" if n else "" for n in sums[name]]
        texts = list(map("".join, zip(texts, said, strict=True)))
    return found.assign(text=texts)


def plants_told(tidy: pd.DataFrame) -> pd.DataFrame:
    """Answers on plants; `cannot tell` where no plant of a method has one."""
    right = estimates(tidy["right"], tidy["right_low"], tidy["right_high"])
    shown = ["cannot tell" if n else text for n, text in zip(tidy["told"] == 0, right, strict=True)]
    return tidy.assign(right=shown)


SUMMARIES: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "models": table_3,
    "mcog": mcog,
    "events": events,
    "control-answers": plants_told,
}
"""Tables that people read in fewer words than one row per observation."""


def in_columns(tidy: pd.DataFrame, columns: Mapping[str, str | None]) -> pd.DataFrame:
    """Columns by their titles, numbers with their intervals; methods in their usual order."""
    found: dict[str, Any] = {}
    for title, named in columns.items():
        value, *ends = named.rsplit(maxsplit=2) if named else [title]
        if value in tidy:
            marks = _marks(tidy) if value == "rho" and "significant" in tidy else None
            found[title] = tidy[value]
            if ends:
                low, high = (tidy[end] for end in ends)
                found[title] = estimates(tidy[value], low, high, marks)
    shown = pd.DataFrame(found)
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
    """Numbers with their intervals as texts."""
    every = zip(values, marks or [""] * len(values), low, high, strict=True)
    return [_estimate(*each) for each in every]


def _estimate(value: float, mark: str, low: float, high: float) -> str:
    if np.isnan(value):
        return "–"
    ends = "" if np.isnan(low) or np.isnan(high) else f" [{low:.2f}, {high:.2f}]"
    return f"{value:.2f}{mark}{ends}"


def _pivoted(shown: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """The last column by the values of the columns `by`; rows stay in their order."""
    *index, value = shown.columns.drop(by)
    rows = pd.MultiIndex.from_frame(shown.sort_index()[index].drop_duplicates())
    names = shown[by].astype(str).agg(" ".join, axis=1)
    wide = shown.assign(name=names).pivot(index=index, columns="name", values=value)
    return wide.loc[rows, names.unique()].reset_index().rename_axis(columns=None)
