"""Runs to retrain, and what a retrained window says."""

import numpy as np
import pytest
import torch

from memloc.engine.packing import Layout, balanced
from memloc.methods import retrainer
from memloc.methods.retrainer import retrain_windows
from memloc.methods.retraining import Retraining
from memloc.model.predict import evaluating
from run_support import random_run

METHOD = Retraining(epochs=2, batch_size=4, learning_rate=0.02, normalise=False)
UPDATES = 2 * 4
"""Two epochs of 14 examples in batches of four."""


def retrainable(home, family="bert", **more):
    """A run with final and pre-trained weights that have nothing to do with each other."""
    return random_run(home, family, weights=("final", "pretrained"), **more)


def trained_logits(setup, window, rows):
    """Of the retrained model."""
    seen = []

    def look(inner, stack, some):
        with evaluating(stack.model):
            seen.append(inner.forward.logits(rows, stack))
        return np.zeros((1, len(some)), dtype=bool)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retrainer, "_wrong", look)
        retrain_windows(setup, [window])
    return seen[0]


def in_long_texts(number):
    """A layout of so many long texts, or of as many as there are texts; none where too long."""

    def layout(stack, mask, **_):
        lengths = mask.sum(1).view(1, -1).numpy()
        found = Layout.of(mask, torch.from_numpy(balanced(lengths, min(number, len(mask)))))
        most = stack.model.config.max_position_embeddings
        return found if found.example.shape[1] <= most else None

    return layout


def weights_of(stack):
    return {name: value.clone() for name, value in stack.model.state_dict().items()}


def assert_equal_weights(one, other):
    assert one.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def assert_same_scores(one, other):
    np.testing.assert_array_equal(one.outcomes.wrong, other.outcomes.wrong)
    np.testing.assert_array_equal(one.weights, other.weights)
    assert (one.mcog, one.about) == (other.mcog, other.about)
