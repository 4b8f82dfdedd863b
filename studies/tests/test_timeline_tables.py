"""What is said of early donors is what the kept tables say."""

from memloc.methods.early import COMPARED, LEAST_GAP
from studies.timeline import memorised


def test_what_is_said_of_early_donors_is_what_was_measured():
    runs = memorised("donors")
    r = runs["r"][runs["gap"] >= LEAST_GAP]
    assert f"In {len(r)} runs" in COMPARED
    assert f"{r.min():.2f} to {r.max():.2f} (median {r.median():.2f})" in COMPARED
