"""A study's results: figures, tables and the report."""

from pathlib import Path
from typing import Annotated

import typer

from memloc import console
from memloc.cli.options import AsJson

Study = Annotated[Path, typer.Argument(help="Folder of a study or of one run.")]


def figures(
    study: Study,
    kind: Annotated[str, typer.Option("--format", help="png, svg or pdf.")] = "png",
    only: Annotated[list[str] | None, typer.Option(help="Name of a figure, e.g. layers.")] = None,
    out: Annotated[Path | None, typer.Option(help="Default: report/figures in the study.")] = None,
    as_json: AsJson = False,
) -> None:
    """Draw every figure of a study, one file for each model, task and method.

    Example: `memloc figures runs --format svg --only layers`
    """
    from memloc.progress import bars
    from memloc.reporting.figures.writing import write_figures
    from memloc.results import load_results

    folder = study / "report" / "figures" if out is None else out
    with bars():
        written, missing = write_figures(load_results(study), folder, kind, only or ())
    console.show_files(folder, written, [figure.name for figure in missing], as_json)


def tables(
    study: Study,
    kind: Annotated[str, typer.Option("--format", help="csv, parquet, markdown or latex.")] = "csv",
    only: Annotated[list[str] | None, typer.Option(help="Name of a table, e.g. mcog.")] = None,
    out: Annotated[Path | None, typer.Option(help="Default: report/tables in the study.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write every table of a study, ready for a paper.

    Example: `memloc tables runs --format latex`
    """
    from memloc.reporting.tables import write_tables
    from memloc.results import load_results

    folder = study / "report" / "tables" if out is None else out
    written, missing = write_tables(load_results(study), folder, kind, only or ())
    console.show_files(folder, written, [table.name for table in missing], as_json)


def report(
    study: Study,
    out: Annotated[
        Path | None, typer.Option(help="Default: report/index.html in the study.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write one page with all results; it opens in any browser, without a network.

    Example: `memloc report runs`
    """
    from memloc.reporting.page import write_report

    console.show_report(write_report(study, out), as_json)
