"""How a study was made: its file, commands, settings, versions."""

import json
from collections.abc import Mapping
from typing import Any

from memloc import paths
from memloc.results import Results


def study_file(results: Results) -> str:
    """The text of the study's file; empty where there is none."""
    path = results.folder / paths.STUDY
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def commands(results: Results) -> list[str]:
    """The commands that made the runs and their results, in the order to repeat them."""
    return list(dict.fromkeys(filter(None, results.commands)))


def settings(results: Results) -> list[dict[str, Any]]:
    """Every setting of the runs and of the methods, once for all that share them."""
    groups: dict[str, dict[str, Any]] = {}
    for row, record in zip(results.runs.to_dict("records"), results.records, strict=True):
        values = record.settings.flat()
        key = json.dumps(values, sort_keys=True)
        group = {"kind": "preset", "name": row["preset"], "changes": row["changes"], "runs": 0}
        group = groups.setdefault(key, {**group, "values": _readable(values)})
        group["runs"] += 1
    for (method, text), n in results.method_settings.items():
        values = {f"{method}.{k}": v for k, v in json.loads(text).items()}
        group = {"kind": "method", "name": method, "changes": "", "runs": n}
        groups[f"{method} {text}"] = {**group, "values": _readable(values)}
    return list(groups.values())


def versions(results: Results) -> list[str]:
    """What the runs were made with, one line for each set of versions."""
    return [", ".join(f"{k} {v}" for k, v in found.items()) for found in results.versions]


def _readable(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, _value(value)) for name, value in values.items()]


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
