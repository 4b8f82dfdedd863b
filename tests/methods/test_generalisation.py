"""The generalisation score against hand counts, and its trainings one by one."""

import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import softmax

from fixtures.runs import altered
from memloc.errors import StoreError
from memloc.methods import Sizes, halves
from memloc.methods.halves import (
    Generalisation,
    Half,
    examples_table,
    generalised,
    pool_of,
    summary,
    trained_half,
    validation_score,
)
from memloc.progress import telling
from memloc.run.folder import Run
from memloc.run.records import at_the_end
from memloc.store import paths

METHOD = Generalisation(models=3, epochs=1, learning_rate=1e-2)


def make_half(trained, probability):
    """Of label 1 of two."""
    chances = np.array(probability)
    logits = np.log(np.stack([1 - chances, chances], axis=1))
    return Half(np.array(trained, bool), logits.astype(np.float32))


ONES = np.ones(4, dtype=np.int64)


def toy_table(is_noisy=(False, True, True, False)):
    found = examples_table(HALVES, ONES)
    return found.assign(is_noisy=np.array(is_noisy))


def train_half(run, settings, model):
    pool = pool_of(run, settings)
    return halves.train_halves(pool, [model])[model]


HALVES = [
    make_half([1, 1, 0, 0], [0.9, 0.8, 0.3, 0.6]),
    make_half([1, 0, 1, 0], [0.7, 0.2, 0.9, 0.5]),
    make_half([0, 1, 1, 0], [0.4, 0.6, 0.7, 0.1]),
]


def test_a_toy_table_by_hand():
    found = toy_table()
    np.testing.assert_allclose(found["trained"], [0.8, 0.7, 0.8, np.nan], rtol=1e-6)
    np.testing.assert_allclose(found["held_out"], [0.4, 0.2, 0.3, 0.4], rtol=1e-6)
    np.testing.assert_allclose(found["counterfactual"], [0.4, 0.5, 0.5, np.nan], rtol=1e-6)
    assert found["n_trained"].tolist() == [2, 2, 2, 0]
    assert found["n_held_out"].tolist() == [1, 1, 1, 3]


@pytest.mark.parametrize(("classes", "score", "clean"), [(2, 0, 0), (3, 0.5, 1), (4, 0.75, 1)])
def test_the_score_is_the_share_above_one_over_classes(classes, score, clean):
    examples = toy_table()
    row = summary(examples, np.array([0, 1, 1, 1]), classes, 3, 0.25).iloc[0]
    assert row["score"] == score
    assert row["clean_score"] == clean
    assert row["low"] <= score <= row["high"]
    assert (row["models"], row["validation_score"]) == (3, 0.25)


def test_a_majority_predictor_scores_the_majority_and_nothing_above_it():
    """Nine of ten have label 0, and so has every prediction: the score of 0.9 says nothing."""
    assigned = np.array([0] * 9 + [1])
    trained = np.arange(10) < 5
    says_zero = np.tile(np.array([50, -50], np.float32), (10, 1))
    found = examples_table([Half(part, says_zero) for part in (trained, ~trained)], assigned)
    examples = found.assign(is_noisy=np.arange(10) == 3)
    row = summary(examples, assigned, 2, 2, 0.0).iloc[0]
    assert (row["score"], row["majority"]) == (0.9, 0.9)
    assert row["normalised"] == pytest.approx(0)
    assert row["normalised_low"] < 0 < row["normalised_high"]


def test_what_no_model_held_out_does_not_count():
    examples = pd.DataFrame({"held_out": [0.9, 0.1, np.nan, np.nan]})
    assert generalised(examples, 2).estimate == 0.5
    assert np.isnan(generalised(examples[2:], 2).estimate)


@pytest.mark.parametrize(("n", "size"), [(2, 1), (3, 2), (60, 30), (61, 30)])
def test_a_half_is_random_and_its_own(n, size):
    rows = trained_half(n, 0.5, seed=1, model=1)
    assert len(set(rows.tolist())) == size
    np.testing.assert_array_equal(rows, trained_half(n, 0.5, seed=1, model=1))
    others = {tuple(trained_half(n, 0.5, seed, model)) for seed in (1, 2) for model in range(1, 9)}
    assert len(others) > 1


def test_every_example_is_in_about_half_of_the_halves():
    counts = sum(np.isin(np.arange(50), trained_half(50, 0.5, 1, model)) for model in range(1, 201))
    assert 70 < counts.min() <= counts.max() < 130


@pytest.mark.parametrize("over", ["trained", "all"])
def test_halves_are_trained_with_the_clipping_of_fine_tuning(run, monkeypatch, over):
    counted, plain = set(), torch.nn.utils.clip_grad_norm_

    def watched(tensors, clip):
        given = list(tensors)
        counted.add(sum(t.numel() for t in given))
        return plain(given, clip)

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", watched)
    other = altered(run, settings=run.settings.replace({"finetune.clip_over": over}))
    train_half(other, METHOD, 1)
    model = run.load("final")
    embedded = sum(p.numel() for n, p in model.model.named_parameters() if "embed" in n)
    everything = sum(p.numel() for p in model.model.parameters())
    assert embedded > 0
    assert counted == {everything - (embedded if over == "trained" else 0)}


def test_the_probability_is_that_of_the_softmax():
    logits = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32) * 50
    labels = np.array([0, 1, 2, 0, 1, 2])
    expected = softmax(logits.astype(float), axis=1)[np.arange(6), labels]
    half = Half(np.zeros(6, bool), logits)
    np.testing.assert_allclose(half.chances[np.arange(6), labels], expected)
    assert half.right(labels).tolist() == (logits.argmax(1) == labels).tolist()


def test_held_out_labels_have_no_influence(run):
    """Other labels for what a model was not trained on leave all else as it was."""
    first = train_half(run, METHOD, 1)
    out = ~first.trained
    run.noisy.assigned[out] = (run.noisy.assigned[out] + 1) % 3
    second = train_half(run, METHOD, 1)
    np.testing.assert_array_equal(first.logits, second.logits)


def test_models_learn_what_they_are_trained_on(run):
    found = METHOD.replace({"epochs": 12, "models": 2}).run(run)
    models = found["models"]
    assert (models["trained_accuracy"] > models["held_out_accuracy"] + 0.1).all()
    assert found["examples"]["counterfactual"].mean() > 0.05


def test_halves_are_fine_tuned_like_the_run(run):
    own = METHOD.training(run.settings.finetune)
    assert (own.epochs, own.learning_rate) == (1, 1e-2)
    changed = {"epochs": own.epochs, "learning_rate": own.learning_rate}
    assert own == run.settings.finetune.replace(changed)


@pytest.fixture
def counted(monkeypatch):
    """Which models are trained."""
    made, real = [], halves.train_halves

    def watched(pool, models, advance):
        made.extend(models)
        return real(pool, models, advance)

    monkeypatch.setattr(halves, "train_halves", watched)
    return made


def test_finished_models_are_kept_and_the_rest_goes_on(run, counted):
    whole = METHOD.run(run)
    assert counted == [1, 2, 3]
    paths.kept_models(run.work("generalisation"), 1).unlink()
    again = METHOD.run(run)
    assert counted == [1, 2, 3, 1, 2, 3]  # as one: what comes out is the same bits
    for name, table in whole.tables.items():
        pd.testing.assert_frame_equal(table, again[name])


def test_more_models_need_only_the_new_ones(run, counted):
    METHOD.run(run)
    more = METHOD.replace({"models": 4}).run(run)
    assert more["summary"]["models"].tolist() == [4]
    assert counted == [1, 2, 3, 4]


@pytest.mark.parametrize("change", [{"epochs": 2}, {"share": 0.4}, {"learning_rate": 2e-2}])
def test_models_of_other_settings_are_made_again(run, counted, change):
    METHOD.run(run)
    METHOD.replace(change).run(run)
    assert counted == [1, 2, 3, 1, 2, 3]


@pytest.mark.parametrize(
    ("setting", "value", "again"),
    [
        ("near_ceiling", 0.5, False),
        ("accumulate", 2, False),
        ("warmup", 0.3, True),
        ("weight_decay", 0.1, True),
    ],
)
def test_settings_of_the_run_that_decide_make_models_anew(run, counted, setting, value, again):
    METHOD.run(run)
    other = altered(run, settings=run.settings.replace({f"finetune.{setting}": value}))
    METHOD.run(other)
    assert counted == [1, 2, 3, *([1, 2, 3] if again else [])]


def test_damaged_answers_are_made_again_and_that_is_said(run, counted):
    METHOD.run(run)
    paths.kept_models(run.work("generalisation"), 1).write_bytes(b"nothing")
    said = []
    with telling(said.append):
        METHOD.run(run)
    assert counted == [1, 2, 3, 1, 2, 3]
    assert any("models-1.npz is damaged" in sentence for sentence in said)


def test_the_validation_score_is_accuracy_beyond_chance(run):
    accuracy = at_the_end(run.training(), "noisy", "validation_accuracy")
    assert validation_score(run) == pytest.approx((accuracy - 1 / 3) / (2 / 3))
    (run.folder / "training.parquet").unlink()
    with pytest.raises(StoreError, match=r"training\.parquet does not exist"):
        validation_score(run)
    shutil.rmtree(run.path("final"))  # an adopted run has no weights of its own, nor curves
    assert np.isnan(validation_score(run))


def test_results_are_the_same_when_computed_again(trained, tmp_path):
    found = []
    for name in ("one", "two"):
        folder = shutil.copytree(trained(), tmp_path / name)
        found.append(train_half(Run.open(folder, "cpu"), METHOD, 2))
    np.testing.assert_array_equal(found[0].logits, found[1].logits)


def test_every_model_costs_its_epochs_and_a_look_at_all_examples():
    sizes = Sizes(
        examples=100,
        noisy=15,
        depth=12,
        update=0.1,
        predict=0.01,
        layer=0.1,
        last_layer=0.05,
        probe=1,
    )
    assert Generalisation(models=4, epochs=3, share=0.5).cost(sizes) == pytest.approx(
        4 * (3 * 50 * 0.1 + 100 * 0.01)
    )
