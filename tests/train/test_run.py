"""A run's folder: what it belongs to, and what it refuses."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from memloc.errors import StoreError, UnknownName
from memloc.records import Examples, read_table, write_table
from memloc.train.run import Run
from memloc.train.training import Recipe, train_run

EPOCHS = {"finetune__epochs": 1}


@pytest.fixture
def there(recipe_of, tmp_path):
    """A run with the frozen weights only, which are quick to make."""
    return train_run(recipe_of(**EPOCHS), tmp_path / "run", ["frozen"])


def test_a_run_is_called_by_the_names_of_its_task_and_model(recipe_of, there):
    folder = Path(recipe_of().model)
    assert folder.is_absolute()
    assert there.name == f"words · {folder.name} · seed 1"
    hub = Run(there.folder, {**there.about, "model": "facebook/opt-125m"})
    assert hub.name == "words · opt-125m · seed 1"


def test_a_run_knows_the_weights_it_started_from(recipe_of, there):
    start = there.load_pretrained(seed=1)
    frozen = there.load("frozen")
    for block, same in zip(start.stack.blocks, frozen.stack.blocks, strict=True):
        for one, other in zip(block.parameters(), same.parameters(), strict=True):
            assert torch.equal(one, other)
    assert start.new_weights
    heads = [there.load_pretrained(seed=s).model.state_dict()[start.new_weights[0]] for s in (1, 2)]
    assert not torch.equal(*heads)


def refusal(recipe, run):
    before = {p: p.read_bytes() for p in run.folder.rglob("*") if p.is_file()}
    with pytest.raises(StoreError) as error:
        train_run(recipe, run.folder, ["frozen"])
    assert {p: p.read_bytes() for p in run.folder.rglob("*") if p.is_file()} == before
    message = str(error.value)
    assert message.startswith(f"{run.folder} belongs to other settings: ")
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
    ],
)
def test_other_settings_are_refused_by_name(recipe_of, there, setting, value, said):
    assert said in refusal(recipe_of(**{**EPOCHS, setting: value}), there)


def test_other_noise_is_refused(recipe_of, there):
    assert "task.noisy is 4 there and 6 here" in refusal(
        recipe_of(**EPOCHS, noise__rate=0.25), there
    )
    assert "task.hash" in refusal(recipe_of(**EPOCHS, noise__seed=7), there)


def test_another_seed_is_refused(recipe_of, there):
    assert "seed is 1 there and 2 here" in refusal(recipe_of(seed=2, **EPOCHS), there)


def test_another_model_is_refused(recipe_of, there):
    assert "model is " in refusal(recipe_of("gpt_neox", **EPOCHS), there)


def test_another_depth_is_refused(recipe_of, there):
    from memloc.models.load import LoadOptions

    recipe = replace(recipe_of(**EPOCHS), options=LoadOptions(depth=1))
    assert "depth is 2 there and 1 here" in refusal(recipe, there)


def test_other_weights_under_the_same_name_are_refused(recipe_of, there, tiny_model, tmp_path):
    import shutil

    recipe = recipe_of(**EPOCHS)
    mine = shutil.copytree(recipe.model, tmp_path / "mine")
    run = train_run(replace(recipe, model=str(mine)), tmp_path / "other", ["frozen"])
    other = tiny_model("opt", depth=2, dropout=0.1, seed=5)
    shutil.copy(other / "model.safetensors", mine / "model.safetensors")
    assert "weights_hash" in refusal(replace(recipe, model=str(mine)), run)


def test_another_task_is_refused(recipe_of, there, task):
    assert "task.name is 'words' there and 'others' here" in refusal(
        recipe_of(task=replace(task, name="others"), **EPOCHS), there
    )


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_one_other_text_is_refused(recipe_of, there, task, split):
    examples = getattr(task, split)
    other = Examples((("the sea",), *examples.parts[1:]), examples.labels)
    assert "task.hash" in refusal(recipe_of(task=replace(task, **{split: other}), **EPOCHS), there)


def test_one_other_label_is_refused(recipe_of, there, task):
    labels = task.test.labels.copy()
    labels[0] = 1 - labels[0]
    changed = replace(task, test=Examples(task.test.parts, labels))
    assert "task.hash" in refusal(recipe_of(task=changed, **EPOCHS), there)


def test_being_a_large_model_decides(recipe_of, there):
    recipe = recipe_of(**EPOCHS)
    protocol = recipe.protocol.replace({"models.large": (recipe.model,)})
    assert "is_large" in refusal(Recipe(recipe.model, recipe.task, 1, protocol), there)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("probes__epochs", 3),
        ("retraining__learning_rate", 1.0),
        ("control__seed", 4),
        ("models__small", ("other",)),
        ("finetune__seeds", (1, 2, 3, 4, 5)),
    ],
)
def test_settings_that_do_not_matter_for_training_may_differ(recipe_of, there, setting, value):
    run = train_run(recipe_of(**EPOCHS, **{setting: value}), there.folder, ["frozen"])
    assert run.about == there.about


def test_the_same_data_from_elsewhere_are_the_same_data(recipe_of, there, task):
    moved = replace(task, source="another folder")
    assert train_run(recipe_of(task=moved, **EPOCHS), there.folder, ["frozen"]).about == there.about


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(StoreError, match=r"is not a run: it has no run\.json.*memloc train"):
        Run.open(tmp_path)


def test_a_damaged_record_is_refused(recipe_of, there):
    (there.folder / "run.json").write_text('{"format": 1, "model"')
    with pytest.raises(StoreError, match=r"run\.json is not JSON"):
        train_run(recipe_of(**EPOCHS), there.folder)


@pytest.mark.parametrize("field", ["task", "protocol"])
def test_a_record_that_lacks_something_is_refused(recipe_of, there, field):
    record = json.loads((there.folder / "run.json").read_text())
    del record[field]
    (there.folder / "run.json").write_text(json.dumps(record))
    with pytest.raises(StoreError, match=rf"run\.json is damaged.* {field}"):
        train_run(recipe_of(**EPOCHS), there.folder)


def test_unknown_weights_suggest_the_nearest(there):
    with pytest.raises(UnknownName, match="Did you mean 'final'"):
        there.load("finl")


def test_a_draft_that_was_left_behind_is_no_set_of_weights(there):
    draft = there.folder / "checkpoints" / "final.4711.part"
    draft.mkdir()
    (draft / "config.json").write_text("{}")
    assert there.weights() == ["frozen"]


def test_settings_and_seed_come_back(there, recipe_of):
    assert there.protocol == recipe_of(**EPOCHS).protocol
    assert there.seed == 1
    assert there.about["preset"] == "paper"
    assert set(there.about["changes"]) == {
        "finetune.epochs",
        "finetune.learning_rate",
        "finetune.batch_size",
        "finetune.weight_decay",
    }
    assert there.about["depth"] == 2


def test_texts_with_odd_characters_come_back(recipe_of, task, tmp_path):
    odd = ("naïve “quotes”, a\ttab", "line\nbreak \u2028 and 🙂", " spaces ", "NA", "")
    parts = tuple((text, odd[0]) for text in odd) + tuple((a, "b") for (a,) in task.train.parts[5:])
    changed = replace(task, train=Examples(parts, task.train.labels))
    run = train_run(recipe_of(task=changed, **EPOCHS), tmp_path, ["frozen"])
    found, noisy = Run.open(tmp_path).data()
    assert found.train.parts == parts
    assert found.train.labels.dtype == np.int64
    assert noisy.is_noisy.dtype == bool
    assert run.verdict() == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("seed", "1"), ("seed", True), ("seed", None), ("model", 3), ("depth", 2.5)],
        *[("task", []), ("protocol", "paper"), ("verdict", [1]), ("verdict", {"memorised": 1})],
        *[("control", {"null": True}), ("changes", 3), ("without", "x")],
    ],
)
def test_a_record_whose_values_have_another_type_is_refused(there, name, value):
    there.note(**{name: value})
    with pytest.raises(StoreError, match=f"run.json is damaged: .*{name}"):
        Run.open(there.folder)


@pytest.mark.parametrize("name", ["name", "category", "label_names", "train", "noisy", "hash"])
def test_a_record_that_says_too_little_of_its_task_is_refused(there, name):
    there.note(task={key: value for key, value in there.about["task"].items() if key != name})
    with pytest.raises(StoreError, match=f"it does not say task.{name}"):
        Run.open(there.folder)


def test_labels_of_other_data_are_refused(there):
    path = there.folder / "labels.parquet"
    table, _ = read_table(path)
    write_table(path, table.iloc[1:], {})
    with pytest.raises(StoreError, match=r"not those that run.json describes"):
        there.data()
