"""Retraining beside a plain training loop, and its pieces in any order."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from memloc.localise import prefix, retraining
from memloc.localise.base import score_layers
from memloc.localise.prefix import Plain, Prefix
from memloc.localise.retraining import Retraining, piece, prepared, retrain_window
from memloc.localise.scores import LayerScores

from memloc.errors import ModelError, ScoreError, StoreError
from memloc.stats.windows import windows
from memloc.training.predict import evaluating, to_batch
from subject_support import DEPTH, make_classifier, make_data, make_subject, plainly_retrained
from support import FAMILIES, PAPER_FAMILIES

WEIGHTS = ("final", "pretrained")
UPDATES = 2 * 4
"""Two epochs of 14 examples in batches of four."""


def subject_of(work, family="bert", **changes):
    usual = {
        "retraining__epochs": 2,
        "retraining__batch_size": 4,
        "retraining__learning_rate": 0.02,
        "retraining__normalise": False,
    }
    return make_subject(work, family, weights=WEIGHTS, **(usual | changes))


def weights_of(setup):
    return {name: value.clone() for name, value in setup.stack.model.state_dict().items()}


def assert_equal_weights(one, other):
    assert one.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def outcome(subject, window, memory=retraining.MEMORY):
    with prepared(subject, memory) as setup:
        return retrain_window(setup, window)


def assert_same(one, other):
    np.testing.assert_array_equal(one.noisy_wrong, other.noisy_wrong)
    np.testing.assert_array_equal(one.clean_wrong, other.clean_wrong)


def trained_logits(setup, window, rows):
    """Of the retrained model, seen just before its weights are put back."""
    seen = []

    def look(inner, some):
        with evaluating(inner.stack.model):
            seen.append(inner.forward.logits(rows))
        return np.zeros(len(some), dtype=bool)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retraining, "_wrong", look)
        retrain_window(setup, window)
    return seen[0]


@pytest.mark.parametrize("over", ["trained", "all"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_window_learns_as_by_the_plain_loop(tmp_path, family, over):
    changes = {"finetune__clip_over": over, "finetune__clip": 1e-6}
    subject = subject_of(tmp_path, family, retraining__trains_pooler=False, **changes)
    window, rows = range(1, 2), np.arange(24)
    with prepared(subject) as setup:
        before = weights_of(setup)
        found = trained_logits(setup, window, rows)
        assert_equal_weights(weights_of(setup), before)
        encoded = subject.encode(subject.load("final"))
        expected = plainly_retrained(setup, encoded, window, rows)
    assert len(setup.train) == 14
    assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()
    assert torch.equal(found.argmax(-1), expected.argmax(-1))


@pytest.mark.parametrize("family", PAPER_FAMILIES)
@pytest.mark.parametrize("window", [range(1), range(1, 3), range(DEPTH)])
def test_kept_states_change_nothing(tmp_path, family, window):
    rows = np.arange(24)
    found = []
    for plainly in (False, True):
        with prepared(subject_of(tmp_path, family, retraining__frozen_dropout=plainly)) as setup:
            assert isinstance(setup.forward, Plain if plainly else Prefix)
            found.append(trained_logits(setup, window, rows))
    assert (found[0] - found[1]).abs().max() <= 1e-5 * found[1].abs().max()
    assert torch.equal(found[0].argmax(-1), found[1].argmax(-1))


@pytest.mark.parametrize("family", PAPER_FAMILIES)
def test_packed_batches_change_nothing(tmp_path, monkeypatch, family):
    found = []
    for packing in (True, False):
        if not packing:
            monkeypatch.setattr(prefix, "worth_packing", lambda *_, **__: None)
        with prepared(subject_of(tmp_path, family)) as setup:
            found.append(trained_logits(setup, range(1, 2), np.arange(24)))
            kept = setup.forward._inputs.values()
            assert any(len(inputs.places) < len(inputs.readout) for inputs in kept) == packing
    assert (found[0] - found[1]).abs().max() <= 1e-4 * found[1].abs().max()


def test_frozen_blocks_neither_change_nor_drop_anything(tmp_path, monkeypatch):
    subject = subject_of(tmp_path, "opt", dropout=0.5)
    seen = []
    with prepared(subject) as setup:
        before, run = weights_of(setup), type(setup.stack).run

        def watched(stack, index, state, call):
            block = stack.blocks[index]
            learns = {p.requires_grad for p in block.parameters()}
            if torch.is_grad_enabled():
                seen.append((index, block.training, learns))
            return run(stack, index, state, call)

        def look(inner, rows):
            now = weights_of(inner)
            changed = {name for name, value in now.items() if not torch.equal(value, before[name])}
            inside = {n for n in now if ".layers.1." in n}
            assert changed - inside <= set(inner.after)
            assert changed & inside
            assert changed & set(inner.after)
            return np.zeros(len(rows), dtype=bool)

        monkeypatch.setattr(type(setup.stack), "run", watched)
        monkeypatch.setattr(retraining, "_wrong", look)
        retrain_window(setup, range(1, 2))
        assert_equal_weights(weights_of(setup), before)
    # Nothing below the window runs; what is above runs without dropout and weight gradients.
    assert seen == [(1, True, {True}), (2, False, {False})] * UPDATES


def test_dropout_everywhere_is_another_training(tmp_path):
    rows, found = np.arange(24), []
    for everywhere in (False, True):
        subject = subject_of(tmp_path, "bert", dropout=0.3, retraining__frozen_dropout=everywhere)
        with prepared(subject) as setup:
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
    monkeypatch.setattr(prefix, "worth_packing", lambda *_, **__: None)
    for over in ("trained", "all"):
        changes = {"finetune__clip_over": over, "finetune__clip": 1e9, "dropout": 0.3}
        with prepared(subject_of(tmp_path, family, **changes)) as setup:
            assert isinstance(setup.forward, Plain if over == "all" else Prefix)
            found.append(trained_logits(setup, range(1, 2), rows))
    assert (found[0] - found[1]).abs().max() <= 1e-3 * found[1].abs().max()


def test_the_pooler_learns_unless_it_is_frozen(tmp_path, monkeypatch):
    for learns in (True, False):
        with prepared(subject_of(tmp_path, "bert", retraining__trains_pooler=learns)) as setup:
            before, changed = weights_of(setup), set()

            def look(inner, rows, before=before, changed=changed):
                now = weights_of(inner)
                changed.update(n for n, value in now.items() if not torch.equal(value, before[n]))
                return np.zeros(len(rows), dtype=bool)

            with monkeypatch.context() as patch:
                patch.setattr(retraining, "_wrong", look)
                retrain_window(setup, range(1, 2))
            assert ("bert.pooler.dense.weight" in changed) == learns
            assert "classifier.weight" in changed
            assert_equal_weights(weights_of(setup), before)


def test_training_that_moves_nothing_leaves_pretrained_blocks_and_the_final_rest(tmp_path):
    subject = subject_of(tmp_path, "gpt_neox", retraining__learning_rate=1e-30)
    rows = np.arange(24)
    final, pretrained = subject.load("final"), subject.load("pretrained")
    for block, before in zip(final.stack.blocks, pretrained.stack.blocks, strict=True):
        block.load_state_dict(before.state_dict())
    with torch.no_grad():
        batch = to_batch(subject.encode(final), rows, final.stack.device)
        expected = final.stack.logits(batch)
    with prepared(subject) as setup:
        found = trained_logits(setup, range(DEPTH), rows)
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return Retraining().score_layers(
        subject_of(tmp_path_factory.mktemp("whole"), "gpt_neo", dropout=0.2)
    )


def assert_same_scores(one, other):
    np.testing.assert_array_equal(one.outcomes.noisy_wrong, other.outcomes.noisy_wrong)
    np.testing.assert_array_equal(one.outcomes.clean_wrong, other.outcomes.clean_wrong)
    np.testing.assert_array_equal(one.weights, other.weights)
    assert (one.mcog, one.about) == (other.mcog, other.about)


def test_scores_are_those_of_all_windows(whole):
    assert whole.outcomes.windows == tuple(windows(DEPTH))
    assert whole.outcomes.noisy_wrong.shape == (5, 6)
    assert whole.outcomes.clean_wrong.shape == (5, 6)
    assert len(np.unique(whole.outcomes.noisy_wrong, axis=1).T) > 1  # windows matter
    assert whole.about["trained_on"] == 14


def test_an_interrupted_run_goes_on_with_what_is_missing(tmp_path, monkeypatch, whole):
    subject = subject_of(tmp_path, "gpt_neo", dropout=0.2)
    ran, original = [], retraining.retrain_window

    def interrupted(setup, window, advance):
        if len(ran) == 3:
            raise KeyboardInterrupt
        ran.append(window)
        return original(setup, window, advance)

    with monkeypatch.context() as patch:
        patch.setattr(retraining, "retrain_window", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Retraining().score_layers(subject)
    assert len(list((tmp_path / "retraining").iterdir())) == 3

    def noted(setup, window, advance):
        ran.append(window)
        return original(setup, window, advance)

    monkeypatch.setattr(retraining, "retrain_window", noted)
    assert_same_scores(Retraining().score_layers(subject), whole)
    assert sorted(ran, key=str) == sorted(windows(DEPTH), key=str)  # each once


def test_windows_run_in_any_order(tmp_path, whole):
    subject = subject_of(tmp_path, "gpt_neo", dropout=0.2)
    every = Retraining().pieces(subject)
    assert every == [range(a, b) for a in range(DEPTH) for b in range(a + 1, DEPTH + 1)]
    with prepared(subject) as setup:
        for window in every[::-1]:
            piece(setup, window)
    assert_same_scores(Retraining().score_layers(subject), whole)


def test_little_memory_means_a_file_and_the_same_scores(tmp_path, monkeypatch, whole):
    subject = subject_of(tmp_path, "gpt_neo", dropout=0.2)
    monkeypatch.setattr(prefix, "CALLS_MEMORY", 0)
    made = []
    original = torch.from_file
    monkeypatch.setattr(torch, "from_file", lambda *a, **k: made.append(a) or original(*a, **k))
    assert_same_scores(Retraining(memory=1).score_layers(subject), whole)
    assert len(made) == 1
    names = {path.name for path in (tmp_path / "retraining").iterdir()}
    assert names == {f"window-{w.start + 1}-{w.stop}.json" for w in windows(DEPTH)}


def test_a_disk_without_room_is_a_sentence(tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 10})
    monkeypatch.setattr(prefix.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(StoreError, match=r"Cannot write .* are needed there"):
        Retraining(memory=1).score_layers(subject_of(tmp_path))


@pytest.mark.parametrize("change", ["epochs", "weights", "labels"])
def test_pieces_of_other_settings_weights_or_data_are_not_used(tmp_path, monkeypatch, change):
    method = Retraining(widths=())
    subject = subject_of(tmp_path, "bert")
    method.score_layers(subject)
    other = {
        "epochs": subject_of(tmp_path, "bert", retraining__epochs=1),
        "weights": replace(
            subject, loaders={**subject.loaders, "pretrained": lambda: make_classifier(seed=9)}
        ),
        "labels": subject_of(tmp_path, "bert", data=make_data(seed=3)),
    }[change]
    ran = []
    original = retraining.retrain_window
    monkeypatch.setattr(
        retraining, "retrain_window", lambda *args: ran.append(args[1]) or original(*args)
    )
    method.score_layers(subject)
    assert ran == []
    method.score_layers(other)
    assert ran == [range(DEPTH)]


def test_some_widths_alone_can_be_run(tmp_path):
    scores = Retraining(widths=(1,)).score_layers(subject_of(tmp_path))
    assert scores.outcomes.windows == (range(1), range(1, 2), range(2, 3), range(DEPTH))
    assert np.isnan(scores.matrix()[1]).all()
    assert np.isfinite(scores.weights).all()


def test_held_out_examples_are_clean_and_not_trained_on(tmp_path):
    subject = subject_of(tmp_path)
    with prepared(subject) as setup:
        assert not set(setup.train) & set(setup.held_out)
        assert set(setup.train) | set(setup.held_out) == set(subject.clean_rows)
        assert len(setup.held_out) == len(setup.noisy) == 5


@pytest.mark.parametrize("n_noisy", [0, 12, 24])
def test_too_few_examples_of_a_kind_are_a_sentence(tmp_path, n_noisy):
    subject = subject_of(tmp_path, data=make_data(n_noisy=n_noisy))
    with pytest.raises(ScoreError, match=f"{n_noisy} noisy and {24 - n_noisy} clean"):
        Retraining().score_layers(subject)


def test_weights_that_are_missing_or_of_another_model_are_a_sentence(tmp_path):
    subject = subject_of(tmp_path)
    alone = {"final": subject.loaders["final"]}
    with pytest.raises(StoreError, match="no pretrained weights for tiny"):
        Retraining().score_layers(replace(subject, loaders=alone))
    loaders = {**alone, "pretrained": lambda: make_classifier(depth=2)}
    with pytest.raises(ModelError, match="depth"):
        Retraining().score_layers(replace(subject, loaders=loaders))


def test_scores_read_back_equal(tmp_path):
    scores = score_layers(subject_of(tmp_path, retraining__epochs=1), "retraining")
    scores.write(tmp_path / "retraining.parquet")
    assert_same_scores(LayerScores.read(tmp_path / "retraining.parquet"), scores)
