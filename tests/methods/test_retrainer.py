"""Windows retrained as by a plain training loop, and one by one in any order."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from fixtures.models import FAMILIES, PAPER_FAMILIES, SPECIAL, each_once
from fixtures.retraining import (
    METHOD,
    UPDATES,
    assert_equal_weights,
    in_long_texts,
    retrainable,
    trained,
    trained_logits,
    weights_of,
)
from fixtures.runs import DEPTH, make_classifier, make_data, plainly_retrained
from memloc.engine import prefix
from memloc.engine.fit import ONE_BY_ONE
from memloc.methods import retrainer
from memloc.methods.retrainer import prepared, retrain_windows, window_errors
from memloc.methods.retraining import Retraining
from memloc.model.parts import find_parts
from memloc.model.predict import to_batch
from memloc.store import paths


@pytest.mark.parametrize(("family", "over"), each_once([*FAMILIES, *SPECIAL], ["trained", "all"]))
def test_a_window_learns_as_by_the_plain_loop(tmp_path, family, over):
    changes = {"finetune.clip_over": over, "finetune.clip": 1e-6}
    run, window = retrainable(tmp_path, family, changes=changes), range(1, 2)
    setup = prepared(run, METHOD.replace({"trains_pooler": False}))
    before = weights_of(setup.final.stack)
    found = trained_logits(setup, window)
    assert_equal_weights(weights_of(setup.final.stack), before)
    expected = plainly_retrained(setup, setup.texts, window, np.arange(24))
    assert len(setup.train) == 14
    assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()
    assert torch.equal(found.argmax(-1), expected.argmax(-1))


def test_frozen_blocks_neither_change_nor_drop_anything(tmp_path, monkeypatch):
    run = retrainable(tmp_path, "opt", dropout=0.5)
    seen = []
    setup = prepared(run, METHOD)
    before, run_block = weights_of(setup.final.stack), type(setup.final.stack).run

    def watched(stack, index, state, call):
        block = stack.blocks[index]
        learns = {p.requires_grad for p in block.parameters()}
        if torch.is_grad_enabled():
            seen.append((index, block.training, learns))
        return run_block(stack, index, state, call)

    monkeypatch.setattr(type(setup.final.stack), "run", watched)
    ((found,),) = trained(setup, [range(1, 2)])
    now, after = weights_of(found.stack), {*find_parts(found.stack).after}
    changed = {name for name, value in now.items() if not torch.equal(value, before[name])}
    inside = {n for n in now if ".layers.1." in n}
    assert changed - inside <= after
    assert changed & inside
    assert changed & after
    assert_equal_weights(weights_of(setup.final.stack), before)
    # Nothing below the window runs; what is above runs without dropout and weight gradients, the
    # last block twice: up to its attention, and at the readout position.
    above = (2, False, {False})
    trained_in = 3 * UPDATES
    assert seen[-trained_in:] == [(1, True, {True}), above, above] * UPDATES
    # How the model reads its last block is looked up before, once and without dropout.
    assert not any(in_training for _, in_training, _ in seen[:-trained_in])


def test_dropout_everywhere_is_another_training(tmp_path):
    found = []
    run = retrainable(tmp_path, "bert", dropout=0.3)
    for everywhere in (False, True):
        setup = prepared(run, METHOD.replace({"frozen_dropout": everywhere}))
        found.append([trained_logits(setup, range(1, 2)) for _ in range(2)])
    for again in found:
        assert torch.equal(again[0], again[1])  # dropout is decided by the seed
    assert not torch.allclose(found[0][0], found[1][0], rtol=1e-3)


@pytest.mark.parametrize("family", ["bert", "opt"])
def test_counting_frozen_gradients_keeps_frozen_parts_without_dropout(
    tmp_path, monkeypatch, family
):
    """Nothing is clipped at so high a norm, so the way through all layers must change nothing."""
    found = []
    # A packed batch has another shape, so other units of the window would be dropped.
    monkeypatch.setattr(prefix, "can_pack", lambda _: False)
    for over in ("trained", "all"):
        changes = {"finetune.clip_over": over, "finetune.clip": 1e9}
        run = retrainable(tmp_path, family, dropout=0.3, changes=changes)
        found.append(trained_logits(prepared(run, METHOD), range(1, 2)))
    assert (found[0] - found[1]).abs().max() <= 1e-3 * found[1].abs().max()


def test_the_pooler_learns_unless_it_is_frozen(tmp_path):
    for learns in (True, False):
        setup = prepared(retrainable(tmp_path), METHOD.replace({"trains_pooler": learns}))
        before = weights_of(setup.final.stack)
        ((found,),) = trained(setup, [range(1, 2)])
        now = weights_of(found.stack)
        changed = {name for name, value in now.items() if not torch.equal(value, before[name])}
        assert ("bert.pooler.dense.weight" in changed) == learns
        assert "classifier.weight" in changed
        assert_equal_weights(weights_of(setup.final.stack), before)


def test_training_that_moves_nothing_leaves_pretrained_blocks_and_the_final_rest(tmp_path):
    run, rows = retrainable(tmp_path, "gpt_neox"), np.arange(24)
    final, pretrained = run.load("final"), run.load("pretrained")
    for block, before in zip(final.stack.blocks, pretrained.stack.blocks, strict=True):
        block.load_state_dict(before.state_dict())
    with torch.no_grad():
        batch = to_batch(run.encode(final), rows, final.stack.device)
        expected = final.stack.logits(batch)
    setup = prepared(run, METHOD.replace({"learning_rate": 1e-30}))
    found = trained_logits(setup, range(DEPTH))
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


def assert_same_outcomes(one, other):
    assert one.keys() == other.keys()
    for window, outcome in one.items():
        np.testing.assert_array_equal(outcome.noisy_wrong, other[window].noisy_wrong)
        np.testing.assert_array_equal(outcome.clean_wrong, other[window].clean_wrong)


def test_windows_run_in_any_order_and_are_kept(tmp_path):
    run = retrainable(tmp_path, "gpt_neo", dropout=0.2)
    every = METHOD.windows(DEPTH)
    forwards = retrain_windows(prepared(run, METHOD), every)
    shutil.rmtree(run.work("retraining"))
    backwards = window_errors(prepared(run, METHOD), every[::-1])
    assert_same_outcomes(forwards, backwards)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retrainer, "retrain_windows", lambda *_: pytest.fail("again"))
        assert_same_outcomes(window_errors(prepared(run, METHOD), every), forwards)


@pytest.mark.parametrize(("family", "number"), each_once(PAPER_FAMILIES, [3, 1]))
def test_windows_are_retrained_in_one_pass_as_if_each_were_alone(
    tmp_path, monkeypatch, family, number
):
    """Dropout, too, is in each one's own layers alone; in so many long texts."""
    monkeypatch.setattr(prefix, "fastest_layout", in_long_texts(number))
    windows = [range(DEPTH), range(2), range(1)]
    setup = prepared(retrainable(tmp_path, family, dropout=0.3), METHOD)
    (at_once,) = trained(setup, windows[::-1])
    assert [one.name for one in at_once] == ["1-3", "1-2", "1-1"]
    monkeypatch.setenv(ONE_BY_ONE, "1")
    alone = [one for (one,) in trained(setup, windows)]
    for k in range(3):
        one, other, next_one = (
            torch.from_numpy(each.logits) for each in (at_once[k], alone[k], alone[(k + 1) % 3])
        )
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)
        assert not torch.allclose(other, next_one, rtol=1e-1, atol=1e-1)


def test_a_pass_of_which_a_window_is_missing_is_made_again(tmp_path, monkeypatch):
    """So that what comes out never depends on when it was interrupted."""
    run, every = retrainable(tmp_path, "gpt_neo", dropout=0.2), METHOD.windows(DEPTH)
    setup = prepared(run, METHOD)
    window_errors(setup, every)
    record = paths.kept_windows(run.work("retraining"), "1-3")
    before = record.read_bytes()
    record.unlink()
    ran, original = [], retrainer.retrain_windows
    monkeypatch.setattr(
        retrainer, "retrain_windows", lambda *args: ran.append(args[1]) or original(*args)
    )
    window_errors(setup, every)
    assert ran == [[range(1), range(2), range(3)]]
    assert record.read_bytes() == before


def made_again(monkeypatch, run, method=METHOD):
    """The windows of all layers that are retrained, not read."""
    ran, original = [], retrainer.retrain_windows
    with monkeypatch.context() as patch:
        patch.setattr(
            retrainer, "retrain_windows", lambda *args: ran.extend(args[1]) or original(*args)
        )
        window_errors(prepared(run, method), [range(DEPTH)])
    return ran


@pytest.mark.parametrize("change", ["epochs", "weights", "labels", "schedule", "version"])
def test_windows_of_other_settings_weights_or_data_are_not_used(tmp_path, monkeypatch, change):
    run = retrainable(tmp_path)
    assert made_again(monkeypatch, run) == [range(DEPTH)]
    assert made_again(monkeypatch, run) == []
    method, other = METHOD, run
    if change == "epochs":
        method = METHOD.replace({"epochs": 1})
    elif change == "weights":
        loaders = {**run.loaders, "pretrained": lambda: make_classifier(seed=9)}
        other = replace(run, loaders=loaders)
    elif change == "version":
        monkeypatch.setattr(Retraining, "version", Retraining.version + 1)
    else:
        changes = {"finetune.warmup": 0.5} if change == "schedule" else {}
        data = make_data(seed=3) if change == "labels" else None
        other = retrainable(tmp_path, data=data, changes=changes)
        shutil.copytree(run.work("retraining"), other.work("retraining"))
    assert made_again(monkeypatch, other, method) == [range(DEPTH)]


@pytest.mark.parametrize("same", [{"normalise": True}, {"widths": (1,)}])
def test_settings_that_decide_no_window_redo_none(tmp_path, monkeypatch, same):
    run = retrainable(tmp_path)
    made_again(monkeypatch, run)
    assert made_again(monkeypatch, run, METHOD.replace(same)) == []


def test_held_out_examples_are_clean_and_not_trained_on(tmp_path):
    run = retrainable(tmp_path)
    setup = prepared(run, METHOD)
    assert not set(setup.train) & set(setup.held_out)
    assert set(setup.train) | set(setup.held_out) == set(run.clean_rows)
    assert len(setup.held_out) == len(setup.noisy) == 5
