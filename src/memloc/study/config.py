"""A study: models x tasks x seeds x methods and settings, read from one YAML file, checked."""

import shlex
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from memloc.errors import (
    MemlocError,
    SettingsError,
    StoreError,
    UnknownName,
    listed,
    lookup,
    nearest,
    shortened,
)
from memloc.methods.protocol import Protocol, preset
from memloc.protocol import PRESETS
from memloc.run.spec import DataFile
from memloc.settings import Settings, explained, parse_yaml
from memloc.store import paths
from memloc.store.files import whole_file

OF_ALL = ("verdict", "control", "agreement", "summary")
"""Groups of settings that are about all runs of a study."""
Names = tuple[str, ...]
Seeds = tuple[int, ...]


class Block(Settings):
    """Further runs; keys that are not given are as in the main part."""

    models: Names | None = Field(None, min_length=1)
    """Embedded names, hub names or folders (`./x` is next to the study's file)."""
    tasks: Names | None = Field(None, min_length=1)
    """Names that `memloc tasks` lists."""
    seeds: Seeds | None = Field(None, min_length=1)
    """Model seeds."""
    methods: Names | None = None
    """Localisers."""
    analyses: Names | None = None
    """Of section 5."""
    overrides: dict[str, Any] = Field(default_factory=dict)
    """Settings of these runs that differ from the main part's."""


def _installed(kind: Literal["localiser", "analysis"]) -> Names:
    from memloc.methods.registry import method_names

    return method_names(kind)


class ControlBlock(Settings):
    """What is planted where; models and tasks that are not given are those of the main part."""

    models: Names | None = Field(None, min_length=1)
    """In which memorisation is planted."""
    tasks: Names | None = Field(None, min_length=1)
    """Tasks whose noise is planted; default: all but the auxiliary task."""
    windows: Names = ()
    """Layers such as 6-7, 2+9 for separate ones, or 2-3/9-10 for two groups of noisy examples, each
    with layers of its own; default: the first, the middle and the last ones."""
    every: tuple[int, ...] = ()
    """Windows of these widths at every position."""
    methods: Names = Field(default_factory=partial(_installed, "localiser"))
    """That look for the planted layers."""
    nulls: Literal["none", "middle", "all"] = "middle"
    """Windows whose null is made, too (the same with nothing to memorise): the middle one of each
    kind of plant, none or all."""


class Study(Settings):
    """Everything that decides what a study is."""

    preset: str = "paper"
    """paper, reference or demo."""
    overrides: dict[str, Any] = Field(default_factory=dict)
    """Settings that differ from the preset, such as `finetune.epochs: 30`."""
    models: Names = Field((), min_length=1)
    """Embedded names, hub names or folders (`./x` is next to the study's file)."""
    tasks: Names = Field((), min_length=1)
    """Names that `memloc tasks` lists, or those of `data`."""
    data: dict[str, DataFile] = Field(default_factory=dict)
    """Files of one's own, by the names that `tasks` uses."""
    seeds: Seeds = Field((1,), min_length=1)
    """Model seeds: order of the data, initial head, dropout."""
    methods: Names = Field(default_factory=partial(_installed, "localiser"))
    """Localisers."""
    analyses: Names = Field(default_factory=partial(_installed, "analysis"))
    """Of section 5."""
    runs: Names = ()
    """Folders of runs in the study's folder that were made before, such as adopted ones."""
    also: tuple[Block, ...] = ()
    """Further runs, with what differs from the above."""
    control: ControlBlock | None = None
    """Memorisation planted in known layers; default: none."""
    report: bool = True
    """Whether a page with everything is made at the end."""
    examples: int | None = Field(None, ge=4)
    """Train on a random sample of this many examples of each task; default: all."""
    depth: int | None = Field(None, ge=1)
    """Use only the first layers of every model, this many; default: all."""
    force: bool = False
    """Continue with runs that did not memorise their noisy labels; their results are marked."""
    data_folder: str | None = None
    """Folder with the paper's tasks; default: the folder in MEMLOC_DATA, else the hub."""
    device: str = "auto"
    """auto, cpu, cuda or mps."""
    gpus: float = Field(1.0, gt=0)
    """GPUs, or a share of one, that a step takes on a cluster that has some."""

    @property
    def protocol(self) -> Protocol:
        """Every constant of the method, as this study has it."""
        return preset(self.preset).replace(self.overrides)


EXAMPLES = ("demo", "small", "paper", "sequences")
"""The studies that come with the package."""


def init_study(example: str, folder: str | Path | None = None) -> Path:
    """Write the files of an example into a folder, which becomes the study; return study.yaml."""
    if example not in EXAMPLES and folder is None and not nearest(example, EXAMPLES):
        raise UnknownName(
            f"No example study is called {shortened(repr(example))}: there are "
            f"{listed(EXAMPLES)}. To begin with demo in a folder of this name: "
            f"memloc init demo {shlex.quote(shortened(example))}"
        )
    lookup("example study", example, dict.fromkeys(EXAMPLES))
    home = files("memloc.study").joinpath("examples")
    text = home.joinpath(f"{example}.yaml").read_text("utf-8")
    file = parse_study(text, Path(example if folder is None else folder))
    for own in file.study.data.values():
        if not (place := file.folder / own.file).exists():
            with whole_file(place) as draft:
                draft.write_text(home.joinpath(own.file).read_text("utf-8"), "utf-8")
    return write_study(text, file)


def write_study(text: str, file: "StudyFile") -> Path:
    """Write the file of a study, unless the same study is in the folder already."""
    if not file.path.is_file():
        with whole_file(file.path) as draft:
            draft.write_text(text, encoding="utf-8")
    elif read_study(file.folder).study != file.study:
        raise StoreError(
            f"{file.path} describes another study: choose another folder, or edit that file and "
            f"use `memloc run {file.folder}`."
        )
    return file.path


@dataclass(frozen=True)
class Source:
    """A study's file, and the line on which each of its values stands."""

    path: Path
    lines: dict[tuple[Hashable, ...], int]

    def problem(self, *key: Hashable, what: str) -> SettingsError:
        """An error that names the line and the key; a study without a file has no lines."""
        name = "".join(f"[{k}]" if isinstance(k, int) else f".{k}" for k in key).lstrip(".")
        if not self.lines:
            return SettingsError(f"{name}: {what}")
        place = key
        while place and place not in self.lines:
            place = place[:-1]
        return SettingsError(f"{self.path}, line {self.lines.get(place, 1)}, {name}: {what}")

    @contextmanager
    def at(self, *key: Hashable) -> Iterator[None]:
        """While active, whatever is refused is said with the line and the key."""
        try:
            yield
        except MemlocError as error:
            raise self.problem(*key, what=str(error)) from None


@dataclass(frozen=True)
class StudyFile(Source):
    """A study and its file; the file's folder is the study's."""

    study: Study

    @property
    def folder(self) -> Path:
        """Where it is kept."""
        return self.path.parent

    def blocks(self) -> Iterator[tuple[tuple[Hashable, ...], Study | Block | ControlBlock]]:
        """The main part and the further ones, each after its place in the file."""
        yield (), self.study
        for i, block in enumerate(self.study.also):
            yield ("also", i), block
        if self.study.control is not None:
            yield ("control",), self.study.control

    def file_of(self, name: str) -> Path:
        """A file that the study names, from its folder."""
        return self.folder / Path(name).expanduser()

    def path_of(self, name: str) -> str:
        """A name from the file; one that begins with a dot is a path from the file's folder."""
        return str((self.folder / name).resolve()) if name.startswith(".") else name


def read_study(place: str | Path) -> StudyFile:
    """The study in a folder, or in the file itself."""
    path = Path(place)
    if path.is_dir() or path.suffix not in {".yaml", ".yml"}:
        path = path / paths.STUDY
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise StoreError(
            f"{path} does not exist: `memloc init demo {path.parent}` writes one."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{path} cannot be read: {error}.") from error
    if path.name != paths.STUDY:
        raise StoreError(f"{path} must be called {paths.STUDY}: its folder is the study's.")
    return parse_study(text, path.parent)


def parse_study(text: str, folder: Path) -> StudyFile:
    """A study from the text of its file; what is wrong is said with line and key."""
    path = folder / paths.STUDY
    node, values = parse_yaml(text, str(path))
    if not isinstance(values, dict):
        raise SettingsError(f"{path} holds no settings: `memloc init demo` shows what it needs.")
    source = Source(path, {})
    _note_lines(node, (), source)
    return checked_study(source, values)


def checked_study(source: Source, values: Mapping[str, Any]) -> StudyFile:
    """A study from its values; an error names the line, where they were read from a file."""
    try:
        file = StudyFile(source.path, source.lines, Study.model_validate(values))
    except ValidationError as error:
        raise _explained(source, error) from None
    study = file.study
    for name in ("models", "tasks"):
        if not getattr(study, name) and not study.runs:
            raise file.problem(name, what="it is missing.")
    with file.at("preset"):
        lookup("preset", study.preset, PRESETS)
    for where, block in file.blocks():
        _check_overrides(file, where, getattr(block, "overrides", {}))
        _check_repeated(file, where, block)
    return file


def _check_overrides(
    file: StudyFile, where: tuple[Hashable, ...], overrides: Mapping[str, Any]
) -> None:
    for name, value in overrides.items():
        place = (*where, "overrides", name)
        if name == "preset":
            raise file.problem(*place, what="it is set by `preset`.")
        if where and name.split(".")[0] in OF_ALL:
            raise file.problem(*place, what="it concerns all runs: set it in the main `overrides`.")
        try:
            preset(file.study.preset).replace({name: value})
        except MemlocError as error:  # without the list of all settings, which is long
            head, known, _ = str(error).partition(" Known: ")
            more = " `memloc protocol` lists all." if known else ""
            raise file.problem(*place, what=head + more) from None


def _check_repeated(file: StudyFile, where: tuple[Hashable, ...], block: Settings) -> None:
    for name, given in block:
        for i, value in enumerate(given if isinstance(given, tuple) and name != "also" else ()):
            if value in given[:i]:
                raise file.problem(*where, name, i, what=f"{value!r} is there twice.")


def _note_lines(node: Any, place: tuple[Hashable, ...], source: Source) -> None:
    import yaml

    source.lines.setdefault(place, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = (*place, key.value)
            is_there = inner in source.lines
            source.lines[inner] = key.start_mark.line + 1
            if is_there:
                raise source.problem(*inner, what="it is there twice.")
            _note_lines(value, inner, source)
    elif isinstance(node, yaml.SequenceNode):
        for i, value in enumerate(node.value):
            _note_lines(value, (*place, i), source)


INNER: dict[Any, type[Settings]] = {"also": Block, "control": ControlBlock, "data": DataFile}
"""What the values of these keys are."""


def _explained(source: Source, error: ValidationError) -> SettingsError:
    first = error.errors()[0]
    place = tuple(key for key in first["loc"] if key != "[key]")
    said = "it is missing." if first["type"] == "missing" else explained(first)
    if first["type"] == "extra_forbidden":
        kind = INNER.get(place[0], Study) if len(place) > 1 else Study
        try:
            lookup("key", str(place[-1]), kind.model_fields)
        except MemlocError as unknown:
            said = str(unknown)
    return source.problem(*place, what=said)
