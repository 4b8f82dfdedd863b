"""Plants are made and tried again; small models, real trainings."""

import shutil
from dataclasses import replace

import pytest
import torch

from fixtures.tasks import fast_protocol, make_recipe, make_task
from memloc.errors import StoreError
from memloc.run.folder import Run
from memloc.run.planting import Plant
from memloc.study import step as plants
from memloc.study.step import is_enough, make_null, make_plant

CHANGES = {
    "finetune__epochs": 20,
    "finetune__batch_size": 8,
    "control__auxiliary_learning_rate": 1e-3,
    "finetune__near_ceiling": 0.9,
    "verdict__noisy_at_least": 0.8,
    "control__accuracy_above": 0.9,
}
OTHER = make_task(24, 2, "other")
ALL = ("memorised", "final", "reference", "frozen")


@pytest.fixture(scope="module")
def model(tiny_model):
    return str(tiny_model("opt", depth=3))


PLANT = Plant("2-2", OTHER)


@pytest.fixture(scope="module")
def recipe(model):
    return make_recipe(model, make_task(96), 1, fast_protocol(**CHANGES))


@pytest.fixture(scope="module")
def planted(recipe, tmp_path_factory):
    """A plant with all weights, not to be changed."""
    return make_plant(recipe, PLANT, tmp_path_factory.mktemp("planted"), ALL)


@pytest.fixture(scope="module")
def slow(recipe):
    """With a rate that memorises nothing, and a second one that does."""
    changes = {"finetune.learning_rate": 1e-6, "control.rate_factor": 1e4, "control.tries": 3}
    return replace(recipe, protocol=recipe.protocol.replace(changes))


@pytest.fixture(scope="module")
def tried_again(slow, tmp_path_factory):
    """A plant that needed the second rate, not to be changed."""
    return make_plant(slow, PLANT, tmp_path_factory.mktemp("again"), ("final", "reference"))


def weights_of(run, name):
    return [p.detach().clone() for p in run.load(name).model.parameters()]


def rates(made):
    return [attempt.learning_rate for attempt in made.record.attempts]


def test_a_plant_has_all_weights(recipe, planted):
    assert is_enough(planted, recipe.protocol)
    assert set(planted.weights()) == set(ALL)
    assert rates(planted) == [1e-2]
    # The reference is planted, too: outside the window only the auxiliary task changed it.
    plant = planted.record.plant
    assert (plant.first, plant.last, plant.null) == (2, 2, False)


def test_a_plant_that_did_not_memorise_is_tried_again_with_a_higher_rate(
    slow, planted, tried_again
):
    run = tried_again
    assert is_enough(run, slow.protocol)
    assert rates(tried_again) == pytest.approx([1e-6, 1e-2])
    assert run.record.attempts[0].training_accuracy <= 0.9
    assert run.settings.finetune.learning_rate == pytest.approx(1e-2)
    # The same as if the right rate had been there from the start.
    for a, b in zip(weights_of(run, "final"), weights_of(planted, "final"), strict=True):
        assert torch.equal(a, b)


def test_tries_end(recipe, tmp_path):
    changes = {"finetune.learning_rate": 1e-7, "control.tries": 2, "finetune.epochs": 1}
    made = make_plant(
        replace(recipe, protocol=recipe.protocol.replace(changes)), PLANT, tmp_path, ALL
    )
    assert not is_enough(made, recipe.protocol)
    assert len(rates(made)) == 2
    assert "frozen" not in made.weights()  # nothing more is trained in vain


@pytest.mark.parametrize(("name", "call"), [("remove", 1), ("remove", 2), ("train_run", 2)])
def test_a_try_that_is_killed_goes_on(slow, tried_again, tmp_path, monkeypatch, name, call):
    """Stopped while the files of a try are removed, or just before the next one."""
    calls, real = [], getattr(plants, name)

    def stop(*given, **more):
        calls.append(given)
        if len(calls) == call:
            raise KeyboardInterrupt
        return real(*given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(plants, name, stop)
        with pytest.raises(KeyboardInterrupt):
            make_plant(slow, PLANT, tmp_path / "killed", ("final", "reference"))
    run = make_plant(slow, PLANT, tmp_path / "killed", ("final", "reference"))
    assert run.record.attempts == tried_again.record.attempts
    pairs = zip(weights_of(tried_again, "final"), weights_of(run, "final"), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize(
    "changes", [{}, {"preset": "paper", "finetune.accumulate": 2}], ids=["same", "decides nothing"]
)
def test_a_plant_that_is_there_is_not_tried_again(slow, tried_again, monkeypatch, changes):
    monkeypatch.setattr(plants, "remove", lambda path: pytest.fail(f"{path} is removed"))
    same = replace(slow, protocol=slow.protocol.replace(changes))
    again = make_plant(same, PLANT, tried_again.folder, ("final", "reference"))
    assert again.record == tried_again.record


def test_a_try_that_does_not_know_of_those_before_it_begins_with_the_first(
    slow, tried_again, tmp_path
):
    folder = tmp_path / "early"
    shutil.copytree(tried_again.folder, folder)
    Run.open(folder).note(attempts=(), final=None)
    run = make_plant(slow, PLANT, folder, ("final", "reference"))
    assert run.record.attempts == tried_again.record.attempts


def test_a_plant_of_another_rate_is_refused_and_stays(slow, tried_again, monkeypatch):
    monkeypatch.setattr(plants, "remove", lambda path: pytest.fail(f"{path} is removed"))
    other = replace(slow, protocol=slow.protocol.replace({"finetune.learning_rate": 1e-5}))
    with pytest.raises(StoreError, match=r"other settings: finetune\.learning_rate"):
        make_plant(other, PLANT, tried_again.folder, ("final", "reference"))


def test_a_null_shares_the_reference_and_learns_original_labels(recipe, planted, tmp_path):
    null = make_null(recipe, PLANT, planted, tmp_path / "null", ALL)
    noisy = null.noisy
    assert (noisy.assigned == noisy.original).all()
    assert (noisy.is_noisy == recipe.task.labels.is_noisy).all()
    same = zip(weights_of(planted, "reference"), weights_of(null, "reference"), strict=True)
    assert all(torch.equal(a, b) for a, b in same)
    # Same labels and start, another order: the null's final weights are not the reference's.
    pairs = zip(weights_of(null, "final"), weights_of(null, "reference"), strict=True)
    assert not all(torch.equal(a, b) for a, b in pairs)
    assert null.is_null
