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

COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    "A model": (adopt, train, localise, analyse, find, repair),
    "Many models, tasks and seeds": (init, plan, run, status, logs, control),
    "Results": (report, figures, tables),
    "What there is": (tasks, models, check, protocol),
}
"""In the groups and the order in which `memloc --help` lists them."""

app = typer.Typer(
    cls=console.Commands,
    help="""Which layers of a fine-tuned transformer hold the labels it memorised?

    Example: `memloc init demo`, then `memloc run demo`; its report is demo/report/index.html.
    """,
    epilog="`memloc --install-completion` makes your shell complete commands and options.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
for group, commands in COMMANDS.items():
    for command in commands:
        app.command(cls=console.Command, rich_help_panel=group)(command)
main = app
