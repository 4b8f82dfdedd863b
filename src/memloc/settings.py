"""The base class of all settings: frozen, documented, checked when created, varied by a copy."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from memloc.errors import SettingsError, StoreError, UnknownName, nearest, shortened
from memloc.store.records import read_json


class Settings(BaseModel):
    """Frozen settings that refuse unknown keys; the docstring under a field is its description."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse true and false for numbers: pydantic would take `epochs: yes` for 1."""
        kind = cls.model_fields[str(info.field_name)].annotation
        given = value if isinstance(value, list | tuple) else [value]
        if any(isinstance(v, bool) for v in given) and _is_of(kind, int, float):
            raise PydanticCustomError("truth", "Input should be a number, not true or false")
        return value

    def flat(self) -> dict[str, Any]:
        """Return every setting under its dotted name, e.g. `finetune.epochs`."""
        rows: dict[str, Any] = {}
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, Settings):
                rows |= {f"{name}.{key}": inner for key, inner in value.flat().items()}
            else:
                rows[name] = value
        return rows

    def replace(self, changes: Mapping[str, Any]) -> Self:
        """Return a copy with other values under dotted names, checked like any other."""
        tree = self.model_dump()
        known = self.flat()
        for dotted, value in changes.items():
            if dotted not in known:
                raise _unknown(dotted, known)
            *groups, leaf = dotted.split(".")
            place = tree
            for group in groups:
                place = place[group]
            place[leaf] = value
        return checked(type(self), tree)


def _unknown(name: object, known: Iterable[str]) -> UnknownName:
    """Return the error for an unknown setting, with the nearest name and where all names are
    listed.
    """
    names = list(known)
    if not any("." in dotted for dotted in names):
        return UnknownName(
            f"No setting is called {shortened(repr(name))}.{nearest(name, names)} Known: "
            f"{', '.join(names)}."
        )
    same_leaf = [dotted for dotted in names if dotted.endswith(f".{name}")]
    either = " or ".join(map(repr, same_leaf))
    near = f" Did you mean {either}?" if same_leaf else nearest(name, names)
    group = f"{name}".partition(".")[0]
    inside = [dotted for dotted in names if dotted.startswith(f"{group}.")]
    place = f" Settings of {group}: {', '.join(inside)}." if inside and not near else ""
    return UnknownName(
        f"No setting is called {shortened(repr(name))}.{near}{place} `memloc protocol` lists all."
    )


def _is_of(value: Any, *wanted: type) -> bool:
    """Return whether the type of a field, or of its items, is one of these types."""
    return value in wanted or any(_is_of(inner, *wanted) for inner in get_args(value))


S = TypeVar("S", bound=Settings)


def checked(settings_type: type[S], values: Mapping[str, Any]) -> S:
    """Make settings from plain values; refuse a wrong value in one sentence."""
    try:
        return settings_type.model_validate(values)
    except ValidationError as error:
        raise SettingsError(f"Setting {first_fault(error)}") from None


def read_record(path: Path, settings_type: type[S]) -> S:
    """Read a stored record of this type; refuse one that does not fit, with its first fault."""
    values = {name: value for name, value in read_json(path).items() if name != "format"}
    try:
        return settings_type.model_validate(values)
    except ValidationError as error:
        fault = first_fault(error).rstrip(".")
        raise StoreError(
            f"{path} does not hold what it should ({fault}); delete it and run again."
        ) from None


def packaged(module: str) -> Any:
    """Read the YAML file next to a module of memloc, given by the module's `__file__`."""
    import yaml

    return yaml.safe_load(Path(module).with_suffix(".yaml").read_text(encoding="utf-8"))


def first_fault(error: ValidationError) -> str:
    """Return a sentence on the first refused value, and what is needed in its place."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))} is {explained(first)}"


def explained(error: ErrorDetails) -> str:
    """Return a sentence on a refused value and what is needed in its place, as written in YAML."""
    kind, given = error["type"], error["input"]
    if kind == "missing":
        return "missing."
    message = f"{error['msg'][0].lower()}{error['msg'][1:]}"
    if kind == "tuple_type":
        simple = isinstance(given, str | int | float)
        message = (
            f"a list is needed: write [{given}]" if simple else "a list is needed, as in [a, b]"
        )
    elif kind in {"dict_type", "model_type"}:
        message = "keys with their values are needed, as in `key: value`"
    elif kind == "string_type" and isinstance(given, int | float):
        message = f"a name is needed: put it in quotes, as in '{given}'"
    shown = "empty" if given is None else repr(given)
    return f"{shown[:SHOWN] + '...' if len(shown) > SHOWN else shown}: {message}."


SHOWN = 80
"""Number of characters shown of a refused value."""
MOST_ALIASES, MOST_LEVELS = 20, 20
"""Limits that no hand-written YAML reaches; more could stand for billions of values."""


def parse_yaml(text: str, name: str) -> tuple[Any, Any]:
    """Return the nodes and values of a YAML text; errors call the text `name`."""
    import yaml

    try:
        _refuse_tangles(text)
        return yaml.compose(text, Loader=yaml.SafeLoader), yaml.safe_load(text)
    # Errors from outside the YAML parser: no such date, too many digits, a tag that does not fit.
    except (yaml.YAMLError, ValueError, AttributeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        plain = str(error).partition(";")[0] if isinstance(error, ValueError) else ""
        why = getattr(error, "problem", None) or plain or "it cannot be read"
        raise SettingsError(f"{name}{where} cannot be read as YAML: {why}.") from None


def _refuse_tangles(text: str) -> None:
    import yaml

    inside: list[str | None] = []
    aliases = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        problem = None
        if isinstance(event, yaml.CollectionStartEvent):
            inside.append(event.anchor)
        elif isinstance(event, yaml.CollectionEndEvent):
            inside.pop()
        elif isinstance(event, yaml.AliasEvent):
            aliases += 1
            if event.anchor in inside:
                problem = f"the alias *{event.anchor} is part of what it stands for"
        if aliases > MOST_ALIASES:
            problem = f"it has more than {MOST_ALIASES} aliases (*name), so write their values out"
        if len(inside) > MOST_LEVELS:
            problem = f"it is nested more than {MOST_LEVELS} levels deep"
        if problem:
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)


def paper(default: Any, where: str, **limits: Any) -> Any:
    """Declare a constant that the paper states, with the place where it does."""
    return Field(default, json_schema_extra={"source": f"paper, {where}"}, **limits)


def published(default: Any, **limits: Any) -> Any:
    """Declare a constant of the published code that the paper's text does not state."""
    return Field(default, json_schema_extra={"source": "published code"}, **limits)


def ours(default: Any, **limits: Any) -> Any:
    """Declare a constant that is memloc's own choice."""
    return Field(default, json_schema_extra={"source": "our choice"}, **limits)
