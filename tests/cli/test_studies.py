"""`memloc control`: a study that plants, from one command."""

import json

import pytest

from bad_input.machine import write_calibration
from fixtures.commands import printed, refused
from fixtures.studies import Study
from fixtures.tasks import TEXTS, make_texts
from memloc.methods.registry import find_method
from memloc.store.records import read_json
from memloc.study.plan import open_plan

SMALL = (
    *("control", "--model=tiny-opt", "--task=tiny-politeness", "--depth=4", "--examples=40"),
    *("--window=3-4", "--window=4-4", "--method=swapping", "--nulls=none", "--device=cpu"),
    *("--set=control.auxiliary_examples=10", "--set=control.tries=1", "--set=control.epochs=2"),
)
EASY = (
    *("--set=control.accuracy_above=0.1", "--set=verdict.noisy_at_least=0.01"),
    *("--set=finetune.near_ceiling=0.1", "--set=control.epochs=20"),
)
"""With which one memorised label is enough."""


@pytest.mark.slow
def test_control_writes_a_study_and_scores_overlapping_windows(run, tmp_path):
    shown = run(*SMALL, *EASY, "--seed=3")
    table = printed(shown)
    noise = "tiny-politeness: 6 noisy of 40 examples, labels flipped by memloc (a share of 0.15 "
    assert shown.stderr.count(noise) == 1
    lines = table.splitlines()
    assert lines[0] == "Answers for planted runs:"
    assert lines[2].split()[:3] == ["swapping", "2", "cannot"]  # too few noisy examples to judge
    assert lines[4] == "Planted layers found:"
    assert lines[5].split() == ["method", "k", "accuracy", "chance", *MORE]
    assert [line.split()[:2] for line in lines[6:8]] == [["swapping", "1"], ["swapping", "2"]]
    assert "control: `memloc report control` shows all of it." in table
    written = (tmp_path / "control" / "study.yaml").read_text(encoding="utf-8")
    assert "preset: demo" in written
    assert "control.seed: 3" in written
    assert "&" not in written  # people read it
    runs = sorted(tmp_path.rglob("run.json"))
    assert [path.parent.name for path in runs] == ["window-3-4", "window-4-4"]
    for path in runs:
        about = read_json(path.parent / "results" / "swapping" / "about.json")["about"]
        # The study is there: this is all that is needed to make them again.
        assert read_json(path)["command"] == about["command"] == "memloc run control"

    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")}
    again = json.loads(printed(run(*SMALL, *EASY, "--seed=3", "--json")))
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert [(row["first"], row["last"]) for row in again["plants"]] == [(3, 4), (4, 4)]
    assert {row["seed"] for row in again["plants"]} == {3}
    assert [row["k"] for row in again["method"]] == [1, 2, 1, 2]  # its own and the best baseline's
    assert [row["plants"] for row in again["answers"]] == [2]
    assert {row["word"] for row in again["control_answers"]} == {"cannot tell"}

    # Comments in the file are the reader's; other settings are another study.
    (tmp_path / "control" / "study.yaml").write_text(f"# mine\n{written}", encoding="utf-8")
    printed(run(*SMALL, *EASY, "--seed=3"))
    assert "describes another study" in refused(run(*SMALL, *EASY))


MORE = ("mrr", "auroc", "planted", "mass", "centre", "error", "plants")


@pytest.mark.slow
def test_where_no_plant_memorised_the_reasons_are_told_and_the_code_is_1(run, tmp_path):
    write_calibration(tmp_path / "control")
    shown = run(*SMALL)
    assert shown.exit_code == 1
    lines = shown.stdout.splitlines()
    assert len([line for line in lines if line.startswith("NOT USED: tiny-opt on tiny-pol")]) == 2
    assert "No plant can be used, so nothing can be said about the methods." in lines
    assert "accuracy@" not in shown.stdout
    record = run(*SMALL, "--json")
    assert record.exit_code == 1
    assert [row["used"] for row in json.loads(record.stdout)["plants"]] == [False, False]


@pytest.mark.slow
def test_texts_of_a_file_are_planted_and_methods_about_labels_do_not_look(run, tmp_path):
    make_texts().to_csv(tmp_path / "lines.csv", index=False)
    write_calibration(tmp_path / "control")
    columns = [f"--{name}={column}" for name, column in TEXTS.items()]
    sets = ("control.tries=1", "control.epochs=1", "verdict.noisy_at_least=1e-9")
    words = (*columns, "--depth=2", "--window=1", "--nulls=none", "--device=cpu")
    shown = run("control", "--model=tiny-opt", "--data=lines.csv", *words, *_set(sets))
    assert "NOT USED: tiny-opt on lines" in shown.stdout
    (step,) = open_plan(tmp_path / "control").steps.values()
    assert (step.spec.task.data.file, step.spec.plant.auxiliary) == (
        str(tmp_path / "lines.csv"),
        None,
    )
    looking = {name for name in step.methods if not find_method(name).is_trivial}
    assert looking == {"shares", "swapping", "retraining", "gradients", "probing"}


def _set(settings):
    return [f"--set={each}" for each in settings]


def test_control_needs_a_task_or_a_file(run):
    assert "a task with --task, or a file with --data" in refused(
        run("control", "--model=tiny-opt")
    )


@pytest.mark.slow
def test_plants_that_failed_say_why(run, tmp_path):
    write_calibration(tmp_path / "control")
    (tmp_path / "control" / "control").write_text("in the way", encoding="utf-8")
    shown = run(*SMALL)
    assert shown.exit_code == 1
    for window in ("3-4", "4-4"):
        failed = f"FAILED plant/tiny-politeness/tiny-opt-depth-4/seed-1/{window}: Cannot write "
        assert any(line.startswith(failed) for line in shown.stderr.splitlines())
    assert "`memloc run control --retry` tries again." in shown.stderr
    assert "Traceback" not in shown.stderr


def test_report_opens_the_page_if_asked(run, tmp_path, monkeypatch):
    opened, codes = [], [0, 1]
    monkeypatch.setattr("typer.launch", lambda url: opened.append(url) or codes.pop(0))
    one = {"tasks": ("tiny-topic",), "models": ("tiny-opt",), "seeds": (1,), "control": 0}
    Study(**one, methods=("swapping",), analyses=()).write(tmp_path / "runs")
    printed(run("report", "runs"))
    assert not opened
    for said in ("", "No browser could be started"):
        shown = run("report", "runs", "--open")
        assert printed(shown)
        assert said in shown.stderr
    assert opened == [(tmp_path / "runs/report/index.html").as_uri()] * 2
