"""Commands: parse, call one library function, print. Results go to stdout, progress to stderr."""

from collections.abc import Callable
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from memloc.cli import console
from memloc.cli.options import AsJson, Loading, ModelName, check_model, option_by_option
from memloc.cli.runs import adopt, analyse, find, localise, pull, push, repair, timeline, train
from memloc.cli.studies import (
    board,
    control,
    figures,
    init,
    logs,
    plan,
    report,
    run,
    status,
    tables,
)
from memloc.progress import say


def tasks(
    category: Annotated[str | None, typer.Option(help="Only tasks of this category.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the tasks: the embedded suite and the paper's twelve.

    Example: `memloc tasks --category nlu`
    """
    from memloc.data.tasks import known_tasks
    from memloc.errors import lookup

    rows = [asdict(row) for row in known_tasks().values()]
    if category is not None:
        lookup("category", category, dict.fromkeys(row["category"] for row in rows))
        rows = [row for row in rows if row["category"] == category]
    shown = [{title: row[field] for title, field in TASK_COLUMNS.items()} for row in rows]
    console.show(as_json, rows, shown, "\nWith labels and sources: memloc tasks --json")


TASK_COLUMNS = {
    "name": "name",
    "category": "category",
    "description": "description",
    "examples": "train_size",
    "classes": "n_classes",
}
"""Fields in the columns of `memloc tasks`, by column title; JSON has the other fields as well."""


def models(as_json: AsJson = False) -> None:
    """List the embedded models and those of the paper; most other classifiers work, too.

    Example: `memloc models`
    """
    from memloc.model.known import KNOWN

    console.show(as_json, [asdict(row) for row in KNOWN])


@option_by_option
def check(
    model: ModelName,
    *,
    texts: Annotated[
        bool, typer.Option("--texts", help="Check as a language model, for memorised texts.")
    ] = False,
    loading: Loading,
    as_json: AsJson = False,
) -> None:
    """Check whether memloc can work with a model, and show what it found.

    Example: `memloc check tiny-opt`
    """
    from memloc.model.known import is_adapter

    if not is_adapter(Path(model).expanduser()):
        check_model(model, loading.depth)

    from memloc.model import check as checking
    from memloc.model.load import LoadOptions

    report = checking.check_model(model, LoadOptions(**asdict(loading)), texts=texts)
    console.show(as_json, asdict(report))


def protocol(
    preset: Annotated[str, typer.Argument(help="paper, reference or demo.")] = "paper",
    diff: Annotated[
        str | None, typer.Option(help="Show only what differs from this preset.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print every constant of the method and where it comes from.

    Example: `memloc protocol paper --diff reference`
    """
    from memloc.methods.protocol import compare, preset_rows

    console.show(as_json, preset_rows(preset) if diff is None else compare(preset, diff))


def _show_version(asked: bool) -> None:
    if asked:
        say(f"memloc {metadata.version('memloc')}")
        raise typer.Exit


COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    "Make a run": (adopt, train),
    "Look into it": (localise, analyse, timeline, find, repair),
    "Many models, tasks and seeds": (init, plan, run, status, logs, control, board),
    "Results": (report, figures, tables, push, pull),
    "What there is": (tasks, models, check, protocol),
}
"""Commands by group, in the order in which `memloc --help` lists them."""

app = typer.Typer(
    cls=console.Commands,
    help="""Which layers of a fine-tuned transformer hold the labels or texts it memorised?

    Example: `memloc init demo`, then `memloc run demo`; its report is demo/report/index.html.
    """,
    epilog="`memloc --install-completion` makes your shell complete commands and options.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Declare the options before a command; the text of `memloc --help` is that of `app`."""


for group, commands in COMMANDS.items():
    for command in commands:
        app.command(cls=console.Command, rich_help_panel=group)(command)
main = app
