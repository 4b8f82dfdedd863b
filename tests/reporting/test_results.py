import pickle
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import memloc
from fixtures.studies import METHODS, Study, make_data, norms_from, record
from memloc.errors import MemlocWarning, StoreError, UnknownName
from memloc.methods.protocol import preset
from memloc.methods.result import Result
from memloc.reporting.examples import examples_of, outcomes_by_method
from memloc.reporting.reading import COLUMNS, KEY
from memloc.run.begin import begin
from memloc.run.folder import Run
from memloc.store import paths
from memloc.store.records import (
    read_json,
    read_table,
    write_json,
    write_table,
)

LAZY = ("examples", "reverted")
TABLES = [name for name in COLUMNS if name not in LAZY]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return Study(methods=(*METHODS, "shares")).write(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def results(folder):
    return memloc.load_results(folder)


NO_EPOCHS = {"timeline", "timeline_summary"}
"""Tables of early epochs, which the synthetic study has none of."""


@pytest.mark.parametrize("name", COLUMNS)
def test_every_table_has_its_columns_and_rows(results, name):
    table = getattr(results, name)
    assert list(table.columns) == list(COLUMNS[name])
    assert len(table) or name in NO_EPOCHS


@pytest.mark.parametrize("name", COLUMNS)
def test_an_empty_study_gives_empty_tables_with_their_columns(tmp_path, name):
    table = getattr(memloc.load_results(tmp_path), name)
    assert list(table.columns) == list(COLUMNS[name])
    assert table.empty


def test_layers_windows_and_centres_are_those_of_the_files(folder, results):
    key = {"task": "tiny-topic", "model": "tiny-opt", "seed": 2, "method": "swapping"}
    scores = Result.read(paths.result(folder / "tiny-topic/tiny-opt/seed-2", "swapping"))

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
    mine = examples_of(results, results.runs[results.runs["task"] == "tiny-topic"].head(1))
    assert mine["text"].tolist() == [parts[0] for parts in task.train.parts]
    assert mine["original"].tolist() == [task.label_names[i] for i in noisy.original]
    assert mine["assigned"].tolist() == [task.label_names[i] for i in noisy.assigned]
    assert mine["is_noisy"].tolist() == noisy.is_noisy.tolist()


def test_examples_can_be_the_noisy_ones_only(results):
    run = results.runs.head(1)
    whole, noisy = examples_of(results, run), examples_of(results, run, noisy_only=True)
    pd.testing.assert_frame_equal(noisy, whole[whole["is_noisy"]].reset_index(drop=True))


def test_outcomes_are_what_is_reverted_as_matrices(results):
    run = results.runs.tail(1)
    found = outcomes_by_method(results, run)
    assert list(found) == ["retraining", "swapping"]
    mine = results.reverted.merge(run[["task", "model", "seed"]])
    for method, outcomes in found.items():
        rows = mine[mine["method"] == method]
        assert outcomes.noisy_wrong.ravel().tolist() == rows["wrong"].tolist()
        assert outcomes.noisy_rows.tolist() == rows["example"].unique().tolist()
        ends = rows[["first", "last"]].drop_duplicates().to_numpy().tolist()
        assert [[w.start + 1, w.stop] for w in outcomes.windows] == ends


def test_validation_examples_are_counted(results):
    assert set(results.runs["validation"]) == {4}


def test_gradient_norms_are_taken_apart_by_name(results):
    kinds = {"noisy", "clean", "difference"}
    assert set(results.gradients["kind"]) == kinds | {f"frozen {kind}" for kind in kinds}
    assert set(results.gradients["norm"]) == {"L1", "L2"}


def test_an_analysis_of_another_version_is_refused_in_a_sentence(tmp_path):
    study = Study(methods=(), analyses=("generalisation",), control=0)
    run = study.write_run(tmp_path / "run", "tiny-topic", "tiny-opt", 1)
    place = paths.result(run.folder, "generalisation")
    found = Result.read(place)
    old = found["summary"].drop(columns="majority")
    Result(found.method, {**found.tables, "summary": old}).write(place)
    with pytest.raises(StoreError, match=r"generalisation .* has no column majority"):
        memloc.load_results(tmp_path)


@pytest.mark.parametrize("method", METHODS)
def test_tables_of_a_localiser_are_those_of_its_files(folder, results, method):
    whole = Result.read(paths.result(folder / "tiny-topic/tiny-opt/seed-1", method))
    mine = results.only(task="tiny-topic", model="tiny-opt", seed=1, method=method)
    assert mine.layers["weight"].tolist() == whole.weights.tolist()
    assert mine.mcog["mcog"].tolist() == [whole.mcog.estimate]
    if method == "gradients":
        found = norms_from(mine.gradients)
        for name, values in norms_from(whole["gradients"]).items():
            assert found[name].tolist() == values.tolist()
    if method == "probing":
        columns = ["layer", "f1", "chance"]
        pd.testing.assert_frame_equal(mine.noise_probes[columns], whole["noise_probes"][columns])


@pytest.mark.parametrize(
    ("analysis", "tables"),
    [
        ("centroids", {"layers": "centroids", "events": "events"}),
        ("label_probes", {"layers": "label_probes", "events": "events"}),
        ("generalisation", {"summary": "generalisation", "examples": "memorisation"}),
    ],
)
def test_tables_of_an_analysis_are_those_of_its_files(folder, results, analysis, tables):
    whole = Result.read(paths.result(folder / "tiny-topic/tiny-opt/seed-1", analysis))
    mine = results.only(task="tiny-topic", model="tiny-opt", seed=1)
    for inside, name in tables.items():
        table = getattr(mine, name)
        if name == "events":
            source = whole["events"]["source"].iloc[0]
            table = table[table["source"] == source].reset_index(drop=True)
        columns = [column for column in COLUMNS[name] if column not in {*KEY, "remark"}]
        pd.testing.assert_frame_equal(table[columns], whole[inside][columns])


def test_methods_without_windows_undo_nothing(results):
    assert set(results.windows["method"]) == {"swapping", "retraining"}
    assert set(results.reverted["method"]) == {"swapping", "retraining"}


def test_remarks_of_a_method_stand_beside_its_layers(tmp_path):
    run = Study(control=0).write_run(tmp_path / "run", "tiny-topic", "tiny-opt", 1)
    for method in ("probing", "label_probes"):
        place = paths.result(run.folder, method)
        found = Result.read(place)
        type(found)(found.method, found.tables, {"remarks": ["One.", "Two."]}).write(place)
    results = memloc.load_results(tmp_path)
    for table in (results.layers, results.mcog):
        said = table.groupby("method")["remark"].first().to_dict()
        assert said == {**dict.fromkeys(METHODS, ""), "probing": "One. Two."}
    assert set(results.noise_probes["remark"]) == {"One. Two."}
    assert set(results.label_probes["remark"]) == {"One. Two."}


def test_what_was_asked_for_is_told_in_order(tmp_path):
    run = Study(control=0, analyses=(), methods=("swapping", "gradients")).write_run(
        tmp_path / "run", "tiny-topic", "tiny-opt", 1, command="memloc train x"
    )
    for method in ("swapping", "gradients"):
        place = paths.result(run.folder, method)
        found = Result.read(place)
        about = {"command": f"memloc localise x {method}", "settings": {"seed": 1}}
        type(found)(method, found.tables, about).write(place)
    results = memloc.load_results(tmp_path)
    assert results.commands[0] == "memloc train x"
    assert set(results.commands[1:]) == {
        "memloc localise x swapping",
        "memloc localise x gradients",
    }
    assert results.made[["method", "settings"]].to_numpy().tolist() == [
        ["gradients", '{"seed": 1}'],
        ["swapping", '{"seed": 1}'],
    ]


def test_settings_are_those_of_the_study_or_of_the_first_run(tmp_path, folder, results):
    assert results.protocol == preset("demo")
    assert [record.spec.seed for record in results.records] == results.runs["seed"].tolist()
    Study(control=0).write_run(tmp_path / "run", "tiny-topic", "tiny-opt", 1)
    (tmp_path / "study.yaml").write_text(
        "models: [tiny-opt]\ntasks: [tiny-topic]\npreset: demo\n"
        "overrides: {agreement.significance: 0.01}\n"
    )
    assert memloc.load_results(tmp_path).protocol.agreement.significance == 0.01


def test_presets_are_not_mixed_in_silence(tmp_path):
    for preset_name in ("demo", "paper", "reference"):
        folder = tmp_path / preset_name
        Study(control=0, methods=(), analyses=()).write_run(folder, "tiny-topic", "tiny-opt", 1)
        record = read_json(folder / "run.json")
        record["spec"]["settings"]["preset"] = preset_name
        write_json(folder / "run.json", record)
        if preset_name == "paper":  # which compares runs as demo does
            memloc.load_results(tmp_path)
    with pytest.warns(MemlocWarning, match="made with the presets demo and paper and reference"):
        found = memloc.load_results(tmp_path)
    assert found.protocol == preset("demo")


def test_how_much_must_be_memorised_is_asked_of_the_study(tmp_path):
    study = Study(control=0, methods=(), analyses=(), memorised=False)
    study.write_run(tmp_path / "run", "tiny-topic", "tiny-opt", 1)
    assert memloc.load_results(tmp_path).runs["memorised"].tolist() == [False]
    (tmp_path / "study.yaml").write_text(
        "models: [tiny-opt]\ntasks: [tiny-topic]\npreset: demo\n"
        "overrides: {verdict.noisy_at_least: 0.4}\n"
    )
    assert memloc.load_results(tmp_path).runs["memorised"].tolist() == [True]


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
    for name in {*TABLES} - NO_EPOCHS:
        table = getattr(one, name)
        assert "model" not in table.columns or set(table["model"]) == {"tiny-opt"}
    assert set(one.reverted["model"]) == {"tiny-opt"}


def test_one_run_is_a_study_too(folder, results):
    run = memloc.load_results(folder / "tiny-topic" / "tiny-opt" / "seed-1")
    expected = results.only(task="tiny-topic", model="tiny-opt", seed=1)
    pd.testing.assert_frame_equal(run.mcog, expected.mcog)
    assert run.runs["folder"].tolist() == ["."]


def test_a_run_that_only_began_is_listed_as_not_memorised(tmp_path):
    task, _ = make_data("tiny-topic", 12, 3)
    begin(tmp_path / "run", task, record(task, "tiny-opt", 1, 4))
    results = memloc.load_results(tmp_path)
    assert results.runs["memorised"].tolist() == [False]
    assert results.runs["noisy_accuracy"].isna().all()
    assert results.training.empty
    assert len(results.examples) == 12


def test_labels_that_nobody_knows_are_said_to_be_unknown(tmp_path):
    task, noisy = make_data("tiny-topic", 12, 3)
    noisy.original[noisy.is_noisy] = -1
    begin(tmp_path / "run", task, record(task, "tiny-opt", 1, 4))
    examples = memloc.load_results(tmp_path).examples
    assert set(examples.loc[examples["is_noisy"], "original"]) == {"not known"}
    assert "not known" not in set(examples["assigned"])


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
    with pytest.raises(StoreError, match=r"format 99, this memloc reads up to \d: update it"):
        memloc.load_results(tmp_path)


def test_a_run_of_the_first_format_is_refused(tmp_path):
    run = Study(analyses=(), methods=(), control=0).write_run(
        tmp_path / "run", "tiny-topic", "tiny-opt", 1
    )
    write_json(run.folder / "run.json", {**read_json(run.folder / "run.json"), "format": 1})
    with pytest.raises(StoreError, match=r"made by memloc 0\.2 or older, .*run what made it again"):
        memloc.load_results(tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("about.json", b"{", "is not JSON"),
        ("about.json", b'{"format": 2}', "made by memloc 0.2 or older"),
        ("layers.parquet", b"PAR1 and no more", "is not Parquet"),
        ("layers.parquet", None, "is damaged"),
    ],
)
def test_what_is_wrong_with_a_result_is_said(tmp_path, file, content, said):
    run = Study(control=0, analyses=(), methods=("swapping",)).write_run(
        tmp_path / "run", "tiny-topic", "tiny-opt", 1
    )
    path = paths.result(run.folder, "swapping") / file
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(StoreError, match=said):
        memloc.load_results(tmp_path)


def test_tables_of_methods_that_are_not_memloc_s_are_among_the_layers(tmp_path):
    run = Study(control=0, analyses=(), methods=("gradients",)).write_run(
        tmp_path / "run", "tiny-topic", "tiny-opt", 1
    )
    found = Result.read(paths.result(run.folder, "gradients"))
    theirs = {name: found[name] for name in ("layers", "mcog")}
    type(found)("distance", theirs).write(paths.result(run.folder, "distance"))
    Result("counts", {"layers": found["layers"]}).write(paths.result(run.folder, "counts"))
    results = memloc.load_results(tmp_path)
    assert set(results.layers["method"]) == set(results.mcog["method"]) == {"distance", "gradients"}
    assert set(results.counts_layers["method"]) == {"counts"}  # which is installed nowhere


def test_results_go_to_other_processes(results):
    copied = pickle.loads(pickle.dumps(results))  # noqa: S301 - of our own
    assert copied.protocol == results.protocol
    pd.testing.assert_frame_equal(copied.control, results.control)


def with_theirs(folder, *tables):
    """Runs with seeds 1, 2 ... in each of which somebody's method left tables."""
    for seed, columns in enumerate(tables, 1):
        study = Study(control=0, analyses=("centroids",), methods=())
        run = study.write_run(folder / f"run-{seed}", "tiny-topic", "tiny-opt", seed)
        made = {name: pd.DataFrame(table) for name, table in columns.items()}
        Result("lengths", made).write(paths.result(run.folder, "lengths"))
    return folder


def test_an_event_of_somebody_is_not_averaged_with_ours_of_the_same_name(tmp_path):
    theirs = {"event": ["crossing"], "layer": [2]}
    events = memloc.load_results(with_theirs(tmp_path, {"events": theirs})).events
    assert set(events.loc[events["source"] == "lengths", "event"]) == {"crossing (lengths)"}


def test_events_of_somebody_are_completed_when_they_are_read(tmp_path):
    theirs = {"event": ["jump", "fall"], "layer": [2, np.nan], "extra": [[1], [2]]}
    events = memloc.load_results(with_theirs(tmp_path, {"events": theirs})).events
    mine = events[events["source"] == "lengths"]
    assert mine[["variant", "event", "separable"]].to_numpy().tolist() == [
        ["plain", "jump (lengths)", True],
        ["plain", "fall (lengths)", True],
    ]
    assert mine["layer"].fillna(0).tolist() == [2, 0]
    assert mine[["low", "high", "never"]].isna().all(axis=None)
    assert (events["source"] == "centroids").any()


@pytest.mark.parametrize(
    "table",
    [{"event": ["jump"]}, {"layer": [1]}, {"event": ["jump"], "layer": ["third"]}],
    ids=["no-layer", "no-event", "no-number"],
)
def test_what_only_has_the_name_of_events_is_left_out(tmp_path, table):
    results = memloc.load_results(with_theirs(tmp_path, {"events": table}))
    assert set(results.events["source"]) == {"centroids"}
    assert set(results.made["method"]) == {"centroids", "lengths"}


def test_tables_that_do_not_go_together_are_named_and_not_the_study(tmp_path):
    text, number = ({"layers": {"layer": [1], "v": [value]}} for value in ("a", 1.0))
    folder = with_theirs(tmp_path, text, number)
    said = r"^The table lengths_layers by lengths \(tiny-topic, tiny-opt, seed 2\) .* Field v .*"
    with pytest.raises(StoreError, match=f"{said}: delete results/lengths in .* run it again.$"):
        memloc.load_results(folder)


def test_a_table_that_is_not_there_is_named_with_those_that_are(results):
    with pytest.raises(AttributeError, match="no table 'layer': there are runs, training"):
        _ = results.layer
    assert {"layers", "mcog", "control"} <= set(dir(results))


def test_a_run_in_a_checkpoint_s_folder_is_none(folder, results):
    assert len(results.runs) == len(list(folder.glob("tiny-*/*/*/run.json")))
    assert all(Run.open(folder / place) for place in results.runs["folder"])


def test_no_torch_is_loaded(folder):
    code = (
        "import sys, memloc\n"
        f"found = memloc.load_results({str(folder)!r})\n"
        "found.examples, found.reverted, found.records, found.versions\n"
        "import memloc.reporting.page\n"
        "assert not {'torch', 'transformers', 'datasets'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_the_key_comes_first(results):
    for name in TABLES:
        if name not in {"nulls", "post_processing"}:
            assert tuple(getattr(results, name).columns[:4]) == KEY


def test_a_result_under_the_name_of_another_is_refused(tmp_path):
    home = Study(seeds=(1,), control=0).write(tmp_path) / "tiny-topic/tiny-opt/seed-1"
    shutil.rmtree(paths.result(home, "swapping"))
    shutil.copytree(paths.result(home, "gradients"), paths.result(home, "swapping"))
    with pytest.raises(StoreError, match="is a result of gradients"):
        memloc.load_results(tmp_path)


@pytest.mark.parametrize("inputs", [{"data": "other"}, {"weights": "other"}, {"seed": 7}])
def test_a_result_of_another_run_is_refused(tmp_path, inputs):
    home = Study(seeds=(1,), control=0).write(tmp_path) / "tiny-topic/tiny-opt/seed-1"
    place = paths.result(home, "swapping")
    found = Result.read(place)
    replace(found, about={**found.about, "inputs": inputs}).write(place)
    with pytest.raises(StoreError, match="it is of another run"):
        memloc.load_results(tmp_path)


def test_a_training_without_a_column_is_refused(tmp_path):
    home = Study(seeds=(1,), control=0).write(tmp_path) / "tiny-topic/tiny-opt/seed-1"
    table, _ = read_table(home / paths.TRAINING)
    write_table(home / paths.TRAINING, table.drop(columns="loss"), {})
    with pytest.raises(StoreError, match=r"training.parquet does not hold .*loss"):
        memloc.load_results(tmp_path)


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ({"model": "tiny-op"}, "No model is called 'tiny-op'. Did you mean 'tiny-opt'"),
        ({"modle": "tiny-opt"}, "No column is called 'modle'. Did you mean 'model'"),
        ({"seed": 77}, "No seed is called 77"),
        ({"seed": "1"}, "No seed is '1': values of this column are no strings"),
    ],
)
def test_what_no_table_has_is_refused(results, chosen, said):
    with pytest.raises(UnknownName, match=said):
        results.only(**chosen)
