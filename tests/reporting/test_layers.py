"""Figures of layer weights and their centres, from tables made by hand."""

import pandas as pd

from memloc.reporting.figures.layers import binarised, mcog_over_methods, noise_probes


def make_mcog(**values):
    key = {"category": "c", "seed": 1}
    return pd.DataFrame(values).assign(**key, low=lambda t: t["mcog"] - 1, high=lambda t: t["mcog"])


def test_of_a_single_method_the_seeds_interval_is_drawn():
    table = make_mcog(task=["a"], model=["m"], method=["swapping"], mcog=[4.0])
    (row,) = mcog_over_methods(table).data.to_dict("records")
    assert (row["mcog"], row["low"], row["high"], row["methods"]) == (4.0, 3.0, 4.0, 1)


def test_methods_of_a_model_are_averaged():
    table = make_mcog(task=["a"] * 2, model=["m"] * 2, method=["x", "y"], mcog=[4.0, 8.0])
    (row,) = mcog_over_methods(table).data.to_dict("records")
    assert (row["mcog"], row["methods"]) == (6.0, 2)


def test_only_tasks_with_both_versions_are_compared():
    tasks = ["a", "a-binary", "b"]
    table = make_mcog(task=tasks, model=["m"] * 3, method=["x"] * 3, mcog=[4.0, 5.0, 6.0])
    (row,) = binarised(table).data.to_dict("records")
    assert (row["task"], row["mcog"], row["mcog_binary"]) == ("a", 4.0, 5.0)


def test_chance_is_averaged_over_seeds_like_the_probes():
    key = {"task": "a", "category": "c", "model": "m", "layer": 0, "low": 0.1, "high": 0.9}
    seeds = [{"seed": 1, "f1": 0.4, "chance": 0.1}, {"seed": 2, "f1": 0.6, "chance": 0.3}]
    (row,) = noise_probes(pd.DataFrame([{**key, **s} for s in seeds])).data.to_dict("records")
    assert (row["f1"], row["chance"]) == (0.5, 0.2)
