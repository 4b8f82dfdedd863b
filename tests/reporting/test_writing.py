"""Figures as files."""

import pytest

from memloc.errors import UnknownName
from memloc.reporting.figures.every import FIGURES
from memloc.reporting.figures.writing import write_figures


def test_figures_are_written_one_a_choice(findings, tmp_path):
    names = ["mcog-models", "control-methods"]
    written, missing = write_figures(findings.results, tmp_path, "svg", names)
    methods = ("gradients", "probing", "retraining", "swapping")
    expected = {"control-methods.svg", *(f"mcog-models-{m}.svg" for m in methods)}
    assert {path.name for path in written} == expected == {p.name for p in tmp_path.iterdir()}
    assert missing == []
    assert "tiny-acceptability" in (tmp_path / "mcog-models-swapping.svg").read_text()


def test_figures_without_results_are_named(nothing, tmp_path):
    written, missing = write_figures(nothing.results, tmp_path, "png")
    assert written == []
    assert [figure.name for figure in missing] == [figure.name for figure in FIGURES]


@pytest.mark.parametrize(
    ("kind", "only", "words"),
    [("gif", [], "No figure format"), ("png", ["layer"], "Did you mean 'layers'")],
    ids=["format", "name"],
)
def test_unknown_formats_and_figures_are_refused(nothing, tmp_path, kind, only, words):
    with pytest.raises(UnknownName, match=words):
        write_figures(nothing.results, tmp_path, kind, only)
