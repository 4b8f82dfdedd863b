import base64
import gzip
import json
import re

import pytest
from markupsafe import escape

from fixtures.studies import NASTY, Study, write_adopted
from memloc.errors import StoreError
from memloc.reporting.examples import LONGEST, example_block
from memloc.reporting.figures import FIGURES
from memloc.reporting.page import (
    columns_of,
    packed,
    read_report,
    render,
    write_report,
)
from memloc.reporting.sentences import summarise
from memloc.reporting.tables import TABLES
from memloc.store.records import FORMAT, read_json, write_json


def unpacked(text):
    return json.loads(gzip.decompress(base64.b64decode(text)))


def block(html, name):
    return re.search(rf'<script type="text/plain" id="{name}">(.*?)</script>', html).group(1)


def record(html):
    found = re.search(r'<script type="application/json" id="page">(.*?)</script>', html, re.S)
    return json.loads(found.group(1))


@pytest.fixture(scope="module")
def html(results):
    return render(results, summarise(results))


def test_the_page_asks_for_nothing_elsewhere(html):
    assert not re.findall(r'(?:src|href)\s*=\s*"(?!#|data:)', html.split("<script")[0])
    assert '<link rel="stylesheet"' not in html
    assert "@import" not in html


def test_the_page_is_the_same_each_time(results, html):
    assert render(results, summarise(results)) == html


def test_the_first_table_of_a_section_is_unfolded_at_most(html):
    for section in html.split("<section ")[1:]:
        folds = re.findall(r"<details( open)?>\s*<summary><b>", section)
        assert not any(folds[1:])
    assert "<details open>" in html


def test_only_what_is_missing_stands_out_in_a_table(html):
    trust = html.split('<section id="trust"')[1].split("<section ")[0]
    assert "<td>no</td>" in trust  # of the column that says what is a null
    assert 'class="no"' not in trust


def test_sentences_in_a_table_are_folded_so_that_they_can_be_read(html):
    where = html.split('<section id="where"')[1].split("<section ")[0]
    assert re.search(r'<td class="long">Cannot tell', where)
    assert '<td class="long">tiny-' not in where


def test_every_figure_has_its_place_and_its_rows(results, html):
    shown = {figure["name"]: figure for figure in record(html)["figures"]}
    # Plants of one task, events and layers of three, and probes for seven examples say little.
    small = {"control-tasks", "events", "noise-probes", "single-layers"}
    small |= {"timeline"}  # no early epochs here; tests/methods/test_timeline.py draws it
    assert set(shown) == {figure.name for figure in FIGURES} - small
    absent = re.search(r'<p id="absent">(.*?)</p>', html, re.S)
    assert absent is None or "task by task" not in absent.group(1)
    for figure in (each for each in FIGURES if each.name in shown):
        assert f'id="figure-{figure.name}"' in html
        rows = figure.drawn(results).rows
        table = unpacked(block(html, f"data-{figure.name}"))
        assert table["n"] == len(rows)
        assert set(table["columns"]) == set(rows.columns)


def test_what_is_chosen_at_first_has_most_to_show(tmp_path):
    """Planted layers are of one task only, which is not the first."""
    from memloc.reporting.results import load_results

    tasks = ("tiny-topic", "tiny-acceptability")
    study = Study(tasks=tasks, models=("tiny-opt",), seeds=(1,), analyses=(), control=1)
    results = load_results(study.write(tmp_path))
    html = render(results, summarise(results))
    start = {"model": "tiny-opt", "task": "tiny-topic", "method": "swapping"}
    assert record(html)["start"] == start
    assert "<option selected>tiny-topic</option>" in html


def test_the_most_exact_method_comes_first(html):
    assert record(html)["start"]["method"] == "shares"
    where = html.split('<section id="where"')[1].split("<section ")[0]
    assert re.search('id="figure-([a-z-]+)"', where).group(1) == "shares"


def test_numbers_on_the_page_are_those_of_the_table(results, html):
    rows = next(f for f in FIGURES if f.name == "layers").drawn(results).rows
    table = unpacked(block(html, "data-layers"))["columns"]
    assert table["weight"]["values"] == pytest.approx(rows["weight"].tolist(), rel=1e-4)
    tasks = [table["task"]["levels"][i] for i in table["task"]["values"]]
    assert tasks == rows["task"].tolist()


def test_texts_cannot_break_the_page(html, results):
    assert NASTY not in html
    assert "<script>alert" not in html
    found = unpacked(block(html, "examples-0"))
    assert NASTY in [row[1] for row in found["rows"]]


def test_names_cannot_break_the_page(tmp_path):
    from memloc.reporting.results import load_results

    study = Study(methods=("swapping",), analyses=(), control=0)
    run = study.write_run(tmp_path / "run", "tiny-topic", "</script><b>model", 1)
    assert "</script><b>" in read_json(run.folder / "run.json")["spec"]["model"]
    results = load_results(tmp_path)
    html = render(results, summarise(results))
    assert "<b>model" not in html
    assert record(html)["start"]["model"] == "script><b>model"


def test_an_empty_study_gives_a_page_that_says_so(tmp_path):
    report = write_report(tmp_path)
    html = report.path.read_text(encoding="utf-8")
    assert report.path == tmp_path / "report" / "index.html"
    assert "There is no run yet" in html
    assert "No results yet" not in html
    absent = re.search(r'<p id="absent">(.*?)</p>', html, re.S).group(1)
    titles = [escape(each.title) for each in (*FIGURES, *TABLES)]
    assert all(title in absent for title in titles)
    assert "memloc control --model" in absent
    assert record(html)["figures"] == []
    assert read_report(tmp_path) == report


@pytest.mark.parametrize("held_out", [True, False], ids=["held out", "nothing held out"])
@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
def test_an_adopted_run_gives_a_full_page(tmp_path, known, held_out):
    """No curves, no held-out data, perhaps no labels before noise; warnings are errors here."""
    run = write_adopted(tmp_path / "of mine", known=known, held_out=held_out)
    report = write_report(run.folder)
    html = report.path.read_text(encoding="utf-8")
    shown = {figure["name"] for figure in record(html)["figures"]}
    drawn = {"layers", "windows", "mcog-over-models", "examples"}
    assert shown >= (drawn | {"centroids"} if known else drawn)
    assert "training" not in shown
    assert "memloc train" not in html
    assert "memloc control" not in html
    assert run.record.command in html
    labels = unpacked(block(html, "examples-0"))["labels"]
    assert ("not known" in labels) != known
    assert "nan" not in " ".join(report.summary.found)


def test_a_figure_that_compares_is_left_out_where_there_is_nothing_to_compare(results):
    """Of a single model or task, another figure shows the same."""
    one_model = results.only(model="tiny-opt")
    compare = {figure.name: figure for figure in FIGURES if figure.compares}
    assert set(compare) == {"mcog-models", "control-models", "control-tasks"}
    drawn = {figure: figure.drawn(one_model) for figure in compare.values()}
    assert not any(figure.says_something(d, one_model) for figure, d in drawn.items())


def test_the_sentence_on_trust_is_on_the_first_screen_however_many_rows_the_picture_has(
    results, html, monkeypatch
):
    def is_first(page):
        return page.index("How far to trust it") < page.index('id="figure-strip"')

    assert not is_first(html)
    monkeypatch.setattr("memloc.reporting.page.MANY", 3)
    assert is_first(render(results, summarise(results)))


def test_figures_without_a_number_to_show_are_left_out(results, html):
    """With one task, centres have no correlations, and the mean over methods is one point."""
    one = results.only(model="tiny-opt", task="tiny-topic", seed=1)
    shown, every = (
        {figure["name"]: figure["values"] for figure in record(page)["figures"]}
        for page in (render(one, summarise(one)), html)
    )
    assert {"strip", "layers", "mcog-over-models"} <= set(shown)
    assert "mcog-over-methods" in set(every) - set(shown)
    assert every["agreement"]["what"] == ["M-CoG", "layer weights"]
    assert shown["agreement"]["what"] == ["layer weights"]


def test_without_a_report_there_is_nothing_to_read(tmp_path):
    assert read_report(tmp_path) is None


def test_a_half_finished_study_shows_what_is_missing_with_the_command(tmp_path):
    study = Study(methods=("swapping",), analyses=(), control=0)
    study.write_run(tmp_path / "run", "tiny-topic", "tiny-opt", 1)
    report = write_report(tmp_path, tmp_path / "elsewhere.html")
    html = report.path.read_text(encoding="utf-8")
    assert report.path == tmp_path / "elsewhere.html"
    assert f"memloc analyse {tmp_path / 'run'} label_probes" in html
    assert {f["name"] for f in record(html)["figures"]} >= {"training", "layers", "windows"}
    assert len(report.commands) == 7
    assert 'id="figure-centroids"' not in html
    assert "No results yet" not in html


def test_a_newer_result_file_is_refused_and_no_page_is_written(tmp_path):
    study = Study(methods=(), analyses=(), control=0)
    run = study.write_run(tmp_path / "run", "tiny-topic", "tiny-opt", 1)
    write_json(
        run.folder / "run.json", {**read_json(run.folder / "run.json"), "format": FORMAT + 1}
    )
    with pytest.raises(StoreError, match="update it"):
        write_report(tmp_path)
    assert not (tmp_path / "report").exists()


def test_the_commands_print_where_things_are(study, tmp_path):
    from typer.testing import CliRunner

    from memloc.cli import app

    def run(*words):
        done = CliRunner().invoke(app, [str(word) for word in words])
        assert done.exit_code == 0, done.output
        return done.output

    page = tmp_path / "page.html"
    run_folder = study / "tiny-topic" / "tiny-opt" / "seed-1"
    shown = run("report", run_folder, "--out", page)
    said = json.loads(run("report", run_folder, "--out", page, "--json"))
    assert said["page"] == str(page)
    assert list(filter(None, shown.splitlines())) == [
        *(said[name] for name in ("answer", "trust", "learnt")),
        f"Open in a browser, with all that was found: {page}",
    ]
    assert "There is one seed" in said["trust"]
    shown = run("tables", run_folder, "--format", "markdown", "--only", "mcog", "--out", tmp_path)
    assert shown == f"{tmp_path}: 1 file\n"
    shown = run("figures", run_folder, "--only", "control-methods", "--out", tmp_path)
    assert "Without results so far: control-methods." in shown


def test_bits_say_which_window_reverts_which_example(results):
    runs = [run for run in results.first_runs if run["task"].iloc[0] == "tiny-topic"]
    found = example_block(results, runs)
    assert len(found["rows"]) == 7
    one = next(r for r in found["runs"] if (r["model"], r["method"]) == ("tiny-opt", "swapping"))
    data = base64.b64decode(one["bits"])
    bits = [bool(byte >> (7 - i) & 1) for byte in data for i in range(8)]
    wrong = results.only(task="tiny-topic", model="tiny-opt", seed=1).reverted
    wrong = wrong[wrong["method"] == "swapping"].set_index(["example", "first", "last"])["wrong"]
    for i, row in enumerate(found["rows"]):
        for w, (first, last) in enumerate(one["windows"]):
            assert bits[i * len(one["windows"]) + w] == wrong[row[0], first, last]


def test_long_texts_are_cut_and_say_so(tmp_path):
    from memloc.reporting.results import load_results

    study = Study(methods=("swapping",), analyses=(), control=0, words=400)
    study.write_run(tmp_path / "run", "tiny-topic", "tiny-opt", 1)
    results = load_results(tmp_path)
    rows = example_block(results, [results.runs])["rows"]
    text = next(row[1] for row in rows if row[0] == 6)
    assert text[LONGEST:].startswith(" … (")
    assert text.endswith("characters)")


def test_missing_numbers_become_null_and_texts_levels():
    import pandas as pd

    rows = pd.DataFrame({"x": [1.0, float("nan"), float("inf")], "t": ["a", "b", "a"]})
    assert columns_of(rows) == {
        "n": 3,
        "columns": {
            "x": {"values": [1, None, None]},
            "t": {"levels": ["a", "b"], "values": [0, 1, 0]},
        },
    }
    assert unpacked(packed({"a": "ü"})) == {"a": "ü"}
