"""Verdicts on simulated shares with a known answer."""

import json
from dataclasses import replace
from itertools import permutations

import numpy as np
import pandas as pd
import pytest

from fixtures.tasks import make_task
from memloc.data.task import NoisyLabels
from memloc.errors import ScoreError
from memloc.run.folder import few_in
from memloc.stats import verdicts
from memloc.stats.subsets import shapley_values
from memloc.stats.verdicts import (
    Evidence,
    LayerVerdict,
    _overlaps_without,
    above_p,
    by_profile,
    corrected,
    detectable,
    how_many_layers,
    judge,
    judge_weights,
    line_shares,
    other_sets,
    over_plants,
    over_runs,
    overlap,
    permuted_p,
    too_few,
    which_layers,
)
from memloc.stats.windows import windows

LAYERS = 12


def shares_in(layers, n=30, rng=None, noise=0.02):
    """Rows that sum to 1 and are in these layers (from 0), in random proportions."""
    rng = rng or np.random.default_rng(0)
    found = np.zeros((n, LAYERS))
    found[:, layers] = rng.dirichlet(np.full(len(layers), 5.0), size=n)
    blur = rng.normal(0, noise, size=found.shape)
    return found + blur - blur.mean(axis=1, keepdims=True)


def evidence(shares, clean=16, **more):
    return Evidence(shares, np.zeros(clean), **more)


@pytest.mark.parametrize("layers", [[0], [11], [5, 6], [2, 9], [3, 4, 5, 6]])
def test_a_planted_memory_is_localised_in_its_layers(layers):
    found = judge(evidence(shares_in(layers)))
    assert found.outcome == "localised"
    assert [layer - 1 for layer in found.layers] == layers
    assert found.p == max(answer.p for answer in found.answers) <= 0.05
    questions = [answer.question for answer in found.answers]
    assert questions == ["Is anything undone?", "Is it concentrated?", "Where?"]
    assert found.sentence.startswith("Localised in layer")


def test_an_even_memory_is_spread():
    found = judge(evidence(shares_in(range(LAYERS))))
    assert found.outcome == "spread"
    assert found.layers == ()
    assert found.answers[-1].low > LAYERS / 2


def test_a_memory_that_each_example_has_in_another_layer_is_spread():
    shares = np.eye(LAYERS)[np.arange(36) % LAYERS]
    assert judge(evidence(shares)).outcome == "spread"


def test_a_memory_at_the_margin_cannot_be_told():
    found = judge(evidence(shares_in(range(6), noise=0.2)))
    assert found.outcome == "cannot tell"
    assert found.p == 1
    assert "effectively 6.6 layers hold" in found.sentence
    assert "), neither clearly fewer than half of all nor clearly more; " in found.sentence
    assert found.sentence.endswith(
        "24% of what is undone is in layer 1 (p < 0.001 over all layers). More noisy examples "
        "would help."
    )


def test_what_clean_examples_lose_as_well_is_not_undone():
    rng = np.random.default_rng(1)
    shares = shares_in([0]) * (rng.random(30) < 0.5)[:, None]
    found = judge(Evidence(shares, (rng.random(40) < 0.5).astype(float)))
    assert found.outcome == "cannot tell"
    assert found.sentence.startswith("Cannot tell: nothing is undone. Changing all layers undoes ")


def test_what_another_reference_undoes_is_not_memory():
    shares = shares_in([0], noise=0)
    assert judge(evidence(shares, elsewhere=np.zeros(30))).outcome == "localised"
    found = judge(evidence(shares, elsewhere=np.ones(30)))
    assert found.outcome == "cannot tell"
    assert "another reference undoes 100%" in found.sentence


def test_one_reference_and_two_classes_are_noted():
    alone = judge(evidence(shares_in([0]), n_classes=2)).notes
    assert len(alone) == 2
    assert "one reference" in alone[0]
    assert "two classes" in alone[1]
    assert judge(evidence(shares_in([0]), elsewhere=np.zeros(30), n_classes=3)).notes == ()


def test_few_noisy_examples_give_no_verdict_but_the_power():
    found = judge(evidence(shares_in([0], n=12)))
    assert found.outcome == "cannot tell"
    assert "only 12 noisy examples" in found.sentence
    assert f"less than {detectable(12, 16):.0%} of the labels" in found.sentence


def test_few_undone_labels_have_no_place():
    shares = np.zeros((40, LAYERS))
    shares[:8, 0] = 1
    assert "only 8 labels undone" in judge(evidence(shares, clean=100)).sentence


def test_power_is_that_of_the_exact_test():
    # Of 5 noisy and 5 clean examples, 4 undone ones that are all noisy have p = 5/210 < 0.05, and
    # 3 have p = 10/120 > 0.05; four or more of five are undone in 80 % at a share of 0.84 or more.
    share = detectable(5, 5)
    assert share == pytest.approx(0.84)
    assert detectable(1, 1) == 1


def test_nothing_undone_in_ties_has_the_largest_p():
    assert permuted_p(np.zeros(20), np.arange(20) < 10, np.zeros(20, dtype=int)) == 1


def test_permutation_p_is_that_of_all_permutations():
    values, is_noisy = np.array([1, 1, 0, 1, 0, 0.0]), np.arange(6) < 3
    exact = np.mean([sum(order[:3]) >= 2 for order in permutations(values)])
    assert permuted_p(values, is_noisy, np.zeros(6, dtype=int)) == pytest.approx(exact, abs=0.02)


def test_examples_change_places_only_within_their_stratum():
    # All lost ones are in the first stratum, which has noisy examples only: nothing can move.
    values, is_noisy = np.array([1, 1, 0, 0, 0.0]), np.array([True, True, True, False, False])
    assert permuted_p(values, is_noisy, np.array([0, 0, 1, 1, 1])) == 1
    assert permuted_p(values, is_noisy, np.zeros(5, dtype=int)) < 0.5


def test_strata_of_loss_are_used_where_both_kinds_are_in_each():
    rng = np.random.default_rng(2)
    shares = shares_in([0], n=40)
    mixed = judge(evidence(shares, clean=40, margins=rng.random(80)))
    assert "within 4 strata of loss" in mixed.answers[0].null
    apart = judge(evidence(shares, clean=40, margins=np.arange(80.0)))
    assert "strata" not in apart.answers[0].null


def test_overlap_is_that_of_pairs_written_out():
    shares = shares_in([1, 4, 7], n=5, noise=0.1)
    totals = shares.sum(1)
    pairs = [(e, f) for e in range(5) for f in range(5) if e != f]
    expected = sum(shares[e] @ shares[f] for e, f in pairs)
    expected /= sum(totals[e] * totals[f] for e, f in pairs)
    assert overlap(shares) == pytest.approx(expected)


def test_the_jackknife_leaves_each_example_out():
    shares = shares_in([1, 4, 7], n=6, noise=0.1)
    expected = [overlap(np.delete(shares, e, axis=0)) for e in range(6)]
    np.testing.assert_allclose(_overlaps_without(shares), expected)


@pytest.mark.parametrize("n_layers", [1, 2, 3, 4, 6, 12])
def test_the_effective_number_counts_even_layers(n_layers):
    shares = np.zeros((25, LAYERS))
    shares[:, :n_layers] = 1 / n_layers
    assert how_many_layers(shares)[0].value == pytest.approx(n_layers)


def test_both_sides_of_the_margin_exclude_each_other():
    for layers in ([0], range(5), range(6), range(8), range(LAYERS)):
        few, many = how_many_layers(shares_in(list(layers), noise=0.1))
        assert few.p + many.p == pytest.approx(1)
        assert few.low <= few.value <= few.high


@pytest.mark.parametrize("n_layers", [2, 4, 6, 10, 12, 14, 24])
def test_shares_exactly_at_the_margin_are_a_tie_and_no_finding(n_layers):
    shares = np.zeros((25, n_layers))
    shares[:, : n_layers // 2] = 2 / n_layers
    assert [answer.p for answer in how_many_layers(shares)] == [0.5, 0.5]
    assert judge(evidence(shares)).outcome == "cannot tell"


@pytest.mark.parametrize("layers", [6, 12])
def test_at_the_margin_neither_is_called_in_more_than_one_run_of_twenty(layers):
    """Of 12 layers, six hold all evenly, or one stands out so that it is effectively six."""
    rng, runs = np.random.default_rng(6), 200
    peak = (1 + np.sqrt(11)) / LAYERS
    profile = np.full(6, 1 / 6) if layers == 6 else np.r_[peak, np.full(11, (1 - peak) / 11)]
    shares = np.zeros((runs, 30, LAYERS))
    shares[..., :layers] = rng.dirichlet(60 * profile, size=(runs, 30))
    ps = np.array([[answer.p for answer in how_many_layers(each)] for each in shares])
    assert (np.mean(ps <= 0.05, axis=0) <= 0.05 + 2.33 * np.sqrt(0.05 * 0.95 / runs)).all()


def test_named_layers_are_compared_with_all_other_sets_of_as_many():
    # Of four layers, the second and third are needed together, and the first and fourth as well.
    inside = [{layer for layer in range(4) if s >> layer & 1} for s in range(16)]
    lost = np.array([0.1 + 0.9 * ({1, 2} <= s or {0, 3} <= s) for s in inside])
    assert other_sets(lost, (2, 3)) == (
        "Swapping layers 2, 3 alone undoes 100% of what all layers undo; of the 5 other sets of "
        "as many layers, 1 undoes as much."
    )
    assert "3 other sets of as many layers, 3 undo as much" in other_sets(lost, (1,))
    lost[[9, 11, 13]] = 0.1
    assert "none undoes as much" in other_sets(lost, (2, 3))


def test_a_localised_memory_says_what_other_sets_undo():
    lost = (np.arange(2**LAYERS) & 1).astype(float)  # whatever contains the first layer
    found = judge(evidence(shares_in([0]), sets=lost))
    assert found.notes[0].startswith("Swapping layer 1 alone undoes 100% of what all layers undo")
    assert not any("alone" in note for note in judge(evidence(shares_in([0]))).notes)


def test_even_layers_are_called_by_name_in_at_most_one_run_of_twenty():
    rng = np.random.default_rng(3)
    runs = 60
    called = sum(
        which_layers(rng.dirichlet(np.ones(LAYERS), size=30))[1] != () for _ in range(runs)
    )
    assert called <= 0.05 * runs + 2.33 * np.sqrt(0.05 * 0.95 * runs)  # one-sided, 1 %


def test_shares_of_a_null_are_called_localised_in_at_most_one_run_of_twenty():
    rng = np.random.default_rng(4)
    runs, ps = 200, []
    for _ in range(runs):
        lost = rng.random(70) < 0.5  # whichever example it is
        shares = rng.dirichlet(np.ones(LAYERS), size=30) * lost[:30, None]
        ps.append(judge(Evidence(shares, lost[30:].astype(float))).answers[0].p)
    assert np.mean(np.array(ps) <= 0.05) <= 0.05 + 2.33 * np.sqrt(0.05 * 0.95 / runs)
    assert 0.4 < np.mean(ps) < 0.65  # nearly uniform; ties make them a little larger


@pytest.mark.parametrize("n", [20, 100])
@pytest.mark.parametrize("depth", [12, 30])
def test_skewed_shares_have_layers_named_in_at_most_one_run_of_twenty(n, depth, monkeypatch):
    """Every example uses all layers but a random one, or a random one alone."""
    monkeypatch.setattr(verdicts, "RESAMPLES", 399)
    rng = np.random.default_rng(6)
    runs, called = 60, np.zeros(3)
    for _ in range(runs):
        one = np.eye(depth)[rng.integers(depth, size=n)]
        negative = (rng.random((n, depth)) < 0.05) * -1.0
        even = [(1 - one) / (depth - 1), one, negative - negative.mean(1, keepdims=True)]
        called += [(above_p(s - s.mean(1, keepdims=True)) <= 0.05).any() for s in even]
    assert (called <= 0.05 * runs + 2.33 * np.sqrt(0.05 * 0.95 * runs)).all()


def test_above_p_of_certain_columns_is_smallest():
    p = above_p(np.tile([1.0, 0.0, -1.0], (20, 1)))
    assert p[0] < 0.001
    assert p[1] == p[2] == 1


def test_line_shares_are_shapley_values_of_the_game_of_runs():
    depth, rng = 5, np.random.default_rng(5)
    known = windows(depth)
    lost = rng.random((3, len(known)))
    values = np.zeros((3, 2**depth))
    for subset in range(2**depth):
        inside = [layer for layer in range(depth) if subset >> layer & 1]
        runs = [w for w in known if _is_run(w, inside, depth)]
        values[:, subset] = sum(lost[:, known.index(w)] for w in runs)
    found = line_shares(lost, depth, known)
    np.testing.assert_allclose(found, shapley_values(values))
    np.testing.assert_allclose(found.sum(1), lost[:, known.index(range(depth))])


def _is_run(window, inside, depth):
    beside = {window.start - 1, window.stop}
    return set(window) <= set(inside) and not beside & set(inside)


def test_line_shares_of_some_windows_are_refused():
    with pytest.raises(ScoreError, match="all 6 windows of 3 layers, found 2"):
        line_shares(np.zeros((4, 2)), 3, [range(1), range(3)])


def test_weights_alone_never_decide():
    found = judge_weights("mine", np.eye(LAYERS)[3])
    assert found.outcome == "cannot tell"
    assert "look localised in layer 4" in found.sentence
    assert "not been measured" in found.sentence
    assert "spread" in judge_weights("mine", np.ones(LAYERS)).sentence
    assert by_profile(np.zeros(LAYERS)) == ("cannot tell", ())
    assert by_profile(np.r_[1, 1, np.zeros(10)]) == ("localised", (1, 2))


def test_a_verdict_survives_its_record():
    for shares in (shares_in([0]), shares_in(range(LAYERS)), shares_in([0], n=4)):
        verdict = judge(evidence(shares, n_classes=2))
        again = LayerVerdict.of(json.loads(json.dumps(verdict.record())))
        assert again.record() == verdict.record()
        assert [a.holds for a in again.answers] == [a.holds for a in verdict.answers]


def test_holm_by_hand():
    np.testing.assert_allclose(corrected([0.01, 0.04, 0.03, 1]), [0.04, 0.09, 0.09, 1])
    assert corrected([]).tolist() == []


def test_over_runs_each_run_counts_once():
    outcomes = ["localised", "spread", "cannot tell", "localised"]
    rows = {"method": "swapping", "outcome": outcomes, "finding": [True, True, False, False]}
    more = {"method": ["shares"], "outcome": ["localised"], "finding": [True]}
    found = over_runs(pd.concat([pd.DataFrame(rows), pd.DataFrame(more)]))
    assert found["method"].tolist() == ["shares", "swapping"]
    row = found.iloc[1]
    counts = row[["runs", "n_localised", "n_spread", "n_cannot_tell", "findings"]]
    assert counts.tolist() == [4, 2, 1, 1, 2]
    assert row["localised"] == 0.5
    assert 0.1 < row["localised_low"] < 0.2


def test_over_plants_right_layers_and_called_nulls_are_counted():
    rows = {
        "method": "shares",
        "null": [False, False, False, True, True],
        "outcome": ["localised", "localised", "spread", "localised", "cannot tell"],
        "right": [True, False, False, False, False],
    }
    row = over_plants(pd.DataFrame(rows)).iloc[0]
    assert (row["plants"], row["nulls"]) == (3, 2)
    assert (row["right"], row["called"]) == (pytest.approx(1 / 3), 0.5)
    real = pd.DataFrame(rows).iloc[:3]
    assert np.isnan(over_plants(real).iloc[0]["called"])


def test_plants_without_any_verdict_have_no_share_of_right_ones():
    rows = {"method": "shares", "null": [False, True], "outcome": "cannot tell", "right": False}
    row = over_plants(pd.DataFrame(rows)).iloc[0]
    assert (row["plants"], row["told"]) == (1, 0)
    assert np.isnan(row["right"])


@pytest.mark.parametrize(("noisy", "warns"), [(18, True), (20, False)])
def test_too_few_noisy_examples_are_said_with_the_number_that_suffices(noisy, warns):
    said = too_few(noisy, 120, 4)
    assert bool(said) == warns
    if warns:
        assert "18 noisy examples of 120 and 20 noisy ones are needed" in said
        enough = int(said.split()[-3])
        assert 4 * int(0.15 * enough / 4) >= 20


def test_the_warning_of_a_task_names_the_task():
    task = make_task(40)
    noise = NoisyLabels(task.train.labels, 1 - task.train.labels, np.arange(40) < 3)
    said = few_in(replace(task, noise=noise))
    assert said.startswith(f"{task.name}: NO VERDICT WILL BE POSSIBLE: 3 noisy examples of 40")


def test_damaged_shares_are_refused():
    with pytest.raises(ScoreError, match="not a number"):
        evidence(np.full((30, LAYERS), np.nan))
    with pytest.raises(ScoreError, match="noisy and clean examples, found 30 and 0"):
        Evidence(np.zeros((30, LAYERS)), np.zeros(0))
