"""A run through all analyses, by library and by command line."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
from memloc.analyse import analyse as module
from memloc.analyse.analyse import ANALYSES, analyse_run
from memloc.analyse.store import Analysis
from typer.testing import CliRunner

import memloc
from memloc.cli import app
from memloc.errors import DataError, SettingsError, StoreError, TrainingError, UnknownName
from memloc.records import read_json, read_table, write_json, write_table

FILES = ("centroids", "label_probes", "generalisation")


@pytest.fixture(scope="module")
def analysed(trained, tmp_path_factory):
    folder = shutil.copytree(trained(), tmp_path_factory.mktemp("analysed") / "run")
    return analyse_run(folder, device="cpu")


def edit(folder, **facts):
    about = read_json(folder / "run.json")
    write_json(folder / "run.json", {**about, **facts})


def test_all_analyses_are_made_and_kept(analysed):
    assert tuple(analysed.found) == ANALYSES
    for name, file in zip(ANALYSES, FILES, strict=True):
        read = Analysis.read(analysed.folder / f"{file}.parquet")
        assert read.name == file
        assert read.about == analysed[name].about
        assert read.about["forced"] is False
        assert list(read.tables) == list(analysed[name].tables)
        for table, frame in analysed[name].tables.items():
            pd.testing.assert_frame_equal(read[table], frame)


def test_what_is_there_is_not_computed_again(analysed, monkeypatch):
    def refuse(*_args):
        raise AssertionError("computed again")

    for name in FILES:
        monkeypatch.setattr(module, name, refuse)
    found = analyse_run(analysed.folder.parent, device="cpu")
    assert tuple(found.found) == ANALYSES
    with pytest.raises(AssertionError, match="computed again"):
        analyse_run(analysed.folder.parent, ["centroids"], windows=["2"], device="cpu")
    changes = {"centroids.crossing_at": 0.4}
    with pytest.raises(AssertionError, match="computed again"):
        analyse_run(analysed.folder.parent, ["centroids"], changes=changes, device="cpu")


@pytest.mark.parametrize(("family", "depth"), [("bert", 6), ("gpt_neox", 12), ("opt", 24)])
def test_models_of_any_depth_can_be_analysed(trained, tmp_path, family, depth):
    folder = shutil.copytree(trained(family, depth=depth, epochs=1), tmp_path / "run")
    found = analyse_run(folder, ["centroids", "label-probes"], force=True, device="cpu")
    layers = found["centroids"]["layers"]
    assert sorted(layers["layer"].unique()) == list(range(depth + 1))
    # BERT's first token is the same in every text.
    assert layers.loc[layers["layer"] == 0, "mean"].isna().all() == (family == "bert")
    assert layers.loc[layers["layer"] > 0, "mean"].notna().all()
    assert found["label-probes"]["layers"]["layer"].max() == depth
    for name in ("centroids", "label-probes"):
        event = found[name]["events"]["layer"].dropna()
        assert event.between(1, depth).all()
        assert found[name].about["depth"] == depth


def test_the_front_door_has_it():
    assert memloc.analyse_run is analyse_run


def test_a_run_that_did_not_memorise_is_refused_unless_forced(run_folder):
    verdict = {**read_json(run_folder / "run.json")["verdict"], "memorised": False}
    edit(run_folder, verdict={**verdict, "noisy_accuracy": 0.5})
    with pytest.raises(TrainingError, match="not memorised"):
        analyse_run(run_folder, device="cpu")
    found = analyse_run(run_folder, ["centroids"], force=True, device="cpu")
    assert found["centroids"].about["forced"] is True


def test_missing_weights_are_found_out_first(run_folder):
    shutil.rmtree(run_folder / "checkpoints" / "reference")
    with pytest.raises(StoreError, match="no reference weights: `memloc train`"):
        analyse_run(run_folder, windows=["1-2"], device="cpu")
    shutil.rmtree(run_folder / "checkpoints" / "final")
    with pytest.raises(StoreError, match="no final weights: `memloc train`"):
        analyse_run(run_folder, ["generalisation"], device="cpu")
    assert not (run_folder / "analyse").exists()


def test_a_folder_that_is_no_run_is_named(tmp_path):
    with pytest.raises(StoreError, match="is not a run"):
        analyse_run(tmp_path)


def test_an_unknown_analysis_is_named(run_folder):
    with pytest.raises(UnknownName, match="Did you mean 'centroids'"):
        analyse_run(run_folder, ["centroid"])


def test_settings_that_made_the_weights_cannot_be_changed(run_folder):
    with pytest.raises(SettingsError, match=r"finetune\.epochs cannot be changed"):
        analyse_run(run_folder, changes={"finetune.epochs": 3})


def test_one_class_is_not_enough(run_folder):
    task = read_json(run_folder / "run.json")["task"]
    edit(run_folder, task={**task, "label_names": ["only"]})
    with pytest.raises(DataError, match=r"1 class\(es\); an analysis needs two"):
        analyse_run(run_folder, device="cpu")


@pytest.mark.parametrize("every", [False, True], ids=["none-noisy", "all-noisy"])
def test_noisy_and_clean_examples_are_needed(run_folder, every):
    table, _ = read_table(run_folder / "labels.parquet")
    table.loc[table["split"] == "train", "is_noisy"] = every
    write_table(run_folder / "labels.parquet", table, {})
    with pytest.raises(DataError, match="compares noisy and clean ones"):
        analyse_run(run_folder, device="cpu")


def test_a_file_of_something_else_is_named(run_folder):
    write_table(run_folder / "analyse" / "centroids.parquet", pd.DataFrame({"x": [1]}), {})
    with pytest.raises(StoreError, match="holds no analysis"):
        analyse_run(run_folder, ["centroids"], device="cpu")


def test_the_command_prints_a_sentence_for_each(analysed):
    shown = CliRunner().invoke(app, ["analyse", str(analysed.folder.parent), "--device", "cpu"])
    assert shown.exit_code == 0, shown.output
    for word in (*ANALYSES, "crossing", "95 % interval", "held out", "validation score"):
        assert word in shown.stdout


def test_the_command_prints_json_for_machines(analysed):
    command = ["analyse", str(analysed.folder.parent), "centroids", "--device", "cpu", "--json"]
    shown = CliRunner().invoke(app, command)
    found = json.loads(shown.stdout)["analyses"]["centroids"]
    assert {row["event"] for row in found["tables"]["events"]} == {"crossing", "initiation"}
    assert "positions" not in found["tables"]
    assert found["about"]["depth"] == 4


def test_the_command_takes_windows_and_settings(run_folder):
    options = ["--window", "2-3", "--set", "centroids.events=last", "--device", "cpu", "--json"]
    shown = CliRunner().invoke(app, ["analyse", str(run_folder), "centroids", *options])
    found = json.loads(shown.stdout)["analyses"]["centroids"]
    assert found["about"]["variants"] == ["plain", "bottom", "top", "window 2-3"]
    assert found["about"]["changes"]["centroids.events"] == "last"


def test_an_error_is_one_line(tmp_path):
    shown = CliRunner().invoke(app, ["analyse", str(tmp_path)])
    assert shown.exit_code == 1
    assert shown.stderr.startswith("memloc: ")
    assert shown.stderr.count("\n") == 1


def test_results_do_not_depend_on_what_was_computed_before(analysed, run_folder):
    alone = analyse_run(run_folder, ["label-probes"], device="cpu")
    one, other = (a["label-probes"]["layers"] for a in (alone, analysed))
    np.testing.assert_array_equal(one["f1"], other["f1"])
