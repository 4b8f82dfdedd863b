import time

import numpy as np
import pytest

from memloc.data.task import NoisyLabels
from memloc.errors import DataError
from memloc.methods.positions import KINDS, positions, shuffled_separability

N, LAYERS, WIDTH, CLASSES = 120, 5, 6, 4


def make_labels(seed=0, n=N, n_classes=CLASSES, rate=0.3):
    rng = np.random.default_rng(seed)
    original = rng.integers(0, n_classes, n)
    is_noisy = rng.random(n) < rate
    wrong = (original + rng.integers(1, n_classes, n)) % n_classes
    return NoisyLabels(original, np.where(is_noisy, wrong, original), is_noisy)


def make_vectors(labels, seed=0, shift=50.0):
    """Classes apart from each other, and all far from zero, as hidden states are."""
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(CLASSES, LAYERS, WIDTH))
    noise = rng.normal(size=(len(labels.original), LAYERS, WIDTH))
    return (means[labels.original] + noise + shift).astype(np.float32)


def rows_of(found, a, b, kind):
    pair = np.flatnonzero((found.pairs == (a, b)).all(1))
    return np.flatnonzero(np.isin(found.pair, pair) & (found.case == KINDS.index(kind)))


def test_positions_are_direct_projections_for_each_pair_and_layer():
    labels = make_labels()
    vectors = make_vectors(labels)
    found = positions(vectors, labels, CLASSES)
    clean = ~labels.is_noisy
    seen = 0
    for a in range(CLASSES):
        for b in set(range(CLASSES)) - {a}:
            groups = {
                "noisy": ~clean & (labels.assigned == a) & (labels.original == b),
                "clean a": clean & (labels.original == a),
                "clean b": clean & (labels.original == b),
            }
            for kind, group in groups.items():
                rows = rows_of(found, a, b, kind)
                assert np.array_equal(found.example[rows], np.flatnonzero(group))
                seen += len(rows)
                for layer in range(LAYERS):
                    h = vectors[:, layer].astype(float)
                    c_a, c_b = h[groups["clean a"]].mean(0), h[groups["clean b"]].mean(0)
                    expected = (h[group] - c_a) @ (c_b - c_a) / ((c_b - c_a) ** 2).sum()
                    assert np.allclose(found.position[rows, layer], expected, atol=1e-9)
    assert seen == len(found.pair)


def test_clean_examples_are_at_0_and_1_on_average_and_the_other_way_round_is_the_mirror():
    labels = make_labels()
    found = positions(make_vectors(labels), labels, CLASSES)
    assert np.allclose(found.position[rows_of(found, 2, 1, "clean a")].mean(0), 0, atol=1e-9)
    assert np.allclose(found.position[rows_of(found, 2, 1, "clean b")].mean(0), 1, atol=1e-9)
    one, other = rows_of(found, 2, 1, "clean a"), rows_of(found, 1, 2, "clean b")
    assert np.allclose(found.position[one], 1 - found.position[other])


def test_separability_is_distance_over_spread():
    labels = make_labels()
    vectors = make_vectors(labels)
    found = positions(vectors, labels, CLASSES)
    for index, (a, b) in enumerate(found.pairs):
        for layer in range(LAYERS):
            h = vectors[~labels.is_noisy, layer].astype(float)
            own = labels.original[~labels.is_noisy]
            one, other = h[own == a], h[own == b]
            scatter = sum(((g - g.mean(0)) ** 2).sum() for g in (one, other))
            spread = np.sqrt(scatter / (len(one) + len(other) - 2))
            expected = np.linalg.norm(one.mean(0) - other.mean(0)) / spread
            assert found.separability[index, layer] == pytest.approx(expected)


def test_one_cloud_is_about_as_separable_as_chance_says():
    rng = np.random.default_rng(0)
    labels = make_labels(n=400)
    found = positions(rng.normal(size=(400, 3, 300)), labels, CLASSES)
    assert np.allclose(found.separability / found.by_chance[:, None], 1, atol=0.2)
    assert any("by chance" in sentence for sentence in found.remarks("0123"))


def test_counts_are_those_of_the_labels():
    labels = make_labels()
    found = positions(make_vectors(labels), labels, CLASSES)
    assert found.n_noisy.sum() == labels.is_noisy.sum()
    clean = np.bincount(labels.original[~labels.is_noisy])
    assert np.array_equal(found.n_clean, clean[found.pairs])


def test_well_separated_data_need_no_remark():
    labels = make_labels(n=400)
    vectors = make_vectors(labels) * 0 + 3 * np.eye(WIDTH)[labels.original][:, None]
    vectors = vectors + np.random.default_rng(0).normal(size=vectors.shape)
    assert positions(vectors, labels, CLASSES).remarks("0123") == []


def test_centroids_that_coincide_are_named_and_give_no_position():
    labels = make_labels()
    vectors = make_vectors(labels)
    vectors[:, 0] = vectors[0, 0]  # as at layer 0 of a model that reads the first token
    found = positions(vectors, labels, CLASSES)
    assert np.isnan(found.position[:, 0]).all()
    assert np.isfinite(found.position[:, 1:]).all()
    assert (found.separability[:, 0] == 0).all()
    assert found.coincide[:, 0].all()
    assert not found.coincide[:, 1:].any()
    assert "no → yes: the centroids coincide at layer 0." in found.remarks(["no", "yes", "x", "y"])


def test_a_pair_without_noisy_examples_is_named():
    labels = make_labels()
    keep = ~(labels.is_noisy & (labels.assigned == 0) & (labels.original == 1))
    labels = NoisyLabels(labels.original[keep], labels.assigned[keep], labels.is_noisy[keep])
    found = positions(make_vectors(labels), labels, CLASSES)
    assert len(rows_of(found, 0, 1, "noisy")) == 0
    assert "0 → 1: no noisy example." in found.remarks("0123")


def hide_clean(labels, of_class, keep):
    """Drop clean examples of a class but the first `keep`."""
    own = np.flatnonzero(~labels.is_noisy & (labels.original == of_class))[keep:]
    rest = np.delete(np.arange(len(labels.original)), own)
    return NoisyLabels(labels.original[rest], labels.assigned[rest], labels.is_noisy[rest])


def test_a_class_with_one_clean_example_is_named():
    labels = hide_clean(make_labels(), of_class=2, keep=1)
    found = positions(make_vectors(labels), labels, CLASSES)
    assert np.isfinite(found.position).all()
    assert np.allclose(found.position[rows_of(found, 2, 0, "clean a")], 0)
    assert any("one clean example" in sentence for sentence in found.remarks("0123"))


def test_two_classes_with_one_clean_example_each_have_no_spread():
    labels = hide_clean(hide_clean(make_labels(), 2, keep=1), 3, keep=1)
    found = positions(make_vectors(labels), labels, CLASSES)
    pair = (found.pairs == (2, 3)).all(1)
    assert np.isnan(found.separability[pair]).all()
    assert np.isfinite(found.position).all()
    assert any("2 → 3: without spread" in sentence for sentence in found.remarks("0123"))


def test_classes_of_identical_examples_have_no_spread_rather_than_infinite_separability():
    labels = make_labels()
    vectors = make_vectors(labels)
    vectors[:, 1] = 50 + np.random.default_rng(1).normal(size=(CLASSES, WIDTH))[labels.original]
    found = positions(vectors, labels, CLASSES)
    assert np.isnan(found.separability[:, 1]).all()
    assert np.isfinite(found.position).all()
    assert any("without spread in the classes at layer 1." in s for s in found.remarks("0123"))


def test_a_class_without_clean_examples_has_no_line_and_spoils_no_other():
    labels = hide_clean(make_labels(), of_class=2, keep=0)
    found = positions(make_vectors(labels), labels, CLASSES)
    without = (found.pairs == 2).any(1)
    assert np.isnan(found.position[without[found.pair]]).all()
    assert np.isfinite(found.position[~without[found.pair]]).all()
    assert np.isnan(found.by_chance[without]).all()
    assert sum("no line" in sentence for sentence in found.remarks("0123")) == 6


def test_what_has_no_line_at_all_is_refused():
    labels = make_labels()
    one = NoisyLabels(np.zeros(N, np.int64), labels.is_noisy.astype(np.int64), labels.is_noisy)
    with pytest.raises(DataError, match="two classes, found 1"):
        positions(make_vectors(one), one, 2)
    # All noisy examples are of a class that has no clean one.
    original = np.arange(N) % 3
    other = NoisyLabels(original, np.where(original == 2, 0, original), original == 2)
    with pytest.raises(DataError, match="No noisy example can be placed"):
        positions(make_vectors(other), other, 3)


def test_of_many_classes_only_pairs_with_noisy_examples_are_compared():
    n_classes, n = 1000, 3000
    rng = np.random.default_rng(0)
    original = np.arange(n) % n_classes
    is_noisy = np.arange(n) >= 2900
    assigned = np.where(is_noisy, (original + 1) % n_classes, original)
    labels = NoisyLabels(original, assigned, is_noisy)
    vectors = rng.normal(size=(n, 2, 8)).astype(np.float32)
    began = time.process_time()
    found = positions(vectors, labels, n_classes)
    shuffled = shuffled_separability(vectors, labels, found.pairs, 20, rng)
    assert time.process_time() - began < 20  # all pairs would take gigabytes and minutes
    assert len(found.pairs) == 100
    assert shuffled.shape == (20, 100, 2)
    assert (found.n_noisy == 1).all()
    said = found.remarks([str(c) for c in range(n_classes)])[0]
    assert said.startswith("Only the 100 of 999,000 pairs of classes")
