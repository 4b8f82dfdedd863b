"""Figures of the package's size and structure that reached their aim stay there."""

import ast
import subprocess
import sys
from pathlib import Path

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


@pytest.mark.slow
def test_few_functions_are_between_the_command_and_the_first_gradient():
    """A process of its own: only one that has computed no gradient yet copies itself for steps."""
    code = "import figures; print(*figures.frames(), sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=True,
    )
    names = done.stdout.splitlines()
    assert names[0] == "console.invoke"
    assert names[-1] == "loop.train_epoch"
    assert len(names) <= figures.AIMS["frames to the first gradient"]


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
