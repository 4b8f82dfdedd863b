"""The page of the board says what was measured."""

import numpy as np

from memloc.methods.registry import trivial_names
from memloc.stats.board import by_kind
from memloc.stats.planted import BASELINE
from studies.board import PAGE, PICTURE, Board, _named, parts, r2
from studies.pages import DOCS


def test_the_page_has_the_tables_of_what_is_kept():
    page = PAGE.read_text(encoding="utf-8")
    for name, text in parts(Board.kept()).items():
        assert f"<!-- {name}: begin -->\n{text}<!-- {name}: end -->" in page
    assert PICTURE.is_file()
    assert len(page.splitlines()) <= 200


def test_the_first_page_says_what_the_board_says_of_shares():
    table = by_kind(Board.kept().layers, trivial_names()).set_index(["method", "kind"])
    easy, decoy, loud, *line = (
        f"{table.loc[(method, kind), 'planted_mass']:.0%}".replace("%", " %")
        for method in ("shares", BASELINE)
        for kind in ("easy", "decoy", "loud")
    )
    said = " ".join((DOCS.parent / "README.md").read_text(encoding="utf-8").split())
    assert f"Shares put {easy} of their weight on planted layers where these are easy" in said
    assert f"{decoy} behind decoys and {loud} among loud neighbours" in said
    assert f"the best trivial baseline {line[0]}, {line[1]} and {line[2]}." in said


def test_named_layers_are_the_fewest_with_half_of_the_shares():
    # Of two layers, the first undoes everything, the second nothing.
    found = _named(np.array([0.9, 0.1]), np.array([0.0, 1.0, 0.0, 1.0]))
    assert found == {"named": 1, "sufficient": 1.0, "others": 0.0, "without_one": 0.0}


def test_shares_that_are_what_a_layer_does_alone_explain_all_of_it():
    assert r2(np.array([0.1, 0.5, 0.4]), np.array([0.2, 1.0, 0.8])) == 1
    assert np.isnan(r2(np.ones(3), np.arange(3.0)))
