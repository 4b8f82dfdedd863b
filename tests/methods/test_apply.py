"""Runs and anybody's checkpoints through all methods, by library and by command line."""

import csv
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import memloc
from memloc.cli import app
from memloc.errors import DataError, MemlocError, ModelError, StoreError, TrainingError
from memloc.localise.base import check_pair, localiser, localisers
from memloc.localise.localise import METHODS, localise_checkpoints, localise_run
from memloc.localise.scores import LayerScores
from memloc.localise.subjects import Weights, checkpoint_subject, run_subject
from memloc.train.training import Recipe, train_run
from subject_support import make_classifier
from support import PAPER_FAMILIES
from tasks_support import fast_protocol, make_task


@pytest.fixture(scope="module")
def data_file(memorised_run, tmp_path_factory):
    """The run's training data as a person would have them."""
    task, noisy = memorised_run.data()
    path = tmp_path_factory.mktemp("data") / "train.csv"
    names = task.label_names
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label", "original", "flag"])
        for (text,), a, o in zip(task.train.parts, noisy.assigned, noisy.original, strict=True):
            writer.writerow([text, names[a], names[o], "true" if a != o else "false"])
    return path


@pytest.fixture(scope="module")
def weights(memorised_run):
    places = {n: str(memorised_run.path(n)) for n in ("final", "reference", "memorised", "frozen")}
    return Weights(**places, pretrained=memorised_run.about["model"])


def test_all_four_methods_score_every_layer_of_a_run(memorised_run):
    found = localise_run(memorised_run.folder)
    assert tuple(found.scores) == METHODS
    assert not found.skipped
    for method, scores in found.scores.items():
        assert scores.method == method
        assert scores.weights.shape == (3,)
        assert np.isfinite(scores.weights).all()
        assert LayerScores.read(found.folder / f"{method}.parquet").about == scores.about
        assert scores.about["final_noisy_accuracy"] >= 0.95
        assert scores.about["forced"] is False


def test_what_is_there_is_not_computed_again(memorised_run, monkeypatch):
    first = localise_run(memorised_run.folder, ["swapping"])
    monkeypatch.setattr("memloc.localise.localise.score_layers", lambda *_: pytest.fail("again"))
    again = localise_run(memorised_run.folder, ["swapping"])
    assert again.scores["swapping"].to_table().equals(first.scores["swapping"].to_table())


def test_anybodys_checkpoints_give_the_same_as_the_run(memorised_run, weights, data_file, tmp_path):
    mine = localise_run(memorised_run.folder, ["swapping"]).scores["swapping"]
    for way in ("original", "flag"):
        theirs = localise_checkpoints(
            weights, data_file, {way: way}, out=tmp_path / way, methods=["swapping"]
        ).scores["swapping"]
        assert np.array_equal(theirs.outcomes.noisy_wrong, mine.outcomes.noisy_wrong)
        assert np.array_equal(theirs.weights, mine.weights)


def test_methods_without_their_weights_say_which(weights, data_file, tmp_path):
    only = Weights(weights.final, weights.reference)
    found = localise_checkpoints(only, data_file, {"flag": "flag"}, out=tmp_path)
    assert list(found.scores) == ["swapping"]
    assert found.skipped == {
        "retraining": "needs pretrained weights",
        "gradients": "needs memorised and frozen weights",
        "probing": "needs frozen weights",
    }
    with pytest.raises(StoreError, match=r"no frozen weights.*--frozen"):
        localise_checkpoints(only, data_file, {"flag": "flag"}, out=tmp_path, methods=["probing"])
    with pytest.raises(StoreError, match="No method can run"):
        localise_checkpoints(Weights(weights.final), data_file, {"flag": "flag"}, out=tmp_path)


@pytest.mark.parametrize("family", PAPER_FAMILIES)
def test_swapping_all_layers_and_the_rest_gives_the_reference(family, tiny_model, tmp_path):
    model = str(tiny_model(family, depth=2))
    recipe = Recipe(model, make_task(), 1, fast_protocol(), device="cpu")
    run = train_run(recipe, tmp_path / "run", ["final", "reference"])
    subject = run_subject(run, "cpu")
    final, reference = subject.load("final"), subject.load("reference")
    final.model.load_state_dict(reference.model.state_dict())
    from memloc.train.evaluate import predict

    encoded = subject.encode(final)
    assert np.array_equal(predict(final.stack, encoded), predict(reference.stack, encoded))


def test_a_run_that_did_not_memorise_is_refused_and_marked_when_forced(tiny_model, tmp_path):
    model = str(tiny_model("bert", depth=2))
    recipe = Recipe(model, make_task(), 1, fast_protocol(finetune__epochs=1), device="cpu")
    run = train_run(recipe, tmp_path / "run", ["final", "reference"])
    with pytest.raises(TrainingError, match="not memorised"):
        localise_run(run.folder, ["swapping"])
    swapped = localise_run(run.folder, ["swapping"], force=True).scores["swapping"]
    assert swapped.about["forced"] is True
    assert swapped.about["final_noisy_accuracy"] < 0.95


def test_checkpoints_that_did_not_memorise_are_refused(weights, data_file, tmp_path):
    swapped = Weights(weights.reference, weights.final)
    with pytest.raises(TrainingError, match=r"predict [\d.]+% of the noisy labels"):
        localise_checkpoints(swapped, data_file, {"flag": "flag"}, out=tmp_path)


def test_unequal_checkpoints_are_refused(weights, data_file, tiny_model, tmp_path):
    def other(**changes):
        from memloc.models.load import load_model

        loaded = load_model(
            str(tiny_model(changes["family"], depth=changes["depth"])), changes["labels"]
        )
        folder = tmp_path / "other"
        loaded.model.save_pretrained(folder)
        loaded.tokenizer.save_pretrained(folder)
        return str(folder)

    two = ["label 0", "label 1"]
    for changes, sentence in (
        ({"family": "opt", "depth": 2, "labels": two}, "depth 3.*2"),
        ({"family": "opt", "depth": 3, "labels": [*two, "c"]}, "num_labels 2.*3"),
        ({"family": "bert", "depth": 3, "labels": two}, "vocab_size|model_type"),
    ):
        pair = Weights(weights.final, other(**changes))
        with pytest.raises(ModelError, match=sentence):
            localise_checkpoints(pair, data_file, {"flag": "flag"}, out=tmp_path / "out")


@pytest.fixture
def renamed(weights, tmp_path):
    """`renamed("reference", names)`: the checkpoints, of which one calls its labels otherwise."""

    def make(kind, names):
        folder = shutil.copytree(getattr(weights, kind), tmp_path / kind)
        config = json.loads((folder / "config.json").read_text())
        config["id2label"] = dict(enumerate(names))
        config["label2id"] = {name: i for i, name in enumerate(names)}
        (folder / "config.json").write_text(json.dumps(config))
        return replace(weights, **{kind: str(folder)})

    return make


@pytest.mark.parametrize(
    ("kind", "method"),
    [("reference", "swapping"), ("memorised", "gradients"), ("frozen", "probing")],
)
@pytest.mark.parametrize(
    ("names", "way_out"),
    [
        (("label 1", "label 0"), "train both with the labels in one order"),
        (("negative", "positive"), "if these mean the same.*`id2label`"),
    ],
)
def test_other_labels_or_another_order_are_refused(
    renamed, data_file, tmp_path, kind, method, names, way_out
):
    sentence = f"Label 0 is 'label 0' for the final weights and '{names[0]}' for the {kind} ones"
    arguments = {"out": tmp_path / "out", "methods": [method]}
    with pytest.raises(ModelError, match=f"{sentence}: {way_out}"):
        localise_checkpoints(renamed(kind, names), data_file, {"noisy": "flag"}, **arguments)


def test_labels_without_names_are_not_compared(renamed, weights, data_file, tmp_path):
    unnamed = renamed("reference", ("LABEL_0", "LABEL_1"))
    found, expected = (
        localise_checkpoints(
            given, data_file, {"noisy": "flag"}, out=tmp_path / out, methods=["swapping"]
        ).scores["swapping"]
        for given, out in ((unnamed, "unnamed"), (weights, "named"))
    )
    assert np.array_equal(found.weights, expected.weights)


def test_a_pair_with_labels_in_another_order_is_refused():
    final, other = make_classifier(), make_classifier(seed=1)
    check_pair(final, other, "reference")
    final.model.config.id2label = {0: "no", 1: "maybe", 2: "yes"}
    check_pair(final, other, "reference")
    other.model.config.id2label = {0: "yes", 1: "maybe", 2: "no"}
    with pytest.raises(ModelError, match=r"Label 0 is 'no' .* 'yes' for the reference ones"):
        check_pair(final, other, "reference")


def test_an_adapter_is_refused_as_it_is_in_training(data_file, tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    arguments = ["localise", "--final", str(tmp_path), "--data", str(data_file)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert "holds an adapter (PEFT), which memloc does not read: merge it" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_labels_that_the_model_does_not_know_are_refused(weights, tmp_path):
    path = tmp_path / "x.jsonl"
    rows = [
        {"text": "red", "label": "joy", "noisy": True},
        {"text": "sky", "label": "label 1", "noisy": False},
    ]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    with pytest.raises(DataError, match=r"does not know \(joy\); it knows label 0, label 1"):
        localise_checkpoints(weights, path, {"flag": "noisy"}, out=tmp_path)


def test_a_file_without_a_noisy_example_is_refused(weights, tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("text,label,noisy\nred,0,false\nsky,1,false\n", encoding="utf-8")
    with pytest.raises(DataError, match="none"):
        localise_checkpoints(weights, path, {"flag": "noisy"}, out=tmp_path)


@pytest.mark.parametrize("columns", [{}, {"flag": "flag", "original": "original"}])
def test_which_labels_are_wrong_is_said_in_one_of_two_ways(weights, data_file, tmp_path, columns):
    with pytest.raises(DataError, match=r"in one way .*--original COLUMN .*--flag COLUMN"):
        localise_checkpoints(weights, data_file, columns, out=tmp_path)


def test_nan_weights_are_refused(memorised_run, tmp_path):
    import torch

    loaded = memorised_run.load("final")
    with torch.no_grad():
        next(iter(loaded.stack.blocks[1].parameters())).fill_(float("nan"))
    loaded.model.save_pretrained(tmp_path / "broken")
    loaded.tokenizer.save_pretrained(tmp_path / "broken")
    with pytest.raises(ModelError, match="NaN"):
        checkpoint_subject(Weights(str(tmp_path / "broken")), None)


def test_an_unknown_method_suggests_the_nearest(memorised_run):
    with pytest.raises(MemlocError, match="Did you mean 'swapping'"):
        localise_run(memorised_run.folder, ["swaping"])


def test_missing_memorised_weights_say_why(tiny_model, tmp_path):
    model = str(tiny_model("bert", depth=2))
    recipe = Recipe(model, make_task(), 1, fast_protocol(finetune__epochs=1), device="cpu")
    run = train_run(recipe, tmp_path / "run", ["final", "frozen"])
    with pytest.raises(StoreError, match=r"no memorised weights.*no epoch had a training accuracy"):
        localise_run(run.folder, ["gradients"], force=True)


def test_the_command_prints_bars_a_sentence_and_the_files(memorised_run):
    result = CliRunner().invoke(app, ["localise", str(memorised_run.folder), "swapping"])
    assert result.exit_code == 0, result.output
    assert "centre of gravity is layer" in result.output
    assert "swapping.parquet" in result.output
    assert len([line for line in result.output.splitlines() if "█" in line]) == 3


def test_the_command_gives_json_for_anybodys_checkpoints(weights, data_file, tmp_path):
    arguments = [
        "--final",
        weights.final,
        "--reference",
        weights.reference,
        "--data",
        str(data_file),
    ]
    more = ["--original", "original", "--out", str(tmp_path), "--json"]
    result = CliRunner().invoke(app, ["localise", *arguments, *more])
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert len(record["methods"]["swapping"]["weights"]) == 3
    assert record["skipped"]["retraining"] == "needs pretrained weights"
    assert "column 'original' read as original labels." in result.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "Give a run's folder"),
        (["nowhere"], "is not a run"),
        (["--final", "nowhere"], "with --data"),
        (["--final", "nowhere", "--data", "x.csv"], "is not a checkpoint"),
    ],
)
def test_bad_input_is_one_line(arguments, sentence):
    result = CliRunner().invoke(app, ["localise", *arguments])
    assert result.exit_code == 1
    assert result.stderr.startswith("memloc: ")
    assert sentence in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_an_installed_package_brings_a_method(memorised_run, tmp_path):
    """The example of docs/localisers.md, installed by pip and used by its name."""
    page = (Path(__file__).parents[2] / "docs" / "localisers.md").read_text(encoding="utf-8")
    code = page.split("```python")[-1].split("```")[0]
    entry = page.split("```toml")[-1].split("```")[0]
    package = tmp_path / "package"
    package.mkdir()
    (package / "mypackage.py").write_text(code, encoding="utf-8")
    head = '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
    about = '[project]\nname = "mypackage"\nversion = "1"\n'
    modules = '[tool.setuptools]\npy-modules = ["mypackage"]\n'
    (package / "pyproject.toml").write_text(head + about + entry + modules, encoding="utf-8")
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run(
        [*pip, "--no-build-isolation", "--target", str(site), str(package)], check=True, timeout=120
    )
    command = [sys.executable, "-c", "from memloc.cli import main; main()", "localise"]
    done = subprocess.run(
        [*command, str(memorised_run.folder), "distance"],
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "distance: the centre of gravity is layer" in done.stdout
    scores = LayerScores.read(memorised_run.folder / "localise" / "distance.parquet")
    assert (scores.weights > 0).all()


def test_the_four_methods_are_registered():
    assert tuple(localisers())[:4] == METHODS
    for method in METHODS:
        assert localiser(method).name == method


def test_the_front_door_has_the_same_functions():
    assert memloc.localise_run is localise_run
    assert memloc.localise_checkpoints is localise_checkpoints
