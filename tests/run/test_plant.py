"""Plants are made and tried again; small models, real trainings."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

import memloc
from fixtures.tasks import fast_protocol, make_recipe, make_task
from memloc.errors import DataError, SettingsError, StoreError
from memloc.model.predict import predict
from memloc.run import plant as plants
from memloc.run.folder import Run
from memloc.run.plant import is_enough, make_null, make_plant
from memloc.run.spec import RunSpec, TaskSpec
from memloc.store import paths

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
TWO = ("final", "reference")


@pytest.fixture(scope="module")
def recipe(tiny_model):
    model = str(tiny_model("opt", depth=3))
    return make_recipe(model, make_task(96), 1, fast_protocol(**CHANGES))


def planted_spec(recipe, changes=None, layers="2-2"):
    protocol = recipe.protocol.replace(changes or {})
    spec = RunSpec.of(recipe.model, recipe.task, recipe.seed, protocol.for_run())
    return spec.planted(layers, TaskSpec.of_training(OTHER), protocol)


def made(spec, recipe, folder, weights=TWO):
    return make_plant(spec, folder, weights, task=recipe.task, auxiliary=OTHER, device="cpu")


@pytest.fixture(scope="module")
def planted(recipe, tmp_path_factory):
    """A plant with all weights, not to be changed."""
    return made(planted_spec(recipe), recipe, tmp_path_factory.mktemp("planted"), ALL)


SLOW = {"finetune.learning_rate": 1e-6, "control.rate_factor": 1e4, "control.tries": 3}
"""A rate that memorises nothing, and a second one that does."""
IN_VAIN = {**SLOW, "finetune.epochs": 1}
"""Three attempts, none of which memorises."""
LITTLE = {"finetune.epochs": 4, "verdict.noisy_at_least": 0.01, "control.accuracy_above": 0.01}
"""A short training that counts as enough."""


@pytest.fixture(scope="module")
def tried_again(recipe, tmp_path_factory):
    """A plant that needed the second rate, not to be changed."""
    return made(planted_spec(recipe, SLOW), recipe, tmp_path_factory.mktemp("again"))


def weights_of(run, name):
    return [p.detach().clone() for p in run.load(name).model.parameters()]


def assert_same_weights(one, other, name="final"):
    pairs = zip(weights_of(one, name), weights_of(other, name), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_a_plant_has_all_weights(planted):
    assert is_enough(planted)
    assert set(planted.checkpoints()) == set(ALL)
    assert planted.status.attempts == ()
    # The reference is planted, too: outside the window only the auxiliary task changed it.
    assert (planted.plant.first, planted.plant.last, planted.plant.null) == (2, 2, False)


def test_a_plant_that_did_not_memorise_is_tried_again_with_a_higher_rate(planted, tried_again):
    assert is_enough(tried_again)
    (short,) = tried_again.status.attempts
    assert short.learning_rate == 1e-6
    assert short.training_accuracy <= 0.9
    assert tried_again.settings.finetune.learning_rate == pytest.approx(1e-2)
    # The same as if the right rate had been there from the start.
    assert_same_weights(tried_again, planted)


def test_the_record_is_written_once_and_attempts_are_elsewhere(recipe, tmp_path, monkeypatch):
    records = []
    real = plants.make_run

    def read_after(*given, **more):
        run = real(*given, **more)
        records.append((run.folder / paths.RUN).stat().st_mtime_ns)
        return run

    monkeypatch.setattr(plants, "make_run", read_after)
    run = made(planted_spec(recipe, IN_VAIN), recipe, tmp_path)
    assert len(records) == 3
    assert len(set(records)) == 1
    assert len(run.status.attempts) == 2  # before the last one
    assert not is_enough(run)
    assert "frozen" not in run.checkpoints()  # nothing more is trained in vain
    assert Run.open(tmp_path).spec.settings.finetune.learning_rate == 1e-6


@pytest.fixture(scope="module")
def in_vain(recipe, tmp_path_factory):
    """A plant of three short attempts, not to be changed."""
    return made(planted_spec(recipe, IN_VAIN), recipe, tmp_path_factory.mktemp("vain"))


@pytest.mark.parametrize(("name", "call"), [("remove", 1), ("remove", 2), ("make_run", 2)])
def test_an_attempt_that_is_killed_goes_on(recipe, in_vain, tmp_path, monkeypatch, name, call):
    """Stopped while the files of an attempt are removed, or just before the next one."""
    calls, real = [], getattr(plants, name)

    def stop(*given, **more):
        calls.append(given)
        if len(calls) == call:
            raise KeyboardInterrupt
        return real(*given, **more)

    spec = planted_spec(recipe, IN_VAIN)
    with monkeypatch.context() as patch:
        patch.setattr(plants, name, stop)
        with pytest.raises(KeyboardInterrupt):
            made(spec, recipe, tmp_path)
    run = made(spec, recipe, tmp_path)
    assert run.status == in_vain.status
    assert_same_weights(run, in_vain)


@pytest.mark.parametrize(
    "changes", [{}, {"preset": "paper", "finetune.accumulate": 2}], ids=["same", "decides nothing"]
)
def test_a_plant_that_is_there_is_not_tried_again(recipe, tried_again, monkeypatch, changes):
    monkeypatch.setattr(plants, "remove", lambda path: pytest.fail(f"{path} is removed"))
    again = made(planted_spec(recipe, {**SLOW, **changes}), recipe, tried_again.folder)
    assert again.status == tried_again.status


def test_a_plant_that_lost_its_status_is_tried_from_the_first_rate(recipe, in_vain, tmp_path):
    folder = shutil.copytree(in_vain.folder, tmp_path / "run")
    (folder / "status.json").unlink()
    run = made(planted_spec(recipe, IN_VAIN), recipe, folder)
    assert run.status == in_vain.status
    assert_same_weights(run, in_vain)


def test_a_plant_of_another_rate_is_refused_and_stays(recipe, tried_again, monkeypatch):
    monkeypatch.setattr(plants, "remove", lambda path: pytest.fail(f"{path} is removed"))
    other = planted_spec(recipe, {**SLOW, "finetune.learning_rate": 1e-5})
    with pytest.raises(StoreError, match=r"other settings: finetune\.learning_rate"):
        made(other, recipe, tried_again.folder)


@pytest.fixture(scope="module")
def kinds(recipe, tmp_path_factory):
    """A plant of every kind in the same layer, trained for a short time, not to be changed."""
    names = {kind: f"{kind} 2" for kind in ("equal", "decoy", "loud")}
    return {
        kind: made(planted_spec(recipe, LITTLE, layers), recipe, tmp_path_factory.mktemp(kind))
        for kind, layers in ({"easy": "2-2"} | names).items()
    }


def test_a_null_shares_the_reference_and_learns_original_labels(recipe, kinds, tmp_path):
    planted = kinds["easy"]
    null = make_null(planted, tmp_path / "null", TWO, auxiliary=OTHER)
    noisy = null.noisy
    assert (noisy.assigned == noisy.original).all()
    assert (noisy.is_noisy == recipe.task.labels.is_noisy).all()
    assert_same_weights(planted, null, "reference")
    # Same labels and start, another order: the null's final weights are not the reference's.
    pairs = zip(weights_of(null, "final"), weights_of(null, "reference"), strict=True)
    assert not all(torch.equal(a, b) for a, b in pairs)
    assert null.is_null


def moved(one, other):
    """The layers, from 1, whose weights differ by more than float noise."""
    pairs = zip(one.stack.blocks, other.stack.blocks, strict=True)
    return {
        number
        for number, (block, same) in enumerate(pairs, 1)
        if not all(
            torch.allclose(a, b, atol=1e-5)
            for a, b in zip(block.parameters(), same.parameters(), strict=True)
        )
    }


def test_kinds_differ_in_what_else_changes_the_layers(kinds):
    final = {kind: run.load("final") for kind, run in kinds.items()}
    reference = {kind: run.load("reference") for kind, run in kinds.items()}
    # Decoys are an easy plant whose other layers have other weights and compute the same.
    for pair in (final, reference):
        assert moved(pair["easy"], pair["decoy"]) == {1, 3}
        texts = kinds["easy"].encode(pair["easy"])
        logits = [predict(pair[kind].stack, texts) for kind in ("easy", "decoy")]
        np.testing.assert_allclose(*logits, rtol=1e-3, atol=1e-4)
    # At equal rates the other layers move further; wrong labels of the auxiliary task change what
    # the final weights compute, and not what the reference computes.
    assert moved(final["easy"], final["equal"]) == {1, 2, 3}
    assert 2 in moved(final["equal"], final["loud"])
    logits = [predict(reference[kind].stack, texts) for kind in ("equal", "loud")]
    np.testing.assert_allclose(*logits, rtol=1e-3, atol=1e-4)


def test_the_null_of_loud_neighbours_still_learns_their_wrong_labels(kinds, tmp_path):
    nulls = {
        kind: make_null(kinds[kind], tmp_path / kind, TWO, auxiliary=OTHER)
        for kind in ("equal", "loud")
    }
    assert 2 in moved(*(null.load("final") for null in nulls.values()))


def test_the_public_function_makes_the_same_plant(recipe, kinds, tmp_path):
    changes = {name.replace("__", "."): value for name, value in CHANGES.items()} | LITTLE
    settings = {f"finetune.{k}": v for k, v in recipe.protocol.finetune.flat().items()} | changes
    planted = kinds["easy"]
    run = memloc.plant(
        recipe.model,
        recipe.task,
        tmp_path,
        "2",
        auxiliary=OTHER,
        settings=settings,
        checkpoints=TWO,
        device="cpu",
    )
    assert run.spec == planted.spec.model_copy(update={"settings": run.spec.settings})
    assert_same_weights(run, planted)


def test_what_cannot_be_planted_is_refused(recipe, tmp_path):
    with pytest.raises(SettingsError, match=r"swapping\.normalise does not decide the weights"):
        memloc.plant("tiny-opt", recipe.task, tmp_path, "2", settings={"swapping.normalise": False})
    with pytest.raises(DataError, match=r"memloc\.add_noise"):
        memloc.plant("tiny-opt", replace(recipe.task, noise=None), tmp_path, "2")
    with pytest.raises(SettingsError, match="outside the model"):
        memloc.plant(recipe.model, recipe.task, tmp_path, "7", auxiliary=OTHER)
    assert not (tmp_path / paths.RUN).exists()
