"""Runs that were interrupted, alone or as one with others, go on to the very same weights."""

import os
import random
import shutil
import signal
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from fixtures.forked import ended, forked
from fixtures.tasks import Recipe, fast_protocol, make_recipe, make_task, train_run
from memloc.engine import fit as engine
from memloc.engine.state import epochs_done, load_state, save_state
from memloc.errors import StoreError
from memloc.progress import telling
from memloc.run import recipe as training
from memloc.run import train as making
from memloc.run.folder import Run
from memloc.store import paths
from memloc.store.records import read_json

EPOCHS = 8
ALL = ["memorised", "final", "reference", "frozen"]


class Killed(BaseException):
    """Like a power cut: nothing of ours catches it."""


def long_recipe(model: Path) -> Recipe:
    protocol = fast_protocol(finetune__epochs=EPOCHS, finetune__learning_rate=2e-2)
    return make_recipe(model, make_task(), 1, protocol)


@pytest.fixture(scope="module")
def recipe(tiny_model):
    return long_recipe(tiny_model("opt", depth=2, dropout=0.1))


@pytest.fixture(scope="module")
def uninterrupted(recipe, tmp_path_factory):
    run = train_run(recipe, tmp_path_factory.mktemp("whole"))
    assert run.checkpoints() == ALL
    assert torch.tensor(run.training()["accuracy"]).unique().numel() > 3
    return run


def provenance(run: Run, weights: str) -> dict[str, object]:
    """What weights say of how they came to be, without how long each epoch took."""
    about = read_json(run.path(weights) / "memloc.json")
    assert about["curve"]
    for row in about["curve"]:
        row.pop("seconds", None)  # not known yet where weights are kept within an epoch
    return about


def assert_same_run(one: Run, other: Run) -> None:
    assert one.checkpoints() == other.checkpoints() == ALL
    for weights in ALL:
        mine, theirs = (load_file(r.path(weights) / "model.safetensors") for r in (one, other))
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine), weights
        assert provenance(one, weights) == provenance(other, weights)
    pd.testing.assert_frame_equal(
        one.training().drop(columns="seconds"), other.training().drop(columns="seconds")
    )
    assert one.record == other.record
    assert one.status == other.status


def stop_after(monkeypatch, name, calls, what, train=train_run):
    """Train until the function has done its work `calls` times, then `die`."""
    module = next(one for one in (engine, training, making) if hasattr(one, name))
    plain, count = getattr(module, name), []

    def dying(*args, **kwargs):
        result = plain(*args, **kwargs)
        count.append(1)
        if len(count) == calls:
            raise Killed
        return result

    with monkeypatch.context() as patch:
        patch.setattr(module, name, dying)
        with pytest.raises(Killed):
            train(*what)


@pytest.mark.parametrize("epochs", [1, EPOCHS, EPOCHS + 2, 2 * EPOCHS])
def test_stopped_in_an_epoch_it_goes_on_to_the_same_bits(
    recipe, uninterrupted, tmp_path, monkeypatch, epochs
):
    stop_after(monkeypatch, "train_epoch", epochs, (recipe, tmp_path))
    assert_same_run(train_run(recipe, tmp_path), uninterrupted)


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        ("save_state", 1),
        ("save_checkpoint", 1),
        ("save_checkpoint", 2),
        ("save_checkpoint", 4),
        ("write_table", 3),
        ("begin", 1),
    ],
)
def test_stopped_between_two_files_it_goes_on_to_the_same_bits(
    recipe, uninterrupted, tmp_path, monkeypatch, name, calls
):
    stop_after(monkeypatch, name, calls, (recipe, tmp_path))
    run = train_run(recipe, tmp_path)
    assert_same_run(run, uninterrupted)
    assert not list(tmp_path.rglob("*.part"))
    assert not list(tmp_path.rglob("*.state"))


def test_epochs_that_are_done_are_not_done_again(recipe, tmp_path, monkeypatch):
    stop_after(monkeypatch, "save_state", 5, (recipe, tmp_path))
    seen = []
    plain = engine.train_epoch
    monkeypatch.setattr(
        engine, "train_epoch", lambda o, s, e, a, **k: seen.append(e) or plain(o, s, e, a, **k)
    )
    train_run(recipe, tmp_path, ["final"])
    assert seen == list(range(6, EPOCHS + 1))


def test_killed_at_any_moment_it_goes_on_to_the_same_bits(recipe, uninterrupted, tmp_path):
    """A real process, really killed; each new one gets a little further."""
    for wait in (0.05, 0.2, 0.3, 0.4, 0.5):
        child = forked(lambda: train_run(recipe, tmp_path / "run"))
        time.sleep(wait + random.random() / 10)
        os.kill(child, signal.SIGKILL)
        ended(child)
    assert_same_run(train_run(recipe, tmp_path / "run"), uninterrupted)


@pytest.mark.parametrize("damage", ["truncated", "empty", "text", "flipped"])
def test_a_damaged_state_means_training_from_the_start_and_that_is_said(
    recipe, uninterrupted, tmp_path, monkeypatch, damage
):
    stop_after(monkeypatch, "save_state", 2, (recipe, tmp_path))
    (state,) = tmp_path.rglob("*.state")
    raw = state.read_bytes()
    content = {"truncated": raw[:-100], "empty": b"", "text": b"not a state"}
    content["flipped"] = raw[:-50] + bytes([raw[-50] ^ 1]) + raw[-49:]  # a bit of a weight
    state.write_bytes(content[damage])
    said = []
    with telling(said.append):
        assert_same_run(train_run(recipe, tmp_path), uninterrupted)
    assert any("noisy-original.state is damaged" in sentence for sentence in said)


def test_what_is_there_of_two_that_learn_as_one_stays_when_the_other_is_made_again(
    recipe, uninterrupted, tmp_path
):
    run = train_run(recipe, tmp_path)
    before = {name: (run.path(name) / "model.safetensors").stat().st_mtime_ns for name in ALL}
    shutil.rmtree(run.path("reference"))
    train_run(recipe, tmp_path, ["reference"])
    made = [load_file(r.path("reference") / "model.safetensors") for r in (run, uninterrupted)]
    assert all(torch.equal(made[0][name], made[1][name]) for name in made[0])
    after = {name: (run.path(name) / "model.safetensors").stat().st_mtime_ns for name in ALL}
    assert {name for name in ALL if before[name] != after[name]} == {"reference"}


def test_a_training_as_one_that_is_not_wanted_now_waits(recipe, tmp_path, monkeypatch):
    stop_after(monkeypatch, "save_state", 2, (recipe, tmp_path))
    assert train_run(recipe, tmp_path, ["frozen"]).checkpoints() == ["frozen"]
    state = partial(paths.training_state, tmp_path)
    assert epochs_done(state, ["noisy", "original"]) == {"noisy": 2, "original": 2}


def test_where_two_cannot_learn_as_one_any_more_they_start_anew_and_that_is_said(
    recipe, tmp_path, monkeypatch
):
    stop_after(monkeypatch, "save_state", 2, (recipe, tmp_path))
    less = recipe.protocol.replace({"finetune.gradient_checkpointing": True})
    said = []
    with telling(said.append):
        run = train_run(replace(recipe, protocol=less), tmp_path, ["final"])
    assert run.checkpoints() == ["memorised", "final"]
    assert any("from the start, one after the other" in sentence for sentence in said)
    assert not list(tmp_path.rglob("*.state"))


def test_a_state_of_another_model_is_not_used(
    recipe, uninterrupted, tmp_path, monkeypatch, tiny_model
):
    for folder, model in (("one", "opt"), ("two", "gpt_neox")):
        other = long_recipe(tiny_model(model, depth=2, dropout=0.1))
        stop_after(monkeypatch, "save_state", 1, (other, tmp_path / folder))
    name = "checkpoints/noisy-original.state"
    os.replace(tmp_path / "two" / name, tmp_path / "one" / name)
    assert_same_run(train_run(recipe, tmp_path / "one"), uninterrupted)


def test_a_run_that_lost_its_status_is_refused_and_made_again_to_the_same_bits(
    recipe, uninterrupted, tmp_path
):
    folder = shutil.copytree(uninterrupted.folder, tmp_path / "run")
    (folder / "status.json").unlink()
    with pytest.raises(StoreError, match=r"status\.json does not exist: repeat the command"):
        Run.open(folder)
    assert_same_run(train_run(recipe, folder), uninterrupted)


def test_a_full_disk_is_one_sentence_and_loses_nothing(recipe, uninterrupted, tmp_path):
    """With a limit on file sizes that the system itself enforces."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(StoreError, match=r"Cannot write .*Free space") as error:
            train_run(recipe, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.rglob("*.part"))
    assert_same_run(train_run(recipe, tmp_path), uninterrupted)


def test_a_parameter_that_is_never_used_does_not_hinder(tmp_path):
    """Its gradient is never there, so AdamW keeps nothing about it."""
    from memloc.engine.loop import Objective, train_epoch
    from memloc.protocol import FineTuneSettings

    def make():
        used, unused = (torch.nn.Parameter(torch.ones(2, 2)) for _ in range(2))
        tensors = {"used": used, "unused": unused}
        settings = FineTuneSettings(learning_rate=0.1, batch_size=2, epochs=3)
        inputs = torch.eye(2)
        labels = torch.tensor([0, 1])
        lengths = torch.ones(2).numpy()
        return Objective(
            "one", lambda rows: inputs[rows] @ used, labels, lengths, tensors, tensors, settings
        )

    one, two = make(), make()
    train_epoch([one], [1], 1)
    save_state(tmp_path / "s", [one], {"one": []}, "key")
    load_state(tmp_path / "s", [two], "key")
    train_epoch([one], [1], 2)
    train_epoch([two], [1], 2)
    assert two.updates == 2
    assert torch.equal(one.tensors["used"], two.tensors["used"])
    assert not torch.equal(one.tensors["used"], torch.ones(2, 2))
