"""The benchmarks compare two ways of the same work: at the smallest sizes, both give the same."""

import json

import pytest

from benchmarks import centroids, gradients, harness, hidden, swapping

MEASURE = {
    "hidden": lambda: hidden.measure(hidden=64, examples=6, repeats=1),
    "centroids": lambda: centroids.measure(hidden=64, examples=60, repeats=1),
    "gradients": lambda: gradients.measure(hidden=64, examples=4, repeats=1),
    "swapping": lambda: swapping.measure(hidden=64, examples=2, repeats=1),
}


@pytest.mark.parametrize("stage", MEASURE)
def test_both_ways_give_the_same(stage):
    measured = MEASURE[stage]()
    assert measured.stage == stage
    assert measured.ratio == pytest.approx(measured.baseline_seconds / measured.seconds)
    assert measured.difference < 1e-4
    assert measured.clock == "wall"


def test_ways_take_turns_also_at_being_first():
    order = []
    mine, plain = harness.side_by_side(lambda: order.append(1), lambda: order.append(0), 3)
    assert order == [0, 1, 1, 0, 0, 1]
    assert len(mine) == len(plain) == 3


def test_a_measurement_takes_the_place_of_the_one_of_its_stage_and_width(tmp_path, monkeypatch):
    def row(stage, hidden, ratio):
        return harness.Measured(stage, hidden, ratio, 1.0, ratio, "plain", 0.0, 0.0, 0.0, 1)

    monkeypatch.setattr(harness, "RESULTS", tmp_path / "results.json")
    harness.keep([row("shares", 64, 2.0), row("shares", 384, 3.0), row("hidden", 64, 4.0)])
    harness.keep([row("shares", 64, 5.0)])
    rows = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    found = {(row["stage"], row["hidden"]): row["ratio"] for row in rows}
    assert found == {("shares", 64): 5.0, ("shares", 384): 3.0, ("hidden", 64): 4.0}
