"""Messages that stay readable."""

import pytest

from memloc.errors import (
    UnknownKey,
    UnknownName,
    counted,
    lookup,
)


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 pairs"), (1, "1 pair"), (2, "2 pairs"), (1200, "1,200 pairs")]
)
def test_one_thing_is_not_things(number, said):
    assert counted(number, "pair") == said


def test_a_plural_may_be_given():
    assert counted(3, "class", "classes") == "3 classes"


def test_the_nearest_name_is_suggested_and_all_are_listed():
    known = dict.fromkeys(["swapping", "gradients"], 1)
    with pytest.raises(UnknownName) as error:
        lookup("method", "swaping", known)
    said = "No method is called 'swaping'. Did you mean 'swapping'? Known: swapping, gradients."
    assert str(error.value) == said


def test_of_thousands_of_names_some_are_listed():
    steps = {f"train/tiny-topic/tiny-opt/seed-{seed}": 1 for seed in range(3000)}
    with pytest.raises(UnknownName) as error:
        lookup("step", "train/x", steps)
    assert len(str(error.value)) < 2000
    assert str(error.value).endswith(" and more.")


def test_a_huge_name_is_refused_at_once_and_cut():
    with pytest.raises(UnknownName) as error:
        lookup("method", "s" * 30_000_000, {"shares": 1})
    assert len(str(error.value)) < 200


@pytest.mark.parametrize("name", [None, 3, ["shares"]])
def test_what_is_no_name_is_an_unknown_one(name):
    with pytest.raises(UnknownName, match="No method is called"):
        lookup("method", name, {"shares": 1})


def test_a_key_is_also_a_key_error_and_reads_as_a_sentence():
    with pytest.raises(KeyError) as error:
        lookup("result", "sharse", {"shares": 1}, UnknownKey)
    assert str(error.value).startswith("No result is called 'sharse'. Did you mean 'shares'?")
