"""Memorisation planted in known layers."""

from pathlib import Path
from typing import Annotated, Any

import typer

from memloc import console
from memloc.cli.options import AsJson, DataFolder, Depth, Device, Fewer, Preset, changes_of


def control(  # noqa: PLR0913, PLR0917 - one option for each thing that people vary
    model: Annotated[list[str], typer.Option(help="Embedded name, hub name or folder.")],
    task: Annotated[list[str], typer.Option(help="Task whose noise is planted.")],
    window: Annotated[
        list[str] | None,
        typer.Option(help="Layers such as 6-7; default: the first, middle and last two."),
    ] = None,
    every: Annotated[
        list[int] | None, typer.Option(help="Plant windows of this width at every position.")
    ] = None,
    method: Annotated[list[str] | None, typer.Option(help="Default: all localisers.")] = None,
    nulls: Annotated[
        str, typer.Option(help="Windows that also get a null: none, middle or all.")
    ] = "middle",
    out: Annotated[Path, typer.Option(help="Folder of the study that is written and run.")] = Path(
        "control"
    ),
    seed: Annotated[int | None, typer.Option(help="Default: the preset's.")] = None,
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

    The noisy task may change a window of layers only, another task changes all of them. This
    writes a small study into a folder and runs it; `memloc run` continues it.

    Example: `memloc control --model tiny-opt --task tiny-topic --method swapping`
    """
    from memloc.results import load_results
    from memloc.study.control import control_study
    from memloc.study.manage import Options, run_study
    from memloc.study.view import View

    overrides: dict[str, Any] = changes_of(change)
    if seed is not None:
        overrides["control.seed"] = seed
    block: dict[str, Any] = {"windows": window, "every": every, "methods": method, "nulls": nulls}
    study = {
        "preset": preset,
        "overrides": overrides,
        "models": model,
        "tasks": task,
        "examples": examples,
        "depth": depth,
        "device": device,
        "data_folder": None if data_folder is None else str(data_folder.resolve()),
    }
    folder = control_study(out, study, block)
    with View() as view:
        progress = run_study(folder, Options(), view)
    console.show_control(load_results(folder), as_json)
    if progress.count("failed"):
        raise typer.Exit(1)
