"""What is said of verdicts is what was measured."""

import json
from pathlib import Path

import numpy as np
import pytest
from memloc.stats.verdicts import (
    ALPHA,
    RATES,
    Evidence,
    how_many_layers,
    judge,
    judge_weights,
    rates,
    weakness,
)

from memloc.seeds import generator
from studies.verdict_sizes import DRAWS, ONE
from studies.verdicts import PAGE, Judged, as_tables, kept, rates_of

MEASURED = json.loads(RATES.read_text(encoding="utf-8"))


def judged(kind="plant", outcome="localised", layers=(6, 7), ends=(6, 7), p=0.01):
    what = {"method": "shares", "kind": kind, "model": "m", "task": "t"}
    place = {"first": ends[0], "last": ends[1], "layers": list(layers)}
    return Judged(**what, **place, outcome=outcome, p=p, seconds=1.0)


def test_rates_are_those_of_runs_counted_by_hand():
    every = [
        judged(),
        judged(layers=(6,)),
        judged(layers=(5, 6)),
        judged(outcome="spread", layers=()),
        judged(ends=(1, 4), layers=(1, 2, 3)),
        judged("null", "localised", p=0.04),
        *[judged("null", "cannot tell", (), p=0.5)] * 3,
        *[judged("spread", "spread", ())] * 2,
    ]
    found = rates_of("shares", every)
    counts = {name: found[name] for name in ("nulls", "plants", "spread_plants")}
    assert counts == {"nulls": 4, "plants": 5, "spread_plants": 2}
    assert (found["false_localised"], found["power"], found["spread"]) == (0.25, 0.5, 1)
    assert (found["exact"], found["power_width_4"], found["wrong_layers"]) == (0.25, 1, 0.2)
    assert found["power_low"] < 0.5 < found["power_high"]
    assert found["null_p"] == [0.04, 0.5, 0.5, 0.5]
    assert found["power_width_1"] is None


def test_rates_follow_from_the_runs_that_are_kept():
    runs = kept()
    for row in MEASURED:
        mine = [each for each in runs if each.method == row["method"]]
        assert rates_of(row["method"], mine) == row


def test_the_package_has_the_rates_that_were_measured():
    assert list(rates()) == [row["method"] for row in MEASURED]


def test_the_page_shows_the_rates_that_were_measured():
    page = Path(PAGE).read_text(encoding="utf-8")
    marks = "<!-- measured: begin -->", "<!-- measured: end -->"
    assert f"{marks[0]}\n{as_tables(MEASURED)}\n{marks[1]}" in page


@pytest.mark.parametrize("method", ["shares", "swapping"])
def test_verdicts_are_as_good_as_they_were_meant_to_be(method):
    row = rates()[method]
    assert row["false_localised"] <= 0.05
    assert row["false_localised_high"] < 0.08
    assert row["power"] >= 0.9


def test_spread_is_told_by_shares_and_less_often_by_swapping_as_the_page_says():
    assert rates()["shares"]["spread"] >= 0.8
    assert rates()["swapping"]["spread"] < 0.8
    assert "Swapping misses the 80 % of spread plants" in PAGE.read_text(encoding="utf-8")


def test_what_speaks_against_a_method_is_one_sentence_and_shares_need_none():
    assert weakness("shares") == ""
    assert f"only {rates()['swapping']['spread']:.0%} of" in weakness("swapping")
    assert weakness("retraining") == "How often retraining is right has not been measured."


def test_where_swapping_cannot_tell_its_verdict_says_that_shares_are_surer():
    in_half_of_all = np.tile(np.repeat([1 / 6, 0], 6), (30, 1))  # exactly the margin
    evidence = Evidence(in_half_of_all, np.zeros(60))
    assert judge(evidence).outcome == judge(evidence, "swapping").outcome == "cannot tell"
    assert judge(evidence, "swapping").sentence.endswith(weakness("swapping"))
    assert "calibration" not in judge(evidence).sentence


def test_methods_without_a_verdict_quote_their_rates():
    for row in MEASURED:
        if row["method"] in {"gradients", "probing"}:
            said = judge_weights(row["method"], [1.0] * 12).sentence
            assert f"in {row['false_localised']:.0%} of {row['nulls']} runs with nothing" in said


@pytest.mark.parametrize("examples", DRAWS)
def test_a_memory_at_the_margin_is_rarely_called_spread_though_one_layer_stands_out(examples):
    rng = generator(0, "margin", examples)
    runs = [how_many_layers(DRAWS[examples](rng, ONE)) for _ in range(400)]
    assert sum(spread.p <= ALPHA for _, spread in runs) < 0.08 * len(runs)
