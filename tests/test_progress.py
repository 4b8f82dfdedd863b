from memloc import progress
from memloc.progress import bars, track


def test_a_library_is_silent(capsys):
    with track("work", 3) as advance:
        advance(3)
    assert capsys.readouterr() == ("", "")


def test_bars_go_to_stderr_and_end_with_the_block(capsys):
    with bars(), track("work", 4) as advance:
        advance(4)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "work" in shown.err
    assert "100 %" in shown.err
    assert progress._shown.get() is progress._silent


def test_bars_end_after_an_error(capsys):
    try:
        with bars(), track("work", 4):
            raise RuntimeError("stop")
    except RuntimeError:
        capsys.readouterr()
    assert progress._shown.get() is progress._silent


def test_nothing_tracked_shows_nothing(capsys):
    with bars():
        pass
    assert capsys.readouterr() == ("", "")
