"""What follows from results, by the settings that say how seeds and models are put together."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from memloc.reporting.derived import (
    layers_to_undo,
    over_groups,
    over_seeds,
    paired,
    single_layers,
)
from memloc.reporting.figures import FIGURES
from memloc.stats.intervals import wilson
from memloc.stats.windows import windows


def where(table, **values):
    return table[np.logical_and.reduce([table[k] == v for k, v in values.items()])]


def with_settings(results, **summary):
    """Findings by other settings of `summary`."""
    changes = {f"summary.{name}": value for name, value in summary.items()}
    return replace(results, protocol=results.protocol.replace(changes))


def make_windows(errors, *, seed, divided=True):
    """Errors of each layer of two, then of both; of ten noisy examples."""
    ends = ((1, 1), (2, 2), (1, 2))
    full = errors[-1] if divided else 1.0
    key = {"task": "t", "category": "c", "model": "m", "seed": seed, "method": "retraining"}
    rows = [
        {**key, "first": a, "last": b, "error": e, "normalised": e / full, "clean_error": 0.1 * e}
        for (a, b), e in zip(ends, errors, strict=True)
    ]
    return pd.DataFrame(rows).assign(n_noisy=10)


def test_the_largest_error_of_one_layer_is_that_of_each_seed_or_of_the_mean():
    table = pd.concat(
        [make_windows((0.5, 0.1, 0.8), seed=1), make_windows((0.1, 0.3, 0.5), seed=2)],
        ignore_index=True,
    )
    each = single_layers(table, same_layer=False)
    assert list(each["error"]) == [0.5, 0.3]
    assert list(each["first"]) == [1, 2]
    same = single_layers(table, same_layer=True).sort_values("seed")
    # Of 0.8 and 0.5 undone by both layers: 0.4125 on average for the first layer, 0.3625 for the
    # second, so it is the first in both seeds.
    assert list(same["first"]) == [1, 1]
    np.testing.assert_allclose(same["error"], [0.5 / 0.8, 0.1 / 0.5])
    np.testing.assert_allclose(same["low"], [wilson(0.5, 10).low / 0.8, wilson(0.1, 10).low / 0.5])
    np.testing.assert_allclose(same["difference"], [0.45, 0.09])


def test_errors_that_are_not_divided_are_plain_ones():
    table = pd.concat(
        [make_windows((e, 0.2, 0.8), seed=s, divided=False) for s, e in ((1, 0.0), (2, 0.3))],
        ignore_index=True,
    )
    same = single_layers(table, same_layer=True)
    assert list(same["first"]) == [2, 2]
    assert list(same["error"]) == [0.2, 0.2]


def test_the_figure_of_single_layers_follows_the_setting(results):
    chosen = {"task": "tiny-topic", "model": "tiny-opt", "method": "retraining"}
    first, last = results.windows["first"], results.windows["last"]
    # The first seed's largest layer is the second, every other seed's the third.
    largest = results.windows["seed"].map(lambda seed: 2 if seed == 1 else 3)
    error = np.where((first == last) & (first == largest), 0.8, 0.1)
    changed = results.with_tables(windows=results.windows.assign(error=error, normalised=error))
    figure = next(figure for figure in FIGURES if figure.name == "single-layers")
    for how, expected in (("mean of largest", 0.8), ("largest mean", 0.45)):
        rows = figure.drawn(with_settings(changed, single_layer=how)).rows
        (row,) = where(rows, **chosen).to_dict("records")
        assert row["error"] == pytest.approx(expected)


def test_single_layers_of_runs_that_undo_nothing_have_no_share(results):
    none = {"error": 0.0, "normalised": np.nan}
    nothing = results.with_tables(windows=results.windows.assign(**none))
    results = with_settings(nothing, single_layer="largest mean")
    assert results.single_layers.empty
    plain = results.with_tables(windows=results.windows.assign(error=0.0, normalised=0.0))
    found = with_settings(plain, single_layer="largest mean").single_layers
    assert set(found["error"]) == {0.0}
    assert (found["high"] > 0).all()


def mcog_rows(results, chosen):
    figure = next(figure for figure in FIGURES if figure.name == "mcog-models")
    return where(figure.drawn(results).rows, **chosen).to_dict("records")


def test_centres_of_gravity_can_be_those_of_weights_averaged_over_seeds(results):
    chosen = {"task": "tiny-topic", "model": "tiny-opt", "method": "retraining"}
    other = with_settings(results, mcog="of mean weights")
    (row,) = mcog_rows(other, chosen)
    weights = where(results.layers, **chosen).groupby("layer")["weight"].mean()
    expected = (weights * weights.index).sum() / weights.sum()
    assert row["mcog"] == pytest.approx(expected, abs=1e-12)
    (plain,) = mcog_rows(results, chosen)
    assert row["mcog"] != pytest.approx(plain["mcog"], abs=1e-9)
    assert row["low"] <= row["mcog"] <= row["high"]
    assert (row["low"], row["high"]) == (plain["low"], plain["high"])  # the seeds' own
    depth = where(other.main_depths, **{k: chosen[k] for k in ("task", "model")})
    of_method = depth[depth["measure"] == "M-CoG retraining"]["depth"]
    assert of_method.item() == pytest.approx(expected)
    # Seeds that have both versions of a task are weighed by themselves.
    one = paired(other, "mcog")
    assert set(where(one, **chosen)["mcog"].round(9)) == {round(expected, 9)}


def test_events_of_binarised_tasks_can_be_means_over_models(results):
    other = with_settings(results, binarised_events="task means")
    by_task = other.binarisation.set_index("measure")
    assert (by_task.loc["crossing", "n"], by_task.loc["M-CoG", "n"]) == (1, 2)
    assert results.binarisation.set_index("measure").loc["crossing", "n"] == 2


TABLE = pd.DataFrame(
    {
        "task": ["a"] * 4,
        "model": ["m", "m", "n", "n"],
        "seed": [1, 2, 1, 2],
        "value": [1.0, 3.0, 6.0, 6.0],
        "low": [0.0, 2.5, 5.0, 5.5],
        "high": [1.5, 4.0, 6.5, 7.0],
    }
)


def test_seeds_are_averaged_and_their_intervals_held():
    found = over_seeds(TABLE, ["task", "model"], "value").to_dict("records")
    assert found[0] == {
        "task": "a",
        "model": "m",
        "value": 2.0,
        "low": 0.0,
        "high": 4.0,
        "seeds": 2,
    }


def test_models_are_resampled_after_their_seeds_are_averaged():
    (row,) = over_groups(TABLE, ["task"], "value", "model").to_dict("records")
    assert row == {"task": "a", "value": 4.0, "low": 2.0, "high": 6.0, "n": 2}


def test_of_one_model_the_seeds_intervals_are_held():
    (row,) = over_groups(TABLE.head(2), ["task"], "value", "model").to_dict("records")
    assert row == {"task": "a", "value": 2.0, "low": 0.0, "high": 4.0, "n": 1}


def test_models_without_a_number_do_not_count():
    table = TABLE.assign(value=[np.nan, np.nan, 6.0, 6.0])
    (row,) = over_groups(table, ["task"], "value", "model").to_dict("records")
    assert (row["value"], row["n"]) == (6.0, 1)


def undoing(error, depth=4, full=1.0):
    """One run; `error` says of a window (from 0) how much it undoes."""
    key = {"task": "a", "model": "m", "seed": 1, "method": "swapping"}
    rows = [
        {
            **key,
            "first": w.start + 1,
            "last": w.stop,
            "error": error(w),
            "normalised": error(w) / full,
        }
        for w in windows(depth)
    ]
    return pd.DataFrame(rows)


def test_the_best_window_and_windows_on_average_are_two_readings():
    """Everything is in layer 1: the best window has one layer, and only all four always hold it."""
    (row,) = layers_to_undo(undoing(lambda w: float(0 in w))).to_dict("records")
    # Windows of three: layers 1-3 undo all, layers 2-4 nothing; by layer 1, 1/2, 1/2, 0.
    assert (row["best"], row["on_average"]) == (1, 4)


def test_both_are_a_share_of_what_all_layers_undo():
    (row,) = layers_to_undo(undoing(lambda w: 0.2 * len(w), full=0.8)).to_dict("records")
    assert (row["best"], row["on_average"]) == (4, 4)  # all layers undo 80 %
    (row,) = layers_to_undo(undoing(lambda w: float(len(w) > 1))).to_dict("records")
    assert (row["best"], row["on_average"]) == (2, 2)


def test_nothing_undone_takes_no_number_of_layers():
    (row,) = layers_to_undo(undoing(lambda _w: 0.0, full=np.nan)).to_dict("records")
    assert np.isnan([row["best"], row["on_average"]]).all()
