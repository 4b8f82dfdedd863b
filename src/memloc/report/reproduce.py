"""How a study was made: commands, settings, versions."""

import json
from collections.abc import Mapping
from typing import Any

from memloc.results import Results


def commands(results: Results) -> list[str]:
    """The commands that make the runs and their results again."""
    study = results.folder
    lines = []
    for row, about in zip(results.runs.to_dict("records"), results.abouts, strict=True):
        changes = "".join(f" --set {k}={_value(v)}" for k, v in about.get("changes", {}).items())
        lines.append(
            f"memloc train {about['model']} {row['task']} --seed {row['seed']} "
            f"--preset {row['preset']}{changes} --out {study}"
        )
        here = [(results.mcog, "localise"), (results.events, "analyse")]
        lines += [
            f"memloc {name} {study / row['folder']}" for table, name in here if _has(table, row)
        ]
    plants = results.plants.drop_duplicates(["model", "task"])
    lines += [
        f"memloc control --model {model} --task {task} --out {study}"
        for model, task in plants[["model", "task"]].itertuples(index=False)
    ]
    return lines


def settings(results: Results) -> list[dict[str, Any]]:
    """Every setting of the runs, once for those that share them."""
    groups: dict[str, dict[str, Any]] = {}
    for row, about in zip(results.runs.to_dict("records"), results.abouts, strict=True):
        key = json.dumps(about["protocol"], sort_keys=True)
        group = groups.setdefault(
            key,
            {
                "preset": row["preset"],
                "changes": row["changes"],
                "values": list(_flat(about["protocol"]).items()),
                "runs": 0,
            },
        )
        group["runs"] += 1
    return list(groups.values())


def versions(results: Results) -> list[str]:
    """What the runs were made with, a line for each set of versions."""
    return [", ".join(f"{k} {v}" for k, v in found.items()) for found in results.versions]


def _flat(tree: Mapping[str, Any], before: str = "") -> dict[str, str]:
    rows: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            rows |= _flat(value, f"{before}{key}.")
        else:
            rows[f"{before}{key}"] = _value(value)
    return rows


def _has(table: Any, row: Mapping[Any, Any]) -> bool:
    same = (table[name] == row[name] for name in ("task", "model", "seed"))
    task, model, seed = same
    return bool((task & model & seed).any())


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
