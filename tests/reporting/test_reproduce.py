"""What made a study is listed as it was recorded."""

import re

import pytest
from typer.testing import CliRunner

from fixtures.runs import altered
from fixtures.studies import Study, write_plant
from memloc.cli import app
from memloc.methods.result import Result
from memloc.reporting.page import how_made, render
from memloc.reporting.results import load_results
from memloc.reporting.sentences import summarise
from memloc.seeds import generator
from memloc.store import paths

TRAIN = "memloc train tiny-opt tiny-topic --examples 40"
LOCALISE = "memloc localise runs/tiny-topic/tiny-opt/seed-1 swapping --set swapping.normalise=true"


def write_about(folder, method, **about):
    found = Result.read(paths.result(folder, method))
    Result(method, found.tables, {**found.about, **about}).write(paths.result(folder, method))


@pytest.fixture
def folder(tmp_path):
    """Two runs of one command, of which one was localised by hand; one plant."""
    study = Study(methods=("swapping", "probing"), analyses=("centroids",), control=0)
    for seed in (1, 2):
        study.write_run(tmp_path / str(seed), "tiny-topic", "tiny-opt", seed, command=TRAIN)
    write_about(tmp_path / "1", "swapping", command=LOCALISE, settings={"normalise": True})
    write_about(tmp_path / "2", "swapping", settings={"normalise": False})
    plant = write_plant(
        tmp_path, study, ("tiny-topic", "tiny-opt", range(2), False), generator(1, "plant")
    )
    altered(plant, command="memloc control --model tiny-opt --task tiny-topic")
    return tmp_path


def test_recorded_commands_are_listed_once_runs_before_results_before_plants(folder):
    assert how_made(load_results(folder))["commands"] == [
        TRAIN,
        LOCALISE,
        "memloc control --model tiny-opt --task tiny-topic",
    ]


def test_what_a_library_made_has_no_command(results):
    assert how_made(results)["commands"] == []
    page = render(results, summarise(results))
    assert "No command was recorded" in page
    assert "commands make everything again" not in page


def test_the_page_lists_the_commands(folder):
    results = load_results(folder)
    html = render(results, summarise(results))
    assert TRAIN in html
    assert LOCALISE in html


def test_settings_of_methods_are_listed_once_for_all_runs_that_share_them(folder):
    made = how_made(load_results(folder))["settings"]
    groups = {(g["name"], tuple(g["values"])): g["runs"] for g in made}
    assert groups["swapping", (("swapping.normalise", "true"),)] == 1
    assert groups["swapping", (("swapping.normalise", "false"),)] == 1
    (runs,) = [n for (name, _), n in groups.items() if name == "demo"]
    assert runs == 2


def test_versions_are_those_that_wrote_the_runs(folder):
    (line,) = how_made(load_results(folder))["versions"]
    assert re.search(r"\bmemloc \d", line)


def test_the_words_of_a_training_are_recorded(tmp_path):
    words = ["train", "tiny-opt", "tiny-topic", "--depth", "1", "--examples", "48"]
    words += ["--checkpoints", "final", "--set", "finetune.epochs=1"]
    words += ["--out", str(tmp_path / "my runs")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    (line,) = how_made(load_results(tmp_path))["commands"]
    assert line.startswith("memloc train tiny-opt tiny-topic --depth 1 --examples 48 --checkpoints")
    assert line.endswith(f"--out '{tmp_path}/my runs'")


def test_the_file_of_a_study_is_shown_as_it_is(tmp_path):
    assert how_made(load_results(tmp_path))["study"] == ""
    text = "preset: demo\nmodels: [tiny-opt]\ntasks: [tiny-topic]\ncontrol: {nulls: all}\n"
    (tmp_path / paths.STUDY).write_text(text)
    assert how_made(load_results(tmp_path))["study"] == text
