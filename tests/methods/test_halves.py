"""Halves of labelled texts: copies stay together, and answers are known by what made them."""

from dataclasses import replace

import numpy as np
import pytest

from memloc.data.task import Examples
from memloc.methods.halves import (
    Generalisation,
    Half,
    half_models,
    mean_chances,
    pool_of,
    train_halves,
)

METHOD = Generalisation(models=2, epochs=1, learning_rate=1e-2)


@pytest.fixture
def pool(run):
    return pool_of(run, METHOD)


def test_copies_of_a_text_are_in_the_same_half(pool):
    parts = list(pool.examples.parts)
    parts[40:50] = parts[:10]
    copied = replace(pool, examples=Examples(tuple(parts), pool.examples.labels))
    assert copied.groups[40:50].tolist() == list(range(10))
    for model in range(1, 6):
        rows = set(copied.rows(model).tolist())
        assert all((i in rows) == (40 + i in rows) for i in range(10))


def test_without_copies_every_text_is_on_its_own(pool):
    assert pool.groups.tolist() == list(range(60))
    assert len(pool.rows(1)) == 30


def test_answers_are_read_wherever_the_same_was_asked(pool, tmp_path, monkeypatch):
    made = half_models(pool, 2)
    monkeypatch.setattr("memloc.methods.halves.train_halves", None)
    again = half_models(replace(pool, name="another name"), 2)
    for one, other in zip(made, again, strict=True):
        np.testing.assert_array_equal(one.logits, other.logits)
    labels = (pool.examples.labels + 1) % 3
    other = replace(pool, examples=Examples(pool.examples.parts, labels))
    assert other.key != pool.key
    monkeypatch.setattr(Generalisation, "version", Generalisation.version + 1)
    assert replace(pool).key != pool.key  # models of another version are not used again


def test_models_are_trained_in_one_pass_as_if_each_were_alone(pool):
    at_once = train_halves(pool, [1, 2, 3])
    alone = [train_halves(pool, [model])[model] for model in (1, 2, 3)]
    for one, other in zip(at_once.values(), alone, strict=True):
        np.testing.assert_array_equal(one.trained, other.trained)
        np.testing.assert_allclose(one.logits, other.logits, rtol=1e-3, atol=1e-4)
    assert not np.allclose(alone[0].logits, alone[1].logits, atol=1e-2)


def test_means_are_over_the_models_that_held_an_example_out():
    says = [
        Half(np.array([i == 0, True]), np.array([[0, i], [0, i]], np.float32)) for i in (0, 1, 2)
    ]
    chance = 1 / (1 + np.exp([-1.0, -2.0]))
    found = mean_chances(says, trained=False)
    np.testing.assert_allclose(found[0], [1 - chance.mean(), chance.mean()])
    assert np.isnan(found[1]).all()


def test_a_model_learns_with_an_adapter_if_the_run_did(pool):
    pytest.importorskip("peft")
    assert pool.start(1).adapted is None
    training = pool.training.replace({"adapter": "lora", "adapter_rank": 2})
    learns = list(replace(pool, training=training).start(1).model.parameters())
    assert 0 < sum(p.requires_grad for p in learns) < len(learns)
