"""Early checkpoints: which epochs are kept, and that they are those of the training."""

import numpy as np
import pandas as pd
import pytest
from safetensors.torch import load_file

import memloc
from fixtures.tasks import fast_protocol, make_recipe, make_task, train_run
from memloc.errors import SettingsError, StoreError, UnknownName
from memloc.model.predict import predict
from memloc.run import recipe as training
from memloc.run.folder import Run
from memloc.run.recipe import keeps_epoch
from memloc.store.identity import hash_checkpoint


@pytest.fixture(scope="module")
def recipe(tiny_model):
    model = str(tiny_model("opt", depth=2, dropout=0.1))
    return make_recipe(model, make_task(), 1, fast_protocol(finetune__keep_epochs="early"))


@pytest.fixture(scope="module")
def run(recipe, tmp_path_factory):
    return train_run(recipe, tmp_path_factory.mktemp("runs") / "run", ["final", "reference"])


def kept(curve, epochs=20):
    rows = [{"epoch": i + 1, "noisy_accuracy": value} for i, value in enumerate(curve)]
    return [n for n in range(1, len(rows) + 1) if keeps_epoch(rows[:n], epochs)]


def test_every_epoch_is_kept_until_the_noisy_labels_are_learnt():
    assert kept([0.1, 0.2, 0.9, 0.96, 0.9, *[1.0] * 15]) == [1, 2, 3, 4, 8, 16]
    assert kept([0.1] * 5) == [1, 2, 3, 4, 5]
    assert kept([0.1] * 5, epochs=5) == [1, 2, 3, 4]  # the last one is final
    assert not keeps_epoch([{"epoch": 1}], 20)  # it was not measured


def test_kept_weights_predict_what_the_curve_says_of_their_epoch(run):
    table = run.training()
    table = table[table["training"] == "noisy"].set_index("epoch")
    assert run.epochs() == kept(table["noisy_accuracy"], epochs=12)
    for epoch in run.epochs():
        loaded = run.load(f"epoch-{epoch}")
        found = predict(loaded.stack, run.encode(loaded)).argmax(1)
        accuracy = (found == run.noisy.assigned).mean()
        assert accuracy == pytest.approx(table["accuracy"][epoch])


def test_keeping_epochs_changes_no_other_weights(recipe, run, tmp_path):
    changed = recipe.protocol.replace({"finetune.keep_epochs": "none"})
    plain = make_recipe(recipe.model, make_task(), 1, changed)
    other = train_run(plain, tmp_path, ["final", "reference"])
    assert other.epochs() == []
    for name in ("memorised", "final", "reference"):
        assert hash_checkpoint(other.path(name)) == hash_checkpoint(run.path(name))
    assert other.identity(["final"]) == run.identity(["final"])


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interrupted_training_keeps_the_same_epochs(recipe, run, tmp_path, monkeypatch, when):
    calls = []

    def stopped(path, *given):
        calls.append(path.name)
        if when == "after":
            save(path, *given)
        if len(calls) == 3:
            raise KeyboardInterrupt
        if when == "before":
            save(path, *given)

    save = training.save_checkpoint
    with monkeypatch.context() as context:
        context.setattr(training, "save_checkpoint", stopped)
        with pytest.raises(KeyboardInterrupt):
            train_run(recipe, tmp_path, ["final", "reference"])
    again = train_run(recipe, tmp_path, ["final", "reference"])
    assert again.epochs() == run.epochs()
    for epoch in run.epochs():
        one, two = (load_file(r.path(f"epoch-{epoch}") / "model.safetensors") for r in (run, again))
        assert all(bool((one[name] == two[name]).all()) for name in one)


def test_weights_of_which_nothing_is_known_are_made_again(recipe, tmp_path):
    again = train_run(recipe, tmp_path, ["final"])
    before = hash_checkpoint(again.path("epoch-1"))
    again.note(final=None)
    (again.path("epoch-1") / "model.safetensors").write_bytes(b"")
    again = train_run(recipe, tmp_path, ["final"])
    assert hash_checkpoint(again.path("epoch-1")) == before


def test_changed_early_weights_are_refused(recipe, tmp_path):
    run = train_run(recipe, tmp_path, ["final"])
    run.check_whole()
    config = run.path("epoch-1") / "config.json"
    config.write_text(config.read_text().replace("{", "{ ", 1))
    with pytest.raises(StoreError, match=r"epoch-1 are not those that memloc wrote"):
        run.check_whole()


def test_an_epoch_that_was_not_kept_is_refused_with_those_that_were(run, tmp_path, recipe):
    with pytest.raises(StoreError, match=r"no epoch-99 weights: the epochs .* are 1, 2"):
        run.load("epoch-99")
    with pytest.raises(UnknownName, match="epoch-0"):
        run.require("epoch-0")
    none = recipe.protocol.replace({"finetune.keep_epochs": "none"})
    bare = train_run(make_recipe(recipe.model, make_task(), 1, none), tmp_path, ["final"])
    with pytest.raises(StoreError, match=r"finetune\.keep_epochs=early"):
        bare.require("epoch-1")


def test_early_checkpoints_of_others_are_adopted(run, tmp_path):
    task = run.task
    rows = np.arange(len(task.train))
    names = np.array(task.label_names)
    data = {
        "text": [task.train.parts[row][0] for row in rows],
        "label": names[run.noisy.assigned],
        "original": names[run.noisy.original],
    }
    given = {"final": run.path("final"), "data": pd.DataFrame(data), "original": "original"}
    early = {2: run.path("epoch-2"), 1: str(run.path("epoch-1"))}
    adopted = memloc.adopt(tmp_path / "run", **given, epochs=early)
    assert Run.open(adopted.folder).epochs() == [1, 2]
    loaded = adopted.load("epoch-2")
    assert loaded.weights_hash == run.load("epoch-2").weights_hash
    with pytest.raises(StoreError, match="are 1, 2"):
        adopted.require("epoch-3")
    with pytest.raises(SettingsError, match="from 1, not 0"):
        memloc.adopt(tmp_path / "other", **given, epochs={0: run.path("epoch-1")})
    bare = memloc.adopt(tmp_path / "bare", **given)
    with pytest.raises(StoreError, match="--epoch 3=FOLDER"):
        bare.require("epoch-3")
