"""Two hundred generated cases; `python -m studies.bad_input` tries over ten thousand."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from bad_input.kinds import KINDS
from bad_input.material import Material, make_material


@pytest.fixture(scope="module")
def material(once):
    return Material(once("bad-input", make_material))


@pytest.mark.parametrize("kind", KINDS)
def test_bad_input_ends_in_a_sentence_or_in_a_true_answer(kind, material, monkeypatch):
    monkeypatch.delenv("MEMLOC_DATA", raising=False)

    @settings(
        max_examples=KINDS[kind].quick,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],  # a smaller failure takes minutes to find
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(KINDS[kind].cases)
    def try_one(case):
        with tempfile.TemporaryDirectory(dir=material.home.parent) as place:
            case.check(material, Path(place))

    try_one()


def test_all_kinds_together_are_more_than_ten_thousand_cases():
    assert sum(kind.all for kind in KINDS.values()) >= 10_000
