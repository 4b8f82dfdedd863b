"""What the generated cases are judged by can fail."""

import json
import time

import pytest
import typer

from bad_input.calling import Answer, Wrong, call, check_answer, limited
from bad_input.studies import same
from memloc import cli


@pytest.fixture
def broken(monkeypatch):
    """A command in the place of `memloc models`."""

    def put(work):
        commands = [c for c in cli.app.registered_commands if c.callback.__name__ != "models"]
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        app.registered_commands = commands
        app.command("models")(work)
        monkeypatch.setattr("bad_input.calling.app", app)

    return put


def test_an_exception_is_wrong_and_says_where(broken, tmp_path):
    def fail() -> None:
        json.loads("{")

    broken(fail)
    with pytest.raises(Wrong, match="traceback: JSONDecodeError at"):
        call(tmp_path, "models")


def test_a_hang_is_wrong():
    with pytest.raises(Wrong, match="hang"), limited(0.05):
        time.sleep(5)


def test_a_text_for_machines_that_is_no_json_is_wrong():
    with pytest.raises(Wrong, match="no JSON"):
        check_answer(Answer(0, "depth 3", ""), as_json=True)


def test_numbers_that_json_does_not_have_are_wrong():
    with pytest.raises(Wrong, match="NaN"):
        check_answer(Answer(0, '{"a": NaN}', ""), as_json=True)


@pytest.mark.parametrize(
    "said",
    ["", "memloc: \n", "memloc: one thing\nmore\n", "no reason\n", f"memloc: {'x y' * 900}\n"],
)
def test_a_refusal_without_one_sentence_is_wrong(said):
    with pytest.raises(Wrong):
        check_answer(Answer(1, "", said), as_json=False)


def test_a_refusal_may_follow_progress():
    check_answer(Answer(1, "", "training 1 of 2\nmemloc: The disk is full.\n"), as_json=False)


@pytest.mark.parametrize("code", [3, 130, -1])
def test_other_exit_codes_are_wrong(code):
    with pytest.raises(Wrong, match="exit code"):
        check_answer(Answer(code, "", "memloc: It is so.\n"), as_json=False)


def test_settings_are_compared_by_what_they_say():
    assert same({"a": [1, "1e-2"]}, {"a": (1, 0.01), "b": 2})
    assert not same([1, 2], (1,))
    assert not same([True], (1,))
    assert not same("a", "b")
