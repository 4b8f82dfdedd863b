"""Which layers matter: localisers and analyses of one run."""

from pathlib import Path
from typing import Annotated

import typer

from memloc import console
from memloc.cli.checks import (
    check_analyses,
    check_checkpoints,
    check_columns,
    check_device,
    check_methods,
    check_run,
)
from memloc.cli.options import AsJson, Device, Force, changes_of
from memloc.errors import SettingsError


def localise(  # noqa: PLR0913, PLR0917 - a run, or the parts of one
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN] [METHOD]...", help="Run folder, then methods; left out: all."
        ),
    ] = None,
    final: Annotated[str | None, typer.Option(help="Checkpoint that memorised.")] = None,
    reference: Annotated[str | None, typer.Option(help="Trained on original labels.")] = None,
    pretrained: Annotated[str | None, typer.Option(help="Before fine-tuning.")] = None,
    memorised: Annotated[str | None, typer.Option(help="At near-ceiling accuracy.")] = None,
    frozen: Annotated[str | None, typer.Option(help="With only the head trained.")] = None,
    data: Annotated[Path | None, typer.Option(help="The training examples.")] = None,
    text: Annotated[str, typer.Option(help="Column of texts.")] = "text",
    pair: Annotated[str | None, typer.Option(help="Column of second texts.")] = None,
    label: Annotated[str, typer.Option(help="Column of labels trained on.")] = "label",
    noisy: Annotated[
        str, typer.Option(help="Column of true and false, or of the labels before noise.")
    ] = "noisy",
    out: Annotated[Path, typer.Option(help="For results.")] = Path("memloc-localise"),
    force: Force = False,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Say for every layer how much it matters for the memorised labels.

    Example: `memloc localise runs/tiny-topic/tiny-opt/seed-1 swapping gradients`

    Checkpoints of one's own: `memloc localise --final noisy/ --reference clean/ --data train.csv`
    """
    from memloc.progress import bars

    given = list(words or [])
    check_device(device)
    if final is None:
        if not given:
            raise SettingsError("Give a run's folder, or a checkpoint with --final.")
        check_run(Path(given[0]), force)
        check_methods(given[1:])

        from memloc.localise.localise import localise_run

        with bars():
            found = localise_run(Path(given[0]), given[1:], force=force, device=device)
    else:
        if data is None:
            raise SettingsError("Give the training examples of --final with --data FILE.")
        check_methods(given)
        check_checkpoints((final, reference, memorised, frozen), pretrained)
        check_columns(data, (text, pair, label, noisy))

        from memloc.localise.localise import localise_checkpoints
        from memloc.localise.subjects import Weights

        with bars():
            found = localise_checkpoints(
                Weights(final, reference, pretrained, memorised, frozen),
                data,
                columns={"text": text, "pair": pair, "label": label, "noisy": noisy},
                out=out,
                methods=given,
                force=force,
                device=device,
            )
    console.show_localised(found, as_json)


def analyse(  # noqa: PLR0913, PLR0917 - one option a thing that people vary
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    analyses: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ANALYSIS]...",
            help="centroids, label-probes or generalisation; left out: all.",
        ),
    ] = None,
    window: Annotated[
        list[str] | None,
        typer.Option(help="Centroids with these layers, such as 3-6, of the reference, too."),
    ] = None,
    change: Annotated[
        list[str] | None, typer.Option("--set", help="A setting, e.g. generalisation.models=10.")
    ] = None,
    force: Force = False,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Say how noisy examples drift from their original class to the assigned one.

    Centroids and label probes name the layers where that happens; generalisation trains models
    on halves of the data to see which labels they can only know by heart.

    Example: `memloc analyse runs/tiny-topic/tiny-opt/seed-1 centroids label-probes`
    """
    from memloc.progress import bars

    changes = changes_of(change)
    check_device(device)
    check_run(run, force)
    check_analyses(run, analyses or (), window or (), changes)

    from memloc.analyse.analyse import analyse_run

    with bars():
        found = analyse_run(
            run,
            analyses or (),
            windows=window or (),
            changes=changes,
            force=force,
            device=device,
        )
    console.show_analysed(found, as_json)
