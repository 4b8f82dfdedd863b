"""`memloc localise` and `memloc analyse` on a run."""

import json
import shutil

import pytest

from fixtures.commands import printed, refused
from fixtures.tasks import QUICK
from memloc.store.records import read_json

FEW = [f"--set={name}={v}" for name, v in QUICK.items() if name.startswith("probing.")]


@pytest.fixture(scope="module")
def folder(memorised_folder, tmp_path_factory):
    """A run that memorised, with all weights; what is found stays there for the next test."""
    return shutil.copytree(memorised_folder, tmp_path_factory.mktemp("runs") / "run")


def test_localise_prints_an_answer_a_bar_a_layer_where_the_files_are_and_nothing_else(run, folder):
    words = ("localise", folder, "gradients", "shares", "swapping", "--device=cpu")
    lines = printed(run(*words)).splitlines()
    trusted = json.loads(printed(run(*words, "--json")))["methods"]["shares"]
    assert lines[0].startswith(trusted["answer"]["sentence"].removesuffix("."))
    assert trusted["answer"]["notes"]  # which are for the asking
    assert lines[1:3] == ["", "shares, weight of each layer"]
    assert [line.split()[0] for line in lines[3:6]] == ["1", "2", "3"]
    for line, weight in zip(lines[3:6], trusted["weights"], strict=True):
        assert f" {weight:.3f}  [" in line  # and its interval
    assert lines[6:] == ["", f"{folder}/results: gradients, shares, swapping"]


def test_details_begin_with_every_answer_the_most_trusted_one_first(run, folder):
    words = ("localise", folder, "gradients", "swapping", "shares", "--device=cpu")
    shown = printed(run(*words, "--details"))
    lines = shown.splitlines()
    answers = [line for line in lines if "Cannot tell:" in line]
    assert lines[:3] == answers
    assert [line.split(":")[0] for line in answers] == ["shares", "swapping", "gradients"]
    found = json.loads(printed(run(*words, "--json")))["methods"]
    for line, method in zip(answers, ("shares", "swapping", "gradients"), strict=True):
        answer = found[method]["answer"]
        assert line.startswith(f"{method}: {answer['sentence']}")
        assert answer["word"] == "cannot tell"
    assert 0 <= found["swapping"]["answer"]["undone"]["p"] <= 1
    notes = [line for line in lines if line.startswith("Note: ")]
    assert notes == [f"Note: {note}" for note in found["shares"]["answer"]["notes"]]  # each once
    assert shown.count("weight of each layer") == 3
    assert "gradients: the centre of gravity is layer" in shown


def test_analyse_prints_a_sentence_for_each_analysis_and_where_the_files_are(run, folder):
    shown = printed(run("analyse", folder, "centroids", "--device=cpu"))
    assert shown.splitlines()[0] == "centroids"
    assert shown.splitlines()[-1] == f"{folder}/results: centroids"


def made(folder):
    """When each result was written."""
    paths = folder.glob("results/*/about.json")
    return {path.parent.name: path.stat().st_mtime_ns for path in paths}


def test_a_setting_makes_its_own_method_anew_and_no_other(run, folder):
    both = ("localise", folder, "gradients", "probing", *FEW, "--device=cpu", "--json")
    first = json.loads(printed(run(*both)))["methods"]
    before = made(folder)
    shown = run(*both, "--set=gradients.norm=L2")
    found = json.loads(printed(shown))
    assert found["reused"] == ["probing"]
    assert found["methods"]["gradients"]["about"]["settings"]["norm"] == "L2"
    assert found["methods"]["gradients"]["weights"] != first["gradients"]["weights"]
    assert found["methods"]["probing"] == first["probing"]
    changed = {name for name, when in made(folder).items() if before.get(name) != when}
    assert changed == {"gradients"}
    about = read_json(folder / "results" / "gradients" / "about.json")["about"]
    assert about["command"].endswith("--set=gradients.norm=L2")
    assert (
        json.loads(printed(run(*both)))["methods"]["gradients"]["weights"]
        == (first["gradients"]["weights"])
    )


@pytest.mark.parametrize(
    "change", ["finetune.epochs=3", "noise.rate=0.3", "text.max_tokens=64", "preset=demo"]
)
@pytest.mark.parametrize("words", [("localise", "gradients"), ("analyse", "centroids")])
def test_a_setting_that_made_the_weights_is_refused(run, folder, change, words):
    command, method = words
    line = refused(run(command, folder, method, f"--set={change}"))
    assert f"{change.partition('=')[0]} cannot be changed for weights that are there" in line


@pytest.mark.parametrize(
    ("words", "change"),
    [
        (("localise", "swapping"), "gradients.norm=L2"),
        (("analyse", "centroids"), "generalisation.models=3"),
    ],
)
def test_a_setting_of_another_method_is_refused(run, folder, words, change):
    command, method = words
    line = refused(run(command, folder, method, f"--set={change}"))
    assert f"{change.partition('=')[0]} decides nothing for {method}: leave it out" in line


def test_windows_of_centroids_are_a_setting(run, folder):
    shown = run("analyse", folder, "centroids", "--set=centroids.windows=[2-3]", "--device=cpu")
    printed(shown)
    about = read_json(folder / "results" / "centroids" / "about.json")["about"]
    assert about["settings"]["windows"] == ["2-3"]
    line = refused(run("analyse", folder, "centroids", "--set=centroids.windows=[3-4]"))
    assert "Window 3-4 is outside the model, which has layers 1-3." in line
