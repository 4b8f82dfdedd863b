"""What is kept is used again only if it is whole, unchanged and decided by the same."""

import numpy as np
import pytest

from memloc.progress import telling
from memloc.store import memo as module
from memloc.store.memo import ARRAYS, RECORD, Maker, key, memo, recall, unfinished_key
from memloc.store.records import versions

MAKER = Maker("swapping", 1)
VALUES = {"values": np.arange(6.0).reshape(2, 3), "wrong": np.array([True, False])}
FORMS = {"record": (RECORD, {"rows": [0.1, None, "θ"]}), "arrays": (ARRAYS, VALUES)}


def test_a_key_says_what_made_a_thing_and_what_decided_it():
    same = key(MAKER, {"a": 1, "b": [1, 2]})
    assert same == key(MAKER, {"b": (1, 2), "a": 1})
    assert len(same) == 16
    assert int(same, 16) >= 0
    others = [{"a": 1, "b": [2, 1]}, {"a": 1}, {"a": "1", "b": [1, 2]}, {"a": 1.5, "b": [1, 2]}]
    found = {same, *(key(MAKER, other) for other in others)}
    found |= {key(Maker(*maker), {"a": 1, "b": [1, 2]}) for maker in (("x", 1), ("swapping", 2))}
    assert len(found) == 7


def test_a_key_does_not_change_from_day_to_day():
    """Stored results are found by it."""
    assert key(MAKER, {"settings": {"normalise": True}}) == "f811f1c66f0e2a0f"


def test_parts_of_a_result_are_not_mixed_between_library_versions(monkeypatch):
    before = key(MAKER, {}), unfinished_key(MAKER, {})
    monkeypatch.setattr(module, "versions", lambda: {**versions(), "torch": "9.9"})
    assert key(MAKER, {}) == before[0]
    assert unfinished_key(MAKER, {}) != before[1]


@pytest.mark.parametrize("name", FORMS)
def test_a_thing_is_made_once_for_each_key(tmp_path, name):
    form, value = FORMS[name]
    made, reused = [], []

    def asked(key):
        def make():
            made.append(key)
            return value

        return memo(tmp_path / "new" / "x", key, make, form, lambda: reused.append(key))

    for wanted in ("one", "one", "two", "one"):
        np.testing.assert_equal(asked(wanted), value)
    assert made == ["one", "two", "one"]
    assert reused == ["one"]


@pytest.mark.parametrize("name", FORMS)
def test_no_flipped_bit_gives_other_values(tmp_path, name):
    form, value = FORMS[name]
    path = tmp_path / "x"
    form.write(path, value, "key")
    whole = path.read_bytes()
    refused, said = 0, []
    with telling(said.append):
        for place in range(len(whole)):
            flipped = whole[place] ^ (1 << place % 8)
            path.write_bytes(whole[:place] + bytes([flipped]) + whole[place + 1 :])
            found = recall(path, "key", form)
            if found is None:
                refused += 1
            else:
                np.testing.assert_equal(found, value)
    assert refused > 100
    assert all("\n" not in sentence for sentence in said)
