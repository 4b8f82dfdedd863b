"""Somebody's installed analysis has a figure and tables, like memloc's own."""

import importlib
import json

import numpy as np
import pandas as pd
import pytest

from fixtures.studies import Study
from memloc.methods import registry as base
from memloc.methods.protocol import _with_methods, preset
from memloc.methods.registry import find_method
from memloc.methods.result import Result
from memloc.reporting.figures import figures_of, layers_of, write_figures
from memloc.reporting.missing import commands_of, coverage
from memloc.reporting.page import render
from memloc.reporting.results import load_results
from memloc.reporting.sentences import sentence, summarise
from memloc.reporting.style import TAKEN, Theirs, drawable, theirs_of
from memloc.reporting.tables import (
    as_text,
    table_of,
    tables_of,
    write_tables,
)
from memloc.run.folder import Run
from memloc.store import paths

MODULE = '''
import pandas as pd
from memloc import Method


class Steps(Method):
    """How far each layer moves the vectors.

    Not shown.
    """

    name = "long_steps"
    kind = "analysis"
    needs = ("final",)

    def run(self, run):
        layers = range(1, run.depth + 1)
        rows = [{"of": kind, "layer": i, "step": i / run.seed, "low": 0.0, "high": 9.0, "n": 7}
                for kind in ("noisy", "clean") for i in layers]
        return {
            "layers": pd.DataFrame(rows),
            "events": pd.DataFrame({"event": ["longest"], "layer": [run.depth]}),
            "summary": pd.DataFrame({"mean": [0.5], "examples": [len(run.noisy_rows)]}),
            "details": pd.DataFrame({"example": [1]}),
        }
'''


def forget():
    for found in (base.methods, base._theirs, preset, _with_methods):
        found.cache_clear()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A package with an entry point, as pip would have installed it."""
    site = tmp_path_factory.mktemp("site")
    about = site / "steps-1.0.dist-info"
    about.mkdir()
    (site / "steps_analysis.py").write_text(MODULE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: steps\nVersion: 1.0\n")
    point = "[memloc.methods]\nlong_steps = steps_analysis:Steps\n"
    (about / "entry_points.txt").write_text(point)
    return site


@pytest.fixture
def installed(site, monkeypatch):
    monkeypatch.syspath_prepend(site)
    importlib.invalidate_caches()
    forget()
    yield
    monkeypatch.undo()
    forget()


@pytest.fixture
def folder(installed, tmp_path):
    """A study in which it looked at all runs but the last."""
    study = Study(tasks=("tiny-topic",), methods=("swapping",), control=0)
    places = sorted(path.parent for path in study.write(tmp_path / "study").rglob(paths.RUN))
    for place in places[:-1]:
        find_method("long_steps")().found(Run.open(place)).write(paths.result(place, "long_steps"))
    return tmp_path / "study"


@pytest.fixture
def theirs(folder):
    return load_results(folder)


def test_its_tables_are_among_those_of_the_study(theirs):
    results = theirs
    assert results.long_steps_layers.columns.tolist()[:4] == ["task", "category", "model", "seed"]
    assert len(results.long_steps_layers) == 3 * 2 * 4
    assert results.long_steps_summary["examples"].tolist() == [7, 7, 7]
    assert "long_steps_details" not in dir(results)
    assert len(results.only(seed=1).long_steps_summary) == 2


def test_its_events_stand_beside_those_of_others(theirs):
    mine = theirs.events.query("event == 'longest (long_steps)'")
    assert mine["source"].unique().tolist() == ["long_steps"]
    assert mine["layer"].unique().tolist() == [4]
    events = next(table for table in tables_of(theirs) if table.name == "events")
    shown = as_text(events, events.shown(theirs))
    assert shown["longest (long steps)"].iloc[0] == "4.00"  # no interval
    said = sentence(find_method("long_steps")().found(_first_run(theirs)))
    assert said == "Longest: layer 4."


@pytest.mark.parametrize("event", ["depth", "most", "control", "happens"])
def test_an_event_is_told_by_its_own_name(event):
    table = pd.DataFrame({"event": [event], "layer": [2], "low": [1], "high": [np.nan]})
    said = sentence(Result("theirs", {"events": table}))
    assert said == f"{event.capitalize()}: layer 2 (95 % interval 1 to never)."


def test_what_only_has_the_name_of_events_is_counted_like_other_tables():
    found = Result("theirs", {"events": pd.DataFrame({"what": ["jump"], "at": [2]})})
    assert sentence(found) == "theirs made events (1 row)."


def _first_run(results):
    return Run.open(results.folder / results.runs["folder"][0])


def test_its_layers_are_drawn_by_what_its_texts_name(theirs):
    figure = figures_of(theirs)[-1]
    assert (figure.name, figure.title) == ("long-steps-layers", "Long steps")
    assert figure.caption.startswith("How far each layer moves the vectors. Mean over seeds; bands")
    rows = figure.drawn(theirs).rows
    assert (figure.look.y, figure.look.colour, figure.choose) == ("step", "of", ("model", "task"))
    both = rows[(rows["model"] == "tiny-bert") & (rows["layer"] == 4)]
    assert both["step"].tolist() == [3.0, 3.0]  # 4 with seed 1, 2 with seed 2
    assert both["seeds"].tolist() == [2, 2]
    assert both["n"].tolist() == [7, 7]


def test_tasks_are_its_curves_where_it_has_no_texts(theirs):
    plain = theirs.long_steps_layers.drop(columns=["of", "low", "high"])
    figure = layers_of(Theirs("long_steps_layers", plain.drop_duplicates()))
    assert (figure.look.colour, figure.look.panel) == ("task", "category")
    assert figure.look.intervals == ()
    assert figure.caption.endswith("vectors. Mean over seeds.")
    assert "low" not in figure.draw(plain).data


def test_people_read_one_row_per_run_and_one_column_per_layer(theirs):
    layers = next(each for each in theirs_of(theirs) if each.name == "long_steps_layers")
    text = as_text(table_of(layers), layers.table)
    assert text.columns.tolist() == ["task", "model", "seed", "of", "1", "2", "3", "4"]
    assert text.iloc[0].tolist()[2:5] == ["1", "noisy", "1.00 [0.00, 9.00]"]
    twice = Theirs(layers.name, pd.concat([layers.table, layers.table]))
    assert as_text(table_of(twice), twice.table).columns.tolist()[-2:] == ["layer", "step"]


def test_its_figure_and_tables_are_files_too(theirs, tmp_path):
    (figure, other), _ = write_figures(theirs, tmp_path, "svg", ["long-steps-layers"])
    assert figure.name == "long-steps-layers-tiny-bert.svg"
    assert "Long steps" in other.read_text()
    names = ["long-steps-layers", "long-steps-summary"]
    written, missing = write_tables(theirs, tmp_path, "csv", names)
    assert [path.stem for path in written] == names
    assert missing == []
    assert len(pd.read_csv(written[0])) == 3 * 2 * 4


def test_the_page_shows_them_and_what_is_missing(theirs):
    html = render(theirs, summarise(theirs))
    assert 'id="figure-long-steps-layers"' in html
    assert "Long steps: summary" in html
    found = coverage(theirs)
    assert found.table["long_steps"].tolist() == [True, True, True, False]
    last = theirs.folder / theirs.runs["folder"].iloc[-1]
    assert f"memloc analyse {last} long_steps" in found.commands
    assert "long_steps" in commands_of(theirs)["tiny-opt|tiny-topic"]


ODD = {
    "lists": {"l": [[1], [2], [3], [4]]},
    "missing texts": {"k": ["a", None, "a", None]},
    "missing numbers": {"n": pd.array([1, None, 3, 4], dtype="Int64")},
    "infinite": {"v": [1.0, np.inf, -np.inf, np.nan]},
    "names that are taken": {name: [1, 2, 3, 4] for name in sorted(TAKEN)},
    "a text that is taken": {"name": ["a", "b", "c", "d"]},
    "a name of ours": {"unlearnt": [1, 2, 3, 4]},
    "names that Altair reads": {name: [1, 2, 3, 4] for name in ("a:b", "a.b", "a[b]", "")},
    "one end": {"low": [1.0, 2.0, 3.0, 4.0]},
    "ends that are texts": {"low": list("abcd"), "high": list("abcd")},
    "layers that are texts": {"layer": list("abcd")},
    "dates": {"when": pd.to_datetime(["2020-01-01"] * 4)},
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
@pytest.mark.parametrize("numbers", [{"v": [1.0, 2.0, 3.0, 4.0]}, {}], ids=["numbers", "none"])
def test_any_table_of_theirs_leaves_the_report_whole(theirs, odd, numbers):
    table = pd.DataFrame({"layer": [1, 2, 3, 4], **numbers, **odd})
    key = theirs.runs.loc[[0], ["task", "category", "model", "seed"]]
    layers = key.assign(method="long_steps", remark="").merge(table, how="cross")
    tables = {"long_steps_layers": layers, "long_steps_summary": layers.head(1)}
    found = theirs.with_tables(**tables)
    for exhibit in figures_of(found):
        if exhibit.part == "long_steps" and (drawn := exhibit.drawn(found)) is not None:
            for choice in drawn.choices(exhibit.choose):
                json.dumps([choice, drawn.with_rows(choice)], allow_nan=False)
    for exhibit in tables_of(found):
        if exhibit.part == "long_steps":
            assert len(as_text(exhibit, exhibit.shown(found)))


def test_of_a_table_of_theirs_plain_columns_are_shown(theirs):
    table = pd.DataFrame({"task": ["t"] * 4, "v": [1, 2, 3, 4], **ODD["missing texts"]})
    shown = drawable(table.assign(**ODD["lists"], seeds=1, low="a", when=pd.NaT))
    assert shown.columns.tolist() == ["task", "v", "k"]
    assert shown["k"].tolist() == ["a", "", "a", ""]
    assert shown["v"].tolist() == [1, 2, 3, 4]


def test_results_are_shown_where_the_method_is_not_installed(theirs):
    base._theirs.cache_clear()
    base.methods.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "entry_points", lambda group: [])
        figure = figures_of(theirs)[-1]
        assert figure.caption == "Mean over seeds; bands hold the seeds' intervals."
        assert coverage(theirs).table["long_steps"].sum() == 3
        assert not any("long_steps" in line for line in coverage(theirs).commands)
