"""Several models as one give what each gives alone, in every family."""

import copy
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from fixtures.models import FAMILIES, each_once, make_tokenizer
from fixtures.tasks import make_task
from memloc.data.encode import encode
from memloc.engine import stacked as module
from memloc.engine.fit import fit_all
from memloc.engine.learner import Learner, Part
from memloc.engine.objectives import share_body
from memloc.engine.packing import Layout, balanced
from memloc.engine.stacked import (
    MOST,
    CannotStack,
    Stacked,
    _first_of_repeated,
    can_stack,
    dropout_seeded,
    most_members,
    together,
)
from memloc.model.calls import Repeater
from memloc.model.checkpoints import load_checkpoint, save_checkpoint
from memloc.model.load import load_model
from memloc.model.stack import Stack
from memloc.protocol import FineTuneSettings

K, CPU = 3, torch.device("cpu")
SETTINGS = FineTuneSettings(
    learning_rate=1e-2, batch_size=6, epochs=2, weight_decay=0.1, warmup=0.2, clip=0.5
)
MORE = {
    "modernbert": {"intermediate_size": 32, "global_attn_every_n_layers": 2, "local_attention": 4},
    "gemma": {"intermediate_size": 32, "num_key_value_heads": 1, "head_dim": 8},
    "deberta-v2": {
        **{"intermediate_size": 32, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
        "type_vocab_size": 0,
    },
}
SMALL = {
    **{"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2},
    **{"max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    **{"cls_token_id": 2, "sep_token_id": 3},
}


def task():
    return make_task(20, 3)


@pytest.fixture
def members(tiny_model):
    """`members("opt", dropout=0.1)`: classifiers that differ in all weights, and encoded texts."""

    def make(family, dropout=0.0):
        found = []
        for seed in range(K):
            path = tiny_model(family, depth=2, dropout=dropout, seed=seed)
            found.append(load_model(str(path), task().label_names, seed=seed))
        first = found[0]
        parts = task().train.parts
        return found, encode(parts, first.tokenizer, first.separator, first.max_tokens)

    return make


def random_stack(family):
    words = {"vocab_size": len(make_tokenizer("bert"))}
    config = CONFIG_MAPPING[family](**SMALL, **MORE[family], **words)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Stack(AutoModelForSequenceClassification.from_config(config).eval())


def batch_of(encoded, rows):
    ids, mask = encoded.batch(rows)
    return {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}


def learnt(models, encoded, seeds, settings=SETTINGS):
    """Train models on half of the texts, another half each; the mean losses (epochs, models)."""
    labels, learners = task().train.labels, []
    for model, seed in zip(models, seeds, strict=True):
        part = Part(np.random.default_rng(seed).permutation(20)[:10])
        learners.append(Learner(str(seed), lambda model=model: model, labels, seed, (part,)))
    trained = fit_all(learners, encoded, settings)
    assert [len(one.trained_with) for one in trained] == [len(models)] * len(models)
    return np.transpose([[row["loss"] for row in one.curve] for one in trained])


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_gradients_are_those_of_the_separate_models(members, family):
    """Where each member has texts of its own, and its own padding."""
    found, encoded = members(family)
    rows = [np.arange(4) + 4 * k for k in range(K)]
    alone = [copy.deepcopy(one.model) for one in found]
    expected = [Stack(m).logits(batch_of(encoded, r)) for m, r in zip(alone, rows, strict=True)]
    torch.cat(expected).square().sum().backward()
    stack = Stacked([one.stack for one in found])
    logits = stack.logits(batch_of(encoded, np.concatenate(rows)))
    torch.testing.assert_close(logits, torch.cat(expected), rtol=1e-4, atol=1e-5)
    logits.square().sum().backward()
    own = [dict(model.named_parameters()) for model in alone]
    noise = 1e-5 * max(float(p.grad.abs().max()) for p in own[0].values() if p.grad is not None)
    for name, parameter in stack.model.named_parameters():
        for k in range(K):
            wanted = own[k][name].grad
            if wanted is None:
                continue
            torch.testing.assert_close(parameter.grad[k], wanted, rtol=1e-3, atol=noise, msg=name)


def in_long_texts(number):
    """Batches in so many long texts of each member, or padded if they have no more texts."""

    def layout(stack, mask):
        assert stack._packs
        lengths = mask.sum(1).view(K, -1).numpy()
        where = torch.from_numpy(balanced(lengths, number))
        return Layout.of(mask, where) if number < lengths.shape[1] else None

    return layout


@pytest.mark.parametrize(("family", "number"), each_once(FAMILIES, [2, 1, 4, SETTINGS.batch_size]))
def test_members_learn_as_if_each_were_alone(members, monkeypatch, family, number):
    """With clipping, decay, a schedule and dropout that are each one's own, embeddings as well."""
    monkeypatch.setattr(Stacked, "_layout", in_long_texts(number))
    monkeypatch.setattr("memloc.engine.fit.most_members", lambda *_: K)  # tried on two, not on K
    settings = SETTINGS.replace({"freeze_embeddings": False})
    found, encoded = members(family, 0.2)
    one_by_one, _ = members(family, 0.2)
    losses = learnt(found, encoded, [1, 2, 3], settings)
    alone = [
        learnt([one], encoded, [seed], settings) for seed, one in enumerate(one_by_one, start=1)
    ]
    np.testing.assert_allclose(losses, np.concatenate(alone, axis=1), rtol=1e-4)
    for one, other in zip(found, one_by_one, strict=True):
        named = dict(other.model.named_parameters())
        for name, parameter in one.model.named_parameters():
            if not re.search(
                r"k(ey|_proj|_lin|ey_value)?\.bias|c_attn.bias", name
            ):  # moved by noise alone
                torch.testing.assert_close(
                    parameter, named[name], rtol=1e-3, atol=1e-4, msg=f"{family} {name}"
                )


def test_copies_are_run_in_the_blocks_that_they_are_in_and_nowhere_else(members):
    found, encoded = members("opt")
    first, batch = found[0].stack, batch_of(encoded, np.tile(np.arange(4), K))
    before = [p.detach().clone() for p in first.model.parameters()]
    inside = [K, 2, 1][: first.depth]
    copies = [first.copied() for _ in range(K)]
    stack = Stacked(copies, in_block=[*inside, *[1] * (first.depth - len(inside))])
    prepared = first.prepare({name: values[:4] for name, values in batch.items()})
    with torch.no_grad():
        stack.blocks[1].fc1.bias[1] += 1.0  # the second copy is another model now
        state = torch.cat([prepared.state] * 2)
        ran = stack.run(1, state, Repeater(first).repeated(1, prepared.calls[1], 2))
        plain = first.run(1, prepared.state, prepared.calls[1])
        torch.testing.assert_close(ran[:4], plain, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(ran[4:], plain, rtol=1e-2, atol=1e-2)
        with pytest.raises(CannotStack, match="weights of 2 models where 3 are run"):
            stack.logits(batch)
    assert all(map(torch.equal, before, first.model.parameters()))


def test_members_with_one_seed_drop_the_same_and_others_do_not(members):
    found, encoded = members("opt", 0.3)
    same = [found[0].stack, found[0].stack.copied(), found[0].stack.copied()]
    stack = Stacked(same)
    stack.model.train()
    batch = batch_of(encoded, np.tile(np.arange(4), K))
    for seeds, are_equal in (((7, 7, 7), True), ((7, 8, 9), False)):
        with dropout_seeded(seeds, torch.device("cpu"), "dropout"):
            first, second, third = stack.logits(batch).view(K, 4, -1)
        assert torch.equal(first, second) == torch.equal(first, third) == are_equal


def test_where_seeds_repeat_so_does_dropout(members):
    """As of runs with several seeds: it is drawn once for both trainings of each."""
    found, encoded = members("opt", 0.3)
    first, rows, logits = found[0].stack, np.arange(8), []
    for times in (1, 2):
        stack = Stacked([first.copied() for _ in range(2 * times)])
        stack.model.train()
        with dropout_seeded([7, 8] * times, torch.device("cpu"), "dropout"):
            logits.append(stack.logits(batch_of(encoded, np.tile(rows, times))))
    torch.testing.assert_close(logits[1], logits[0].repeat(2, 1), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(*logits[0].view(2, 4, -1))
    assert _first_of_repeated([7, 8, 7, 8]) == [7, 8]
    assert _first_of_repeated([7, 8, 7]) == [7, 8, 7]
    assert _first_of_repeated([7, 7, 7]) == [7]


def test_a_member_is_an_ordinary_model_at_any_time(members, tmp_path):
    found, encoded = members("opt")
    before = [p.detach().clone() for p in found[1].model.parameters()]
    learnt(found, encoded, [1, 2, 3])
    after = list(found[1].model.parameters())
    assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    save_checkpoint(tmp_path / "one", found[1], {})
    loaded = load_checkpoint(tmp_path / "one")
    assert type(loaded.model) is type(found[1].model)
    for saved, parameter in zip(loaded.model.parameters(), after, strict=True):
        assert torch.equal(saved, parameter)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_known_family_can_be_stacked(tiny_model, family):
    assert can_stack(load_model(str(tiny_model(family, depth=2)), ["a", "b"]).stack)


@pytest.mark.parametrize(("family", "can"), [("modernbert", True), ("gemma", False)])
def test_what_is_done_with_weights_in_another_way_is_noticed(family, can):
    """Gemma adds 1 to the weights of its norms, for which there is no rule."""
    stack = random_stack(family)
    assert can_stack(stack) == can
    assert most_members(stack, CPU) == (MOST if can else 1)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_weights_that_are_used_for_all_texts_at_once_are_noticed():
    assert not can_stack(random_stack("deberta-v2"))


def test_a_model_that_leaves_out_layers_at_random_is_not_stacked(tiny_model):
    stack = load_model(str(tiny_model("opt", depth=2)), ["a", "b"]).stack.copied()
    stack.model.model.decoder.layerdrop = 0.1
    module._KNOWN.clear()
    try:
        assert not can_stack(stack)
    finally:
        module._KNOWN.clear()


class OtherDropout(torch.nn.Module):
    def forward(self, x):
        return torch.dropout(x, 0.5, self.training)


def test_a_model_that_draws_numbers_in_a_way_of_its_own_is_not_stacked(tiny_model):
    """They would not be those that each member draws alone."""
    stack = load_model(str(tiny_model("bert", depth=2)), ["a", "b"]).stack.copied()
    stack.model.dropout = OtherDropout()
    module._KNOWN.clear()
    try:
        assert not can_stack(stack)
    finally:
        module._KNOWN.clear()


def test_torch_is_as_before_after_a_forward_pass(members):
    found, encoded = members("opt", 0.3)
    before = torch.nn.functional.dropout, torch.rand
    stack = Stacked([one.stack for one in found])
    with pytest.raises(IndexError):
        stack.logits({k: v + 10**6 for k, v in batch_of(encoded, np.arange(6)).items()})
    assert (torch.nn.functional.dropout, torch.rand) == before


def test_an_unknown_use_of_weights_is_refused(members):
    found, encoded = members("bert")
    stack = Stacked([one.stack for one in found])
    stack.model.classifier.forward = lambda x: x @ stack.model.classifier.weight.T
    with pytest.raises(CannotStack, match="no rule"):
        stack.logits(batch_of(encoded, np.arange(6)))


def test_wide_models_on_a_cpu_are_trained_one_by_one(tiny_model, monkeypatch):
    stack = load_model(str(tiny_model("opt", depth=2)), ["a", "b"]).stack
    assert most_members(stack, CPU) == MOST
    monkeypatch.setattr(module, "NARROW", stack.width)
    assert most_members(stack, CPU) == 1


def test_what_does_not_learn_alone_does_not_learn_in_a_stack(members):
    """The base model beside an adapter, for instance."""
    found, _ = members("opt")
    for one in found:
        one.model.get_input_embeddings().weight.requires_grad_(False)
    stack = Stacked([one.stack for one in found])
    still = [name for name, p in stack.model.named_parameters() if not p.requires_grad]
    assert still == ["model.decoder.embed_tokens.weight"]


def test_stacks_of_models_with_one_body_have_one_body(members):
    found, encoded = members("bert")
    others, _ = members("bert")
    for one, other in zip(found, others, strict=True):
        share_body(one, other)
    first = together([one.stack for one in found])
    second = together([one.stack for one in others], beside=first)
    pairs = zip(first.blocks.parameters(), second.blocks.parameters(), strict=True)
    assert all(one is other for one, other in pairs)
    assert first.model.classifier.weight is not second.model.classifier.weight
    batch = batch_of(encoded, np.tile(np.arange(4), K))
    alone = batch_of(encoded, np.arange(4))
    with torch.no_grad():
        for stack, each in ((first, found), (second, others)):
            stack.model.eval()
            wanted = torch.cat([one.stack.logits(alone) for one in each])
            assert torch.allclose(stack.logits(batch), wanted, atol=1e-5)


def test_on_a_gpu_memory_says_how_many_and_a_model_without_room_is_not_tried(
    tiny_model, monkeypatch
):
    stack = load_model(str(tiny_model("opt", depth=2)), ["a", "b"]).stack
    each = 32 * sum(p.numel() for p in stack.model.parameters())
    memory = SimpleNamespace(total_memory=4 * 5 * each)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: memory)
    assert most_members(stack, torch.device("cuda")) == 5
    memory.total_memory = 4 * each
    monkeypatch.setattr(module, "can_stack", lambda _stack: pytest.fail("tried"))
    assert most_members(stack, torch.device("cuda")) == 1
