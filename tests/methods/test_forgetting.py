"""Sums of gradients in batches beside gradients of one example at a time, and the batches."""

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fixtures.models import PAPER_FAMILIES
from fixtures.runs import DEPTH, make_classifier, one_at_a_time, random_run
from memloc.methods import forgetting
from memloc.methods.forgetting import (
    LabelledTexts,
    cheapest_batches,
    end_to_end,
    mean_gradient,
    measure,
)
from memloc.methods.gradients import Gradients


def measured(run, weights="memorised", loaded=None, **settings):
    """Norms, and those without each group, as the method has them measured."""
    method = Gradients(**settings)
    loaded = loaded or run.load(weights)
    groups, _ = method.groups(run, loaded.stack)
    data = LabelledTexts(run.encode(loaded), run.noisy.assigned, method)
    return measure(loaded.stack, data, groups)


@pytest.mark.parametrize("family", PAPER_FAMILIES)
@pytest.mark.parametrize("cap", [1, 40])
def test_the_size_of_batches_does_not_matter(tmp_path, monkeypatch, family, cap):
    run = random_run(tmp_path, family)
    expected, left_out = measured(run)
    monkeypatch.setattr(forgetting, "tokens_per_batch", lambda _width: cap)
    found, without = measured(run)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5)
    np.testing.assert_allclose(without, left_out, rtol=1e-5)


@pytest.mark.parametrize("family", PAPER_FAMILIES)
def test_every_parameter_of_a_block_counts_and_no_other(tmp_path, family):
    run = random_run(tmp_path, family)
    norms, _ = measured(run)
    noisy, _ = one_at_a_time(run, "memorised")
    for layer, block in enumerate(noisy):
        squares = [float(g.double().square().sum()) for g in block]
        assert norms["L2 noisy"][layer] ** 2 == pytest.approx(sum(squares), rel=1e-5)
        # Keys' biases change nothing (softmax); norms and all others do.
        assert sum(square > 1e-12 * sum(squares) for square in squares) >= len(squares) - 1


def test_the_model_is_left_as_it_was(tmp_path):
    loaded = make_classifier("gpt_neo")
    before = {n: v.clone() for n, v in loaded.model.state_dict().items()}
    measured(random_run(tmp_path), loaded=loaded)
    assert all(torch.equal(before[n], v) for n, v in loaded.model.state_dict().items())
    assert all(p.requires_grad and p.grad is None for p in loaded.model.parameters())
    assert not loaded.model.training


def test_dropout_is_off(tmp_path):
    with_dropout, without = (
        measured(random_run(tmp_path, "gpt_neo", dropout=d))[0] for d in (0.5, 0.0)
    )
    np.testing.assert_array_equal(with_dropout["L1 difference"], without["L1 difference"])


def test_each_group_is_left_out_once(tmp_path):
    norms, left_out = measured(random_run(tmp_path), interval_groups=4, norm="L2")
    assert left_out.shape == (4, DEPTH)
    assert len(np.unique(left_out[:, 0])) == 4
    assert set(norms) == {f"{n} {k}" for n in ("L1", "L2") for k in KINDS}
    _, nothing = measured(random_run(tmp_path), interval_groups=0)
    assert nothing.shape == (0, DEPTH)


KINDS = ("noisy", "clean", "difference")


def test_sums_become_means():
    sums, counts = (torch.tensor([3.0, 6.0]), torch.tensor([4.0, 2.0])), np.array([3, 4])
    assert mean_gradient(*sums, counts, "noisy").tolist() == [1, 2]
    assert mean_gradient(*sums, counts, "clean").tolist() == [1, 0.5]
    assert mean_gradient(*sums, counts, "difference").tolist() == [0, 1.5]


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


@pytest.mark.parametrize("family", PAPER_FAMILIES)
def test_texts_end_to_end_give_what_padded_ones_give(tmp_path, monkeypatch, family):
    run = random_run(tmp_path, family)
    found, without = measured(run, interval_groups=2)
    loaded, cut = run.load("memorised"), []
    lengths = run.encode(loaded).lengths
    for rows in (run.noisy_rows, run.clean_rows):
        cut += forgetting._batches(loaded.stack, lengths, True, rows)
    assert any(len(rows) > 1 for batch in cut for rows in batch)
    monkeypatch.setattr(forgetting, "can_pack", lambda _stack: False)
    expected, left_out = measured(run, interval_groups=2)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5)
    np.testing.assert_allclose(without, left_out, rtol=1e-5)


def test_texts_of_one_length_are_not_mixed_up(tmp_path):
    run = random_run(tmp_path)
    loaded = run.load("memorised")
    encoded, method = run.encode(loaded), Gradients()
    data = LabelledTexts(encoded, run.noisy.assigned, method)
    length = np.bincount(encoded.lengths).argmax()
    same = np.flatnonzero(encoded.lengths == length)[:3]
    with torch.no_grad():
        long, alone = (data.value(loaded.stack, b) for b in ([same], [same[[i]] for i in range(3)]))
    assert len(same) == 3
    assert float(long) == pytest.approx(float(alone), rel=1e-5)


@given(st.lists(st.integers(1, 30), max_size=40), st.integers(1, 40))
def test_every_text_is_in_one_group_that_is_not_too_long(lengths, most):
    lengths = np.array(lengths, dtype=np.int64)
    groups = end_to_end(lengths, most)
    assert sorted(np.concatenate([[], *groups])) == list(range(len(lengths)))
    assert all(len(rows) == 1 or lengths[rows].sum() <= most for rows in groups)
    # No two groups would fit into one.
    totals = sorted(int(lengths[rows].sum()) for rows in groups)
    assert len(totals) < 2 or totals[0] + totals[1] > most


def test_masks_of_texts_of_very_different_lengths_stay_small(tmp_path):
    stack = random_run(tmp_path).load("memorised").stack
    lengths = np.array([2000, *[2] * 500])
    rows = np.arange(len(lengths))
    for batch in forgetting._batches(stack, lengths, True, rows):
        own = lengths[np.concatenate(batch)]
        assert len(own) * own.max() ** 2 <= forgetting.PAIRS
