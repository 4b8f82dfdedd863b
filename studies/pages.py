"""Paths of the documentation and of stored tables, and how scripts write tables into a page."""

from pathlib import Path

STORED = Path(__file__).with_name("tables")
"""Folder of the tables that studies leave; every page can be written again from them."""
DOCS = STORED.parents[1] / "docs"
IMAGES = DOCS / "images"
LINE = 120
"""Largest number of characters in a line of a page."""


def put(name: str, text: str, page: Path) -> None:
    """Replace the text between the two marks of this name on a page."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, rest = page.read_text(encoding="utf-8").split(begin)
    page.write_text(f"{before}{begin}\n{text}{end}{rest.split(end)[1]}", encoding="utf-8")
