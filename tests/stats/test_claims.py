"""The claims on small tables whose answers are worked out by hand."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from memloc.protocol import AgreementSettings
from memloc.seeds import generator
from memloc.stats.claims import (
    agreement,
    binarisation,
    depth_and_generalisation,
    depths,
    event_agreement,
    methods_of,
    order_agreement,
    over_models,
    same_seeds,
    size_agreement,
    task_scores,
    weigh_mean_weights,
)

TASKS = ("a", "b", "c", "d")
UNSEEN = ("validation_accuracy", "validation")


def frame(columns, rows):
    return pd.DataFrame(rows, columns=list(columns))


def make_runs(models=("m",), depth=12, seeds=(1,), tasks=TASKS):
    columns = ("task", "model", "seed", "depth", "validation_score", "n_classes", *UNSEEN)
    layers = depth if isinstance(depth, dict) else dict.fromkeys(models, depth)
    return frame(
        columns,
        [
            (task, model, seed, layers[model], 0.1 * i, 2, 0.5, 100)
            for i, task in enumerate(tasks)
            for model in models
            for seed in seeds
        ],
    )


def make_events(layers, event="crossing", model="m", seed=1, separable=True, tasks=TASKS):
    numbers = ("layer", "low", "high", "never")
    return frame(
        ("task", "model", "seed", "variant", "event", *numbers, "separable"),
        [
            (t, model, seed, "plain", event, x, x - 1, x + 1, float(np.isnan(x)), separable)
            for t, x in zip(tasks, layers, strict=True)
        ],
    )


def make_mcog(values, method="swapping", model="m", seed=1, tasks=TASKS):
    columns = ("task", "model", "seed", "method", "mcog", "low", "high")
    rows = [(t, model, seed, method, v, v - 1, v + 2) for t, v in zip(tasks, values, strict=True)]
    return frame(columns, rows)


NO_MCOG = make_mcog((), tasks=())
NO_EVENTS = make_events([1, 2, 3, 4]).iloc[:0]


def depth_of(table, task, measure, model="m"):
    row = table[(table.task == task) & (table.model == model) & (table.measure == measure)]
    return row.iloc[0]


def test_an_event_that_never_happens_counts_as_the_layer_after_the_last():
    events = pd.concat([make_events([1, np.nan, 3, 4]), make_events([2, 12, 3, np.nan], seed=2)])
    found = depths(events, NO_MCOG, make_runs(seeds=(1, 2)))
    assert depth_of(found, "a", "crossing")["depth"] == 1.5
    assert depth_of(found, "b", "crossing")["depth"] == (13 + 12) / 2
    assert depth_of(found, "b", "crossing")["n_never"] == 1
    assert depth_of(found, "b", "crossing")[["depth_low", "depth_high"]].tolist() == [11, 13]
    assert depth_of(found, "d", "crossing")["depth"] == (4 + 13) / 2
    assert (found["n"] == 2).all()


def test_events_at_layers_where_classes_are_not_separable_are_counted():
    events = pd.concat([make_events([1, 1, np.nan, 1], separable=False)])
    found = depths(events, NO_MCOG, make_runs())
    assert found.set_index("task")["n_inseparable"].to_dict() == {"a": 1, "b": 1, "c": 0, "d": 1}


def test_swapped_variants_do_not_count():
    events = make_events([1, 2, 3, 4])
    other = make_events([9, 9, 9, 9]).assign(variant="bottom")
    found = depths(pd.concat([events, other]), NO_MCOG, make_runs())
    assert found["depth"].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("missing", [[], [np.nan]], ids=["not tried", "no layer stands out"])
def test_one_missing_centre_of_gravity_drops_the_point_and_not_the_method(missing):
    three = make_mcog([1, 1, 1, *missing], "retraining", tasks=TASKS[: 3 + len(missing)])
    mcog = pd.concat([make_mcog([4, 5, 6, 7]), make_mcog([6, 7, 8, 9], "gradients"), three])
    found = depths(NO_EVENTS, mcog, make_runs())
    assert depth_of(found, "a", "M-CoG")["depth"] == pytest.approx((4 + 6 + 1) / 3)
    assert set(found[found["measure"] == "M-CoG"]["task"]) == {"a", "b", "c"}
    assert depth_of(found, "d", "M-CoG swapping")["depth"] == 7
    assert methods_of(found, "M-CoG") == "gradients, retraining, swapping"


def test_the_mean_centre_of_gravity_is_that_of_the_papers_methods_that_most_have():
    mcog = pd.concat(
        [
            make_mcog([1, 1, 1, 1], "shares"),
            make_mcog([4, 5, 6, 7]),
            make_mcog([6, 7, 8, 9], "gradients"),
            make_mcog([1, 1], "retraining", tasks=TASKS[:2]),
        ]
    )
    found = depths(NO_EVENTS, mcog, make_runs(), {"shares"})
    assert depth_of(found, "a", "M-CoG")["depth"] == 5
    ends = ["depth_low", "depth_high"]
    assert depth_of(found, "a", "M-CoG")[ends].tolist() == [4, 7]  # means of the methods' ends
    assert depth_of(found, "d", "M-CoG")["depth"] == 8
    assert depth_of(found, "a", "M-CoG retraining")["depth"] == 1
    assert methods_of(found, "M-CoG") == "gradients, swapping"
    table = depth_and_generalisation(found, make_scores([1, 2, 3, 4]), ("M-CoG",))
    assert set(table["methods"]) == {"gradients, swapping"}
    assert set(found["measure"]) == {
        "M-CoG",
        "M-CoG gradients",
        "M-CoG retraining",
        "M-CoG shares",
        "M-CoG swapping",
    }


def test_a_method_that_was_tried_on_some_seeds_only_counts_with_those():
    mcog = pd.concat(
        [
            make_mcog([4, 5, 6, 7], seed=1),
            make_mcog([6, 7, 8, 9], seed=2),
            make_mcog([1, 1, 1, 1], "retraining", seed=1),
        ]
    )
    found = depths(NO_EVENTS, mcog, make_runs(seeds=(1, 2)))
    assert depth_of(found, "a", "M-CoG")["depth"] == (5 + 1) / 2


def make_layers(weights, method="swapping", model="m", seed=1, task="a"):
    columns = ("task", "model", "seed", "method", "layer", "weight")
    rows = [(task, model, seed, method, i, w) for i, w in enumerate(weights, 1)]
    return frame(columns, rows)


def test_a_centre_of_gravity_can_be_that_of_weights_averaged_over_seeds():
    mcog = pd.concat([make_mcog([v], seed=s, tasks="a") for s, v in ((1, 1.0), (2, 3.0))])
    layers = pd.concat([make_layers([3, 0, 0]), make_layers([0, 0, 1], seed=2)])
    # Weights of 1.5, 0 and 0.5, where the mean of both seeds' would be 2.
    assert list(weigh_mean_weights(mcog, layers)["mcog"]) == [1.5, 1.5]
    assert list(mcog["mcog"]) == [1, 3]
    # Only the seeds that are asked for, and what no seed can weigh stays unknown.
    assert list(weigh_mean_weights(mcog[mcog["seed"] == 2], layers)["mcog"]) == [3]
    assert weigh_mean_weights(mcog, layers.assign(weight=0.0))["mcog"].isna().all()
    # A seed that has none counts with the weights that it has.
    unknown = mcog.assign(mcog=[1.0, np.nan])
    flat = pd.concat([make_layers([3, 0, 0]), make_layers([0, 0, 0], seed=2)])
    assert list(weigh_mean_weights(unknown, flat)["mcog"]) == [1, 1]
    assert weigh_mean_weights(NO_MCOG, layers).empty


def test_models_of_another_depth_do_not_disturb_mean_weights():
    deep = make_mcog([2.0], model="deep", tasks="a")
    layers = pd.concat([make_layers([0, 1, 0]), make_layers([0, 0, 0, 2], model="deep")])
    both = pd.concat([make_mcog([9.0], tasks="a"), deep])
    assert list(weigh_mean_weights(both, layers)["mcog"]) == [2, 4]


def test_a_missing_centre_of_gravity_is_missing_and_not_deep():
    found = depths(NO_EVENTS, make_mcog([4, np.nan, 6, 7]), make_runs())
    assert set(found["task"]) == {"a", "c", "d"}


def test_scores_are_means_over_the_seeds_that_have_them():
    runs = make_runs(seeds=(1, 2))
    runs.loc[runs.seed == 2, "validation_score"] += 0.2
    columns = ("task", "model", "seed", "score", "low", "high")
    rows = [("b", "m", 1, 0.7, 0.6, 0.8), ("b", "m", 2, 0.5, 0.4, 0.9)]
    found = task_scores(runs, frame(columns, rows)).set_index(["against", "task"])
    names = ["score", "score_low", "score_high"]
    assert found.loc[("generalisation", "b"), names].tolist() == [0.6, 0.4, 0.9]
    assert ("generalisation", "a") not in found.index
    assert found.loc[("validation", "d"), "score"] == pytest.approx(0.4)
    # Right in half of 100 examples of two classes, which is chance.
    low, high = found.loc[("validation", "d"), ["score_low", "score_high"]]
    assert low == pytest.approx(-high)
    assert low < 0


def make_scores(values, model="m", tasks=TASKS):
    both = {"generalisation": lambda value: value, "validation": lambda value: 1 - value}
    rows = [
        (task, model, name, score(value))
        for name, score in both.items()
        for task, value in zip(tasks, values, strict=True)
    ]
    return frame(("task", "model", "against", "score"), rows)


def row_of(table, **where):
    for column, value in where.items():
        table = table[table[column] == value]
    assert len(table) == 1
    return table.iloc[0]


def test_table_2_by_hand():
    # Ranks 1 3 2 4 beside 1 2 3 4: sum of squared differences 2, so 1 - 6 * 2 / (4 * 15) = 0.8.
    found = depth_and_generalisation(
        depths(make_events([1, 5, 4, np.nan]), NO_MCOG, make_runs()),
        make_scores([0.1, 0.2, 0.3, 0.4]),
        ("crossing",),
    )
    own = row_of(found, score="generalisation", model="m")
    assert own["rho"] == pytest.approx(0.8)
    # 4 of the 24 orders are as near to the same, and 4 as near to the reverse.
    assert own["p"] == pytest.approx(8 / 24)
    assert not own["significant"]
    assert (own["n"], own["n_never"]) == (4, 1)
    assert np.isnan([own["low"], own["high"]]).all()  # four tasks are too few
    assert row_of(found, score="validation", model="m")["rho"] == pytest.approx(-0.8)


def test_pooled_depths_are_shares_of_the_layers():
    """Layer 6 of 24 is as deep as layer 3 of 12, which ranks in layers would not say."""
    events = pd.concat([make_events([3, 6, 9, 12]), make_events([6, 12, 18, 24], model="large")])
    runs = make_runs(("m", "large"), {"m": 12, "large": 24})
    scores = pd.concat([make_scores([1, 2, 3, 4]), make_scores([1, 2, 3, 4], "large")])
    found = depth_and_generalisation(depths(events, NO_MCOG, runs), scores, ("crossing",))
    assert row_of(found, score="generalisation", model="all")["rho"] == pytest.approx(1)
    assert row_of(found, score="generalisation", model="all")["n"] == 8


def test_p_and_intervals_are_over_tasks_and_not_points():
    """Four copies of every task say no more than one does, and for intervals than two do."""
    models = ("m1", "m2", "m3", "m4")
    layers, values = [1, 5, 4, 8, 3], [0.1, 0.2, 0.3, 0.4, 0.5]
    tasks = "abcde"
    scores = make_scores(values, "m1", tasks)
    found = {}
    for some in (models[:1], models[:2], models):
        events = pd.concat([make_events(layers, model=m, tasks=tasks) for m in some])
        points = pd.concat([scores.assign(model=m) for m in some])
        depth = depths(events, NO_MCOG, make_runs(some, tasks=tasks))
        table = depth_and_generalisation(depth, points, ("crossing",))
        found[len(some)] = row_of(table, score="generalisation", model="all")
    assert found[4]["p"] == pytest.approx(found[1]["p"])
    assert found[4]["rho"] == pytest.approx(found[1]["rho"])
    for end in ("low", "high"):
        assert found[4][end] == pytest.approx(found[2][end])


def test_coefficients_of_a_model_are_corrected_by_holm():
    """p of .8 over four tasks is 8 / 24, that of 1 is 2 / 24; the smaller counts twice."""
    events = pd.concat([make_events([1, 5, 4, 8]), make_events([1, 2, 3, 4], "memorisation")])
    scores = make_scores([1, 2, 3, 4])
    scores = scores[scores["against"] == "generalisation"]
    depth = depths(events, NO_MCOG, make_runs())
    found = depth_and_generalisation(depth, scores)
    pooled = found[(found["model"] == "all") & (found["score"] == "generalisation")]
    assert pooled["p"].tolist()[:2] == pytest.approx([8 / 24, 2 / 24])
    assert pooled["corrected"].tolist()[:2] == pytest.approx([8 / 24, 4 / 24])
    assert found.loc[found["rho"].isna(), "corrected"].isna().all()
    assert not found["significant"].any()
    loose = depth_and_generalisation(depth, scores, settings=AgreementSettings(significance=0.2))
    marked = loose[(loose["model"] == "all") & (loose["score"] == "generalisation")]
    assert marked["significant"].tolist() == [False, True, False]


def test_what_cannot_be_correlated_says_why():
    depth = depths(make_events([2, 2, 2, 2]), NO_MCOG, make_runs())
    found = depth_and_generalisation(depth, make_scores([1, 2, 3, 4]), ("crossing", "M-CoG"))
    own = row_of(found, score="generalisation", measure="crossing", model="m")
    assert np.isnan(own["rho"])
    assert "equal" in own["why"]
    pooled = row_of(found, score="generalisation", measure="M-CoG", model="all")
    assert pooled["n"] == 0
    assert "three are needed" in pooled["why"]


def test_events_of_centroids_and_probes_agree_where_their_order_does():
    events = pd.concat(
        [
            make_events([1, 2, 3, 4]),
            make_events([2, 3, 5, np.nan], "memorisation"),
            make_events([4, 3, 2, 1], "initiation"),
            make_events([1, 2, 3, 4], "ninety"),
        ]
    )
    found = event_agreement(depths(events, NO_MCOG, make_runs()))
    assert row_of(found, one="crossing", model="m")["rho"] == pytest.approx(1)
    assert row_of(found, one="initiation", model="all")["rho"] == pytest.approx(-1)


def test_methods_are_compared_over_tasks_and_models():
    mcog = pd.concat(
        [
            make_mcog([1, 2, 3, 4]),
            make_mcog([5, 6, 7, 8], model="n"),
            make_mcog([1, 3, 2, 4], "gradients"),
            make_mcog([5, 6, 7, 8], "gradients", model="n"),
        ]
    )
    found = agreement(mcog, "mcog", "methods")
    # Ranks differ by 1 in two of eight places: 1 - 6 * 2 / (8 * 63).
    assert found["rho"].tolist() == [pytest.approx(1 - 12 / 504)]
    assert found["n"].tolist() == [8]
    pearson = AgreementSettings(between_methods="pearson")
    values = ([1, 2, 3, 4, 5, 6, 7, 8], [1, 3, 2, 4, 5, 6, 7, 8])
    expected = np.corrcoef(*values)[0, 1]
    assert agreement(mcog, "mcog", "methods", pearson)["rho"][0] == pytest.approx(expected)


def unrelated(n_tasks, rng, alike=0.8, models=4):
    """Centres of gravity by two methods that have nothing to do with each other.

    Models say much the same of a task: their correlation is `alike`.
    """
    tasks = [f"t{i}" for i in range(n_tasks)]
    parts = []
    for method in ("swapping", "gradients"):
        shared, own = rng.normal(size=n_tasks), rng.normal(size=(models, n_tasks))
        drawn = np.sqrt(alike) * shared + np.sqrt(1 - alike) * own
        parts += [make_mcog(row, method, f"m{i}", tasks=tasks) for i, row in enumerate(drawn)]
    return pd.concat(parts)


@pytest.mark.slow
@pytest.mark.parametrize(("n_tasks", "studies"), [(3, 100), (4, 200), (5, 200), (12, 100)])
def test_unrelated_methods_are_seldom_found_to_agree(n_tasks, studies):
    """True ρ is 0: at most about one in twenty may look significant, however alike models are."""
    rng = generator(3, "unrelated", n_tasks)
    found = [agreement(unrelated(n_tasks, rng), "mcog", "methods") for _ in range(studies)]
    share = np.mean([table["significant"][0] for table in found])
    assert share <= (0 if n_tasks == 3 else 0.065)
    # The usual p takes four models for four tasks.
    usual = np.mean([stats.spearmanr(*pair).pvalue <= 0.05 for pair in pairs_like(n_tasks, rng)])
    assert usual > 0.12


def pairs_like(n_tasks, rng, studies=200):
    for _ in range(studies):
        wide = unrelated(n_tasks, rng).pivot_table("mcog", ["task", "model"], "method")
        yield wide.to_numpy().T


def test_related_methods_are_found_with_five_tasks():
    rng = generator(4, "related")
    depth = np.arange(5)
    mcog = pd.concat(
        [
            make_mcog(depth + rng.normal(0, 0.2, 5), method, model, tasks="abcde")
            for method in ("swapping", "gradients")
            for model in ("m", "n", "o")
        ]
    )
    (row,) = agreement(mcog, "mcog", "methods").to_dict("records")
    assert row["significant"]
    assert row["p"] == pytest.approx(1 / 120)


def test_what_all_tasks_share_does_not_make_p_small():
    """Layer weights that fall in every task alike agree, but not on how tasks differ."""
    rng = generator(5, "profile")
    falling = np.linspace(1, 0, 12)
    weights = pd.concat(
        [
            make_weights(falling + rng.normal(0, 0.03, 12), method, task=task)
            for method in ("swapping", "gradients")
            for task in TASKS
        ]
    )
    (row,) = agreement(weights, "weight", "methods").to_dict("records")
    assert row["rho"] > 0.9
    assert not row["significant"]


def make_weights(values, method="swapping", model="m", task="a"):
    columns = ("task", "model", "seed", "method", "layer", "weight")
    return frame(columns, [(task, model, 1, method, i, v) for i, v in enumerate(values, start=1)])


def test_models_are_compared_on_weights_scaled_within_each_method():
    """Unscaled, the method with the large numbers would decide alone."""
    weights = pd.concat(
        [
            make_weights([0, 1, 2]),
            make_weights([100, 300, 200], "gradients"),
            make_weights([0, 0.1, 0.2], model="n"),
            make_weights([1, 3, 2], "gradients", model="n"),
        ]
    )
    found = agreement(weights, "weight", "models")
    assert found["rho"].tolist() == [pytest.approx(1)]
    assert found["n"].tolist() == [6]


def test_models_of_different_depth_are_not_paired_layer_by_layer():
    weights = pd.concat([make_weights([1, 2, 3]), make_weights([1, 2, 3, 4], model="n")])
    found = agreement(weights, "weight", "models")
    assert np.isnan(found["rho"]).all()
    assert "3 and 4 layers" in found["why"][0]


def test_centres_of_gravity_of_models_are_compared_over_tasks_and_methods():
    mcog = pd.concat([make_mcog([1, 2, 3, 4]), make_mcog([2, 1, 3, 4], model="n")])
    found = agreement(mcog, "mcog", "models")
    assert found["rho"].tolist() == [pytest.approx(1 - 12 / 60)]


def test_sizes_are_compared_with_each_small_model_and_their_mean():
    events = pd.concat(
        [
            make_events([1, 2, 3, 4], model="s"),
            make_events([4, 3, 2, 2], model="t"),
            make_events([2, 4, 6, 8], model="large"),
        ]
    )
    runs = make_runs(("s", "t", "large"), {"s": 12, "t": 12, "large": 24})
    found = size_agreement(depths(events, NO_MCOG, runs), "large", ("s", "t"))
    assert row_of(found, model="s")["rho"] == pytest.approx(1)
    assert row_of(found, model="t")["rho"] < 0
    # Means 5, 5, 5, 6 of 24: ranks 2 2 2 4 beside 1 2 3 4.
    expected = np.corrcoef([2, 2, 2, 4], [1, 2, 3, 4])[0, 1]
    assert row_of(found, model="all")["rho"] == pytest.approx(expected)


def test_binarised_tasks_are_compared_in_layers():
    binary = {task: f"{task}-binary" for task in TASKS}
    many = make_events([4, 6, 8, np.nan])
    two = make_events([3, 6, 7, 13]).assign(task=list(binary.values()))
    runs = make_runs()
    runs = pd.concat([runs, runs.assign(task=runs["task"] + "-binary")])
    found = binarisation(depths(pd.concat([many, two]), NO_MCOG, runs))
    own = row_of(found, measure="crossing")
    assert own["rho"] == pytest.approx(1)
    assert own["mean_difference"] == pytest.approx(-0.5)
    assert own["mean_absolute"] == pytest.approx(0.5)
    assert own["n"] == 4


def test_events_of_binarised_tasks_can_be_compared_over_task_means():
    binary = {task: f"{task}-binary" for task in TASKS}
    models = ("m", "w")
    many = [make_events([2, 4, 6, 8], model="m"), make_events([4, 6, 8, 10], model="w")]
    two = [make_events([1, 5, 6, 8], model="m"), make_events([5, 5, 8, 10], model="w")]
    two = [table.assign(task=list(binary.values())) for table in two]
    mcog = [make_mcog([5, 6, 7, 8], model=model) for model in models]
    runs = make_runs(models)
    runs = pd.concat([runs, runs.assign(task=runs["task"] + "-binary")])
    mcog += [table.assign(task=list(binary.values())) for table in mcog]
    found = depths(pd.concat([*many, *two]), pd.concat(mcog), runs)
    by_model = binarisation(found)
    by_task = binarisation(over_models(found))
    assert row_of(by_model, measure="crossing")["n"] == 8
    own = row_of(by_task, measure="crossing")
    assert own["n"] == 4
    # Task means 3 5 7 9 and 3 5 7 9: what the models differ by cancels out.
    assert (own["mean_difference"], own["mean_absolute"]) == (0, 0)
    assert row_of(by_model, measure="crossing")["mean_absolute"] == 0.5
    # M-CoG is compared over tasks and models either way.
    assert row_of(by_task, measure="M-CoG")["n"] == 8


def test_binarised_tasks_are_compared_with_the_same_seeds():
    binary = {task: f"{task}-binary" for task in TASKS}
    two = make_events([3, 4, 5, 6]).assign(task=list(binary.values()))
    others = [make_events([9, 9, 9, 9], seed=seed) for seed in (2, 3)]
    alone = make_events([1], tasks=["z"])
    events = pd.concat([make_events([3, 4, 5, 6]), two, *others, alone])
    kept = same_seeds(events, "event")
    assert set(kept["seed"]) == {1}
    assert same_seeds(alone, "event").empty
    assert set(kept["task"]) == {*binary, *binary.values()}
    runs = make_runs()
    runs = pd.concat([runs, runs.assign(task=runs["task"] + "-binary")])
    found = binarisation(depths(kept, NO_MCOG, runs))
    assert row_of(found, measure="crossing")["mean_difference"] == 0


def test_models_of_other_depth_are_pooled_by_shares_of_their_layers():
    binary = {task: f"{task}-binary" for task in TASKS}
    parts = []
    for model, scale in (("m", 1), ("deep", 2)):
        many = make_events(np.array([1, 2, 3, 4]) * scale, model=model)
        two = make_events(np.array([4, 3, 2, 1]) * scale, model=model)
        parts += [many, two.assign(task=list(binary.values()))]
    runs = make_runs(("m", "deep"), {"m": 12, "deep": 24})
    runs = pd.concat([runs, runs.assign(task=runs["task"] + "-binary")])
    found = binarisation(depths(pd.concat(parts), NO_MCOG, runs))
    assert row_of(found, measure="crossing")["rho"] == pytest.approx(-1)


def test_coefficients_count_points_that_mean_nothing():
    runs = make_runs(("s", "large"))
    events = pd.concat(
        [
            make_events([1, 2, 3, 4], model="s", separable=False),
            make_events([1, 2, np.nan, 4], model="large"),
            make_events([1, 2, 3, 4], event="memorisation", model="s"),
            make_events([1, 2, 3, 4], event="memorisation", model="large"),
        ]
    )
    depth = depths(events, NO_MCOG, runs)
    both = row_of(event_agreement(depth), one="crossing", model="all")
    assert (both["n_never"], both["n_inseparable"]) == (1, 4)
    sizes = size_agreement(depth, "large", ("s",))
    found = row_of(sizes, measure="crossing", model="s")
    assert (found["n_never"], found["n_inseparable"]) == (1, 4)


def test_nothing_in_is_nothing_out():
    runs = make_runs().iloc[:0]
    depth = depths(NO_EVENTS, NO_MCOG, runs)
    assert len(depth) == 0
    scores = task_scores(runs, frame(("task", "model", "seed", "score"), []))
    found = depth_and_generalisation(depth, scores)
    assert found["rho"].isna().all()
    assert len(agreement(NO_MCOG, "mcog", "methods")) == 0
    assert len(size_agreement(depth, "large", ("m",))) == 0
    assert len(binarisation(depth)) == 0


def test_the_order_of_tasks_is_a_mean_over_pairs_of_models():
    """Ranks 1234, 1234 and 1324: ρ 1, 0.8 and 0.8."""
    values = {"m": [1, 2, 3, 4], "n": [5, 6, 7, 8], "o": [1, 3, 2, 4]}
    mcog = pd.concat([make_mcog(v, "retraining", model) for model, v in values.items()])
    alone = make_mcog([1, 2, 3, 4], "swapping")
    (row,) = order_agreement(pd.concat([mcog, alone])).to_dict("records")
    assert row["method"] == "retraining"
    assert row["rho"] == pytest.approx((1 + 0.8 + 0.8) / 3)
    assert (row["least"], row["largest"]) == pytest.approx((0.8, 1))
    assert (row["pairs"], row["models"], row["tasks"]) == (3, 3, 4)
    assert np.isnan([row["low"], row["high"]]).all()


def test_the_order_of_five_tasks_has_an_interval_and_pairs_what_is_there():
    values = {"m": [1, 2, 3, 4, 5], "n": [2, 1, 3, 5, 4], "o": [1, 2, np.nan, 3, 4]}
    mcog = pd.concat([make_mcog(v, model=m, tasks="abcde") for m, v in values.items()])
    (row,) = order_agreement(mcog).to_dict("records")
    # Of m and o four tasks are in the same order; of n and o ranks 2143 beside 1234: 0.6.
    assert row["rho"] == pytest.approx((0.8 + 1 + 0.6) / 3)
    assert row["low"] < row["rho"] < row["high"]
