"""Which layers matter: localisers and analyses of one run."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from memloc import console
from memloc.cli.checks import check_device
from memloc.cli.options import (
    AsJson,
    Constants,
    DataFolder,
    Depth,
    Device,
    Fewer,
    Force,
    Plants,
    changes_of,
    option_by_option,
)

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

    The methods are swapping, retraining, gradients and probing; shares and those of other
    packages run where you name them. `memloc adopt` makes a run of your own checkpoints.

    Example: `memloc localise runs/tiny-topic/tiny-opt/seed-1 swapping gradients`
    """
    check_device(device)

    from memloc.methods.apply import localise as look
    from memloc.progress import bars

    with bars():
        found = look(run, methods or (), settings=changes_of(change), force=force, device=device)
    console.show_found(found, "methods", as_json)


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
    console.show_found(found, "analyses", as_json)


@option_by_option
def control(  # noqa: PLR0913 - one option for each thing that people vary
    model: Annotated[list[str], typer.Option(help="Embedded name, hub name or folder.")],
    task: Annotated[list[str], typer.Option(help="Task whose noise is planted.")],
    *,
    plants: Plants,
    out: Annotated[Path, typer.Option(help="Folder of the study that is written.")] = Path(
        "control"
    ),
    seed: Annotated[int | None, typer.Option(help="Model seed. Default: the preset's.")] = None,
    constants: Constants,
    examples: Fewer = None,
    data_folder: DataFolder = None,
    depth: Depth = None,
    as_json: AsJson = False,
) -> None:
    """Plant memorisation in known layers and see which methods find it.

    The noisy task may change only a window of layers; another task changes all of them. This
    writes a small study into a folder and runs it; `memloc run` continues it.

    Example: `memloc control --model tiny-opt --task tiny-topic --method swapping`
    """
    from memloc.results import load_results
    from memloc.study.execute import Options, run_study
    from memloc.study.plan import control_study
    from memloc.study.view import View, failures

    seeded = {} if seed is None else {"control.seed": seed}
    study: dict[str, Any] = {
        "preset": constants.preset,
        "overrides": constants.changes | seeded,
        "models": model,
        "tasks": task,
        "examples": examples,
        "depth": depth,
        "device": constants.device,
        "data_folder": None if data_folder is None else str(data_folder.resolve()),
    }
    folder = control_study(out, study, asdict(plants))
    with View() as view:
        progress = run_study(folder, Options(), view)
    for sentence in failures(folder, progress):
        typer.echo(sentence, err=True)
    found = load_results(folder)
    console.show_control(found, as_json)
    if progress.count("failed") or not found.plants["used"].any():
        raise typer.Exit(1)
