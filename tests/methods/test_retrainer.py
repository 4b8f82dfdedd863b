"""Windows retrained beside a plain training loop, and one by one in any order."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from fixtures.models import FAMILIES, PAPER_FAMILIES, SPECIAL
from fixtures.retraining import (
    METHOD,
    UPDATES,
    assert_equal_weights,
    in_long_texts,
    retrainable,
    trained_logits,
    weights_of,
)
from fixtures.runs import DEPTH, make_classifier, make_data, plainly_retrained
from memloc.engine.stacked import Stacked
from memloc.methods import prefix, retrainer
from memloc.methods.prefix import Plain, Prefix
from memloc.methods.retrainer import (
    outcomes_of,
    prepared,
    retrain_windows,
    stacks_of,
)
from memloc.methods.retraining import Retraining
from memloc.model.predict import evaluating, to_batch
from memloc.store import paths


@pytest.mark.parametrize("over", ["trained", "all"])
@pytest.mark.parametrize("family", [*FAMILIES, *SPECIAL])
def test_a_window_learns_as_by_the_plain_loop(tmp_path, family, over):
    changes = {"finetune.clip_over": over, "finetune.clip": 1e-6}
    run, window, rows = retrainable(tmp_path, family, changes=changes), range(1, 2), np.arange(24)
    with prepared(run, METHOD.replace({"trains_pooler": False})) as setup:
        before = weights_of(setup.stack)
        found = trained_logits(setup, window, rows)
        assert_equal_weights(weights_of(setup.stack), before)
        encoded = run.encode(run.load("final"))
        expected = plainly_retrained(setup, encoded, window, rows)
    assert len(setup.train) == 14
    assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()
    assert torch.equal(found.argmax(-1), expected.argmax(-1))


def test_frozen_blocks_neither_change_nor_drop_anything(tmp_path, monkeypatch):
    run = retrainable(tmp_path, "opt", dropout=0.5)
    seen = []
    with prepared(run, METHOD) as setup:
        before, run_block = weights_of(setup.stack), type(setup.stack).run

        def watched(stack, index, state, call):
            block = stack.blocks[index]
            learns = {p.requires_grad for p in block.parameters()}
            if torch.is_grad_enabled():
                seen.append((index, block.training, learns))
            return run_block(stack, index, state, call)

        def look(inner, stack, rows):
            now = weights_of(stack)
            changed = {name for name, value in now.items() if not torch.equal(value, before[name])}
            inside = {n for n in now if ".layers.1." in n}
            assert changed - inside <= set(inner.after)
            assert changed & inside
            assert changed & set(inner.after)
            return np.zeros((1, len(rows)), dtype=bool)

        monkeypatch.setattr(type(setup.stack), "run", watched)
        monkeypatch.setattr(retrainer, "_wrong", look)
        retrain_windows(setup, [range(1, 2)])
        assert_equal_weights(weights_of(setup.stack), before)
    # Nothing below the window runs; what is above runs without dropout and weight gradients, the
    # last block twice: up to its attention, and at the readout position.
    above = (2, False, {False})
    assert seen == [(1, True, {True}), above, above] * UPDATES


def test_dropout_everywhere_is_another_training(tmp_path):
    rows, found = np.arange(24), []
    run = retrainable(tmp_path, "bert", dropout=0.3)
    for everywhere in (False, True):
        with prepared(run, METHOD.replace({"frozen_dropout": everywhere})) as setup:
            found.append([trained_logits(setup, range(1, 2), rows) for _ in range(2)])
    for again in found:
        assert torch.equal(again[0], again[1])  # dropout is decided by the seed
    assert not torch.allclose(found[0][0], found[1][0], rtol=1e-3)


@pytest.mark.parametrize("family", ["bert", "opt"])
def test_counting_frozen_gradients_keeps_frozen_parts_without_dropout(
    tmp_path, monkeypatch, family
):
    """Nothing is clipped at so high a norm, so the way through all layers must change nothing."""
    rows, found = np.arange(24), []
    # A packed batch has another shape, so other units of the window would be dropped.
    monkeypatch.setattr(prefix, "can_pack", lambda _: False)
    for over in ("trained", "all"):
        changes = {"finetune.clip_over": over, "finetune.clip": 1e9}
        run = retrainable(tmp_path, family, dropout=0.3, changes=changes)
        with prepared(run, METHOD) as setup:
            assert isinstance(setup.forward, Plain if over == "all" else Prefix)
            found.append(trained_logits(setup, range(1, 2), rows))
    assert (found[0] - found[1]).abs().max() <= 1e-3 * found[1].abs().max()


def test_the_pooler_learns_unless_it_is_frozen(tmp_path, monkeypatch):
    for learns in (True, False):
        method = METHOD.replace({"trains_pooler": learns})
        with prepared(retrainable(tmp_path), method) as setup:
            before, changed = weights_of(setup.stack), set()

            def look(inner, stack, rows, before=before, changed=changed):
                now = weights_of(stack)
                changed.update(n for n, value in now.items() if not torch.equal(value, before[n]))
                return np.zeros((1, len(rows)), dtype=bool)

            with monkeypatch.context() as patch:
                patch.setattr(retrainer, "_wrong", look)
                retrain_windows(setup, [range(1, 2)])
            assert ("bert.pooler.dense.weight" in changed) == learns
            assert "classifier.weight" in changed
            assert_equal_weights(weights_of(setup.stack), before)


def test_training_that_moves_nothing_leaves_pretrained_blocks_and_the_final_rest(tmp_path):
    run, rows = retrainable(tmp_path, "gpt_neox"), np.arange(24)
    final, pretrained = run.load("final"), run.load("pretrained")
    for block, before in zip(final.stack.blocks, pretrained.stack.blocks, strict=True):
        block.load_state_dict(before.state_dict())
    with torch.no_grad():
        batch = to_batch(run.encode(final), rows, final.stack.device)
        expected = final.stack.logits(batch)
    with prepared(run, METHOD.replace({"learning_rate": 1e-30})) as setup:
        found = trained_logits(setup, range(DEPTH), rows)
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_windows_run_in_any_order_and_are_kept(tmp_path):
    run = retrainable(tmp_path, "gpt_neo", dropout=0.2)
    every = METHOD.windows(DEPTH)
    with prepared(run, METHOD) as setup:
        stacks = stacks_of(setup, every)
        forwards = [retrain_windows(setup, stack) for stack in stacks]
    assert sorted(map(len, stacks)) == [1, 2, 3]
    with prepared(run, METHOD) as setup:
        for stack in stacks[::-1]:
            outcomes_of(setup, stack)
    with prepared(run, METHOD) as setup, pytest.MonkeyPatch.context() as patch:
        patch.setattr(retrainer, "retrain_windows", lambda *_: pytest.fail("again"))
        for stack, made in zip(stacks, forwards, strict=True):
            for window, kept in outcomes_of(setup, stack).items():
                np.testing.assert_array_equal(kept.noisy_wrong, made[window].noisy_wrong)
                np.testing.assert_array_equal(kept.clean_wrong, made[window].clean_wrong)


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("family", PAPER_FAMILIES)
def test_windows_are_retrained_as_one_as_if_each_were_alone(tmp_path, monkeypatch, family, number):
    """Dropout, too, is in each one's own layers alone; in so many long texts."""
    monkeypatch.setattr(prefix, "fastest_layout", in_long_texts(number))
    rows, together, alone = np.arange(24), [], []
    stack_of_all = [range(DEPTH), range(2), range(1)]

    def look(found):
        def kept(inner, stack, some):
            members = len(stack.members) if isinstance(stack, Stacked) else 1
            with evaluating(stack.model):
                logits = inner.forward.logits(np.tile(rows, members), stack)
            found.extend(logits.view(members, len(rows), -1))
            return np.zeros((members, len(some)), dtype=bool)

        return kept

    run = retrainable(tmp_path, family, dropout=0.3)
    with prepared(run, METHOD) as setup, pytest.MonkeyPatch.context() as patch:
        patch.setattr(retrainer, "_wrong", look(together))
        retrain_windows(setup, stack_of_all)
        patch.setattr(retrainer, "_wrong", look(alone))
        for window in stack_of_all:
            retrain_windows(setup, [window])
    for k in range(3):
        torch.testing.assert_close(together[k], alone[k], rtol=1e-2, atol=1e-2)
        assert not torch.allclose(alone[k], alone[(k + 1) % 3], rtol=1e-1, atol=1e-1)


def test_windows_that_were_trained_together_are_made_again_together(tmp_path, monkeypatch):
    """So that what comes out never depends on when it was interrupted."""
    run = retrainable(tmp_path, "gpt_neo", dropout=0.2)
    with prepared(run, METHOD) as setup:
        (stack,) = [s for s in stacks_of(setup, METHOD.windows(DEPTH)) if len(s) > 2]
        outcomes_of(setup, stack)
        record = paths.kept_windows(run.work("retraining"), "1-3")
        before = record.read_bytes()
        record.unlink()
        ran, original = [], retrainer.retrain_windows
        monkeypatch.setattr(
            retrainer, "retrain_windows", lambda *args: ran.append(args[1]) or original(*args)
        )
        outcomes_of(setup, stack)
    assert ran == [stack]
    assert record.read_bytes() == before


def made_again(monkeypatch, run, method=METHOD):
    """The windows of all layers that are retrained, not read."""
    ran, original = [], retrainer.retrain_windows
    with monkeypatch.context() as patch:
        patch.setattr(
            retrainer, "retrain_windows", lambda *args: ran.extend(args[1]) or original(*args)
        )
        with prepared(run, method) as setup:
            outcomes_of(setup, [range(DEPTH)])
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
    with prepared(run, METHOD) as setup:
        assert not set(setup.train) & set(setup.held_out)
        assert set(setup.train) | set(setup.held_out) == set(run.clean_rows)
        assert len(setup.held_out) == len(setup.noisy) == 5
