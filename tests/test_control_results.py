"""Results of methods on planted runs, over all plants of a study."""

from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest

import memloc
from fixtures.studies import METHODS, Study, norms_from, training, write_plant
from memloc.methods.gradients import variant
from memloc.methods.result import Result
from memloc.reporting.reading import COLUMNS, compared, is_right, read_answers
from memloc.run.folder import Run
from memloc.run.records import Accuracies, Attempt
from memloc.seeds import generator
from memloc.stats.answers import Answer, Evidence, answer, answer_weights
from memloc.stats.planted import accuracy_at_k, auroc, reciprocal_rank
from memloc.store import paths

TABLES = ("control", "control_layers", "control_gradients", "nulls", "plants", "post_processing")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return Study(seeds=(1,), analyses=(), epochs=1).write(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def results(folder):
    return memloc.load_results(folder)


def planted_runs(folder):
    return [Run.open(path.parent) for path in (folder / "control").rglob("run.json")]


def test_every_plant_and_null_is_listed(folder, results):
    plants = results.plants
    assert len(plants) == len(planted_runs(folder)) == 2 * 2 * 2 * 2
    assert plants["null"].sum() == 8
    assert plants["used"].all()
    assert set(plants["methods"].iloc[0].split(", ")) == set(METHODS)
    assert (plants["tries"] == 1).all()
    assert (plants["training_accuracy"] == 1).all()


def test_layers_are_those_of_the_files_and_say_what_was_undone(folder, results):
    run = planted_runs(folder)[0]
    plant = run.spec.plant
    key = {
        "task": run.record.task.name,
        "model": run.model_name,
        "first": plant.first,
        "last": plant.last,
        "null": plant.null,
    }
    table = results.control_layers
    mine = table[np.logical_and.reduce([table[k] == v for k, v in key.items()])]
    for method in METHODS:
        found = Result.read(paths.result(run.folder, method))
        rows = mine[mine["method"] == method]
        assert rows["weight"].tolist() == found.weights.tolist()
        if method in {"swapping", "retraining"}:
            assert set(rows["undone"]) == {found.outcomes.errors.max()}
        else:
            assert rows["undone"].isna().all()


def test_scores_are_those_of_the_planted_layers(results):
    scores, layers = results.control, results.control_layers
    assert len(scores) == 2 * 2 * 2 * len(METHODS) * 2  # tasks, models, windows, methods, ks
    for row in scores.to_dict("records"):
        same = layers[~layers["null"].astype(bool)]
        for name in ("task", "model", "first", "last", "method"):
            same = same[same[name] == row[name]]
        weights = same.sort_values("layer")["weight"].to_numpy()
        window = range(row["first"] - 1, row["last"])
        assert row["accuracy"] == accuracy_at_k(weights, window, row["k"])
        assert row["mrr"] == pytest.approx(reciprocal_rank(weights, window))
        assert row["auroc"] == pytest.approx(auroc(weights, window))
        assert row["chance"] == 0.5  # two of four layers


def test_planted_layers_weigh_more_in_a_study_that_plants_them(results):
    found = results.control[results.control["k"] == 1].groupby("method")["accuracy"].mean()
    assert (found == 1).all()
    called = results.nulls.set_index("method")
    assert set(called.index) == set(METHODS)
    assert (called["plants"] == 8).all()
    assert (called["nulls"] == 8).all()


def test_validation_tasks_choose_the_post_processing(folder, results):
    """`demo` has one: tiny-acceptability."""
    validation = results.control.groupby("task")["validation"].first()
    assert validation.to_dict() == {"tiny-acceptability": True, "tiny-topic": False}
    table = results.post_processing
    assert len(table) == 2 * 2 * 2 * 2  # models, norms, two steps on and off
    assert (table["plants"] == 2).all()  # two windows
    expected = []
    for run in planted_runs(folder):
        plant = run.spec.plant
        if plant.null or run.record.task.name != "tiny-acceptability":
            continue
        norms = norms_from(Result.read(paths.result(run.folder, "gradients"))["gradients"])
        for steps in product(("L1", "L2"), (False, True), (False, True)):
            weights = variant(norms, *steps)
            accuracy = accuracy_at_k(weights, range(plant.first - 1, plant.last), 2)
            expected.append((run.model_name, *steps, accuracy))
    steps = ["model", "norm", "subtract_clean", "divide_frozen"]
    means = pd.DataFrame(expected, columns=[*steps, "accuracy"]).groupby(steps)["accuracy"].mean()
    pd.testing.assert_series_equal(table.set_index(steps)["accuracy"].sort_index(), means)


def test_a_plant_that_was_never_memorised_is_listed_and_not_scored(tmp_path):
    study = Study(tasks=("tiny-topic",), models=("tiny-opt",), methods=(), analyses=())
    rng = generator(0, "x")
    run = write_plant(tmp_path, study, ("tiny-topic", "tiny-opt", range(2), False), rng)
    short = Accuracies(noisy=0.1, clean=0.9, training=0.8)
    tries = [Attempt(learning_rate=r, training_accuracy=0.8) for r in (1e-3, 2e-3)]
    run.note(final=short, attempts=tuple(tries))
    results = memloc.load_results(tmp_path)
    (plant,) = results.plants.to_dict("records")
    assert (plant["used"], plant["methods"], plant["tries"]) == (False, "", 3)
    assert (plant["noisy_accuracy"], plant["training_accuracy"]) == (0.1, 0.8)
    for name in TABLES:
        table = getattr(results, name)
        assert list(table.columns) == list(COLUMNS[name])
        assert (len(table) == 0) == (name != "plants")


def test_layers_of_a_reference_that_did_not_learn_do_not_count(tmp_path):
    study = Study(tasks=("tiny-topic",), models=("tiny-opt",), analyses=())
    rng = generator(0, "x")
    run = write_plant(tmp_path, study, ("tiny-topic", "tiny-opt", range(2), False), rng)
    from memloc.store.records import write_table

    curves = training(2, rng)
    curves.loc[curves["training"] == "original", "accuracy"] = 0.5
    write_table(run.folder / paths.TRAINING, curves, {})
    found = memloc.load_results(tmp_path)
    assert set(found.control["method"]) == set(METHODS) - {"swapping"}
    assert "swapping" not in found.plants["methods"].iloc[0]


def test_without_plants_there_are_no_scores(tmp_path):
    results = memloc.load_results(Study(control=0, methods=(), analyses=()).write(tmp_path))
    for name in TABLES:
        assert getattr(results, name).empty


def test_plants_of_two_studies_do_not_merge(tmp_path):
    for name, depth in (("one", 4), ("two", 6)):
        rng = generator(1, "plants", name)
        place = ("tiny-topic", "tiny-opt", range(2), False)
        write_plant(tmp_path / name, Study(depth=depth), place, rng)
    found = memloc.load_results(tmp_path)
    assert sorted(found.control_layers.groupby(["model", "method"]).size().unique()) == [4, 6]
    assert found.plants["model"].nunique() == 2


def test_a_folder_called_checkpoints_hides_nothing(tmp_path):
    folder = Study(seeds=(1,), analyses=(), control=0).write(tmp_path / "checkpoints" / "study")
    assert len(memloc.load_results(folder).runs) == 4


def record(layers=(0,), p=None, seed=0):
    """The record of an answer for a memory in these layers, from 0."""
    rng = np.random.default_rng(seed)
    shares = np.zeros((30, 12))
    shares[:, list(layers)] = rng.dirichlet(np.full(len(layers), 50.0), size=30)
    found = answer(Evidence(shares, np.zeros(30), rng.normal(size=60)))
    return replace(found, p=found.p if p is None else p).record()


RUN = {"task": "t", "category": "c", "model": "m", "seed": 1, "method": "shares"}


def study(*told):
    """Answers of a study and the weights of its layers: seed, method, answer, layers from 0."""
    rows, weights = [], []
    for seed, method, found, layers in told:
        run = {**RUN, "seed": seed, "method": method}
        rows.append({**run, **Answer.of(found).row()})
        held = np.isin(np.arange(12), layers).astype(float)
        weights += [{**run, "layer": i + 1, "weight": w} for i, w in enumerate(held)]
    return compared(pd.DataFrame(rows), pd.DataFrame(weights))


def test_an_answer_is_a_finding_if_it_holds_after_correction_over_runs():
    # Holm over the three runs of the most exact method: 0.01 · 3, 0.04 · 2, and 1.
    weights = answer_weights("gradients", np.ones(12)).record()
    ps = {1: 0.01, 2: 0.04, 3: 1.0}
    told = [(seed, "shares", record(p=p), [0]) for seed, p in ps.items()]
    alone = study(*told)
    more = [(1, "gradients", weights, range(12)), (1, "swapping", record(p=0.001), [0])]
    found = study(*told, *more)
    for table in (alone, found):
        first = table[table["primary"]]
        assert first["method"].tolist() == ["shares"] * 3
        assert first["corrected"].tolist() == [0.03, 0.08, 1]
        assert first["finding"].tolist() == [True, False, False]
    others = found[~found["primary"]]
    assert others["corrected"].isna().all()
    assert not others["finding"].any()


def test_other_methods_agree_if_their_half_holds_half_by_the_primary_method():
    weights = answer_weights("gradients", np.ones(12)).record()
    found = study(
        (1, "shares", record([0, 1]), [0, 1]),
        (1, "swapping", record([0]), [0]),
        (1, "gradients", weights, [7, 8]),
        (2, "shares", record(range(12)), range(12)),
        (2, "swapping", record([0]), [0]),
        (3, "swapping", record([0]), [0]),
    )
    # Any layers hold half of an even memory, and run 3 has no shares: nothing can be compared.
    assert found["agrees"].tolist() == ["", "yes", "no", "", "", ""]


def test_an_answer_on_a_plant_is_right_if_half_is_in_planted_layers():
    plant = {**RUN, "planted": "2+9", "first": 2, "last": 9, "null": False}
    every = [(plant, record(layers)) for layers in ((1,), (1, 8), (2,), range(12))]
    every.append(({**plant, "null": True}, record((1,))))
    found = [is_right(run, Answer.of(answer)) for run, answer in every]
    assert found == [True, True, False, False, False]


def test_without_answers_their_tables_are_empty():
    assert list(read_answers("control_answers", []).columns) == COLUMNS["control_answers"]
    none = pd.DataFrame(columns=COLUMNS["answers"])
    assert list(compared(none, None).columns) == COLUMNS["answers"]
