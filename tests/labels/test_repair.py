"""Repairs: what is put in, what is written, and that nothing hidden is called removed."""

import json
import os
import shutil
import signal

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from fixtures.forked import ended, forked
from fixtures.runs import altered
from memloc.errors import SettingsError, StoreError
from memloc.labels.repair import (
    Workshop,
    _leading,
    _smallest,
    relearnt_at,
    repair,
)
from memloc.labels.repaired import (
    ASCENT,
    BEFORE,
    HEAD,
    LAYERS,
    REFERENCE,
    RETRAINED,
    YARDSTICK,
    RepairSettings,
    figure,
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
    alone = np.array(workshop._relearn(workshop.run.load("reference"), [2])[0])
    at_once = curve.loc[curve["order"] == 2, "predicted"].to_numpy()[: len(alone)]
    np.testing.assert_allclose(alone[: len(at_once)], at_once, atol=1 / 12)  # float noise
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


def test_yardsticks_learn_from_the_clean_examples_alone(memorised_run, monkeypatch):
    learnt = []
    monkeypatch.setattr(
        "memloc.labels.repair.fit", lambda learners, *_, **_more: [learnt.extend(learners)]
    )
    workshop = Workshop(memorised_run, RepairSettings(**QUICK))
    list(workshop.without_labels([f"{YARDSTICK} {number}" for number in (1, 2, 3)]))
    for learner in learnt:
        assert [part.rows.tolist() for part in learner.parts] == [memorised_run.clean_rows.tolist()]
    assert len({learner.seed for learner in learnt}) == 3
    models = [learner.start() for learner in learnt]
    start = memorised_run.load("pretrained").stack.blocks.state_dict()
    own = [model.stack.blocks.state_dict() for model in models]
    assert all(torch.equal(start[name], each[name]) for each in own for name in start)
    heads = {hash_weights(model.model.named_parameters()) for model in models}
    assert len(heads) == 3  # each from its own seed


def test_the_reference_of_texts_could_be_a_yardstick(texts_run, monkeypatch):
    """With the seed of the run, a yardstick is the reference to the bit."""
    monkeypatch.setattr("memloc.labels.repair.number", lambda *_: texts_run.seed)
    workshop = Workshop(texts_run, RepairSettings())
    ((yardstick,),) = workshop.without_labels([f"{YARDSTICK} 1"])
    reference = dict(texts_run.load("reference").model.named_parameters())
    for name, parameter in yardstick.model.model.named_parameters():
        assert torch.equal(parameter, reference[name]), name


def test_always_saying_the_commonest_label_does_not_count_as_learning_them(workshop):
    labels = workshop.run.noisy.assigned[workshop.run.noisy_rows]
    commonest = np.bincount(labels).max() / len(labels)
    assert workshop.level == pytest.approx((1 + commonest) / 2)


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
    assert Workshop(workshop.run, workshop.settings, (0,)).key != again.key


def test_the_layers_of_a_deep_model_are_those_with_nine_tenths_of_the_shares():
    assert _leading(np.array([0.1, 0.5, -0.3, 0.35, 0.05])) == (0, 1, 3)
    assert _leading(np.array([0.0, 0.95, 0.05])) == (1,)


def test_a_deep_model_is_repaired_without_all_subsets(memorised_run, tmp_path, monkeypatch):
    monkeypatch.setattr("memloc.methods.shares.MOST_EXACT", 1)
    monkeypatch.setattr(Workshop, "compare", lambda workshop: pytest.fail(str(workshop.layers)))
    with pytest.raises(pytest.fail.Exception, match=r"\(\d"):
        repair(memorised_run, tmp_path / "repaired")


def test_memorised_texts_are_repaired_and_compared_with_gradient_ascent(texts_run, tmp_path):
    found = repair(texts_run, tmp_path / "repaired", settings={**QUICK, "epochs": 4})
    table = found.table.set_index("way")
    assert table.loc[BEFORE, "noisy_predicted"] == 1
    assert table.loc[[REFERENCE, f"{YARDSTICK} 1"], "noisy_predicted"].tolist() == [0, 0]
    assert table.loc[LAYERS, "noisy_predicted"] < 0.5
    assert table.loc[ASCENT, "noisy_predicted"] <= found.settings.gone
    assert table.loc[ASCENT, "perplexity"] > 1.5 * table.loc[BEFORE, "perplexity"]
    assert table.loc[BEFORE, "relearnt_updates"] == 1
    said = " ".join(found.sentences())
    assert "of the memorised texts are recalled (100% before)" in said
    assert "label" not in said + json.dumps(figure(found))


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
        repair(altered(memorised_run, settings=settings), tmp_path / "out")


def test_a_folder_of_something_else_is_not_replaced(memorised_run, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("all of it")
    with pytest.raises(StoreError, match="not written by memloc repair"):
        repair(memorised_run, tmp_path / "thesis")
    assert (tmp_path / "thesis" / "chapter.tex").is_file()
