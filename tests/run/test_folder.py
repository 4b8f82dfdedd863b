"""A run's folder: what it belongs to, what it refuses, what it knows of its weights."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import memloc
from fixtures.runs import altered, make_record, make_run
from fixtures.tasks import make_task, train_run
from memloc.data.task import Examples
from memloc.errors import StoreError, TrainingError, UnknownName
from memloc.model.load import LoadOptions
from memloc.run.begin import begin
from memloc.run.folder import Run
from memloc.run.records import CURVES, WEIGHTS, Accuracies, Checkpoint, at_the_end
from memloc.run.spec import PlantSpec, TaskSpec
from memloc.store import paths
from memloc.store.files import new_draft
from memloc.store.records import read_json, read_table, write_json, write_table

EPOCHS = {"finetune__epochs": 1}


@pytest.fixture
def there(recipe_of, tmp_path):
    """A run with the frozen weights only, which are quick to make."""
    return train_run(recipe_of(**EPOCHS), tmp_path / "run", ["frozen"])


def test_the_front_door_has_it():
    assert memloc.Run is Run


def test_a_run_is_called_by_the_names_of_its_task_and_model(recipe_of, there):
    folder = Path(recipe_of().model)
    assert folder.is_absolute()
    assert there.name == f"words · {folder.name} · seed 1"
    hub = altered(there, model="facebook/opt-125m")
    assert hub.name == "words · opt-125m · seed 1"


def test_an_adopted_run_without_a_start_is_called_like_its_folder(there):
    adopted = replace(there, record=there.record.replace({"made_by": "adopt"}))
    assert adopted.model_name == "run"


def test_a_run_opens_as_it_was_made(there):
    assert Run.open(str(there.folder), "cpu") == there
    assert Run.open(there.folder).device == "auto"
    assert there.record.made_by == "train"
    assert there.record.task.train == 28


def test_a_run_knows_the_weights_it_started_from(recipe_of, there):
    start = there.load_pretrained(seed=1)
    frozen = there.load("frozen")
    for block, same in zip(start.stack.blocks, frozen.stack.blocks, strict=True):
        for one, other in zip(block.parameters(), same.parameters(), strict=True):
            assert torch.equal(one, other)
    assert start.new_weights
    heads = [there.load_pretrained(seed=s).model.state_dict()[start.new_weights[0]] for s in (1, 2)]
    assert not torch.equal(*heads)
    pretrained = there.load("pretrained")  # with the run's seed
    assert torch.equal(pretrained.model.state_dict()[start.new_weights[0]], heads[0])
    assert not pretrained.model.training


def refusal(recipe, run):
    before = {p: p.read_bytes() for p in run.folder.rglob("*") if p.is_file()}
    with pytest.raises(StoreError) as error:
        train_run(recipe, run.folder, ["frozen"])
    assert {p: p.read_bytes() for p in run.folder.rglob("*") if p.is_file()} == before
    message = str(error.value)
    assert message.startswith(f"{run.folder} belongs to other ")
    assert "--out" in message
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("finetune__epochs", 2, "finetune.epochs is 1 there and 2 here"),
        ("finetune__learning_rate", 1e-3, "finetune.learning_rate is 0.01 there and 0.001 here"),
        ("text__max_tokens", 64, "text.max_tokens is 512 there and 64 here"),
        ("finetune__near_ceiling", 0.9, "finetune.near_ceiling is 0.993 there and 0.9 here"),
        ("finetune__clip_over", "all", "finetune.clip_over is 'trained' there and 'all' here"),
        ("finetune__frozen_dropout", True, "finetune.frozen_dropout is False there and True here"),
        ("finetune__frozen_seed", 1, "finetune.frozen_seed is None there and 1 here"),
    ],
)
def test_other_settings_are_refused_by_name(recipe_of, there, setting, value, said):
    assert said in refusal(recipe_of(**{**EPOCHS, setting: value}), there)


def test_other_noise_is_refused(recipe_of, there):
    assert "task.noisy is 4 there and 6 here" in refusal(
        recipe_of(**EPOCHS, noise__rate=0.25), there
    )
    assert "data: texts or labels differ" in refusal(recipe_of(**EPOCHS, noise__seed=7), there)


def test_another_seed_is_refused(recipe_of, there):
    assert "seed is 1 there and 2 here" in refusal(recipe_of(seed=2, **EPOCHS), there)


def test_another_model_is_refused(recipe_of, there):
    assert "other settings: model is " in refusal(recipe_of("gpt_neox", **EPOCHS), there)


def test_another_depth_is_refused(recipe_of, there):
    recipe = replace(recipe_of(**EPOCHS), options=LoadOptions(depth=1))
    assert "depth is 2 there and 1 here" in refusal(recipe, there)


def test_other_weights_under_the_same_name_are_refused(recipe_of, there, tiny_model, tmp_path):
    recipe = recipe_of(**EPOCHS)
    mine = shutil.copytree(recipe.model, tmp_path / "mine")
    run = train_run(replace(recipe, model=str(mine)), tmp_path / "other", ["frozen"])
    other = tiny_model("opt", depth=2, dropout=0.1, seed=5)
    shutil.copy(other / "model.safetensors", mine / "model.safetensors")
    assert "weights: the model's differ" in refusal(replace(recipe, model=str(mine)), run)


def test_another_task_is_refused(recipe_of, there, task):
    assert "task.name is 'words' there and 'others' here" in refusal(
        recipe_of(task=replace(task, name="others"), **EPOCHS), there
    )


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_one_other_text_is_refused(recipe_of, there, task, split):
    examples = getattr(task, split)
    other = Examples((("the sea",), *examples.parts[1:]), examples.labels)
    changed = recipe_of(task=replace(task, **{split: other}), **EPOCHS)
    assert "data: texts or labels differ" in refusal(changed, there)


def test_one_other_label_is_refused(recipe_of, there, task):
    labels = task.test.labels.copy()
    labels[0] = 1 - labels[0]
    changed = replace(task, test=Examples(task.test.parts, labels))
    assert "data: texts or labels differ" in refusal(recipe_of(task=changed, **EPOCHS), there)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("probing__epochs", 3),
        ("retraining__learning_rate", 1.0),
        ("control__seed", 4),
        ("verdict__noisy_at_least", 0.5),
        ("finetune__accumulate", 2),
        ("finetune__gradient_checkpointing", True),
    ],
)
def test_settings_that_do_not_matter_for_training_may_differ(recipe_of, there, setting, value):
    train_run(recipe_of(**EPOCHS, **{setting: value}), there.folder, ["frozen"])
    assert Run.open(there.folder).record == there.record


def test_the_same_data_from_elsewhere_are_the_same_data(recipe_of, there, task):
    moved = replace(task, source="another folder")
    again = train_run(recipe_of(task=moved, **EPOCHS), there.folder, ["frozen"])
    assert again.record == there.record


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(StoreError, match=r"is not a run: it has no run\.json.*memloc train"):
        Run.open(tmp_path)


def test_a_damaged_record_is_refused(recipe_of, there):
    (there.folder / "run.json").write_text('{"format": 2, "model"')
    with pytest.raises(StoreError, match=r"run\.json is not JSON"):
        train_run(recipe_of(**EPOCHS), there.folder)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("task", None, "task is missing"),
        ("weights_hash", None, "weights_hash is missing"),
        ("depth", "deep", "depth is 'deep': input should be a valid integer"),
        ("spec", {"model": "x"}, "spec.task is missing"),
        ("strange", 1, "strange is 1: extra inputs"),
    ],
)
def test_a_record_that_lacks_something_is_refused(recipe_of, there, field, value, said):
    record = read_json(there.folder / "run.json")
    record[field] = value
    kept = {name: v for name, v in record.items() if v is not None or name != field}
    write_json(there.folder / "run.json", kept)
    with pytest.raises(StoreError, match=rf"run\.json does not hold what it should \({said}.*\.$"):
        train_run(recipe_of(**EPOCHS), there.folder)


def test_a_run_of_another_format_is_refused(there):
    record = read_json(there.folder / "run.json")
    for number, said in (
        (1, "was made by memloc 0.2 or older"),
        (99, "format 99, this memloc reads up to"),
    ):
        write_json(there.folder / "run.json", {**record, "format": number})
        with pytest.raises(StoreError, match=said):
            Run.open(there.folder)


def test_unknown_weights_suggest_the_nearest(there):
    with pytest.raises(UnknownName, match="Did you mean 'final'"):
        there.load("finl")


def test_a_draft_that_was_left_behind_is_no_set_of_weights(there):
    draft = new_draft(there.folder / "checkpoints" / "final")
    draft.mkdir()
    (draft / "config.json").write_text("{}")
    assert there.checkpoints() == ["frozen"]


def test_settings_and_seed_come_back(there, recipe_of):
    assert there.settings == recipe_of(**EPOCHS).protocol.for_run()
    assert there.seed == 1
    assert there.settings.preset == "paper"
    assert set(there.settings.changes()) == {
        "finetune.epochs",
        "finetune.learning_rate",
        "finetune.batch_size",
        "finetune.weight_decay",
    }
    assert there.depth == 2
    assert there.record.width == 16


def test_texts_with_odd_characters_come_back(recipe_of, task, tmp_path):
    odd = ("naïve “quotes”, a\ttab", "line\nbreak \u2028 and 🙂", " spaces ", "NA", "")
    parts = tuple((text, odd[0]) for text in odd) + tuple((a, "b") for (a,) in task.train.parts[5:])
    changed = replace(task, train=Examples(parts, task.train.labels))
    run = train_run(recipe_of(task=changed, **EPOCHS), tmp_path, ["frozen"])
    found = Run.open(tmp_path)
    assert found.task.train.parts == parts
    assert found.task.train.labels.dtype == np.int64
    assert found.noisy.is_noisy.dtype == bool
    assert not run.memorised(0.95)


def test_rows_of_noisy_and_clean_examples_are_all_rows(tmp_path):
    run = make_run(tmp_path)
    assert run.noisy.is_noisy[run.noisy_rows].all()
    assert sorted([*run.noisy_rows, *run.clean_rows]) == list(range(24))


def test_a_run_memorised_if_it_predicts_enough_noisy_labels(tmp_path):
    run = make_run(tmp_path)
    run = run.note(final=Accuracies(noisy=0.9, clean=0.8, training=0.7))
    for needed, memorised in ((0.9, True), (0.91, False)):
        assert Run.open(run.folder).memorised(needed) == memorised
    assert run.require_memorised(0.9).training == 0.7
    run.require_memorised(0.95, force=True)
    with pytest.raises(TrainingError, match=r"not memorised.* 90\.0% .*95% are needed.*force"):
        run.require_memorised(0.95)
    with pytest.raises(StoreError, match="no final weights yet: finish `memloc train`"):
        run.note(final=None).require_memorised(0.5, force=True)


def test_the_null_of_a_plant_says_so(tmp_path):
    run = make_run(tmp_path)
    assert not run.is_null
    for null in (False, True):
        plant = PlantSpec(planted="1-2", null=null, auxiliary=TaskSpec(name="other"))
        assert altered(run, plant=plant).is_null == null


def test_missing_weights_say_how_to_get_them(there):
    with pytest.raises(StoreError, match="has no final weights: `memloc train` with the same"):
        there.require("final")
    told = there.note(without={"memorised": "no epoch was good enough."})
    with pytest.raises(StoreError, match="has no memorised weights: no epoch was good enough"):
        told.require("memorised")
    adopted = altered(there, made_by="adopt")
    assert not adopted.has("pretrained")
    with pytest.raises(StoreError, match=r"no reference weights: .*--reference.*--train-missing"):
        adopted.require("reference")
    with pytest.raises(StoreError, match=r"with --pretrained\."):
        adopted.require("pretrained")


def test_vectors_are_computed_once_while_a_run_is_open(there, monkeypatch):
    first = there.vectors("frozen")
    assert first.shape == (28, 3, 16)
    monkeypatch.setattr(Run, "load", lambda *_: pytest.fail("again"))
    assert there.vectors("frozen") is first


def test_training_curves_of_a_run_without_any_are_empty(tmp_path, there):
    curves = make_run(tmp_path).training()
    assert list(curves.columns) == list(CURVES)
    assert curves.empty
    assert list(there.training()["training"]) == ["frozen"]


def test_another_table_in_the_place_of_the_curves_is_one_sentence(tmp_path):
    run = make_run(tmp_path)
    write_table(run.folder / paths.TRAINING, pd.DataFrame({"layer": [1]}), {})
    with pytest.raises(StoreError, match=r"training.parquet does not hold what it should"):
        run.training()


def test_what_was_measured_at_the_end_is_that_of_the_last_epoch():
    rows = [("noisy", 2, 0.7), ("noisy", 1, 0.5), ("original", 3, 0.9)]
    table = pd.DataFrame(rows, columns=["training", "epoch", "accuracy"])
    assert at_the_end(table, "noisy", "accuracy") == 0.7
    assert np.isnan(at_the_end(table, "frozen", "accuracy"))


def test_a_folder_of_another_run_is_refused_whatever_it_is_called(tmp_path, task):
    run = make_run(tmp_path)
    other = make_record(run.task, seed=2)
    with pytest.raises(StoreError, match="seed is 1 there and 2 here"):
        begin(run.folder, run.task, other)
    planted = PlantSpec(planted="1-2", auxiliary=TaskSpec(name="other"))
    other = make_record(run.task, plant=planted)
    with pytest.raises(StoreError, match="planted is None there and '1-2' here"):
        begin(run.folder, run.task, other)


IDENTITY = ("final", "reference")


@pytest.mark.parametrize(
    "changes",
    [
        {"weights_hash": "other"},
        {"seed": 2},
        {"depth": 5},
        {"task": {"hash": "other"}},
        {"settings": {"finetune.epochs": 7}},
        {"settings": {"text.max_tokens": 7}},
        {"plant": PlantSpec(planted="1-1", auxiliary=TaskSpec(name="x"))},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_the_identity_of_weights_is_what_decides_them(tmp_path, changes):
    run = make_run(tmp_path)
    owners = {"settings": run.settings, "task": run.record.task}
    replaced = {
        name: owners[name].replace(value) if isinstance(value, dict) else value
        for name, value in changes.items()
    }
    other = altered(run, **replaced)
    assert other.identity(IDENTITY) != run.identity(IDENTITY)


def test_the_identity_of_weights_is_not_where_they_are_or_how_they_were_asked_for(tmp_path):
    run, same = make_run(tmp_path), make_run(tmp_path)
    facts = {
        "model": "moved",
        "command": "memloc train x",
        "task": run.record.task.replace({"source": "elsewhere", "noise": "said otherwise"}),
        "settings": run.settings.replace({"finetune.accumulate": 2, "finetune.near_ceiling": 0.5}),
    }
    other = altered(same.note(final=None), **facts)
    assert other.identity(IDENTITY) == run.identity(IDENTITY)
    # When near-ceiling weights are kept decides those weights.
    assert other.identity(["memorised"]) != run.identity(["memorised"])


def test_adopted_weights_are_part_of_the_identity_where_they_are_looked_at(tmp_path):
    def adopted(**hashes):
        made = {n: Checkpoint(path="here", files="f", hash=h) for n, h in hashes.items()}
        run = make_run(tmp_path)
        return altered(run.note(adopted=made), made_by="adopt")

    one = adopted(final="a", frozen="b", pretrained="c")
    assert one.identity(["final"]) == adopted(final="a", frozen="x").identity(["final"])
    assert one.identity(["final"]) != adopted(final="x", frozen="b").identity(["final"])
    # Reference weights that memloc trained came from the pre-trained ones.
    other = adopted(final="a", frozen="b", pretrained="x")
    assert one.identity(["reference"]) != other.identity(["reference"])
    assert one.identity(["frozen"]) == other.identity(["frozen"])


def test_adopted_weights_that_changed_are_not_loaded(there, tiny_model):
    loaded = there.load("frozen")
    place = shutil.copytree(there.path("frozen"), there.folder.parent / "elsewhere")
    from memloc.store.identity import hash_checkpoint, hash_weights

    known = Checkpoint(
        path=str(place),
        files=hash_checkpoint(place),
        hash=hash_weights(loaded.model.named_parameters()),
    )
    run = altered(there.note(adopted={"frozen": known}), made_by="adopt")
    assert run.path("frozen") == place
    run.load("frozen")
    run.check_unchanged(["frozen", "final"])
    with torch.no_grad():
        next(iter(loaded.stack.blocks[0].parameters())).add_(1)
    loaded.model.save_pretrained(place)
    for look in (lambda: run.load("frozen"), lambda: run.check_unchanged(["frozen"])):
        with pytest.raises(StoreError, match=r"frozen weights at .*elsewhere have changed since"):
            look()


@pytest.mark.parametrize("file", ["tokenizer.json", "config.json", "model.safetensors"])
def test_weights_that_were_changed_after_training_are_not_loaded(there, file):
    there.load("frozen")
    there.check_unchanged(["frozen", "pretrained", "final"])
    place = there.path("frozen") / file
    whole = place.read_bytes()
    # One entry of the vocabulary, say, that now belongs to another word.
    place.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    for look in (lambda: there.load("frozen"), lambda: there.check_unchanged(["frozen"])):
        with pytest.raises(StoreError, match="frozen are not those that memloc wrote there"):
            look()


def test_weights_without_their_provenance_are_refused(there):
    (there.path("frozen") / paths.PROVENANCE).unlink()
    with pytest.raises(StoreError, match=r"memloc\.json does not exist"):
        there.check_unchanged(["frozen"])


def test_weights_are_made_by_trainings():
    assert WEIGHTS == {
        "memorised": "noisy",
        "final": "noisy",
        "reference": "original",
        "frozen": "frozen",
    }
    assert paths.checkpoint(Path("run"), "final") == Path("run/checkpoints/final")
    assert make_task().n_classes == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("seed", "one"), ("seed", None), ("model", 3), ("depth", 2.5), ("task", [])],
        *[("settings", "paper"), ("final", [1]), ("final", {"noisy": "all"}), ("without", "x")],
        *[("plant", {"null": True}), ("adopted", {"final": "here"}), ("attempts", 3)],
    ],
)
def test_a_record_whose_values_have_another_type_is_refused(tmp_path, name, value):
    run = make_run(tmp_path)
    record = read_json(run.folder / "run.json")
    write_json(run.folder / "run.json", {**record, name: value})
    with pytest.raises(
        StoreError, match=rf"run\.json does not hold what it should \({name}"
    ) as error:
        Run.open(run.folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["name", "category", "label_names", "train", "noisy", "hash"])
def test_a_record_that_says_too_little_of_its_task_is_refused(tmp_path, name):
    run = make_run(tmp_path)
    record = read_json(run.folder / "run.json")
    del record["task"][name]
    write_json(run.folder / "run.json", record)
    with pytest.raises(StoreError, match=rf"run\.json does .* \(task\.{name} is missing"):
        Run.open(run.folder)


def test_labels_of_other_data_are_refused(tmp_path):
    run = make_run(tmp_path)
    path = run.folder / paths.LABELS
    table, _ = read_table(path)
    write_table(path, table.iloc[1:], {})
    with pytest.raises(StoreError, match=r"not those that run\.json describes"):
        Run.open(run.folder).task  # noqa: B018 - it is read when it is asked for
