"""Which layers matter: localisers and analyses of one run."""

from pathlib import Path
from typing import Annotated

import typer

from memloc import console
from memloc.cli.checks import check_device
from memloc.cli.options import AsJson, Device, Force, changes_of

RunFolder = Annotated[
    Path, typer.Argument(metavar="RUN", help="Folder of a run made by train or adopt.")
]
Change = Annotated[
    list[str] | None, typer.Option("--set", help="A method's setting, e.g. gradients.norm=L2.")
]


def localise(
    run: RunFolder,
    methods: Annotated[
        list[str] | None,
        typer.Argument(metavar="METHOD", help="Default: all that can run."),
    ] = None,
    change: Change = None,
    force: Force = False,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure how much each layer matters for the memorised labels.

    The methods are swapping, retraining, gradients and probing, and any that other packages
    add. `memloc adopt` makes a run of your own checkpoints.

    Example: `memloc localise runs/tiny-topic/tiny-opt/seed-1 swapping gradients`
    """
    check_device(device)

    from memloc.methods.apply import localise as look
    from memloc.progress import bars

    with bars():
        found = look(run, methods or (), settings=changes_of(change), force=force, device=device)
    console.show_localised(found, as_json)


def analyse(
    run: RunFolder,
    analyses: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ANALYSIS",
            help="centroids, label_probes or generalisation. Default: all that can run.",
        ),
    ] = None,
    change: Change = None,
    force: Force = False,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Show how noisy examples drift from their original class to the assigned one.

    Centroids and label probes find the layers where this happens; generalisation trains models
    on halves of the data to see which labels can only be known by heart. To repeat centroids
    with layers 3 to 6 of the reference weights, add `--set centroids.windows=[3-6]`.

    Example: `memloc analyse runs/tiny-topic/tiny-opt/seed-1 centroids label_probes`
    """
    check_device(device)

    from memloc.methods.apply import analyse as look
    from memloc.progress import bars

    with bars():
        found = look(run, analyses or (), settings=changes_of(change), force=force, device=device)
    console.show_analysed(found, as_json)
