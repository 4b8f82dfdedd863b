"""Tests over layers hold their level, whatever the shares of single examples look like."""

import numpy as np
import pytest

from memloc.stats import evenness
from memloc.stats.evenness import (
    UnevenLayers,
    _overlap_score,
    _overlaps_without,
    effective_layers,
    overlap,
    tail_p,
    uneven_layers,
)

LAYERS = 12


def at_most(rate, runs):
    """The largest count that a test of this level may show, one-sided at 1 %."""
    return rate * runs + 2.33 * np.sqrt(rate * (1 - rate) * runs)


def test_overlap_is_that_of_pairs_written_out():
    shares = np.random.default_rng(0).normal(0.1, 0.1, size=(5, 8))
    totals = shares.sum(1)
    pairs = [(e, f) for e in range(5) for f in range(5) if e != f]
    expected = sum(shares[e] @ shares[f] for e, f in pairs)
    expected /= sum(totals[e] * totals[f] for e, f in pairs)
    assert overlap(shares) == pytest.approx(expected)


def test_the_jackknife_leaves_each_example_out():
    shares = np.random.default_rng(1).normal(0.1, 0.1, size=(6, 8))
    expected = [overlap(np.delete(shares, e, axis=0)) for e in range(6)]
    np.testing.assert_allclose(_overlaps_without(shares), expected)


@pytest.mark.parametrize("n_layers", [1, 2, 3, 4, 6, 12])
def test_the_effective_number_counts_even_layers(n_layers):
    shares = np.zeros((25, LAYERS))
    shares[:, :n_layers] = 1 / n_layers
    assert effective_layers(shares).number.estimate == pytest.approx(n_layers)


def test_both_sides_of_the_margin_exclude_each_other():
    rng = np.random.default_rng(2)
    for width in (1, 5, 6, 8, 12):
        shares = np.zeros((30, LAYERS))
        shares[:, :width] = rng.dirichlet(np.ones(width), size=30)
        found = effective_layers(shares)
        assert found.p_fewer + found.p_more == pytest.approx(1)
        assert found.number.low <= found.number.estimate <= found.number.high


@pytest.mark.parametrize("n_layers", [2, 4, 6, 10, 12, 14, 24])
def test_shares_exactly_at_the_margin_are_a_tie(n_layers):
    shares = np.zeros((25, n_layers))
    shares[:, : n_layers // 2] = 2 / n_layers
    found = effective_layers(shares)
    assert (found.p_fewer, found.p_more) == (0.5, 0.5)


def at_margin(kind, depth):
    """Profiles of effectively half of the layers: half of them evenly, or one that stands out."""
    if kind == "half":
        return np.where(np.arange(depth) < depth // 2, 2 / depth, 0.0)
    peak = (1 + np.sqrt(depth - 1)) / depth
    return np.r_[peak, np.full(depth - 1, (1 - peak) / (depth - 1))]


@pytest.mark.parametrize("depth", [12, 30])
@pytest.mark.parametrize("kind", ["half", "one stands out"])
def test_at_the_margin_each_side_is_called_in_about_one_run_of_twenty(kind, depth):
    rng, runs = np.random.default_rng(6), 400
    profile = at_margin(kind, depth)
    called = np.zeros(2)
    for _ in range(runs):
        found = effective_layers(np.eye(depth)[rng.choice(depth, size=40, p=profile)])
        called += [found.p_fewer <= 0.05, found.p_more <= 0.05]
    assert (called <= at_most(0.05, runs)).all()


def test_below_the_margin_the_error_is_that_at_the_margin():
    """A small overlap comes with a small error, and would be called surer than it is."""
    shares = np.random.default_rng(0).dirichlet(np.r_[2.0, np.full(11, 0.5)], size=36)
    value, n = overlap(shares), len(shares)
    without = _overlaps_without(shares)
    plain = np.sqrt((n - 1) / n * ((without - without.mean()) ** 2).sum())
    assert 1 / LAYERS < value < 2 / LAYERS
    wider = plain * (2 / LAYERS) / value
    number = effective_layers(shares).number
    assert 1 / number.low - value == pytest.approx(1.68957 * wider, rel=1e-4)


@pytest.mark.parametrize("n", [20, 100])
@pytest.mark.parametrize("depth", [12, 30])
def test_even_layers_are_rarely_named_though_shares_are_skewed(n, depth, monkeypatch):
    """Every example uses all layers but a random one, or a random one alone, or some negatively."""
    monkeypatch.setattr(evenness, "RESAMPLES", 399)
    rng = np.random.default_rng(6)
    runs, called = 60, np.zeros(3)
    for _ in range(runs):
        one = np.eye(depth)[rng.integers(depth, size=n)]
        negative = (rng.random((n, depth)) < 0.05) * -1.0
        even = [(1 - one) / (depth - 1), one, negative - negative.mean(1, keepdims=True)]
        called += [uneven_layers(shares).p <= 0.05 for shares in even]
    assert (called <= at_most(0.05, runs)).all()


def test_layers_above_and_below_an_even_share_are_named():
    rng = np.random.default_rng(3)
    profile = np.r_[2.0, 2.0, np.ones(8), 0.05, 0.05]
    found = uneven_layers(rng.dirichlet(profile, size=60))
    assert found.above == (1, 2)
    assert found.below == (11, 12)
    assert found.p < 0.001


def test_the_overlap_score_is_that_of_pairs_written_out():
    values = np.random.default_rng(7).normal(size=(5, 4))
    drawn = [0, 0, 2, 3, 3]
    pairs = [values[e] @ values[f] for i, e in enumerate(drawn) for f in drawn[:i]]
    expected = 2 * np.sum(pairs) / np.sqrt(2 * np.square(pairs).sum())
    counts = np.bincount(drawn, minlength=5)[np.newaxis]
    assert _overlap_score(counts, values) == pytest.approx(expected)


def test_certain_layers_have_the_smallest_p():
    found = uneven_layers(np.tile([1.0, 0.0, -1.0], (20, 1)))
    assert found.p < 0.001
    assert (found.above, found.below) == ((1,), (3,))


def test_shares_that_are_even_in_every_example_are_even():
    assert uneven_layers(np.full((20, LAYERS), 1 / LAYERS)) == UnevenLayers((), (), 1)


def test_no_layer_is_named_where_layers_do_not_differ_for_sure(monkeypatch):
    """One layer of thirty stands out by itself, but not among so many."""
    monkeypatch.setattr(evenness, "RESAMPLES", 399)
    shares = np.random.default_rng(22).dirichlet(np.r_[1.6, np.ones(29)], size=30)
    found = uneven_layers(shares)
    assert found.p > 0.1
    assert found.above == found.below == ()


def test_layers_with_an_even_share_are_rarely_named_among_others(monkeypatch):
    """Layer 1 has twice an even share and layer 2 hardly any; the others may not be named."""
    monkeypatch.setattr(evenness, "RESAMPLES", 399)
    rng, runs = np.random.default_rng(9), 100
    every = (rng.dirichlet(np.r_[7.9, 0.1, np.full(10, 4.0)], size=40) for _ in range(runs))
    found = [uneven_layers(shares) for shares in every]
    assert all({1, 2} <= {*each.above, *each.below} for each in found)
    assert sum(len(each.above + each.below) > 2 for each in found) <= at_most(0.05, runs)


def test_a_layer_that_no_example_happens_to_use_is_not_certainly_below():
    used = np.r_[np.zeros(10, int), np.arange(1, 11)]
    found = uneven_layers(np.eye(12)[used])
    assert found.p < 0.01
    assert (found.above, found.below) == ((1,), ())


@pytest.mark.parametrize(("n", "least"), [(20, 0.4), (40, 0.8)])
def test_labels_in_one_layer_each_are_called_uneven(n, least, monkeypatch):
    """Four of twelve layers hold 70 %; the largest T over layers alone finds .2 and .6 of them."""
    monkeypatch.setattr(evenness, "RESAMPLES", 399)
    rng, runs = np.random.default_rng(8), 100
    profile = np.r_[np.full(4, 0.175), np.full(8, 0.0375)]
    every = (np.eye(12)[rng.choice(12, size=n, p=profile)] for _ in range(runs))
    assert np.mean([uneven_layers(shares).p <= 0.05 for shares in every]) >= least


def test_p_can_be_as_small_as_a_correction_over_many_runs_needs():
    null = np.random.default_rng(4).normal(size=(9999, 12)).max(1)
    found = tail_p(null, np.array([1.0, 3.5, 6.0, 9.0]))
    assert found[0] == pytest.approx(np.mean(null >= 1), abs=1e-3)
    assert found[1] == pytest.approx(12 * 2.3e-4, rel=0.5)
    assert 12 * 1e-9 < found[2] < 1e-5  # a normal tail is lighter: p is rather too large
    assert found[3] < found[2]
