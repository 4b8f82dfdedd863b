"""Checkpoints of anybody's own become a run, which is then like any other."""

import json
import shutil
import time
import weakref

import numpy as np
import pytest
import torch

import memloc
from fixtures.tasks import QUICK, fast_protocol, make_recipe, make_task, train_run
from memloc.errors import (
    DataError,
    ModelError,
    SettingsError,
    StoreError,
    TrainingError,
)
from memloc.methods.apply import analyse, localise
from memloc.model import checkpoints, load
from memloc.model.load import load_model
from memloc.progress import requested, telling
from memloc.run import adopt as adopting
from memloc.run.adopt import adopt
from memloc.run.folder import Run
from memloc.store import identity
from memloc.store.records import write_json

WEIGHTS = ("final", "reference", "memorised", "frozen")


def quick(*names):
    """The fast settings of these methods alone: those of others are refused."""
    return {key: value for key, value in QUICK.items() if key.split(".")[0] in names}


@pytest.fixture(scope="module")
def source(memorised_folder):
    """A run that memorised; what is adopted are its checkpoints and its data."""
    return Run.open(memorised_folder, "cpu")


@pytest.fixture
def data(source, write_data):
    return write_data(source)


@pytest.fixture
def given(source, data):
    """What a person has who has everything."""
    places = {name: source.path(name) for name in WEIGHTS}
    return {**places, "pretrained": source.spec.model, "data": data, "original": "original"}


def test_the_front_door_has_it():
    assert memloc.adopt.__wrapped__ is adopt


def test_an_adopted_run_knows_its_weights_data_and_accuracies(source, given, tmp_path):
    with requested(["adopt", "mine"]):
        run = adopt(tmp_path / "mine", **given)
    assert Run.open(tmp_path / "mine") == run
    record = run.record
    assert record.made_by == "adopt"
    assert record.command == "memloc adopt mine"
    assert (record.depth, record.width, run.seed) == (3, 16, 1)
    assert run.checkpoints() == ["memorised", "final", "reference", "frozen"]
    assert run.has("pretrained")
    assert run.status.final == source.status.final
    assert run.task.name == "train"
    assert run.task.label_names == source.task.label_names
    assert run.task.train.parts == source.task.train.parts
    for name in ("original", "assigned", "is_noisy"):
        assert np.array_equal(getattr(run.noisy, name), getattr(source.noisy, name))
    # Checkpoints stay where they are.
    assert not list(run.folder.rglob("*.safetensors"))
    for name in WEIGHTS:
        one, two = (r.load(name).model.state_dict() for r in (run, source))
        assert all(torch.equal(one[n], two[n]) for n in one)


@pytest.mark.parametrize("way", ["original", "flag"])
def test_every_method_gives_the_same_as_for_the_run(source, given, tmp_path, way):
    del given["original"]
    mine = adopt(tmp_path / way, **given, **{way: way})
    theirs = Run.open(shutil.copytree(source.folder, tmp_path / "theirs"))
    for look, name in (
        *((localise, name) for name in ("swapping", "retraining", "gradients", "probing")),
        (analyse, "centroids"),
    ):
        one, two = (
            look(r, [name], settings=quick(name), device="cpu")[name] for r in (mine, theirs)
        )
        for table in one.tables:
            # Shuffles have a draw of each run, by its name, and the two runs differ in theirs.
            drawn = ["by_chance", "separable"]
            tables = (found[table].drop(columns=drawn, errors="ignore") for found in (one, two))
            assert next(tables).equals(next(tables)), (name, table)


def test_only_some_weights_do_for_some_methods(source, data, tmp_path):
    run = adopt(
        tmp_path / "mine",
        final=source.path("final"),
        reference=source.path("reference"),
        data=data,
        flag="flag",
    )
    found = localise(run, device="cpu")
    assert list(found.results) == ["swapping", "shares"]
    assert found.skipped == {
        "retraining": "needs pretrained weights",
        "gradients": "needs memorised and frozen weights",
        "probing": "needs frozen weights",
    }
    with pytest.raises(StoreError, match=r"no frozen weights.*--frozen.*--train-missing"):
        localise(run, ["probing"])
    alone = adopt(tmp_path / "alone", final=source.path("final"), data=data, flag="flag")
    with pytest.raises(StoreError, match=r"No method can run on .*seed 1: swapping needs ref"):
        localise(alone)
    fast = quick("label_probes")
    assert list(analyse(alone, settings=fast, device="cpu").results) == [
        "centroids",
        "label_probes",
    ]


def test_missing_weights_can_be_trained(source, given, tmp_path):
    few = {name: given[name] for name in ("final", "pretrained", "data", "original")}
    settings = {"finetune.epochs": 2, "finetune.learning_rate": 1e-2}
    run = adopt(tmp_path / "mine", **few, settings=settings, train_missing=True, device="cpu")
    assert run.checkpoints() == ["final", "reference", "frozen"]
    assert run.path("reference") == run.folder / "checkpoints" / "reference"
    start = run.load_pretrained(seed=1)
    for block, same in zip(start.stack.blocks, run.load("frozen").stack.blocks, strict=True):
        for one, other in zip(block.parameters(), same.parameters(), strict=True):
            assert torch.equal(one, other)
    assert set(run.training()["training"]) == {"original", "frozen"}
    assert run.status.final == source.status.final
    fast = quick("retraining", "probing")
    assert list(localise(run, settings=fast, device="cpu").skipped) == ["gradients"]


def test_what_is_missing_needs_a_start_and_no_original_labels(source, given, tmp_path):
    few = {"final": given["final"], "data": given["data"]}
    with pytest.raises(SettingsError, match="give --pretrained"):
        adopt(tmp_path / "mine", **few, original="original", train_missing=True)
    assert not (tmp_path / "mine").exists()
    three = train_run(
        make_recipe(source.spec.model, make_task(48, 3), 1, fast_protocol()),
        tmp_path / "three",
        ["final"],
    )
    path = tmp_path / "three.csv"
    names = three.task.label_names
    rows = [
        f"{text},{names[a]},{int(noisy)}"
        for (text,), a, noisy in zip(
            three.task.train.parts, three.noisy.assigned, three.noisy.is_noisy, strict=True
        )
    ]
    path.write_text("\n".join(["text,label,flag", *rows]), encoding="utf-8")
    made = adopt(
        tmp_path / "mine",
        final=three.path("final"),
        pretrained=source.spec.model,
        data=path,
        flag="flag",
        settings={"finetune.epochs": 1},
        train_missing=True,
    )
    assert made.has("reference")  # trained without the examples that are flagged
    assert made.training()["noisy_as_original"].isna().all()


def test_a_run_is_recorded_under_its_lock(given, tmp_path, monkeypatch):
    busy = []
    monkeypatch.setattr(
        "memloc.run.adopt.begin",
        lambda folder, *_: busy.append((folder / "running.lock").is_file()) or 1 / 0,
    )
    with pytest.raises(ZeroDivisionError):
        adopt(tmp_path / "mine", **given)
    assert busy == [True]
    about = {"host": "elsewhere", "pid": 1, "beat": time.time()}
    write_json(tmp_path / "mine" / "running.json", about)
    with pytest.raises(StoreError, match="is being trained by process 1 on elsewhere"):
        adopt(tmp_path / "mine", **given)


@pytest.mark.parametrize("key", ["verdict.noisy_at_least", "probing.epochs", "control.width"])
def test_settings_that_a_run_does_not_keep_are_refused(given, tmp_path, key):
    with pytest.raises(SettingsError, match=f"{key} does not decide the weights of a run"):
        adopt(tmp_path / "mine", **given, settings={key: 1})
    assert not (tmp_path / "mine").exists()


def test_an_adopted_run_that_is_not_finished_is_to_be_adopted_again(given, tmp_path):
    run = adopt(tmp_path / "mine", **given).note(final=None)
    with pytest.raises(StoreError, match="has no final weights yet: finish `memloc adopt`"):
        localise(run, ["swapping"])


def test_unseen_data_are_kept_with_the_run(source, given, tmp_path):
    held_out = tmp_path / "unseen.csv"
    held_out.write_text("text,label,original\nred sky,label 0,label 1\nsea,label 1,label 1\n")
    run = adopt(tmp_path / "mine", **given, held_out=held_out)
    assert run.task.test.parts == (("red sky",), ("sea",))
    assert run.task.test.labels.tolist() == [1, 1]
    assert len(adopt(tmp_path / "none", **given).task.test) == 0


def test_adopting_the_same_again_changes_nothing(given, tmp_path):
    run = adopt(tmp_path / "mine", **given)
    before = (run.folder / "run.json").read_bytes()
    assert adopt(tmp_path / "mine", **given) == run
    assert (run.folder / "run.json").read_bytes() == before


def test_other_weights_into_the_same_folder_are_refused(source, given, tmp_path):
    run = adopt(tmp_path / "mine", **given)
    other = {**given, "final": source.path("reference"), "reference": source.path("final")}
    with pytest.raises(StoreError, match="belongs to other final weights than these"):
        adopt(run.folder, **other)
    with pytest.raises(StoreError, match=r"belongs to other settings: seed is 1 there and 2"):
        adopt(run.folder, **given, seed=2)


def test_checkpoints_that_moved_are_found_when_they_are_adopted_again(source, given, tmp_path):
    first = {**given, "final": shutil.copytree(source.path("final"), tmp_path / "here")}
    adopt(tmp_path / "mine", **first)
    (tmp_path / "here").rename(tmp_path / "there")
    with pytest.raises(StoreError, match=r"has no final weights: .*memloc adopt"):
        Run.open(tmp_path / "mine").load("final")
    run = adopt(tmp_path / "mine", **{**first, "final": tmp_path / "there"})
    assert run.path("final") == tmp_path / "there"
    Run.open(tmp_path / "mine").load("final")


def test_weights_can_be_added_later(source, given, tmp_path):
    few = {name: given[name] for name in ("final", "data", "original")}
    adopt(tmp_path / "mine", **few)
    run = adopt(tmp_path / "mine", **few, reference=given["reference"])
    assert run.checkpoints() == ["final", "reference"]
    assert Run.open(tmp_path / "mine").checkpoints() == ["final", "reference"]


def test_checkpoints_that_did_not_memorise_are_refused_by_methods(source, given, tmp_path):
    swapped = {**given, "final": given["reference"], "reference": given["final"]}
    run = adopt(tmp_path / "mine", **swapped)
    with pytest.raises(TrainingError, match=r"predict [\d.]+% of the noisy labels"):
        localise(run, ["swapping"])


def test_unequal_checkpoints_are_refused(given, tiny_model, tmp_path):
    def other(family, depth, labels):
        loaded = load_model(str(tiny_model(family, depth=depth)), labels)
        folder = tmp_path / f"{family}-{depth}-{len(labels)}"
        loaded.model.save_pretrained(folder)
        loaded.tokenizer.save_pretrained(folder)
        return folder

    two = ["label 0", "label 1"]
    for reference, sentence in (
        (other("opt", 2, two), "depth 3.*2"),
        (other("opt", 3, [*two, "c"]), "num_labels 2.*3"),
        (other("bert", 3, two), "vocab_size|model_type"),
    ):
        with pytest.raises(ModelError, match=sentence):
            adopt(tmp_path / "mine", **{**given, "reference": reference})
    assert not (tmp_path / "mine").exists()


@pytest.fixture
def renamed(source, tmp_path):
    """`renamed("reference", names)`: a checkpoint that calls its labels otherwise."""

    def make(kind, names):
        folder = shutil.copytree(source.path(kind), tmp_path / f"renamed-{kind}")
        config = json.loads((folder / "config.json").read_text())
        config["id2label"] = dict(enumerate(names))
        config["label2id"] = {name: i for i, name in enumerate(names)}
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    return make


@pytest.mark.parametrize("kind", ["reference", "memorised", "frozen"])
@pytest.mark.parametrize(
    ("names", "way_out"),
    [
        (("label 1", "label 0"), "train both with the labels in one order"),
        (("negative", "positive"), "if these mean the same.*`id2label`"),
    ],
)
def test_other_labels_or_another_order_are_refused(renamed, given, tmp_path, kind, names, way_out):
    sentence = f"Label 0 is 'label 0' for the final weights and '{names[0]}' for the {kind} ones"
    with pytest.raises(ModelError, match=f"{sentence}: {way_out}"):
        adopt(tmp_path / "mine", **{**given, kind: renamed(kind, names)})


def test_labels_without_names_are_not_compared(renamed, given, tmp_path):
    unnamed = {**given, "reference": renamed("reference", ("LABEL_0", "LABEL_1"))}
    found, expected = (
        localise(adopt(tmp_path / name, **places), ["swapping"], device="cpu")["swapping"]
        for name, places in (("unnamed", unnamed), ("named", given))
    )
    assert np.array_equal(found.weights, expected.weights)


def test_labels_that_the_model_does_not_know_are_refused(given, tmp_path):
    path = tmp_path / "x.jsonl"
    rows = [
        {"text": "red", "label": "joy", "noisy": True},
        {"text": "sky", "label": "label 1", "noisy": False},
    ]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    del given["original"]
    with pytest.raises(DataError, match=r"does not know \(joy\); it knows label 0, label 1"):
        adopt(tmp_path / "mine", **{**given, "data": path}, flag="noisy")


def test_a_file_without_a_noisy_example_is_refused(given, tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("text,label,noisy\nred,0,false\nsky,1,false\n", encoding="utf-8")
    del given["original"]
    with pytest.raises(DataError, match="none"):
        adopt(tmp_path / "mine", **{**given, "data": path}, flag="noisy")
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize("columns", [{}, {"flag": "flag", "original": "original"}])
def test_which_labels_are_wrong_is_said_in_one_of_two_ways(given, tmp_path, columns):
    del given["original"]
    with pytest.raises(DataError, match=r"in one way .*--original COLUMN .*--flag COLUMN"):
        adopt(tmp_path / "mine", **given, **columns)


def test_nan_weights_are_refused(source, given, tmp_path):
    loaded = source.load("final")
    with torch.no_grad():
        next(iter(loaded.stack.blocks[1].parameters())).fill_(float("nan"))
    loaded.model.save_pretrained(tmp_path / "broken")
    loaded.tokenizer.save_pretrained(tmp_path / "broken")
    with pytest.raises(ModelError, match="NaN"):
        adopt(tmp_path / "mine", **{**given, "final": tmp_path / "broken"})


def test_a_damaged_adapter_is_refused(given, tmp_path):
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"adapter_config\.json is damaged"):
        adopt(tmp_path / "mine", **{**given, "final": folder, "pretrained": None})


def test_a_folder_that_is_no_checkpoint_is_named(given, tmp_path):
    with pytest.raises(ModelError, match="nowhere"):
        adopt(tmp_path / "mine", **{**given, "final": tmp_path / "nowhere"})


def test_a_reference_that_learnt_nothing_is_noticed(source, given, tmp_path):
    good = adopt(tmp_path / "good", **given)
    assert good.reference_accuracy == good.status.reference > 0.9
    told = []
    weak = load_model(source.spec.model, source.task.label_names, seed=9)
    weak.model.save_pretrained(tmp_path / "weak")
    weak.tokenizer.save_pretrained(tmp_path / "weak")
    run = adopt(tmp_path / "mine", **{**given, "reference": tmp_path / "weak"})
    assert run.reference_accuracy < 0.9
    with telling(told.append):
        localise(run, ["swapping"], device="cpu")
    assert any("reference weights predict only" in sentence for sentence in told)
    results = memloc.load_results(tmp_path / "mine")
    assert results.runs["reference_accuracy"].iloc[0] == run.reference_accuracy
    assert results.memorised("mcog").empty
    assert not memloc.load_results(tmp_path / "good").runs.empty


def test_pretrained_weights_that_changed_are_not_used(source, given, tmp_path):
    base = shutil.copytree(source.spec.model, tmp_path / "base")
    run = adopt(tmp_path / "mine", **{**given, "pretrained": base})
    run.load("pretrained")
    other = load_model(str(base), source.task.label_names)
    with torch.no_grad():
        next(other.stack.blocks[0].parameters()).add_(1)
    getattr(other.model, other.model.base_model_prefix).save_pretrained(base)
    changed = Run.open(run.folder)
    with pytest.raises(StoreError, match=r"pretrained weights at .*base have changed"):
        changed.load("pretrained")
    with pytest.raises(StoreError, match=r"pre-trained weights of .*base have changed"):
        changed.load_pretrained(1)


def test_another_tokenizer_is_another_checkpoint(source, given, tmp_path):
    final = shutil.copytree(given["final"], tmp_path / "final")
    adopt(tmp_path / "mine", **{**given, "final": final})
    path = final / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_max_length": 7}))
    with pytest.raises(StoreError, match="other final weights"):
        adopt(tmp_path / "mine", **{**given, "final": final})


def test_held_out_labels_may_be_numbers(source, given, tmp_path):
    unseen = tmp_path / "unseen.csv"
    unseen.write_text("text,original\nred dog,0\nblue cat,1\n", encoding="utf-8")
    run = adopt(tmp_path / "mine", **{**given, "held_out": unseen})
    assert run.task.validation.labels.tolist() == [0, 1]


def test_no_more_than_two_models_are_held_at_once(given, tmp_path, monkeypatch):
    """Neither while five are adopted, nor while layers are exchanged."""
    plain, models, held = load.load_model, [], []

    def watching(*given, **named):
        found = plain(*given, **named)
        models.append(weakref.ref(found.model))
        held.append(sum(model() is not None for model in models))
        return found

    for module in (load, checkpoints):
        monkeypatch.setattr(module, "load_model", watching)
    run = adopt(tmp_path / "mine", **given)
    assert (len(held), max(held)) == (5, 2)
    held.clear()
    few = {"swapping.clean_examples": 1, "shares.clean_examples": 1}
    localise(run, ["swapping", "shares"], settings=few)
    assert (len(held), max(held)) == (4, 2)


def test_each_checkpoint_is_loaded_and_hashed_once_by_adopt_and_by_localise(
    given, tmp_path, monkeypatch
):
    loaded, read, hashed = [], [], []
    plain = checkpoints.load_checkpoint, identity._read, load.hash_weights
    for module in (checkpoints, adopting):
        monkeypatch.setattr(
            module,
            "load_checkpoint",
            lambda at, *a, **k: loaded.append(at) or plain[0](at, *a, **k),
        )
    monkeypatch.setattr(identity, "_read", lambda path: read.append(path) or plain[1](path))
    monkeypatch.setattr(load, "hash_weights", lambda named: hashed.append(1) or plain[2](named))
    monkeypatch.setattr(identity, "SETTLED", 0.0)
    identity._read_once.cache_clear()
    run = adopt(tmp_path / "mine", **given)
    assert len(loaded) == len({*loaded}) == 4
    assert len(hashed) == 5  # the pre-trained weights, too
    large = [path for path in read if path.suffix == ".safetensors"]
    assert len(large) == len({*large}) == 5
    for kept in (loaded, read, hashed):
        kept.clear()
    identity._read_once.cache_clear()  # as in another command
    localise(run.folder, ["shares"], settings={"shares.clean_examples": 1})
    large = sorted(path.parent.name for path in read if path.suffix == ".safetensors")
    assert sorted(path.name for path in loaded) == large == ["final", "reference"]
    assert not hashed
