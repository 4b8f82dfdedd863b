"""Trivial baselines beside numbers computed by hand."""

import numpy as np
import pytest
import torch

from fixtures.runs import DEPTH, make_classifier, make_run, random_run
from memloc.methods.gradients import Gradients
from memloc.methods.registry import find_method, method_names
from memloc.methods.trivial import TRIVIAL, PlainGradients, RelativeDistance, WeightDistance


def moved(by):
    """A model whose layers were moved by these distances."""
    loaded = make_classifier(seed=1)
    with torch.no_grad():
        for distance, block in zip(by, loaded.stack.blocks, strict=True):
            first = next(block.parameters())
            first.view(-1)[0] += distance
    return loaded


@pytest.fixture
def pair(tmp_path):
    return make_run(
        tmp_path,
        loaders={"final": lambda: moved([0, 3, 4]), "reference": lambda: moved([0, 0, 0])},
    )


def test_a_distance_is_that_between_the_weights_of_each_layer(pair):
    np.testing.assert_allclose(WeightDistance().run(pair), [0, 9, 16], rtol=1e-5)


def test_a_relative_distance_is_a_share_of_the_reference_s_size(pair):
    blocks = moved([0, 0, 0]).stack.blocks
    sizes = [torch.cat([p.flatten() for p in b.parameters()]).norm().item() for b in blocks]
    expected = (np.array([0, 3, 4]) / sizes) ** 2
    np.testing.assert_allclose(RelativeDistance().run(pair), expected, rtol=1e-5)


def test_plain_gradients_are_gradients_without_post_processing(tmp_path):
    run = random_run(tmp_path, weights=("memorised", "frozen"))
    plain = Gradients(subtract_clean=False, divide_frozen=False).run(run)
    np.testing.assert_allclose(PlainGradients().run(run), plain.weights)


@pytest.mark.parametrize("kind", TRIVIAL, ids=lambda kind: kind.name)
def test_trivial_baselines_are_methods_that_run_only_where_they_are_named(kind, tmp_path):
    assert find_method(kind.name) is kind
    assert kind.name not in method_names("localiser")
    run = random_run(tmp_path, weights=("final", "reference", "memorised", "pretrained"))
    scores = kind().found(run)
    assert len(scores.weights) == DEPTH
    assert (scores.weights >= 0).all()


def test_random_guesses_differ_between_runs_and_are_repeatable(tmp_path):
    kind = find_method("random_guess")
    one, other = (random_run(tmp_path, seed=seed) for seed in (1, 2))
    np.testing.assert_array_equal(kind().run(one), kind().run(one))
    assert not np.array_equal(kind().run(one), kind().run(other))
