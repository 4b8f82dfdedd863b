"""Mixtures beside models that are built by copying weights and run plainly."""

import copy

import numpy as np
import pytest
import torch

from fixtures.mixtures import (
    CLASSES,
    DEPTH,
    Counted,
    make_pair,
    make_texts,
    mixed_logits,
    plain_logits,
    randomised,
)
from fixtures.models import FAMILIES, PAPER_FAMILIES, SPECIAL
from fixtures.runs import make_classifier, make_data
from memloc.data.encode import encode
from memloc.methods import mixtures as module
from memloc.methods.mixtures import Mixtures
from memloc.methods.swapping import window_subsets
from memloc.model.predict import predict
from memloc.model.stack import Stack, find_blocks
from memloc.stats.windows import windows

TINY = 1
"""Bytes, so that only what one example needs is held."""


def windowed(final, reference, memory=module.MEMORY):
    """All windows, and none."""
    stacks = Stack(final), Stack(reference)
    return Mixtures(*stacks, window_subsets(stacks[0].depth), memory=memory)


def windowed_logits(mixtures, encoded, rows=None):
    """(rows, windows + 1, classes), in the order of the rows."""
    rows = np.arange(len(encoded)) if rows is None else np.asarray(rows)
    found = torch.full((len(rows), len(mixtures.subsets), CLASSES), torch.nan)
    for places in mixtures.batches(encoded, rows):
        assert found[places].isnan().all()  # each once
        (found[places],) = mixtures.logits(encoded, rows[places], heads=1)
    return found


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
    assert_same(windowed_logits(windowed(final, reference, memory), encoded), expected)


@pytest.mark.parametrize(("call", "batch"), [(1, 1), (15, 7), (40, 1000)])
def test_results_do_not_depend_on_the_size_of_batches_and_calls(by_hand, monkeypatch, call, batch):
    final, reference, encoded, expected = by_hand
    monkeypatch.setattr(module, "CALL_TOKENS", call)
    monkeypatch.setattr(module, "BATCH_TOKENS", batch)
    assert_same(windowed_logits(windowed(final, reference), encoded), expected)


def test_results_do_not_depend_on_the_order_of_examples(by_hand):
    final, reference, encoded, expected = by_hand
    rows = [5, 0, 3, 1]
    assert_same(windowed_logits(windowed(final, reference), encoded, rows), expected[rows])


def test_a_model_swapped_with_itself_does_not_change(by_hand):
    final, _, encoded, expected = by_hand
    found = windowed_logits(windowed(final, copy.deepcopy(final)), encoded)
    assert_same(found, expected[:, -1:].expand_as(found))


def test_all_layers_and_all_the_rest_give_the_reference(by_hand):
    final, reference, encoded, _ = by_hand
    dressed = copy.deepcopy(reference)
    for block, lent in zip(find_blocks(dressed), find_blocks(final), strict=True):
        block.load_state_dict(lent.state_dict())
    mixtures = windowed(dressed, reference)
    full = windows(DEPTH).index(range(DEPTH))
    assert_same(windowed_logits(mixtures, encoded)[:, full], plain_logits(reference, encoded))


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("memory", [module.MEMORY, TINY])
def test_shallow_models_are_swept_too(depth, memory):
    final, reference = make_pair("gpt2", depth)
    encoded = make_texts(final)
    expected = mixed_logits(final, reference, encoded)
    assert_same(windowed_logits(windowed(final, reference, memory), encoded), expected)


def test_blocks_with_a_row_a_head_are_repeated_rightly():
    from transformers import BloomConfig, BloomForSequenceClassification

    config = BloomConfig(
        vocab_size=50, hidden_size=16, n_layer=DEPTH, n_head=2, num_labels=CLASSES, pad_token_id=0
    )
    final, reference = (randomised(BloomForSequenceClassification(config), s) for s in (1, 2))
    encoded = make_texts(final)
    expected = mixed_logits(final, reference, encoded)
    assert_same(windowed_logits(windowed(final, reference), encoded), expected)


@pytest.mark.parametrize(("depth", "forwards"), [(12, 376), (24, 2624)])
@pytest.mark.parametrize(("memory", "n"), [(module.MEMORY, 3), (TINY, 1)])
def test_windows_share_their_work(depth, forwards, memory, n):
    final, reference = make_pair("bert", depth)
    mixtures = windowed(final, reference, memory)
    counted = Counted(final, reference)
    windowed_logits(mixtures, make_texts(final, [3] * n))
    assert counted.rows == n * forwards


@pytest.mark.parametrize("memory", [TINY, 300_000, 10**6, 10**8])
def test_no_more_is_held_than_the_budget_allows(memory, monkeypatch):
    depth, longest = 8, 60
    final, reference = make_pair("bert", depth)
    encoded = make_texts(final, (longest, 20, 20, 20, 7, 7, 2))
    mixtures = windowed(final, reference, memory)
    held, most = [], []
    go = module._Walk.go

    def watched(walk, states, subsets, unit):
        held.append(states.nbytes)
        most.append(sum(held))
        go(walk, states, subsets, unit)
        held.pop()

    monkeypatch.setattr(module._Walk, "go", watched)
    windowed_logits(mixtures, encoded)
    least = 2 * (depth + 1) * longest * mixtures.stacks[0].width * 4
    assert 0 < max(most) <= max(memory, least)


def test_all_subsets_share_their_work_too():
    final, reference = make_pair("bert", 5)
    mixtures = Mixtures(Stack(final), Stack(reference), range(2**5))
    counted = Counted(final, reference)
    mixtures.logits(make_texts(final, [3] * 2), np.arange(2))
    assert counted.rows == 2 * (2**6 - 2)


def test_a_walk_leaves_no_trace():
    final, reference = make_pair("opt")
    encoded = make_texts(final)
    expected = mixed_logits(final, reference, encoded)
    before = [copy.deepcopy(model.state_dict()) for model in (final, reference)]
    final.train()
    # Without dropout, whatever mode the models are in.
    assert_same(windowed_logits(windowed(final, reference), encoded), expected)
    for model, kept in zip((final, reference), before, strict=True):
        assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())
        assert all(parameter.grad is None for parameter in model.parameters())
        assert not any("forward" in module.__dict__ for module in model.modules())
    assert final.training
    assert not reference.training


def really_swapped(final, reference, layers):
    model = copy.deepcopy(final.model)
    stack = Stack(model)
    for layer in layers:
        stack.blocks[layer].load_state_dict(reference.stack.blocks[layer].state_dict())
    return stack


@pytest.mark.parametrize("family", [*PAPER_FAMILIES, *SPECIAL])
def test_mixtures_are_those_of_really_swapped_weights(family):
    final, reference = (make_classifier(family, seed, depth=DEPTH) for seed in (1, 2))
    examples, _ = make_data(n=12)
    encoded = encode(examples.parts, final.tokenizer, final.separator)
    rows = np.array([7, 2, 3, 11, 0])
    units = [range(0, 1), range(1, 2), range(2, 4)]
    mixtures = Mixtures(final.stack, reference.stack, range(2 ** len(units)), units)
    found = np.empty((len(rows), 2 ** len(units), final.model.config.num_labels))
    by_reference = np.empty_like(found)
    for places in mixtures.batches(encoded, rows):
        one, other = mixtures.logits(encoded, rows[places])
        found[places], by_reference[places] = one.numpy(), other.numpy()
    for subset in range(2 ** len(units)):
        layers = [layer for u, unit in enumerate(units) if subset >> u & 1 for layer in unit]
        plain = predict(really_swapped(final, reference, layers), encoded)[rows]
        np.testing.assert_allclose(found[:, subset], plain, atol=1e-5)
        others = sorted(set(range(DEPTH)) - set(layers))
        # The final model's embeddings go into both heads.
        plain = predict(_with_embeddings(really_swapped(reference, final, others), final), encoded)
        np.testing.assert_allclose(by_reference[:, subset], plain[rows], atol=1e-5)


def _with_embeddings(stack, final):
    """The other model's stack, given what the final model's embeddings make of a text."""
    from memloc.model.parts import find_parts

    names = find_parts(final.stack).embeddings
    own, given = dict(stack.model.named_parameters()), dict(final.model.named_parameters())
    with torch.no_grad():
        for name in names:
            own[name].copy_(given[name])
    return stack
