"""Pooled positions and events, on vectors whose positions are made by hand."""

import numpy as np
import pytest

from memloc.data.task import NoisyLabels
from memloc.methods.centroids import (
    Centroids,
    drift,
    pooled,
    pooled_separability,
)
from memloc.methods.positions import KINDS, positions
from memloc.seeds import generator
from memloc.stats import intervals

PER_CLASS, NOISY = 20, 6
N = 2 * (PER_CLASS + NOISY)


def make_labels():
    """Two classes; the last examples of each are noisy."""
    original = np.repeat([0, 1], PER_CLASS + NOISY)
    is_noisy = np.tile(np.arange(PER_CLASS + NOISY) >= PER_CLASS, 2)
    return NoisyLabels(original, np.where(is_noisy, 1 - original, original), is_noisy)


def make_vectors(curve, spread=0.1):
    """Noisy examples are at `curve[l]` between their assigned (0) and original class (1)."""
    labels = make_labels()
    spreads = np.broadcast_to(spread, len(curve))
    # Symmetric around the centroid, so that centroids are exactly 0 and 1.
    around = np.concatenate([np.linspace(-1, 1, PER_CLASS), np.linspace(-1, 1, NOISY)])
    vectors = np.zeros((N, len(curve), 3))
    for layer, (place, width) in enumerate(zip(curve, spreads, strict=True)):
        from_original = np.where(labels.is_noisy, 1 - place, 0.0)
        at = np.where(labels.original == 0, from_original, 1 - from_original)
        vectors[:, layer, 0] = at + width * np.tile(around, 2)
    return vectors


def found_of(vectors, **settings):
    labels = make_labels()
    found = positions(vectors, labels, 2)
    separability = pooled_separability(found, vectors, labels, generator(0), shuffles=20)
    return drift(found, separability, Centroids(**settings), N)


def event_of(vectors, name, **settings):
    events = found_of(vectors, **settings)[1].set_index("event")
    return events.loc[name]


@pytest.mark.parametrize("tail", [0, 2, 8, 20], ids=["depth-4", "depth-6", "depth-12", "depth-24"])
@pytest.mark.parametrize(
    ("curve", "first", "last"),
    [
        ([1, 0.9, 0.8, 0.7, 0.6], np.nan, np.nan),
        ([1, 0.4, 0.3, 0.2, 0.1], 1, 1),
        ([1, 0.9, 0.4, 0.6, 0.2], 2, 4),
        ([1, 0.9, 0.8, 0.7, 0.4], 4, 4),
        ([0.2, 0.9, 0.8, 0.4, 0.3], 3, 3),
        ([1, 0.3, 0.7, 0.8, 0.9], 1, 1),
    ],
    ids=["never", "layer-1", "twice", "last-layer", "not-before-layer-1", "and-back"],
)
def test_the_crossing_is_where_the_noisy_mean_passes_the_middle(curve, first, last, tail):
    """Whatever the depth: what follows stays as it was at the end."""
    vectors = make_vectors(curve + [curve[-1]] * tail, spread=0.01)
    for events, expected in (("first", first), ("last", last)):
        found = event_of(vectors, "crossing", events=events)
        np.testing.assert_equal(found["layer"], expected)
        assert found["separable"] == (not np.isnan(expected))
        assert found["never"] == np.isnan(expected)


def test_the_limit_of_the_crossing_is_a_setting():
    vectors = make_vectors([1, 0.8, 0.45, 0.2], spread=0.01)
    assert event_of(vectors, "crossing")["layer"] == 2
    assert event_of(vectors, "crossing", crossing_at=0.3)["layer"] == 3


@pytest.mark.parametrize(
    ("spread", "first", "last"),
    [
        ([9, 9, 9, 9, 9], np.nan, np.nan),
        ([9, 0.1, 0.1, 0.1, 0.1], 1, 1),
        ([9, 9, 0.1, 9, 0.1], 2, 4),
        ([0.1, 9, 0.1, 0.1, 9], 2, np.nan),
    ],
    ids=["never", "layer-1", "twice", "not-to-the-end"],
)
def test_initiation_is_where_the_central_shares_do_not_overlap(spread, first, last):
    vectors = make_vectors([0.5] * 5, spread)
    for events, expected in (("first", first), ("last", last)):
        np.testing.assert_equal(event_of(vectors, "initiation", events=events)["layer"], expected)


def test_the_central_share_is_a_setting():
    # Evenly spread over ±0.6: the central half reaches to 0.3, three quarters to 0.45, all to 0.6.
    vectors = make_vectors([1, 0.5], spread=0.6)
    assert event_of(vectors, "initiation", central=0.75)["layer"] == 1
    assert np.isnan(event_of(vectors, "initiation", central=0.99)["layer"])


def test_layers_hold_mean_and_central_share_of_every_kind():
    layers, _ = found_of(make_vectors([1, 0.25], spread=0.4))
    row = layers[(layers["layer"] == 1)].set_index("kind")
    around = np.concatenate([0.4 * np.linspace(-1, 1, NOISY)] * 2)
    assert list(row.index) == list(KINDS)
    assert row.loc["noisy", "mean"] == pytest.approx(0.25)
    low, high = np.quantile(0.25 + around, [0.125, 0.875])
    assert row.loc["noisy", "low"] == pytest.approx(low)
    assert row.loc["noisy", "high"] == pytest.approx(high)
    assert row.loc["clean a", "mean"] == pytest.approx(0)
    assert row.loc["clean b", "mean"] == pytest.approx(1)


def test_the_interval_of_the_mean_is_as_wide_as_theory_says():
    layers, _ = found_of(make_vectors([1, 0.5], spread=0.4))
    row = layers[(layers["layer"] == 1) & (layers["kind"] == "noisy")].iloc[0]
    error = (0.4 * np.linspace(-1, 1, NOISY)).std() / np.sqrt(2 * NOISY)
    assert row["mean_high"] - row["mean_low"] == pytest.approx(2 * 1.96 * error, rel=0.15)


def test_counted_examples_are_repeated_ones():
    labels = make_labels()
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(N, 2, 3)) + labels.original[:, None, None]
    found = positions(vectors, labels, 2)
    counts = rng.integers(0, 4, (5, N))
    for kind in range(3):
        mine = pooled(found, kind, counts, 0.75)
        rows = found.case == kind
        for draw, times in enumerate(counts):
            plain = np.repeat(found.position[rows], times[found.example[rows]], axis=0)
            low, high = np.quantile(plain, [0.125, 0.875], axis=0)
            np.testing.assert_allclose(mine[draw], [plain.mean(0), low, high])


def test_a_draw_without_such_examples_has_no_numbers():
    labels = make_labels()
    found = positions(make_vectors([1, 0.5]), labels, 2)
    mine = pooled(found, 0, (~labels.is_noisy)[None].astype(np.int64), 0.75)
    assert np.isnan(mine).all()


def test_draws_without_a_noisy_example_are_not_never():
    """The one noisy example is at its assigned class in every layer."""
    labels = make_labels()
    one = np.flatnonzero(labels.is_noisy)[0]
    kept = np.flatnonzero(~labels.is_noisy | (np.arange(N) == one))
    few = NoisyLabels(labels.original[kept], labels.assigned[kept], labels.is_noisy[kept])
    vectors = make_vectors([1, 0.0, 0.0])[kept]
    found = positions(vectors, few, 2)
    separability = pooled_separability(found, vectors, few, generator(0), shuffles=20)
    events = drift(found, separability, Centroids(), len(kept))[1].set_index("event")
    crossing = events.loc["crossing"]
    assert (crossing["layer"], crossing["low"], crossing["high"], crossing["never"]) == (1, 1, 1, 0)


def test_pieces_of_resamples_do_not_matter(monkeypatch):
    vectors = make_vectors([1, 0.52, 0.2], spread=0.5)
    whole = found_of(vectors)
    monkeypatch.setattr(intervals, "CHUNK", 1000)
    for one, other in zip(whole, found_of(vectors), strict=True):
        assert one.equals(other)


def test_an_uncertain_event_has_a_wide_interval():
    found = event_of(make_vectors([1, 0.52, 0.51, 0.2], spread=0.5), "crossing")
    assert (found["layer"], found["low"], found["high"]) == (3, 1, 3)


def test_where_all_vectors_are_the_same_there_is_nothing():
    """As at layer 0 of a model that reads the first token."""
    vectors = make_vectors([1, 0.4])
    vectors[:, 0] = 7
    layers, events = found_of(vectors)
    start = layers[layers["layer"] == 0]
    assert start["mean"].isna().all()
    assert not start["separable"].any()
    assert events.set_index("event").loc["crossing", "layer"] == 1


def test_an_event_where_classes_cannot_be_told_apart_is_marked():
    rng = np.random.default_rng(3)
    vectors = make_vectors([1, 0.2, 0.2])
    vectors[:, 1] = rng.normal(size=(N, 3))
    labels = make_labels()
    # Noisy examples at the centroid of their assigned class, which is where it is by chance.
    a, b = (vectors[(labels.original == c) & ~labels.is_noisy, 1].mean(0) for c in (0, 1))
    vectors[labels.is_noisy & (labels.original == 1), 1] = a
    vectors[labels.is_noisy & (labels.original == 0), 1] = b
    found = event_of(vectors, "crossing")
    assert found["layer"] == 1
    assert not found["separable"]


def test_classes_that_are_alike_are_seldom_called_separable():
    rng, labels = np.random.default_rng(0), make_labels()
    vectors = rng.normal(size=(N, 80, 8))
    found = positions(vectors, labels, 2)
    separability = pooled_separability(found, vectors, labels, generator(0))
    assert separability.separable.mean() < 0.15
    np.testing.assert_allclose(separability.by_chance, separability.by_chance.mean(), rtol=0.2)
    apart = vectors + 0.6 * labels.original[:, None, None]
    found = positions(apart, labels, 2)
    assert pooled_separability(found, apart, labels, generator(0)).separable.mean() > 0.85


def test_pairs_without_noisy_examples_do_not_count_in_separability():
    """Three classes, one far away, whose examples are all clean."""
    labels = make_labels()
    rng = np.random.default_rng(1)
    far = NoisyLabels(
        np.concatenate([labels.original, np.full(20, 2)]),
        np.concatenate([labels.assigned, np.full(20, 2)]),
        np.concatenate([labels.is_noisy, np.zeros(20, bool)]),
    )
    near = rng.normal(size=(N, 1, 4))
    vectors = np.concatenate([near, rng.normal(size=(20, 1, 4)) + 50])
    separability = pooled_separability(positions(vectors, far, 3), vectors, far, generator(0))
    assert separability.separability[0] < 2
