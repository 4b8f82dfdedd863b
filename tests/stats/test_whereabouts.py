"""How much is where: known answers by hand, and intervals that contain the truth."""

import numpy as np
import pytest

from memloc.stats import whereabouts as module
from memloc.stats.whereabouts import smallest_halves, whereabouts


def test_layers_that_hold_half_are_named_with_their_share():
    shares = np.zeros((40, 12))
    shares[:, 0], shares[:, 1], shares[:, 8] = 0.5, 0.3, 0.2
    found = whereabouts(shares)
    assert found.layers == (1,)
    assert found.held.estimate == pytest.approx(0.5)
    assert found.first_half.estimate == pytest.approx(0.8)
    assert found.centre.estimate == pytest.approx(0.5 + 0.6 + 1.8)
    assert found.agreement == 1
    assert found.sentence == (
        "layer 1 holds 50% [50, 50] of the memorised labels, the first 6 layers 80% [80, 80]."
    )


def test_late_memories_are_described_by_the_last_half_and_what_is_undone():
    shares = np.zeros((40, 12))
    shares[:30, 8:11] = 1 / 3  # a quarter of the labels is not undone
    found = whereabouts(shares)
    assert found.undone == pytest.approx(0.75)
    assert found.sentence == (
        "layers 9 to 10 hold 67% [67, 67] of the 75% of labels that are undone, the last 6 layers "
        "100% [100, 100]."
    )


def test_sentences_are_short():
    shares = np.random.default_rng(1).dirichlet(np.ones(12), size=40)
    assert len(whereabouts(shares).sentence.split()) <= 30


def test_nothing_is_described_where_nothing_is_undone():
    assert whereabouts(np.zeros((30, 12))) is None
    assert whereabouts(np.full((1, 12), 1 / 12)) is None


def test_negative_shares_are_no_part_of_the_smallest_set():
    (marked,) = smallest_halves(np.array([[0.5, -0.3, 0.4, 0.4]]))
    assert marked.tolist() == [True, False, True, False]


def test_intervals_contain_the_truth_about_as_often_as_they_say(monkeypatch):
    monkeypatch.setattr(module, "RESAMPLES", 499)
    profile = np.array([4, 3, 2, 1, 1, 1]) / 12
    hits = 0
    for seed in range(100):
        shares = np.random.default_rng(seed).dirichlet(2 * profile, size=40)
        found = whereabouts(shares).first_half
        hits += found.low <= profile[:3].sum() <= found.high
    assert 86 <= hits <= 100
