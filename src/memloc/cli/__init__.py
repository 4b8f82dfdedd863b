"""Commands: parse, call one library function, print. Results go to stdout, progress to stderr."""

from collections.abc import Callable

import typer

from memloc import console
from memloc.cli.names import check, models, protocol, tasks
from memloc.cli.runs import adopt, analyse, find, localise, repair, train
from memloc.cli.studies import (
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

COMMANDS: tuple[Callable[..., None], ...] = (
    *(tasks, models, check, protocol),
    *(train, adopt, find, localise, analyse, repair, control),
    *(figures, tables, report),
    *(init, plan, run, status, logs),
)
"""In the order in which `memloc --help` lists them."""

app = typer.Typer(
    cls=console.Commands,
    help="Which layers of a fine-tuned transformer hold the labels it memorised?",
    epilog="`memloc --install-completion` makes your shell complete commands and options.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
for command in COMMANDS:
    app.command()(command)
main = app
