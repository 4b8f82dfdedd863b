"""What figures show: the values of their tables, from real files and from tables made by hand."""

import re

import numpy as np
import pandas as pd
import pytest

from fixtures.studies import CURVE
from memloc.methods import views
from memloc.methods.centroids import Centroids
from memloc.methods.registry import methods
from memloc.reporting.derived import is_planted
from memloc.reporting.examples import MOST_DRAWN, example_weights, shares_of, spread
from memloc.reporting.figures import FIGURES
from memloc.reporting.missing import COMMANDS
from memloc.reporting.rows import (
    ROWS,
    binarised,
    control_layers,
    event_pairs,
    training_curves,
    window_matrices,
)
from memloc.reporting.style import WORDS
from memloc.stats.intervals import wilson
from memloc.stats.planted import mean_scores
from memloc.stats.windows import layer_weights, window_matrix, windows

BY_NAME = {figure.name: figure for figure in FIGURES}
EACH = pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)


def rows(name, results, **values):
    found = BY_NAME[name].drawn(results).rows
    for column, value in values.items():
        found = found[found[column] == value]
    return found.reset_index(drop=True)


def where(table, **values):
    return table[np.logical_and.reduce([table[k] == v for k, v in values.items()])]


@EACH
def test_what_is_chosen_is_a_column_of_what_is_drawn(figure, results):
    drawn = figure.drawn(results)
    if drawn is None:
        assert figure.name == "timeline"  # no early epochs here; tests/methods/test_timeline.py
        return
    assert set(figure.choose) <= set(drawn.rows.columns)
    choices = drawn.choices(figure.choose)
    assert sum(len(drawn.with_rows(c)["datasets"]["drawn"]) for c in choices) == len(drawn.rows)


@EACH
def test_without_results_nothing_is_drawn(figure, nothing):
    assert figure.drawn(nothing) is None


@EACH
def test_every_figure_says_what_it_shows_and_which_command_makes_it(figure):
    assert figure.caption.endswith(".")
    assert figure.part in {*COMMANDS, *methods(), "events", "scores"}


@EACH
def test_tables_are_not_changed_by_drawing(figure, results):
    table = figure.shown(results)
    before = table.copy()
    figure.draw(table)
    pd.testing.assert_frame_equal(table, before)


def test_names_are_different():
    assert len(BY_NAME) == len(FIGURES)


def test_layer_curves_are_means_over_seeds_with_the_seeds_intervals(results):
    chosen = {"task": "tiny-topic", "model": "tiny-opt", "method": "probing", "layer": 3}
    of = where(results.layers, **chosen)
    (row,) = rows("layers", results, **chosen).to_dict("records")
    assert row["weight"] == pytest.approx(of["weight"].mean())
    assert (row["low"], row["high"]) == (of["low"].min(), of["high"].max())
    assert row["seeds"] == 2


def test_noise_probes_are_the_probes_f1(results):
    of = where(results.noise_probes, task="tiny-topic", model="tiny-opt", layer=0)
    (row,) = rows("noise-probes", results, task="tiny-topic", model="tiny-opt", layer=0).to_dict(
        "records"
    )
    assert row["f1"] == pytest.approx(of["f1"].mean())
    assert row["chance"] == pytest.approx(of["chance"].mean())


def test_window_matrices_are_means_over_windows_and_seeds(results):
    chosen = {"task": "tiny-topic", "model": "tiny-opt", "method": "retraining"}
    drawn = rows("windows", results, **chosen)
    parts = [
        window_matrix(part["normalised"].to_numpy(), 4)
        for _, part in where(results.windows, **chosen).groupby("seed")
    ]
    expected = np.mean(parts, axis=0)
    assert len(drawn) == 16
    for row in drawn.to_dict("records"):
        assert row["error"] == pytest.approx(expected[row["width"] - 1, row["layer"] - 1])
        assert row["low"] < row["error"] + 1e-12
        assert row["high"] > row["error"] - 1e-12
    clean = where(results.windows, **chosen).groupby(["first", "last"])["clean_error"]
    single = where(drawn, width=1, layer=2).iloc[0]
    assert single["clean_error"] == pytest.approx(clean.mean()[2, 2])
    plain = where(results.windows, **chosen, first=2, last=2)
    difference = (plain["error"] - plain["clean_error"]).mean()
    assert single["difference"] == pytest.approx(difference)
    all_layers = where(drawn, width=4, layer=1).iloc[0]
    assert all_layers["low"] == pytest.approx(wilson(1.0, 7).low)


def test_single_layers_show_the_largest_error_of_one_layer(results):
    chosen = {"task": "tiny-topic", "model": "tiny-opt", "method": "swapping"}
    of = where(results.windows, **chosen)
    of = of[of["first"] == of["last"]]
    (row,) = rows("single-layers", results, **chosen).to_dict("records")
    largest = of.groupby("seed")["error"].max()
    assert row["error"] == pytest.approx(largest.mean())
    at_largest = of.loc[of.groupby("seed")["error"].idxmax(), "clean_error"].mean()
    assert row["clean_error"] == pytest.approx(at_largest)
    assert row["difference"] == pytest.approx(largest.mean() - at_largest)
    assert row["low"] == pytest.approx(min(wilson(share, 7).low for share in largest))
    assert row["high"] == pytest.approx(max(wilson(share, 7).high for share in largest))


def test_centres_of_gravity_are_averaged_over_models_or_methods(results):
    table = results.whole("mcog")
    (row,) = rows("mcog-over-models", results, task="tiny-topic", method="swapping").to_dict(
        "records"
    )
    of = where(table, task="tiny-topic", method="swapping").groupby("model")["mcog"].mean()
    assert row["mcog"] == pytest.approx(of.mean())
    assert row["models"] == 2
    # Of two, a quarter of the resamples are the lower one twice, and another the higher one.
    assert (row["low"], row["high"]) == pytest.approx((of.min(), of.max()))
    (row,) = rows("mcog-over-methods", results, task="tiny-topic", model="tiny-opt").to_dict(
        "records"
    )
    of = where(table, task="tiny-topic", model="tiny-opt").groupby("method")["mcog"].mean()
    assert row["mcog"] == pytest.approx(of.mean())
    assert of.min() <= row["low"] < row["mcog"] < row["high"] <= of.max()
    chosen = {"task": "tiny-topic", "model": "tiny-opt", "method": "gradients"}
    (row,) = rows("mcog-models", results, **chosen).to_dict("records")
    assert row["mcog"] == pytest.approx(where(table, **chosen)["mcog"].mean())


def test_events_count_never_as_the_layer_after_the_last(results):
    (row,) = rows(
        "events", results, source="centroids", models="tiny-opt", task="tiny-topic"
    ).to_dict("records")
    of = where(results.events, task="tiny-topic", model="tiny-opt", variant="plain")
    for event, axis in (("initiation", "x"), ("crossing", "y")):
        layers = of.loc[of["event"] == event, "layer"]
        assert row[f"layer_{axis}"] == pytest.approx(layers.fillna(5).mean())
        assert row[f"never_{axis}"] == layers.isna().sum()


def test_points_are_those_that_table_2_is_of(results):
    """A large model with one method does not change what the M-CoG of the others is over."""
    mcog = results.mcog
    fewer = mcog[(mcog["model"] != "tiny-bert") | (mcog["method"] == "swapping")]
    runs = results.runs.assign(depth=4 + (results.runs["model"] == "tiny-bert"))
    found = results.with_tables(mcog=fewer, runs=runs)
    points = found.points
    assert set(points["model"]) == {"tiny-opt"}
    own = where(points, task="tiny-topic", measure="M-CoG", against="validation").iloc[0]
    of_paper = mcog[mcog["method"] != "shares"]
    mine = where(of_paper, task="tiny-topic", model="tiny-opt").groupby("seed")["mcog"].mean()
    assert own["depth"] == pytest.approx(mine.mean())


def test_events_of_binarised_tasks_are_a_set_of_their_own(results):
    drawn = rows("events", results)
    assert set(drawn.loc[drawn["set"] == "two classes", "task"]) == {"tiny-topic-binary"}


def test_binarised_tasks_stand_against_the_whole_ones(results):
    (row,) = rows("binarised", results, method="swapping").to_dict("records")
    mcog = where(results.mcog, method="swapping")
    assert row["mcog"] == pytest.approx(mcog[mcog["task"] == "tiny-topic"]["mcog"].mean())
    binary = mcog[mcog["task"] == "tiny-topic-binary"]["mcog"].mean()
    assert row["mcog_binary"] == pytest.approx(binary)
    assert "tiny-topic-binary" not in set(rows("layers", results)["task"])


def test_control_bars_are_mean_accuracies_with_chance(results):
    control = results.control
    for name, by in (("methods", []), ("tasks", ["task"]), ("models", ["model"])):
        expected = mean_scores(control, [*by, "method"])
        drawn = BY_NAME[f"control-{name}"].drawn(results).rows
        pd.testing.assert_frame_equal(drawn, expected)


def test_control_layers_mark_what_was_planted(results):
    drawn = rows("control-layers", results)
    inside = drawn[drawn["inside"]]
    assert not inside["null"].any()
    assert ((inside["layer"] >= inside["first"]) & (inside["layer"] <= inside["last"])).all()
    assert drawn["weight"].max() == 1.0
    assert (drawn["low"] <= drawn["weight"]).all()
    assert not drawn.duplicated(["task", "model", "method", "planted", "layer"]).any()


def test_below_each_plant_is_the_best_trivial_baseline_and_no_other(results):
    table = where(results.control_layers, method="swapping", null=False)
    best = table.assign(method="weight_distance", weight=is_planted(table).astype(float))
    worse = table.assign(method="even_guess", weight=1.0)
    drawn = control_layers(pd.concat([table, worse, best]))
    assert {*drawn["method"]} == {"swapping"}
    mine, line = (drawn[drawn["is_baseline"] == kind] for kind in (False, True))
    assert line["planted"].str.startswith("best trivial baseline, ").all()
    assert len(line) == len(mine)
    assert (line["weight"] == line["inside"]).all()
    order = drawn.groupby(["task", "model", "first"])["is_baseline"]
    assert not order.first().any()
    assert order.last().all()


def test_the_last_gradient_step_is_what_the_method_weighs_layers_by(results):
    table = results.control_gradients
    chosen = {"task": "tiny-topic", "model": "tiny-opt", "norm": "L1"}
    one = where(table, **chosen, first=1, null=False)
    wide = one.pivot(index="layer", columns="kind", values="value")
    ratio = wide["difference"] / wide["frozen difference"]
    drawn = rows("gradient-steps", results, **chosen, planted="layers 1-2")
    last = drawn[drawn["step"].str.startswith("g")].set_index("layer")["value"]
    assert last.tolist() == pytest.approx((ratio / ratio.sum()).tolist())
    first = drawn[drawn["step"].str.startswith("a")].set_index("layer")["value"]
    assert first.tolist() == wide["frozen noisy"].tolist()


def test_centroids_are_means_over_seeds_and_marked_where_inseparable(results):
    of = where(
        results.centroids,
        task="tiny-topic",
        model="tiny-opt",
        variant="top",
        layer=2,
        kind="noisy",
    )
    (row,) = rows(
        "centroids",
        results,
        task="tiny-topic",
        model="tiny-opt",
        variant="top",
        layer=2,
        kind="noisy examples",
    ).to_dict("records")
    assert row["mean"] == pytest.approx(of["mean"].mean())
    assert row["low"] == pytest.approx(of["low"].mean())
    assert row["separable"] == of["separable"].all()


def test_label_probes_are_the_probes_f1(results):
    chosen = {"task": "tiny-topic", "model": "tiny-opt", "layer": 1}
    of = where(results.label_probes, **chosen, examples="noisy", labels="assigned")
    drawn = rows("label-probes", results, **chosen)
    row = drawn[drawn["what"].str.contains("assigned")].iloc[0]
    assert row["f1"] == pytest.approx(of["f1"].mean())


def test_the_memorisation_map_shows_every_example_of_a_small_task(results):
    chosen = {"task": "tiny-topic", "model": "tiny-opt"}
    of = where(results.memorisation, **chosen, seed=1)
    drawn = rows("memorisation", results, **chosen).sort_values("example")
    assert drawn["held_out"].tolist() == of.sort_values("example")["held_out"].tolist()
    assert drawn["trained"].tolist() == of.sort_values("example")["trained"].tolist()


def test_examples_average_to_the_layers_weight_before_it_is_normalised(results):
    chosen = {"task": "tiny-topic", "model": "tiny-opt", "method": "swapping"}
    drawn = rows("examples", results, **chosen)
    part = where(results.windows, **chosen, seed=1)
    expected = layer_weights(window_matrix(part["error"].to_numpy(), 4, windows(4)))
    assert drawn.groupby("layer")["share"].mean().tolist() == pytest.approx(expected.tolist())


def test_agreement_is_symmetric_and_starred_where_it_is_significant(results):
    drawn = rows("agreement", results, between="methods", what="M-CoG")
    pairs = drawn.set_index(["one", "other"])["rho"]
    assert len(pairs) == 20
    assert all(pairs[a, b] == pairs[b, a] for a, b in pairs.index)
    assert not drawn["label"].str.endswith("*").any()
    (first,) = ROWS["agreement"](results.agreement.head(1).assign(significant=True))["label"][:1]
    assert first == f"{results.agreement['rho'].iloc[0]:.2f}*"


def test_depth_and_generalisation_has_a_point_a_task_and_model(results):
    drawn = rows("generalisation", results, measure="M-CoG", against="validation")
    assert len(drawn) == 6
    assert not drawn["task"].str.endswith("-binary").any()


@pytest.mark.parametrize("against", ["generalisation", "validation"])
@pytest.mark.parametrize("measure", ["M-CoG", "M-CoG probing", "crossing", "ninety"])
def test_depths_and_scores_lie_within_their_intervals(results, measure, against):
    drawn = rows("generalisation", results, measure=measure, against=against)
    assert len(drawn) == 6
    for name in ("depth", "score"):
        value, low, high = (drawn[f"{name}{end}"] for end in ("", "_low", "_high"))
        assert ((low <= value) & (value <= high)).all()
        assert (low < high).any()


def test_the_ends_of_a_mean_over_methods_are_the_means_of_theirs(results):
    (row,) = rows(
        "generalisation",
        results,
        **{"measure": "M-CoG", "against": "validation", "task": "tiny-topic", "model": "tiny-opt"},
    ).to_dict("records")
    mcog = where(results.mcog, task="tiny-topic", model="tiny-opt")
    lows = mcog[mcog["method"] != "shares"].groupby("method")["low"].min()
    assert row["depth_low"] == pytest.approx(lows.mean())


@EACH
def test_a_caption_says_what_bars_and_bands_are(figure):
    said = f"{figure.caption} {figure.more}"
    assert any(words in said for words in ("interval", "range over"))
    assert "standard deviation" not in said


@EACH
def test_a_caption_has_at_most_two_sentences(figure):
    assert len(re.findall(r"[.?](?= [A-Z]|$)", figure.caption)) <= 2


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("single-layers", "as in the published code, the largest of the layers' means"),
        ("gradient-steps", "Panel a is of noisy examples"),
        ("gradient-steps", "the published code draws clean ones there"),
    ],
)
def test_a_caption_says_where_the_paper_shows_another_quantity(name, words):
    assert words in BY_NAME[name].more


def test_runs_that_did_not_memorise_are_drawn_in_training_only(tmp_path):
    from fixtures.studies import Study
    from memloc.reporting.results import load_results

    Study(memorised=False, control=0, models=("tiny-opt",), seeds=(1,)).write(tmp_path)
    results = load_results(tmp_path)
    assert BY_NAME["training"].drawn(results) is not None
    assert BY_NAME["layers"].drawn(results) is None
    assert BY_NAME["examples"].drawn(results) is None


def test_training_curves_are_those_of_the_noisy_training():
    noisy = CURVE[CURVE["training"] == "noisy"]
    expected = {
        (label, row["epoch"]): row[column]
        for column, label in WORDS["curve"].items()
        for _, row in noisy.iterrows()
    }
    drawn = training_curves(CURVE).set_index(["group", "epoch"])["accuracy"]
    assert drawn.to_dict() == expected


def make_mcog(**values):
    key = {"category": "c", "seed": 1}
    return pd.DataFrame(values).assign(**key, low=lambda t: t["mcog"] - 1, high=lambda t: t["mcog"])


def test_of_a_single_method_the_seeds_interval_is_drawn():
    table = make_mcog(task=["a"], model=["m"], method=["swapping"], mcog=[4.0])
    (row,) = ROWS["mcog-over-methods"](table).to_dict("records")
    assert (row["mcog"], row["low"], row["high"], row["methods"]) == (4.0, 3.0, 4.0, 1)


def test_methods_of_a_model_are_averaged():
    table = make_mcog(task=["a"] * 2, model=["m"] * 2, method=["x", "y"], mcog=[4.0, 8.0])
    (row,) = ROWS["mcog-over-methods"](table).to_dict("records")
    assert (row["mcog"], row["methods"]) == (6.0, 2)


def test_only_tasks_with_both_versions_are_compared():
    tasks = ["a", "a-binary", "b"]
    table = make_mcog(task=tasks, model=["m"] * 3, method=["x"] * 3, mcog=[4.0, 5.0, 6.0])
    (row,) = binarised(table).to_dict("records")
    assert (row["task"], row["mcog"], row["mcog_binary"]) == ("a", 4.0, 5.0)


def test_chance_is_averaged_over_seeds_like_the_probes():
    key = {"task": "a", "category": "c", "model": "m", "layer": 0, "low": 0.1, "high": 0.9}
    seeds = [{"seed": 1, "f1": 0.4, "chance": 0.1}, {"seed": 2, "f1": 0.6, "chance": 0.3}]
    table = pd.DataFrame([{**key, **seed} for seed in seeds])
    (row,) = BY_NAME["noise-probes"].draw(table).data.to_dict("records")
    assert (row["f1"], row["chance"]) == (0.5, 0.2)


def test_layers_of_deeper_models_are_not_averaged_with_those_of_others():
    def made(model, depth, layers):
        common = {"task": "a", "category": "c", "source": "centroids", "variant": "plain"}
        rows = zip(("crossing", "initiation"), layers, strict=True)
        numbers = [{"event": e, "layer": x, "low": x, "high": x, "never": 0.0} for e, x in rows]
        more = {"model": model, "depth": depth, "seed": 1, "separable": model != "p"}
        return [{**common, **more, **row} for row in numbers]

    runs = [*made("o", 12, (6, 5)), *made("p", 12, (6, 5)), *made("large", 24, (12, 10))]
    drawn = event_pairs(pd.DataFrame(runs)).set_index("models")
    assert tuple(drawn.loc["all models", ["layer_x", "layer_y"]]) == (5, 6)
    assert tuple(drawn.loc["large", ["layer_x", "layer_y"]]) == (10, 12)
    assert drawn["unclear_y"].to_dict() == {"all models": 1, "o": 0, "p": 1, "large": 0}


def test_a_layer_that_is_inseparable_in_one_seed_is_drawn_hollow():
    common = {"task": "a", "model": "m", "variant": "plain", "layer": 1, "kind": "noisy"}
    numbers = {"low": 0.0, "high": 1.0, "separability": 2.0, "by_chance": 1.0}
    seeds = [
        {"seed": 1, "mean": 0.2, "mean_low": 0.1, "mean_high": 0.3, "separable": True},
        {"seed": 2, "mean": 0.6, "mean_low": 0.4, "mean_high": 0.8, "separable": False},
    ]
    table = pd.DataFrame([{**common, **numbers, **seed} for seed in seeds])
    (row,) = views.mean_positions(table, Centroids.report["words"]).to_dict("records")
    assert (row["mean"], row["mean_low"], row["mean_high"]) == (0.4, 0.1, 0.8)
    assert not row["separable"]
    assert row["kind"] == "noisy examples"


ENDS = np.array([(1, 1), (2, 2), (1, 2)])


def make_table(errors, full, clean=(0.0, 0.0, 0.1)):
    key = {"task": "t", "model": "m", "method": "swapping", "seed": 1, "n_noisy": 10}
    rows = [
        {**key, "first": a, "last": b, "error": e, "normalised": e / full, "clean_error": c}
        for (a, b), e, c in zip(ENDS, errors, clean, strict=True)
    ]
    return pd.DataFrame(rows)


def test_cells_are_shares_of_what_all_layers_undo_but_differences_are_plain():
    drawn = window_matrices(make_table((0.2, 0.4, 0.8), full=0.8))
    cells = drawn.set_index(["width", "layer"])
    assert cells["error"].to_dict() == pytest.approx(
        {(1, 1): 0.25, (1, 2): 0.5, (2, 1): 1, (2, 2): 1}
    )
    assert cells.loc[(1, 2), "low"] == pytest.approx(wilson(0.4, 10).low / 0.8)
    assert cells.loc[(2, 1), "difference"] == pytest.approx(0.7)


def test_without_any_error_cells_are_empty_and_not_divided():
    drawn = window_matrices(make_table((0.0, 0.0, 0.0), full=np.nan))
    assert drawn["error"].tolist() == [0.0] * 4


def test_an_examples_weight_is_the_share_of_windows_with_a_layer_that_revert_it():
    wrong = np.array([[True, False, True], [False, False, True], [False, False, False]])
    found = example_weights(wrong, [range(a - 1, b) for a, b in ENDS])
    # By layer: the mean of its window of one layer and that of both.
    assert found.tolist() == [[1.0, 0.5], [0.5, 0.5], [0.0, 0.0]]
    assert spread(found).tolist() == [0, 1, 2]  # what is never reverted comes last


def test_of_many_examples_evenly_spaced_ones_are_drawn():
    n = 3 * MOST_DRAWN
    weights = np.column_stack([np.linspace(1, 0.1, n), np.linspace(0.1, 1, n)])
    drawn = spread(weights)
    assert len(drawn) == MOST_DRAWN
    assert (drawn[0], drawn[-1]) == (0, n - 1)


def test_examples_with_the_same_text_have_rows_of_their_own(results):
    drawn = rows("examples", results, task="tiny-topic", model="tiny-opt", method="swapping")
    assert drawn["row"].nunique() == drawn["example"].nunique() == 7
    assert drawn["row"].str.endswith(tuple(f"#{n}" for n in drawn["example"])).all()


def test_a_strip_holds_shares_of_the_leading_method_and_frames_what_was_planted(results):
    drawn = rows("strip", results)
    assert set(drawn["method"]) == {"shares"}
    held = drawn.groupby("row")["weight"].sum()
    assert held.to_numpy() == pytest.approx(np.ones(len(held)))
    framed = drawn[drawn["inside"]]
    assert set(framed["row"]) == {"planted in 1-2", "planted in 3-4"}
    assert (framed["weight"] > 0.3).all()
    mine = where(results.layers, task="tiny-topic", model="tiny-opt", method="shares")
    own = where(drawn, row="tiny-topic · tiny-opt", layer=2)["weight"].item()
    assert own == pytest.approx(mine[mine["layer"] == 2]["weight"].mean())
    assert list(drawn["row"].unique())[-2:] == ["planted in 1-2", "planted in 3-4"]


def test_without_shares_a_strip_is_of_the_papers_first_method(results):
    tables = {n: getattr(results, n) for n in ("layers", "control_layers")}
    without = {n: table[table["method"] != "shares"] for n, table in tables.items()}
    drawn = BY_NAME["strip"].drawn(results.with_tables(**without)).rows
    assert set(drawn["method"]) == {"swapping"}
    assert drawn.groupby("row")["weight"].sum().to_numpy() == pytest.approx(1)


def test_shares_are_means_over_seeds(results):
    chosen = {"task": "tiny-topic", "model": "tiny-opt"}
    mine = where(results.shares, **chosen, value="margin", layer=3)["share"]
    (row,) = rows("shares", results, **chosen, value="margin of the label", layer=3).to_dict(
        "records"
    )
    assert row["share"] == pytest.approx(mine.mean())


def test_examples_are_shown_by_exact_shares_too(results):
    chosen = {"task": "tiny-topic", "model": "tiny-opt"}
    drawn = rows("examples", results, **chosen, method="shares")
    run = results.runs.query("task == 'tiny-topic' and model == 'tiny-opt' and seed == 1")
    shares = shares_of(results, run)["shares"]
    assert shares.sum(axis=1).to_numpy() == pytest.approx(1)
    cell = drawn[(drawn["example"] == 6) & (drawn["layer"] == 2)]["share"].item()
    assert cell == pytest.approx(shares.loc[6, 2])


@pytest.mark.parametrize(
    ("method", "title"),
    [
        ("swapping", "share of windows with the layer"),
        ("shares", "share of the layer in the example"),
    ],
)
def test_the_legend_of_examples_says_what_is_measured(results, method, title):
    drawn = BY_NAME["examples"].drawn(results)
    chosen = {"task": "tiny-topic", "model": "tiny-opt", "method": method}
    assert title in str(drawn.with_rows(chosen))


def test_centres_of_planted_layers_stand_against_those_of_the_weights():
    key = {"task": "t", "model": "m", "seed": 1, "method": "shares", "null": False}
    weights = [(1, 0.0), (2, 3.0), (3, 1.0), (4, -1.0)]
    table = pd.DataFrame(
        [{**key, "planted": "2+4", "layer": layer, "weight": w} for layer, w in weights]
    )
    (row,) = ROWS["centres"](table).to_dict("records")
    assert (row["planted_centre"], row["centre"]) == (3.0, 2.25)
