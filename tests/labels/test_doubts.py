"""Which labels are wrong, by held-out probabilities: by hand, beside cleanlab, and simulated."""

import numpy as np
import pytest

from memloc.labels.doubts import (
    CLEARLY,
    adjusted_margin,
    joint_counts,
    judge,
    label_issues,
    random_errors,
    usual,
)


def drawn(seed, n=400, n_classes=5, rate=0.15, models=8, size=None):
    """Held-out probabilities of some models, given labels and true ones; wrong ones at random."""
    rng = np.random.default_rng(seed)
    true = rng.choice(n_classes, n, p=size)
    wrong = rng.random(n) < rate
    labels = np.where(wrong, (true + rng.integers(1, n_classes, n)) % n_classes, true)
    text = rng.normal(size=(n, n_classes)) + 4 * (true[:, None] == np.arange(n_classes))
    logits = text + 3 * rng.normal(size=(models, n, n_classes))
    chances = np.exp(logits) / np.exp(logits).sum(2, keepdims=True)
    return chances.mean(0), labels, true


def test_what_is_usual_is_of_the_examples_that_have_the_class():
    chances = np.array([[0.9, 0.1, 0], [0.5, 0.2, 0.3], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]])
    assert usual(chances, np.array([0, 0, 1, 0])) == pytest.approx([1.6 / 3, 0.8, 0])


def test_joint_counts_by_hand():
    """Limits are .7 and .6: of the four labels 0, three reach a limit, one of them that of 1."""
    chances = np.array([0.95, 0.85, 0.65, 0.35, 0.4, 0.4])
    table = joint_counts(np.stack([chances, 1 - chances], axis=1), np.array([0, 0, 0, 0, 1, 1]))
    assert table.tolist() == [[3, 1], [0, 2]]


@pytest.mark.parametrize("seed", range(12))
def test_the_same_labels_are_pruned_as_by_cleanlab(seed):
    pytest.importorskip("cleanlab")
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores

    chances, labels, _ = drawn(seed, n=100 + 20 * seed, n_classes=2 + seed % 5)
    theirs = find_label_issues(labels, chances, n_jobs=1)
    assert label_issues(chances, labels).tolist() == theirs.tolist()
    how = {"method": "normalized_margin", "adjust_pred_probs": True}
    quality = get_label_quality_scores(labels, chances, **how)
    ours = adjusted_margin(chances, labels)
    assert np.argsort(ours).tolist() == np.argsort(-quality).tolist()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("rate", [0.1, 0.2, 0.3])
def test_the_number_of_random_errors_is_within_its_interval(seed, rate):
    chances, labels, true = drawn(seed, n=800, rate=rate)
    estimate, low, high = random_errors(chances, labels)
    assert low <= (labels != true).sum() <= high
    assert low < estimate < high < 2.5 * (labels != true).sum()


def test_clean_labels_have_no_clear_number_of_random_errors():
    chances, labels, _ = drawn(1, rate=0)
    assert random_errors(chances, labels)[0] < CLEARLY
    assert not judge(chances, labels).is_random


def test_more_models_are_wrong_less_often_and_better_on_the_whole():
    rates = []
    for models in (2, 8, 32):
        chances, labels, true = drawn(3, n=1000, models=models)
        found, is_wrong = judge(chances, labels).wrong, labels != true
        hits = (found & is_wrong).sum()
        rates.append((hits / found.sum(), 2 * hits / (found.sum() + is_wrong.sum())))
    precision, both = zip(*rates, strict=True)
    assert precision[0] < precision[1] < precision[2]
    assert both[0] < both[1] < both[2]
    assert both[2] > 0.85


def test_errors_that_look_random_are_ordered_by_the_probability_of_the_label():
    chances, labels, true = drawn(2)
    judged = judge(chances, labels)
    assert judged.is_random
    assert not judged.by_class
    given = chances[np.arange(len(labels)), labels]
    assert judged.order.tolist() == np.argsort(given, kind="stable").tolist()
    assert judged.wrong.sum() <= round(judged.random[0])
    assert (labels != true)[judged.order[:20]].mean() > 0.8


def test_without_random_errors_classes_are_adjusted_for_unless_one_is_rare():
    even, rare = None, [0.02, 0.245, 0.245, 0.245, 0.245]
    for size, by_class in ((even, True), (rare, False)):
        chances, labels, _ = drawn(4, rate=0.01, size=size)
        judged = judge(chances, labels)
        assert judged.by_class == by_class
        if by_class:
            doubts = adjusted_margin(chances, labels)[judged.order]
            assert (np.diff(doubts) <= 0).all()
