"""One HTML file with everything: opens by double click, needs no network."""

import base64
import gzip
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas as pd
import yaml
from markupsafe import Markup, escape

from memloc.arrays import FloatArray
from memloc.errors import (
    checked_arguments,
    counted,
)
from memloc.reporting.examples import example_block
from memloc.reporting.figures import (
    DATA,
    Drawn,
    Figure,
    figures_of,
)
from memloc.reporting.missing import command, commands_of, coverage
from memloc.reporting.results import Results, load_results
from memloc.reporting.sentences import Line, Summary, remark_on, summarise
from memloc.reporting.style import (
    TITLES,
    asset,
    method_order,
    task_order,
)
from memloc.reporting.tables import (
    Table,
    as_text,
    cell,
    tables_of,
)
from memloc.store import paths
from memloc.store.files import whole_file
from memloc.store.records import as_stored, read_json, write_json

SECTIONS: dict[str, dict[str, str]] = yaml.safe_load(asset("page.yaml"))
"""By name: what each is called in the list at the top and as a heading; the words below it."""
SHORT = 16
"""Rows of a table that is not folded away."""
DIGITS = 5
"""Of numbers on the page, which are for looking."""


@dataclass(frozen=True)
class Report:
    """The page that was written, and its summary."""

    path: Path
    summary: Summary
    commands: tuple[str, ...]
    """Commands that make what is missing."""
    missing: str = ""
    """What is missing, in words."""


@checked_arguments
def report(study: str | Path, out: str | Path | None = None) -> Path:
    """Write one page over everything below a folder, and return its path.

    The page opens without a network.

    Args:
        study: Folder of a study, of several runs or of one run.
        out: Path of the page; by default `report/index.html` in that folder.
    """
    return write_report(study, out).path


def write_report(study: str | Path, out: str | Path | None = None) -> Report:
    """Write `report/index.html` into a study's folder, or `out`."""
    results = load_results(study)
    path = paths.page(Path(study)) if out is None else Path(out)
    summary = summarise(results)
    html = render(results, summary)
    with whole_file(path) as draft:
        draft.write_text(html, encoding="utf-8")
    found = coverage(results)
    report = Report(path, summary, found.commands, found.sentence)
    said = {**asdict(summary), "commands": list(report.commands), "missing": report.missing}
    write_json(path.with_suffix(".json"), said)
    return report


def read_report(study: str | Path) -> Report | None:
    """The report that is in a study's folder, if there is one."""
    path = paths.page(Path(study))
    if not path.with_suffix(".json").is_file():
        return None
    said = read_json(path.with_suffix(".json"))
    with as_stored(path.with_suffix(".json")):
        summary = Summary(
            answers=tuple(map(str, said["answers"])),
            trust=str(said["trust"]),
            learnt=str(said["learnt"]),
            lines=tuple(Line(**line) for line in said["lines"]),
        )
        return Report(path, summary, tuple(said["commands"]), str(said["missing"]))


def render(results: Results, summary: Summary) -> str:
    """The whole page as text."""
    every = {figure: figure.drawn(results) for figure in figures_of(results)}
    drawn = {f: d for f, d in every.items() if d is not None and f.says_something(d, results)}
    tables = {table: table.shown(results) for table in tables_of(results)}
    blocks = {f"data-{f.name}": packed(columns_of(d.rows)) for f, d in drawn.items()}
    texts = dict(_example_blocks(results))
    blocks |= {f"examples-{i}": packed(block) for i, block in enumerate(texts.values())}
    choices = _choices(results)
    page = {
        "data": DATA,
        "start": _start(choices, drawn),
        "commands": commands_of(results),
        "figures": [_figure_record(f, d) for f, d in drawn.items()],
        "examples": {task: f"examples-{i}" for i, task in enumerate(texts)},
        "held": any("held" in r for b in texts.values() for r in b["runs"]),
    }
    return _template().render(
        name=results.folder.resolve().name,
        folder=str(results.folder),
        sections=list(_sections(summary, drawn, tables, bool(texts))),
        first=[_heading(f, d) for f, d in drawn.items() if f.section == "answer"],
        absent=_absent(results, [f for f in every if every[f] is None], tables),
        summary=summary,
        short=SHORT,
        choices=choices,
        start=page["start"],
        has_shares=page["held"],
        coverage=_coverage(results),
        study=study_file(results),
        commands=commands(results),
        settings=settings(results),
        versions=versions(results),
        version=version("memloc"),
        page=_script_json(page),
        blocks={name: Markup(text) for name, text in blocks.items()},
        css=Markup(asset("page.css")),
        js=Markup(_script(asset("page.js"))),
        vega=Markup(_vega()),
    )


def _sections(
    summary: Summary,
    drawn: dict[Figure, Drawn],
    tables: dict[Table, pd.DataFrame],
    has_examples: bool,
) -> Iterator[dict[str, Any]]:
    """Sections that have something to show, with their sentences, figures and tables."""
    for name, called in SECTIONS.items():
        parts = {
            "found": [s.text for s in summary.lines if s.section == name and not s.is_open],
            "open": [s.text for s in summary.lines if s.section == name and s.is_open],
            "figures": [_heading(f, d) for f, d in drawn.items() if f.section == name],
            "tables": [_shown(t, r) for t, r in tables.items() if t.section == name and len(r)],
        }
        if name == "made" or any(parts.values()) or (name == "examples" and has_examples):
            yield {"name": name, **called, **parts}


def _absent(
    results: Results, figures: Sequence[Figure], tables: dict[Table, pd.DataFrame]
) -> dict[str, list[str]]:
    """What this study has no results for, by the command that makes it: figures and tables."""
    exhibits = [*figures, *(table for table, tidy in tables.items() if tidy.empty)]
    found: dict[str, list[str]] = {}
    for each in exhibits:
        titles = found.setdefault(command(each.part, results), [])
        if each.title not in titles:
            titles.append(each.title)
    return dict(sorted(found.items(), reverse=True))  # last what no command makes


def _figure_record(figure: Figure, drawn: Drawn) -> dict[str, Any]:
    values = {n: [str(v) for v in drawn.rows[n].unique()] for n in figure.choose}
    if "method" in values:  # the first is drawn where the chosen method gives nothing
        values["method"] = method_order(values["method"])
    return {
        "name": figure.name,
        "choose": list(figure.choose),
        "values": values,
        "against": {name: remark_on(name) for name in values.get("method", [])},
        "part": figure.part,
        "columns": {name: TITLES.get(name, name.replace("_", " ")) for name in figure.look.hover},
        "spec": drawn.spec,
    }


def _heading(figure: Figure, drawn: Drawn) -> dict[str, Any]:
    caption, number = figure.caption, figure.number
    if "{method}" in caption:
        method = str(drawn.rows["method"].iloc[0])
        caption = f"{caption.replace('{method}', method)} {remark_on(method)}".rstrip()
    if number and not number.startswith("Table"):
        number = f"Figure{'s' if ' and ' in number else ''} {number}"
    said = f"{caption} {drawn.remarks({})}".rstrip()
    return {"figure": figure, "caption": said, "number": f"paper: {number}" if number else ""}


def _start(choices: dict[str, list[str]], drawn: dict[Figure, Drawn]) -> dict[str, str]:
    """What is chosen at first: the most exact method, and the model and task with most figures."""
    shown = []
    for figure, found in drawn.items():
        names = [name for name in figure.choose if name in choices]
        if names:
            rows = found.rows[names].drop_duplicates()
            shown.append((names, set(rows.itertuples(index=False, name=None))))

    def count(values: Iterable[str]) -> int:
        choice = dict(zip(choices, values, strict=True))
        return sum(tuple(choice[n] for n in names) in there for names, there in shown)

    first = {**choices, **({"method": choices["method"][:1]} if "method" in choices else {})}
    return dict(zip(choices, max(product(*first.values()), key=count), strict=True))


def _choices(results: Results) -> dict[str, list[str]]:
    """Models, tasks and methods that can be chosen."""
    runs = results.runs
    if runs.empty:
        return {}
    methods = {*results.layers["method"], *results.control_layers["method"]}
    return {
        "model": sorted(runs["model"].unique()),
        "task": task_order(runs["task"]),
        **({"method": method_order(methods)} if methods else {}),
    }


def _example_blocks(results: Results) -> Iterator[tuple[str, dict[str, Any]]]:
    runs = results.first_runs
    for task in task_order(run["task"].iloc[0] for run in runs):
        of_task = [run for run in runs if run["task"].iloc[0] == task]
        block = example_block(results, of_task)
        if block is not None:
            yield task, block


def _shown(table: Table, tidy: pd.DataFrame) -> dict[str, Any]:
    text = as_text(table, tidy)
    return {
        "title": table.title,
        "number": f"paper: Table {table.number}" if table.number else "",
        "columns": list(text.columns),
        "rows": text.to_numpy().tolist(),
        "note": table.said_of(tidy),
    }


def _coverage(results: Results) -> dict[str, Any]:
    found = coverage(results)
    return {
        "columns": [str(c).replace("_", " ") for c in found.table.columns],
        "rows": found.table.map(cell).to_numpy().tolist(),
        "commands": found.commands,
    }


def study_file(results: Results) -> str:
    """The text of the study's file; empty where there is none."""
    path = results.folder / paths.STUDY
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def commands(results: Results) -> list[str]:
    """The commands that made the runs and their results, in the order to repeat them."""
    return list(dict.fromkeys(filter(None, results.commands)))


def settings(results: Results) -> list[dict[str, Any]]:
    """Every setting of the runs and of the methods, once for all that share them."""
    runs = zip(results.runs.to_dict("records"), results.records, strict=True)
    used = Counter(
        ("preset", row["preset"], row["changes"], json.dumps(record.spec.settings.flat()))
        for row, record in runs
    )
    for row in results.made.to_dict("records"):
        named = {f"{row['method']}.{k}": v for k, v in json.loads(row["settings"]).items()}
        used["method", row["method"], "", json.dumps(named)] += 1
    return [
        {"kind": kind, "name": name, "changes": changes, "runs": n, "values": _readable(text)}
        for (kind, name, changes, text), n in used.items()
    ]


def versions(results: Results) -> list[str]:
    """What the runs were made with, one line for each set of versions."""
    return [", ".join(f"{k} {v}" for k, v in found.items()) for found in results.versions]


def _readable(text: str) -> list[tuple[str, str]]:
    return [
        (name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        for name, value in json.loads(text).items()
    ]


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("memloc.reporting", "assets"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"code": _code, "counted": counted, "answer": _answer}
    return environment.get_template("page.html")


def _code(text: str) -> Markup:
    """What stands between backticks is set as code; the text itself is escaped."""
    unbroken = text.replace(" %", "\u00a0%")  # no line ends between a number and its sign
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(unbroken))))


def _answer(text: str) -> Markup:
    """Set the name of the run, before the first colon, in bold."""
    name, colon, rest = text.partition(": ")
    return Markup("<b>{}</b>: {}").format(name, _code(rest)) if colon else _code(text)


def _script_json(value: Any) -> Markup:
    """JSON inside a script element: no text in it can end the element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))


def _script(text: str) -> str:
    """Code inside a script element: strings in it that would end it are written otherwise."""
    return text.replace("</script", r"<\/script").replace("<!--", r"<\!--")


@cache
def _vega() -> str:
    """Vega, Vega-Lite and Vega-Embed in one script, as the installed converter brings them."""
    import vl_convert

    return _script(str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")))


def packed(value: Any) -> str:
    """JSON, compressed, as base64; the same value is always the same text."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def columns_of(rows: pd.DataFrame) -> dict[str, Any]:
    """A table by columns; texts as places in a list of the different ones."""
    return {"n": len(rows), "columns": {str(n): _column(rows[n]) for n in rows.columns}}


def _column(values: "pd.Series") -> dict[str, Any]:
    if pd.api.types.is_bool_dtype(values):
        return {"values": [bool(v) for v in values]}
    if pd.api.types.is_numeric_dtype(values):
        return {"values": _numbers(values.to_numpy(np.float64, na_value=np.nan))}
    codes, levels = pd.factorize(values.astype(str))
    return {"levels": list(levels), "values": codes.tolist()}


def _numbers(values: FloatArray) -> list[Any]:
    known = np.isfinite(values)
    if (values[known] % 1 == 0).all():
        return [int(v) if there else None for v, there in zip(values, known, strict=True)]
    short = np.char.mod(f"%.{DIGITS}g", values)  # a text each, in one go
    return [float(v) if there else None for v, there in zip(short, known, strict=True)]
