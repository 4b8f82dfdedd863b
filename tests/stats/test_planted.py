"""Accuracy on plants and claims on nulls, against values worked out by hand."""

import numpy as np
import pandas as pd
import pytest

from memloc.stats.planted import KEY, distances, mean_scores, null_claims, plant_scores


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
