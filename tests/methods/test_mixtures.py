"""Mixtures beside models that are built by copying weights and run plainly."""

import copy

import numpy as np
import pytest
import torch

from fixtures.mixtures import (
    CLASSES,
    DEPTH,
    LOGITS,
    Counted,
    logits_of,
    make_pair,
    make_texts,
    mixed_logits,
    plain_logits,
    randomised,
)
from fixtures.models import FAMILIES, PAPER_FAMILIES, SPECIAL
from memloc.errors import ModelError
from memloc.methods import mixtures as module
from memloc.methods.mixtures import LABELS, Mixtures
from memloc.methods.swapping import window_subsets
from memloc.model.stack import Stack, find_blocks
from memloc.model.units import find_units
from memloc.stats.undone import label_margins
from memloc.stats.windows import windows

TINY = 1
"""Bytes, so that only what one example needs is held."""


def mixtures_of(final, reference, units=None, memory=module.MEMORY):
    """Mixtures of two models whose outcome is the logits themselves."""
    return Mixtures(Stack(final), Stack(reference), units, LOGITS, memory=memory)


def windowed_logits(mixtures, encoded, rows=None):
    """(rows, windows + 1, classes): all windows, and none."""
    return logits_of(mixtures, encoded, [*window_subsets(mixtures.stacks[0].depth), 0], rows)


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
    assert_same(windowed_logits(mixtures_of(final, reference, memory=memory), encoded), expected)


@pytest.mark.parametrize(("call", "batch"), [(1, 1), (15, 7), (40, 1000)])
def test_results_do_not_depend_on_the_size_of_batches_and_calls(by_hand, monkeypatch, call, batch):
    final, reference, encoded, expected = by_hand
    monkeypatch.setattr(module, "CALL_TOKENS", call)
    monkeypatch.setattr(module, "BATCH_TOKENS", batch)
    assert_same(windowed_logits(mixtures_of(final, reference), encoded), expected)


def test_results_do_not_depend_on_the_order_of_examples(by_hand):
    final, reference, encoded, expected = by_hand
    rows = [5, 0, 3, 1]
    assert_same(windowed_logits(mixtures_of(final, reference), encoded, rows), expected[rows])


def test_a_model_swapped_with_itself_does_not_change(by_hand):
    final, _, encoded, expected = by_hand
    found = windowed_logits(mixtures_of(final, copy.deepcopy(final)), encoded)
    assert_same(found, expected[:, -1:].expand_as(found))


def test_all_layers_and_all_the_rest_give_the_reference(by_hand):
    final, reference, encoded, _ = by_hand
    dressed = copy.deepcopy(reference)
    for block, lent in zip(find_blocks(dressed), find_blocks(final), strict=True):
        block.load_state_dict(lent.state_dict())
    mixtures = mixtures_of(dressed, reference)
    full = windows(DEPTH).index(range(DEPTH))
    assert_same(windowed_logits(mixtures, encoded)[:, full], plain_logits(reference, encoded))


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("memory", [module.MEMORY, TINY])
def test_shallow_models_are_swept_too(depth, memory):
    final, reference = make_pair("gpt2", depth)
    encoded = make_texts(final)
    expected = mixed_logits(final, reference, encoded)
    assert_same(windowed_logits(mixtures_of(final, reference, memory=memory), encoded), expected)


def test_blocks_with_a_row_a_head_are_repeated_rightly():
    from transformers import BloomConfig, BloomForSequenceClassification

    config = BloomConfig(
        vocab_size=50, hidden_size=16, n_layer=DEPTH, n_head=2, num_labels=CLASSES, pad_token_id=0
    )
    final, reference = (randomised(BloomForSequenceClassification(config), s) for s in (1, 2))
    encoded = make_texts(final)
    expected = mixed_logits(final, reference, encoded)
    assert_same(windowed_logits(mixtures_of(final, reference), encoded), expected)


@pytest.mark.parametrize(("depth", "forwards"), [(12, 376), (24, 2624)])
@pytest.mark.parametrize(("memory", "n"), [(module.MEMORY, 3), (TINY, 1)])
def test_windows_share_their_work(depth, forwards, memory, n):
    final, reference = make_pair("bert", depth)
    mixtures = mixtures_of(final, reference, memory=memory)
    counted = Counted(final, reference)
    windowed_logits(mixtures, make_texts(final, [3] * n))
    assert counted.rows == n * forwards


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("memory", [TINY, 300_000, 10**6, 10**8])
def test_no_more_is_held_than_the_budget_allows(memory, streamed, monkeypatch):
    depth, longest = 8, 60
    final, reference = make_pair("bert", depth)
    encoded = make_texts(final, (longest, 20, 20, 20, 7, 7, 2))
    mixtures = mixtures_of(final, reference, memory=memory)
    monkeypatch.setattr(module.Mixtures, "is_streamed", streamed)
    held, most = [], []
    go = module._go

    def watched(parts, layer):
        held.append(sum(part.states.nbytes for part in parts))
        most.append(sum(held))
        go(parts, layer)
        held.pop()

    monkeypatch.setattr(module, "_go", watched)
    windowed_logits(mixtures, encoded)
    least = 2 * (depth + 1) * longest * mixtures.stacks[0].width * 4
    assert 0 < max(most) <= max(memory, least)


def test_all_subsets_share_their_work_too():
    final, reference = make_pair("bert", 5)
    mixtures = mixtures_of(final, reference)
    counted = Counted(final, reference)
    logits_of(mixtures, make_texts(final, [3] * 2), range(2**5))
    assert counted.rows == 2 * (2**6 - 2)


def test_a_walk_leaves_no_trace():
    final, reference = make_pair("opt")
    encoded = make_texts(final)
    expected = mixed_logits(final, reference, encoded)
    before = [copy.deepcopy(model.state_dict()) for model in (final, reference)]
    final.train()
    # Without dropout, whatever mode the models are in.
    assert_same(windowed_logits(mixtures_of(final, reference), encoded), expected)
    for model, kept in zip((final, reference), before, strict=True):
        assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())
        assert all(parameter.grad is None for parameter in model.parameters())
        assert not any("forward" in module.__dict__ for module in model.modules())
    assert final.training
    assert not reference.training


def really_mixed(final, donor, names):
    """The final model with these parameters of the donor, in a state dict of its own."""
    model = copy.deepcopy(final)
    lent = donor.state_dict()
    model.load_state_dict({k: lent[k] if k in names else v for k, v in model.state_dict().items()})
    return model


@pytest.mark.parametrize("kind", ["layers", "sublayers", "spanning"])
@pytest.mark.parametrize("family", [*PAPER_FAMILIES, *SPECIAL])
def test_mixtures_are_those_of_really_mixed_weights(family, kind):
    final, donor = make_pair(family, 2)
    stack = Stack(final)
    try:
        units = find_units(stack, "layers" if kind == "layers" else "sublayers")
    except ModelError:
        assert family == "convbert"  # its attention is a convolution as well
        return
    if kind == "spanning":  # units that have a part of several layers, met in turns
        first, second, *others = units.values()
        units = {"odd": (*first, *others[0]), "even": (*second, *others[1])}
    encoded = make_texts(final)
    logits = logits_of(mixtures_of(final, donor, units), encoded, range(2 ** len(units)))
    for subset in range(2 ** len(units)):
        chosen = [names for bit, names in enumerate(units.values()) if subset >> bit & 1]
        model = really_mixed(final, donor, {name for names in chosen for name in names})
        expected = plain_logits(model, encoded)
        assert (logits[:, subset] - expected).abs().max() <= 1e-5 * max(1, expected.abs().max())


PADDED = [*((f, "right") for f in PAPER_FAMILIES), *((f, "left") for f in PAPER_FAMILIES[1:])]
"""Families and sides; BERT reads its first token, which padding on the left would take away."""


@pytest.mark.parametrize(("family", "side"), PADDED)
def test_mixtures_are_those_of_mixed_models_that_read_a_padded_batch(family, side):
    final, donor = make_pair(family, 2)
    units = find_units(Stack(final), "sublayers")
    encoded = make_texts(final)
    ids, mask = (np.array(part) for part in encoded.batch(np.arange(len(encoded))))
    if side == "left":
        ids, mask = (
            np.stack([np.roll(row, -n) for row, n in zip(part, encoded.lengths, strict=True)])
            for part in (ids, mask)
        )
    ids, mask = torch.from_numpy(ids), torch.from_numpy(mask)
    places = {"position_ids": (mask.cumsum(1) - 1).clamp_min(0)} if family != "opt" else {}
    subsets = [1, 6, 11]
    logits = logits_of(mixtures_of(final, donor, units), encoded, subsets)
    for place, subset in enumerate(subsets):
        chosen = [names for bit, names in enumerate(units.values()) if subset >> bit & 1]
        model = really_mixed(final, donor, {name for names in chosen for name in names})
        with torch.no_grad():
            expected = model(input_ids=ids, attention_mask=mask, **places).logits
        assert (logits[:, place] - expected).abs().max() <= 1e-5 * max(1, expected.abs().max())


def test_the_outcome_says_which_labels_are_lost_and_by_how_much():
    logits = torch.tensor([[[2.0, 1.0, -1.0], [0.0, 3.0, 5.0]]])  # one mixture, two texts
    lost, margin = LABELS.count(logits, torch.tensor([0, 1]))
    assert lost.tolist() == [[0, 1]]
    assert margin.tolist() == [[1, -2]]
    np.testing.assert_allclose(margin, label_margins(logits.numpy()[0], np.array([0, 1]))[None])


def test_a_variant_of_a_layer_holds_no_weights_of_its_own():
    final, donor = make_pair("opt", 2)
    stack = Stack(final)
    units = find_units(stack, "sublayers")
    mixtures = Mixtures(stack, Stack(donor), units)
    known = {p.data_ptr() for model in (final, donor) for p in model.parameters()}
    for variants in mixtures.variants:
        assert len(variants) == 4
        for variant in variants.values():
            assert {p.data_ptr() for p in variant.blocks.parameters()} <= known
