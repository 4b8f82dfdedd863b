"""What each kind of step does: one call of the library, recorded as the study's command."""

import json

import pytest

from fixtures.commands import rows_of, write_csv
from fixtures.plans import RUN, do, plan_of
from memloc.methods.result import Result
from memloc.run.folder import Run


@pytest.fixture
def small(micro):
    """Two steps of a micro study: a training and what swapping finds in it."""
    changes = {
        "methods: [swapping, retraining, gradients, probing]": "methods: [swapping]",
        "analyses: [centroids, label_probes, generalisation]": "analyses: []",
        'control: {windows: ["1"], methods: [swapping]}\n': "",
    }
    return lambda more=None: micro(changes={**changes, **(more or {})})


def done(folder):
    plan = plan_of(folder)
    for step in plan.steps.values():
        do(step)
    return plan


def test_a_training_makes_what_is_asked_for_and_a_method_looks_at_it(small):
    folder = small()
    done(folder)
    run = Run.open(folder / RUN)
    assert run.checkpoints() == ["memorised", "final", "reference"]
    assert (run.depth, run.record.task.train, run.settings.finetune.epochs) == (2, 30, 4)
    assert run.record.command == f"memloc run {folder}"
    about = json.loads((folder / RUN / "results/swapping/about.json").read_text())["about"]
    assert about["command"] == f"memloc run {folder}"


def test_labels_of_a_file_are_flipped_and_the_run_says_so(small):
    data = "tasks: [mine]\ndata: {mine: {file: mine.csv, text: review, label: stars, flip: 0.3}}"
    folder = small({"tasks: [tiny-sentiment]": data})
    write_csv(folder / "mine.csv", rows_of(60))
    done(folder)
    run = Run.open(folder / "mine/tiny-opt-depth-2/seed-1")
    assert run.settings.noise.rate == 0.3
    assert run.noisy.is_noisy.sum() == 8  # of 15 in each of two classes, 4.5 rounded down


def test_labels_that_are_wrong_already_stay_as_they_are(small):
    data = "tasks: [mine]\ndata: {mine: {file: mine.csv, flag: wrong}}"
    folder = small({"tasks: [tiny-sentiment]": data, "examples: 30\n": ""})
    rows = [(*row, i % 4 == 0) for i, row in enumerate(rows_of(60))]
    write_csv(folder / "mine.csv", rows, ("text", "label", "wrong"))
    done(folder)
    run = Run.open(folder / "mine/tiny-opt-depth-2/seed-1")
    wrong = {text: flag for text, _, flag in rows}
    assert run.noisy.is_noisy.tolist() == [wrong[parts[0]] for parts in run.task.train.parts]


def test_a_method_has_the_settings_of_its_block(small):
    more = "report: false\nalso: [{seeds: [2], overrides: {swapping.normalise: false}}]"
    folder = small({"report: false": more})
    done(folder)
    for seed, normalise in ((1, True), (2, False)):
        about = Result.read(folder / f"{RUN[:-1]}{seed}" / "results" / "swapping").about
        assert about["settings"]["normalise"] is normalise
