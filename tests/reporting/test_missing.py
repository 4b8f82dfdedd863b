"""Commands for what is missing: only those that work."""

import shlex
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from fixtures.runs import altered
from fixtures.studies import Study, make_data, record, write_adopted
from memloc.cli import app
from memloc.data.perturb import OWN
from memloc.reporting.missing import (
    COMMANDS,
    IN_STUDIES,
    VERBS,
    command,
    commands_of,
    coverage,
)
from memloc.reporting.results import load_results
from memloc.run.begin import begin
from memloc.run.records import Accuracies
from memloc.store import paths

METHODS = ("probing", "shares", "centroids", "label_probes", "generalisation")
PARTS = [*(part for part in COMMANDS if part not in VERBS.values()), *METHODS]


def make_own(folder, finished=False, **facts):
    """A run that was trained on a file of one's own, by a model from the hub."""
    data, _ = make_data("tiny-topic", 12, 3)
    data = replace(data, name="mine", category=OWN, source="file: mine.csv")
    about = record(data, "facebook/opt-125m", 1, 4).model_copy(update=facts)
    run = begin(folder / "mine" / "opt-125m" / "seed-1", data, about)
    if finished:
        run.note(final=Accuracies(noisy=1.0, clean=1.0, training=1.0))
    return load_results(folder)


@pytest.mark.parametrize("part", ["localise", *PARTS])
def test_every_command_that_is_named_exists(part, tmp_path):
    Study(methods=(), analyses=()).write_run(tmp_path, "tiny-topic", "tiny-opt", 1)
    _, name, *words = command(part, load_results(tmp_path)).split()
    shown = CliRunner().invoke(app, [name, "--help"], terminal_width=200)
    assert shown.exit_code == 0
    assert all(word in shown.output for word in words if word.startswith("--"))


def test_tasks_that_a_command_names_exist(results, nothing):
    from memloc.data.tasks import known_tasks

    for part in ("binarised", "post_processing"):
        for found in (results, nothing):
            words = command(part, found).split()
            named = words[3] if part == "binarised" else words[words.index("--task") + 1]
            assert named in known_tasks()


def test_missing_methods_and_analyses_have_a_command_each(tmp_path):
    study = Study(methods=("swapping",), analyses=("centroids",))
    place = tmp_path / "a run"
    study.write_run(place, "tiny-topic", "tiny-opt", 1)
    named = shlex.quote(str(place))
    assert coverage(load_results(tmp_path)).commands == (
        f"memloc localise {named} retraining",
        f"memloc localise {named} gradients",
        f"memloc localise {named} probing",
        f"memloc localise {named} shares",
        f"memloc analyse {named} label_probes",
        f"memloc analyse {named} generalisation",
    )


def test_weights_that_could_not_be_made_leave_their_methods_out(tmp_path):
    study = Study(methods=("swapping",), analyses=("centroids", "label_probes", "generalisation"))
    without = {"memorised": "near-ceiling accuracy was never reached."}
    study.write_run(tmp_path / "run", "tiny-topic", "tiny-opt", 1, without=without)
    lines = coverage(load_results(tmp_path)).commands
    assert [line.split()[-1] for line in lines] == ["retraining", "probing", "shares"]


def test_a_model_is_named_as_it_is_loaded(tmp_path):
    study = Study(methods=(), analyses=(), control=0)
    study.write_run(tmp_path / "run", "rte", "facebook/opt-125m", 1)
    results = load_results(tmp_path)
    assert results.runs["model"].item() == "opt-125m"
    assert command("control", results).startswith("memloc control --model facebook/opt-125m --task")


@pytest.mark.parametrize("part", PARTS)
def test_own_data_are_trained_on_by_no_name(tmp_path, part):
    line = command(part, make_own(tmp_path, finished=True))
    assert "mine --" not in line
    works = {*METHODS, "post_processing"}
    assert bool(line) == (part in works)


def test_an_unfinished_run_is_continued_by_the_command_that_began_it(tmp_path):
    began = "memloc train facebook/opt-125m --data mine.csv --text review --flip 0.15"
    results = make_own(tmp_path, command=began)
    assert coverage(results).commands == (began,)
    assert coverage(make_own(tmp_path / "unknown")).commands == ()


def test_nothing_is_looked_for_in_runs_that_did_not_memorise(tmp_path):
    Study(memorised=False, methods=(), analyses=()).write_run(tmp_path, "rte", "tiny-opt", 1)
    results = load_results(tmp_path)
    assert command("localise", results) == command("centroids", results) == ""
    (lines,) = commands_of(results).values()
    assert "train" in lines
    assert "swapping" not in lines


def test_an_adopted_run_gets_the_methods_that_its_weights_allow(tmp_path):
    results = load_results(write_adopted(tmp_path / "mine").folder.parent)
    place = shlex.quote(str(tmp_path / "mine"))
    assert coverage(results).commands == (
        f"memloc localise {place} shares",
        f"memloc analyse {place} label_probes",
    )
    made = {part for part in ("localise", *PARTS) if command(part, results)}
    assert made == {"localise", "shares", "label_probes"}
    (lines,) = commands_of(results).values()
    assert set(lines) == {"swapping", "shares", "centroids", "label_probes"}


def test_what_is_there_is_not_made_again(results):
    """Agreement, say, needs more tasks: no method that has run would bring it."""
    for part in ("localise", "probing", "centroids", "generalisation"):
        assert command(part, results) == ""


@pytest.mark.parametrize(
    ("made_by", "others"),
    [("adopt", []), ("train", ["retraining", "gradients", "probing", "generalisation"])],
)
def test_analyses_need_labels_before_noise(tmp_path, made_by, others):
    run = altered(write_adopted(tmp_path / "mine", known=False), made_by=made_by)
    results = load_results(run.folder.parent)
    offered = [line.split()[-1] for line in coverage(results).commands]
    assert sorted(offered) == sorted(["shares", *others])
    assert command("label_probes", results) == ""


def test_a_study_is_changed_by_its_file(tmp_path):
    """`memloc control` refuses a folder that has another study, `memloc train` is not its own."""
    Study(tasks=("tiny-topic",), seeds=(1,), methods=("swapping",), control=0).write(tmp_path)
    (tmp_path / paths.STUDY).write_text("models: [tiny-opt]\ntasks: [tiny-topic]\n")
    results = load_results(tmp_path)
    for part in IN_STUDIES:
        assert shlex.split(command(part, results), comments=True) == [
            "memloc",
            "run",
            str(tmp_path),
        ]
    assert command("control", results).endswith("with control: in its study.yaml")
    assert "tiny-topic-binary in tasks:" in command("binarised", results)


def test_what_a_study_leaves_out_on_purpose_is_not_missing(tmp_path):
    Study(
        tasks=("tiny-topic",), models=("tiny-opt",), methods=("swapping",), analyses=(), control=0
    ).write(tmp_path)
    assert coverage(load_results(tmp_path)).sentence.startswith("Other methods can look at these")
    study = "models: [tiny-opt]\ntasks: [tiny-topic]\nmethods: [swapping]\nanalyses: []\n"
    (tmp_path / paths.STUDY).write_text(study)
    found = coverage(load_results(tmp_path))
    assert (found.commands, found.sentence) == ((), "")
    (tmp_path / paths.STUDY).write_text(study.replace("[swapping]", "[swapping, gradients]"))
    found = coverage(load_results(tmp_path))
    assert {line.split()[-1] for line in found.commands} == {"gradients"}
    assert found.sentence == "Parts of the study are missing; the page lists 2 commands."


def test_a_study_without_runs_is_begun_by_its_file(tmp_path):
    (tmp_path / paths.STUDY).write_text("models: [tiny-opt]\ntasks: [tiny-topic]\n")
    assert command("train", load_results(tmp_path)) == f"memloc run {tmp_path}"


def test_every_model_and_task_has_its_own_commands(results):
    found = commands_of(results)
    runs = results.runs
    assert set(found) == {f"{m}|{t}" for m, t in zip(runs["model"], runs["task"], strict=True)}
    line = found["tiny-opt|tiny-topic"]["retraining"]
    assert line == f"memloc localise {results.folder}/tiny-topic/tiny-opt/seed-1 retraining"
