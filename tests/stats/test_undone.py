"""The first question: noisy and clean labels are compared at equal margins."""

import numpy as np
import pytest
from scipy.special import expit

from memloc.stats.undone import (
    is_anything_undone,
    label_margins,
    p_text,
    score_p,
    sign_p,
)


def test_labels_lost_by_noisy_examples_alone_are_undone_however_sure_the_model_is():
    rng = np.random.default_rng(0)
    found = is_anything_undone(np.ones(30), np.zeros(30), rng.normal(size=60))
    assert found.p < 1e-6
    assert found.sentence == (
        "Exchanging all layers undoes 100% of 30 noisy labels and 0% of 30 clean ones (p < 0.001)."
    )


def test_nothing_lost_is_nothing_undone():
    assert is_anything_undone(np.zeros(30), np.zeros(30), np.arange(60.0)).p >= 0.5
    assert is_anything_undone(np.ones(30), np.ones(30), np.zeros(60)).p > 0.4


@pytest.mark.parametrize("n", [20, 40, 100])
def test_labels_that_are_only_less_sure_are_rarely_called_undone(n):
    """Nothing is memorised; what a model is less sure of is lost more often, noisy or not."""
    rng = np.random.default_rng(1)
    runs, plain = 300, []
    called = 0
    for _ in range(runs):
        margins = np.r_[rng.normal(2.5, 1.2, n), rng.normal(3.75, 1.2, n)]
        lost = (rng.random(2 * n) < expit(-1.5 * (margins - 1.7))).astype(float)
        called += is_anything_undone(lost[:n], lost[n:], margins).p <= 0.05
        plain.append(is_anything_undone(lost[:n], lost[n:], np.zeros(2 * n)).p <= 0.05)
    assert called <= 0.06 * runs + 2.33 * np.sqrt(0.06 * 0.94 * runs)
    assert np.mean(plain) > 0.25  # without margins, many nulls would be


def test_margins_that_nearly_part_both_kinds_leave_power():
    rng = np.random.default_rng(2)
    margins = np.r_[rng.normal(0, 1, 40), rng.normal(3, 1, 40)]
    assert is_anything_undone(np.ones(40), np.zeros(40), margins).p < 0.001


def test_the_score_is_that_of_a_logistic_regression_without_slope():
    """With equal margins, the score test is the chi-square test of a two-by-two table."""
    from scipy.stats import norm

    lost = np.r_[np.ones(15), np.zeros(15), np.ones(5), np.zeros(25)]
    p = score_p(lost, (np.arange(60) < 30).astype(float), np.zeros(60))
    chi = (15 - 30 * 20 / 60) / np.sqrt(30 * (1 / 3) * (2 / 3) * 30 / 60)
    assert p == pytest.approx(norm.sf(chi), rel=0.35)  # Student's t has the heavier tail
    assert p > norm.sf(chi)


def test_what_a_second_reference_undoes_is_paired_example_by_example():
    margins = np.zeros(60)
    none = is_anything_undone(np.ones(30), np.zeros(30), margins, np.zeros(30))
    every = is_anything_undone(np.ones(30), np.zeros(30), margins, np.ones(30))
    assert none.p < 1e-6
    assert every.p == 1
    assert "a second reference undoes 100% in the first one" in every.sentence


def test_the_sign_test_is_exact():
    assert sign_p(np.array([1, 1, 1, -1, 0.0])) == pytest.approx(5 / 16)
    assert sign_p(np.zeros(4)) == 1


def test_margins_are_the_distance_to_the_best_other_label():
    logits = np.array([[[2.0, 5.0, 1.0], [0.0, 0.0, 3.0]], [[1.0, 1.0, 1.0], [4.0, 2.0, 9.0]]])
    found = label_margins(logits, np.array([1, 0]))
    np.testing.assert_array_equal(found, [[3, -3], [0, -5]])


def test_small_p_are_written_as_bounds():
    assert (p_text(0.0004), p_text(0.0312)) == ("p < 0.001", "p = 0.031")
