"""The commands for studies: what they print, and what they refuse in one line."""

import json

import pytest
from typer.testing import CliRunner

from memloc.cli import app
from memloc.study.execute import cores
from memloc.study.manage import open_plan
from memloc.study.records import Store

RUN = "tiny-sentiment/tiny-opt-depth-2/seed-1"


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


def refused(result):
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    return line


def test_init_writes_a_study_and_says_what_comes_next(run, tmp_path):
    shown = run("init", "demo")
    assert shown.stdout == "demo/study.yaml is written; next: memloc plan demo\n"
    assert len(open_plan(tmp_path / "demo").steps) > 20


def test_an_unknown_example_is_refused(run):
    assert "Did you mean 'paper'?" in refused(run("init", "papper"))


def test_status_of_a_study_that_was_never_run(run, micro):
    folder = micro()
    assert run("status", folder).stdout.endswith(
        "9 steps, 0 done, 9 missing.\nNo process is running this study.\n"
    )
    assert json.loads(run("status", folder, "--json").stdout)["missing"] == 9


def test_status_names_what_failed(run, micro):
    plan = open_plan(micro())
    name = f"train/{RUN}"
    Store(plan.file.folder).fail(plan.steps[name], plan.identities[name], "no luck")
    assert f"FAILED {name}: no luck" in run("status", plan.file.folder).stdout


def test_bad_input_is_one_line(run, micro):
    folder = micro()
    assert "Did you mean" in refused(run("logs", folder, f"trian/{RUN}"))
    assert "has not been begun" in refused(run("logs", folder, f"train/{RUN}"))
    assert f"use 1 to {cores()}" in refused(run("run", folder, "--jobs", 1000))
    assert "No step fits --only 'bert'" in refused(run("run", folder, "--only", "bert"))
    assert "does not exist: `memloc init demo" in refused(run("plan", "nowhere"))
    assert not (folder / "steps").exists()
