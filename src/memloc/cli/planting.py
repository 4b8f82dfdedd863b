"""Memorisation planted in known layers."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from memloc import console
from memloc.cli.checks import check_device, check_methods, check_model
from memloc.cli.options import AsJson, DataFolder, Depth, Device, Fewer, Preset, settings_of
from memloc.errors import lookup


def control(  # noqa: PLR0913, PLR0917 - one option a thing that people vary
    model: Annotated[list[str], typer.Option(help="Embedded name, hub name or folder.")],
    task: Annotated[list[str], typer.Option(help="Task whose noise is planted.")],
    window: Annotated[
        list[str] | None,
        typer.Option(help="Layers such as 6-7; left out: first, middle and last two."),
    ] = None,
    every: Annotated[
        list[int] | None, typer.Option(help="Plant windows of this width at every position.")
    ] = None,
    method: Annotated[list[str] | None, typer.Option(help="Left out: the paper's four.")] = None,
    nulls: Annotated[
        str, typer.Option(help="Windows whose null is made, too: none, middle or all.")
    ] = "middle",
    out: Annotated[Path, typer.Option(help="Plants are kept in its folder control.")] = Path(
        "runs"
    ),
    seed: Annotated[int | None, typer.Option(help="Left out: the protocol's.")] = None,
    preset: Preset = None,
    change: Annotated[
        list[str] | None, typer.Option("--set", help="A setting, e.g. control.auxiliary=rte.")
    ] = None,
    examples: Fewer = None,
    data_folder: DataFolder = None,
    depth: Depth = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Plant memorisation in known layers and see which methods find it.

    The noisy task may change a window of layers only, another task changes all of them. Trains
    what is missing, runs the methods, and sums up all plants of the folder.

    Example: `memloc control --model tiny-opt --task tiny-topic --method swapping`
    """
    from memloc.config import METHODS
    from memloc.data.sources import load_task, subsample
    from memloc.models.catalogue import default_protocol
    from memloc.progress import bars
    from memloc.train.windows import read_window

    check_device(device)
    check_methods(method or ())
    for name in model:
        check_model(name, depth)
    windows = [read_window(text) for text in window or ()]
    known: dict[str, Literal["none", "middle", "all"]]
    known = {"none": "none", "middle": "middle", "all": "all"}
    made = lookup("value of --nulls", nulls, known)
    settings = settings_of(preset, change, default_protocol(model[0]))
    noise = settings.noise.seed
    tasks = [load_task(name, folder=data_folder, seed=noise) for name in task]
    if examples is not None:
        tasks = [subsample(each, examples, noise) for each in tasks]

    from memloc.experiment.control import Control, run_control
    from memloc.models.load import LoadOptions

    what = Control(
        models=model,
        tasks=tasks,
        windows=windows,
        every=every or (),
        methods=method or METHODS,
        nulls=made,
        protocol=settings,
        seed=seed,
        options=LoadOptions(depth=depth),
        data_folder=data_folder,
        device=device,
    )
    with bars():
        found = run_control(what, out)
    console.show_control(found, as_json)
