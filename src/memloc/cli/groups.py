"""Options that belong together: commands take them as one argument, people give them one by one."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from memloc.cli.options import AnyFormat, Depth, Device, Preset, RemoteCode, changes_of


@dataclass(frozen=True)
class Columns:
    """What is where in a file of one's own."""

    text: Annotated[str, typer.Option(help="Own file: column of texts.")] = "text"
    pair: Annotated[str | None, typer.Option(help="Own file: column of second texts.")] = None
    label: Annotated[str, typer.Option(help="Own file: column of labels to train on.")] = "label"
    original: Annotated[
        str | None, typer.Option(help="Own file: column of the labels before noise.")
    ] = None
    flag: Annotated[
        str | None, typer.Option(help="Own file: column that is true where the label is wrong.")
    ] = None
    held_out: Annotated[
        Path | None, typer.Option(help="Own file: another one with unseen examples.")
    ] = None


@dataclass(frozen=True)
class Loading:
    """How a model is loaded."""

    depth: Depth = None
    remote_code: RemoteCode = False
    any_format: AnyFormat = False


@dataclass(frozen=True)
class Checkpoints:
    """The weights that somebody has."""

    final: Annotated[Path, typer.Option(help="Checkpoint that memorised the noisy labels.")]
    reference: Annotated[
        Path | None, typer.Option(help="Checkpoint trained on the original labels.")
    ] = None
    pretrained: Annotated[
        str | None, typer.Option(help="The model before fine-tuning: a name or a folder.")
    ] = None
    memorised: Annotated[
        Path | None, typer.Option(help="Checkpoint at near-ceiling training accuracy.")
    ] = None
    frozen: Annotated[
        Path | None, typer.Option(help="Checkpoint of which only the head was trained.")
    ] = None


@dataclass(frozen=True)
class Constants:
    """The constants of the method, and where it runs."""

    preset: Preset = None
    change: Annotated[
        list[str] | None, typer.Option("--set", help="A setting, e.g. finetune.epochs=30.")
    ] = None
    device: Device = "auto"

    @property
    def changes(self) -> dict[str, Any]:
        """What --set was given."""
        return changes_of(self.change)


@dataclass(frozen=True)
class Plants:
    """What is planted where, and who looks for it."""

    windows: Annotated[
        list[str] | None,
        typer.Option(
            "--window", help="Layers such as 6-7. Default: the first, middle and last two."
        ),
    ] = None
    every: Annotated[
        list[int] | None, typer.Option(help="Plant windows of this width at every position.")
    ] = None
    methods: Annotated[
        list[str] | None, typer.Option("--method", help="A localiser. Default: all of them.")
    ] = None
    nulls: Annotated[
        str, typer.Option(help="Windows that also get a null: none, middle or all.")
    ] = "middle"


def option_by_option(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for every field of the groups that it takes."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            kinds = get_type_hints(groups[name], include_extras=True)
            parameters += [_parameter(f, kinds[f.name]) for f in fields(groups[name])]
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @wraps(command)
    def by_option(**values: Any) -> None:
        for name, kind in groups.items():
            values[name] = kind(**{f.name: values.pop(f.name) for f in fields(kind)})
        command(**values)

    by_option.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    by_option.__annotations__ = {p.name: p.annotation for p in parameters}
    return by_option


def _parameter(field: "Field[Any]", kind: Any) -> inspect.Parameter:
    default = inspect.Parameter.empty if field.default is MISSING else field.default
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind
    )
