"""A spec is one JSON value with a key that paths do not change."""

import pytest

import memloc
from fixtures.plans import SPEC
from fixtures.tasks import make_task
from memloc.methods.protocol import preset
from memloc.run.spec import RunSpec, TaskSpec

AUXILIARY = TaskSpec(name="tiny-entailment", examples=10)
PLANTED = SPEC.planted("6-7", AUXILIARY, preset("demo"))


@pytest.mark.parametrize("spec", [SPEC, PLANTED, PLANTED.null(PLANTED.settings)])
def test_a_spec_is_the_same_after_it_was_sent(spec):
    again = RunSpec.model_validate_json(spec.model_dump_json())
    assert again == spec
    assert hash(again) == hash(spec)
    assert again.key == spec.key


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 2},
        {"depth": 3},
        {"contents": "other weights"},
        {"task": SPEC.task.replace({"examples": 20})},
        {"task": SPEC.task.replace({"contents": "other files"})},
        {"settings": SPEC.settings.replace({"finetune.epochs": 3})},
        {"plant": PLANTED.plant},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_decides_the_weights_is_in_the_key(changes):
    assert SPEC.model_copy(update=changes).key != SPEC.key


def test_where_files_are_and_what_saves_memory_is_not_in_the_key():
    home = SPEC.model_copy(update={"model": "here/mine", "contents": "hash"})
    task = home.task.replace({"folder": "/elsewhere"})
    settings = home.settings.replace({"finetune.accumulate": 2})
    moved = {"model": "there/mine", "task": task, "settings": settings}
    assert home.model_copy(update=moved).key == home.key


def test_a_plant_has_the_learning_rate_and_epochs_of_the_control_set_up():
    changes = {"control.learning_rate": 0.5, "control.epochs": 3, "control.tries": 2}
    spec = SPEC.planted("7+6", AUXILIARY, preset("demo").replace(changes))
    assert (spec.settings.finetune.learning_rate, spec.settings.finetune.epochs) == (0.5, 3)
    assert (spec.plant.planted, spec.plant.tries) == ("6-7", 2)
    assert (spec.plant.first, spec.plant.last) == (6, 7)


def test_a_task_in_memory_is_known_by_its_contents():
    one, other = (memloc.add_noise(make_task(40), 0.2, seed=seed) for seed in (1, 2))
    assert TaskSpec.of(one) != TaskSpec.of(other)
    assert TaskSpec.of_training(one) == TaskSpec.of_training(other)


def test_a_spec_reads_its_task_with_noise():
    found = SPEC.model_copy(update={"task": SPEC.task.replace({"examples": 80})}).load_task()
    assert len(found.train) == 80
    assert found.labels.is_noisy.any()
