"""Commands that make a study again: what they ask for is what the runs say they are."""

import shlex

import pytest
from memloc.training.run import describe_task
from typer.testing import CliRunner

from memloc.cli import app
from memloc.models.load import LoadOptions
from memloc.protocol import preset
from memloc.records import read_json, write_json
from memloc.reporting.reproduce import commands, study_file
from memloc.results import load_results
from study_support import Study, identity


class Asked(Exception):
    """Instead of the work: what it would have been."""


def asked_of(monkeypatch, place, line):
    """What a command asks the library function for, which is not called."""

    def instead(*given, **named):
        raise Asked(given, named)

    monkeypatch.setattr(place, instead)
    done = CliRunner().invoke(app, shlex.split(line)[1:])
    assert isinstance(done.exception, Asked), done.output
    return done.exception.args


def make_run(folder, **facts):
    """A run with its record changed; the results are its folder's."""
    study = Study(methods=("swapping", "probing"), analyses=("centroids",), control=0)
    run = study.write_run(folder / "run", "tiny-topic", "tiny-opt", 1)
    about = read_json(run.folder / "run.json")
    write_json(run.folder / "run.json", {**about, **facts})
    return load_results(folder)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run that `memloc train` has begun, with fewer layers, fewer examples and own settings."""
    folder = tmp_path_factory.mktemp("runs")
    words = "train tiny-opt tiny-topic --depth 3 --examples 48 --seed 2 --weights final"
    words += " --set finetune.epochs=1 --set finetune.learning_rate=2e-5 --set probes.seeds=[0,1]"
    done = CliRunner().invoke(app, [*shlex.split(words), "--out", str(folder)])
    assert done.exit_code == 0, done.output
    return folder


def test_a_training_is_asked_for_as_it_was(trained, monkeypatch):
    results = load_results(trained)
    (about,), (line, *_) = results.abouts, commands(results)
    (recipe, folder), _ = asked_of(monkeypatch, "memloc.training.recipe.train_run", line)
    assert folder == trained / results.runs["folder"].item()
    assert describe_task(recipe.task, recipe.noisy)["hash"] == about["task"]["hash"]
    assert (recipe.model, recipe.seed, recipe.options) == ("tiny-opt", 2, LoadOptions(depth=3))
    assert recipe.protocol.changes() == {
        "finetune.epochs": 1,
        "finetune.learning_rate": 2e-5,
        "probes.seeds": (0, 1),
    }
    assert recipe.protocol.preset == "demo"


def test_methods_and_analyses_are_those_that_are_there(tmp_path):
    train, localise, analyse = commands(make_run(tmp_path))
    place = f"{tmp_path}/tiny-topic/tiny-opt-depth-4/seed-1"
    assert train.startswith("memloc train tiny-opt tiny-topic --seed 1 --preset demo --depth 4")
    assert localise == f"memloc localise {place} probing swapping"
    assert analyse == f"memloc analyse {place} centroids"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("folder: /data/of mine", "tiny-topic --data-folder '/data/of mine'"),
        ("folder: /data, 40 of 99 training examples", "--data-folder /data --examples 40"),
        ("file: mine.csv", "--data mine.csv"),
    ],
    ids=["folder", "some of a folder", "file"],
)
def test_own_data_are_named(tmp_path, source, words):
    about = read_json(make_run(tmp_path).folder / "run" / "run.json")
    results = make_run(tmp_path / "again", task={**about["task"], "source": source})
    line = commands(results)[0]
    assert words in line
    assert ("# and the names of its columns" in line) == source.startswith("file")
    assert ("tiny-topic" in line.split(" --seed")[0]) != source.startswith("file")


@pytest.mark.parametrize("flag", ["remote_code", "any_format"])
def test_what_was_allowed_is_allowed_again(tmp_path, flag):
    line = commands(make_run(tmp_path, **{flag: True}))[0]
    assert f"--{flag.replace('_', '-')}" in line


def test_windows_that_were_asked_for_are_asked_for_again(tmp_path):
    from dataclasses import replace

    results = make_run(tmp_path)
    more = results.centroids.assign(
        variant=results.centroids["variant"].replace("top", "window 2-3")
    )
    assert commands(replace(results, centroids=more))[2].endswith("centroids --window 2-3")


def plant(folder, window, changes, tries, null=False):
    about = {**identity("tiny-opt", 1, 12), "changes": changes, "tries": tries}
    settings = preset("demo").replace(changes)
    about |= {"protocol": settings.model_dump(mode="json"), "is_large": False}
    kind = "null" if null else "window"
    write_json(
        folder / "control" / "topic" / f"{kind}-{window[0]}-{window[1]}" / "run.json",
        {
            **about,
            "control": {"window": list(window), "auxiliary": "tiny-entailment", "null": null},
            "task": {"name": "tiny-topic", "source": "embedded, 40 of 400 training examples"},
        },
    )


def test_control_is_asked_for_as_it_was(tmp_path, monkeypatch):
    made = {"finetune.learning_rate": 0.0014, "finetune.epochs": 60, "control.tries": 2}
    rates = [{"learning_rate": 0.0007}, {"learning_rate": 0.0014}]
    for window in ((1, 2), (6, 7), (11, 12)):
        plant(tmp_path, window, made, rates)
    plant(tmp_path, (6, 7), made, rates, null=True)
    (line,) = commands(load_results(tmp_path))
    (what, out), _ = asked_of(monkeypatch, "memloc.study.control.run_control", line)
    assert out == tmp_path
    assert (list(what.models), [len(task.train) for task in what.tasks]) == (["tiny-opt"], [40])
    assert what.windows == [range(2), range(5, 7), range(10, 12)]
    assert (what.nulls, what.seed) == ("middle", 1)
    # The rate and the epochs of plants follow from the control set-up's own settings.
    assert what.protocol.changes() == {"control.tries": 2}


def test_a_rate_of_ones_own_is_the_first_that_was_tried(tmp_path):
    made = {"control.learning_rate": None, "finetune.learning_rate": 0.004}
    plant(tmp_path, (1, 2), made, [{"learning_rate": 0.002}, {"learning_rate": 0.004}])
    (line,) = commands(load_results(tmp_path))
    assert "--set control.learning_rate=null --set finetune.learning_rate=0.002" in line


def test_a_study_is_made_again_from_its_file(tmp_path):
    Study(tasks=("tiny-topic",), seeds=(1,), methods=("swapping",), analyses=()).write(tmp_path)
    text = "preset: demo\nmodels: [tiny-opt]\ntasks: [tiny-topic]\ncontrol: {nulls: all}\n"
    (tmp_path / "study.yaml").write_text(text)
    results = load_results(tmp_path)
    whole, train, localise = commands(results)
    assert whole == f"memloc run {tmp_path}"
    assert train.startswith("memloc train tiny-bert tiny-topic")  # which the file does not name
    assert "tiny-bert" in localise
    assert study_file(results) == text


def test_a_file_that_cannot_be_read_makes_nothing(tmp_path):
    results = make_run(tmp_path)
    (tmp_path / "study.yaml").write_text("models: [")
    assert commands(results)[0].startswith("memloc train")
