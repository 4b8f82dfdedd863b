"""The script that tries every family, and its table on the page of models."""

import json

import pytest

from studies.families import CAUSAL, CLASSIFIER, PAGE, TABLES, outcomes, table


def test_a_family_that_takes_too_long_does_not_stop_the_others():
    stopped, unknown = outcomes(["bert", "no-such-family"], seconds=0)
    assert (stopped.outcome, "limits" in stopped.reason) == ("error", True)
    (unknown,) = outcomes(["no-such-family"])
    assert unknown.outcome == "not made"


@pytest.mark.parametrize(("kind", "at_least"), [(CLASSIFIER, 100), (CAUSAL, 150)])
def test_the_page_shows_what_was_found(kind, at_least):
    assert table(kind) in PAGE.read_text("utf-8")
    found = json.loads(TABLES[kind].read_text("utf-8"))["families"]
    assert not [row for row in found if row["outcome"] in {"wrong", "error"}]
    assert sum(row["outcome"] == "exact" for row in found) >= at_least
