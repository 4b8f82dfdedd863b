"""Reads and checks a study's file: models x tasks x seeds x methods, and settings."""

import shlex
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
"""Groups of settings that apply to all runs of a study."""
VARIED = ("models", "tasks", "seeds", "methods", "analyses", "overrides")
"""Keys that the entries of `also` may have."""
Names = tuple[str, ...]
Seeds = tuple[int, ...]


def _installed(purpose: Literal["localiser", "analysis"]) -> Names:
    from memloc.methods.registry import method_names

    return method_names(purpose)


class ControlBlock(Settings):
    """Plants of a study; models and tasks default to those of the main part."""

    models: Names | None = Field(None, min_length=1)
    """Models in which memorisation is planted."""
    tasks: Names | None = Field(None, min_length=1)
    """Tasks whose noise is planted; by default all but the auxiliary task."""
    windows: Names = ()
    """Layers such as 6-7, 2+9 for separate ones, or 2-3/9-10 for two groups of noisy examples, each
    with layers of its own; default: the first, the middle and the last ones."""
    every: tuple[int, ...] = ()
    """Windows of these widths at every position."""
    methods: Names = Field(default_factory=partial(_installed, "localiser"))
    """Localisers that are tried on the planted layers; those about labels skip plants of texts."""
    nulls: Literal["none", "middle", "all"] = "middle"
    """Windows that also get a null, the same run with nothing to memorise: the middle window of
    each kind of plant, none or all.
    """


class Study(Settings):
    """Settings of a study: the contents of `study.yaml`."""

    preset: str = "paper"
    """Preset of all settings: paper, reference or demo."""
    overrides: dict[str, Any] = Field(default_factory=dict)
    """Settings that differ from the preset, such as `finetune.epochs: 30`."""
    models: Names = Field((), min_length=1)
    """Models by embedded name, hub name or folder (`./x` is next to the study's file)."""
    tasks: Names = Field((), min_length=1)
    """Tasks by the names that `memloc tasks` lists, or those of `data`."""
    data: dict[str, DataFile] = Field(default_factory=dict)
    """The user's own files, by the names used in `tasks`."""
    seeds: Seeds = Field((1,), min_length=1)
    """Model seeds: order of the data, initial head, dropout."""
    methods: Names = Field(default_factory=partial(_installed, "localiser"))
    """Localisers to apply to every run; by default all of memloc's own that run by default."""
    analyses: Names = Field(default_factory=partial(_installed, "analysis"))
    """Analyses of the paper's section 5 to apply to every run; by default all."""
    runs: Names = ()
    """Folders of existing runs in the study's folder, such as adopted ones."""
    also: tuple[dict[str, Any], ...] = ()
    """Further runs: for each entry the `models`, `tasks`, `seeds`, `methods`, `analyses` or
    `overrides` that differ from the main part.
    """
    control: ControlBlock | None = None
    """Plants in known layers; none by default."""
    report: bool = True
    """Write a page with all results at the end."""
    examples: int | None = Field(None, ge=4)
    """Number of examples in a random sample of each task to train on; all by default."""
    depth: int | None = Field(None, ge=1)
    """Number of first layers of every model to use; all by default."""
    force: bool = False
    """Continue with runs that did not memorise their noisy labels; their results are marked."""
    data_folder: str | None = None
    """Folder with the paper's tasks; by default the folder in MEMLOC_DATA, else the hub."""
    device: str = "auto"
    """Device to compute on: auto, cpu, cuda or mps."""
    gpus: float = Field(1.0, gt=0)
    """Number of GPUs, or share of one, that a step takes on a cluster that has GPUs."""

    @property
    def protocol(self) -> Protocol:
        """Return all settings of this study."""
        return preset(self.preset).replace(self.overrides)

    @property
    def parts(self) -> tuple["Study", ...]:
        """Return the study itself, then one complete study for each entry of `also`."""
        return self, *map(self._varied, self.also)

    def _varied(self, changes: Mapping[str, Any]) -> "Study":
        given = {name: value for name, value in changes.items() if value is not None}
        if isinstance(overrides := given.get("overrides"), Mapping):
            given["overrides"] = {**self.overrides, **overrides}
        return Study.model_validate({**dict(self), "also": (), **given})


EXAMPLES = ("demo", "small", "paper", "sequences")
"""Names of the example studies in the package."""


def init_study(example: str, folder: str | Path | None = None) -> Path:
    """Write an example's files into a folder, which becomes the study's; return its study.yaml."""
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
    for data_file in file.study.data.values():
        if not (place := file.folder / data_file.file).exists():
            with whole_file(place) as draft:
                draft.write_text(home.joinpath(data_file.file).read_text("utf-8"), "utf-8")
    return write_study(text, file)


def write_study(text: str, file: "StudyFile") -> Path:
    """Write the file of a study, unless the folder already has the same study."""
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
class StudyFile:
    """A study and its file, whose folder is the study's folder."""

    path: Path
    lines: dict[tuple[Hashable, ...], int]
    """Line number of each value; empty for a study that is not in a file yet."""
    study: Study = Study.model_validate({})  # noqa: RUF009 - frozen

    def problem(self, *key: Hashable, what: str) -> SettingsError:
        """Return an error that names the key and, if the study is in a file, its line."""
        name = "".join(f"[{k}]" if isinstance(k, int) else f".{k}" for k in key).lstrip(".")
        if not self.lines:
            return SettingsError(f"{name}: {what}")
        place = key
        while place and place not in self.lines:
            place = place[:-1]
        return SettingsError(f"{self.path}, line {self.lines.get(place, 1)}, {name}: {what}")

    @contextmanager
    def at(self, *key: Hashable) -> Iterator[None]:
        """Add this key and its line to any error, while active."""
        try:
            yield
        except MemlocError as error:
            raise self.problem(*key, what=str(error)) from None

    @property
    def folder(self) -> Path:
        """Folder of the study."""
        return self.path.parent

    def parts(self) -> Iterator[tuple[tuple[Hashable, ...], Study | ControlBlock]]:
        """Yield the study, the entries of `also` and the plants, each after its place."""
        study, *others = self.study.parts
        yield (), study
        for number, part in enumerate(others):
            yield ("also", number), part
        if study.control is not None:
            yield ("control",), study.control

    def file_of(self, name: str) -> Path:
        """Return the path of a file that the study names relative to its folder."""
        return self.folder / Path(name).expanduser()

    def path_of(self, name: str) -> str:
        """Return a name; if it begins with a dot, return its absolute path, relative to the study's
        file.
        """
        return str((self.folder / name).resolve()) if name.startswith(".") else name


def read_study(place: str | Path) -> StudyFile:
    """Read the study in a folder; the path of its file is accepted as well."""
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
    """Read a study from the text of its file; errors name the line and the key."""
    path = folder / paths.STUDY
    node, values = parse_yaml(text, str(path))
    if not isinstance(values, dict):
        raise SettingsError(f"{path} holds no settings: `memloc init demo` shows what it needs.")
    file = StudyFile(path, {})
    _note_lines(node, (), file)
    return checked_study(file, values)


def checked_study(file: StudyFile, values: Mapping[str, Any]) -> StudyFile:
    """Return the file with the study described by these values, after checking them."""
    place: tuple[Hashable, ...] = ()
    try:
        study = Study.model_validate(values)
        for number, given in enumerate(study.also):
            place = ("also", number)
            for name in given:
                with file.at(*place, name):
                    lookup("key", name, dict.fromkeys(VARIED))
            study._varied(given)
    except ValidationError as error:
        raise _explained(file, error, place) from None
    for name in ("models", "tasks"):
        if not getattr(study, name) and not study.runs:
            raise file.problem(name, what="it is missing.")
    with file.at("preset"):
        lookup("preset", study.preset, PRESETS)
    file = replace(file, study=study)
    _check_overrides(file, (), study.overrides)
    for number, given in enumerate(study.also):
        _check_overrides(file, ("also", number), given.get("overrides") or {})
    for where, part in file.parts():
        _check_repeated(file, where, part)
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


def _check_repeated(file: StudyFile, where: tuple[Hashable, ...], part: Settings) -> None:
    for name, given in part:
        for i, value in enumerate(given if isinstance(given, tuple) and name != "also" else ()):
            if value in given[:i]:
                raise file.problem(*where, name, i, what=f"{value!r} is there twice.")


def _note_lines(node: Any, place: tuple[Hashable, ...], file: StudyFile) -> None:
    import yaml

    file.lines.setdefault(place, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = (*place, key.value)
            is_there = inner in file.lines
            file.lines[inner] = key.start_mark.line + 1
            if is_there:
                raise file.problem(*inner, what="it is there twice.")
            _note_lines(value, inner, file)
    elif isinstance(node, yaml.SequenceNode):
        for i, value in enumerate(node.value):
            _note_lines(value, (*place, i), file)


INNER: dict[Any, type[Settings]] = {"control": ControlBlock, "data": DataFile}
"""Keys of a study whose values have keys of their own, and their settings."""


def _explained(
    file: StudyFile, error: ValidationError, within: tuple[Hashable, ...] = ()
) -> SettingsError:
    """Return an error on the first refused value; `within` is the place of the checked values."""
    first = error.errors()[0]
    place = (*within, *(key for key in first["loc"] if key != "[key]"))
    message = "it is missing." if first["type"] == "missing" else explained(first)
    if first["type"] == "extra_forbidden":
        kind = INNER.get(place[0], Study) if len(place) > 1 else Study
        try:
            lookup("key", str(place[-1]), kind.model_fields)
        except MemlocError as unknown:
            message = str(unknown)
    return file.problem(*place, what=message)
