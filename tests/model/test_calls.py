"""The last block at one position beside the whole block."""

import pytest
import torch
from torch.autograd import grad
from transformers import AttentionInterface

from fixtures.mixtures import make_model
from fixtures.models import FAMILIES, SPECIAL
from memloc.model import calls
from memloc.model.calls import SDPA, LastBlock
from memloc.model.stack import Stack, sample_batch, undropped

PLAIN = {"gpt_neo", "mpnet", "eurobert", "convbert"}
"""Families with an attention of their own, or with a head that reads all positions."""


def before_last(stack, tokens=9, texts=3):
    """The state before the last block, its call and the readout position."""
    vocabulary = range(stack.model.config.vocab_size)
    known = [token for token in vocabulary if token != stack.model.config.pad_token_id]
    picked = torch.randint(len(known), (texts, tokens), generator=torch.Generator().manual_seed(0))
    ids = torch.tensor(known)[picked]
    prepared = stack.prepare({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    state = prepared.state
    for layer, call in enumerate(prepared.calls[:-1]):
        state = stack.run(layer, state, call)
    place = int(prepared.positions[0])
    return state, prepared.calls[-1], slice(place, place + 1)


@pytest.mark.parametrize("family", [*FAMILIES, *SPECIAL])
def test_it_gives_what_the_whole_block_gives_at_the_readout_position(family):
    stack = Stack(make_model(family))
    last = LastBlock(stack)
    with torch.no_grad():
        state, call, here = before_last(stack)
        whole = stack.run(stack.depth - 1, state, call)
        expected = whole if stack.readout == "all" else whole[:, here]
        found = last.read(state, call, here)
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert last.is_short == (family not in PLAIN)


@pytest.mark.parametrize("family", [*FAMILIES, *SPECIAL])
def test_several_positions_of_padded_texts_are_those_of_the_whole_block(family):
    stack = Stack(make_model(family))
    if stack.readout == "all" or not stack.pads:
        pytest.skip("reads them all, or cannot be given padded texts")
    batch = sample_batch(stack.model)
    assert not batch["attention_mask"].all()
    prepared = stack.prepare(batch)
    with undropped(stack.model):
        state, call = prepared.state, prepared.calls[-1]
        for layer, other in enumerate(prepared.calls[:-1]):
            state = stack.run(layer, state, other)
        state = state.detach().requires_grad_()
        here = torch.stack([prepared.positions, 0 * prepared.positions], 1)
        whole = stack.run(stack.depth - 1, state, call)
        expected = torch.stack([each[places] for each, places in zip(whole, here, strict=True)])
        found = LastBlock(stack).read(state, call, here)
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
    ways = [torch.autograd.grad(v.square().sum(), state)[0] for v in (found, expected)]
    assert (ways[0] - ways[1]).abs().max() <= 1e-4 * ways[1].abs().max()


def test_only_one_position_passes_the_rest_of_the_block():
    stack = Stack(make_model("bert"))
    last, sizes = LastBlock(stack), []
    stack.blocks[-1].output.dense.register_forward_hook(
        lambda _module, _given, found: sizes.append(found.shape[1])
    )
    with torch.no_grad():
        last.read(*before_last(stack))
    assert sizes == [1]


@pytest.mark.parametrize(
    ("family", "query", "late"),
    [
        ("bert", ("attention.self.query",), {"attention.self.key", "attention.self.value"}),
        ("llama", ("self_attn.q_proj",), {"self_attn.v_proj"}),
        ("gpt_neox", (), set()),
    ],
)
def test_projections_are_computed_at_the_readout_position_alone_where_they_can_be(
    family, query, late
):
    """Llama rotates its keys by their places, and GPT-NeoX has one matrix for all three."""
    stack = Stack(make_model(family))
    last, sizes = LastBlock(stack), []
    assert last.idle == query
    assert {*last.late.values()} == late
    for name in (*query, *late):
        stack.blocks[-1].get_submodule(name).register_forward_hook(
            lambda _module, _given, found: sizes.append((found.shape[1], 0 in found.stride()))
        )
    with torch.no_grad():
        last.read(*before_last(stack))
    # The zeros of all positions are one number.
    assert sorted(sizes) == [(1, False)] * (len(sizes) // 2) + [(9, True)] * (len(sizes) // 2)
    assert not any("forward" in vars(module) for module in stack.blocks[-1].modules())


@pytest.mark.parametrize("family", ["bert", "distilbert", "opt", "llama"])
def test_a_few_positions_of_padded_texts_are_those_of_the_whole_block(family):
    stack = Stack(make_model(family))
    n = 12
    mask = (torch.arange(n) < torch.tensor([12, 9, 7])[:, None]).long()
    ids = torch.full((3, n), 5).where(mask.bool(), torch.tensor(stack.model.config.pad_token_id))
    with torch.no_grad(), undropped(stack.model):
        prepared = stack.prepare({"input_ids": ids, "attention_mask": mask})
        call = prepared.calls[-1]
        torch.manual_seed(0)
        state = prepared.state + torch.randn_like(prepared.state)
        here = torch.stack([prepared.positions, 0 * prepared.positions + 1], 1)
        whole = stack.run(stack.depth - 1, state, call)
        expected = torch.stack([each[places] for each, places in zip(whole, here, strict=True)])
        last = LastBlock(stack)
        assert last.late
        found = last.read(state, call, here)
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_keys_that_padding_would_change_are_computed_first(monkeypatch):
    attended = calls._attended

    def without_mask(query, key, value, _mask, scale):
        return attended(query, key, value, None, scale)

    monkeypatch.setattr(calls, "_attended", without_mask)
    last = LastBlock(Stack(make_model("bert")))
    assert last.is_short
    assert not last.late


def test_with_gradients_all_keys_are_computed():
    stack = Stack(make_model("bert"))
    last = LastBlock(stack)
    state, call, here = before_last(stack)
    found = last.read(state.detach().requires_grad_(), call, here)
    asked = [*stack.blocks[-1].attention.self.parameters()]
    assert all(way.shape == p.shape for way, p in zip(grad(found.sum(), asked), asked, strict=True))


def test_the_usual_attention_is_put_back_also_after_an_error():
    stack, usual = Stack(make_model("opt")), AttentionInterface()[SDPA]
    last = LastBlock(stack)
    with torch.no_grad():
        state, call, here = before_last(stack)
        last.read(state, call, here)
        assert AttentionInterface()[SDPA] is usual
        with pytest.raises(RuntimeError):
            last.read(state[..., :-1], call, here)
    assert AttentionInterface()[SDPA] is usual


def test_another_implementation_of_attention_runs_the_whole_block():
    model = make_model("bert")
    model.set_attn_implementation("eager")
    assert not LastBlock(Stack(model)).is_short
