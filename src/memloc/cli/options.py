"""Options that several commands share, and checks that run before torch is loaded."""

import inspect
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from memloc.errors import ModelError, SettingsError, lookup

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ModelName = Annotated[str, typer.Argument(help="Embedded name, hub name or folder.")]
Depth = Annotated[int | None, typer.Option(help="Use only this many of the first layers.")]
RemoteCode = Annotated[
    bool, typer.Option("--remote-code", help="Run code from the model's repository.")
]
AnyFormat = Annotated[
    bool, typer.Option("--any-format", help="Also read weights that are not safetensors.")
]


def _known_device(name: str) -> str:
    from memloc.study.inputs import DEVICES

    lookup("device", name.split(":", maxsplit=1)[0], DEVICES)
    return name


Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.", callback=_known_device)]
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
    """Return the settings given by --set, each as `key=value`."""
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


@dataclass(frozen=True)
class Labelled:
    """A user's file and the names of its columns."""

    data: Annotated[Path | None, typer.Option(help="Own file: csv, tsv, jsonl or parquet.")] = None
    text: Annotated[str, typer.Option(help="Own file: column of texts.")] = "text"
    pair: Annotated[str | None, typer.Option(help="Own file: column of second texts.")] = None
    label: Annotated[str, typer.Option(help="Own file: column of labels to train on.")] = "label"

    @property
    def columns(self) -> dict[str, Any]:
        """Names of the columns of the user's file, by parameter of `memloc.load_csv`."""
        return {name: value for name, value in asdict(self).items() if name != "data"}


@dataclass(frozen=True)
class Marked(Labelled):
    """A user's file that may tell which of its labels are wrong."""

    original: Annotated[
        str | None, typer.Option(help="Own file: column of the labels before noise.")
    ] = None
    flag: Annotated[
        str | None,
        typer.Option(
            help="Own file: column that is true where the label is wrong, or the text memorised."
        ),
    ] = None
    prompt: Annotated[
        str | None,
        typer.Option(help="Own file: column of beginnings that a text is recalled from."),
    ] = None
    continuation: Annotated[
        str | None, typer.Option(help="Own file: column of what is recalled after the prompt.")
    ] = None
    tokens: Annotated[
        int | None,
        typer.Option(help="Own file: recall this many last tokens of each text in --text."),
    ] = None
    held_out: Annotated[
        Path | None, typer.Option(help="Own file: a second file with unseen examples.")
    ] = None

    @property
    def is_texts(self) -> bool:
        """Return whether the file has texts to be continued rather than labelled."""
        return any(v is not None for v in (self.prompt, self.continuation, self.tokens))

    @property
    def is_marked(self) -> bool:
        """Return whether the file tells which labels are wrong."""
        return self.original is not None or self.flag is not None


@dataclass(frozen=True)
class Loading:
    """Options for loading a model."""

    depth: Depth = None
    remote_code: RemoteCode = False
    any_format: AnyFormat = False


@dataclass(frozen=True)
class Checkpoints:
    """Checkpoints that a user gives."""

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
        Path | None, typer.Option(help="Checkpoint in which only the head was trained.")
    ] = None
    epoch: Annotated[
        list[str] | None,
        typer.Option(help="Early checkpoint with its epoch, e.g. 2=checkpoint-50; repeatable."),
    ] = None

    @property
    def epochs(self) -> dict[int, Path]:
        """Early checkpoints by their epochs."""
        folders = {}
        for given in self.epoch or ():
            number, _, folder = given.partition("=")
            if not folder or not number.isdecimal():
                raise SettingsError(f"--epoch {given}: write an epoch and a folder, as 2=FOLDER.")
            folders[int(number)] = Path(folder)
        return folders

    @property
    def by_name(self) -> dict[str, Any]:
        """Checkpoints by the names of `adopt`'s parameters."""
        return {**{k: v for k, v in asdict(self).items() if k != "epoch"}, "epochs": self.epochs}


@dataclass(frozen=True)
class Constants:
    """Settings of the method, and the device it runs on."""

    preset: Preset = None
    change: Annotated[
        list[str] | None, typer.Option("--set", help="A setting, e.g. finetune.batch_size=16.")
    ] = None
    device: Device = "auto"

    @property
    def changes(self) -> dict[str, Any]:
        """Settings given by --set."""
        return changes_of(self.change)


@dataclass(frozen=True)
class Plants:
    """Plants, and the methods that are tried on them."""

    windows: Annotated[
        list[str] | None,
        typer.Option(
            "--window",
            help="Layers such as 6-7; 2+9 for separate ones; mlp:6-7 or attention:6-7 for parts; "
            "2-3@1-20/9-10@21-40 for two groups of noisy examples and the epochs of each. With "
            "equal, decoy or loud before them (loud 6-7) they are harder to find. Default: the "
            "first, middle and last two.",
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
    """Return the command with one option for every field of the dataclasses that it takes."""
    given = inspect.signature(command).parameters
    groups: dict[str, Any] = {
        name: p.annotation for name, p in given.items() if is_dataclass(p.annotation)
    }
    within = {name: inspect.signature(group).parameters.values() for name, group in groups.items()}
    parameters = [
        option.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in given.items()
        for option in within.get(name, [parameter])
    ]

    @wraps(command)
    def by_option(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{f.name: values.pop(f.name) for f in fields(group)})
        command(**values)

    by_option.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    by_option.__annotations__ = {p.name: p.annotation for p in parameters}
    return by_option


def check_model(name: str, depth: int | None = None) -> None:
    """Refuse a model that does not exist, and more layers than it has."""
    from memloc.model.known import KNOWN
    from memloc.study.inputs import config_of, shape_of

    if name not in {row.name for row in KNOWN}:
        config_of(name)
    with suppress(ModelError):  # a faulty configuration is reported on loading
        shape_of(name, depth)


def check_training(folder: Path, checkpoints: Iterable[str]) -> None:
    """Refuse unknown weights, a folder in use by another process, and one that cannot be
    created.
    """
    from memloc.run.records import WEIGHTS
    from memloc.store.files import check_place
    from memloc.store.lock import RUN, refuse_if_busy

    for name in checkpoints:
        lookup("set of weights", name, WEIGHTS)
    refuse_if_busy(folder, RUN)
    check_place(folder)


def check_checkpoints(
    given: Checkpoints, *, needs_start: bool = False, texts: bool = False
) -> None:
    """Refuse checkpoints that do not exist, including the pre-trained weights if they are
    needed.

    Without `texts`, refuse a language model as well.
    """
    from memloc.model.known import checkpoint_folder, refuse_language_model, start_of

    named = (given.final, given.reference, given.memorised, given.frozen)
    for folder in (*named, *given.epochs.values()):
        if folder is not None:
            checkpoint_folder(folder)
    if not texts:
        refuse_language_model(given.final)
    if given.pretrained is not None:
        check_model(given.pretrained)
    start_of(given.final, given.pretrained, needed=needs_start)
