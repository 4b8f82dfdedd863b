"""Repairs: what is put in, what is written, and that nothing hidden is called removed."""

import json
import os
import shutil
import signal
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from fixtures.forked import ended, forked
from memloc.errors import SettingsError, StoreError
from memloc.labels.repair import (
    BEFORE,
    HEAD,
    LAYERS,
    REFERENCE,
    RETRAINED,
    YARDSTICK,
    Repaired,
    RepairSettings,
    Workshop,
    _smallest,
    geometric_mean,
    relative,
    relearnt_at,
    repair,
)
from memloc.methods.apply import localise
from memloc.methods.mixtures import final_with
from memloc.model.parts import find_parts
from memloc.store.identity import hash_weights

QUICK = {"epochs": 1, "relearn_epochs": 6, "orders": 2, "yardsticks": 2}


@pytest.fixture
def workshop(memorised_run):
    return Workshop(memorised_run, RepairSettings(**QUICK), (1,))


def states(model):
    return {name: values.clone() for name, values in model.model.state_dict().items()}


def test_the_smallest_set_is_that_of_exact_shares(memorised_run):
    scores = localise(memorised_run, ["shares"])["shares"]
    sets = scores["sets"]
    found = _smallest(scores)
    assert ", ".join(str(layer + 1) for layer in found) in set(sets["layers"])
    with pytest.raises(SettingsError, match="No set of layers"):
        _smallest({"sets": sets.head(0)})


def test_only_the_chosen_layers_come_from_the_reference(workshop):
    made, final, reference = (
        states(final_with(workshop.run, (1,), "reference")),
        states(workshop.run.load("final")),
        states(workshop.run.load("reference")),
    )
    for name, values in made.items():
        source = reference if ".layers.1." in name else final
        assert torch.equal(values, source[name]), name


def test_the_head_alone_leaves_the_blocks(workshop):
    made = workshop._with_head()
    final, reference = (
        workshop.run.load("final"),
        dict(workshop.run.load("reference").model.named_parameters()),
    )
    after = find_parts(made.stack).after
    for (name, values), (_, own) in zip(
        made.model.named_parameters(), final.model.named_parameters(), strict=True
    ):
        assert torch.equal(values, reference[name] if name in after else own), name


def test_retraining_starts_from_pretrained_layers_and_changes_no_other_block(workshop):
    made, final = states(workshop.ways[RETRAINED][1]()), states(workshop.run.load("final"))
    start = states(workshop.run.load("pretrained"))
    changed = {name for name in made if not torch.equal(made[name], final[name])}
    assert any(".layers.1." in name for name in changed)
    assert not [name for name in changed if ".layers.0." in name or ".layers.2." in name]
    assert not all(torch.equal(made[n], start[n]) for n in made if ".layers.1." in n)


def test_learning_again_leaves_the_model_as_it_was(workshop):
    model = workshop.run.load("reference")
    before = hash_weights(model.model.named_parameters())
    curve = workshop._relearnt("x", model)
    assert hash_weights(model.model.named_parameters()) == before
    assert set(curve["order"]) == {1, 2}
    alone = workshop._relearn([workshop.run.load("reference")], [2])[0]["predicted"].to_numpy()
    together = curve.loc[curve["order"] == 2, "predicted"].to_numpy()[: len(alone)]
    np.testing.assert_allclose(alone[: len(together)], together, atol=1 / 12)  # float noise
    assert curve["update"].tolist()[:4] == [0, 1, 2, 3]  # measured after every update
    assert curve.groupby("order")["predicted"].last().min() > 0.4


def test_updates_until_a_share_is_predicted_by_hand():
    curves = pd.DataFrame(
        {
            "order": [1, 1, 1, 2, 2, 3, 3],
            "update": [0, 4, 8, 0, 4, 0, 4],
            "predicted": [0.0, 0.4, 0.8, 0.6, 0.9, 0.0, 0.2],
        }
    )
    np.testing.assert_allclose(relearnt_at(curves, 0.5), [5.0, 0.0, 4.0])


def made_up(updates=(19, 20, 21), **relearning):
    """Repairs with these (noisy labels predicted, relative updates), and updates of yardsticks."""
    names = [f"{YARDSTICK} {k}" for k in range(1, len(updates) + 1)]
    never = geometric_mean(np.array(updates, float))
    rows = [
        {"way": way, "noisy_predicted": predicted, "relearnt_updates": share * never}
        for way, (predicted, share) in relearning.items()
    ]
    rows += [
        {"way": way, "noisy_predicted": 0.1, "relearnt_updates": float(n)}
        for way, n in zip(names, updates, strict=True)
    ]
    curves = {
        "way": np.repeat(names, 4),
        "order": 1,
        "update": np.ravel([[0, 1, n - 1, n] for n in updates]),
        "predicted": np.tile([0.0, 0.0, 0.0, 0.8], len(updates)),
    }
    table = pd.DataFrame(rows).assign(layers="layers 1", clean_accuracy=1.0, test_accuracy=np.nan)
    settings = RepairSettings(yardsticks=len(updates))
    return Repaired(None, relative(table), pd.DataFrame(curves), LAYERS, settings, level=0.8)


@pytest.mark.parametrize(
    ("scores", "verdict"),
    [
        ((0.1, 0.9), "removed"),
        ((0.1, 0.6), "hidden"),
        ((0.1, 0.0), "hidden"),
        ((0.5, 1.0), "still there"),
    ],
)
def test_nothing_is_called_removed_that_is_only_hidden(scores, verdict):
    updates = [18, 19, 20, 20, 21, 22]
    found = made_up(updates, **{BEFORE: (1.0, 0.0), REFERENCE: (0.1, 1.0), LAYERS: scores})
    margin = 2.5706 * np.std(np.log(updates), ddof=1) * np.sqrt(1 + 1 / 6)
    assert found.band == pytest.approx((np.exp(-margin), np.exp(margin)), rel=1e-4)
    assert found.verdict == verdict
    said = " ".join(found.sentences())
    assert ("are removed" in said) == (verdict == "removed")
    assert "--held-out" in said  # there are no test examples
    assert "nan" not in said


def test_repairs_that_removed_the_labels_are_named_with_their_own_layers():
    found = made_up(**{BEFORE: (1, 0.0), REFERENCE: (0, 1.0), LAYERS: (0, 0.6), RETRAINED: (0, 1)})
    layers = ["none", "all layers", "layer 2", "layers 1, 3", *["all layers"] * 3]
    said = replace(found, table=found.table.assign(layers=layers)).sentences()
    assert said[0].startswith("Reference's layers (layer 2): ")
    assert (
        said[2]
        == "Of all repairs that were compared, retrained layers (layers 1, 3) removed the labels."
    )


def test_the_band_is_no_narrower_than_from_one_measurement_to_the_next():
    found = made_up((20, 20, 20), **{REFERENCE: (0.1, 1.0)})
    assert found.band == pytest.approx((20 / 21, 21 / 20))


def test_a_model_trained_without_the_labels_is_in_the_band_as_often_as_it_says():
    """Trainings differ more than the orders in which one of them learns the labels again."""
    rng, below = np.random.default_rng(0), 0
    for _ in range(400):
        trainings = rng.lognormal(np.log(40), 0.15, 9)
        *yardsticks, another = [
            geometric_mean(rng.lognormal(np.log(own), 0.05, 3)) for own in trainings
        ]
        found = made_up(yardsticks, **{LAYERS: (0.1, 1.0)})
        below += another / geometric_mean(np.array(yardsticks)) < found.band[0]
    assert 3 <= below <= 20  # 2.5 % on this side


def test_what_models_without_the_labels_predict_by_chance_is_not_still_there():
    found = made_up(**{BEFORE: (1.0, 0.0), LAYERS: (0.35, 1.0)})
    assert found.verdict == "still there"
    guessed = found.table["noisy_predicted"].mask(found.table["way"].str.startswith(YARDSTICK), 0.3)
    assert replace(found, table=found.table.assign(noisy_predicted=guessed)).verdict == "removed"


def test_slow_learning_of_a_model_that_forgot_the_clean_examples_is_no_sign_of_removal():
    found = made_up(**{BEFORE: (1.0, 0.0), LAYERS: (0.1, 1.1)})
    assert found.verdict == "removed"
    accuracies = found.table["clean_accuracy"].mask(found.table["way"] == LAYERS, 0.8)
    found = replace(found, table=found.table.assign(clean_accuracy=accuracies))
    assert found.verdict == "cannot tell"
    assert "no longer knows the clean examples" in found.sentences()[0]


def test_updates_that_vary_too_much_decide_nothing():
    labels = {BEFORE: (1.0, 0.0), REFERENCE: (0.1, 1.0), LAYERS: (0.1, 0.9)}
    found = made_up((10, 20, 30), **labels)
    assert found.verdict == "cannot tell"
    assert "differ too much; more of them (--set yardsticks=6)" in found.sentences()[0]


def test_yardsticks_learn_from_the_clean_examples_alone(memorised_run, monkeypatch):
    learnt = {}

    def look(models, texts, rows, labels, how, *_):
        learnt["rows"], learnt["seeds"] = rows, how[1]

    monkeypatch.setattr("memloc.labels.repair.fit", look)
    workshop = Workshop(memorised_run, RepairSettings(**QUICK))
    models = workshop.without_labels([1, 2, 3])
    assert (learnt["rows"] == memorised_run.clean_rows).all()
    assert learnt["rows"].shape[0] == len(models) == len(set(learnt["seeds"])) == 3
    start = memorised_run.load("pretrained").stack.blocks.state_dict()
    own = [model.stack.blocks.state_dict() for model in models]
    assert all(torch.equal(start[name], each[name]) for each in own for name in start)
    heads = {hash_weights(model.model.named_parameters()) for model in models}
    assert len(heads) == 3  # each from its own seed


@pytest.mark.parametrize(
    ("first", "last", "why"),
    [(0.0, 0.7, "does not learn 80% of them in 30 epochs"), (0.8, 1.0, "80% from the start")],
)
def test_what_the_reference_does_not_learn_in_time_cannot_be_called_removed(first, last, why):
    found = made_up(**{BEFORE: (1.0, 0.0), REFERENCE: (0.1, 1.0), LAYERS: (0.1, 1.0)})
    curves = found.curves.assign(predicted=[first, first, first, last] * 3)
    found = replace(found, curves=curves)
    assert found.verdict == "cannot tell"
    assert "whether they are removed cannot be told: " in found.sentences()[0]
    assert why in found.sentences()[0]


def test_always_saying_the_commonest_label_does_not_count_as_learning_them(workshop):
    labels = workshop.run.noisy.assigned[workshop.run.noisy_rows]
    commonest = np.bincount(labels).max() / len(labels)
    assert workshop.level == pytest.approx((1 + commonest) / 2)
    found = made_up(**{BEFORE: (1.0, 0.0), REFERENCE: (0.1, 1.0), LAYERS: (0.1, 1.0)})
    found = replace(found, level=1.0)
    assert found.verdict == "cannot tell"
    assert "all noisy labels are the same" in found.sentences()[0]


def compare(workshop, most):
    """Compare repairs; after so many of them this process is killed. How many there were, and what
    came."""
    plain, count = Workshop._scores, 0

    def counted(self, *given):
        nonlocal count
        count += 1
        if count > most:
            os.kill(os.getpid(), signal.SIGKILL)
        return {**plain(self, *given), "seconds": 0.0}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Workshop, "_scores", counted)
        table, curves = workshop.compare()
    return count, table.to_dict("list"), curves.to_dict("list")


def test_a_killed_repair_goes_on_with_the_same_result(workshop):
    n, *whole = compare(workshop, 100)
    assert n == len(workshop.ways) + workshop.settings.yardsticks
    shutil.rmtree(workshop.run.work("repair"))
    again = Workshop(workshop.run, workshop.settings, workshop.layers)
    assert ended(forked(lambda: compare(again, 3))) == -signal.SIGKILL
    assert compare(again, 100) == (n - 3, *whole)
    assert compare(again, 0) == (0, *whole)
    assert Workshop(workshop.run, workshop.settings, (0,)).decided_by != again.decided_by


def test_a_deep_model_is_repaired_by_groups_of_layers(memorised_run, tmp_path, monkeypatch):
    monkeypatch.setattr("memloc.labels.repair.MOST_EXACT", 1)
    asked = {}

    def look(run, methods, settings):
        asked.update(settings)
        raise SettingsError("that is enough")

    monkeypatch.setattr("memloc.labels.repair.localise", look)
    with pytest.raises(SettingsError, match="enough"):
        repair(memorised_run, tmp_path / "repaired")
    assert asked == {"shares.subsets": "groups"}


@pytest.mark.parametrize("way", ["layers", "retrain"])
def test_a_run_is_repaired_into_an_ordinary_checkpoint(memorised_run, tmp_path, way):
    found = repair(memorised_run, tmp_path / "repaired", settings={**QUICK, "way": way})
    table = found.table.set_index("way")
    assert found.chosen == {"layers": LAYERS, "retrain": RETRAINED}[way]
    assert table.loc[BEFORE, "noisy_predicted"] >= 0.95
    assert table.loc[LAYERS, "noisy_predicted"] < table.loc[BEFORE, "noisy_predicted"]
    yardsticks = table.loc[[f"{YARDSTICK} 1", f"{YARDSTICK} 2"]]
    assert yardsticks["relearning"].prod() == pytest.approx(1)
    assert (yardsticks["clean_accuracy"] > 0.9).all()
    assert (yardsticks["verdict"] == YARDSTICK).all()
    assert table.loc[found.chosen, "verdict"] == found.verdict
    assert table.loc[BEFORE, "relearnt_updates"] == 1
    assert found.judge(HEAD) != "removed" or table.loc[HEAD, "relearning"] >= found.band[0]
    assert record_of(found)["level"] == found.level
    assert (table.loc[[LAYERS, HEAD], "block_passes"] == 0).all()
    assert table.loc[RETRAINED, "block_passes"] > 0
    folder = tmp_path / "repaired"
    assert record_of(found)["verdict"] == found.verdict
    assert (folder / "relearning.svg").read_text().startswith("<svg")
    loaded = AutoModelForSequenceClassification.from_pretrained(folder, local_files_only=True)
    if way == "layers":
        layers = found.row(LAYERS)["layers"].partition(" ")[2]
        layers = [int(layer) - 1 for layer in layers.split(", ")]
        expected = final_with(memorised_run, layers, "reference")
        assert hash_weights(loaded.named_parameters()) == hash_weights(
            expected.model.named_parameters()
        )


def record_of(found):
    return json.loads((found.folder / "repair.json").read_text())


def test_what_cannot_be_repaired_is_refused_at_once(memorised_run, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StoreError, match="is a file: name a folder"):
        repair(memorised_run, tmp_path / "file")
    settings = memorised_run.settings.replace({"finetune.adapter": "lora"})
    with pytest.raises(SettingsError, match="was trained with an adapter"):
        repair(memorised_run.note(settings=settings), tmp_path / "out")


def test_a_folder_of_something_else_is_not_replaced(memorised_run, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("all of it")
    with pytest.raises(StoreError, match="not written by memloc repair"):
        repair(memorised_run, tmp_path / "thesis")
    assert (tmp_path / "thesis" / "chapter.tex").is_file()
