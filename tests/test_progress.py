import shlex
import sys
import threading
import unicodedata
from types import SimpleNamespace

import pytest

from memloc import progress
from memloc.progress import (
    hidden,
    request,
    requested,
    say,
    showing_bars,
    track,
    visible,
)


def test_a_library_is_silent(capsys):
    with track("work", 3) as advance:
        advance(3)
    assert capsys.readouterr() == ("", "")


def test_bars_go_to_stderr_and_end_with_the_block(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with showing_bars(), track("work", 4) as advance:
        advance(4)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "work" in shown.err
    assert "100%" in shown.err
    assert progress._shown.get() is None


def test_bars_end_after_an_error(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    try:
        with showing_bars(), track("work", 4):
            raise RuntimeError("stop")
    except RuntimeError:
        capsys.readouterr()
    assert progress._shown.get() is None


def test_nothing_tracked_shows_nothing(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with showing_bars():
        pass
    assert capsys.readouterr() == ("", "")


def test_a_log_has_plain_lines_with_the_time_left(capsys, monkeypatch):
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with showing_bars(), track("work", 500) as advance:
        advance(100)  # from before
        for _ in range(100):
            now += 1.0
            advance(2)
        lines = capsys.readouterr().err.splitlines()
        assert [line.split("  ", 2)[1:] for line in lines] == [
            ["work", "begins"],
            ["work", "32 %, about 1.1 min left"],  # 340 of 500, 160 of them in 30 s
            ["work", "44 %, about 2.3 min left"],  # 280 left, 2 a second
            ["work", "56 %, about 1.8 min left"],
        ]
    assert capsys.readouterr().err.endswith("work  done in 1.7 min\n")
    assert progress._shown.get() is None


def test_work_that_failed_is_not_called_done(capsys):
    with pytest.raises(RuntimeError), showing_bars(), track("work", 4):
        raise RuntimeError("stop")
    shown = capsys.readouterr().err
    assert "begins" in shown
    assert "done" not in shown


def test_work_can_be_hidden(capsys):
    with showing_bars():
        with hidden(), track("inner", 4) as advance:
            advance(4)
        assert capsys.readouterr() == ("", "")
        with track("outer", 4):
            pass
    assert "outer" in capsys.readouterr().err


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


def test_a_terminal_obeys_nothing_that_is_printed(capsys):
    say("\x1b]0;title\x07 \x9b2J a\rb \u202eabc \ud800 \x7f\ttab\nline")
    assert capsys.readouterr().out == (
        "\\u001b]0;title\\u0007 \\u009b2J a\\u000db \\u202eabc \\ud800 \\u007f\ttab\nline\n"
    )
    every = "".join(map(chr, range(0x3000)))
    kept = {*every} - {character for character in every if visible(character) != character}
    assert not {c for c in kept if not c.isprintable() and unicodedata.category(c) == "Cc"} - {
        *"\t\n"
    }


def test_labels_of_bars_are_no_markup(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with showing_bars(), track("[/foo] [red]a[/red] \x1b[2J", 1) as advance:
        advance(1)
    assert "[/foo] [red]a[/red] \\u001b[2J" in capsys.readouterr().err


def test_a_notebook_gets_a_bar_that_is_redrawn(monkeypatch):
    drawn = []
    handle = SimpleNamespace(update=drawn.append)
    fake = SimpleNamespace(
        HTML=lambda text: text, display=lambda bar, display_id: drawn.append(bar) or handle
    )
    shell = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=1), display=fake)
    monkeypatch.setitem(sys.modules, "IPython", shell)
    monkeypatch.setitem(sys.modules, "IPython.display", fake)
    monkeypatch.setattr(progress, "REDRAWN", 0.0)
    with progress.showing_bars(), progress.track("<work>", 4) as advance:
        advance(1)
        advance(3)
    assert "max='4'" in drawn[0]
    assert "&lt;work&gt;" in drawn[0]
    assert "value='1'" in drawn[1]
    assert "done in" in drawn[-1]
