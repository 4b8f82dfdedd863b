"""Runs of real models on the paper's tasks, one at a time, with exact shares.

    python -m studies.evidence WORK --model FOLDER --data FOLDER          computes what is missing
    python -m studies.evidence WORK --model FOLDER --data FOLDER --left   lists what is missing

The rules, written before any result, are in `tables/evidence/study.yaml`, and for models of the
paper's size (`--study wide`) in `tables/wide/study.yaml`. A run passes the stages `layers` (shares,
swapping, gradients, centroids, the early donor, attention and MLP), `time` (the timeline),
`probes`, `scaled` (the probes of standardised vectors) and `retraining`. Rows of a finished stage
are in `tables/STUDY/STAGE`, and a stage whose rows are there is never computed again, so any
machine continues the study. Processes share it if each has its own WORK and its own `--tasks`.
WORK holds the weights of runs with stages left; they are deleted with the last stage of a run, and
made again, the same, where they are missing. Give each process a core of its own (`taskset -c 0`):
threads of two that share cores wait for each other (here, trainings took 30 times as long).
"""

import argparse
import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import yaml

from memloc.errors import ScoreError
from memloc.methods.early import early_donor
from memloc.methods.result import Result
from memloc.methods.shares import Shares
from memloc.reporting.results import load_results
from memloc.run.folder import Run
from memloc.store import paths
from memloc.store.files import whole_file
from studies.cost import costs
from studies.pages import STORED
from studies.stored import keep

ENCODER = "bert-12x384"
"""The model of the study `evidence`, by the name of its folder."""
SPLIT_SEED = 1
"""Seed of the runs whose attention and MLP are told apart."""
STAGES: dict[str, dict[str, Any]] = {
    "layers": {"methods": ["shares", "swapping", "gradients"], "analyses": ["centroids"]},
    "time": {"methods": [], "analyses": ["timeline"]},
    "float32": {
        "methods": ["shares", "swapping"],
        **{"finetune.autocast": "none", "finetune.keep_epochs": "none"},
    },
    "probes": {"methods": ["probing"], "analyses": ["label_probes"]},
    "scaled": {
        **{"methods": ["probing"], "analyses": ["label_probes"]},
        **{"probing.standardise": True, "label_probes.standardise": True},
    },
    "retraining": {"methods": ["retraining"]},
}
"""What looks at a run in each stage, and the settings that only this stage has."""


class Piece(NamedTuple):
    """One stage of one run."""

    stage: str
    task: str
    seed: int


@dataclass(frozen=True)
class Registered:
    """A study whose rules are written down, and the model that it is computed with."""

    name: str = "evidence"
    model: str = ENCODER

    @property
    def folder(self) -> Path:
        """The folder of its file and its tables."""
        return STORED / self.name

    @cached_property
    def file(self) -> dict[str, Any]:
        """What its file says."""
        found: dict[str, Any] = yaml.safe_load((self.folder / paths.STUDY).read_text("utf-8"))
        return found

    def order(self) -> Iterator[Piece]:
        """Yield all pieces in the order in which they are computed."""
        main, also = self.file, self.file.get("also", [])
        tasks = dict.fromkeys(t for block in (main, *also) for t in block.get("tasks", []))
        seeds = dict.fromkeys(s for block in (main, *also) for s in block.get("seeds", []))
        if self.name == "evidence":
            first = next(iter(tasks))
            yield from (Piece(stage, first, 1) for stage in ("layers", "float32"))
        for seed in seeds:
            for stages in (("layers",), ("time",), ("probes", "scaled")):
                yield from (Piece(stage, task, seed) for task in tasks for stage in stages)
        for block in also:
            if block.get("methods"):
                yield from (Piece("retraining", task, 1) for task in block["tasks"])

    def left(self) -> list[Piece]:
        """Return the pieces whose rows are not stored."""
        return [piece for piece in dict.fromkeys(self.order()) if not self.is_stored(piece)]

    def is_stored(self, piece: Piece) -> bool:
        """Return whether the rows of a piece are stored."""
        path = self.folder / piece.stage / "runs.parquet"
        if not path.is_file():
            return False
        runs = pd.read_parquet(path, columns=["task", "model", "seed"])
        return [piece.task, self.model, piece.seed] in runs.to_numpy().tolist()

    def study_of(self, piece: Piece) -> dict[str, Any]:
        """Return the study of one piece: the registered one, cut down to one run and one stage."""
        study, stage = dict(self.file), STAGES[piece.stage]
        own = {name: value for name, value in stage.items() if "." in name}
        block = next(
            block
            for block in ({}, *study.pop("also", []))
            if piece.task in block.get("tasks", study["tasks"])
            and piece.seed in block.get("seeds", study["seeds"])
        )
        return study | {
            "tasks": [piece.task],
            "seeds": [piece.seed],
            "methods": stage["methods"],
            "analyses": stage.get("analyses", []),
            "overrides": study["overrides"] | block.get("overrides", {}) | own,
        }

    def add(self, name: str, piece: Piece, rows: pd.DataFrame) -> None:
        """Put rows into a CSV table in place of those that the same piece left before."""
        path = self.folder / f"{name}.csv"
        key = {**piece._asdict(), "model": self.model}
        rows = pd.DataFrame([key] * len(rows)).join(rows.reset_index(drop=True))
        with self.writing():
            if path.is_file():
                before = pd.read_csv(path)
                same = (before[[*key]] == [*key.values()]).all(axis=1)
                rows = pd.concat([before[~same], rows])
            with whole_file(path) as draft:
                rows.to_csv(draft, index=False, float_format="%.5g")

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Wait until no other process writes tables of the study."""
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def compute(study: Registered, piece: Piece, work: Path) -> None:
    """Compute one stage of one run and store its rows; weights that no stage needs are deleted.

    The folder `work` has links to the model and to the data.
    """
    with whole_file(work / paths.STUDY) as draft:
        draft.write_text(yaml.safe_dump(study.study_of(piece), sort_keys=False), encoding="utf-8")
    asked = [sys.executable, "-m", "memloc", "run", str(work), "--jobs", "1", "--retry"]
    subprocess.run(asked, check=False)  # a step that cannot be done, as nothing memorised, fails
    (folder,) = work.glob(f"{piece.task}/*/seed-{piece.seed}")
    run = Run.open(folder)
    results = load_results(folder)
    if results.runs["noisy_accuracy"].isna().any():
        raise SystemExit(f"{folder} was not trained: see `memloc logs {work}`.")
    found = costs(work, folder.relative_to(work).as_posix())
    if piece.stage == "layers" and results.runs["memorised"].all():
        found = pd.concat([found, _further(study, run, piece)])
    study.add("costs", piece, found)
    with study.writing():
        keep(results, study.folder / piece.stage)
    shutil.rmtree(folder / paths.RESULTS, ignore_errors=True)
    if piece.stage == "float32" or not any(p[1:] == piece[1:] for p in study.left()):
        shutil.rmtree(folder)
    if piece.stage == "time":
        for epoch in folder.glob(f"{paths.CHECKPOINTS}/{paths.epoch('*')}"):
            shutil.rmtree(epoch)


def _further(study: Registered, run: Run, piece: Piece) -> pd.DataFrame:
    """Compare the early donor with the reference, and split the layers; return the cost."""
    spent = []
    reference = Result.read(paths.result(run.folder, Shares.name))
    _add_shares(study, piece, "reference", reference)
    if (best := early_donor(run)) is not None:
        start = time.process_time()
        game = Shares(donor=best.checkpoint, noisy_examples=24, clean_examples=12)
        row = {"epoch": best.epoch, "knows_noisy": best.noisy, "knows_clean": best.clean}
        try:
            _add_shares(study, piece, "early", game.run(run), row)
        except ScoreError:  # it knows the wrong labels as well as the final model does
            study.add("early_donors", piece, pd.DataFrame([{"undone": 0.0, **row}]))
        spent.append({"step": "early donor", "minutes": (time.process_time() - start) / 60})
    if piece.seed == SPLIT_SEED:
        start = time.process_time()
        game = Shares(units="sublayers", standard_error=0.03, clean_examples=8)
        units = game.run(run)["units"]
        study.add("parts", piece, units[units["value"] == "labels"])
        spent.append({"step": "attention and MLP", "minutes": (time.process_time() - start) / 60})
    return pd.DataFrame(spent)


def _add_shares(
    study: Registered, piece: Piece, donor: str, found: Result, more: dict[str, Any] | None = None
) -> None:
    """Store what each layer holds of each wrong label, and what the donor undoes and damages."""
    table = found["example_shares"].pivot(index="example", columns="layer", values="lost")
    table.columns = [f"layer_{layer}" for layer in table.columns]
    study.add(f"{donor}_shares", piece, table.reset_index())
    labels = found["labels"].groupby("is_noisy")["lost"].mean()
    row = {"undone": labels[True], "damaged": labels[False], **(more or {})}
    row["answer"] = found.answer.word
    study.add(f"{donor}_donors", piece, pd.DataFrame([row]))


def _place(study: Registered, piece: Piece, asked: argparse.Namespace) -> Path:
    """Return the folder of a piece's weights, with links to the model and to the data."""
    work: Path = asked.work / "float32" if piece.stage == "float32" else asked.work
    work.mkdir(parents=True, exist_ok=True)
    names = Path(study.file["models"][0]).name, Path(study.file["data_folder"]).name
    for name, place in zip(names, (asked.model, asked.data), strict=True):
        link = work / name
        link.unlink(missing_ok=True)
        link.symlink_to(place.resolve())
    return work


def main() -> None:
    """Compute what is missing, piece by piece, until the time is up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path, help="folder for weights, about 8 GB")
    parser.add_argument("--model", type=Path, required=True, help="folder of the model")
    parser.add_argument("--data", type=Path, required=True, help="folder of the tasks")
    parser.add_argument("--study", default="evidence", choices=("evidence", "wide"))
    parser.add_argument("--tasks", help="compute these alone, such as rte,wic")
    parser.add_argument("--left", action="store_true", help="list what is missing and end")
    parser.add_argument("--until", default="24:00", help="begin no piece after this time, HH:MM")
    asked = parser.parse_args()
    study = Registered(asked.study, asked.model.resolve().name)
    tasks = asked.tasks.split(",") if asked.tasks else {piece.task for piece in study.order()}
    pieces = [piece for piece in study.left() if piece.task in tasks]
    if asked.left:
        print(*(" ".join(map(str, piece)) for piece in pieces), sep="\n")
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for piece in pieces:
        if time.strftime("%H:%M") >= asked.until:
            break
        print(time.strftime("%H:%M:%S"), *piece, flush=True)
        compute(study, piece, _place(study, piece, asked))


if __name__ == "__main__":
    main()
