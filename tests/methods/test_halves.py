"""Halves of labelled texts: copies stay together, and answers are known by what made them."""

from dataclasses import replace

import numpy as np
import pytest

from memloc.methods.generalisation import Generalisation
from memloc.methods.halves import half_models, pool_of
from memloc.records import Examples

METHOD = Generalisation(models=2, epochs=1, learning_rate=1e-2)


@pytest.fixture
def pool(run):
    return pool_of(run, METHOD.training(run), METHOD.share)


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
    monkeypatch.setattr("memloc.methods.halves.train_half", None)
    again = half_models(replace(pool, name="another name"), 2)
    for one, other in zip(made, again, strict=True):
        np.testing.assert_array_equal(one.logits, other.logits)
    labels = (pool.examples.labels + 1) % 3
    other = replace(pool, examples=Examples(pool.examples.parts, labels))
    assert other.identity(1) != pool.identity(1) != pool.identity(2)
