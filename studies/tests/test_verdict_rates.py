"""What is said of answers is what was measured."""

import json
from pathlib import Path

import numpy as np
import pytest

from memloc.stats.answers import Evidence, answer, answer_weights
from memloc.stats.calibration import RATES, rates, weakness
from studies.verdicts import PAGE, Judged, as_tables, kept, rates_of

MEASURED = json.loads(RATES.read_text(encoding="utf-8"))


def judged(kind="plant", word="concentrated", layers=(6, 7), ends=(6, 7), p=0.01):
    what = {"method": "shares", "kind": kind, "model": "m", "task": "t"}
    place = {"first": ends[0], "last": ends[1], "layers": list(layers)}
    return Judged(**what, **place, word=word, p=p)


def test_rates_are_those_of_runs_counted_by_hand():
    every = [
        judged(),
        judged(layers=(6,)),
        judged(layers=(5, 6)),
        judged(word="uneven", layers=()),
        judged(ends=(1, 4), layers=(1, 2, 3)),
        judged("null", "concentrated", p=0.04),
        *[judged("null", "cannot tell", (), p=0.5)] * 3,
        *[judged("spread", "even", ())] * 2,
        *[judged("ordinary", word, ()) for word in ("uneven", "cannot tell")],
    ]
    found = rates_of("shares", every)
    counts = {name: found[name] for name in ("nulls", "plants", "spread_plants", "ordinary")}
    assert counts == {"nulls": 4, "plants": 5, "spread_plants": 2, "ordinary": 2}
    assert (found["false_concentrated"], found["power"], found["even"]) == (0.25, 0.5, 1)
    assert (found["power_width_4"], found["wrong_layers"], found["unknown"]) == (1, 0.2, 0.5)
    assert found["power_low"] < 0.5 < found["power_high"]
    assert (found["false_undone"], found["null_p"]) == (0.25, [0.04, 0.5, 0.5, 0.5])
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
def test_answers_are_as_good_as_they_were_meant_to_be(method):
    row = rates()[method]
    assert row["false_concentrated"] <= 0.05
    assert row["false_concentrated_spread"] <= 0.05
    assert row["false_undone"] <= 0.06
    assert row["power_width_2"] >= 0.9
    assert row["unknown"] <= 0.1


def test_where_swapping_cannot_tell_its_answer_says_what_speaks_against_it():
    shares = np.eye(12)[np.r_[np.zeros(4, int), np.ones(3, int), np.arange(13) % 12]]
    evidence = Evidence(shares, np.zeros(60), np.zeros(80))
    assert answer(evidence).word == answer(evidence, "swapping").word == "cannot tell"
    assert answer(evidence, "swapping").why.endswith(weakness("swapping"))
    assert "calibration" not in answer(evidence).why


def test_methods_that_exchange_no_layer_quote_their_rates():
    for row in MEASURED:
        if row["method"] in {"gradients", "probing"}:
            said = answer_weights(row["method"], np.ones(12)).why
            assert f"in {row['false_concentrated']:.0%} of {row['nulls']} runs with nothing" in said
