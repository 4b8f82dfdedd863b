"""Layer weights from gradients beside those of one example at a time, and their intervals."""

from itertools import product

import numpy as np
import pytest
import torch

from fixtures.models import FAMILIES, SPECIAL
from fixtures.runs import DEPTH, make_data, one_at_a_time, random_run
from fixtures.studies import norms_from
from memloc.data.task import Examples, NoisyLabels
from memloc.errors import ScoreError, StoreError
from memloc.methods.gradients import (
    Gradients,
    jackknife,
    post_processed,
    variant,
)
from memloc.methods.result import Result


def norms_by_hand(noisy, clean, subtract, order):
    vectors = [
        torch.cat([(n - c if subtract else n).flatten() for n, c in zip(a, b, strict=True)])
        for a, b in zip(noisy, clean, strict=True)
    ]
    return np.array([float(torch.linalg.vector_norm(v.double(), order)) for v in vectors])


def weights_by_hand(run, method):
    norms = [
        norms_by_hand(
            *one_at_a_time(run, weights, method.objective),
            method.subtract_clean,
            int(method.norm[1]),
        )
        for weights in (["memorised", "frozen"] if method.divide_frozen else ["memorised"])
    ]
    weights = norms[0] / norms[1] if method.divide_frozen else norms[0]
    return weights / weights.sum()


@pytest.mark.parametrize("family", [*FAMILIES, *SPECIAL])
def test_batches_give_what_single_examples_give(tmp_path, family):
    run = random_run(tmp_path, family)
    scores = Gradients().run(run)
    np.testing.assert_allclose(scores.weights, weights_by_hand(run, Gradients()), rtol=1e-5)


@pytest.mark.parametrize("objective", ["loss", "logit"])
@pytest.mark.parametrize("norm", ["L1", "L2"])
@pytest.mark.parametrize(("subtract", "divide"), [(True, False), (False, True), (False, False)])
def test_each_step_can_be_off(tmp_path, objective, norm, subtract, divide):
    run = random_run(tmp_path, "opt")
    method = Gradients(
        objective=objective, norm=norm, subtract_clean=subtract, divide_frozen=divide
    )
    np.testing.assert_allclose(method.run(run).weights, weights_by_hand(run, method), rtol=1e-5)


def test_the_order_of_examples_does_not_matter(tmp_path):
    examples, noisy = make_data(12, 6)  # all clean ones are taken
    order = np.random.default_rng(0).permutation(12)
    moved = NoisyLabels(noisy.original[order], noisy.assigned[order], noisy.is_noisy[order])
    shuffled = Examples(tuple(examples.parts[i] for i in order), examples.labels[order])
    one, other = (
        Gradients().run(random_run(tmp_path, data=data)).weights
        for data in ((examples, noisy), (shuffled, moved))
    )
    np.testing.assert_allclose(one, other, rtol=1e-5)


def test_weights_are_norms_over_frozen_norms_scaled():
    # 2/1, 6/2, 10/2 are 2, 3, 5 of 10.
    found = post_processed(np.array([2.0, 6.0, 10.0]), np.array([1.0, 2.0, 2.0]))
    np.testing.assert_allclose(found, [0.2, 0.3, 0.5])
    np.testing.assert_allclose(post_processed(np.array([1.0, 3.0]), None), [0.25, 0.75])


def test_variants_are_all_combinations():
    details = {
        "L1 noisy": np.array([1.0, 3.0]),
        "L1 difference": np.array([2.0, 2.0]),
        "L1 frozen noisy": np.array([1.0, 1.0]),
        "L1 frozen difference": np.array([1.0, 4.0]),
    }
    expected = {
        (False, False): [0.25, 0.75],
        (False, True): [0.25, 0.75],
        (True, False): [0.5, 0.5],
        (True, True): [0.8, 0.2],
    }
    for steps, weights in expected.items():
        np.testing.assert_allclose(variant(details, "L1", *steps), weights)


@pytest.mark.parametrize("norm", ["L1", "L2"])
def test_one_run_tells_all_variants_of_both_norms(tmp_path, norm):
    run = random_run(tmp_path)
    found = norms_from(Gradients().run(run)["gradients"])
    for subtract, divide in product((False, True), repeat=2):
        method = Gradients(norm=norm, subtract_clean=subtract, divide_frozen=divide)
        weights = variant(found, norm, subtract, divide)
        np.testing.assert_array_equal(method.run(run).weights, weights)


def test_without_division_the_frozen_weights_are_not_loaded(tmp_path):
    run = random_run(tmp_path, weights=("memorised",))
    found = norms_from(Gradients(divide_frozen=False).run(run)["gradients"])
    assert set(found) == {
        f"{norm} {kind}" for norm in ("L1", "L2") for kind in ("noisy", "clean", "difference")
    }


def test_the_table_of_norms_counts_layers_from_one(tmp_path):
    table = Gradients().run(random_run(tmp_path))["gradients"]
    assert list(table.columns) == ["kind", "norm", "layer", "value"]
    assert set(table["layer"]) == {1, 2, 3}
    assert set(table["norm"]) == {"L1", "L2"}
    kinds = {"noisy", "clean", "difference"}
    assert set(table["kind"]) == kinds | {f"frozen {kind}" for kind in kinds}


def test_missing_weights_are_a_sentence(tmp_path):
    with pytest.raises(StoreError, match="has no memorised weights: "):
        Gradients().run(random_run(tmp_path, weights=("final",)))
    with pytest.raises(StoreError, match="has no frozen weights: "):
        Gradients().run(random_run(tmp_path, weights=("memorised",)))


def test_frozen_gradients_of_nothing_are_a_sentence():
    with pytest.raises(ScoreError, match=r"norm is 0 in layer 2.*divide_frozen to false"):
        post_processed(np.array([1.0, 1.0]), np.array([1.0, 0.0]))
    with pytest.raises(ScoreError, match="sum to 0"):
        post_processed(np.zeros(2), None)
    with pytest.raises(ScoreError, match="sum to nan"):
        post_processed(np.array([np.nan, 1.0]), None)


def test_one_kind_of_examples_alone_is_a_sentence(tmp_path):
    with pytest.raises(ScoreError, match="0 noisy and 24 clean"):
        Gradients().run(random_run(tmp_path, data=make_data(n_noisy=0)))
    with pytest.raises(ScoreError, match="24 noisy and 0 clean"):
        Gradients().run(random_run(tmp_path, data=make_data(n_noisy=24)))


def test_the_jackknife_of_a_mean_is_its_standard_error():
    values = np.array([1.0, 2.0, 4.0, 9.0])
    left_out = np.array([np.delete(values, i).mean() for i in range(4)])
    low, high = jackknife(np.array(values.mean()), left_out)
    reach = 3.182446 * values.std(ddof=1) / 2  # Student's t, three degrees of freedom
    assert (low, high) == (pytest.approx(4 - reach, rel=1e-6), pytest.approx(4 + reach, rel=1e-6))


def test_intervals_come_from_leaving_groups_out(tmp_path):
    run, method = random_run(tmp_path, data=make_data(40, 10)), Gradients(interval_groups=3)
    scores = method.run(run)
    groups, note = method.groups(run, run.load("memorised").stack)
    assert note == scores.about["intervals"] == "jackknife over 3 groups of examples"
    replicates = []
    for left in range(3):
        kept = [group for number, group in enumerate(groups) if number != left]
        rows = np.concatenate([np.concatenate(group) for group in kept])
        replicates.append(weights_of(run, np.sort(rows), tmp_path))
    low, high = jackknife(scores.weights, np.array(replicates))
    np.testing.assert_allclose(scores.low, np.clip(low, 0, None), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(scores.high, high, rtol=1e-3)
    assert (scores.low < scores.weights).all()
    assert 1 <= scores.mcog.low < scores.mcog.estimate < scores.mcog.high <= DEPTH


def weights_of(run, rows, home):
    """Layer weights from these rows alone; as many are clean as are noisy, so all are used."""
    noisy = run.noisy
    part = NoisyLabels(noisy.original[rows], noisy.assigned[rows], noisy.is_noisy[rows])
    return Gradients().run(random_run(home, data=(run.task.train.take(rows), part))).weights


def test_groups_change_no_weight(tmp_path):
    run = random_run(tmp_path)
    grouped, whole = (Gradients(interval_groups=n).run(run) for n in (4, 0))
    np.testing.assert_allclose(grouped.weights, whole.weights, rtol=1e-5)
    assert np.isnan(whole.low).all()
    assert np.isnan(whole.mcog.high)
    assert whole.about["intervals"] == "none: gradients.interval_groups is 0"


def test_where_memory_is_short_there_are_fewer_groups_or_none(tmp_path):
    run = random_run(tmp_path)
    stack = run.load("memorised").stack
    size = 8 * sum(p.numel() for block in stack.blocks for p in block.parameters())
    few, said = Gradients().groups(run, stack, memory=3 * size)
    assert len(few) == 3
    assert said == "jackknife over 3 groups of examples"
    ((noisy, clean),), said = Gradients().groups(run, stack, memory=size)
    assert sorted(noisy) == run.noisy_rows.tolist()
    assert len(clean) == len(noisy)
    assert said.startswith("none: two examples of each kind and ")


def test_scores_read_back_equal(tmp_path):
    scores = Gradients().run(random_run(tmp_path))
    scores.write(tmp_path / "gradients")
    found = Result.read(tmp_path / "gradients")
    np.testing.assert_array_equal(found.weights, scores.weights)
    assert (found.mcog, found.about) == (scores.mcog, scores.about)
    for name, values in norms_from(scores["gradients"]).items():
        np.testing.assert_array_equal(norms_from(found["gradients"])[name], values)
