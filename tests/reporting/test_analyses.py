"""Analyses in words, from tables made by hand."""

import numpy as np
import pandas as pd
import pytest

from memloc.methods.result import Result
from memloc.reporting.sentences import sentence
from memloc.reporting.terminal import picture


def make_event(event="crossing", layer=3.0, ends=(2.0, 5.0), separable=True, variant="plain"):
    return {
        "source": "centroids",
        "variant": variant,
        "event": event,
        "layer": layer,
        "low": ends[0],
        "high": ends[1],
        "never": 0.0,
        "separable": separable,
    }


def make_centroids(*events, about=None):
    curve = [np.nan, 1.0, 0.5, 0.0]
    layers = [
        {"variant": v, "layer": i, "kind": "noisy", "mean": x}
        for v in dict.fromkeys(e["variant"] for e in events)
        for i, x in enumerate(curve)
    ]
    tables = {"layers": pd.DataFrame(layers), "events": pd.DataFrame(events)}
    return Result("centroids", tables, about or {})


def test_a_layer_without_positions_is_a_dot_and_a_crossing_that_means_nothing_is_marked():
    sure = picture(make_centroids(make_event()))
    assert "apart" not in sure
    found = make_centroids(make_event(separable=False))
    found["layers"].loc[1, "mean"] = np.nan
    line = picture(found).splitlines()[-1]
    assert line == "plain |·▄ | crossing 3, where the classes cannot be told apart"


def test_an_event_is_told_with_its_interval():
    said = sentence(make_centroids(make_event(), make_event("initiation", 1.0, (1.0, 1.0))))
    assert "the assigned one: layer 3 (95 % interval 2 to 5);" in said
    assert "separated: layer 1 (95 % interval 1 to 1)." in said


def test_never_is_a_word():
    said = sentence(make_centroids(make_event(layer=np.nan, ends=(4.0, np.nan), separable=False)))
    assert ": never (95 % interval 4 to never)." in said
    assert "beware" not in said


def test_events_where_classes_cannot_be_told_apart_are_marked():
    assert "cannot be told apart, so beware" in sentence(
        make_centroids(make_event(separable=False))
    )


def test_a_forced_analysis_says_so():
    about = {"forced": True, "final_noisy_accuracy": 0.4}
    assert sentence(make_centroids(make_event(), about=about)).startswith("FORCED (only 40%")


def test_the_picture_has_a_line_a_variant_and_a_bar_a_layer():
    found = make_centroids(make_event(), make_event(layer=np.nan, variant="bottom"))
    lines = picture(found).splitlines()
    assert lines[1] == "plain  |█▄ | crossing 3"
    assert lines[2] == "bottom |█▄ | crossing never"


@pytest.mark.parametrize("clean", [0.9, 0.5])
def test_generalisation_is_told_with_the_clean_share_beside_it(clean):
    row = {"score": 0.8, "low": 0.7, "high": 0.85, "clean_score": clean}
    row |= {"validation_score": 0.25, "models": 30, "majority": 0.75, "normalised": 0.2}
    examples = pd.DataFrame(
        {
            "is_noisy": [True, False],
            "trained": [0.9, 0.8],
            "held_out": [0.1, 0.7],
            "counterfactual": [0.8, 0.1],
        }
    )
    found = Result("generalisation", {"summary": pd.DataFrame([row]), "examples": examples})
    assert sentence(found).startswith("80% of the training examples (95 % interval 70% to 85%)")
    assert f"{clean:.0%} of the clean ones; always predicting the most" in sentence(found)
    assert "would score 75%, so normalised by that the score is 0.20" in sentence(found)
    assert sentence(found).endswith("the validation score is 0.25.")
    assert picture(found).splitlines()[1].split() == ["noisy", "examples", "0.90", "0.10", "0.80"]
