"""Tables of the paper and others: tidy numbers for machines, the paper's layout for people."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from memloc.errors import lookup
from memloc.records import whole_file, write_table
from memloc.reporting import layouts
from memloc.reporting.findings import Findings
from memloc.reporting.sentences import remarks_on
from memloc.results import Results

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
    """One row per observation, full precision: CSV and Parquet."""
    layout: Callable[[pd.DataFrame], pd.DataFrame] = lambda tidy: tidy
    """As a person reads it: Markdown, LaTeX and the page."""
    part: str = "localise"
    """Whose results it needs."""
    note: str | Callable[[pd.DataFrame], str] = ""
    """What its intervals are, and why some are not there."""

    def said_of(self, tidy: pd.DataFrame) -> str:
        """The note, below the table for people, and what its results say against themselves."""
        note = self.note if isinstance(self.note, str) else self.note(tidy)
        return f"{note} {remarks_on(tidy)}".strip()


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
    text = table.layout(tidy).map(cell).astype(str)
    return text.rename(columns=lambda name: str(name).replace("_", " "))


def markdown(table: pd.DataFrame, note: str = "") -> str:
    """A table of texts as Markdown."""
    head = [str(name) for name in table.columns]
    rows = [head, ["---"] * len(head), *table.to_numpy().tolist()]
    lines = ["| " + " | ".join(str(c).replace("|", "\\|") for c in row) + " |" for row in rows]
    return "\n".join([*lines, *(["", note] if note else [])]) + "\n"


def latex(table: pd.DataFrame, title: str, name: str, note: str = "") -> str:
    """A table of texts as LaTeX with booktabs rules."""
    head, *rows = [[str(c) for c in row] for row in [table.columns, *table.to_numpy()]]
    lines = [
        "\\begin{table}",
        "\\centering",
        f"\\caption{{{_tex(f'{title}. {note}' if note else title)}}}",
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
    **{sign: f"${sign}$" for sign in "<>"},
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
        text = markdown(as_text(table, tidy), table.said_of(tidy))
    else:
        text = latex(as_text(table, tidy), table.title, table.name, table.said_of(tidy))
    with whole_file(path) as draft:
        draft.write_text(text, encoding="utf-8")
    return None


SEEDS = (
    "Mean over seeds; in brackets, from the lowest to the highest end of the seeds' 95 % intervals "
)
OVER_EXAMPLES = "(bootstrap over examples; gradients: jackknife over groups of examples)."


TABLES: tuple[Table, ...] = (
    Table("tasks", "settings", "Tasks of this study", "1", layouts.tasks, part="train"),
    Table(
        "generalisation",
        "depth",
        "Spearman's ρ between depth of memorisation and generalisation",
        "2",
        lambda findings: findings.table_2,
        layouts.table_2,
        part="generalisation",
        note=layouts.table_2_note,
    ),
    Table(
        "scores",
        "depth",
        "How well each task generalises",
        "",
        lambda findings: findings.memorised("generalisation"),
        layouts.scores,
        part="generalisation",
        note=(
            "Score: share of training examples whose label models that never saw them find more "
            "probable than one over the number of classes. Always predicting the most frequent "
            "label scores the majority's share, so where classes are uneven a high score says "
            "little; normalised: (score − majority) / (1 − majority). In brackets: 95 % bootstrap "
            "intervals over examples."
        ),
    ),
    Table(
        "models",
        "settings",
        "Models of this study",
        "3",
        layouts.models,
        layouts.table_3,
        part="train",
        note="Parameters are those of the layers, without embeddings and head.",
    ),
    Table(
        "post-processing",
        "control",
        "Gradient post-processing: accuracy@2 on the validation tasks",
        "4",
        lambda findings: findings.results.post_processing,
        layouts.table_4,
        part="post_processing",
        note="In brackets: 95 % Wilson interval over planted runs.",
    ),
    Table(
        "control",
        "control",
        "Planted layers found",
        "",
        layouts.control,
        layouts.control_rows,
        part="control",
        note=(
            "Means over planted runs. accuracy: share of the k best layers that are planted; where "
            "fewer than k are planted, share of those, so that 1 can be reached (chance: the "
            "larger of k and the planted, over all layers). In brackets, 95 % intervals: Wilson's "
            "for accuracy, bootstrap over planted runs for the others: reciprocal rank (mrr), "
            "AUROC, planted_mass (share of the positive weight that is on planted layers) and "
            "centre_error (layers between the centre of the weights and that of the planted)."
        ),
    ),
    Table(
        "nulls",
        "control",
        "What methods claim where nothing was planted",
        "",
        layouts.nulls,
        layouts.null_rows,
        part="control",
        note=(
            "A method finds layers where its weights are as far from uniform as in 95 % of the "
            "planted runs. Shares: of nulls in which it would (95 % Wilson interval), of pairs in "
            "which the planted run is further from uniform than the null, and of labels that "
            "changing layers undid at most (95 % bootstrap intervals over runs; none over one)."
        ),
    ),
    Table(
        "plants",
        "control",
        "Planted runs",
        "",
        lambda findings: findings.results.plants,
        part="control",
        note="Accuracies count all training examples of one run: there is no interval.",
    ),
    Table(
        "runs",
        "settings",
        "Runs",
        "",
        lambda findings: findings.results.runs,
        layouts.runs,
        part="train",
        note=(
            "Accuracies on noisy and clean examples count all of them; that on validation examples "
            "has a 95 % Wilson interval. A run counts for swapping and for centroids with swapped "
            "layers only where its reference learnt its own labels (reference accuracy)."
        ),
    ),
    Table(
        "mcog",
        "depth",
        "Memorisation centre of gravity",
        "",
        lambda findings: findings.memorised("mcog"),
        layouts.mean_over_seeds("mcog", "method"),
        note=f"{SEEDS}{OVER_EXAMPLES}",
    ),
    Table(
        "events",
        "depth",
        "Layers of events",
        "",
        lambda findings: findings.events,
        layouts.events,
        part="centroids",
        note=(
            f"{SEEDS}(bootstrap over examples). Never counts as the layer after the last; in how "
            "many seeds it is never, or at a layer where classes cannot be told apart, is said."
        ),
    ),
    Table(
        "agreement",
        "depth",
        "Agreement of methods and of models",
        "",
        lambda findings: findings.agreement,
        layouts.matrix,
        note=layouts.coefficient_note,
    ),
    Table(
        "orders",
        "depth",
        "Do models order the tasks alike?",
        "",
        lambda findings: findings.order_agreement,
        layouts.orders,
        note=layouts.order_note,
    ),
    Table(
        "event-agreement",
        "depth",
        "Centroids and label probes: do they tell of the same events?",
        "",
        lambda findings: findings.event_agreement,
        layouts.matrix,
        part="label_probes",
        note=layouts.coefficient_note,
    ),
    Table(
        "sizes",
        "depth",
        "A large model and small ones: is memorisation of the same tasks deeper?",
        "",
        lambda findings: findings.size_agreement,
        layouts.matrix,
        part="sizes",
        note=layouts.coefficient_note,
    ),
    Table(
        "binarised",
        "depth",
        "Tasks with all their classes and with two",
        "",
        layouts.binarised,
        layouts.binarised_rows,
        part="binarised",
        note=lambda tidy: (
            f"{layouts.coefficient_note(tidy)} Every task and model is a point, for events, too; "
            "the paper's ρ of crossing and initiation (.90 and .67) are over the five tasks' means "
            "over models, so they are another quantity. Differences (two classes minus all) in "
            "layers, with 95 % bootstrap intervals over tasks."
        ),
    ),
)
