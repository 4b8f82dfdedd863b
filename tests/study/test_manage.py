"""Studies from end to end: examples are written, plans opened, states and logs read."""

import pytest

from memloc.errors import MemlocError, SettingsError, StoreError
from memloc.progress import telling
from memloc.study import manage
from memloc.study.execute import cores
from memloc.study.manage import (
    EXAMPLES,
    Options,
    checked_jobs,
    init_study,
    open_plan,
    read_log,
    run_study,
    study_status,
)
from memloc.study.records import Store
from planning_support import RUN, finish_all, write_rows


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_written_once_and_never_over_another_one(tmp_path, name):
    path = init_study(name, tmp_path)
    assert init_study(name, tmp_path) == path
    path.write_text(path.read_text() + "seeds: [7]\n")
    with pytest.raises(StoreError, match="exists and describes another study"):
        init_study(name, tmp_path)


def test_jobs_are_at_most_one_for_each_core():
    assert checked_jobs(None) == cores()
    assert checked_jobs(1) == 1
    for jobs in (0, cores() + 1):
        with pytest.raises(SettingsError, match=f"--jobs is {jobs}; .*: use 1 to {cores()}"):
            checked_jobs(jobs)


def test_status_counts_what_is_done_and_what_it_took(micro):
    plan = open_plan(micro())
    finish_all(plan)
    status = study_status(plan.file.folder)
    assert (status["steps"], status["done"], status["missing"]) == (9, 9, 0)
    assert (status["seconds"], status["memory"], status["running"]) == (9.0, 1e6, None)


def test_a_log_is_what_a_step_has_said(micro):
    folder, step = micro(), f"train/{RUN}"
    with pytest.raises(StoreError, match="has not been begun"):
        read_log(folder, step)
    path = Store(folder).log_path(step)
    path.parent.mkdir(parents=True)
    path.write_text("epoch 1\n")
    assert read_log(folder, step) == "epoch 1\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Options(on="moon"), "No place to run is called 'moon'"),
        (Options(address="auto"), "--address is for --on ray"),
        (Options(only=["bert"]), "No step fits --only 'bert'"),
    ],
)
def test_options_that_mean_nothing_are_refused_before_anything_runs(
    micro, monkeypatch, options, message
):
    monkeypatch.setattr(manage, "estimate_study", lambda *_: None)
    folder = micro()
    with pytest.raises(MemlocError, match=message):
        run_study(folder, options, lambda *_: None)
    assert not (folder / "steps").exists()


def test_what_is_noisy_is_said_once_a_task_when_a_study_starts(micro, monkeypatch):
    folder = micro(
        changes={
            "tiny-sentiment]": "tiny-sentiment, mine]\ndata: {mine: {file: mine.csv, flag: wrong}}",
            'windows: ["1"]': 'tasks: [tiny-sentiment], windows: ["1"]',
            "examples: 30\n": "",
        }
    )
    write_rows(folder)
    monkeypatch.setattr(manage, "estimate_study", lambda *_: None)
    monkeypatch.setattr(manage.Execution, "run", lambda *_: None)
    said = []
    with telling(said.append):
        run_study(folder, Options(), lambda *_: None)
        run_study(folder, Options(only=["train mine"]), lambda *_: None)
    assert len(said) == 3
    assert said[0].startswith("tiny-sentiment: ")
    assert said[0].endswith("labels flipped by memloc (a share of 0.15 of each class).")
    assert said[1] == said[2]
    assert said[1].startswith("mine: ")
    assert said[1].endswith("noisy of 48 examples, column 'wrong' read as flags.")
    finish_all(open_plan(folder))
    with telling(said.append):
        run_study(folder, Options(), lambda *_: None)
    assert len(said) == 3  # nothing is left to do
