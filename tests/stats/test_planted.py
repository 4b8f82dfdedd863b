"""Accuracy on plants and claims on nulls, against values worked out by hand."""

from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from memloc.errors import ScoreError
from memloc.seeds import generator
from memloc.stats.planted import (
    BASELINE,
    KEY,
    accuracy_at_k,
    auroc,
    centre_error,
    distance_from_uniform,
    distances,
    mean_scores,
    null_claims,
    plant_scores,
    planted_mass,
    processed_accuracy,
    reciprocal_rank,
    with_best_trivial,
)
from memloc.stats.windows import layer_weights, window_matrix

quick = settings(max_examples=50, deadline=None)  # a busy machine is no failure


WEIGHTS = np.array([0.1, 0.9, 0.4, 0.6, 0.4])


@st.composite
def planted_layers(draw):
    """Weights with many ties, and some but not all layers."""
    weights = np.array(draw(st.lists(st.integers(0, 4), min_size=2, max_size=7)), dtype=float)
    n_planted = draw(st.integers(1, len(weights) - 1))
    order = generator(draw(st.integers(0, 99))).permutation(len(weights))
    return weights, {int(layer) for layer in order[:n_planted]}


@pytest.mark.parametrize(
    ("planted", "k", "expected"),
    [
        ({1, 3}, 1, 1.0),
        ({1, 3}, 2, 1.0),
        ({0, 1}, 1, 1.0),
        ({0, 1}, 2, 0.5),
        (range(2, 4), 1, 0.0),
        (range(2, 4), 2, 0.5),
        (range(2, 4), 3, 0.75),  # layer 3 surely, layer 2 in half of the orders
        ({2, 4}, 3, 1 / 2),  # one of the tied two is in, and both are planted
        ({2, 4}, 4, 1.0),
        ({1}, 2, 1.0),  # one planted layer is all that there is to find
        ({3}, 2, 1.0),
        ({0}, 2, 0.0),
        ({0}, 5, 1.0),
    ],
)
def test_accuracy_is_the_expected_share_of_planted_layers_among_the_best(planted, k, expected):
    assert accuracy_at_k(WEIGHTS, planted, k) == pytest.approx(expected)


@pytest.mark.parametrize("k", range(1, 13))
def test_uniform_weights_give_chance_exactly(k):
    uniform = layer_weights(window_matrix(np.full(78, 0.3), 12))
    chance = pytest.approx(max(k, 2) / 12, abs=1e-15)
    assert accuracy_at_k(uniform, range(5, 7), k) == chance
    assert accuracy_at_k(np.zeros(12), range(5, 7), k) == chance


@quick
@given(planted_layers(), st.integers(1, 7))
def test_ties_count_as_all_equally_good_choices_do(data, k):
    weights, planted = data
    k = min(k, len(weights))
    choices = list(combinations(range(len(weights)), k))
    best = max(sum(weights[list(c)]) for c in choices)
    most = min(k, len(planted))
    shares = [len(planted & set(c)) / most for c in choices if sum(weights[list(c)]) == best]
    assert accuracy_at_k(weights, planted, k) == pytest.approx(np.mean(shares))


@pytest.mark.parametrize(
    ("planted", "expected"),
    [({1}, 1), ({3, 0}, 1 / 2), ({2}, 1 / 3.5), ({4, 0}, 1 / 3.5), ({0}, 1 / 5), ({2, 4}, 1 / 3)],
)
def test_the_reciprocal_rank_is_that_of_the_best_planted_layer(planted, expected):
    assert reciprocal_rank(WEIGHTS, planted) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("planted", "expected"),
    [({1, 3}, 1), ({0}, 0), ({2}, 1.5 / 4), ({3, 4}, 3.5 / 6), ({0, 1}, 3 / 6)],
)
def test_auroc_counts_the_pairs_in_the_right_order(planted, expected):
    assert auroc(WEIGHTS, planted) == pytest.approx(expected)


def test_planted_mass_is_the_share_of_the_positive_weight():
    assert planted_mass(WEIGHTS, [1, 3]) == pytest.approx(1.5 / 2.4)
    assert planted_mass(np.array([-0.5, 0.6, 0.2]), [1]) == pytest.approx(0.75)
    assert np.isnan(planted_mass(np.array([0.0, -1.0]), [1]))


def test_the_centre_of_the_weights_is_compared_with_that_of_the_planted_layers():
    assert centre_error(np.array([0.0, 1.0, 1.0, 0.0]), [1, 2]) == 0
    assert centre_error(np.array([-9.0, 1.0, 0.0, 1.0]), [0, 1]) == pytest.approx(1.5)
    assert np.isnan(centre_error(np.array([0.0, -1.0]), [1]))


@quick
@given(planted_layers())
def test_auroc_agrees_with_scikit_learn(data):
    weights, planted = data
    truth = [layer in planted for layer in range(len(weights))]
    assert auroc(weights, planted) == pytest.approx(roc_auc_score(truth, weights))


def test_equal_weights_that_differ_by_rounding_are_ties():
    weights = np.array([0.1 + 0.2, 0.3, 0.0])
    assert weights[0] != weights[1]
    assert accuracy_at_k(weights, {0}, 1) == 0.5
    assert reciprocal_rank(weights, {0}) == pytest.approx(1 / 1.5)
    assert auroc(weights, {0}) == pytest.approx(0.75)


@pytest.mark.parametrize("score", [auroc, reciprocal_rank, lambda w, p: accuracy_at_k(w, p, 1)])
@pytest.mark.parametrize("planted", [set(), {5}, {-1, 0}])
def test_planted_layers_must_be_layers(score, planted):
    with pytest.raises(ScoreError, match="must be some of 0 to 4"):
        score(WEIGHTS, planted)


@pytest.mark.parametrize("score", [auroc, reciprocal_rank, lambda w, p: accuracy_at_k(w, p, 1)])
def test_layers_without_a_weight_are_not_ranked(score):
    with pytest.raises(ScoreError, match="not a number"):
        score(np.array([0.1, np.nan]), {0})


def test_other_questions_without_an_answer_are_refused():
    with pytest.raises(ScoreError, match="All layers are planted"):
        auroc(WEIGHTS, range(5))
    for k in (0, 6):
        with pytest.raises(ScoreError, match=f"k cannot be {k}"):
            accuracy_at_k(WEIGHTS, {0}, k)


@pytest.mark.parametrize(
    ("weights", "distance"),
    [
        ([3, 3, 3], 0),
        ([1, 0, 0, 0], 0.75),
        ([2, 1, 1, 0], 0.25),
        ([5], 0),
        ([0, 0], 0),
        ([1, -1], 0.5),
    ],
)
def test_the_distance_from_uniform_is_half_the_sum_of_differences(weights, distance):
    assert distance_from_uniform(np.array(weights, dtype=float)) == pytest.approx(distance)


def test_weights_that_are_no_numbers_have_no_distance():
    with pytest.raises(ScoreError, match="not a number"):
        distance_from_uniform(np.array([np.nan, 1.0]))


@quick
@given(planted_layers(), st.floats(0.01, 100))
def test_scores_of_planted_layers_do_not_depend_on_the_scale(data, factor):
    weights, planted = data
    for score in (auroc, reciprocal_rank):
        assert score(factor * weights, planted) == pytest.approx(score(weights, planted))


def layers(*plants, null=False, method="m", undone=1.0):
    """A table of plants, each given as (first, last, weights)."""
    rows = []
    for number, (first, last, weights) in enumerate(plants):
        for layer, weight in enumerate(weights, 1):
            planted = f"{first}-{last}"
            key = (f"task {number}", "own", "a", 1, planted, first, last, null, method)
            rows.append((*key, layer, weight, undone))
    return pd.DataFrame(rows, columns=[*KEY, "layer", "weight", "undone"])


def test_plants_are_scored_by_hand():
    found = plant_scores(layers((1, 2, [0.5, 0.1, 0.4, 0.0])), ks=(1, 2))
    assert found["k"].tolist() == [1, 2]
    assert found["accuracy"].tolist() == [1.0, 0.5]  # best: layer 1; then layer 3
    assert found["chance"].tolist() == [0.5, 0.5]
    assert found["mrr"].tolist() == [1.0, 1.0]
    # Of four pairs of a planted and another layer, 1 > 3, 1 > 4 and 2 > 4.
    assert found["auroc"].tolist() == [0.75, 0.75]
    assert found["planted_mass"].tolist() == pytest.approx([0.6, 0.6])
    # The centre is at 0.5 + 2 * 0.1 + 3 * 0.4 = 1.9, that of layers 1 and 2 at 1.5.
    assert found["centre_error"].tolist() == pytest.approx([0.4, 0.4])


def test_the_order_of_rows_does_not_matter():
    table = layers((1, 2, [0.5, 0.1, 0.4, 0.0]), (3, 4, [0.0, 0.3, 0.2, 0.9]))
    mixed = table.sample(frac=1, random_state=1)
    order = ["task", "k"]
    a, b = (
        plant_scores(t, (1, 2)).sort_values(order).reset_index(drop=True) for t in (table, mixed)
    )
    pd.testing.assert_frame_equal(a, b)


def test_nulls_are_not_scored():
    table = pd.concat([layers((1, 2, [1, 2, 3])), layers((1, 2, [3, 2, 1]), null=True)])
    assert len(plant_scores(table, (1,))) == 1


def test_means_over_plants():
    table = layers((1, 2, [0.5, 0.1, 0.4, 0.0]), (3, 4, [0.0, 0.3, 0.2, 0.9]))
    found = mean_scores(plant_scores(table, (1, 2)), ["method"])
    assert found["accuracy"].tolist() == [1.0, 0.5]
    assert found["plants"].tolist() == [2, 2]
    assert (found["low"] < found["accuracy"]).all()
    by_task = mean_scores(plant_scores(table, (1,)), ["method", "task"])
    assert by_task["task"].tolist() == ["task 0", "task 1"]


def test_tasks_that_chose_the_method_do_not_test_it():
    table = layers((1, 2, [0.5, 0.1, 0.4, 0.0]), (3, 4, [0.9, 0.3, 0.2, 0.0]))
    marked = plant_scores(table, (1,), ["task 1"])
    assert marked["validation"].tolist() == [False, True]
    assert mean_scores(marked, ["method"])["accuracy"].tolist() == [1.0]
    # Where there is nothing else, they are shown all the same.
    alone = plant_scores(table, (1,), ["task 0", "task 1"])
    assert mean_scores(alone, ["method"])["accuracy"].tolist() == [0.5]


def test_separate_layers_are_scored_as_such():
    table = layers((2, 4, [0.1, 0.5, 0.0, 0.4])).assign(planted="2+4")
    (row,) = plant_scores(table, ks=(2,)).to_dict("records")
    assert (row["accuracy"], row["auroc"], row["chance"]) == (1.0, 1.0, 0.5)
    assert row["planted_mass"] == pytest.approx(0.9)
    assert row["centre_error"] == pytest.approx(0.3)


def test_a_plant_in_all_layers_has_nothing_to_be_told_from():
    assert len(plant_scores(layers((1, 3, [0.5, 0.1, 0.4])), (1,))) == 0


def test_means_have_all_measures():
    table = layers((1, 2, [0.5, 0.1, 0.4, 0.0]), (3, 4, [0.0, 0.3, 0.2, 0.5]))
    (row,) = mean_scores(plant_scores(table, (1,)), ["method"]).to_dict("records")
    assert row["planted_mass"] == pytest.approx((0.6 + 0.7) / 2)
    assert row["centre_error"] == pytest.approx((0.4 + 0.3) / 2)


def test_no_plants_give_an_empty_table():
    empty = layers((1, 2, [1, 2, 3]), null=True)
    found = mean_scores(plant_scores(empty, (1,)), ["method"])
    assert len(found) == 0
    assert "accuracy" in found


def test_distances_by_hand():
    found = distances(layers((1, 2, [1, 1, 1, 1]), (1, 2, [1, 0, 0, 0]), (1, 2, [0, 0, 0, 0])))
    assert found["distance"].tolist() == pytest.approx([0, 0.75, 0])


def test_layers_that_weigh_less_than_nothing_do_not_count():
    found = distances(layers((1, 2, [1, -1, 0, 0]), (1, 2, [-1, -1, 0, 0])))
    assert found["distance"].tolist() == pytest.approx([0.75, 0])


def test_nulls_that_look_like_plants_are_counted():
    real = layers(*[(1, 1, w) for w in ([1, 0], [0.9, 0.1], [0.8, 0.2])])  # .5, .4, .3
    null = layers((1, 1, [0.5, 0.5]), (1, 1, [0.85, 0.15]), null=True, undone=0.1)  # 0, .35
    row = null_claims(pd.concat([real, null])).iloc[0]
    assert row["threshold"] == pytest.approx(0.3)  # 95 % of three plants: all of them
    assert row["called"] == 0.5
    assert row["apart"] == pytest.approx(5 / 6)
    assert (row["plants"], row["nulls"]) == (3, 2)
    assert row["distance_null"] == pytest.approx(0.175)
    assert row["called_low"] < 0.5 < row["called_high"]
    assert (row["undone_planted"], row["undone_null"]) == pytest.approx((1.0, 0.1))


def test_the_best_baseline_has_one_row_and_its_own_counts():
    measures = {"called": False, "apart": True}
    numbers = {"called": [0.1, 0.5, 0.2], "apart": [0.8, 0.6, 0.9], "nulls": [9, 36, 12]}
    ends = {f"{name}_{end}": numbers[name] for name in measures for end in ("low", "high")}
    table = pd.DataFrame({"method": ["mine", "even", "far"], **numbers, **ends})
    for table_order in (table, table[::-1]):
        found = with_best_trivial(table_order, ["even", "far"], [], measures)
        (best,) = found[found["method"] == BASELINE].to_dict("records")
        assert (best["called"], best["apart"], best["nulls"]) == (0.2, 0.9, 12)
        assert found["method"].tolist() == ["mine", BASELINE]
    assert with_best_trivial(table, [], [], measures).equals(table)


def test_without_nulls_there_is_no_claim():
    assert len(null_claims(layers((1, 2, [1, 2, 3])))) == 0


def test_a_silent_method_claims_nothing_on_nulls():
    real = layers((1, 1, [1, 0]))
    null = layers((1, 1, [0, 0]), null=True)
    assert null_claims(pd.concat([real, null])).iloc[0]["called"] == 0
    assert np.isfinite(null_claims(pd.concat([real, null])).iloc[0]["apart"])


def test_two_best_layers_can_hold_a_plant_of_one_fully():
    found = plant_scores(layers((2, 2, [0.3, 0.6, 0.1, 0.0])), ks=(1, 2))
    assert found["accuracy"].tolist() == [1.0, 1.0]
    assert found["chance"].tolist() == [0.25, 0.5]


def norms_of(**kinds):
    """The norms of one plant in layer 2, by kind."""
    plant = {"model": "m", "planted": "2-2", "task": "t", "seed": 1, "null": False, "norm": "L1"}
    return pd.DataFrame(
        {**plant, "kind": kind.replace("_", " "), "layer": layer, "value": value}
        for kind, values in kinds.items()
        for layer, value in enumerate(values, start=1)
    )


def test_norms_are_divided_only_where_there_are_frozen_ones():
    own = {"noisy": [4.0, 3, 2, 1], "difference": [4.0, 3, 2, 1]}
    alone = processed_accuracy(norms_of(**own))
    assert alone["divide_frozen"].tolist() == [False, False]
    frozen = {"frozen_noisy": [1.0, 1, 1, 1], "frozen_difference": [1.0, 9, 1, 1]}
    found = processed_accuracy(norms_of(**own, **frozen)).set_index(
        ["subtract_clean", "divide_frozen"]
    )
    assert found["accuracy"].to_dict() == {
        (False, False): 1.0,
        (False, True): 1.0,
        (True, False): 1.0,
        (True, True): 0.0,
    }


@pytest.mark.parametrize("noisy", [0.0, 2.0])
def test_frozen_gradients_of_nothing_are_named_with_their_layer(noisy):
    own = {"noisy": [4.0, 3, noisy, 1], "difference": [4.0, 3, 2, 1]}
    frozen = {"frozen_noisy": [1.0, 1, 0, 1], "frozen_difference": [1.0, 1, 1, 1]}
    with pytest.raises(ScoreError, match="gradient norm is 0 in layer 3"):
        processed_accuracy(norms_of(**own, **frozen))
