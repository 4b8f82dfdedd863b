import pytest

from memloc.report.findings import Findings
from memloc.report.missing import COMMANDS, command, coverage
from memloc.report.reproduce import commands, settings, versions
from memloc.report.summary import summarise
from memloc.results import load_results
from memloc.train.run import begin
from study_support import Study, identity, make_data


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """One run, swapping only, which did not memorise; another that only began."""
    folder = tmp_path_factory.mktemp("one")
    study = Study(methods=("swapping",), analyses=(), memorised=False)
    study.write_run(folder / "a", "tiny-topic", "tiny-opt", 1)
    begin(folder / "b", *make_data("tiny-topic", 12, 3), identity("tiny-bert", 1, 4))
    return Findings(load_results(folder), resamples=5)


def test_the_sentences_hold_the_numbers(findings):
    said = " ".join(summarise(findings).found)
    assert "16 of 16 runs (2 models, 4 tasks, 2 seeds) memorised their wrong labels: 100%" in said
    mcog = findings.whole("mcog")
    means = mcog[mcog["method"] == "swapping"].groupby(["task", "model"])["mcog"].mean()
    assert f"By swapping, the centre of gravity goes from layer {means.min():.1f}" in said
    windows = findings.whole("windows")
    single = windows[(windows["first"] == windows["last"]) & (windows["method"] == "swapping")]
    largest = single.groupby(["task", "model", "seed"])["error"].max()
    assert f"undoes at most {largest.min():.0%} to {largest.max():.0%}" in said
    plants = findings.results.control
    tested = plants[(plants["method"] == "swapping") & (plants["k"] == 1) & ~plants["validation"]]
    share, n = tested["accuracy"].mean(), len(tested)
    assert f"ranked first by swapping in {share:.0%} of {n} plants" in said


def test_a_whole_study_leaves_nothing_open(findings):
    assert summarise(findings).open == ()


def test_an_empty_study_says_how_to_begin(nothing):
    found = summarise(nothing)
    assert found.found == ()
    assert "`memloc train tiny-opt tiny-topic --seed 1 --out" in found.open[0]


def test_what_cannot_be_concluded_is_said_with_its_reason(one):
    found = summarise(one)
    assert found.found[0].startswith("0 of 2 runs")
    said = " ".join(found.open)
    assert "tiny-topic · tiny-opt · seed 1, which predicts only 40% of its wrong labels" in said
    assert "tiny-topic · tiny-bert · seed 1, which is not finished" in said
    assert "no labels were planted (`memloc control --model tiny-bert --task tiny-topic" in said
    assert "one seed" in said


def test_coverage_lists_what_runs_have_and_the_commands_for_the_rest(findings, one):
    whole = coverage(findings.results)
    assert len(whole.table) == 16
    assert whole.commands == ()
    half = coverage(one.results)
    assert half.table.set_index("model")["swapping"].to_dict() == {
        "tiny-opt": True,
        "tiny-bert": False,
    }
    assert [line.split(" --out")[0] for line in half.commands] == [
        "memloc train tiny-bert tiny-topic --seed 1",
        "memloc train tiny-opt tiny-topic --seed 1",
    ]


def test_missing_methods_and_analyses_have_a_command_each(tmp_path):
    study = Study(methods=("swapping",), analyses=("centroids",))
    study.write_run(tmp_path / "run", "tiny-topic", "tiny-opt", 1)
    place = tmp_path / "run"
    assert coverage(load_results(tmp_path)).commands == (
        f"memloc localise {place} retraining",
        f"memloc localise {place} gradients",
        f"memloc localise {place} probing",
        f"memloc analyse {place} label-probes",
        f"memloc analyse {place} generalisation",
    )


@pytest.mark.parametrize("part", COMMANDS)
def test_every_command_that_is_named_exists(part, findings):
    from typer.testing import CliRunner

    from memloc.cli import app

    _, name, *words = command(part, findings.results).split()
    shown = CliRunner().invoke(app, [name, "--help"], terminal_width=200)
    assert shown.exit_code == 0
    assert all(word in shown.output for word in words if word.startswith("--"))


def test_how_it_was_made_names_commands_settings_and_versions(findings):
    lines = commands(findings.results)
    assert any(
        line.startswith("memloc train tiny-opt tiny-topic --seed 2 --preset demo --out")
        for line in lines
    )
    assert any(line.startswith("memloc control --model tiny-opt") for line in lines)
    (group,) = settings(findings.results)
    assert group["runs"] == 16
    assert ("finetune.epochs", "30") in group["values"]
    (line,) = versions(findings.results)
    assert "torch" in line
