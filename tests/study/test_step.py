"""One step in a process of its own: what it says when it goes well, fails, or is ended."""

import json
import signal
import subprocess
import sys
import time

import pytest
import torch

from memloc.errors import SettingsError
from memloc.records import read_json
from memloc.run import Run
from memloc.study import step as module
from memloc.study.executors import Order, Outcome, as_sent, read_outcomes
from memloc.study.plan import open_plan
from memloc.study.records import Store
from memloc.study.step import do_order
from planning_support import RUN

TRAIN = f"train/{RUN}"


@pytest.fixture
def ordered(micro, monkeypatch):
    """Do the training of a micro study, with something else in its place."""

    def run(action, identity=None):
        folder = micro()
        monkeypatch.setattr(module, "do", action)
        monkeypatch.setattr(module, "_watch", lambda *_: None)
        monkeypatch.setattr(module, "limit_threads", lambda _: None)
        identity = identity or open_plan(folder).steps[TRAIN].identity
        return folder, do_order(folder, Order({TRAIN: identity}, "token"))[0]

    return run


def make_outputs(plan, step):
    for path in step.outputs:
        (plan.file.folder / path).mkdir(parents=True)


def test_a_step_that_goes_well_is_done(ordered):
    folder, outcome = ordered(make_outputs)
    assert outcome.reason == ""
    assert outcome.peak_mb > 0
    record = Store(folder).record(TRAIN)
    assert (record.state, record.threads) == ("done", 1)
    assert record.processor > 0


def test_the_time_of_a_processor_that_waits_for_a_gpu_is_not_kept(ordered, monkeypatch):
    monkeypatch.setattr(module, "pick_device", lambda _: torch.device("cuda"))
    folder, _ = ordered(make_outputs)
    assert Store(folder).record(TRAIN).processor is None


def test_a_step_that_leaves_nothing_has_failed(ordered):
    folder, outcome = ordered(lambda plan, step: None)
    assert outcome.reason == f"{TRAIN} ended, but {RUN}/run.json is not there."
    assert Store(folder).record(TRAIN).state == "begun"


def test_a_refusal_is_a_sentence_and_anything_else_has_a_trace(ordered, capsys):
    def refuse(plan, step):
        raise SettingsError("No.")

    assert ordered(refuse)[1].reason == "No."
    assert "Traceback" not in capsys.readouterr().err
    assert ordered(lambda plan, step: 1 / 0)[1].reason == "ZeroDivisionError: division by zero"
    assert "Traceback" in capsys.readouterr().err


def test_a_step_of_another_study_refuses(ordered):
    _, outcome = ordered(make_outputs, identity="another")
    assert "was changed while it ran" in outcome.reason


def test_how_a_process_ended_is_its_outcome():
    order, said = Order({"x": "", "y": ""}, ""), [Outcome("x", "no", 1.0, 2.0), Outcome("y")]
    assert read_outcomes(order, as_sent(said), 0) == said

    def reason(status):
        one, other = read_outcomes(order, "", status)
        assert (one.step, other.step, one.reason) == ("x", "y", other.reason)
        return one.reason

    assert "by SIGKILL (perhaps out of memory)" in reason(-signal.SIGKILL)
    assert reason(-signal.SIGTERM) == "its process was ended by SIGTERM"
    assert "ended with status 3 and said nothing" in reason(3)


def test_a_fresh_process_tells_its_outcome_on_standard_output(micro):
    order = Order({"no such step": ""}, "token")
    done = subprocess.run(
        [sys.executable, "-m", "memloc.study.step", str(micro()), as_sent(order)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "was changed while it ran" in json.loads(done.stdout)[0]["reason"]
    assert done.stderr.startswith("memloc: ")


SEEDS = {
    "tasks: [tiny-sentiment]": "tasks: [tiny-sentiment, tiny-politeness]\nseeds: [1, 2]",
    "models: [tiny-opt]": "models: [tiny-opt, tiny-bert]",
    "control: ": "# ",
}


@pytest.fixture
def two_seeds(micro, monkeypatch):
    """The order of two seeds of one task, in a study where these train as one."""
    folder = micro(changes=SEEDS)
    monkeypatch.setattr(module, "_watch", lambda *_: None)
    monkeypatch.setattr(module, "limit_threads", lambda _: None)
    plan = open_plan(folder)
    steps = plan.stack_of(plan.steps[TRAIN])
    return folder, Order({step.name: step.identity for step in steps}, "token")


def test_seeds_train_as_one_and_each_is_a_step_of_its_own(two_seeds):
    folder, order = two_seeds
    began = time.perf_counter()
    outcomes = do_order(folder, order)
    took = time.perf_counter() - began
    assert [(o.step, o.reason) for o in outcomes] == [(name, "") for name in order.steps]
    records = [Store(folder).record(name) for name in order.steps]
    assert {record.state for record in records} == {"done"}
    assert sum(record.seconds for record in records) == pytest.approx(took, rel=0.1)
    for name in order.steps:
        run = Run.open(folder / name.removeprefix("train/"))
        assert run.weights() == ["memorised", "final", "reference", "frozen"]
        assert run.record.command == f"memloc run {folder}"
        about = read_json(run.path("final") / "memloc.json")
        assert about["beside"] == ["seed-2" if run.seed == 1 else "seed-1"]


def test_one_step_that_cannot_begin_does_not_hinder_the_others(two_seeds):
    folder, order = two_seeds
    first, second = order.steps
    changed = Order({first: "another", second: order.steps[second]}, "token")
    one, two = do_order(folder, changed)
    assert "was changed while it ran" in one.reason
    assert (two.step, two.reason) == (second, "")


def test_what_cannot_be_trained_as_one_is_trained_by_itself(two_seeds, monkeypatch, capsys):
    monkeypatch.setattr(module, "train_as_one", lambda asked: 1 / 0)
    folder, order = two_seeds
    assert [outcome.reason for outcome in do_order(folder, order)] == ["", ""]
    assert "Each is trained by itself: ZeroDivisionError" in capsys.readouterr().err


def test_what_was_done_before_a_worker_was_lost_is_not_done_again(two_seeds, monkeypatch):
    folder, order = two_seeds
    first, second = order.steps
    before = do_order(folder, Order({first: order.steps[first]}, "lost"))
    assert do_order(folder, order)[0] == before[0]
    assert [Store(folder).record(name).state for name in (first, second)] == ["done", "done"]
