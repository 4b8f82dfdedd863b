"""The commands for studies: what they print, and what they refuse in one line."""

import json

import pytest
from typer.testing import CliRunner

from fixtures.plans import RUN, finish_all
from memloc.cli import app
from memloc.reporting import page
from memloc.reporting.sentences import Summary
from memloc.store import paths
from memloc.study.execute import cores
from memloc.study.plan import open_plan
from memloc.study.records import Store
from memloc.study.step import do


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
    counts, running = run("status", folder).stdout.splitlines()
    assert counts.endswith("9 steps, 0 done, 9 missing.")
    assert running == "No process is running this study."
    assert json.loads(run("status", folder, "--json").stdout)["missing"] == 9


def test_status_names_what_failed(run, micro):
    plan = open_plan(micro())
    store, name = Store(plan.file.folder), f"train/{RUN}"
    store.fail(plan.steps[name], "no luck")
    assert f"FAILED {name}: no luck" in run("status", plan.file.folder).stdout
    for method in ("gradients", "probing", "swapping"):
        step = plan.steps[f"localise/{RUN}/{method}"]
        store.fail(step, "it did not memorise")
    first, second = run("status", plan.file.folder).stdout.splitlines()[-2:]
    assert first == f"FAILED {name}: no luck"
    assert second.startswith(f"FAILED localise/{RUN}/")
    assert second.endswith(" and 2 more: it did not memorise")


def test_bad_input_is_one_line(run, micro):
    folder = micro()
    assert "Did you mean" in refused(run("logs", folder, f"trian/{RUN}"))
    assert "has not been begun" in refused(run("logs", folder, f"train/{RUN}"))
    assert f"use 1 to {cores()}" in refused(run("run", folder, "--jobs", 1000))
    assert "No step matches --only 'bert'" in refused(run("run", folder, "--only", "bert"))
    assert "does not exist: `memloc init demo" in refused(run("plan", "nowhere"))
    assert not (folder / "steps").exists()


def test_the_report_is_written_while_no_other_process_may_run_the_study(run, micro, monkeypatch):
    folder = micro(changes={"report: false": "report: true"})
    finish_all(open_plan(folder))

    def write(study):
        assert (study / "steps" / "running.json").is_file()  # it is locked
        return page.Report(paths.page(study), Summary(("It is in layer 2.",), "", "", ()), ())

    monkeypatch.setattr(page, "write_report", write)
    shown = run("run", folder)
    assert shown.exit_code == 0
    assert shown.stderr == "The report is being written.\n"
    assert "It is in layer 2." in shown.stdout
    assert not (folder / "steps" / "running.json").exists()


OLD = "was made by memloc 0.2 or older, whose folders this version does not read"


def make_old(path):
    """As memloc 0.1 wrote it."""
    record = json.loads(path.read_text()) if path.is_file() else {}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**record, "format": 1}))


@pytest.mark.parametrize("command", ["status", "plan", "run"])
def test_a_study_of_memloc_0_1_is_refused_in_one_sentence(run, micro, command):
    plan = open_plan(micro())
    store = finish_all(plan)
    make_old(store.record_path(f"train/{RUN}"))
    measured = plan.file.folder / paths.CALIBRATION
    measured.unlink()
    line = refused(run(command, plan.file.folder))
    assert line.endswith(f"{OLD}: run what made it again, into another folder.")
    assert not measured.exists()  # that would have taken seconds


def test_a_run_of_memloc_0_1_in_a_study_is_refused_in_one_sentence(run, micro):
    folder = micro(changes={"report: false": "report: false\nruns: [old]"})
    make_old(folder / "old" / "run.json")
    for command in ("status", "plan", "run"):
        line = refused(run(command, folder))
        assert "runs[0]: " in line
        assert OLD in line


def test_a_run_of_memloc_0_1_where_one_is_to_be_trained_fails_in_one_sentence(micro):
    folder = micro()
    make_old(folder / RUN / "run.json")
    name = f"train/{RUN}"
    outcome = do(open_plan(folder).steps[name])
    assert OLD in outcome.reason
    assert "\n" not in outcome.reason


def test_settings_of_memloc_0_1_are_refused_with_their_line(run, micro):
    folder = micro(changes={"  probing.seeds: [0]": "  probes.seeds: [0]"})
    line = refused(run("plan", folder))
    assert "overrides.probes.seeds: " in line
    assert "`memloc protocol` lists all." in line
