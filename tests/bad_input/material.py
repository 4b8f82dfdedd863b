"""What the cases work on, made once: a tiny model, a run of it, results, a study half done."""

import csv
import json
import socket
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from typer.testing import CliRunner

from bad_input.calling import call
from bad_input.machine import write_calibration
from fixtures.commands import rows_of
from fixtures.models import write_model
from fixtures.studies import Study
from memloc.cli import app
from memloc.engine.state import save_state
from memloc.store.records import write_json
from memloc.study.plan import open_plan
from memloc.study.records import Store

STUDY = """\
preset: demo
models: [tiny-opt]
tasks: [tiny-topic, tiny-sentiment]
methods: [swapping]
analyses: [centroids]
"""
COLUMNS = ("--text=review", "--label=stars", "--original=before")
LONG = (
    *("--set=finetune.epochs=12", "--set=finetune.batch_size=4", "--set=finetune.weight_decay=0"),
    *("--set=finetune.learning_rate=1e-2", "--device=cpu"),
)
"""Enough to learn wrong labels."""
LENIENT = "--set=verdict.noisy_at_least=0.01"
"""Some wrong labels are enough to look at."""


@dataclass(frozen=True)
class Material:
    """The folder of everything."""

    home: Path

    @property
    def model(self) -> Path:
        """A random model without a head."""
        return self.home / "model"

    @property
    def data(self) -> Path:
        """The file that the run was trained on."""
        return self.home / "mine.csv"

    @property
    def run(self) -> Path:
        """A run with all its weights, localised by swapping and analysed by centroids."""
        return self.home / "runs" / "mine" / "model" / "seed-1"

    @property
    def adopted(self) -> Path:
        """A run of the final and reference weights of the other one, with the same results."""
        return self.home / "adopted"

    @property
    def begun(self) -> Path:
        """Runs among which one is being trained: it was interrupted after two epochs."""
        return self.home / "begun"

    @property
    def results(self) -> Path:
        """A study's results, planted layers among them."""
        return self.home / "results"

    @property
    def planned(self) -> Path:
        """A study of which some steps are done."""
        return self.home / "planned"


def make_material(home: Path) -> Material:
    """All of it; takes some seconds."""
    made = Material(home)
    home.mkdir(parents=True, exist_ok=True)
    write_model(made.model, "opt", 2, 0.0, 0)
    write_own_data(made.data)
    _done(home, "train", made.model, "--data", made.data, *COLUMNS, *LONG)
    _begin(made)
    weights = made.run / "checkpoints"
    given = ("--final", weights / "final", "--reference", weights / "reference")
    _done(home, "adopt", made.adopted, *given, "--data", made.data, *COLUMNS)
    for run in (made.run, made.adopted):
        _done(home, "localise", run, "swapping", LENIENT)
        _done(home, "analyse", run, "centroids", LENIENT)
    Study(
        tasks=("tiny-topic",), models=("tiny-opt",), seeds=(1,), control=1, depth=3, train=12
    ).write(made.results)
    _write_planned(made.planned)
    return made


def write_own_data(path: Path) -> None:
    """Some of the labels are wrong, and a column says what they were."""
    rows = [(text, label, label) for text, label in rows_of(24)]
    rows = [(t, "bad" if i % 8 == 0 else a, b) for i, (t, a, b) in enumerate(rows)]
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("review", "stars", "before"), *rows])


def _write_planned(folder: Path) -> None:
    folder.mkdir()
    (folder / "study.yaml").write_text(STUDY, encoding="utf-8")
    write_calibration(folder)
    plan, store = open_plan(folder), Store(folder)
    for place, step in enumerate(plan.steps.values()):
        if place % 3 == 0:
            store.finish(step, {"seconds": 2.0, "peak_mb": 600.0})
        elif place % 3 == 1:
            store.fail(step, "The disk was full.")
        for output in step.outputs if place % 3 == 0 else ():
            (folder / output).parent.mkdir(parents=True, exist_ok=True)
            (folder / output).touch()
        store.log_path(step.name).parent.mkdir(parents=True, exist_ok=True)
        store.log_path(step.name).write_text(f"{step.name} began\n", encoding="utf-8")
    beat = {"pid": 2**30, "host": socket.gethostname(), "beat": 0.0}  # no such process
    write_json(folder / "steps" / "running.json", beat)


def _begin(made: Material) -> None:
    saved = []

    def save_twice(*what: object) -> None:
        save_state(*what)
        saved.append(what)
        if len(saved) == 2:
            raise KeyboardInterrupt

    words = ("train", made.model, "--data", made.data, *COLUMNS, *LONG, "--checkpoints=frozen")
    with mock.patch("memloc.engine.fit.save_state", save_twice):
        result = CliRunner().invoke(app, [*map(str, words), "--out", str(made.begun)])
    assert result.exit_code == 130, result.output


def _done(home: Path, *words: object) -> None:
    answer = call(home, *words, "--json")
    assert answer.code == 0, answer.stderr
    json.loads(answer.stdout)
