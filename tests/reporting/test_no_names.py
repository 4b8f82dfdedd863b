"""Reports, statistics, studies and commands know no method by name: methods bring what is shown."""

import ast
import re
from pathlib import Path

import pytest

from memloc.methods.registry import _ours

PACKAGE = Path(__file__).parents[2] / "src" / "memloc"
WORDS = {"shares", "generalisation"}
"""Names that are English words, too: they count only where they stand alone in a string."""
NAMES = "|".join(name.replace("_", "[_ ]") for name in _ours() if name not in WORDS)
FILES = [
    path
    for room in ("reporting", "cli", "stats", "study")
    for path in sorted((PACKAGE / room).rglob("*"))
    if path.suffix in {".py", ".html", ".js"} or (path.suffix == ".yaml" and room == "reporting")
]


def strings(path):
    """Texts of a file that a program reads: of Python code its strings, without docstrings."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return text.splitlines()
    tree = ast.parse(text)
    told = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    every = [n for n in ast.walk(tree) if isinstance(n, ast.Constant) and id(n) not in told]
    return [n.value for n in every if isinstance(n.value, str)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_method_is_known_by_name(path):
    pattern = re.compile(rf"\b({NAMES})\b", re.IGNORECASE)
    found = [text for text in strings(path) if pattern.search(text)]
    words = WORDS - {"generalisation"} if "stats" in path.parts else WORDS  # a column of Table 2
    found += [text for text in strings(path) if text in words or text.strip() in PARTS]
    assert found == []


PARTS = {f"part: {name}" for name in WORDS}
"""Lines that say whose results a figure needs."""


def test_the_search_sees_a_name(tmp_path):
    file = tmp_path / "x.py"
    file.write_text("'swapping in a docstring'\nx = 'by swapping'\n")
    assert strings(file) == ["by swapping"]
    assert re.search(NAMES, "by swapping")
