"""Held-out plants of the study of the control's bar: each donor is asked once."""

import pytest

import memloc
from studies import bar


class Killed(Exception):
    pass


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Two plants in two layers of tiny-opt that learn for four epochs and count all the same."""
    settings = {**bar.SETTINGS, "control.epochs": 4, "control.tries": 1, "finetune.repeat": 1}
    changed = {
        "HELD_OUT": tmp_path / "rows.csv",
        "MODELS": ("tiny-opt",),
        "PLANTS": ("1", "mlp:2"),
        "SEEDS": (11,),
        "NEEDED": 0.0,
        "SHALLOW": memloc.LoadOptions(depth=2),
        "SETTINGS": {**settings, "verdict.noisy_at_least": 1e-9},
    }
    for name, value in changed.items():
        monkeypatch.setattr(bar, name, value)
    folder = tmp_path / "plants"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine", encoding="utf-8")
    return folder


def test_held_out_plants_that_were_stopped_are_asked_by_the_other_donors(small, monkeypatch):
    add = bar._add

    def add_two(table, row):
        if len(bar.read(table)) == 2:
            raise Killed
        add(table, row)

    monkeypatch.setattr(bar, "_add", add_two)
    with pytest.raises(Killed):
        bar.hold_out(small)
    monkeypatch.setattr(bar, "_add", add)
    before = bar.read(bar.HELD_OUT)
    assert before["donor"].tolist() == [*bar.DONORS[:2]]
    bar.hold_out(small)
    rows = bar.read(bar.HELD_OUT)
    assert rows["donor"].tolist() == [*bar.DONORS] * 2
    assert rows["planted"].tolist() == ["1"] * 4 + ["mlp:2"] * 4
    assert [path.name for path in small.iterdir()] == ["notes.txt"]
    written = bar.HELD_OUT.stat().st_mtime_ns
    bar.hold_out(small)
    assert bar.HELD_OUT.stat().st_mtime_ns == written  # nothing is asked twice
