"""Memorisation planted in known layers."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from memloc import console
from memloc.cli.groups import Constants, Plants, option_by_option
from memloc.cli.options import AsJson, DataFolder, Depth, Fewer


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
    from memloc.study.control import control_study
    from memloc.study.manage import Options, run_study
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
