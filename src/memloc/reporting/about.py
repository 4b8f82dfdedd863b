"""Tables that describe a study: its tasks, models and runs."""

import json
import math
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import yaml

from memloc.model.known import TINY, tiny_folder
from memloc.reporting.style import asset, task_order
from memloc.stats.claims import BINARY
from memloc.stats.intervals import wilson
from memloc.store import paths
from memloc.store.files import is_draft

if TYPE_CHECKING:
    from memloc.reporting.results import Results

BLOCK = re.compile(r"(^|\.)\d+\.")
"""Pattern of a block's number in the name of a parameter, as blocks are kept in a list."""


def tasks(results: "Results") -> pd.DataFrame:
    """Return the paper's Table 1 for the tasks of these results: one row per task."""
    from memloc.data.tasks import PAPER_TASKS, known_tasks

    known = known_tasks()
    runs = results["runs"]
    by_task = runs.drop_duplicates("task").set_index("task").loc[task_order(runs["task"])]
    papers = [PAPER_TASKS.get(task.removesuffix(BINARY)) for task in by_task.index]
    about = {task: row.description for task, row in known.items()}
    columns = {
        "category": by_task["category"],
        "dataset": by_task.index,
        "task": [about.get(task, "own data") for task in by_task.index],
        "domain": [paper.domain if paper else "–" for paper in papers],
    }
    sizes = {"size": by_task["train"], "noisy": by_task["noisy"], "labels": by_task["n_classes"]}
    return pd.DataFrame({**columns, **sizes}).reset_index(drop=True)


def models(results: "Results") -> pd.DataFrame:
    """Return the paper's Table 3 for the models of these results: one row per model."""
    rows = {}
    for record, run in zip(results.records, results["runs"].to_dict("records"), strict=True):
        name = record.spec.model
        rows[run["model"]] = {
            "model": run["model"],
            **{key: pretraining(name).get(key) for key in ("corpus", "tokens", "steps")},
            "parameters": layer_parameters(name, results.folder / run["folder"]),
            "layers": record.depth,
            "width": record.width,
            "loaded from": name,
            "weights": record.weights_hash,
        }
    return pd.DataFrame(list(rows.values()))


def pretraining(model: str) -> Mapping[str, Any]:
    """Return corpus, tokens and steps of an embedded model or one of the paper's; empty for
    others.
    """
    if model not in TINY:
        return _known().get(model, {})
    note = json.loads((tiny_folder(model) / "pretraining.json").read_text(encoding="utf-8"))
    tokens = note["rows"] * note["length"] * note["steps"]
    return {"corpus": "embedded texts", "tokens": tokens, "steps": note["steps"]}


@cache
def _known() -> dict[str, dict[str, Any]]:
    facts: dict[str, dict[str, Any]] = yaml.safe_load(asset("pretraining.yaml"))
    return facts


def layer_parameters(model: str, run: Path) -> int | None:
    """Count the parameters of all blocks in a run's or embedded weights; None without weights."""
    places = [
        *(p for p in (run / paths.CHECKPOINTS).glob("*") if not is_draft(Path(p.name))),
        *([tiny_folder(model)] if model in TINY else []),
    ]
    for folder in places:
        files = sorted(folder.glob("*.safetensors"))
        if files:
            return sum(map(_in_blocks, files))
    return None


def _in_blocks(file: Path) -> int:
    """Count the blocks' parameters from the header of a safetensors file, which lists all
    shapes.
    """
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        shapes = json.loads(opened.read(length))
    return sum(math.prod(v["shape"]) for name, v in shapes.items() if BLOCK.search(name))


def runs(results: "Results") -> pd.DataFrame:
    """Return one row per run, with the interval of its accuracy on unseen data."""
    table = results["runs"]
    share, n = (table[name].to_numpy(np.float64) for name in ("validation_accuracy", "validation"))
    sure = wilson(share, n)
    return table.assign(validation_low=sure.low, validation_high=sure.high)
