import memloc
from memloc import progress, verbs


def test_python_shows_progress_and_an_estimate_unless_it_is_quiet(
    memorised_run, capsys, monkeypatch
):
    memloc.quiet()
    memloc.localise(memorised_run, memloc.Shares(clean_examples=3))
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress, "in_notebook", lambda: False)
    memloc.quiet(False)
    try:
        memloc.localise(memorised_run, memloc.Shares(clean_examples=4))
        shown = capsys.readouterr()
    finally:
        memloc.quiet()
    assert "shares  begins" in shown.err
    assert "noisy of" in shown.err
    assert shown.out == ""


def test_all_long_work_of_the_library_shows_its_progress():
    work = {"train", "plant", "adopt", "adopt_trainer", "localise", "analyse", "find", "repair"}
    assert {
        name for name in memloc.__all__ if hasattr(getattr(memloc, name), "__wrapped__")
    } >= work
    assert set(verbs.WORK) == work
