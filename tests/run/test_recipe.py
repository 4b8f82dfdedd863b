"""From a recipe to a run on disk, on models that really learn a few labels by heart."""

import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

import memloc
from fixtures.models import PAPER_FAMILIES, SPECIAL, each_once
from fixtures.tasks import Plant, fast_protocol, make_recipe, make_task, train_run
from memloc.data.encode import encode
from memloc.data.task import Examples, NoisyLabels
from memloc.engine import fit as engine
from memloc.errors import (
    DataError,
    SettingsError,
    StoreError,
    TrainingError,
    UnknownName,
)
from memloc.model.known import default_preset
from memloc.model.load import load_model
from memloc.model.parts import find_parts
from memloc.model.predict import predict
from memloc.run import recipe as training
from memloc.run.folder import Run
from memloc.run.records import TRAININGS, Accuracies
from memloc.run.train import train
from memloc.store.identity import hash_weights
from memloc.store.records import read_json

ALL = ["memorised", "final", "reference", "frozen"]
COLUMNS = [
    "training",
    "epoch",
    "loss",
    "accuracy",
    "macro_f1",
    "noisy_accuracy",
    "clean_accuracy",
    "noisy_as_original",
    "validation_accuracy",
    "seconds",
]


@pytest.fixture(scope="module")
def made(tmp_path_factory, tiny_model):
    """One whole run of an OPT that memorises; tests only read it."""
    model = str(tiny_model("opt", depth=2, dropout=0.1))
    recipe = make_recipe(model, make_task(), 1, fast_protocol())
    return recipe, train_run(recipe, tmp_path_factory.mktemp("runs") / "run")


def curve(run, training="noisy"):
    table = run.training()
    return table[table["training"] == training].reset_index(drop=True)


def encoded(loaded, examples):
    return encode(examples.parts, loaded.tokenizer, loaded.separator, loaded.max_tokens)


def test_all_weights_are_there_and_nothing_else(made):
    _, run = made
    assert run.checkpoints() == ALL
    assert sorted(p.name for p in run.folder.iterdir()) == [
        "checkpoints",
        "labels.parquet",
        "run.json",
        "status.json",
        "training.parquet",
    ]
    assert sorted(p.name for p in run.path("final").parent.iterdir()) == sorted(ALL)


def test_the_curve_has_a_row_a_training_and_epoch(made):
    _, run = made
    table = run.training()
    assert list(table.columns) == COLUMNS
    rows = list(zip(table["training"], table["epoch"], strict=True))
    assert rows == [(t, e) for t in ("noisy", "original", "frozen") for e in range(1, 13)]
    shares = table[
        [c for c in COLUMNS if "accuracy" in c or c in ("macro_f1", "noisy_as_original")]
    ]
    assert shares.min().min() >= 0
    assert shares.max().max() <= 1
    assert (table["seconds"] > 0).all()
    assert (table["loss"] > 0).all()


def test_the_curve_adds_up(made):
    recipe, run = made
    noisy = recipe.task.labels.is_noisy.mean()
    table = curve(run)
    mixed = noisy * table["noisy_accuracy"] + (1 - noisy) * table["clean_accuracy"]
    np.testing.assert_allclose(mixed, table["accuracy"])
    assert (table["noisy_accuracy"] + table["noisy_as_original"] <= 1).all()


def test_memorised_is_the_first_epoch_above_the_threshold(made):
    _, run = made
    table = curve(run)
    first = int(table.loc[table["accuracy"] > 0.993, "epoch"].iloc[0])
    about = json.loads((run.path("memorised") / "memloc.json").read_text())
    assert about["epoch"] == first < 12
    task, noisy = run.task, run.noisy
    loaded = run.load("memorised")
    found = predict(loaded.stack, encoded(loaded, task.train)).argmax(1)
    assert (found == noisy.assigned).mean() == pytest.approx(table["accuracy"][first - 1])


def test_measuring_less_often_changes_nothing_else(made, tmp_path):
    recipe, run = made
    seldom = recipe.protocol.replace({"finetune.measure_every": 5})
    other = train_run(replace(recipe, protocol=seldom), tmp_path, [*ALL])
    one, two = (r.load("final").model.state_dict() for r in (run, other))
    assert all(torch.equal(one[name], two[name]) for name in one)
    plain, less = curve(run), curve(other)
    measured = less[less["accuracy"].notna()]
    assert list(measured["epoch"]) == [5, 10, 12]  # and the last
    assert list(measured["accuracy"]) == list(plain["accuracy"][measured.index])
    assert list(less["loss"]) == list(plain["loss"])
    first = next(
        e for e, a in zip(measured["epoch"], measured["accuracy"], strict=True) if a > 0.993
    )
    assert json.loads((other.path("memorised") / "memloc.json").read_text())["epoch"] == first


@pytest.mark.parametrize(
    ("weights", "name"), [("final", "noisy"), ("reference", "original"), ("frozen", "frozen")]
)
def test_saved_weights_predict_what_the_curve_says_of_the_last_epoch(made, weights, name):
    _, run = made
    task, noisy = run.task, run.noisy
    loaded = run.load(weights)
    found = predict(loaded.stack, encoded(loaded, task.train)).argmax(1)
    trained_on = noisy.original if name == "original" else noisy.assigned
    last = curve(run, name).iloc[-1]
    assert (found == trained_on).mean() == pytest.approx(last["accuracy"])
    unseen = predict(loaded.stack, encoded(loaded, task.validation)).argmax(1)
    assert (unseen == task.validation.labels).mean() == pytest.approx(last["validation_accuracy"])


def test_a_run_that_memorised_says_so_with_the_numbers(made):
    _, run = made
    last = curve(run).iloc[-1]
    assert run.status.final == Accuracies(
        noisy=last["noisy_accuracy"], clean=last["clean_accuracy"], training=last["accuracy"]
    )
    assert run.memorised(0.95)
    run.require_memorised(0.95)
    assert Run.open(run.folder).record == run.record
    assert run.status.without == {}


@pytest.mark.parametrize("weights", ALL)
def test_anybody_can_load_the_weights_without_memloc(made, weights):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    recipe, run = made
    model = AutoModelForSequenceClassification.from_pretrained(run.path(weights)).eval()
    tokenizer = AutoTokenizer.from_pretrained(run.path(weights))
    loaded = run.load(weights)
    ours = predict(loaded.stack, encoded(loaded, recipe.task.test))
    for (text,), expected in zip(recipe.task.test.parts, ours, strict=True):
        with torch.no_grad():
            theirs = model(**tokenizer(text, return_tensors="pt")).logits[0]
        np.testing.assert_allclose(theirs.numpy(), expected, rtol=1e-4, atol=1e-5)
    assert model.config.id2label == {0: "label 0", 1: "label 1"}


@pytest.mark.parametrize("weights", ALL)
def test_weights_say_how_they_came_to_be(made, weights):
    recipe, run = made
    about = json.loads((run.path(weights) / "memloc.json").read_text())
    assert about["weights"] == weights
    spec = about["run"]["spec"]
    assert spec["model"] == recipe.model
    assert spec["seed"] == 1
    assert spec["settings"]["finetune"]["epochs"] == 12
    assert spec["task"]["name"] == about["run"]["task"]["name"] == "words"
    assert {"memloc", "torch", "transformers", "python"} <= set(about["versions"])
    assert about["epoch"] == (12 if weights != "memorised" else about["epoch"])
    assert not list(run.path(weights).glob("*.bin"))


def test_embeddings_stay_and_everything_else_learns(made):
    recipe, run = made
    start = load_model(recipe.model, recipe.task.label_names, seed=1)
    parts = find_parts(start.stack)
    before = dict(start.model.named_parameters())
    final, frozen = (dict(run.load(w).model.named_parameters()) for w in ("final", "frozen"))
    for name in parts.embeddings:
        assert torch.equal(final[name], before[name])
    for block in parts.blocks:
        assert all(torch.equal(frozen[name], before[name]) for name in block)
        assert not any(torch.equal(final[n], before[n]) for n in block if before[n].dim() > 1)
    for name in parts.after:
        assert not torch.equal(final[name], before[name])
        assert not torch.equal(frozen[name], before[name])


def test_reference_learns_the_original_labels(made):
    _, run = made
    table = curve(run, "original")
    assert table["accuracy"].iloc[-1] > 0.9
    # What it was trained on are the original labels, so the two columns say the same.
    assert (table["noisy_as_original"] == table["noisy_accuracy"]).all()


def test_examples_of_unknown_original_label_teach_the_reference_nothing(tiny_model, tmp_path):
    """Their labels have no influence, but texts, batches and order are those of the final model."""
    task = make_task(28, 3)
    marked = np.arange(28) < 4
    before = np.where(marked, -1, task.train.labels)
    unknown = replace(task, train=Examples(task.train.parts, before))
    runs = []
    for shift in (1, 2):
        assigned = np.where(marked, (task.train.labels + shift) % 3, task.train.labels)
        noisy = NoisyLabels(before, assigned, marked)
        model = str(tiny_model("opt", depth=2, dropout=0.1))
        recipe = make_recipe(model, unknown, 1, fast_protocol(finetune__epochs=3), noisy=noisy)
        runs.append(train_run(recipe, tmp_path / str(shift), ["final", "reference"]))
    one, other = (hash_checkpoint_weights(run, "reference") for run in runs)
    assert one == other
    assert hash_checkpoint_weights(runs[0], "final") != hash_checkpoint_weights(runs[1], "final")
    last = curve(runs[0], "original").iloc[-1]
    assert last["accuracy"] == last["clean_accuracy"]
    assert np.isnan(last["noisy_accuracy"])
    assert np.isnan(last["noisy_as_original"])


def hash_checkpoint_weights(run, weights):
    return hash_weights(run.load(weights).model.named_parameters())


def test_the_data_of_a_run_are_the_task(made):
    recipe, run = made
    task, noisy = run.task, run.noisy
    for split in ("train", "validation", "test"):
        one, other = getattr(task, split), getattr(recipe.task, split)
        assert one.parts == other.parts
        assert (one.labels == other.labels).all()
    assert (task.name, task.category, task.label_names, task.source) == (
        recipe.task.name,
        recipe.task.category,
        recipe.task.label_names,
        recipe.task.source,
    )
    for field in ("original", "assigned", "is_noisy"):
        assert (getattr(noisy, field) == getattr(recipe.task.labels, field)).all()


def test_a_second_call_does_nothing(made, monkeypatch):
    recipe, run = made
    before = {p: p.stat().st_mtime_ns for p in run.folder.rglob("*")}
    monkeypatch.setattr(engine, "train_epoch", lambda *_: pytest.fail("trained again"))
    again = train_run(recipe, run.folder)
    assert again.record == run.record
    assert {p: p.stat().st_mtime_ns for p in run.folder.rglob("*")} == before


def test_another_seed_gives_other_weights_and_the_same_noise(made, recipe_of, tmp_path):
    recipe, run = made
    other = train_run(recipe_of(seed=2), tmp_path, ["reference"])
    assert (recipe_of(seed=2).task.labels.assigned == recipe.task.labels.assigned).all()
    one, two = (r.load("reference").model.score.weight for r in (run, other))
    assert not torch.equal(one, two)


def test_the_same_recipe_gives_the_same_bits(made, tmp_path):
    recipe, run = made
    torch.rand(5)
    again = train_run(recipe, tmp_path)
    for weights in ALL:
        one, two = (r.load(weights).model.state_dict() for r in (run, again))
        assert all(torch.equal(one[n], two[n]) for n in one)
    pd.testing.assert_frame_equal(
        run.training().drop(columns="seconds"), again.training().drop(columns="seconds")
    )


@pytest.mark.parametrize("family", [*PAPER_FAMILIES, *SPECIAL])
def test_every_family_of_the_paper_trains_and_comes_back(recipe_of, tmp_path, family):
    recipe = recipe_of(family, finetune__epochs=2)
    run = train_run(recipe, tmp_path)
    for weights in ("final", "reference", "frozen"):
        loaded = run.load(weights)
        assert loaded.new_weights == ()
        assert np.isfinite(predict(loaded.stack, encoded(loaded, recipe.task.test))).all()


def test_only_what_is_asked_for_is_made(recipe_of, tmp_path):
    recipe = recipe_of(finetune__epochs=1)
    assert train_run(recipe, tmp_path, ["frozen"]).checkpoints() == ["frozen"]
    with pytest.raises(StoreError, match="no final weights yet"):
        Run.open(tmp_path).require_memorised(0.95)
    with pytest.raises(StoreError, match=r"has no reference weights.*memloc train"):
        Run.open(tmp_path).load("reference")
    assert train_run(recipe, tmp_path, ["reference"]).checkpoints() == ["reference", "frozen"]
    assert set(Run.open(tmp_path).training()["training"]) == {"frozen", "original"}


def test_weights_that_do_not_exist_are_refused_with_the_nearest(recipe_of, tmp_path):
    with pytest.raises(UnknownName, match="Did you mean 'reference'"):
        train_run(recipe_of(), tmp_path / "run", ["referense"])
    assert not (tmp_path / "run").exists()


def test_a_run_that_did_not_memorise_is_marked_and_refused_unless_forced(recipe_of, tmp_path):
    run = train_run(recipe_of(finetune__epochs=1, finetune__learning_rate=1e-6), tmp_path)
    assert not run.memorised(0.95)
    assert run.checkpoints() == ["final", "reference", "frozen"]
    with pytest.raises(TrainingError, match=r"not memorised.* 25\.0% .*95% are needed.*force"):
        run.require_memorised(0.95)
    run.require_memorised(0.95, force=True)
    with pytest.raises(StoreError, match=r"no memorised weights: no epoch had a training accuracy"):
        run.load("memorised")
    assert "above 0.993" in run.status.without["memorised"]


def test_the_reference_preset_takes_the_last_epoch_where_none_is_near_the_ceiling(
    recipe_of, tmp_path
):
    changes = {"finetune__learning_rate": 1e-6, "finetune__epochs": 2}
    run = train_run(recipe_of(**changes, finetune__without_near_ceiling="use last epoch"), tmp_path)
    assert run.status.without == {}
    assert json.loads((run.path("memorised") / "memloc.json").read_text())["epoch"] == 2
    one, two = (run.load(w).model.state_dict() for w in ("memorised", "final"))
    assert all(torch.equal(one[n], two[n]) for n in one)


def test_the_near_ceiling_score_can_be_macro_f1(recipe_of):
    rows = [{"accuracy": 1.0, "macro_f1": 0.9}, {"accuracy": 0.5, "macro_f1": 0.994}]
    settings = recipe_of(finetune__near_ceiling_score="macro F1").settings
    assert training.are_near_ceiling(rows, settings) == [False, True]
    settings = recipe_of(finetune__near_ceiling_score="accuracy").settings
    assert training.are_near_ceiling(rows, settings) == [True, False]
    at = {"accuracy": settings.near_ceiling, "macro_f1": 0.0}
    assert training.are_near_ceiling([at], settings) == [False]  # above, not at


def frozen_weights(recipe, folder):
    return train_run(recipe, folder, ["frozen"]).load("frozen").model.state_dict()


def differing(one, other, near=0.0):
    return {n for n in one if not torch.allclose(one[n], other[n], rtol=0, atol=near)}


def test_all_seeds_have_the_same_frozen_weights_where_their_seed_is_given(recipe_of, tmp_path):
    short = {"finetune__epochs": 2}
    for given, name in ((None, "own"), (1, "same")):
        one, two = (
            frozen_weights(
                recipe_of(seed=seed, finetune__frozen_seed=given, **short),
                tmp_path / f"{name}-{seed}",
            )
            for seed in (1, 2)
        )
        assert bool(differing(one, two)) == (given is None)


@pytest.mark.parametrize("family", ["bert", "opt"])
def test_frozen_blocks_drop_while_the_head_is_trained_where_that_is_asked(
    recipe_of, tmp_path, family
):
    start = recipe_of(family, finetune__epochs=2)
    loaded = load_model(start.model, start.task.label_names, seed=1)
    parts = find_parts(loaded.stack)
    plain = frozen_weights(start, tmp_path / "plain")
    dropping = recipe_of(family, finetune__epochs=2, finetune__frozen_dropout=True)
    dropped = frozen_weights(dropping, tmp_path / "dropped")
    assert differing(plain, dropped, 1e-4)
    assert differing(loaded.model.state_dict(), dropped) <= set(parts.after)


@pytest.mark.parametrize("family", ["bert", "opt"])
def test_gradients_of_frozen_blocks_can_be_counted_without_dropout_there(
    recipe_of, tmp_path, family
):
    """Nothing is clipped at so high a norm, so the way through the blocks must change nothing."""
    high, low = {"finetune__clip": 1e9}, {"finetune__clip": 1e-3, "finetune__weight_decay": 0.0}
    found = {
        (over, clip["finetune__clip"]): frozen_weights(
            recipe_of(family, finetune__epochs=2, finetune__clip_over=over, **clip),
            tmp_path / f"{over}-{clip['finetune__clip']}",
        )
        for over in ("trained", "all")
        for clip in (high, low)
    }
    assert not differing(found["trained", 1e9], found["all", 1e9], 1e-4)
    assert differing(found["trained", 1e-3], found["all", 1e-3], 1e-6)


def test_embedded_models_get_demo_and_others_paper():
    assert default_preset("tiny-opt") == "demo"
    assert default_preset("facebook/opt-125m") == "paper"


@pytest.mark.parametrize("category", ["words", "own"])
def test_labels_are_flipped_in_a_visible_step_only(task, category, tmp_path):
    with pytest.raises(DataError, match=r"add_noise\(task, rate=0.15\) .*load_csv"):
        train("tiny-opt", replace(task, category=category), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_device_that_is_not_there_leaves_nothing_behind(recipe_of, tmp_path):
    with pytest.raises(SettingsError, match="not on this machine"):
        train_run(replace(recipe_of(), device="tpu"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_out_of_memory_while_measuring_is_explained_too(recipe_of, tmp_path, monkeypatch):
    def fail(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("memloc.engine.passes.predict", fail)
    with pytest.raises(TrainingError, match=r"Out of memory.*finetune\.accumulate=2"):
        train_run(recipe_of(), tmp_path)


def test_more_pieces_may_be_used_after_running_out_of_memory(recipe_of, tmp_path):
    train_run(recipe_of(finetune__epochs=1), tmp_path, ["frozen"])
    run = train_run(recipe_of(finetune__epochs=1, finetune__accumulate=2), tmp_path, ["final"])
    assert "final" in run.checkpoints()


def test_a_rate_that_is_far_too_high_is_said_and_loses_nothing(recipe_of, tmp_path):
    with pytest.raises(TrainingError, match="lower the learning rate"):
        train_run(recipe_of(finetune__learning_rate=1e30, finetune__epochs=3), tmp_path)
    assert not list(tmp_path.rglob("*.part"))
    assert Run.open(tmp_path).checkpoints() == []


def test_pairs_are_joined_by_the_family_s_separator(recipe_of, tmp_path):
    recipe = recipe_of("gpt_neo", finetune__epochs=1)
    pairs = [
        Examples(tuple((a, "the sea") for (a,) in e.parts), e.labels)
        for e in (recipe.task.train, recipe.task.validation, recipe.task.test)
    ]
    task = replace(recipe.task, train=pairs[0], validation=pairs[1], test=pairs[2])
    run = train_run(replace(recipe, task=task), tmp_path, ["frozen"])
    assert run.task.train.parts == pairs[0].parts


def test_the_front_door_trains_as_a_recipe_does(made, tmp_path):
    recipe, run = made
    settings = recipe.protocol.for_run().changes()
    mine = memloc.train(
        recipe.model,
        recipe.task,
        tmp_path / "run",
        settings=settings,
        checkpoints=ALL[:3],
        device="cpu",
    )
    assert mine.checkpoints() == ALL[:3]
    one, two = (r.load("final").model.state_dict() for r in (mine, run))
    assert all(torch.equal(one[n], two[n]) for n in one)
    assert mine.record == run.record


def test_the_front_door_trains_on_tasks_with_noise_only(task, tmp_path):
    with pytest.raises(DataError, match=r"add_noise\(task, rate=0.15\) flips labels"):
        memloc.train("tiny-opt", task, tmp_path / "run")
    assert not (tmp_path / "run").exists()


KEY_BIAS = re.compile(r"(key|k_proj|query_key_value)\.bias$")
"""It changes no attention: its gradient is float noise, which AdamW makes as large as others."""


@pytest.mark.parametrize(("family", "planted"), each_once(PAPER_FAMILIES, ["1/3", None, "2"]))
def test_noisy_and_original_labels_learnt_as_one_are_learnt_as_alone(
    tiny_model, tmp_path, family, planted
):
    """Beside each other and one after the other; up to float noise, with dropout."""
    protocol = fast_protocol(finetune__epochs=2, finetune__learning_rate=1e-3)
    plant = planted and Plant(planted, make_task(8, 2, "other"))
    model = tiny_model(family, depth=3, dropout=0.1)
    recipe = make_recipe(model, make_task(), 1, protocol, plant=plant)
    as_one = train_run(recipe, tmp_path / "one", ["final", "reference"])
    alone = train_run(recipe, tmp_path / "two", ["final"])
    alone = train_run(recipe, tmp_path / "two", ["reference"])
    for weights in ("final", "reference"):
        notes = [read_json(run.path(weights) / "memloc.json") for run in (as_one, alone)]
        own = next(name for name, last in TRAININGS.items() if last == weights)
        assert [note["trained_with"] for note in notes] == [["noisy", "original"], [own]]
        one, two = (load_file(run.path(weights) / "model.safetensors") for run in (as_one, alone))
        assert not {n for n in differing(one, two, near=1e-5) if not KEY_BIAS.search(n)}
    different = [load_file(as_one.path(w) / "model.safetensors") for w in ("final", "reference")]
    assert differing(*different, near=1e-4)
    curves = [run.training().drop(columns="seconds") for run in (as_one, alone)]
    pd.testing.assert_frame_equal(*curves, rtol=1e-3)


def test_the_reference_is_made_in_the_same_pass_where_that_costs_little(
    recipe_of, tmp_path, monkeypatch
):
    assert train_run(
        recipe_of(), tmp_path / "1", ["final"], optional=["reference"]
    ).checkpoints() == [
        "memorised",
        "final",
        "reference",
    ]
    monkeypatch.setenv(engine.ONE_BY_ONE, "1")
    wide = train_run(recipe_of(), tmp_path / "2", ["final"], optional=["reference"])
    assert wide.checkpoints() == ["memorised", "final"]
