"""Tests of named sets, on values that are known, and the tables of the checks."""

import numpy as np
import pytest

from studies.checks import PAGE, TABLES_OF_PAGE, judged, sign_p


def one_layer():
    """Of three layers, only the second holds the labels of all 20 examples."""
    return np.array([[float(subset >> 1 & 1) for subset in range(8)]] * 20)


def test_a_set_that_holds_everything_is_necessary_sufficient_and_minimal():
    found = judged(one_layer(), np.random.default_rng(0))
    assert found["size"] == 1
    assert found["necessary"] == found["sufficient"] == 1
    assert found["p_necessary"] == found["p_sufficient"] == pytest.approx(1 / 3)
    assert found["p_rest"] == 1
    assert found["p_minimal"] == pytest.approx(2**-10)


def test_labels_that_any_of_two_layers_keeps_are_left_when_one_is_exchanged():
    lost = np.array([[float(subset & 3 == 3) for subset in range(8)]] * 20)
    found = judged(lost, np.random.default_rng(0))
    assert found["size"] == 1  # one of two equal layers holds half of the shares
    assert found["necessary"] == 0
    assert found["sufficient"] == 1
    assert found["p_rest"] == pytest.approx(2**-10)
    assert found["p_minimal"] == 1


def test_a_sign_test_counts_pairs_that_differ():
    assert sign_p(np.array([1, 1, 1, 0.0]), np.array([0, 0, 0, 0.0])) == pytest.approx(1 / 8)
    assert sign_p(np.zeros(4), np.ones(4)) == 1


def test_the_page_has_the_tables_of_the_checks():
    page = PAGE.read_text(encoding="utf-8")
    for name, table in TABLES_OF_PAGE.items():
        assert f"<!-- {name}: begin -->\n{table()}<!-- {name}: end -->" in page
