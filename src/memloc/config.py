"""A study: models x tasks x seeds x methods and settings, read from one YAML file, checked."""

import difflib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from memloc.errors import MemlocError, SettingsError, StoreError
from memloc.protocol import PRESETS, Protocol, preset
from memloc.settings import Settings

FILE = "study.yaml"
"""A study's folder holds this file, and everything that is made."""
METHODS = ("swapping", "retraining", "gradients", "probing")
ANALYSES = ("centroids", "label-probes", "generalisation")
Names = tuple[str, ...]
Seeds = tuple[int, ...]


class Block(Settings):
    """Further runs; what is left out is as in the main part."""

    models: Names | None = Field(None, min_length=1)
    """Embedded names, hub names or folders (`./x` is beside the study's file)."""
    tasks: Names | None = Field(None, min_length=1)
    """Names that `memloc tasks` lists."""
    seeds: Seeds | None = Field(None, min_length=1)
    """Model seeds."""
    methods: Names | None = None
    """Localisers."""
    analyses: Names | None = None
    """Of section 5."""


class ControlBlock(Settings):
    """What is planted where; models and tasks that are left out are those of the main part."""

    models: Names | None = Field(None, min_length=1)
    """In which memorisation is planted."""
    tasks: Names | None = Field(None, min_length=1)
    """Whose noise is planted; the auxiliary task is left out where none are named."""
    windows: Names = ()
    """Layers such as 6-7; none given: the first, the middle and the last ones."""
    every: tuple[int, ...] = ()
    """Windows of so many layers at every position."""
    methods: Names = METHODS
    """That look for the planted layers."""
    nulls: Literal["none", "middle", "all"] = "middle"
    """Windows whose null is made, too: the same with nothing to memorise."""


class Study(Settings):
    """Everything that decides what a study is."""

    preset: str = "paper"
    """paper, reference or demo."""
    overrides: dict[str, Any] = Field(default_factory=dict)
    """Settings that differ from the preset, such as `finetune.epochs: 30`."""
    models: Names = Field(min_length=1)
    """Embedded names, hub names or folders (`./x` is beside the study's file)."""
    tasks: Names = Field(min_length=1)
    """Names that `memloc tasks` lists."""
    seeds: Seeds = Field((1,), min_length=1)
    """Model seeds: order of the data, initial head, dropout."""
    methods: Names = METHODS
    """Localisers."""
    analyses: Names = ANALYSES
    """Of section 5."""
    also: tuple[Block, ...] = ()
    """Further runs, with what differs from the above."""
    control: ControlBlock | None = None
    """Left out: nothing is planted."""
    report: bool = True
    """Whether a page with everything is made at the end."""
    examples: int | None = Field(None, ge=4)
    """Train on a random so many of each task's; left out: on all."""
    depth: int | None = Field(None, ge=1)
    """Use only the first so many layers of every model."""
    force: bool = False
    """Go on with runs that did not memorise; their results are marked."""
    data_folder: str | None = None
    """With the paper's tasks; left out: MEMLOC_DATA, else the hub."""
    device: str = "auto"
    """auto, cpu, cuda or mps."""
    gpus: float = Field(1.0, gt=0)
    """GPUs, or a share of one, that a step takes on a cluster that has some."""

    @property
    def protocol(self) -> Protocol:
        """Every constant of the method, as this study has it."""
        return preset(self.preset).replace(self.overrides)


@dataclass(frozen=True)
class StudyFile:
    """A study, where it is kept, and where in its file each value stands."""

    folder: Path
    study: Study
    lines: Mapping[tuple[Hashable, ...], int] = field(default_factory=dict)

    def problem(self, key: Sequence[Hashable], what: str) -> SettingsError:
        """An error that names the line and the key."""
        return _problem(self.folder / FILE, self.lines, key, what)

    def path_of(self, name: str) -> str:
        """A name from the file; one that begins with a dot is a path from the file's folder."""
        return str((self.folder / name).resolve()) if name.startswith(".") else name


def read_study(place: str | Path) -> StudyFile:
    """The study in a folder, or in the file itself."""
    path = Path(place)
    if path.is_dir() or path.suffix not in {".yaml", ".yml"}:
        path = path / FILE
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise StoreError(
            f"{path} does not exist: `memloc init demo {path.parent}` writes one."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{path} cannot be read: {error}.") from error
    if path.name != FILE:
        raise StoreError(f"{path} must be called {FILE}: its folder is the study's.")
    return parse_study(text, path.parent)


def parse_study(text: str, folder: Path) -> StudyFile:
    """A study from the text of its file; what is wrong is said with line and key."""
    path = folder / FILE
    values, lines = _parsed(text, path)
    try:
        study = Study.model_validate(values)
    except ValidationError as error:
        raise _explained(path, lines, error) from None
    file = StudyFile(folder, study, lines)
    _check_settings(file)
    _check_repeated(file)
    return file


def suggestion(name: str, known: Sequence[str]) -> str:
    """What was probably meant, and what there is."""
    near = "".join(f" Did you mean {n!r}?" for n in difflib.get_close_matches(name, known, n=1))
    return f"{near} Known: {', '.join(known)}."


def _check_settings(file: StudyFile) -> None:
    study = file.study
    if study.preset not in PRESETS:
        known = suggestion(study.preset, list(PRESETS))
        raise file.problem(["preset"], f"there is no preset {study.preset!r}.{known}")
    base = preset(study.preset)
    for name, value in study.overrides.items():
        if name in {"preset", "version"}:
            raise file.problem(["overrides", name], "it is set by `preset`.")
        try:
            base.replace({name: value})
        except MemlocError as error:
            raise file.problem(["overrides", name], _short(error)) from None


def _short(error: MemlocError) -> str:
    """Without the list of all settings, which is long; `memloc protocol` prints it."""
    head, known, _ = str(error).partition(" Known: ")
    return head + (" `memloc protocol` lists all." if known else "")


def _check_repeated(file: StudyFile) -> None:
    blocks: list[tuple[list[Hashable], Any]] = [([], file.study)]
    blocks += [(["also", i], block) for i, block in enumerate(file.study.also)]
    blocks += [(["control"], file.study.control)] if file.study.control else []
    for where, block in blocks:
        for name in ("models", "tasks", "seeds", "methods", "analyses", "windows", "every"):
            given = getattr(block, name, None) or ()
            for i, value in enumerate(given):
                if value in given[:i]:
                    raise file.problem([*where, name, i], f"{value!r} is there twice.")


def _parsed(text: str, path: Path) -> tuple[dict[str, Any], dict[tuple[Hashable, ...], int]]:
    import yaml

    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        values = yaml.safe_load(text)
    # A date of month 13 is a ValueError, and a timestamp that is none an AttributeError.
    except (yaml.YAMLError, ValueError, AttributeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        why = getattr(error, "problem", None) or _why(error)
        raise SettingsError(f"{path}{where} is not YAML: {why}.") from None
    if not isinstance(values, dict):
        raise SettingsError(f"{path} holds no settings: `memloc init demo` shows what it needs.")
    lines: dict[tuple[Hashable, ...], int] = {}
    _note_lines(node, (), lines, path)
    return values, lines


def _why(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return f"it cannot be read ({' '.join(str(error).split())[:100]})"


def _note_lines(
    node: Any, place: tuple[Hashable, ...], lines: dict[tuple[Hashable, ...], int], path: Path
) -> None:
    import yaml

    lines.setdefault(place, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = (*place, key.value)
            if inner in lines:
                raise _problem(path, {inner: key.start_mark.line + 1}, inner, "it is there twice.")
            lines[inner] = key.start_mark.line + 1
            _note_lines(value, inner, lines, path)
    elif isinstance(node, yaml.SequenceNode):
        for i, value in enumerate(node.value):
            _note_lines(value, (*place, i), lines, path)


def _explained(path: Path, lines: Mapping[Any, int], error: ValidationError) -> SettingsError:
    first = error.errors()[0]
    place = tuple(first["loc"])
    if first["type"] == "extra_forbidden":
        known = list(_kind(place[:-1]).model_fields)
        return _problem(path, lines, place, f"unknown key.{suggestion(str(place[-1]), known)}")
    if first["type"] == "missing":
        return _problem(path, lines, place, "it is missing.")
    message = str(first["msg"])
    return _problem(path, lines, place, f"{first['input']!r}: {message[0].lower()}{message[1:]}.")


def _kind(place: tuple[Any, ...]) -> type[Settings]:
    kinds: dict[str, type[Settings]] = {"also": Block, "control": ControlBlock}
    return kinds.get(str(place[0]) if place else "", Study)


def _problem(
    path: Path, lines: Mapping[Any, int], key: Sequence[Hashable], what: str
) -> SettingsError:
    place = tuple(key)
    while place and place not in lines:
        place = place[:-1]
    name = "".join(f"[{k}]" if isinstance(k, int) else f".{k}" for k in key).lstrip(".")
    return SettingsError(f"{path}, line {lines.get(place, 1)}, {name}: {what}")
