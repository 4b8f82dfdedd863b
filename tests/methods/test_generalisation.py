"""The generalisation score against hand counts, and its trainings one by one."""

import numpy as np
import pandas as pd
import pytest
from scipy.special import softmax

from memloc.analyse import generalisation as module
from memloc.analyse.generalisation import (
    Half,
    examples_table,
    generalisation,
    generalised,
    half_of,
    probability_of,
    summary,
    train_half,
    validation_score,
)
from memloc.analyse.material import Material
from memloc.errors import StoreError
from memloc.train.run import Run


def make_half(trained, probability):
    return Half(np.array(trained, bool), np.array(probability), np.array(probability) > 0.5)


HALVES = [
    make_half([1, 1, 0, 0], [0.9, 0.8, 0.3, 0.6]),
    make_half([1, 0, 1, 0], [0.7, 0.2, 0.9, 0.5]),
    make_half([0, 1, 1, 0], [0.4, 0.6, 0.7, 0.1]),
]


def test_a_toy_table_by_hand():
    found = examples_table(HALVES, np.array([False, True, True, False]))
    np.testing.assert_allclose(found["trained"], [0.8, 0.7, 0.8, np.nan])
    np.testing.assert_allclose(found["held_out"], [0.4, 0.2, 0.3, 0.4])
    np.testing.assert_allclose(found["counterfactual"], [0.4, 0.5, 0.5, np.nan])
    assert found["n_trained"].tolist() == [2, 2, 2, 0]
    assert found["n_held_out"].tolist() == [1, 1, 1, 3]


@pytest.mark.parametrize(("classes", "score", "clean"), [(2, 0, 0), (3, 0.5, 1), (4, 0.75, 1)])
def test_the_score_is_the_share_above_one_over_classes(classes, score, clean):
    examples = examples_table(HALVES, np.array([False, True, True, False]))
    row = summary(examples, classes, 3, 0.25).iloc[0]
    assert row["score"] == score
    assert row["clean_score"] == clean
    assert row["low"] <= score <= row["high"]
    assert (row["models"], row["validation_score"]) == (3, 0.25)


def test_what_no_model_held_out_does_not_count():
    examples = pd.DataFrame({"held_out": [0.9, 0.1, np.nan, np.nan]})
    assert generalised(examples, 2).estimate == 0.5
    assert np.isnan(generalised(examples[2:], 2).estimate)


@pytest.mark.parametrize(("n", "size"), [(2, 1), (3, 2), (60, 30), (61, 30)])
def test_a_half_is_random_and_its_own(n, size):
    rows = half_of(n, 0.5, seed=1, model=1)
    assert len(set(rows.tolist())) == size
    np.testing.assert_array_equal(rows, half_of(n, 0.5, seed=1, model=1))
    others = {tuple(half_of(n, 0.5, seed, model)) for seed in (1, 2) for model in range(1, 9)}
    assert len(others) > 1


def test_every_example_is_in_about_half_of_the_halves():
    counts = sum(np.isin(np.arange(50), half_of(50, 0.5, 1, model)) for model in range(1, 201))
    assert 70 < counts.min() <= counts.max() < 130


def test_the_probability_is_that_of_the_softmax():
    logits = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32) * 50
    labels = np.array([0, 1, 2, 0, 1, 2])
    expected = softmax(logits.astype(float), axis=1)[np.arange(6), labels]
    np.testing.assert_allclose(probability_of(logits, labels), expected)


def test_held_out_labels_have_no_influence(material):
    """Other labels for what a model was not trained on leave all else as it was."""
    first = train_half(material, 1)
    out = ~first.trained
    material.noisy.assigned[out] = (material.noisy.assigned[out] + 1) % 3
    second = train_half(material, 1)
    np.testing.assert_array_equal(first.probability[first.trained], second.probability[~out])
    assert not np.allclose(first.probability[out], second.probability[out])


def test_models_learn_what_they_are_trained_on(material):
    changed = {"generalisation.epochs": 12, "generalisation.models": 2}
    found = generalisation(Material.of(material.run, changed, "cpu"))
    models = found["models"]
    assert (models["trained_accuracy"] > models["held_out_accuracy"] + 0.1).all()
    assert found["examples"]["counterfactual"].mean() > 0.05


@pytest.fixture
def counted(monkeypatch):
    """Which models are trained."""
    made, real = [], module.train_half

    def watched(material, model, advance):
        made.append(model)
        return real(material, model, advance)

    monkeypatch.setattr(module, "train_half", watched)
    return made


def test_finished_models_are_kept_and_the_rest_goes_on(material, counted):
    whole = generalisation(material)
    assert counted == [1, 2, 3]
    (material.work / "generalisation" / "model-2.parquet").unlink()
    again = generalisation(material)
    assert counted == [1, 2, 3, 2]
    for name, table in whole.tables.items():
        pd.testing.assert_frame_equal(table, again[name])


def test_more_models_need_only_the_new_ones(material, counted):
    generalisation(material)
    more = Material.of(material.run, {"generalisation.models": 4}, "cpu")
    assert generalisation(more)["summary"]["models"].tolist() == [4]
    assert counted == [1, 2, 3, 4]


def test_models_of_other_settings_are_made_again(material, counted):
    generalisation(material)
    other = Material.of(material.run, {"generalisation.epochs": 2}, "cpu")
    generalisation(other)
    assert counted == [1, 2, 3, 1, 2, 3]


def test_a_damaged_piece_is_named(material):
    generalisation(material)
    piece = material.work / "generalisation" / "model-1.parquet"
    piece.write_bytes(b"nothing")
    with pytest.raises(StoreError, match=r"model-1\.parquet is not Parquet"):
        generalisation(material)


def test_the_validation_score_is_accuracy_beyond_chance(material):
    table = material.run.training()
    accuracy = table[table["training"] == "noisy"]["validation_accuracy"].iloc[-1]
    assert validation_score(material) == pytest.approx((accuracy - 1 / 3) / (2 / 3))


def test_results_are_the_same_when_computed_again(trained, tmp_path):
    found = []
    for name in ("one", "two"):
        run = Run(tmp_path / name, Run.open(trained()).about)
        source = Material.of(Run.open(trained()), device="cpu")
        copy = Material(run, source.task, source.noisy, source.protocol, "cpu")
        found.append(train_half(copy, 2))
    np.testing.assert_array_equal(found[0].probability, found[1].probability)
