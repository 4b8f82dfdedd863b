"""The page of texts says what was measured."""

import pandas as pd
import pytest

from studies import kinds, texts
from studies.kinds import EMBEDDED, LEAST, REAL, _at_least
from studies.text_rows import KEPT, PAGE
from studies.texts import _mass, wanted_plants


def test_the_page_has_the_tables_of_what_is_kept():
    page = PAGE.read_text(encoding="utf-8")
    for name, text in {**texts.page_tables(), **kinds.page_tables()}.items():
        assert f"<!-- {name}: begin -->\n{text}<!-- {name}: end -->" in page
    assert len(page.splitlines()) <= 150


@pytest.mark.parametrize("part", [*texts.PARTS_OF_STUDY])
def test_all_that_the_study_wants_is_kept(part):
    kept = pd.read_csv(KEPT / f"{part}.csv")
    for key in texts.PARTS_OF_STUDY[part][0]():
        assert (kept[[*key]] == [*key.values()]).all(axis=1).any(), key


def test_the_centre_at_equal_control_is_between_two_donors():
    above, below = LEAST + 0.01, LEAST - 0.03
    control, centre = [1.0, above, below, 0.5], [4.0, 5.0, 9.0, 6.0]
    row = {f"control_{s:g}": value for s, value in zip(EMBEDDED.steps, control, strict=True)}
    row |= {f"centre_{s:g}": value for s, value in zip(EMBEDDED.steps, centre, strict=True)}
    assert _at_least(pd.Series(row)) == pytest.approx(6)
    high = row | {f"control_{s:g}": 1.0 for s in EMBEDDED.steps}
    assert _at_least(pd.Series(high)) == 6  # that of the reference itself


def test_kinds_have_as_many_examples_and_groups_cover_the_model():
    patterns = [pattern for group in REAL.shares["units"].values() for pattern in group]
    assert patterns == [f"*.layers.{layer}.*" for layer in range(30)]
    for design in (EMBEDDED, REAL):
        facts = design.task("facts", 1).labels.is_noisy
        assert facts.sum() == design.memorised
        assert len(facts) == design.memorised + design.clean
        assert abs(design.task("labels", 1).labels.is_noisy.sum() - design.memorised) <= 2


def test_mass_is_of_positive_weights_and_no_plant_is_wanted_twice():
    assert _mass([0.5, -1.0, 1.5], [2]) == 0.75
    plants = [tuple(key.values()) for key in wanted_plants()]
    assert len(plants) == len({*plants}) >= 30
