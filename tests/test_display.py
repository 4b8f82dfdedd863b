"""How results show themselves in a terminal, in a notebook and as charts."""

import subprocess
import sys

import numpy as np
import pytest

import memloc
from memloc.display import Card, Shown


@pytest.fixture
def found(memorised_run):
    return memloc.localise(memorised_run, ["shares", "swapping"])


class Odd(Shown):
    def card(self):
        return Card("<b>\x1b[31m", ["s" * 500] * 9, [np.nan, 0.2, -1.0], [{"<i>": 0.12345}] * 9)


def test_a_repr_has_at_most_five_short_lines_and_obeys_nothing():
    lines = repr(Odd()).splitlines()
    assert len(lines) == 5
    assert max(map(len, lines)) <= 160
    assert lines[:2] == ["<b>\\u001b[31m", "|·█ |"]


def test_a_card_in_a_notebook_escapes_what_it_shows_and_is_small():
    shown = Odd()._repr_html_()
    assert "<b>\\u001b" not in shown
    assert "&lt;i&gt;" in shown
    assert shown.count("<tr>") == 2 + 6
    assert "0.123" in shown


def test_results_show_their_answer_and_their_layers(found):
    for shown in (found, found["shares"], found["shares"].answer):
        assert found["shares"].answer.sentence.removesuffix(".") in repr(shown)
        assert 1 <= len(repr(shown).splitlines()) <= 5
        assert "<div>" in shown._repr_html_()
    assert found["shares"].scores == dict(enumerate(found["shares"].weights.tolist(), 1))
    assert set(found.table["method"]) == {"shares", "swapping"}
    assert found["shares"].table.columns.tolist()[:2] == ["layer", "weight"]


def test_runs_and_tasks_show_what_they_hold(memorised_run):
    run = memorised_run
    assert "noisy labels" in repr(run)
    assert "final" in repr(run)
    assert run.task.name in repr(run.task)
    assert len(run.task.table) == len(run.task.train)
    assert run.task.table["noisy"].sum() == len(run.noisy_rows)


def test_nothing_that_a_run_gives_is_shown_as_a_dump(memorised_run):
    """Texts, arrays and models, of which there are thousands, are counted."""
    run = memorised_run
    every = {
        "examples": run.task.train,
        run.noisy.summary(): run.noisy,
        "parameters": run.load("final"),
        "1 run in": memloc.load_results(run.folder),
    }
    for says, shown in every.items():
        assert says in repr(shown).splitlines()[0]
        assert 1 <= len(repr(shown).splitlines()) <= 5
        assert len(shown._repr_html_()) < 4000
    assert "1 memorised" in repr(every["1 run in"])


def test_the_status_of_a_run_is_a_few_lines(memorised_run):
    status = memorised_run.status
    assert repr(status).startswith("The final weights predict 100% of the noisy and ")
    assert f"<b>{status!r}</b>" in status._repr_html_()
    attempt = {"learning_rate": 0.1, "training_accuracy": 0.5}
    new = type(status)(without={"frozen": "no"}, attempts=[attempt])
    assert repr(new).splitlines() == [
        "No final weights yet",
        "without frozen: no",
        "1 training fell short before this one",
    ]


def test_showing_a_run_loads_no_torch(memorised_run):
    code = (
        "import sys, memloc; repr(memloc.Run.open(sys.argv[1])); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, memorised_run.folder], check=True)
