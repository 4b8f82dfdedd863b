"""How a study was made: its file, commands, settings, versions."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memloc.config import FILE, read_study
from memloc.errors import MemlocError
from memloc.models.catalogue import known_models
from memloc.protocol import preset
from memloc.report.findings import RUN
from memloc.report.missing import ANALYSES
from memloc.results import Results
from memloc.train.run import Run

if TYPE_CHECKING:
    import pandas as pd

FEWER = re.compile(r"^(.*), (\d+) of \d+ training examples$")
"""Where the data of a run come from, when not all were used."""
SWAPPED = "window "
"""What variants of the centroids begin with that `--window` asked for."""


def study_file(results: Results) -> str:
    """The text of the study's file; empty where there is none."""
    path = results.folder / FILE
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def commands(results: Results) -> list[str]:
    """The commands that make the runs and their results again."""
    made = _made_by_file(results.folder)
    lines = [] if made is None else [["memloc", "run", str(results.folder)]]
    parts = _Parts(results)
    for row, about in zip(results.runs.to_dict("records"), results.abouts, strict=True):
        if (about["task"]["name"], Path(about["model"]).name, about["seed"]) not in (made or ()):
            lines += _run_commands(parts, row, about)
    if not (made and read_study(results.folder).study.control):
        lines += _control_commands(results.folder)
    return [_line(words) for words in lines]


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


def _line(words: list[str]) -> str:
    line = shlex.join(words)
    return f"{line}  # and the names of its columns, such as --text" if "--data" in words else line


def _made_by_file(folder: Path) -> set[tuple[str, str, int]] | None:
    """Tasks, models and seeds of the study's file; None without one that can be read."""
    try:
        file = read_study(folder)
    except MemlocError:
        return None
    made = set()
    for block in (file.study, *file.study.also):
        tasks, models, seeds = (
            getattr(block, name) or getattr(file.study, name)
            for name in ("tasks", "models", "seeds")
        )
        names = [Path(file.path_of(model)).name for model in models]
        made |= {(t, m, s) for t in tasks for m in names for s in seeds}
    return made


class _Parts:
    """What there is of every run, by its task, model and seed."""

    def __init__(self, results: Results) -> None:
        self.folder = results.folder
        self.methods = _by_run(results.mcog, "method")
        self.variants = _by_run(results.centroids, "variant")
        names = {**ANALYSES, "generalisation": "generalisation"}
        self.analyses = {name: _by_run(getattr(results, table)) for table, name in names.items()}


def _by_run(table: "pd.DataFrame", column: str = "model") -> dict[Any, list[str]]:
    return {key: list(part.unique()) for key, part in table.groupby(RUN)[column]}


def _run_commands(
    parts: _Parts, row: Mapping[Any, Any], about: Mapping[str, Any]
) -> Iterator[list[str]]:
    out = parts.folder if row["folder"] != "." else Path("runs")
    changes, depth = _changes(about["changes"]), _depth(about)
    yield [
        *("memloc", "train", about["model"], *_data(about), "--seed", str(about["seed"])),
        *("--preset", row["preset"], *changes, *depth, *_allowed(about), "--out", str(out)),
    ]
    model = Path(about["model"]).name + (f"-depth-{depth[1]}" if depth else "")
    place = str(out / about["task"]["name"] / model / f"seed-{about['seed']}")
    key = tuple(row[name] for name in RUN)
    if key in parts.methods:
        yield ["memloc", "localise", place, *parts.methods[key]]
    analyses = [name for name, runs in parts.analyses.items() if key in runs]
    windows = [v.removeprefix(SWAPPED) for v in parts.variants.get(key, []) if SWAPPED in v]
    if analyses:
        yield ["memloc", "analyse", place, *analyses, *_each("--window", windows)]


def _control_commands(folder: Path) -> Iterator[list[str]]:
    """One for all plants that share a model, a task and settings."""
    groups: dict[tuple[str, ...], list[Run]] = {}
    nulls = set()
    for path in sorted((folder / "control").rglob("run.json")):
        run = Run.open(path.parent)
        about = run.about
        subject = about["model"], about["task"]["name"], about["seed"], *about["control"]["window"]
        if about["control"]["null"]:
            nulls.add(subject)
            continue
        task, *more = _data(about)
        words = [
            *("--model", about["model"], "--task", task, *more, "--seed", str(about["seed"])),
            *("--preset", about["preset"], *_changes(_asked_of_control(about)), *_depth(about)),
        ]
        groups.setdefault(tuple(words), []).append(run)
    for shared, runs in groups.items():
        yield ["memloc", "control", *shared, *_plants(runs, nulls), "--out", str(folder)]


def _plants(runs: list[Run], nulls: set[tuple[Any, ...]]) -> list[str]:
    """Windows, methods, and for which windows there is a null."""
    ends = sorted({tuple(run.about["control"]["window"]) for run in runs})
    methods = {path.stem for run in runs for path in (run.folder / "localise").glob("*.parquet")}
    first = runs[0].about
    subject = first["model"], first["task"]["name"], first["seed"]
    with_null = [end for end in ends if (*subject, *end) in nulls]
    kind = "none" if not with_null else "all"
    if with_null == [ends[len(ends) // 2]]:
        kind = "middle"
    windows = [f"{first}-{last}" for first, last in ends]
    return [*_each("--window", windows), *_each("--method", sorted(methods)), "--nulls", kind]


def _asked_of_control(about: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that were asked for: rate and epochs of a planted run follow from others."""
    changes, own = dict(about["changes"]), about["protocol"]["control"]
    size = "large_" if about["is_large"] else ""
    rate = f"finetune.{size}learning_rate"
    changes.pop(rate, None)
    usual = preset(about["preset"]).flat()[rate]
    tries = about.get("tries") or [{"learning_rate": usual}]
    if own["learning_rate"] is None and tries[0]["learning_rate"] != usual:
        changes[rate] = tries[0]["learning_rate"]
    if own["epochs"] is not None:
        changes.pop("finetune.epochs", None)
    return changes


def _data(about: Mapping[str, Any]) -> list[str]:
    """The task, or one's own file; the folder it is in; how many of its examples."""
    task, source = about["task"], about["task"]["source"]
    fewer = FEWER.match(source)
    whole = fewer[1] if fewer else source
    words = [task["name"]]
    if whole.startswith("file: "):
        words = ["--data", whole.removeprefix("file: ")]
    elif whole.startswith("folder: "):
        words += ["--data-folder", whole.removeprefix("folder: ")]
    return [*words, *(["--examples", fewer[2]] if fewer else [])]


def _depth(about: Mapping[str, Any]) -> list[str]:
    """How many layers, unless the model is known to have as many."""
    known = {row.name: row.layers for row in known_models()}
    depth = str(about["depth"])
    return [] if known.get(about["model"]) == depth else ["--depth", depth]


def _allowed(about: Mapping[str, Any]) -> list[str]:
    options = {"remote_code": "--remote-code", "any_format": "--any-format"}
    return [option for name, option in options.items() if about.get(name)]


def _changes(changes: Mapping[str, Any]) -> list[str]:
    return _each("--set", [f"{name}={_as_yaml(value)}" for name, value in changes.items()])


def _each(option: str, values: list[str]) -> list[str]:
    return [word for value in values for word in (option, value)]


def _flat(tree: Mapping[str, Any], before: str = "") -> dict[str, str]:
    rows: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            rows |= _flat(value, f"{before}{key}.")
        else:
            rows[f"{before}{key}"] = _value(value)
    return rows


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _as_yaml(value: Any) -> str:
    """As `--set` reads it back: 1e-05 is a number and "1" is not."""
    import yaml

    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True)
    return text.removesuffix("...\n").strip()
