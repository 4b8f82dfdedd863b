"""Damaged files of memloc's own: results, runs, checkpoints, half-done trainings, studies."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
from hypothesis import strategies as st

from bad_input.calling import Answer, Wrong, call
from bad_input.damage import Bytes, Gone, damage_of
from bad_input.material import COLUMNS, LENIENT, LONG, Material

TABLES = ("runs", "mcog", "control", "plants", "events", "tasks")


@dataclass(frozen=True)
class StoredCase:
    """A folder in which one file is damaged, and a command that reads it."""

    what: str
    file: str
    damage: Any
    words: tuple[str, ...]

    def check(self, material: Material, place: Path) -> int:
        """The exit code; an answer must be that of the undamaged folder, or a refusal."""
        setting = SETTINGS[self.what]
        folder = setting.copy(material, place)
        others = [p for p in sorted(folder.rglob(f"*{Path(self.file).suffix}")) if p.is_file()]
        self.damage.apply(folder / self.file, others)
        answer = call(place, *setting.words(self.words, material, folder))
        if answer.code == 0 and not may_differ(self.damage, self.file):
            expected = undamaged(self.what, self.words, material)
            found = setting.said(answer, folder)
            if found != expected:
                how = differing(found, expected)
                raise Wrong(f"{self.file} is damaged and the answer another: {how}")
        return answer.code


def differing(found: Any, expected: Any) -> str:
    """The first difference, in short."""
    if isinstance(found, dict) and isinstance(expected, dict):
        for key in sorted({*found, *expected}, key=str):
            if found.get(key) != expected.get(key):
                return f"{key}: {differing(found.get(key), expected.get(key))}"
    return f"{str(found)[:300]!r} instead of {str(expected)[:300]!r}"


def may_differ(damage: Any, file: str) -> bool:
    """Whether a whole file of other content can be the result: nobody can know that it is wrong."""
    if file.startswith("checkpoints/"):
        return False  # the run knows which files it was left with
    if isinstance(damage, Gone):
        return True  # as if it had not been made yet
    if isinstance(damage, Bytes) and damage.how == "swapped" and file.startswith(STUDIES):
        return True  # the synthetic runs of a study do not have identities that differ
    if isinstance(damage, Bytes) and damage.how in {"flip", "zeros", "inserted", "swapped"}:
        return Path(file).suffix not in {".parquet", ".json"}  # those have checksums
    return False


@dataclass(frozen=True)
class Setting:
    """Where files come from, and how a command is called on them."""

    source: Callable[[Material], Path]
    words: Callable[[tuple[str, ...], Material, Path], list[object]]
    said: Callable[[Answer, Path], Any]

    def copy(self, material: Material, place: Path) -> Path:
        return shutil.copytree(self.source(material), place / "copy", symlinks=True)


def _written(answer: Answer, folder: Path) -> Any:
    """The tables that were written."""
    paths = sorted((folder / "report").rglob("*.csv"))
    return {path.name: path.read_text("utf-8") for path in paths}


def _sizes(answer: Answer, folder: Path) -> Any:
    """What the weights decide; a tokenizer with other settings is another, and a whole one."""
    said = json.loads(answer.stdout)
    return {name: said[name] for name in ("architecture", "depth", "width", "parameters")}


def _look(words: tuple[str, ...], material: Material, folder: Path) -> list[object]:
    return [words[0], folder, *words[1:], LENIENT, "--json"]


def _found(answer: Answer, folder: Path) -> Any:
    """Weights of layers, or an analysis's tables, however they came about."""
    said = json.loads(answer.stdout)
    if "analyses" in said:
        return {name: row["tables"] for name, row in said["analyses"].items()}
    return {name: (row["weights"], row["mcog"]) for name, row in said["methods"].items()}


def _trained(answer: Answer, folder: Path) -> Any:
    """Weights to the bit, and the curve."""
    run = folder / "mine" / "model" / "seed-1"
    curve = pd.read_parquet(run / "training.parquet").drop(columns="seconds")
    weights = (run / "checkpoints" / "frozen" / "model.safetensors").read_bytes()
    return {"weights": hashlib.sha256(weights).hexdigest(), "curve": curve.to_csv()}


SETTINGS = {
    "results": Setting(
        lambda material: material.results,
        lambda words, _, folder: ["tables", folder, *words],
        _written,
    ),
    "run": Setting(lambda material: material.run, _look, _found),
    "adopted": Setting(lambda material: material.adopted, _look, _found),
    "training": Setting(
        lambda material: material.begun,
        lambda words, material, folder: [
            *("train", material.model, "--data", material.data, *COLUMNS, *LONG, "--json"),
            *("--checkpoints=frozen", "--out", folder, *words),
        ],
        _trained,
    ),
    "checkpoint": Setting(
        lambda material: material.run / "checkpoints" / "final",
        lambda words, _, folder: ["check", folder, *words, "--json"],
        _sizes,
    ),
    "study": Setting(
        lambda material: material.planned,
        lambda words, _, folder: [words[0], folder, *words[1:]],
        lambda answer, folder: None,
    ),
}


@cache
def undamaged(what: str, words: tuple[str, ...], material: Material) -> Any:
    """What the command says of the whole folder."""
    setting, place = SETTINGS[what], material.home / f"whole-{os.getpid()}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    folder = setting.copy(material, place)
    answer = call(place, *setting.words(words, material, folder))
    assert answer.code == 0, answer.stderr
    return setting.said(answer, folder)


RUN = ("run.json", "labels.parquet", "training.parquet")
CHECKPOINT = (
    *("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "memloc.json"),
)
SWAPPING = ("layers.parquet", "mcog.parquet", "windows.parquet", "outcomes.parquet", "about.json")
CENTROIDS = ("layers.parquet", "events.parquet", "about.json")
SCORES = (
    *(f"results/{m}/{file}" for m in ("swapping", "retraining") for file in SWAPPING),
    *(f"results/gradients/{file}" for file in ("gradients.parquet", "mcog.parquet", "about.json")),
    *(f"results/probing/{file}" for file in ("noise_probes.parquet", "about.json")),
)
FOUND = (
    *(f"results/{a}/{file}" for a in ("centroids", "label_probes") for file in CENTROIDS),
    *(f"results/generalisation/{file}" for file in ("summary.parquet", "examples.parquet")),
)
HOME = "tiny-topic/tiny-opt/seed-1"
STUDIES = ("tiny-topic/", "control/")
PLANTED = tuple(
    f"control/{HOME}/{kind}-1-2/{file}"
    for kind in ("window", "null")
    for file in ("run.json", "labels.parquet", *SCORES)
)
LOOKED = (
    *(f"results/swapping/{file}" for file in SWAPPING),
    *(f"results/centroids/{file}" for file in CENTROIDS),
)
BEGUN = "mine/model/seed-1"
FILES: dict[str, tuple[str, ...]] = {
    "results": (*(f"{HOME}/{name}" for name in (*RUN, *RUN, *SCORES, *FOUND)), *PLANTED),
    "run": (
        *(*RUN, *RUN, *LOOKED),
        *(f"checkpoints/{w}/{f}" for w in ("final", "reference") for f in CHECKPOINT),
    ),
    "adopted": (*["run.json"] * 6, "labels.parquet", *LOOKED),
    "training": (
        *(f"{BEGUN}/{name}" for name in ("run.json", "labels.parquet")),
        *[f"{BEGUN}/checkpoints/frozen.state"] * 2,
    ),
    "checkpoint": CHECKPOINT,
    "study": (
        *("study.yaml", "calibration.json", "steps/running.json"),
        "logs/train/tiny-topic/tiny-opt/seed-1.log",
        "steps/train/tiny-topic/tiny-opt/seed-1.json",
        "steps/train/tiny-sentiment/tiny-opt/seed-1.json",
        "steps/localise/tiny-topic/tiny-opt/seed-1/swapping.json",
    ),
}
LOOKS = [("localise", "swapping"), ("localise", "swapping"), ("analyse", "centroids")]
WORDS: dict[str, list[tuple[str, ...]]] = {
    "results": [("--only", name) for name in TABLES],
    "run": LOOKS,
    "adopted": LOOKS,
    "training": [()],
    "checkpoint": [(), ("--depth", "1")],
    "study": [
        *[("status", "--json"), ("status",), ("plan",), ("plan", "--json"), ("plan", "--steps")],
        ("logs", "train/tiny-topic/tiny-opt/seed-1"),
    ],
}


def cases_of(what: str) -> "st.SearchStrategy[StoredCase]":
    """Damage of one of the files of a setting, and a command that meets it."""

    def of_file(file: str) -> "st.SearchStrategy[StoredCase]":
        words = st.sampled_from(WORDS[what])
        return st.builds(StoredCase, st.just(what), st.just(file), damage_of(Path(file)), words)

    return st.sampled_from(FILES[what]).flatmap(of_file)
