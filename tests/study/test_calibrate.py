"""What a single run will cost is said before it begins, by the same count as a study's."""

import json
import time
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from fixtures.commands import COLUMNS, FAST, printed, rows_of, write_csv
from fixtures.studies import Study
from memloc.cli import app
from memloc.data.sources import load_task, subsample
from memloc.engine import loop as finetune
from memloc.methods.protocol import preset
from memloc.model.device import on_threads
from memloc.model.load import LoadOptions, load_model
from memloc.model.predict import predict
from memloc.model.shape import Shape
from memloc.progress import duration, telling
from memloc.store import paths
from memloc.store.records import read_json, write_json
from memloc.study import calibrate
from memloc.study.calibrate import speed, tell_cost
from memloc.study.config import read_study
from memloc.study.estimate import (
    Calibration,
    estimate,
    keep,
    machine,
    measured_here,
)
from memloc.study.plan import make_plan

SPEED = {
    "update": 0.8,
    "predict": 0.01,
    "layer": 1e-3,
    "last_layer": 5e-4,
    "probe": 0.001,
    "batch": 8,
    "length": 20,
}


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def command(tiny_model, tmp_path):
    model = tiny_model("opt", depth=2, dropout=0.1)
    mine = write_csv(tmp_path / "mine.csv", rows_of())
    return ("train", model, "--data", mine, *COLUMNS, *FAST)


def said_before(result):
    """What is said of the cost before progress begins, after two lines about the noise."""
    lines = result.stderr.splitlines()
    noise, few, *rest = lines[: next(i for i, line in enumerate(lines) if line.endswith("begins"))]
    assert " noisy of 48 examples" in noise
    assert "NO ANSWER WILL BE POSSIBLE" in few
    return rest


def test_a_run_and_the_same_step_of_a_study_cost_the_same(micro, tmp_path):
    plan = make_plan(read_study(micro()))
    measured = Calibration(machine="here", speeds={"2x64": SPEED})
    costs = estimate(plan, measured, dict.fromkeys(plan.steps, 1))
    name = "train/tiny-sentiment/tiny-opt-depth-2/seed-1"
    study = plan.file.study
    task = subsample(load_task("tiny-sentiment"), 30, study.protocol.noise.seed)
    options = LoadOptions(depth=2)
    record = SimpleNamespace(task=SimpleNamespace(name=task.name))
    run = SimpleNamespace(task=task, record=record, settings=study.protocol.for_run())
    model = load_model("tiny-opt", task.label_names, options=options)
    keep(tmp_path, {"speeds": {"2x64": SPEED}})
    left = {"noisy": 4, "original": 4, "frozen": 4}
    said = []
    with telling(said.append):
        tell_cost(tmp_path, run, model, left)
    first, second = said
    # Epochs of four updates, three times four of them.
    assert first.startswith("3 trainings are left (noisy, original, frozen), 48 updates in all: ")
    assert costs.seconds[name] == pytest.approx(28.35)
    assert "about 28 s (14 s to 57 s; from a calibration alone)." in first
    assert f"{costs.disk[name] / 1e6:.1f} MB of disk" in second


def test_train_says_how_many_updates_there_will_be(run, command, monkeypatch):
    printed(run(*command, "--seed=2"))  # measures this machine
    done = []
    monkeypatch.setattr(calibrate, "speed", lambda *_: pytest.fail("measured again"))
    plain = finetune.Objective.updating
    watched = lambda o: done.append(o.members) or plain(o)  # noqa: E731
    monkeypatch.setattr(finetune.Objective, "updating", watched)
    first, second = said_before(run(*command))
    assert f", {sum(done)} updates in all: about " in first
    assert second.startswith("Results will take ")
    assert second.endswith(" are free.")


def test_what_was_done_before_does_not_count(run, command, monkeypatch):
    from memloc.engine import fit as training

    def interrupted(*given):
        save(*given)
        raise KeyboardInterrupt

    save = training.save_state
    words = (*command, "--checkpoints=final", "--checkpoints=frozen")
    with monkeypatch.context() as patch:
        patch.setattr(training, "save_state", interrupted)
        stopped = run(*words)
    assert stopped.exit_code == 130
    assert said_before(stopped)[0].startswith("2 trainings are left (noisy, frozen), 24 updates")
    assert said_before(run(*words))[0].startswith("2 trainings are left (noisy, frozen), 18 upd")
    # And where all is there nothing is said.
    again = run(*words, "--json")
    assert json.loads(printed(again))["checkpoints"] == ["final", "frozen"]
    assert "left" not in again.stderr


def test_measurements_of_several_models_are_kept_side_by_side(tmp_path):
    keep(tmp_path, {"speeds": {"2x64": SPEED}})
    keep(tmp_path, {"speeds": {"4x64": SPEED}, "tokens": {"rte": 3}})
    assert set(measured_here(tmp_path).speeds) == {"2x64", "4x64"}
    assert read_json(tmp_path / paths.CALIBRATION)["tokens"] == {"rte": 3}


@pytest.mark.parametrize(
    "kept",
    [
        {"machine": "another one", "speeds": {"2x64": SPEED}},
        {"machine": machine(), "speeds": {"2x64": {"update": 1.0}}},
        {"machine": machine(), "speeds": 3},
        {"machine": machine()},
    ],
    ids=["another machine", "an older layout", "damaged", "empty"],
)
def test_what_cannot_be_used_is_measured_again(tmp_path, kept):
    write_json(tmp_path / paths.CALIBRATION, kept)
    assert measured_here(tmp_path) == Calibration(machine=machine())


def test_a_model_of_any_width_can_be_measured():
    assert speed(Shape(2, 6, 100), 5, preset("demo").finetune, "cpu")["update"] > 0


def test_waiting_for_others_is_not_measured_and_threads_are_not_fought_for(monkeypatch):
    threads = set()

    def slow(*given, **more):
        threads.add(torch.get_num_threads())
        time.sleep(2.0)  # as if other programs had the core
        return predict(*given, **more)

    monkeypatch.setattr(calibrate, "predict", slow)
    with on_threads(2):
        found = speed(Shape(1, 256, 100), 5, preset("demo").finetune, "cpu")
        assert torch.get_num_threads() == 2
    assert threads == {1}
    assert found["predict"] * calibrate.FEW < 2.0


def told_of_methods(run, monkeypatch, names):
    monkeypatch.setattr(calibrate, "speed", lambda *_: SLOW)
    said = []
    with telling(said.append):
        calibrate.tell_cost_of_methods(run, [preset("demo").method(name) for name in names])
    return said


SLOW = {"update": 8.0, "batch": 4, "predict": 0.5, "layer": 1e-3, "last_layer": 5e-4, "probe": 0.01}


def test_long_methods_say_their_cost_first_quick_ones_begin(tmp_path, monkeypatch):
    run = Study(methods=(), analyses=(), train=400).write_run(tmp_path, "tiny-topic", "tiny-opt", 1)
    assert told_of_methods(run, monkeypatch, ["gradients"]) == []
    (said,) = told_of_methods(run, monkeypatch, ["retraining", "gradients"])
    noisy = len(run.noisy_rows)
    assert said.startswith(f"gradients {duration(4 * noisy * 2)} and retraining ")
    assert "in all (from a calibration alone)" in said
