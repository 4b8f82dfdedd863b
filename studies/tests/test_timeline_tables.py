"""What is said of early donors and of the control's bar is what the kept tables say."""

from pathlib import Path

from memloc.methods.early import COMPARED, LEAST_GAP
from memloc.stats import subsets
from memloc.stats.subsets import LEAST_KEPT
from studies import bar
from studies.timeline import memorised


def test_what_is_said_of_early_donors_is_what_was_measured():
    runs = memorised("donors")
    r = runs["r"][runs["gap"] >= LEAST_GAP]
    assert f"In {len(r)} runs" in COMPARED
    assert f"{r.min():.2f} to {r.max():.2f} (median {r.median():.2f})" in COMPARED


def test_every_answer_above_the_bar_of_the_control_is_right():
    answers = bar.read().dropna(subset=["control"])
    above = answers[answers["control"] >= LEAST_KEPT]
    assert (above["first"] == 1).all()
    assert (answers["first"] < 1).any()
    assert "of 44 answers" in Path(subsets.__file__).read_text(encoding="utf-8")
    assert len(answers) == 44
