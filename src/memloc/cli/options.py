"""What several commands take, and how settings are read from the command line."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from memloc.errors import SettingsError

if TYPE_CHECKING:
    from memloc.protocol import Protocol

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
ModelName = Annotated[str, typer.Argument(help="Embedded name, hub name or folder.")]
Depth = Annotated[int | None, typer.Option(help="Use only the first so many layers.")]
RemoteCode = Annotated[
    bool, typer.Option("--remote-code", help="Run code that the model's repository brings.")
]
AnyFormat = Annotated[
    bool, typer.Option("--any-format", help="Read weights that are not safetensors, too.")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
Force = Annotated[bool, typer.Option(help="Go on without memorisation; marked.")]
Preset = Annotated[str | None, typer.Option(help="Left out: demo for embedded models, else paper.")]
Fewer = Annotated[int | None, typer.Option(help="Train on a random so many.")]
DataFolder = Annotated[
    Path | None, typer.Option(help="Folder with the paper's tasks (or MEMLOC_DATA).")
]


def settings_of(name: str | None, changes: list[str] | None, usual: "Protocol") -> "Protocol":
    """The preset called `name`, or the usual one, with what --set changes."""
    from memloc.protocol import preset

    base = preset(name) if name else usual
    return base.replace(changes_of(changes))


def changes_of(changes: list[str] | None) -> dict[str, Any]:
    """What --set was given, each a `key=value`."""
    return dict(_change(text) for text in changes or ())


def _change(change: str) -> tuple[str, Any]:
    import yaml

    key, equals, text = change.partition("=")
    if not equals:
        raise SettingsError(f"--set {key} has no value: write --set {key}=VALUE.")
    try:
        return key, yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, AttributeError, RecursionError) as error:
        raise SettingsError(
            f"--set {key} cannot read {text!r}: check brackets and quotes, e.g. --set {key}=[1, 2]."
        ) from error
