import numpy as np
import pytest
import torch

from fixtures.models import FAMILIES, PAPER_FAMILIES
from memloc.engine import packing
from memloc.engine.packing import (
    Layout,
    balanced,
    can_pack,
    fastest_layout,
    packed_logits,
    training_logits,
)
from memloc.model.calls import LastBlock
from memloc.model.load import load_model


@pytest.fixture
def stack_of(tiny_model):
    return lambda family: load_model(str(tiny_model(family)), ["no", "maybe", "yes"]).stack


def batch_for(stack, lengths=(9, 2, 6, 1)):
    pad = stack.model.config.pad_token_id
    tokens = torch.tensor([i for i in range(stack.model.config.vocab_size) if i != pad])
    rng = torch.Generator().manual_seed(0)
    ids = tokens[torch.randint(len(tokens), (len(lengths), max(lengths)), generator=rng)]
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    return {"input_ids": torch.where(mask == 1, ids, pad), "attention_mask": mask}


@pytest.mark.parametrize("family", PAPER_FAMILIES)
def test_the_models_of_the_paper_can_be_packed(stack_of, family):
    assert can_pack(stack_of(family))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("lengths", "number"),
    [((9, 2, 6, 1), 2), ((4, 4, 4, 1), 1), ((2, 1), 2), ((5,), 1)],
    ids=["mixed", "square", "two", "alone"],
)
def test_packing_changes_neither_logits_nor_gradients(stack_of, family, lengths, number):
    stack = stack_of(family)
    if not can_pack(stack):
        pytest.skip("falls back to the padded batch")
    batch = batch_for(stack, lengths)
    if len(lengths) == 1:
        batch["attention_mask"][0, -1] = 0  # a batch that is padded all the same
    layout = Layout.of(batch["attention_mask"], torch.arange(len(lengths)) * number // len(lengths))
    parameters = [p for block in stack.blocks for p in block.parameters()]
    results = []
    for compute in (stack.logits, lambda b: packed_logits(LastBlock(stack), b, layout)):
        logits = compute(batch)
        gradients = torch.autograd.grad(logits.square().sum(), parameters)
        results.append((logits.detach(), torch.cat([g.flatten() for g in gradients])))
    for plain, packed in zip(*results, strict=True):
        assert (plain - packed).abs().max() <= 1e-4 * plain.abs().max()


@pytest.mark.parametrize(
    ("lengths", "number", "where"),
    [
        ([5, 2, 9, 1], 2, [1, 1, 0, 0]),  # 9 and 1, 5 and 2
        ([5, 2, 9, 1], 3, [1, 2, 0, 2]),  # 9, 5, 2 and 1
        ([4, 4, 4, 4, 4], 2, [0, 1, 1, 0, 0]),
        ([5, 2, 9, 1, 1, 9, 2, 5], 2, [1, 1, 0, 0, 2, 2, 3, 3]),  # of two members
    ],
)
def test_long_texts_are_about_as_long(lengths, number, where):
    members = np.array(lengths).reshape(-1, 4 if len(lengths) % 4 == 0 else len(lengths))
    assert balanced(members, number).tolist() == where


@pytest.mark.parametrize(
    ("lengths", "number"),
    [
        # Padded, each of the 4 · 60 positions costs 6 · 16 + 1.5 · 60 = 186: 44,640 in all.
        ([60, 60, 60, 60], None),  # nothing is padding
        ([60, 1, 1, 1], 1),  # 63 positions of 96 + 94.5
        ([60, 2, 60, 2], 2),  # 2 · 62 of 96 + 93, 23,436 in all, not 124 of 96 + 186, 34,968
        ([60, 55, 60, 60], None),  # hardly any padding: 3 · 115 positions are more
    ],
)
def test_a_batch_is_run_in_as_many_long_texts_as_take_least(stack_of, lengths, number):
    stack = stack_of("opt")
    assert stack.width == 16
    stack.model.config.max_position_embeddings = 500
    mask = (torch.arange(60) < torch.tensor(lengths).unsqueeze(1)).long()
    layout = fastest_layout(stack, mask)
    assert (None if layout is None else len(layout.example)) == number


def test_narrow_models_and_full_batches_are_not_packed(stack_of, monkeypatch):
    stack = stack_of("opt")
    assert training_logits(stack) == stack.logits  # narrow
    monkeypatch.setattr(packing, "NARROW", 1)
    used = []
    monkeypatch.setattr(
        packing, "packed_logits", lambda last, b, _: used.append(1) or last.stack.logits(b)
    )
    compute = training_logits(stack)
    used.clear()  # the trial
    compute(batch_for(stack, (6, 6, 6)))
    assert not used
    compute(batch_for(stack, (9, 2, 1)))
    assert used
    used.clear()
    compute(batch_for(stack, (60, 5, 15)))  # longer, all end to end, than the model has positions
    assert used
    used.clear()
    compute(batch_for(stack, (60, 50, 40)))  # and two of them, too
    assert not used


def test_a_model_that_packs_wrongly_is_not_packed(stack_of, monkeypatch):
    stack = stack_of("opt")
    monkeypatch.setattr(packing, "NARROW", 1)
    monkeypatch.setattr(packing, "packed_logits", lambda last, b, _: last.stack.logits(b) * 1.1)
    assert training_logits(stack) == stack.logits
