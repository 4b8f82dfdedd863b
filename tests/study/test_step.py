"""One step in a process of its own: what it says when it goes well, fails, or is ended."""

import json
import os
import signal
import sys

import pytest
import torch

from fixtures.forked import ended, forked
from fixtures.plans import RUN, make_step
from memloc.errors import SettingsError
from memloc.run.folder import Run
from memloc.study import step as module
from memloc.study.executors import Child
from memloc.study.plan import open_plan
from memloc.study.records import StepEnd, Store
from memloc.study.step import do

TRAIN = f"train/{RUN}"


@pytest.fixture
def ordered(micro, monkeypatch):
    """Do the training of a micro study, with something else in its place."""

    def run(action):
        folder = micro()
        step = step_of(folder, "token")
        monkeypatch.setattr(module, "make_run", lambda *_, **__: action(folder, step))
        monkeypatch.setattr(module, "_watch", lambda *_: None)
        monkeypatch.setattr(module, "limit_threads", lambda _: None)
        return folder, do(step)

    return run


def step_of(folder, token):
    return open_plan(folder).steps[TRAIN].model_copy(update={"token": token})


def make_outputs(folder, step):
    for path in step.outputs:
        (folder / path).mkdir(parents=True)


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
    folder, outcome = ordered(lambda folder, step: None)
    assert outcome.reason == f"{RUN}/run.json is not there."
    assert Store(folder).record(TRAIN).state == "begun"


def test_a_refusal_is_a_sentence_and_anything_else_has_a_trace(ordered, capsys):
    def refuse(folder, step):
        raise SettingsError("No.")

    assert ordered(refuse)[1].reason == "No."
    assert "Traceback" not in capsys.readouterr().err
    assert ordered(lambda folder, step: 1 / 0)[1].reason == "ZeroDivisionError: division by zero"
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("name", [f"localise/{RUN}/retraining", f"plant/{RUN}/1-1"])
def test_a_step_is_the_same_after_it_was_sent(micro, name):
    step = open_plan(micro()).steps[name]
    read = type(step).model_validate_json(step.model_dump_json())
    assert (read.spec, read.identity) == (step.spec, step.identity)
    assert read.methods_with_settings() == step.methods_with_settings()
    assert hash(read.spec) == hash(step.spec)


def test_a_process_plans_nothing(micro, monkeypatch):
    """What a step makes is what it was handed, also if the study's file is gone."""
    folder = micro()
    step = step_of(folder, "token")
    (folder / "study.yaml").unlink()
    assert do(step).reason == ""
    assert Run.open(folder / RUN).spec == step.spec


def test_how_a_process_ended_is_its_outcome():
    said = StepEnd(step="x", reason="no", seconds=1.0, peak_mb=2.0)

    def outcome_of(text, status):
        read, write = os.pipe()
        os.write(write, text.encode())
        os.close(write)
        return Child("localise/x", 1, 0, read, lambda: status).end()

    assert outcome_of(said.model_dump_json(), 0) == said

    def reason(status):
        outcome = outcome_of("", status)
        assert outcome.step == "localise/x"
        return outcome.reason

    assert "by SIGKILL (perhaps out of memory)" in reason(-signal.SIGKILL)
    assert reason(-signal.SIGTERM) == "its process was ended by SIGTERM"
    assert "ended with status 3 and said nothing" in reason(3)


def test_a_process_tells_its_outcome_on_standard_output(micro, tmp_path, monkeypatch):
    """As a copy of this one, which need not load torch; fresh ones are in test_ray.py."""
    monkeypatch.setattr(sys, "argv", ["", make_step(home=str(micro())).model_dump_json()])
    log, told = tmp_path / "log", tmp_path / "told"

    def work():
        os.dup2(os.open(told, os.O_WRONLY | os.O_CREAT), 1)
        module.main()

    assert ended(forked(work, log)) == 0
    assert "is not a run" in json.loads(told.read_text())["reason"]
    assert log.read_text().startswith("memloc: ")


def test_what_was_done_before_a_worker_was_lost_is_not_done_again(ordered):
    folder, before = ordered(make_outputs)
    assert do(step_of(folder, "another")) == before
