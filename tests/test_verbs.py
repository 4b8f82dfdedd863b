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
    shown = verbs.with_progress(memloc.quiet).__code__
    public = {name: getattr(memloc, name) for name in memloc.__all__}
    assert {n for n, found in public.items() if getattr(found, "__code__", "") is shown} == work
