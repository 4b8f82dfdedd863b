"""Plants are made, tried again, found, and summed up; small models, real trainings."""

from dataclasses import replace

import pandas as pd
import pytest
import torch
from memloc.training.run import Run
from typer.testing import CliRunner

from memloc.cli import app
from memloc.errors import SettingsError, StoreError, UnknownName
from memloc.records import write_table
from memloc.seeds import generator
from memloc.study import plants
from memloc.study.control import Control, read_control, run_control
from memloc.study.plants import make_null, make_plant, plant_folder
from memloc.training.planting import Plant
from memloc.training.recipe import Recipe
from study_support import Study, training
from tasks_support import fast_protocol, make_task

CHANGES = {
    "finetune__epochs": 20,
    "finetune__batch_size": 8,
    "control__auxiliary_learning_rate": 1e-3,
    "finetune__near_ceiling": 0.9,
    "finetune__noisy_at_least": 0.8,
    "control__accuracy_above": 0.9,
    "retraining__epochs": 1,
    "probes__epochs": 2,
    "probes__first_epoch": 0,
}
OTHER = make_task(24, 2, "other")
ALL = ("memorised", "final", "reference", "frozen")


@pytest.fixture(scope="module")
def model(tiny_model):
    return str(tiny_model("opt", depth=3))


@pytest.fixture
def recipe(model):
    return Recipe(model, make_task(96), 1, fast_protocol(**CHANGES), device="cpu")


@pytest.fixture
def plant():
    return Plant(range(1, 2), OTHER)


def weights_of(run, name):
    return [p.detach().clone() for p in run.load(name).model.parameters()]


def test_a_plant_has_all_weights(recipe, plant, tmp_path):
    folder = plant_folder(recipe, plant, tmp_path)
    assert folder.parts[-5:-2] == ("control", "words", recipe.model.split("/")[-1])
    assert folder.parts[-2:] == ("seed-1", "window-2-2")
    made = make_plant(recipe, plant, folder, ALL)
    assert made.enough
    assert set(made.run.weights()) == set(ALL)
    assert [t["learning_rate"] for t in made.run.about["tries"]] == [1e-2]
    # The reference is planted, too: outside the window only the auxiliary task changed it.
    assert made.run.about["control"]["window"] == [2, 2]


def test_a_plant_that_did_not_memorise_is_tried_again_with_a_higher_rate(recipe, plant, tmp_path):
    changes = {
        "finetune.learning_rate": 1e-6,
        "control.rate_factor": 1e4,
        "control.tries": 3,
    }
    slow = replace(recipe, protocol=recipe.protocol.replace(changes))
    made = make_plant(slow, plant, tmp_path, ("final",))
    assert made.enough
    assert [t["learning_rate"] for t in made.run.about["tries"]] == pytest.approx([1e-6, 1e-2])
    assert made.run.about["tries"][0]["training_accuracy"] <= 0.9
    assert made.run.protocol.finetune.learning_rate == pytest.approx(1e-2)
    # The same as if the right rate had been there from the start.
    plain = make_plant(recipe, plant, tmp_path / "plain", ("final",))
    for a, b in zip(weights_of(made.run, "final"), weights_of(plain.run, "final"), strict=True):
        assert torch.equal(a, b)


def test_tries_end(recipe, plant, tmp_path):
    changes = {"finetune.learning_rate": 1e-7, "control.tries": 2, "finetune.epochs": 1}
    made = make_plant(
        replace(recipe, protocol=recipe.protocol.replace(changes)), plant, tmp_path, ALL
    )
    assert not made.enough
    assert len(made.run.about["tries"]) == 2
    assert "reference" not in made.run.weights()  # nothing is trained in vain


@pytest.mark.parametrize("moment", ["noted", "forgotten"])
def test_a_try_that_is_killed_goes_on(recipe, plant, tmp_path, monkeypatch, moment):
    """Stopped right after a try was noted, or right after its files were removed."""
    changes = {"finetune.learning_rate": 1e-6, "control.rate_factor": 1e4}
    slow = replace(recipe, protocol=recipe.protocol.replace(changes))
    whole = make_plant(slow, plant, tmp_path / "whole", ("final",))

    def stop(*given):
        real(*given)
        if moment == "forgotten" and not given[1]:
            return  # the first call has nothing to forget
        raise KeyboardInterrupt

    name = "write_json" if moment == "noted" else "_forget"
    real = getattr(plants, name)
    monkeypatch.setattr(plants, name, stop)
    with pytest.raises(KeyboardInterrupt):
        make_plant(slow, plant, tmp_path / "killed", ("final",))
    monkeypatch.setattr(plants, name, real)
    again = make_plant(slow, plant, tmp_path / "killed", ("final",))
    assert again.run.about["tries"] == whole.run.about["tries"]
    for a, b in zip(weights_of(whole.run, "final"), weights_of(again.run, "final"), strict=True):
        assert torch.equal(a, b)


def test_a_null_shares_the_reference_and_learns_original_labels(recipe, plant, tmp_path):
    planted = make_plant(recipe, plant, tmp_path / "window", ALL)
    null = make_null(recipe, planted, tmp_path / "null", ALL)
    _, noisy = null.run.data()
    assert (noisy.assigned == noisy.original).all()
    assert (noisy.is_noisy == recipe.noisy.is_noisy).all()
    same = zip(weights_of(planted.run, "reference"), weights_of(null.run, "reference"), strict=True)
    assert all(torch.equal(a, b) for a, b in same)
    # Same labels and start, another order: the null's final weights are not the reference's.
    pairs = zip(weights_of(null.run, "final"), weights_of(null.run, "reference"), strict=True)
    assert not all(torch.equal(a, b) for a, b in pairs)
    assert null.run.about["control"]["null"] is True


def test_control_sums_up_what_is_in_the_folder(model, tmp_path):
    what = Control(
        models=[model],
        tasks=[make_task(96)],
        windows=[range(1)],
        methods=["swapping", "gradients", "probing"],
        nulls="middle",
        protocol=fast_protocol(**CHANGES, control__validation_tasks=("words",)),
        auxiliary=OTHER,
        device="cpu",
    )
    found = run_control(what, tmp_path)
    assert found.plants["null"].tolist() == [True, False]
    assert found.plants["used"].all()
    scores = found.scores
    assert sorted(scores["method"].unique()) == ["gradients", "probing", "swapping"]
    assert len(scores) == 3 * 2
    assert scores["chance"].tolist() == pytest.approx([1 / 3, 2 / 3] * 3)  # by k
    swapping = scores[(scores["method"] == "swapping") & (scores["k"] == 1)]
    assert swapping["accuracy"].tolist() == [1.0]  # the planted layer is the first of three
    assert len(found.nulls) == 3
    # L1 and L2, two steps on and off.
    assert len(found.post_processing) == 8
    assert (found.post_processing["plants"] == 1).all()
    kinds = {"noisy", "clean", "difference", "frozen noisy", "frozen clean", "frozen difference"}
    assert set(found.gradients["kind"]) == kinds
    again = read_control(tmp_path)
    pd.testing.assert_frame_equal(again.scores, found.scores)
    pd.testing.assert_frame_equal(
        pd.read_parquet(tmp_path / "control" / "scores.parquet"), found.scores
    )
    runs = [Run.open(p.parent) for p in (tmp_path / "control").glob("*/*/*/*/run.json")]
    made = {p: p.stat().st_mtime_ns for r in runs for p in r.folder.rglob("*.safetensors")}
    run_control(what, tmp_path)
    assert made == {p: p.stat().st_mtime_ns for p in made}  # nothing is made twice


def test_a_plant_that_was_never_memorised_is_reported_and_not_scored(model, tmp_path):
    what = Control(
        models=[model],
        tasks=[make_task(96)],
        windows=[range(1)],
        methods=["swapping"],
        protocol=fast_protocol(**{**CHANGES, "finetune__learning_rate": 1e-8, "control__tries": 1}),
        auxiliary=OTHER,
        device="cpu",
    )
    found = run_control(what, tmp_path)
    assert found.plants["used"].tolist() == [False]
    assert len(found.scores) == 0


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"windows": [range(2, 4)]}, SettingsError, "3-4 is outside the model"),
        ({"windows": [range(2), range(1, 2)]}, SettingsError, "1-2 and 2-2 overlap"),
        ({"methods": ["swoping"]}, UnknownName, "Did you mean 'swapping'"),
        ({"tasks": []}, SettingsError, "needs a model and a task"),
        ({"auxiliary": make_task(24)}, SettingsError, "words, which is the noisy one, too"),
        ({"every": [3]}, SettingsError, "3 of 3 layers"),
    ],
)
def test_bad_input_is_refused_before_anything_is_made(model, tmp_path, changes, error, message):
    what = Control(models=[model], tasks=[make_task(24)], protocol=fast_protocol(**CHANGES))
    with pytest.raises(error, match=message):
        run_control(replace(what, **changes), tmp_path)
    assert not list(tmp_path.iterdir())


def test_swapping_is_not_tested_where_the_reference_did_not_learn(tmp_path):
    """Layers of such weights undo anything, the planted labels, too."""
    Study(control=1, models=("tiny-opt",), seeds=()).write(tmp_path)
    before = read_control(tmp_path)
    place = next((tmp_path / "control").glob("*/*/*/window-1-2"))
    curves = training(5, generator(1))
    weak = curves.assign(accuracy=curves["accuracy"].where(curves["training"] != "original", 0.5))
    for table, left in ((curves, set()), (weak, {"swapping"})):
        write_table(place / "training.parquet", table, {})
        found = read_control(tmp_path).scores
        first = found[found["first"] == 1]
        assert set(before.scores["method"]) - set(first["method"]) == left
    assert set(found[found["first"] == 3]["method"]) == set(before.scores["method"])


def test_a_folder_without_plants_is_refused(tmp_path):
    with pytest.raises(StoreError, match="holds no planted run"):
        read_control(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--window", "11-13"], "11-13 is outside the model, which has layers 1-12"),
        (["--window", "7-6"], "7-6 is empty"),
        (["--window", "1-2", "--window", "2-3"], "overlap"),
        (["--method", "probbing"], "Did you mean 'probing'?"),
        (["--nulls", "al"], "Did you mean 'all'?"),
        (["--task", "tiny-entailment"], "which is the noisy one, too"),
    ],
)
def test_the_command_refuses_bad_input_in_one_sentence(options, message, tmp_path):
    given = ["--model", "tiny-opt", "--task", "tiny-topic", *options, "--out", str(tmp_path)]
    result = CliRunner().invoke(app, ["control", *given])
    assert result.exit_code == 1
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())
