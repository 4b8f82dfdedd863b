"""What is said of early donors and of the control's bar is what the kept tables say."""

from pathlib import Path

from memloc.methods.early import COMPARED, LEAST_GAP
from memloc.stats import subsets
from memloc.stats.subsets import LEAST_KEPT
from studies import bar, exact
from studies.timeline import ALPHA, memorised, read


def test_what_is_said_of_early_donors_is_what_was_measured():
    runs = memorised("donors")
    r = runs["r"][runs["gap"] >= LEAST_GAP]
    assert f"In {len(r)} runs" in COMPARED
    assert f"{r.min():.2f} to {r.max():.2f} (median {r.median():.2f})" in COMPARED
    real = exact.donors(exact.joined(exact.STUDY))
    r = real["r"][real["answer"] != "refused"].dropna()
    assert f"in {len(r)} runs of a real encoder" in COMPARED
    assert f"of {r.min():.2f} to {r.max():.2f} (median {r.median():.2f})" in COMPARED


def test_every_answer_above_the_bar_of_the_control_is_right():
    answers = bar.read().dropna(subset=["control"])
    above = answers[answers["control"] >= LEAST_KEPT]
    assert (above["first"] == 1).all()
    assert (answers["first"] < 1).any()
    assert "of 44 answers" in Path(subsets.__file__).read_text(encoding="utf-8")
    assert len(answers) == 44


def test_no_answer_about_plants_that_had_no_part_in_choosing_the_bar_is_wrong_above_it():
    answers = bar.read(bar.HELD_OUT).dropna(subset=["control"])
    assert answers["planted"].nunique() >= 3
    assert (answers["first"][answers["control"] >= LEAST_KEPT] == 1).all()


def test_staged_plants_and_nulls_are_enough_and_right():
    staged, nulls = memorised("staged"), read("nulls")
    assert len(staged) >= 20
    right = (staged[["off_1", "off_2"]] <= 1).all(axis=1)
    right &= (staged[["found_1", "found_2"]] == 2).all(axis=1)
    assert right.mean() >= 0.9
    assert len(nulls) >= 20
    assert ((nulls[["p_epoch", "p_centre"]] < ALPHA).any(axis=1)).mean() <= 0.05
