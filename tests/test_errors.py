"""Messages that stay readable."""

import pytest

from memloc.errors import UnknownName, counted, lookup


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
