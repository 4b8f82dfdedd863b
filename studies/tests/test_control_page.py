"""The page on plants says what was measured."""

import pandas as pd

from studies.control import PAGE, Planted, files, groups_table, memorised, page_tables


def test_the_page_has_the_tables_of_what_is_kept():
    page = PAGE.read_text(encoding="utf-8")
    for name, text in page_tables(Planted.kept()).items():
        assert f"<!-- {name}: begin -->\n{text}<!-- {name}: end -->" in page
    for name, text in files(Planted.kept()).items():
        assert (PAGE.with_suffix("") / name).read_text(encoding="utf-8") == text


def test_groups_are_told_apart_by_the_share_in_their_own_layers():
    # One of four examples has more in the other group's layers: of the four pairs, three are right.
    shares = {"group": [0, 0, 1, 1], "first_share": [0.9, 0.6, 0.1, 0.7]}
    (row,) = groups_table(pd.DataFrame({"task": "t", "model": "m", **shares})).to_dict("records")
    assert (row["examples"], row["AUROC"], row["right group"]) == ("4", "0.75", "75%")
    assert row["share in the own layers"].startswith("0.68 [")


def test_plants_that_did_not_memorise_are_named():
    facts = {"task": "t", "model": "m", "planted": ["1-2", "6-7", "6-7"], "tries": [2, 4, 1]}
    plants = pd.DataFrame({**facts, "null": [False, False, True], "used": [True, False, True]})
    assert memorised(plants) == (
        "1 of 2 plants memorised, 1 of them at a higher rate; not used, because they did not: m, "
        "t, layers 6-7."
    )
