"""Writes the report: one HTML file that opens with a double click and needs no network."""

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
from memloc.errors import checked_arguments, counted
from memloc.reporting.derived import without_trivial
from memloc.reporting.examples import example_block
from memloc.reporting.figures import DATA, Drawn, Figure, figures_of
from memloc.reporting.missing import Coverage, command, commands_of, coverage
from memloc.reporting.results import Results, load_results
from memloc.reporting.sentences import Line, Summary, remark_on, summarise
from memloc.reporting.style import TITLES, asset, method_order, task_order
from memloc.reporting.tables import TableExhibit, as_text, cell, tables_of
from memloc.store import paths
from memloc.store.files import whole_file
from memloc.store.records import as_stored, read_json, write_json

SECTIONS: dict[str, dict[str, str]] = yaml.safe_load(asset("page.yaml"))
"""Sections of the page: their names in the list at the top, headings, and introductions."""
SHORT = 16
"""Number of rows up to which a table is not folded away."""
MANY = 24
"""Number of rows of the first picture above which the sentence on trust stands before it."""
DIGITS = 5
"""Number of significant digits of the numbers behind figures."""


@dataclass(frozen=True)
class Report:
    """The written page, and its summary."""

    path: Path
    summary: Summary
    commands: tuple[str, ...]
    """Commands that make the missing parts."""
    missing: str = ""
    """Sentence on what is missing; empty if nothing is."""


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
    """Write the page into a study's folder as `report/index.html`, or to `out`."""
    results = load_results(study)
    path = paths.page(Path(study)) if out is None else Path(out)
    summary = summarise(results)
    covered = coverage(results)
    with whole_file(path) as draft:
        draft.write_text(render(results, summary, covered), encoding="utf-8")
    record = {**asdict(summary), "commands": list(covered.commands), "missing": covered.sentence}
    write_json(path.with_suffix(".json"), record)
    return Report(path, summary, covered.commands, covered.sentence)


def read_report(study: str | Path) -> Report | None:
    """Return the report in a study's folder; None without one."""
    path = paths.page(Path(study))
    record = path.with_suffix(".json")
    if not record.is_file():
        return None
    stored = read_json(record)
    with as_stored(record):
        summary = Summary(
            answers=tuple(map(str, stored["answers"])),
            trust=str(stored["trust"]),
            learnt=str(stored["learnt"]),
            lines=tuple(Line(**line) for line in stored["lines"]),
        )
        return Report(path, summary, tuple(stored["commands"]), str(stored["missing"]))


def render(results: Results, summary: Summary, found: Coverage | None = None) -> str:
    """Return the whole page as HTML."""
    covered = coverage(results) if found is None else found
    every = {figure: figure.drawn(results) for figure in figures_of(results)}
    drawn = {f: d for f, d in every.items() if d is not None and f.says_something(d, results)}
    tables = {table: table.shown(results) for table in tables_of(results)}
    blocks = {f"data-{f.name}": packed(columns_of(d.rows)) for f, d in drawn.items()}
    texts = dict(_example_blocks(results))
    blocks |= {f"examples-{i}": packed(block) for i, block in enumerate(texts.values())}
    first = {figure: content for figure, content in drawn.items() if figure.section == "answer"}
    choices = _choices(results)
    start = _start(choices, drawn)
    page = {
        "data": DATA,
        "start": start,
        "commands": commands_of(results),
        "figures": [_figure_record(f, d) for f, d in drawn.items()],
        "examples": {task: f"examples-{i}" for i, task in enumerate(texts)},
        "held": any("held" in r for b in texts.values() for r in b["runs"]),
    }
    return _template().render(
        name=results.folder.resolve().name,
        folder=str(results.folder),
        sections=list(_sections(summary, drawn, tables, bool(texts))),
        first=[_heading(f, d) for f, d in first.items()],
        tall=any(d.rows[f.look.y].nunique() > MANY for f, d in first.items()),
        absent=_absent(results, [f for f in every if every[f] is None], tables),
        summary=summary,
        short=SHORT,
        choices=choices,
        start=start,
        has_shares=page["held"],
        coverage=_coverage(covered),
        **how_made(results),
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
    tables: dict[TableExhibit, pd.DataFrame],
    has_examples: bool,
) -> Iterator[dict[str, Any]]:
    """Yield the sections that have something to show: sentences, figures and tables."""
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
    results: Results, figures: Sequence[Figure], tables: dict[TableExhibit, pd.DataFrame]
) -> dict[str, list[str]]:
    """Return titles of figures and tables without results, by the command that makes them."""
    exhibits = [*figures, *(table for table, tidy in tables.items() if tidy.empty)]
    by_command: dict[str, list[str]] = {}
    for exhibit in exhibits:
        titles = by_command.setdefault(command(exhibit.part, results), [])
        if exhibit.title not in titles:
            titles.append(exhibit.title)
    return dict(sorted(by_command.items(), reverse=True))  # parts that no command makes come last


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
    words = f"{caption} {drawn.remarks({})}".rstrip()
    return {"figure": figure, "caption": words, "number": f"paper: {number}" if number else ""}


def _start(choices: dict[str, list[str]], drawn: dict[Figure, Drawn]) -> dict[str, str]:
    """Return the initial choice: the most exact method, the model and task with most figures."""
    shown = []
    for figure, content in drawn.items():
        names = [name for name in figure.choose if name in choices]
        if names:
            rows = content.rows[names].drop_duplicates()
            shown.append((names, set(rows.itertuples(index=False, name=None))))

    def count(values: Iterable[str]) -> int:
        choice = dict(zip(choices, values, strict=True))
        return sum(tuple(choice[n] for n in names) in combinations for names, combinations in shown)

    first = {**choices, **({"method": choices["method"][:1]} if "method" in choices else {})}
    return dict(zip(choices, max(product(*first.values()), key=count), strict=True))


def _choices(results: Results) -> dict[str, list[str]]:
    """Return the models, tasks and methods that a reader can choose."""
    runs = results.runs
    if runs.empty:
        return {}
    methods = {*results.layers["method"], *without_trivial(results.control_layers)["method"]}
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


def _shown(exhibit: TableExhibit, tidy: pd.DataFrame) -> dict[str, Any]:
    text = as_text(exhibit, tidy)
    return {
        "title": exhibit.title,
        "number": f"paper: Table {exhibit.number}" if exhibit.number else "",
        "columns": list(text.columns),
        "rows": text.to_numpy().tolist(),
        "note": exhibit.said_of(tidy),
    }


def _coverage(found: Coverage) -> dict[str, Any]:
    return {
        "columns": [str(c).replace("_", " ") for c in found.table.columns],
        "rows": found.table.map(cell).to_numpy().tolist(),
        "commands": found.commands,
    }


def how_made(results: Results) -> dict[str, Any]:
    """Return the study's file, the commands in order, all settings and the versions."""
    study = results.folder / paths.STUDY
    return {
        "study": study.read_text(encoding="utf-8") if study.is_file() else "",
        "commands": list(dict.fromkeys(filter(None, results.commands))),
        "settings": _settings(results),
        "versions": [
            ", ".join(f"{k} {v}" for k, v in versions.items()) for versions in results.versions
        ],
    }


def _settings(results: Results) -> list[dict[str, Any]]:
    """Return the settings of runs and methods, each distinct set once, with its number of runs."""
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
    """Escape a text, and mark the parts between backticks as code."""
    unbroken = text.replace(" %", "\u00a0%")  # no line ends between a number and its sign
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(unbroken))))


def _answer(text: str) -> Markup:
    """Set the name of the run, before the first colon, in bold."""
    name, colon, rest = text.partition(": ")
    return Markup("<b>{}</b>: {}").format(name, _code(rest)) if colon else _code(text)


def _script_json(value: Any) -> Markup:
    """Return JSON for a script element, in which no text can close the element."""
    return Markup(_as_json(value).replace("<", "\\u003c"))


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _script(text: str) -> str:
    """Return code for a script element, in which no string can close the element."""
    return text.replace("</script", r"<\/script").replace("<!--", r"<\!--")


@cache
def _vega() -> str:
    """Return Vega, Vega-Lite and Vega-Embed of the installed converter as one script."""
    import vl_convert

    return _script(str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")))


def packed(value: Any) -> str:
    """Return compressed JSON as base64; equal values give equal texts."""
    return base64.b64encode(gzip.compress(_as_json(value).encode(), mtime=0)).decode()


def columns_of(tidy: pd.DataFrame) -> dict[str, Any]:
    """Return a table by columns; texts become positions in a list of distinct texts."""
    return {"n": len(tidy), "columns": {str(n): _column(tidy[n]) for n in tidy.columns}}


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
        return [int(v) if is_known else None for v, is_known in zip(values, known, strict=True)]
    short = np.char.mod(f"%.{DIGITS}g", values)
    return [float(v) if is_known else None for v, is_known in zip(short, known, strict=True)]
