"""Tables of the paper and others: tidy numbers for machines, the paper's layout for people."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from memloc.errors import lookup
from memloc.records import whole_file, write_table
from memloc.report.figures.style import method_order, task_order
from memloc.report.findings import Findings
from memloc.results import Results
from memloc.score.planted import mean_scores

FORMATS = {"csv": "csv", "parquet": "parquet", "markdown": "md", "latex": "tex"}
"""Names of the formats, and the endings of their files."""


@dataclass(frozen=True)
class Table:
    """A table of the report and of `memloc tables`."""

    name: str
    section: str
    """control, layers, depth or settings: where the page shows it."""
    title: str
    number: str
    """The paper's number; empty where the paper has none."""
    tidy: Callable[[Findings], pd.DataFrame]
    """A row an observation, full precision: CSV and Parquet."""
    layout: Callable[[pd.DataFrame], pd.DataFrame] = lambda tidy: tidy
    """As a person reads it: Markdown, LaTeX and the page."""
    part: str = "localise"
    """Whose results it needs."""


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


def as_text(table: Table, tidy: pd.DataFrame) -> pd.DataFrame:
    """The layout for people, every cell a text."""
    return table.layout(tidy).map(cell).astype(str)


def markdown(table: pd.DataFrame) -> str:
    """A table of texts as Markdown."""
    head = [str(name) for name in table.columns]
    rows = [head, ["---"] * len(head), *table.to_numpy().tolist()]
    lines = ("| " + " | ".join(str(c).replace("|", "\\|") for c in row) + " |" for row in rows)
    return "\n".join(lines) + "\n"


def latex(table: pd.DataFrame, title: str, name: str) -> str:
    """A table of texts as LaTeX with booktabs rules."""
    head, *rows = [[str(c) for c in row] for row in [table.columns, *table.to_numpy()]]
    lines = [
        "\\begin{table}",
        "\\centering",
        f"\\caption{{{_tex(title)}}}",
        f"\\label{{tab:{name}}}",
        f"\\begin{{tabular}}{{{'l' * len(head)}}}",
        "\\toprule",
        " & ".join(map(_tex, head)) + r" \\",
        "\\midrule",
        *(" & ".join(map(_tex, row)) + r" \\" for row in rows),
        "\\bottomrule",
        "\\end{tabular}",
        "\\end{table}",
    ]
    return "\n".join(lines) + "\n"


def cell(value: object) -> str:
    """A value as a person reads it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or (isinstance(value, float) and pd.isna(value)):
        return "–"
    if isinstance(value, float):
        return f"{value:.2f}" if abs(value) >= 0.005 or value == 0 else f"{value:.1e}"
    return str(value)


TEX = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "ρ": r"$\rho$",
    "»": r"$\gg$",
    "–": "--",
    "−": "$-$",
}
"""What TeX reads otherwise, or its usual fonts lack."""


def _tex(text: str) -> str:
    return "".join(TEX.get(sign, sign) for sign in text)


def _write(table: Table, tidy: pd.DataFrame, path: Path) -> None:
    if path.suffix == ".parquet":
        return write_table(path, tidy, {"table": table.name, "title": table.title})
    if path.suffix == ".csv":
        text = tidy.to_csv(index=False)
    elif path.suffix == ".md":
        text = markdown(as_text(table, tidy))
    else:
        text = latex(as_text(table, tidy), table.title, table.name)
    with whole_file(path) as draft:
        draft.write_text(text, encoding="utf-8")
    return None


def _tasks(findings: Findings) -> pd.DataFrame:
    """One row a task: the paper's Table 1 for the tasks that are here."""
    from memloc.data.tasks import known_tasks

    runs = findings.results.runs
    known = known_tasks()
    first = {row["task"]: row for row in runs.drop_duplicates("task").to_dict("records")}
    return pd.DataFrame(
        [
            {
                "category": first[task]["category"],
                "task": task,
                "description": known[task].description if task in known else "own data",
                "training examples": first[task]["train"],
                "noisy": first[task]["noisy"],
                "classes": first[task]["n_classes"],
            }
            for task in task_order(runs["task"])
        ]
    )


def _models(findings: Findings) -> pd.DataFrame:
    rows = {}
    for about, model in zip(findings.results.abouts, findings.results.runs["model"], strict=True):
        rows[model] = {
            "model": model,
            "loaded from": str(about["model"]),
            "layers": int(about["depth"]),
            "width": int(about.get("width", 0)) or None,
            "weights": str(about.get("weights_hash", "")),
        }
    return pd.DataFrame(list(rows.values()))


def _table_2(tidy: pd.DataFrame) -> pd.DataFrame:
    marked = [
        "–" if pd.isna(rho) else f"{rho:.2f}{'' if sure else '*'}"
        for rho, sure in zip(tidy["rho"], tidy["significant"], strict=True)
    ]
    rows = ["score", "measure"]
    wide = tidy.assign(rho=marked).pivot(index=rows, columns="model", values="rho")
    wide = wide.loc[list(map(tuple, tidy[rows].drop_duplicates().to_numpy()))]
    return wide[list(dict.fromkeys(tidy["model"]))].reset_index().rename_axis(columns=None)


def _table_4(tidy: pd.DataFrame) -> pd.DataFrame:
    steps = ["subtract_clean", "divide_frozen"]
    named = tidy.assign(column=tidy["model"] + " " + tidy["norm"])
    wide = named.pivot(index=steps, columns="column", values="accuracy").reset_index()
    marks = {True: "yes", False: "no"}
    wide[steps] = wide[steps].map(lambda on: marks[bool(on)])
    names = {"subtract_clean": "subtracting clean", "divide_frozen": "normalising frozen"}
    return wide.rename(columns=names).rename_axis(columns=None)


def _control(findings: Findings) -> pd.DataFrame:
    table = findings.results.control
    return mean_scores(table, ["method"]) if len(table) else table


def _estimates(value: str, columns: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Means over seeds with the seeds' least and greatest end: a row a task and model."""

    def layout(tidy: pd.DataFrame) -> pd.DataFrame:
        keys = ["task", "model", columns]
        grouped = tidy.groupby(keys, sort=False)
        found = grouped.agg(mean=(value, "mean"), low=("low", "min"), high=("high", "max"))
        text = [
            cell(mean) if pd.isna(low) else f"{mean:.2f} [{low:.2f}, {high:.2f}]"
            for mean, low, high in found.itertuples(index=False)
        ]
        wide = found.assign(text=text)["text"].unstack(columns)
        order = method_order(wide.columns) if columns == "method" else list(wide.columns)
        return wide[order].reset_index().rename_axis(columns=None)

    return layout


def _runs(tidy: pd.DataFrame) -> pd.DataFrame:
    shown = ["task", "model", "seed", "train", "noisy", "memorised", "noisy_accuracy"]
    return tidy[[*shown, "clean_accuracy", "validation_accuracy", "preset"]]


def _matrix(tidy: pd.DataFrame) -> pd.DataFrame:
    return tidy[["between", "what", "one", "other", "rho", "low", "high", "p", "n", "why"]]


TABLES: tuple[Table, ...] = (
    Table("tasks", "settings", "Tasks of this study", "1", _tasks, part="train"),
    Table(
        "generalisation",
        "depth",
        "Spearman's ρ between depth of memorisation and generalisation (*: p > .05)",
        "2",
        lambda findings: findings.table_2,
        _table_2,
        part="generalisation",
    ),
    Table("models", "settings", "Models of this study", "3", _models, part="train"),
    Table(
        "post-processing",
        "control",
        "Gradient post-processing: accuracy@2 on the validation tasks",
        "4",
        lambda findings: findings.results.post_processing,
        _table_4,
        part="control",
    ),
    Table("control", "control", "Planted layers found", "", _control, part="control"),
    Table(
        "nulls",
        "control",
        "What methods claim where nothing was planted",
        "",
        lambda findings: findings.results.nulls,
        part="control",
    ),
    Table(
        "plants",
        "control",
        "Planted runs",
        "",
        lambda findings: findings.results.plants,
        part="control",
    ),
    Table(
        "runs", "settings", "Runs", "", lambda findings: findings.results.runs, _runs, part="train"
    ),
    Table(
        "mcog",
        "depth",
        "Memorisation centre of gravity, mean over seeds and their intervals",
        "",
        lambda findings: findings.memorised("mcog"),
        _estimates("mcog", "method"),
    ),
    Table(
        "events",
        "depth",
        "Layers of events, mean over the seeds in which they happen, and intervals",
        "",
        lambda findings: findings.events,
        _estimates("layer", "event"),
        part="centroids",
    ),
    Table(
        "agreement",
        "depth",
        "Agreement of methods and of models",
        "",
        lambda findings: findings.agreement,
        _matrix,
    ),
    Table(
        "event-agreement",
        "depth",
        "Centroids and label probes: do they tell of the same events?",
        "",
        lambda findings: findings.event_agreement,
        part="label_probes",
    ),
    Table(
        "binarised",
        "depth",
        "Tasks with all their classes and with two",
        "",
        lambda findings: findings.binarisation,
        part="binarised",
    ),
)
