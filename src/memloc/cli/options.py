"""What several commands take, and how settings are read from the command line."""

from pathlib import Path
from typing import Annotated, Any

import typer

from memloc.errors import SettingsError

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
ModelName = Annotated[str, typer.Argument(help="Embedded name, hub name or folder.")]
Depth = Annotated[int | None, typer.Option(help="Use only this many of the first layers.")]
RemoteCode = Annotated[
    bool, typer.Option("--remote-code", help="Run code from the model's repository.")
]
AnyFormat = Annotated[
    bool, typer.Option("--any-format", help="Also read weights that are not safetensors.")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
Force = Annotated[
    bool,
    typer.Option(
        "--force", help="Continue even if the labels were not memorised; results are marked."
    ),
]
Preset = Annotated[
    str | None,
    typer.Option(help="paper, reference or demo. Default: demo for embedded models, else paper."),
]
Fewer = Annotated[int | None, typer.Option(help="Train on a random sample of this many examples.")]
DataFolder = Annotated[
    Path | None,
    typer.Option(help="Folder with the paper's tasks. Default: MEMLOC_DATA, else the hub."),
]


def changes_of(changes: list[str] | None) -> dict[str, Any]:
    """What --set was given, each a `key=value`."""
    return dict(_change(text) for text in changes or ())


def _change(change: str) -> tuple[str, Any]:
    from memloc.settings import parse_yaml

    key, equals, text = change.partition("=")
    if not equals:
        raise SettingsError(f"--set {key} has no value: write --set {key}=VALUE.")
    try:
        return key, parse_yaml(text, key)[1]
    except SettingsError as error:
        raise SettingsError(
            f"--set {key} cannot read {text!r}: check brackets and quotes, e.g. --set {key}=[1, 2]."
        ) from error
