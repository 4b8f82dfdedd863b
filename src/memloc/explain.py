"""The protocol for people: every setting with its value, its meaning and where it comes from."""

from typing import Any

from memloc.protocol import PRESETS, Protocol
from memloc.settings import Settings


def describe(protocol: Protocol) -> list[dict[str, str]]:
    """One row per setting: dotted name, value, source and description, in the method's order."""
    rows = []
    changed = protocol.changes()
    for group in type(protocol).model_fields:
        inner = getattr(protocol, group)
        if not isinstance(inner, Settings):
            continue
        for name, field in type(inner).model_fields.items():
            dotted = f"{group}.{name}"
            rows.append(
                {
                    "setting": dotted,
                    "value": readable(getattr(inner, name)),
                    "source": _source(protocol.preset, dotted, field, dotted in changed),
                    "meaning": " ".join((field.description or "").split()),
                }
            )
    return rows


def compare(one: Protocol, other: Protocol) -> list[dict[str, str]]:
    """One row per setting that differs: both values side by side, with both sources."""
    rows = []
    name = one.preset
    other_name = other.preset if other.preset != name else f"other {name}"
    for left, right in zip(describe(one), describe(other), strict=True):
        if left["value"] != right["value"]:
            rows.append(
                {
                    "setting": left["setting"],
                    name: left["value"],
                    f"{name} from": left["source"],
                    other_name: right["value"],
                    f"{other_name} from": right["source"],
                }
            )
    return rows


def readable(value: Any) -> str:
    """A setting's value as people write it."""
    if isinstance(value, tuple):
        return ", ".join(map(readable, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _source(preset_name: str, dotted: str, field: Any, changed: bool) -> str:
    if changed:
        return "changed here"
    if dotted in PRESETS[preset_name]:
        return {"reference": "published code", "demo": "our choice"}[preset_name]
    return str((field.json_schema_extra or {}).get("source", "its package"))
