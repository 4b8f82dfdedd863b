"""Figures of where noisy examples are, from tables made by hand."""

import pandas as pd

from memloc.reporting.figures.positions import centroid_trajectories, event_pairs


def test_layers_of_deeper_models_are_not_averaged_with_those_of_others():
    def made(model, depth, layers):
        common = {"task": "a", "category": "c", "source": "centroids", "variant": "plain"}
        rows = zip(("crossing", "initiation"), layers, strict=True)
        numbers = [{"event": e, "layer": x, "low": x, "high": x} for e, x in rows]
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
    (row,) = centroid_trajectories(table).data.to_dict("records")
    assert (row["mean"], row["mean_low"], row["mean_high"]) == (0.4, 0.1, 0.8)
    assert not row["separable"]
    assert row["kind"] == "noisy examples"
