import pytest

from memloc.errors import counted


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 pairs"), (1, "1 pair"), (2, "2 pairs"), (1200, "1,200 pairs")]
)
def test_one_thing_is_not_things(number, said):
    assert counted(number, "pair") == said


def test_a_plural_may_be_given():
    assert counted(3, "class", "classes") == "3 classes"
