"""A sweep beside mixed models that are built by copying weights and run plainly."""

import copy
from itertools import product

import numpy as np
import pytest
import torch

from memloc.methods import sweep as module
from memloc.methods.sweep import CALL_TOKENS, WORKSPACE, Room, Sweep
from memloc.models.stack import Stack, find_blocks
from mixing_support import (
    CLASSES,
    DEPTH,
    Counted,
    make_pair,
    make_texts,
    mixed_logits,
    plain_logits,
    randomised,
)
from support import FAMILIES, SPECIAL

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


def sweep_of(final, reference, memory=module.MEMORY):
    return Sweep(Stack(final), Stack(reference), memory)


def assert_same(found, expected):
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= 1e-4
    assert torch.equal(found.argmax(-1), expected.argmax(-1))


@pytest.fixture(scope="module", params=[*FAMILIES, *SPECIAL])
def by_hand(request):
    """Two models of a family, texts, and the logits of every mixed model."""
    final, reference = make_pair(request.param)
    encoded = make_texts(final)
    logits = mixed_logits(final, reference, encoded)
    assert len(logits.argmax(-1).unique(dim=1).T) > 2  # windows matter, so a wrong one would show
    return final, reference, encoded, logits


@pytest.mark.parametrize("memory", [module.MEMORY, TINY])
def test_every_window_gives_the_logits_of_the_mixed_model(by_hand, memory):
    final, reference, encoded, expected = by_hand
    assert_same(swept_logits(sweep_of(final, reference, memory), encoded), expected)


@pytest.mark.parametrize(("call", "batch"), [(1, 1), (15, 7), (40, 1000)])
def test_results_do_not_depend_on_the_size_of_batches_and_calls(by_hand, monkeypatch, call, batch):
    final, reference, encoded, expected = by_hand
    monkeypatch.setattr(module, "CALL_TOKENS", call)
    monkeypatch.setattr(module, "BATCH_TOKENS", batch)
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
@pytest.mark.parametrize("memory", [module.MEMORY, TINY])
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
@pytest.mark.parametrize(("memory", "n"), [(module.MEMORY, 3), (TINY, 1)])
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
