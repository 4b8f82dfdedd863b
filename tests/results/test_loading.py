import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import memloc
from memloc.errors import StoreError
from memloc.localise.scores import LayerScores
from memloc.records import read_json, read_table, write_json, write_table
from memloc.results.columns import COLUMNS, KEY
from study_support import Study, identity, make_data

LAZY = ("examples", "reverted")
TABLES = [name for name in COLUMNS if name not in LAZY]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return Study().write(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def results(folder):
    return memloc.load_results(folder)


@pytest.mark.parametrize("name", COLUMNS)
def test_every_table_has_its_columns_and_rows(results, name):
    table = getattr(results, name)
    assert list(table.columns) == list(COLUMNS[name])
    assert len(table)


@pytest.mark.parametrize("name", COLUMNS)
def test_an_empty_study_gives_empty_tables_with_their_columns(tmp_path, name):
    table = getattr(memloc.load_results(tmp_path), name)
    assert list(table.columns) == list(COLUMNS[name])
    assert table.empty


def test_layers_windows_and_centres_are_those_of_the_files(folder, results):
    key = {"task": "tiny-topic", "model": "tiny-opt", "seed": 2, "method": "swapping"}
    scores = LayerScores.read(folder / "tiny-topic/tiny-opt/seed-2/localise/swapping.parquet")

    def mine(table):
        return table[np.logical_and.reduce([table[k] == v for k, v in key.items()])]

    assert mine(results.layers)["weight"].tolist() == scores.weights.tolist()
    assert mine(results.layers)["layer"].tolist() == [1, 2, 3, 4]
    assert mine(results.mcog)[["mcog", "low", "high"]].to_numpy().tolist() == [
        [scores.mcog.estimate, scores.mcog.low, scores.mcog.high]
    ]
    windows = mine(results.windows)
    assert windows["error"].tolist() == scores.outcomes.errors.tolist()
    assert windows["clean_error"].tolist() == scores.outcomes.clean_errors.tolist()
    assert windows["normalised"].iloc[-1] == 1.0
    ends = [(w.start + 1, w.stop) for w in scores.outcomes.windows]
    assert list(zip(windows["first"], windows["last"], strict=True)) == ends
    wrong = mine(results.reverted)
    assert wrong["wrong"].to_numpy().reshape(7, 10).tolist() == scores.outcomes.noisy_wrong.tolist()
    assert wrong["example"].unique().tolist() == scores.outcomes.noisy_rows.tolist()


def test_examples_have_label_names_and_the_training_split_only(results):
    task, noisy = make_data("tiny-topic", 40, 6)
    mine = results.examples_of(results.runs[results.runs["task"] == "tiny-topic"].head(1))
    assert mine["text"].tolist() == [parts[0] for parts in task.train.parts]
    assert mine["original"].tolist() == [task.label_names[i] for i in noisy.original]
    assert mine["assigned"].tolist() == [task.label_names[i] for i in noisy.assigned]
    assert mine["is_noisy"].tolist() == noisy.is_noisy.tolist()


def test_examples_can_be_the_noisy_ones_only(results):
    run = results.runs.head(1)
    whole, noisy = results.examples_of(run), results.examples_of(run, noisy_only=True)
    pd.testing.assert_frame_equal(noisy, whole[whole["is_noisy"]].reset_index(drop=True))


def test_outcomes_are_what_is_reverted_as_matrices(results):
    run = results.runs.tail(1)
    tables = [found.table() for found in results.outcomes_of(run)]
    assert [found.method for found in results.outcomes_of(run)] == ["retraining", "swapping"]
    columns = ["method", "example", "first", "last", "wrong"]
    pd.testing.assert_frame_equal(
        pd.concat(tables, ignore_index=True), results.reverted_of(run)[columns]
    )


def test_validation_examples_are_counted(results):
    assert set(results.runs["validation"]) == {4}


def test_gradient_norms_are_taken_apart_by_name(results):
    kinds = {"noisy", "clean", "difference"}
    assert set(results.gradients["kind"]) == kinds | {f"frozen {kind}" for kind in kinds}
    assert set(results.gradients["norm"]) == {"L1", "L2"}


def test_the_validation_score_is_accuracy_above_chance(results):
    row = results.runs[results.runs["task"] == "tiny-topic"].iloc[0]
    expected = (row["validation_accuracy"] - 1 / 6) / (1 - 1 / 6)
    assert row["validation_score"] == pytest.approx(expected)


def test_the_reference_accuracy_is_that_of_the_last_epoch_without_noise(results):
    training = results.training
    rows = training[training["training"] == "original"].sort_values("epoch")
    last = rows.groupby(list(KEY))["accuracy"].last()
    runs = results.runs.set_index(list(KEY))["reference_accuracy"]
    assert runs.to_dict() == last.to_dict()


def test_only_keeps_the_rows_of_a_model(results):
    one = results.only(model="tiny-opt", seed=1)
    for name in TABLES:
        table = getattr(one, name)
        assert "model" not in table.columns or set(table["model"]) == {"tiny-opt"}
    assert set(one.reverted["model"]) == {"tiny-opt"}


def test_one_run_is_a_study_too(folder, results):
    run = memloc.load_results(folder / "tiny-topic" / "tiny-opt" / "seed-1")
    expected = results.only(task="tiny-topic", model="tiny-opt", seed=1)
    pd.testing.assert_frame_equal(run.mcog, expected.mcog)
    assert run.runs["folder"].tolist() == ["."]


def test_a_run_that_only_began_is_listed_as_not_memorised(tmp_path):
    from memloc.train.run import begin

    begin(tmp_path / "run", *make_data("tiny-topic", 12, 3), identity("tiny-opt", 1, 4))
    results = memloc.load_results(tmp_path)
    assert results.runs["memorised"].tolist() == [False]
    assert results.runs["noisy_accuracy"].isna().all()
    assert results.training.empty
    assert len(results.examples) == 12


def test_two_runs_of_one_task_model_and_seed_never_merge(tmp_path):
    study = Study(analyses=(), methods=("swapping",), control=0)
    for folder in (tmp_path / "other", tmp_path / "tiny-topic" / "tiny-opt" / "seed-1"):
        study.write_run(folder, "tiny-topic", "tiny-opt", 1)
    models = memloc.load_results(tmp_path).runs["model"].tolist()
    assert models == ["tiny-opt", "tiny-opt (other)"]


def test_runs_of_the_control_set_up_are_not_among_the_runs(results):
    assert len(results.runs) == 8
    assert not results.runs["folder"].str.contains("control").any()
    assert set(results.control_layers["null"]) == {True, False}


def test_versions_are_those_of_the_files(results, folder):
    (found,) = results.versions
    path = folder / "tiny-topic" / "tiny-opt" / "seed-1" / "training.parquet"
    assert found == read_table(path)[1]["versions"]


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(StoreError, match="is not a folder"):
        memloc.load_results(tmp_path / "nowhere")


def test_a_run_of_a_newer_format_is_refused(tmp_path):
    study = Study(analyses=(), methods=(), control=0)
    run = study.write_run(tmp_path / "run", "tiny-topic", "tiny-opt", 1)
    write_json(run.folder / "run.json", {**read_json(run.folder / "run.json"), "format": 99})
    with pytest.raises(StoreError, match=r"format 99, this memloc reads up to 1: update it"):
        memloc.load_results(tmp_path)


def test_a_control_table_without_a_column_is_refused(tmp_path):
    write_table(tmp_path / "control" / "nulls.parquet", pd.DataFrame({"method": ["swapping"]}), {})
    with pytest.raises(StoreError, match="has no column apart"):
        memloc.load_results(tmp_path)


def test_no_torch_is_loaded(folder):
    code = (
        "import sys, memloc\n"
        f"found = memloc.load_results({str(folder)!r})\n"
        "found.examples, found.reverted, found.abouts, found.versions\n"
        "import memloc.report.page\n"
        "assert not {'torch', 'transformers', 'datasets'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_the_key_comes_first(results):
    for name in TABLES:
        if name not in {"nulls", "post_processing"}:
            assert tuple(getattr(results, name).columns[:4]) == KEY


def test_a_result_under_the_name_of_another_is_refused(tmp_path):
    home = Study(seeds=(1,), control=0).write(tmp_path) / "tiny-topic/tiny-opt/seed-1"
    shutil.copy(home / "localise/gradients.parquet", home / "localise/swapping.parquet")
    with pytest.raises(StoreError, match=r"swapping.parquet holds no layer scores of swapping"):
        memloc.load_results(tmp_path)
    (home / "localise/swapping.parquet").unlink()
    shutil.copy(home / "analyse/centroids.parquet", home / "analyse/label_probes.parquet")
    with pytest.raises(StoreError, match=r"holds no analysis called label_probes"):
        memloc.load_results(tmp_path)


def test_a_result_of_another_run_is_refused(tmp_path):
    study = Study(tasks=("tiny-topic",), models=("tiny-opt",), control=0)
    study.write(tmp_path)
    homes = [tmp_path / f"tiny-topic/tiny-opt/seed-{seed}" for seed in (1, 2)]
    path = homes[0] / "localise/swapping.parquet"
    scores = LayerScores.read(path)
    replace(scores, about={**scores.about, "seed": 1}).write(path)
    assert len(memloc.load_results(tmp_path).runs) == 2
    shutil.copy(path, homes[1] / "localise/swapping.parquet")
    with pytest.raises(StoreError, match="it is of another run"):
        memloc.load_results(tmp_path)


def test_a_training_without_a_column_is_refused(tmp_path):
    home = Study(seeds=(1,), control=0).write(tmp_path) / "tiny-topic/tiny-opt/seed-1"
    table, _ = read_table(home / "training.parquet")
    write_table(home / "training.parquet", table.drop(columns="loss"), {})
    with pytest.raises(StoreError, match=r"training.parquet has no column loss"):
        memloc.load_results(tmp_path)
