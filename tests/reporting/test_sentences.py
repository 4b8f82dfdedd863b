"""Remarks that results make on themselves are told wherever their layers are shown."""

from dataclasses import replace

import pytest

from memloc import paths
from memloc.console import show_control
from memloc.methods.probing import UNLEARNT
from memloc.methods.result import Result
from memloc.reporting.figures.every import FIGURES
from memloc.reporting.figures.writing import _titled
from memloc.reporting.findings import Findings
from memloc.reporting.page import render
from memloc.reporting.sentences import marked, remarks_on, sentence
from memloc.reporting.summary import summarise
from memloc.reporting.tables import TABLES
from memloc.results import load_results
from study_support import Study

SAID = UNLEARNT.removesuffix(".")
RUN = "tiny-topic · tiny-opt · seed 1"
DRAWN = {"control-layers", "layers", "noise-probes", "mcog-models", "mcog-over-models"}
DRAWN |= {"mcog-over-methods"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Of two runs one has probes that did not learn; of the plants one and one null."""
    study = Study(tasks=("tiny-topic",), seeds=(1, 2), analyses=(), control=1)
    folder = study.write(tmp_path_factory.mktemp("unlearnt"))
    control = folder / "control" / "tiny-topic" / "tiny-bert" / "seed-1"
    homes = [folder / "tiny-topic" / "tiny-opt" / "seed-1", control / "window-1-2"]
    for home in [*homes, folder / "control/tiny-topic/tiny-opt/seed-1/null-1-2"]:
        path = paths.result(home, "probing")
        scores = Result.read(path)
        replace(scores, about={**scores.about, "remarks": [UNLEARNT]}).write(path)
    return folder


@pytest.fixture(scope="module")
def unlearnt(folder):
    return Findings(load_results(folder), resamples=5)


def test_the_sentence_of_a_result_ends_with_its_remarks(folder):
    runs = folder / "tiny-topic" / "tiny-opt"
    one, other = (Result.read(paths.result(runs / f"seed-{seed}", "probing")) for seed in (1, 2))
    assert sentence(one).endswith(UNLEARNT)
    assert UNLEARNT not in sentence(other)


def test_tables_of_results_hold_the_remarks(unlearnt):
    for name in ("layers", "mcog", "noise_probes"):
        table = getattr(unlearnt.results, name)
        found = table[table["remark"] == UNLEARNT]
        assert set(found["model"]) == {"tiny-opt"}, name
        assert set(found["seed"]) == {1}, name
        assert remarks_on(table) == f"{SAID} ({RUN}).", name
    assert set(marked(unlearnt.results.layers)["method"]) == {"probing"}


def test_of_many_runs_three_are_named(unlearnt):
    table = unlearnt.results.mcog.assign(remark="Odd.")
    assert remarks_on(table).startswith("Odd (tiny-topic · tiny-bert · seed 1, ")
    assert remarks_on(table).endswith(" and 1 more).")


def test_remarks_stand_below_every_drawing_of_layers(unlearnt):
    page = render(unlearnt, summarise(unlearnt))
    for figure in FIGURES:
        drawn = figure.drawn(unlearnt)
        told = drawn is not None and SAID in drawn.remarks({})
        assert told == (figure.name in DRAWN), figure.name
    assert page.count(f"{SAID} ({RUN})") >= len(DRAWN)


def test_a_figures_file_tells_the_remarks_of_what_it_shows(unlearnt):
    (figure,) = [figure for figure in FIGURES if figure.name == "layers"]
    drawn = figure.drawn(unlearnt)

    def subtitle(**choice):
        return " ".join(_titled(figure, drawn, choice)["title"]["subtitle"])

    assert f"{SAID} ({RUN})." in subtitle(model="tiny-opt", method="probing")
    assert SAID not in subtitle(model="tiny-opt", method="swapping")
    assert SAID not in subtitle(model="tiny-bert", method="probing")


def test_the_note_of_the_table_of_centres_tells_them(unlearnt):
    (table,) = [table for table in TABLES if table.name == "mcog"]
    assert table.said_of(table.tidy(unlearnt)).endswith(f"{SAID} ({RUN}).")


def test_the_summary_tells_them_and_nulls_do_not_count(unlearnt):
    told = [line for line in summarise(unlearnt).open if SAID in line]
    assert told == [
        f"{SAID} ({RUN}).",
        f"Control: {SAID} (tiny-topic · tiny-bert · seed 1).",
    ]


def test_the_terminal_tells_them_of_plants(folder, capsys):
    show_control(load_results(folder), as_json=False)
    assert f"{SAID} (tiny-topic · tiny-bert · seed 1)." in capsys.readouterr().out
