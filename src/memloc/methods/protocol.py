"""Presets: the settings of every method, which are the methods' own fields, in one object."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import create_model

from memloc.errors import SettingsError, UnknownName, lookup
from memloc.methods import Kind, Method, Named
from memloc.methods.registry import OTHER_KIND, find_method, forget_methods, methods
from memloc.protocol import PRESETS, CommonSettings, readable
from memloc.settings import Settings, checked, parse_yaml
from memloc.store import paths

_NAME = re.compile("[A-Za-z0-9_-]{1,100}")
"""Pattern of method names, which are also names of folders."""


class Protocol(CommonSettings):
    """Every setting in one object; a preset is one of three such objects.

    It has groups of settings that belong to no method, and one group for each method, by its name.
    """

    def method(self, name: str) -> Method:
        """Return the method called `name` with its settings."""
        find_method(name)
        method: Method = getattr(self, name)
        return method

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the values only, since the type is built anew in each process."""
        return _of_values, (self.model_dump(),)


@cache
def preset(name: str) -> Protocol:
    """Return the preset called `paper`, `reference` or `demo`."""
    return _with_methods()().replace({"preset": name, **lookup("preset", name, PRESETS)})


def study_values(folder: Path) -> dict[str, Any] | None:
    """Return the content of the study file in a folder; None without such a file."""
    path = folder / paths.STUDY
    if not path.is_file():
        return None
    values = parse_yaml(path.read_text(encoding="utf-8"), str(path))[1]
    if not isinstance(values, dict):
        raise SettingsError(f"{path} holds no settings: `memloc init demo` shows what it needs.")
    return values


def protocol_of_study(folder: Path) -> Protocol | None:
    """Return the settings of the study file in a folder; None without such a file."""
    values = study_values(folder)
    if values is None:
        return None
    return preset(values.get("preset") or "paper").replace(values.get("overrides") or {})


def requested_methods(
    named: Named | Sequence[Named], kind: Kind, protocol: Protocol, settings: Mapping[str, Any]
) -> list[Method]:
    """Return the requested methods with their settings.

    Args:
        named: Names of methods, or methods as objects or classes.
        kind: Localisers or analyses.
        protocol: Settings of methods that are given by name.
        settings: Settings that differ from the protocol.
    """
    alone = isinstance(named, str | Method | type)
    if not alone and not isinstance(named, Sequence):
        raise SettingsError(
            f"Methods are given by name, such as 'shares', or as memloc.Method objects, "
            f"not as {type(named).__name__}."
        )
    every: Sequence[Any] = [named] if alone else named  # type: ignore[assignment]
    if not every:
        raise SettingsError(
            "The list of methods is empty: name at least one, or leave it out to use all that can "
            "run."
        )
    return [_requested(method, kind, protocol, settings) for method in every]


def _requested(given: Any, kind: Kind, protocol: Protocol, settings: Mapping[str, Any]) -> Method:
    is_class = isinstance(given, type) and issubclass(given, Method)
    if not is_class and not isinstance(given, Method):
        find_method(given, kind)
        return protocol.method(given)
    owner: Any = given if is_class else type(given)
    name = getattr(owner, "name", None)
    if not isinstance(name, str) or not _NAME.fullmatch(name) or not hasattr(owner, "needs"):
        raise SettingsError(
            f"{owner.__name__} needs a `name` (letters, digits, _ and -) and the weights that it "
            "`needs`, as every memloc.Method."
        )
    if owner.kind != kind:
        raise UnknownName(f"{name} is not {OTHER_KIND[kind]}.")
    if methods().get(name, owner) is not owner:
        raise SettingsError(f"memloc has another method called {name!r}: rename {owner.__name__}.")
    if is_class and name in methods():
        return protocol.method(name)
    if any(key.split(".")[0] == name for key in settings):
        raise SettingsError(f"{name} was given as an object: change its settings there.")
    method: Method = checked(owner, {}) if is_class else given
    return method


def forget() -> None:
    """Forget the known methods, so that newly added ones are found."""
    forget_methods()
    _with_methods.cache_clear()
    preset.cache_clear()


@cache
def _with_methods() -> type[Protocol]:
    """Return the type of protocols, with a group of settings for each installed method."""
    groups: dict[str, Any] = {name: (method, method()) for name, method in methods().items()}
    return create_model("Protocol", __base__=Protocol, __doc__=Protocol.__doc__, **groups)


def _of_values(values: Mapping[str, Any]) -> Protocol:
    return checked(_with_methods(), values)


def preset_rows(name: str) -> list[dict[str, str]]:
    """Return one row per setting of a preset: dotted name, value, source and description."""
    return [
        {
            "setting": f"{group}.{leaf}",
            "value": readable(getattr(inner, leaf)),
            "source": _source(name, f"{group}.{leaf}", field),
            "meaning": " ".join((field.description or "").split()),
        }
        for group, inner in preset(name)
        if isinstance(inner, Settings)
        for leaf, field in type(inner).model_fields.items()
    ]


def compare(one: str, other: str) -> list[dict[str, str]]:
    """Return one row per setting in which two presets differ: both values and both sources."""
    return [
        {
            "setting": left["setting"],
            one: left["value"],
            f"{one} from": left["source"],
            other: right["value"],
            f"{other} from": right["source"],
        }
        for left, right in zip(preset_rows(one), preset_rows(other), strict=True)
        if left["value"] != right["value"]
    ]


def _source(preset_name: str, dotted: str, field: Any) -> str:
    if dotted in PRESETS[preset_name]:
        return {"reference": "published code", "demo": "our choice"}[preset_name]
    return str((field.json_schema_extra or {}).get("source", "its package"))
