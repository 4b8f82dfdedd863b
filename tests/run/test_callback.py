"""A real Trainer on an embedded model, and what memloc makes of its output folder."""

import re
import shutil
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from transformers import Trainer, TrainingArguments
from typer.testing import CliRunner

import memloc
from memloc.cli import app
from memloc.errors import (
    DataError,
    MemlocError,
    ModelError,
    SettingsError,
    StoreError,
)
from memloc.model.load import load_model
from memloc.run.callback import RunCallback

N = 48
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(scope="module")
def noisy():
    task = memloc.load_task("tiny-topic")
    return memloc.add_noise(task, rate=0.15, seed=1)


def train(noisy, output, *, lora=False, epochs=2, tokenizer=True, clean=False, **kept):
    """As people do it: a tokenised data set, a model, a Trainer."""
    task, rows = noisy, np.arange(N)
    labels, original = noisy.labels.assigned[rows], noisy.labels.original[rows]
    labels = original if clean else labels
    texts = [task.train.parts[row][0] for row in rows]
    loaded = load_model("tiny-bert", task.label_names)
    model = loaded.model
    if lora:
        peft = pytest.importorskip("peft")
        model = peft.get_peft_model(
            model, peft.LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query", "value"])
        )
    encoded = loaded.tokenizer(texts)
    data = [
        {"input_ids": encoded["input_ids"][i], "labels": int(labels[i])} for i in range(len(texts))
    ]
    callback = RunCallback(texts, labels, original, **{"near_ceiling": 0.1, **kept})
    arguments = TrainingArguments(
        str(output), num_train_epochs=epochs, per_device_train_batch_size=16, learning_rate=2e-3,
        save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, seed=3,
    )  # fmt: skip
    Trainer(
        model, arguments, train_dataset=data, callbacks=[callback],
        processing_class=loaded.tokenizer if tokenizer else None,
    ).train()  # fmt: skip
    return callback


@pytest.mark.parametrize("lora", [False, True])
def test_a_trainer_s_folder_is_adopted_with_nothing_else_to_say(noisy, tmp_path, lora):
    callback = train(noisy, tmp_path / "out", lora=lora)
    run = memloc.adopt_trainer(tmp_path / "run", tmp_path / "out")
    assert set(run.status.adopted) == {"final", "memorised", "pretrained", "epoch-1"}
    assert run.epochs() == [1]
    assert (run.seed, run.record.task.name) == (3, "out")
    assert run.status.final.training == callback.rows[-1]["accuracy"]
    np.testing.assert_array_equal(run.noisy.assigned, callback.noisy.assigned)
    np.testing.assert_array_equal(run.noisy.original, callback.noisy.original)
    curve = run.training()
    assert curve["accuracy"].tolist() == [row["accuracy"] for row in callback.rows]
    kept = pd.read_parquet(tmp_path / "out" / "memloc" / "predictions.parquet")
    assert kept.shape == (len(callback.examples), 2)
    loaded = run.load("final")
    assert loaded.label_names == list(noisy.label_names)
    adapter = tmp_path / "out" / "memloc" / "final" / "adapter_config.json"
    assert adapter.is_file() == lora


def test_keeping_epochs_says_what_it_costs_and_can_be_switched_off(noisy, tmp_path, capsys):
    train(noisy, tmp_path / "out")
    assert re.search(r"every epoch \(\d+ MB each\)", " ".join(capsys.readouterr().err.split()))
    train(noisy, tmp_path / "none", keep_epochs="none")
    assert memloc.adopt_trainer(tmp_path / "run", tmp_path / "none").epochs() == []
    with pytest.raises(SettingsError, match="keep_epochs is none or early, not 'all'"):
        RunCallback(["a", "b"], [0, 1], [0, 1], keep_epochs="all")


def test_a_reference_may_be_a_trainer_s_folder_as_well(noisy, tmp_path):
    train(noisy, tmp_path / "out")
    train(noisy, tmp_path / "clean", clean=True)
    run = memloc.adopt_trainer(tmp_path / "run", tmp_path / "out", reference=tmp_path / "clean")
    assert run.status.adopted["reference"].path.endswith("clean/memloc/final")


def test_a_copy_of_the_final_weights_is_refused_as_a_reference(noisy, tmp_path):
    train(noisy, tmp_path / "out", epochs=1)
    shutil.copytree(tmp_path / "out", tmp_path / "copy")
    with pytest.raises(ModelError, match=r"are a copy of the final weights"):
        memloc.adopt_trainer(tmp_path / "run", tmp_path / "out", reference=tmp_path / "copy")


def test_another_seed_than_the_trainer_s_is_used_if_it_is_given(noisy, tmp_path):
    train(noisy, tmp_path / "out", epochs=1)
    assert memloc.adopt_trainer(tmp_path / "its", tmp_path / "out").seed == 3
    assert memloc.adopt_trainer(tmp_path / "mine", tmp_path / "out", seed=0).seed == 0


def test_weights_are_kept_the_first_time_they_are_near_the_ceiling(noisy, tmp_path):
    callback = train(noisy, tmp_path / "out", near_ceiling=0.9999, epochs=1)
    assert callback.kept == ["final"]
    run = memloc.adopt_trainer(tmp_path / "run", tmp_path / "out")
    assert not run.has("memorised")


def test_weights_that_were_changed_since_are_refused(noisy, tmp_path):
    train(noisy, tmp_path / "out", epochs=1)
    config = tmp_path / "out" / "memloc" / "final" / "config.json"
    config.write_text(config.read_text().replace("{", "{ ", 1))
    with pytest.raises(StoreError, match="the final weights next to it have changed"):
        memloc.adopt_trainer(tmp_path / "run", tmp_path / "out")


def test_the_command_adopts_a_trainer_s_folder_too(noisy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    callback = train(noisy, tmp_path / "out")
    app(["adopt", "run", "--final", "out"], standalone_mode=False)
    found = memloc.Run.open("run").noisy
    np.testing.assert_array_equal(found.is_noisy, callback.noisy.is_noisy)
    refused = CliRunner().invoke(app, ["adopt", "other", "--final", "out", "--original", "fixed"])
    assert refused.exit_code == 1
    assert "leave them out" in refused.stderr


def test_a_folder_without_data_and_without_callback_is_refused(tmp_path):
    with pytest.raises(SettingsError, match=r"--data.*RunCallback"):
        memloc.adopt_trainer(tmp_path / "run", tmp_path)


def test_a_trainer_without_tokenizer_is_told_before_training(noisy, tmp_path):
    with pytest.raises(MemlocError, match="processing_class=tokenizer"):
        train(noisy, tmp_path / "out", tokenizer=False)


@pytest.mark.parametrize(
    ("step", "best", "said"),
    [(30, False, "goes on after update 30: train from the start"), (0, True, "the last weights")],
)
def test_a_training_of_which_it_sees_a_part_is_refused(step, best, said):
    arguments = SimpleNamespace(world_size=1, load_best_model_at_end=best)
    callback = RunCallback(["a", "b"], [0, 1], [0, 0])
    with pytest.raises(SettingsError, match=said):
        callback.on_train_begin(arguments, SimpleNamespace(global_step=step), None)


def test_data_that_do_not_go_together_are_refused():
    with pytest.raises(DataError, match="2 texts, 2 labels and 1 labels before noise"):
        RunCallback(["a", "b"], [0, 1], [0])
    with pytest.raises(DataError, match="All of 2 examples have another label than before noise"):
        RunCallback(["a", "b"], [0, 1], [1, 0])
    with pytest.raises(DataError, match="of one part, or all of two"):
        RunCallback([("a", "b", "c"), ("a", "b", "c")], [0, 1], [1, 1])


@pytest.mark.parametrize("labels", [["good", "bad"], [0.5, 1.0], [-1, 0], [[0], [1]]])
def test_labels_are_the_numbers_of_classes(labels):
    with pytest.raises(DataError, match="numbers of classes, from 0, and was given"):
        RunCallback(["a", "b"], labels, [0, 0])
