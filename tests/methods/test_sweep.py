"""Swapping beside mixed models that are built by copying weights and run plainly."""

import copy
from itertools import product

import numpy as np
import pytest
import torch

from memloc.errors import ModelError
from memloc.localise import swapping
from memloc.localise.base import Subject
from memloc.localise.scores import LayerScores
from memloc.localise.swapping import CALL_TOKENS, WORKSPACE, Room, Swapping, Sweep
from memloc.models.load import Classifier
from memloc.models.stack import Stack, find_blocks
from memloc.progress import _shown
from memloc.protocol import preset
from memloc.records import Examples, NoisyLabels
from memloc.score.matrix import windows
from mixing_support import (
    CLASSES,
    DEPTH,
    Counted,
    make_model,
    make_pair,
    make_texts,
    mixed_logits,
    plain_logits,
    randomised,
)
from support import FAMILIES, WORDS, make_tokenizer

TINY = 1
"""Bytes, so that only what one example needs is held."""


def swept_logits(sweep, encoded, rows=None):
    """(rows, windows + 1, classes), in the order of the rows."""
    rows = np.arange(len(encoded)) if rows is None else np.asarray(rows)
    found = torch.full((len(rows), len(sweep.windows) + 1, CLASSES), torch.nan)
    for places, logits in sweep.logits(encoded, rows):
        assert found[places].isnan().all()  # each once
        found[places] = logits
    return found


def sweep_of(final, reference, memory=swapping.MEMORY):
    return Sweep(Stack(final), Stack(reference), memory)


def assert_same(found, expected):
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= 1e-4
    assert torch.equal(found.argmax(-1), expected.argmax(-1))


@pytest.fixture(scope="module", params=FAMILIES)
def by_hand(request):
    """Two models of a family, texts, and the logits of every mixed model."""
    final, reference = make_pair(request.param)
    encoded = make_texts(final)
    logits = mixed_logits(final, reference, encoded)
    assert len(logits.argmax(-1).unique(dim=1).T) > 2  # windows matter, so a wrong one would show
    return final, reference, encoded, logits


@pytest.mark.parametrize("memory", [swapping.MEMORY, TINY])
def test_every_window_gives_the_logits_of_the_mixed_model(by_hand, memory):
    final, reference, encoded, expected = by_hand
    assert_same(swept_logits(sweep_of(final, reference, memory), encoded), expected)


@pytest.mark.parametrize(("call", "batch"), [(1, 1), (15, 7), (40, 1000)])
def test_results_do_not_depend_on_the_size_of_batches_and_calls(by_hand, monkeypatch, call, batch):
    final, reference, encoded, expected = by_hand
    monkeypatch.setattr(swapping, "CALL_TOKENS", call)
    monkeypatch.setattr(swapping, "BATCH_TOKENS", batch)
    assert_same(swept_logits(sweep_of(final, reference), encoded), expected)


def test_results_do_not_depend_on_the_order_of_examples(by_hand):
    final, reference, encoded, expected = by_hand
    rows = [5, 0, 3, 1]
    assert_same(swept_logits(sweep_of(final, reference), encoded, rows), expected[rows])


def test_a_model_swapped_with_itself_does_not_change(by_hand):
    final, _, encoded, expected = by_hand
    found = swept_logits(sweep_of(final, copy.deepcopy(final)), encoded)
    assert_same(found, expected[:, -1:].expand_as(found))


def test_all_layers_and_all_the_rest_give_the_reference(by_hand):
    final, reference, encoded, _ = by_hand
    dressed = copy.deepcopy(reference)
    for block, lent in zip(find_blocks(dressed), find_blocks(final), strict=True):
        block.load_state_dict(lent.state_dict())
    sweep = sweep_of(dressed, reference)
    full = sweep.windows.index(range(DEPTH))
    assert_same(swept_logits(sweep, encoded)[:, full], plain_logits(reference, encoded))


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("memory", [swapping.MEMORY, TINY])
def test_shallow_models_are_swept_too(depth, memory):
    final, reference = make_pair("gpt2", depth)
    encoded = make_texts(final)
    expected = mixed_logits(final, reference, encoded)
    assert_same(swept_logits(sweep_of(final, reference, memory), encoded), expected)


def test_blocks_with_a_row_a_head_are_repeated_rightly():
    from transformers import BloomConfig, BloomForSequenceClassification

    config = BloomConfig(
        vocab_size=50, hidden_size=16, n_layer=DEPTH, n_head=2, num_labels=CLASSES, pad_token_id=0
    )
    final, reference = (randomised(BloomForSequenceClassification(config), s) for s in (1, 2))
    encoded = make_texts(final)
    expected = mixed_logits(final, reference, encoded)
    assert_same(swept_logits(sweep_of(final, reference), encoded), expected)


@pytest.mark.parametrize(("depth", "forwards"), [(12, 376), (24, 2624)])
@pytest.mark.parametrize(("memory", "n"), [(swapping.MEMORY, 3), (TINY, 1)])
def test_windows_share_their_work(depth, forwards, memory, n):
    final, reference = make_pair("bert", depth)
    sweep = sweep_of(final, reference, memory)
    counted = Counted(final, reference)
    swept_logits(sweep, make_texts(final, [3] * n))
    assert counted.rows == n * forwards


@pytest.mark.parametrize("memory", [TINY, 300_000, 600_000, 10**6, 10**8])
def test_no_more_is_held_than_the_budget_allows(memory):
    depth, longest = 8, 60
    final, reference = make_pair("bert", depth)
    encoded = make_texts(final, (longest, 20, 20, 20, 7, 7, 2))
    sweep = sweep_of(final, reference, memory)
    counted = Counted(final, reference)
    swept_logits(sweep, encoded)
    token = sweep.final.width * 4
    least = (2 * depth + 1 + WORKSPACE) * longest * token
    assert 0 < sweep.used <= max(memory, least)
    assert counted.most_tokens * WORKSPACE * token <= max(memory / 4, longest * WORKSPACE * token)


DEPTHS, SIZES = (1, 2, 12, 24), (64, 3072, 8192)


@pytest.mark.parametrize("memory", [1, 10**5, 10**7, 2**30, 10**11])
@pytest.mark.parametrize("length", [1, 12, 512, 5000])
def test_room_is_within_memory_or_the_least_there_is(memory, length):
    for depth, token in product(DEPTHS, SIZES):
        room = Room.within(memory, length, depth, token)
        states = (room.ended + depth + 1) * room.examples * length
        used = (states + WORKSPACE * room.tokens) * token
        least = (2 * depth + 1 + WORKSPACE) * length * token
        assert used <= max(memory, least)
        assert room.examples >= 1
        assert depth <= room.ended <= 1 + depth * (depth - 1) // 2
        assert room.tokens <= max(length, CALL_TOKENS)


def test_with_much_memory_all_windows_are_held_and_batches_are_full():
    room = Room.within(2**30, length=12, depth=12, token=256)
    assert room == Room(examples=42, ended=67, tokens=1024)


def test_a_sweep_leaves_no_trace():
    final, reference = make_pair("opt")
    encoded = make_texts(final)
    expected = mixed_logits(final, reference, encoded)
    before = [copy.deepcopy(model.state_dict()) for model in (final, reference)]
    final.train()
    # Without dropout, whatever mode the models are in.
    assert_same(swept_logits(sweep_of(final, reference), encoded), expected)
    for model, kept in zip((final, reference), before, strict=True):
        assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())
        assert all(parameter.grad is None for parameter in model.parameters())
        assert not any("forward" in module.__dict__ for module in model.modules())
    assert final.training
    assert not reference.training


N, NOISY = 24, (1, 4, 9, 10, 20)


def make_subject(family="bert", seed=1, pair=None, **changes):
    final, reference = pair or make_pair(family)
    rng = np.random.default_rng(3)
    parts = tuple((" ".join(rng.choice(WORDS, rng.integers(1, 9))),) for _ in range(N))
    original = np.arange(N) % CLASSES
    is_noisy = np.isin(np.arange(N), NOISY)
    assigned = np.where(is_noisy, (original + 1) % CLASSES, original)
    tokenizer = make_tokenizer(family)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    dotted = {f"swapping.{name}": value for name, value in changes.items()}
    return Subject(
        name="words",
        examples=Examples(parts, original),
        noisy=NoisyLabels(original, assigned, is_noisy),
        protocol=preset("paper").replace({"swapping.normalise": False, **dotted}),
        seed=seed,
        loaders={
            "final": lambda: Classifier("final", final, tokenizer, "|", ()),
            "reference": lambda: Classifier("reference", reference, tokenizer, "|", ()),
        },
        work=None,
    )


@pytest.mark.parametrize("family", ["bert", "opt"])
def test_outcomes_say_which_labels_are_lost_under_which_window(family):
    subject = make_subject(family)
    final, reference = subject.load("final"), subject.load("reference")
    encoded = subject.encode(final)
    predicted = mixed_logits(final.model, reference.model, encoded).argmax(-1).numpy()
    wrong = predicted != subject.noisy.assigned[:, np.newaxis]
    scores = Swapping().score_layers(subject)
    outcomes = scores.outcomes
    assert list(outcomes.windows) == windows(DEPTH)
    assert outcomes.noisy_rows.tolist() == list(NOISY)
    assert outcomes.clean_rows.tolist() == [i for i in range(N) if i not in NOISY]
    assert np.array_equal(outcomes.noisy_wrong, wrong[outcomes.noisy_rows, :-1])
    assert np.array_equal(outcomes.clean_wrong, wrong[outcomes.clean_rows, :-1])
    right = 1 - wrong[:, -1]
    assert scores.about["final_noisy_accuracy"] == pytest.approx(right[list(NOISY)].mean())
    assert scores.about["final_clean_accuracy"] == pytest.approx(right[outcomes.clean_rows].mean())
    assert scores.about["memory_mb"] > 0


def test_layers_weigh_what_their_windows_undo():
    scores = Swapping().score_layers(make_subject())
    errors = dict(zip(scores.outcomes.windows, scores.outcomes.errors, strict=True))
    column = [
        np.mean([e for w, e in errors.items() if len(w) == width and 2 in w])
        for width in range(1, DEPTH + 1)
    ]
    assert scores.weights.shape == (DEPTH,)
    assert scores.weights[2] == pytest.approx(np.mean(column))


def test_scores_read_back_equal(tmp_path):
    scores = Swapping().score_layers(make_subject(clean_examples=4))
    scores.write(tmp_path / "swapping.parquet")
    read = LayerScores.read(tmp_path / "swapping.parquet")
    assert read.about == scores.about
    assert read.outcomes.windows == scores.outcomes.windows
    assert np.array_equal(read.outcomes.clean_rows, scores.outcomes.clean_rows)
    assert np.array_equal(read.outcomes.noisy_wrong, scores.outcomes.noisy_wrong)


def test_some_clean_examples_are_drawn_by_the_seed():
    pair = make_pair()
    every = Swapping().score_layers(make_subject(pair=pair)).outcomes

    def drawn(seed, n):
        subject = make_subject(pair=pair, seed=seed, clean_examples=n)
        return Swapping().score_layers(subject).outcomes

    some = drawn(1, 6)
    assert len(some.clean_rows) == len(set(some.clean_rows)) == 6
    assert (np.diff(some.clean_rows) > 0).all()
    kept = np.isin(every.clean_rows, some.clean_rows)
    assert np.array_equal(some.clean_wrong, every.clean_wrong[kept])
    assert np.array_equal(some.noisy_wrong, every.noisy_wrong)
    assert drawn(1, 6).clean_rows.tolist() == some.clean_rows.tolist()
    assert drawn(2, 6).clean_rows.tolist() != some.clean_rows.tolist()
    assert drawn(1, 1000).clean_rows.tolist() == every.clean_rows.tolist()


def test_models_of_different_depth_are_refused():
    pair = make_model("bert", 1), make_model("bert", 2, depth=3)
    with pytest.raises(ModelError, match="depth 4, the reference ones 3"):
        Swapping().score_layers(make_subject(pair=pair))


def test_progress_ends_at_its_total():
    from contextlib import contextmanager

    seen = []

    @contextmanager
    def show(_label, total):
        seen.append(-total)
        yield seen.append

    token = _shown.set(show)
    try:
        Swapping().score_layers(make_subject())
    finally:
        _shown.reset(token)
    assert seen[0] < 0
    assert sum(seen) == 0
