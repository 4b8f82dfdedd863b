"""Batches of texts beside all other ways to cut them."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memloc.methods.forgetting import cheapest_batches


def cost(lengths, batches, per_batch):
    return sum(per_batch + len(rows) * max(1, lengths[rows].max()) for rows in batches)


def all_ways(lengths, most):
    """Every way to cut the texts, longest first, into batches that may be so large."""
    order = np.argsort(-lengths, kind="stable")
    for n in range(len(order)):
        for cuts in combinations(range(1, len(order)), n):
            batches = np.split(order, cuts)
            if all(len(b) == 1 or len(b) * max(1, lengths[b].max()) <= most for b in batches):
                yield batches


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=7).map(np.array),
    st.integers(0, 30),
    st.integers(1, 40),
)
def test_no_other_way_to_cut_costs_less(lengths, per_batch, most):
    found = cheapest_batches(lengths, per_batch, most)
    assert sorted(np.concatenate(found)) == list(range(len(lengths)))
    ways = [cost(lengths, way, per_batch) for way in all_ways(lengths, most)]
    assert cost(lengths, found, per_batch) == min(ways)
    for rows in found:
        assert len(rows) == 1 or len(rows) * max(1, lengths[rows].max()) <= most


@pytest.mark.parametrize(
    ("per_batch", "expected"), [(5, [[1], [2, 3, 0, 4]]), (100, [[1, 2, 3, 0, 4]])]
)
def test_where_batches_are_dear_texts_are_padded(per_batch, expected):
    found = cheapest_batches(np.array([2, 9, 4, 4, 2]), per_batch, 1000)
    assert [rows.tolist() for rows in found] == expected


def test_where_batches_cost_nothing_no_text_is_padded():
    lengths = np.array([2, 9, 4, 4, 2])
    assert all(np.ptp(lengths[rows]) == 0 for rows in cheapest_batches(lengths, 0, 1000))


def test_of_nothing_there_are_no_batches():
    assert cheapest_batches(np.array([], dtype=np.int64), 1, 1) == []
