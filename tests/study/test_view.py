"""What people are told where there is no terminal: a line at the start, and a line a step."""

import io
import os
import socket
import time
from types import SimpleNamespace

import pytest
from rich.console import Console

from fixtures.plans import RUN, finish_all, make_step
from memloc.errors import StoreError
from memloc.store.records import write_json
from memloc.study.estimate import Estimate
from memloc.study.execute import Execution
from memloc.study.plan import open_plan
from memloc.study.records import State, StepEnd, Store
from memloc.study.view import (
    live_table,
    read_log,
    shown,
    status_sentences,
    study_status,
)


def make_execution(names):
    seconds = dict.fromkeys(names, 120.0)
    estimate = Estimate(seconds, seconds, seconds, dict.fromkeys(names, 1))
    executor = SimpleNamespace(cores=2, jobs=2)
    states = {n: State("missing") for n in names}
    return Execution(None, executor, estimate, set(names), states)


def test_the_first_line_says_how_much_there_is_to_do(capsys):
    execution = make_execution(["one", "two", "three", "four"])
    with shown() as view:
        view(execution, None)  # nothing has begun
        execution.submitted = {name: make_step(f"train/{name}") for name in ("one", "two")}
        execution.running |= {"one": time.time(), "two": time.time()}
        view(execution, None)
        view(execution, None)
        execution.running.pop("one")
        execution.submitted.pop("one")
        execution.states["one"] = State("done")
        view(execution, StepEnd(step="one", seconds=119.0, peak_mb=1.0))
        view(execution, None)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "0 of 4 steps done, 2 running, about 4.0 min left",
        "done  one  119.0 s  (1 of 4 steps done, 1 running, about 3.0 min left)",
    ]


def test_a_terminal_shows_one_table_with_what_runs_and_the_time_left():
    console = Console(width=80, file=io.StringIO())
    console.print(live_table(make_execution(["train/a"])))  # the first line is not folded
    assert console.file.getvalue().startswith("0 of 1 step done, 0 running, about 2.0 min left ")
    execution = make_execution(["train/a", "train/b", "localise/a/swapping", "plant/a"])
    execution.submitted["train/b"] = make_step("train/b")
    execution.running["train/b"] = time.time() - 30
    execution.states["train/a"] = State("done")
    execution.states["localise/a/swapping"] = State("failed", "no luck")
    console = Console(width=80, file=io.StringIO())
    console.print(live_table(execution))
    shown = console.file.getvalue().splitlines()
    assert shown[0].startswith("1 of 4 steps done, 1 running, 1 failed, about 2.0 min left")
    assert [line.split() for line in shown[1:]] == [
        ["steps", "state", "time"],
        ["train", "1", "of", "2", "done"],
        ["train/b", "running", "30", "s", "of", "about", "2.0", "min"],
        ["localise", "0", "of", "1", "done"],
        ["localise/a/swapping", "FAILED:", "no", "luck"],
        ["plant", "0", "of", "1", "done"],
    ]


def test_steps_in_the_queue_of_a_cluster_do_not_count_as_running(capsys):
    execution = make_execution(["train/a", "train/b", "train/c"])
    orders = {name: make_step(name) for name in execution.chosen}
    execution.submitted = dict(orders)
    execution.executor.is_at_work = lambda order: order is orders["train/b"]
    execution._look()
    assert list(execution.running) == ["train/b"]
    with shown() as view:
        view(execution, None)
    assert "1 running, 2 in the cluster's queue" in capsys.readouterr().err
    facts = execution._facts()
    assert (list(facts["running"]), facts["queued"]) == (["train/b"], 2)


def test_a_log_says_nothing_twice_however_long_a_step_takes(capsys, monkeypatch):
    execution = make_execution(["one"])
    execution.submitted["one"] = make_step()
    execution.running["one"] = time.time()
    with shown() as view:
        for hour in range(5):
            monkeypatch.setattr(time, "monotonic", lambda now=3600 * hour: now)
            view(execution, None)
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_status_counts_what_is_done_and_what_it_took(micro):
    plan = open_plan(micro())
    finish_all(plan)
    status = study_status(plan.file.folder)
    assert (status["steps"], status["done"], status["missing"]) == (9, 9, 0)
    assert (status["seconds"], status["memory"], status["running"]) == (9.0, 1e6, None)


@pytest.mark.parametrize(("host", "unsure"), [("elsewhere", True), (socket.gethostname(), False)])
def test_status_says_that_it_cannot_see_a_process_of_another_machine(micro, host, unsure):
    folder = micro()
    about = {"pid": os.getppid(), "host": host, "beat": 0.0}
    write_json(folder / "steps" / "running.json", about)
    said = "\n".join(status_sentences(study_status(folder)))
    assert f"on {host} runs it" in said
    assert ("cannot see whether that process is still alive" in said) == unsure


def test_a_log_is_what_a_step_has_said(micro):
    folder, step = micro(), f"train/{RUN}"
    with pytest.raises(StoreError, match="has not been begun"):
        read_log(folder, step)
    path = Store(folder).log_path(step)
    path.parent.mkdir(parents=True)
    path.write_text("epoch 1\n")
    assert read_log(folder, step) == "epoch 1\n"
