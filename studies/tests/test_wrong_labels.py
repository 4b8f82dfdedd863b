"""Benchmarks of learning: what they compare is what they say, and pages show what was kept."""

import numpy as np
import pandas as pd
import pytest

from studies import find, find_models, human_errors, lora, many_rows, memory, repairs
from studies.crowd import KINDS, Crowd, missing
from studies.layer_shares import difference, keep


@pytest.fixture
def crowd():
    original = np.arange(60) % 4
    given = np.where(np.arange(60) < 12, (original + 1) % 4, original)
    return Crowd(("a", "b", "c", "d"), tuple(f"text {i}" for i in range(60)), original, given)


def test_all_kinds_of_labels_have_as_many_wrong_ones(crowd):
    wrong = {kind: np.flatnonzero(crowd.labels(kind) != crowd.original) for kind in KINDS}
    assert {len(rows) for rows in wrong.values()} == {12}
    human, same, random = wrong.values()
    assert human.tolist() == same.tolist() == list(range(12))
    assert random.tolist() != same.tolist()
    assert (crowd.labels(KINDS[1]) != crowd.given).any()
    assert (crowd.labels(KINDS[1], 2) != crowd.labels(KINDS[1], 1)).any()


def test_without_the_texts_a_sentence_says_so(tmp_path):
    assert missing(tmp_path).startswith("Nothing was measured: noisyagnews/crowd.parquet is not in")
    assert "--data or MEMLOC_DATA" in missing(None)


def test_areas_and_precision_by_hand():
    is_wrong = np.array([True, True, False, False, False])
    scores = {find.OURS: np.array([5.0, 1, 2, 3, 0]), "perfect": np.array([9.0, 8, 1, 1, 1])}
    ours, perfect = find.rates(scores, is_wrong)
    assert (ours["auroc"], perfect["auroc"]) == (0.667, 1)
    assert (ours["above_ours"], perfect["above_ours"]) == (0, 0.333)
    assert (ours["at_half"], ours["at_all"], perfect["at_all"]) == (1, 0.5, 1)
    chosen = np.array([True, False, True, False, False])
    assert find.set_rates(chosen, is_wrong) == {"called": 2, "precision": 0.5, "recall": 0.5}
    assert find.set_rates(~chosen & chosen, is_wrong)["precision"] is None


def test_where_flips_are_later_it_is_seen_and_where_not_it_is_not():
    rng = np.random.default_rng(0)
    early, late = (rng.dirichlet(np.roll([9.0] * 3 + [1.0] * 9, k), 40) for k in (1, 6))
    later, low, high = difference(early, late)
    assert 0 < low < later < high
    _, low, high = difference(early, early[::-1])
    assert low < 0 < high


def test_verdicts_on_known_models_are_counted_as_right_or_wrong_by_hand():
    found = pd.DataFrame(
        {
            "way": [repairs.SCRATCH] * 4 + [repairs.NOISE] * 2,
            "verdict": ["removed", "removed", "hidden", "cannot tell", "still there", "removed"],
        }
    )
    table = repairs.errors(found).set_index("model")
    without, sham = table.loc[repairs.SCRATCH], table.loc[repairs.NOISE]
    assert (without["judged"], without["removed"], without["hidden"]) == (4, 2, 1)
    assert without["wrong"].startswith("0.25 [")  # that it cannot tell is not wrong
    assert sham["wrong"].startswith("0.50 [")
    assert table.loc["all shams", "judged"] == 2
    assert repairs.family("yardstick 12") == "yardstick"
    assert repairs.family("head alone") == "head alone"


def test_of_the_adapters_that_memorise_the_slowest_and_smallest_are_compared():
    found = {"rank": [2, 8, 32, 2], "rate": [1e-3, 1e-3, 1e-3, 9e-3], "noisy": [0.5, 0.95, 1, 1]}
    assert lora.chosen(pd.DataFrame(found)) == (8, 1e-3)


def test_a_row_of_a_stored_table_replaces_the_one_with_the_same_facts(tmp_path):
    place = tmp_path / "kept.csv"
    for seed, centre in ((1, 5.0), (2, 6.0), (1, 7.0)):
        keep(place, [{"model": "m", "seed": seed, "centre": centre}], ("model", "seed"))
    assert pd.read_csv(place)[["seed", "centre"]].to_numpy().tolist() == [[2, 6], [1, 7]]


@pytest.mark.parametrize(
    ("name", "text", "page"),
    [
        *((name, make, find.PAGE) for name, make in find.TABLES.items()),
        *((name, make, find_models.PAGE) for name, make in find_models.TABLES.items()),
        *((name, make, human_errors.PAGE) for name, make in human_errors.TABLES.items()),
        *((name, make, lora.PAGE) for name, make in lora.TABLES.items()),
        *((name, make, repairs.PAGE) for name, make in repairs.TABLES.items()),
        ("rows", many_rows.table, many_rows.PAGE),
        ("memory", memory.table, memory.PAGE),
    ],
)
def test_pages_show_what_was_kept(name, text, page):
    shown = page.read_text(encoding="utf-8").split(f"<!-- {name}: begin -->")[1]
    assert shown.split(f"<!-- {name}: end -->")[0] == f"\n{text()}"


def test_what_find_says_of_itself_is_what_was_measured():
    assert find_models.SAYS.read_text(encoding="utf-8").endswith(find_models.said())
