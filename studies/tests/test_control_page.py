"""The page on plants says what was measured."""

import pandas as pd

from studies.control import PAGE, Planted, files, memorised, page_tables


def test_the_page_has_the_tables_of_what_is_kept():
    page = PAGE.read_text(encoding="utf-8")
    for name, text in page_tables(Planted.kept()).items():
        assert f"<!-- {name}: begin -->\n{text}<!-- {name}: end -->" in page
    for name, text in files(Planted.kept()).items():
        assert (PAGE.with_suffix("") / name).read_text(encoding="utf-8") == text


def test_plants_that_did_not_memorise_are_named():
    facts = {"task": "t", "model": "m", "planted": ["1-2", "6-7", "6-7"], "tries": [2, 4, 1]}
    plants = pd.DataFrame({**facts, "null": [False, False, True], "used": [True, False, True]})
    assert memorised(plants) == (
        "1 of 2 plants memorised, 1 of them at a higher rate; not used, because they did not: m, "
        "t, layers 6-7."
    )
