"""What results say: of one result, in remarks, and of a whole study."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from fixtures.studies import Study, make_data, make_scores, record, write_adopted, write_control
from memloc.cli.console import show_control
from memloc.methods.probing import UNLEARNT
from memloc.methods.result import Result
from memloc.reporting.derived import layers_to_undo, leading
from memloc.reporting.examples import outcomes_by_method
from memloc.reporting.figures import FIGURES, _titled
from memloc.reporting.missing import coverage
from memloc.reporting.page import how_made, render
from memloc.reporting.results import load_results
from memloc.reporting.sentences import (
    marked,
    remarks_on,
    sentence,
    summarise,
)
from memloc.reporting.tables import TABLES
from memloc.reporting.terminal import picture
from memloc.run.begin import begin
from memloc.seeds import generator
from memloc.stats.windows import layer_ranges
from memloc.store import paths

SAID = UNLEARNT.removesuffix(".")
RUN = "tiny-topic · tiny-opt · seed 1"
DRAWN = {"control-layers", "layers", "noise-probes", "mcog-models", "mcog-over-models"}
DRAWN |= {"mcog-over-methods", "centres"}


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
    return load_results(folder)


def test_the_sentence_of_a_result_ends_with_its_remarks(folder):
    runs = folder / "tiny-topic" / "tiny-opt"
    one, other = (Result.read(paths.result(runs / f"seed-{seed}", "probing")) for seed in (1, 2))
    assert sentence(one).endswith(UNLEARNT)
    assert UNLEARNT not in sentence(other)


def test_tables_of_results_hold_the_remarks(unlearnt):
    for name in ("layers", "mcog", "noise_probes"):
        table = getattr(unlearnt, name)
        found = table[table["remark"] == UNLEARNT]
        assert set(found["model"]) == {"tiny-opt"}, name
        assert set(found["seed"]) == {1}, name
        assert remarks_on(table) == f"{SAID} ({RUN}).", name
    assert set(marked(unlearnt.layers)["method"]) == {"probing"}


def test_of_many_runs_three_are_named(unlearnt):
    table = unlearnt.mcog.assign(remark="Odd.")
    assert remarks_on(table).startswith("Odd (tiny-topic · tiny-bert · seed 1, ")
    assert remarks_on(table).endswith(" and 1 more).")


def test_remarks_stand_below_every_drawing_of_layers(unlearnt):
    page = render(unlearnt, summarise(unlearnt))
    for figure in FIGURES:
        drawn = figure.drawn(unlearnt)
        told = drawn is not None and SAID in drawn.remarks({})
        assert told == (figure.name in DRAWN), figure.name
    assert page.count(f"{SAID} ({RUN})") >= len(DRAWN - {"noise-probes"})


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
    assert table.said_of(table.shown(unlearnt)).endswith(f"{SAID} ({RUN}).")


def test_the_summary_tells_them_and_nulls_do_not_count(unlearnt):
    told = [line for line in summarise(unlearnt).open if SAID in line]
    assert told == [
        f"Control: {SAID} (tiny-topic · tiny-bert · seed 1).",
        f"{SAID} ({RUN}).",
    ]


def test_the_terminal_tells_them_of_plants(folder, capsys):
    show_control(load_results(folder), as_json=False)
    assert f"{SAID} (tiny-topic · tiny-bert · seed 1)." in capsys.readouterr().out


def make_event(event="crossing", layer=3.0, ends=(2.0, 5.0), separable=True, variant="plain"):
    return {
        "source": "centroids",
        "variant": variant,
        "event": event,
        "layer": layer,
        "low": ends[0],
        "high": ends[1],
        "never": 0.0,
        "separable": separable,
    }


def make_centroids(*events, about=None):
    curve = [np.nan, 1.0, 0.5, 0.0]
    layers = [
        {"variant": v, "layer": i, "kind": "noisy", "mean": x}
        for v in dict.fromkeys(e["variant"] for e in events)
        for i, x in enumerate(curve)
    ]
    tables = {"layers": pd.DataFrame(layers), "events": pd.DataFrame(events)}
    return Result("centroids", tables, about or {})


def test_a_layer_without_positions_is_a_dot_and_a_crossing_that_means_nothing_is_marked():
    sure = picture(make_centroids(make_event()))
    assert "apart" not in sure
    found = make_centroids(make_event(separable=False))
    found["layers"].loc[1, "mean"] = np.nan
    line = picture(found).splitlines()[-1]
    assert line == "plain |·▄ | crossing 3, where the classes cannot be told apart"


def test_an_event_is_told_with_its_interval():
    said = sentence(make_centroids(make_event(), make_event("initiation", 1.0, (1.0, 1.0))))
    assert "the assigned one: layer 3 (95 % interval 2 to 5);" in said
    assert "separated: layer 1 (95 % interval 1 to 1)." in said


def test_never_is_a_word():
    said = sentence(make_centroids(make_event(layer=np.nan, ends=(4.0, np.nan), separable=False)))
    assert ": never (95 % interval 4 to never)." in said
    assert "beware" not in said


def test_events_where_classes_cannot_be_told_apart_are_marked():
    assert "cannot be told apart, so beware" in sentence(
        make_centroids(make_event(separable=False))
    )


def test_a_forced_analysis_says_so():
    about = {"forced": True, "final_noisy_accuracy": 0.4}
    assert sentence(make_centroids(make_event(), about=about)).startswith("FORCED (only 40%")


def test_the_picture_has_a_line_a_variant_and_a_bar_a_layer():
    found = make_centroids(make_event(), make_event(layer=np.nan, variant="bottom"))
    lines = picture(found).splitlines()
    assert lines[1] == "plain  |█▄ | crossing 3"
    assert lines[2] == "bottom |█▄ | crossing never"


@pytest.mark.parametrize("clean", [0.9, 0.5])
def test_generalisation_is_told_with_the_clean_share_beside_it(clean):
    row = {"score": 0.8, "low": 0.7, "high": 0.85, "clean_score": clean}
    row |= {"validation_score": 0.25, "models": 30, "majority": 0.75, "normalised": 0.2}
    examples = pd.DataFrame(
        {
            "is_noisy": [True, False],
            "trained": [0.9, 0.8],
            "held_out": [0.1, 0.7],
            "counterfactual": [0.8, 0.1],
        }
    )
    found = Result("generalisation", {"summary": pd.DataFrame([row]), "examples": examples})
    assert sentence(found).startswith("80% of the training examples (95 % interval 70% to 85%)")
    assert f"{clean:.0%} of the clean ones; always predicting the most" in sentence(found)
    assert "would score 75%, so normalised by that the score is 0.20" in sentence(found)
    assert sentence(found).endswith("the validation score is 0.25.")
    assert picture(found).splitlines()[1].split() == ["noisy", "examples", "0.90", "0.10", "0.80"]


BY_NAME = {figure.name: figure for figure in FIGURES}


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """One run, swapping only, which did not memorise; another that only began."""
    folder = tmp_path_factory.mktemp("one")
    study = Study(methods=("swapping",), analyses=(), memorised=False)
    study.write_run(folder / "a", "tiny-topic", "tiny-opt", 1)
    task, _ = make_data("tiny-topic", 12, 3)
    begin(folder / "b", task, record(task, "tiny-bert", 1, 4))
    return load_results(folder)


def test_the_sentences_hold_the_numbers(results):
    learnt = "16 of 16 runs (2 models, 4 tasks, 2 seeds) memorised their wrong labels: 100%"
    assert summarise(results).learnt.startswith(learnt)
    said = " ".join(summarise(results).found)
    mcog = results.whole("mcog")
    means = mcog[mcog["method"] == "swapping"].groupby(["task", "model"])["mcog"].mean()
    assert f"By swapping, the centre of gravity goes from layer {means.min():.1f}" in said
    windows = results.whole("windows")
    single = windows[(windows["first"] == windows["last"]) & (windows["method"] == "swapping")]
    largest = single.groupby(["task", "model", "seed"])["error"].max()
    assert f"undoes at most {largest.min():.0%} to {largest.max():.0%}" in said
    plants = results.control
    tested = plants[(plants["method"] == "swapping") & (plants["k"] == 1) & ~plants["validation"]]
    share, n = tested["accuracy"].mean(), len(tested)
    assert f"by swapping in {share:.0%} of {n} plants" in said


@pytest.fixture(scope="module")
def weak(results):
    """The same, but the reference of the first run did not learn."""
    runs = results.runs.copy()
    runs.loc[0, "reference_accuracy"] = 0.889
    return results.with_tables(runs=runs)


def test_reference_weights_that_learnt_too_little_are_told(results, weak):
    assert "Left out of shares" not in " ".join(summarise(results).open)
    runs = weak.runs
    (line,) = [said for said in summarise(weak).open if "Left out of shares" in said]
    name = f"{runs['task'][0]} · {runs['model'][0]} · seed {runs['seed'][0]}"
    assert line.startswith("Left out of shares, swapping, centroids with exchanged layers and what")
    assert "predicts only 89% of them" in line
    assert line.endswith(f"({name}).")


def of_first(weak, table):
    run = weak.runs.iloc[0]
    mine = (table[["task", "model", "seed"]] == run[["task", "model", "seed"]]).all(axis=1)
    return table[mine]


@pytest.mark.parametrize("name", ["layers", "mcog", "windows"])
def test_what_an_unlearnt_reference_decides_is_left_out(results, weak, name):
    kept = of_first(weak, weak.memorised(name))
    left_out = set(of_first(weak, results.memorised(name))["method"]) - set(kept["method"])
    assert left_out == ({"swapping"} if name == "windows" else {"shares", "swapping"})
    assert len(kept)
    others = len(results.memorised(name)) - len(weak.memorised(name))
    before = of_first(weak, results.memorised(name))
    assert others == len(before[before["method"].isin(left_out)])


def test_shares_by_an_unlearnt_reference_are_not_drawn(results, weak):
    assert len(of_first(weak, results.memorised("shares")))
    assert of_first(weak, weak.memorised("shares")).empty
    assert len(weak.memorised("shares"))


@pytest.mark.parametrize("name", ["centroids", "events"])
def test_variants_of_an_unlearnt_reference_are_left_out(results, weak, name):
    assert set(of_first(weak, results.memorised(name))["variant"]) == {"plain", "bottom", "top"}
    assert set(of_first(weak, weak.memorised(name))["variant"]) == {"plain"}


def test_examples_are_not_shown_by_an_unlearnt_reference(results, weak):
    run = weak.runs.loc[[0]]
    assert list(outcomes_by_method(results, run)) == ["retraining", "swapping"]
    assert list(outcomes_by_method(weak, run)) == ["retraining"]


def test_coefficients_and_figures_do_not_know_an_unlearnt_reference(results, weak):
    """The numbers are those of a study in which that run was never swapped."""
    never = results.mcog[results.mcog["method"] == "swapping"].index[:1]
    assert results.mcog.loc[never, "task"].item() == weak.runs["task"][0]
    gone = {
        name: table.drop(of_first(weak, table[table["method"].isin(["shares", "swapping"])]).index)
        for name, table in (("mcog", results.mcog), ("layers", results.layers))
    }
    plain = results.with_tables(**gone)
    for name in ("table_2", "agreement"):
        pd.testing.assert_frame_equal(getattr(weak, name), getattr(plain, name))
    drawn = BY_NAME["mcog-models"].drawn
    pd.testing.assert_frame_equal(drawn(weak).rows, drawn(plain).rows)


def coefficient(rho, p, low=np.nan, high=np.nan, **more):
    row = {"score": "validation", "measure": "M-CoG", "model": "all", "n": 12, "why": ""}
    row |= {"between": "methods", "what": "M-CoG", "one": "swapping", "other": "probing"}
    row |= {"methods": "probing, swapping"}
    row |= {"rho": rho, "p": p, "corrected": p, "significant": p <= 0.05}
    return {**row, "low": low, "high": high, **more}


def with_tables(results, **tables):
    """The same results, but for coefficients."""
    return results.with_tables(**{name: pd.DataFrame(rows) for name, rows in tables.items()})


def test_few_tasks_are_told_without_missing_numbers(results):
    found = summarise(results)
    said = " ".join([*found.found, *found.open])
    assert not re.search(r"\bnan\b", said)
    lines = [line for line in found.open if "fewer than 5 tasks there is no interval" in line]
    assert len(lines) == 1
    assert lines[0].endswith("cannot be below 0.17 with 3 tasks.")


def test_three_tasks_make_no_coefficient_a_finding(results):
    """Two models, two seeds and four methods of three tasks are three tasks."""
    for table in (results.table_2, results.agreement, results.event_agreement):
        assert not table["significant"].any()
    said = " ".join(summarise(results).found)
    assert "significant" not in said
    assert "Correlation of" not in said
    assert sum("is not known" in line for line in summarise(results).open) >= 5


def test_what_is_not_significant_is_no_finding(results):
    for line in summarise(results).found:
        assert "not significant" not in line
    table = results.table_2
    pooled = table[(table["model"] == "all") & (table["score"] == "validation")]
    assert not pooled["significant"].any()
    (line,) = [said for said in summarise(results).open if "the validation score" in said]
    low, high, p = pooled["rho"].min(), pooled["rho"].max(), pooled["corrected"].min()
    assert (
        f"ρ is {low:.2f} to {high:.2f}, which cannot be told from 0 (corrected p is {p:.2f}" in line
    )


@pytest.mark.parametrize(
    ("row", "is_found"),
    [
        (coefficient(0.8, 0.001, 0.5, 0.9), True),
        (coefficient(0.8, 0.001), True),
        (coefficient(0.8, 0.2, 0.5, 0.9), False),
        (coefficient(0.8, 0.01, -0.1, 0.9), False),
    ],
    ids=["sure", "without interval", "large p", "interval around 0"],
)
def test_a_coefficient_is_found_where_p_and_interval_say_so(results, row, is_found):
    found = summarise(with_tables(results, table_2=[row], agreement=[row]))
    depth = [line for line in found.found if line.startswith("Correlation of depth with the val")]
    agreement = [line for line in found.found if line.startswith("Agreement of methods on M-CoG")]
    assert (len(depth), len(agreement)) == ((1, 1) if is_found else (0, 0))
    unknown = [line for line in found.open if "is not known for" in line]
    assert len(unknown) == (0 if is_found else 2)
    if is_found and not np.isnan(row["low"]):
        assert "0.80 (0.50 to 0.90) for M-CoG; 1 of 1 significant" in depth[0]
        assert "0.80 (0.50 to 0.90) for swapping with probing; 1 of 1" in agreement[0]


def test_only_significant_pairs_are_named_in_an_agreement(results):
    rows = [coefficient(0.2, 0.5, other="gradients"), coefficient(0.7, 0.01, 0.3, 0.9)]
    said = " ".join(summarise(with_tables(results, agreement=rows)).found)
    assert "ρ: 0.70 (0.30 to 0.90) for swapping with probing; 1 of 2 significant." in said
    assert "0.20" not in said


def test_a_method_that_sees_no_layer_is_named(tmp_path):
    Study(control=0, analyses=(), seeds=(1,), models=("tiny-opt",)).write(tmp_path)
    results = load_results(tmp_path)
    nothing = (results.mcog["method"] == "probing") & (results.mcog["task"] == "tiny-topic")
    results = results.with_tables(mcog=results.mcog.assign(mcog=results.mcog["mcog"].mask(nothing)))
    said = " ".join(summarise(results).open)
    none = "Probing gives no layer a positive weight, so there is no centre of gravity"
    assert f"{none} (tiny-topic · tiny-opt · seed 1)." in said


def test_an_empty_study_says_how_to_begin(nothing):
    found = summarise(nothing)
    assert found.found == found.open == ()
    assert "`memloc train tiny-opt tiny-topic --seed 1 --out" in found.answer


def test_what_cannot_be_concluded_is_said_with_its_reason(one):
    found = summarise(one)
    assert found.learnt.startswith("0 of 2 runs")
    said = " ".join(found.open)
    assert (
        "only 40% of the wrong labels or texts are predicted (tiny-topic · tiny-opt · seed 1)."
        in said
    )
    assert "training that is not finished (tiny-topic · tiny-bert · seed 1)." in said
    untested = "nothing was planted in known layers (`memloc control --model tiny-bert --task"
    assert untested in found.trust
    assert "one seed" in found.trust


@pytest.mark.parametrize(("mass", "said"), [(0.98, "these plants are easy"), (0.05, "5% there.")])
def test_a_trivial_baseline_stands_beside_the_exactness_of_the_method(results, mass, said):
    best = leading(results)
    mine = results.control[results.control["method"] == best]
    trivial = mine.assign(method="weight_distance", planted_mass=mass)
    both = pd.concat([mine.assign(planted_mass=0.9), trivial], ignore_index=True)
    trust = summarise(results.with_tables(control=both)).trust
    assert (
        f"puts 90% of the weight on planted layers. The best trivial baseline puts {mass:.0%}"
        in trust
    )
    assert said in trust
    assert ("`memloc board`" in trust) == (mass > 0.45)
    without = summarise(results.with_tables(control=mine)).trust
    assert "trivial" not in without


def test_coverage_lists_what_runs_have_and_the_commands_for_the_rest(results, one):
    whole = coverage(results)
    assert len(whole.table) == 16
    assert whole.commands == ()
    half = coverage(one)
    assert half.table.set_index("model")["swapping"].to_dict() == {
        "tiny-opt": True,
        "tiny-bert": False,
    }
    assert [line.split(" --out")[0] for line in half.commands] == [
        "memloc train tiny-bert tiny-topic --seed 1",
        "memloc train tiny-opt tiny-topic --seed 1",
    ]


def test_how_it_was_made_names_settings_and_versions(results):
    group, *methods = how_made(results)["settings"]
    assert (group["kind"], group["name"], group["runs"]) == ("preset", "demo", 16)
    assert ("method", "swapping", 16) in [(m["kind"], m["name"], m["runs"]) for m in methods]
    assert ("finetune.epochs", "30") in group["values"]
    (line,) = how_made(results)["versions"]
    assert "torch" in line


def test_both_readings_of_how_many_layers_undo_are_told(results):
    part = results.whole("windows")
    widths = layers_to_undo(part[part["method"] == "swapping"])
    wanted = "To undo 90% of what all layers undo by swapping, the best window"
    (line,) = [s for s in summarise(results).found if wanted in s]
    low, high = int(widths["best"].min()), int(widths["best"].max())
    assert f"has a width of {low} to {high};" in line
    assert "on average over windows, which is how the paper counts" in line


def test_one_run_is_one_in_every_word(tmp_path):
    study = Study(tasks=("tiny-topic",), models=("tiny-opt",), seeds=(1,), analyses=(), control=0)
    results = load_results(study.write(tmp_path))
    found = summarise(results)
    assert found.learnt.startswith("1 of 1 run (1 model, 1 task, 1 seed) memorised its wrong lab")
    assert not re.search(r"\b1 \w+s\b", " ".join(found.found).replace("1 is", ""))


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
def test_an_adopted_run_is_told_without_commands_that_cannot_work(tmp_path, known):
    results = load_results(write_adopted(tmp_path / "mine", known=known).folder)
    found = summarise(results)
    assert found.learnt.startswith("1 of 1 run (1 model, 1 task, 1 seed) memorised its wrong")
    assert "nothing was planted in known layers." in found.trust
    assert "memloc" not in " ".join([found.trust, *found.open])
    assert "nan" not in " ".join([*found.found, *found.open])


def test_a_study_that_only_plants_says_who_finds_the_layers(tmp_path):
    write_control(tmp_path, Study())
    summary = summarise(load_results(tmp_path))
    assert summary.answer.startswith("Control: a planted layer is ranked first by swapping")
    assert not any("no run yet" in sentence for sentence in summary.open)


def test_every_sentence_belongs_to_a_section(results):
    sections = {line.section for line in summarise(results).lines}
    assert sections == {"where", "how", "trust", "paper"}


def test_weights_of_a_method_that_changes_no_layer_do_not_answer(tmp_path):
    study = Study(tasks=("tiny-topic",), models=("tiny-opt",), methods=(), analyses=(), control=0)
    run = study.write_run(tmp_path / "run", "tiny-topic", "tiny-opt", 1)
    scores = make_scores("probing", run.noisy, 4, generator(1, "answer"), planted=range(1, 3))
    scores.write(paths.result(run.folder, "probing"))
    found = load_results(tmp_path)
    assert summarise(found).answer.startswith(
        "Whether a few layers hold the labels or texts cannot be told by probing alone: try "
    )
    assert found.strip.empty


def test_an_analysis_of_somebody_else_is_named_by_its_tables():
    found = Result("mine", {"words": pd.DataFrame({"n": [1, 2]}), "all": pd.DataFrame({"n": [3]})})
    assert sentence(found) == "mine made words (2 rows) and all (1 row)."
    assert picture(found) == ""


def test_many_runs_are_counted(results):
    (answer,) = summarise(results).answers
    assert answer.startswith("Of 12 runs, 12 cannot tell; the centre of what was memorised is at")
    assert answer.endswith(" of 4 (by layer shares).")


def test_no_layer_is_named_where_nothing_was_memorised(one, weak):
    assert summarise(one).answer == (
        "No layer can be named: no run has memorised its wrong labels or texts."
    )
    runs = weak.runs.assign(reference_accuracy=0.5)
    only = weak.layers[weak.layers["method"] == "shares"]
    found = weak.with_tables(runs=runs, layers=only)
    assert "the references did not learn their own labels" in summarise(found).answer


def answered(task, word="uneven", half="1"):
    run = {"task": task, "category": "c", "model": "tiny-opt", "seed": 1, "method": "shares"}
    more = {"primary": True, "finding": False, "agrees": ""}
    return {**run, **more, "word": word, "half": half, "sentence": f"Layer 1 holds {task}."}


def test_a_few_runs_are_answered_by_how_much_is_where_whatever_the_word(results):
    one = results.only(model="tiny-opt", seed=1)
    rows = [answered("tiny-topic"), answered("tiny-acceptability", "cannot tell", "")]
    assert summarise(one.with_tables(answers=pd.DataFrame(rows))).answers == (
        "tiny-topic: layer 1 holds tiny-topic (uneven).",
        "tiny-acceptability: layer 1 holds tiny-acceptability.",
    )


def test_runs_of_one_task_are_told_apart_by_what_differs(results):
    one = results.only(model="tiny-opt")
    rows = [answered("tiny-topic") | {"seed": seed} for seed in (1, 2)]
    found = summarise(one.with_tables(answers=pd.DataFrame(rows))).answers
    assert [answer.partition(":")[0] for answer in found] == [
        "tiny-topic with seed 1",
        "tiny-topic with seed 2",
    ]


@pytest.mark.parametrize(
    ("layers", "words"),
    [([3], "layer 3"), ([2, 1], "layers 1 and 2"), ([1, 2, 3, 7, 9], "layers 1 to 3, 7 and 9")],
)
def test_layers_are_written_as_ranges(layers, words):
    assert layer_ranges(layers) == words
