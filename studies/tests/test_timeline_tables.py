"""What is said of early donors and staged plants is what the kept tables say."""

from memloc.methods.early import COMPARED
from studies.timeline import rates, read


def test_what_is_said_of_early_donors_is_what_was_measured():
    r = read("donors")["r"]
    assert f"In {len(r)} runs" in COMPARED
    assert f"{r.min():.2f} to {r.max():.2f} (median {r.median():.2f})" in COMPARED


def test_the_layers_of_staged_plants_that_memorised_are_found():
    found = rates()["staged"]
    assert found["layers"] >= 0.9
    assert found["plants"] >= 20
