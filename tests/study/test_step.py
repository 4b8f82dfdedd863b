"""One step in a process of its own: what it says when it goes well, fails, or is ended."""

import json
import signal
import subprocess
import sys

import pytest
import torch

from fixtures.plans import RUN
from memloc.errors import SettingsError
from memloc.study import step as module
from memloc.study.executors import (
    Order,
    Outcome,
    as_sent,
    read_outcome,
)
from memloc.study.plan import open_plan
from memloc.study.records import Store
from memloc.study.step import do_order

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
        return folder, do_order(folder, Order(TRAIN, identity, "token"))

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
    assert outcome.reason == f"{RUN}/run.json is not there."
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
    order, said = Order("x", "", ""), Outcome("x", "no", 1.0, 2.0)
    assert read_outcome(order, as_sent(said), 0) == said

    def reason(status):
        outcome = read_outcome(order, "", status)
        assert outcome.step == "x"
        return outcome.reason

    assert "by SIGKILL (perhaps out of memory)" in reason(-signal.SIGKILL)
    assert reason(-signal.SIGTERM) == "its process was ended by SIGTERM"
    assert "ended with status 3 and said nothing" in reason(3)


def test_a_fresh_process_tells_its_outcome_on_standard_output(micro):
    order = Order("no such step", "", "token")
    done = subprocess.run(
        [sys.executable, "-m", "memloc.study.step", str(micro()), as_sent(order)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "was changed while it ran" in json.loads(done.stdout)["reason"]
    assert done.stderr.startswith("memloc: ")


def test_what_was_done_before_a_worker_was_lost_is_not_done_again(ordered):
    folder, before = ordered(make_outputs)
    identity = open_plan(folder).steps[TRAIN].identity
    assert do_order(folder, Order(TRAIN, identity, "another")) == before
