"""What was asked for, to be typed again."""

import shlex
import threading

import pytest

from memloc.request import request, requested


def test_in_a_library_nobody_asked_by_a_command():
    assert request() == ""


def test_a_command_is_as_it_would_be_typed():
    with requested(["train", "tiny-topic", "--set", "finetune.epochs=3"]):
        assert request() == "memloc train tiny-topic --set finetune.epochs=3"
    assert request() == ""


@pytest.mark.parametrize("word", ["a b", "it's", 'say "x"', "$HOME", "", "*.csv", "naïve;rm"])
def test_a_shell_reads_back_every_word(word):
    with requested(["adopt", word]):
        assert shlex.split(request()) == ["memloc", "adopt", word]


def test_the_innermost_command_counts_and_the_outer_one_comes_back():
    with requested(["run", "study"]):
        with pytest.raises(ValueError, match="x"), requested(["train"]):
            raise ValueError("x")
        assert request() == "memloc run study"


def test_another_thread_was_asked_for_nothing():
    seen = []
    with requested(["run"]):
        thread = threading.Thread(target=lambda: seen.append(request()))
        thread.start()
        thread.join()
    assert seen == [""]
