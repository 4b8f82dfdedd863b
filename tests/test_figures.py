"""Figures of the package's size and structure that reached their aim stay there."""

import ast

import pytest

import figures

MET = ("identities", "words of the engine elsewhere", "modules in import cycles")
"""Figures that reached their aim; `python tests/figures.py` prints all."""

CODE = '''
"""Documentation."""
x = 1  # a comment
# another

def f():
    """Documentation."""
    return (
        x
    )
'''
CLASSES = """
class Run: ...
class New:
    seed: int
    model: str
class Around:
    one: 'New | None'
class Looking:
    run: Run
class Other:
    seed: int
"""


@pytest.fixture(scope="module")
def found():
    return figures.count()


@pytest.mark.parametrize("figure", MET)
def test_a_figure_that_reached_its_aim_stays_there(figure, found):
    value = found[figure]
    assert (value if isinstance(value, int) else len(value)) <= figures.AIMS[figure], value


def test_code_is_counted_without_blank_lines_comments_and_docstrings():
    assert figures.code_lines(CODE) == 5


def test_modules_that_import_each_other_are_a_knot_even_over_a_third():
    edges = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": {"e.x"}}
    assert figures.knots(edges) == [["a", "b", "c"]]


def test_coats_are_told_by_name_by_their_fields_and_by_what_they_hold():
    assert figures.coats(ast.parse(CLASSES).body) == ["Around", "New", "Run"]


def test_identities_are_functions_that_hash_a_description():
    text = "def key(x):\n    return identity.hashed(x)\ndef other(x):\n    return len(x)\n"
    text += "def own(x):\n    return hashlib.sha256(json.dumps(x).encode())"
    assert figures.identities({"m": ast.parse(text)}) == ["m.key", "m.own"]
