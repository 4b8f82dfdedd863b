import pytest

from fixtures.models import DEPTH, FAMILIES
from memloc.model.load import load_model
from memloc.model.parts import find_parts


@pytest.fixture(params=FAMILIES)
def stack(request, tiny_model):
    return load_model(str(tiny_model(request.param)), ["no", "yes"]).stack


def test_every_parameter_is_in_exactly_one_part(stack):
    parts = find_parts(stack)
    everything = [*parts.embeddings, *(n for b in parts.blocks for n in b), *parts.after]
    assert sorted(everything) == sorted(name for name, _ in stack.model.named_parameters())
    assert len(parts.blocks) == DEPTH
    assert all(parts.blocks)


def test_words_come_before_the_blocks_and_the_head_after(stack):
    parts, names = find_parts(stack), {id(p): n for n, p in stack.model.named_parameters()}
    assert names[id(stack.model.get_input_embeddings().weight)] in parts.embeddings
    head = [n for n in names.values() if n.startswith(("score.", "classifier.", "pre_classifier."))]
    assert head
    assert set(head) <= set(parts.after)
    assert all("embed" not in n and "wte" not in n for n in parts.after)


def test_looking_leaves_gradients_and_flags_as_they_were(stack):
    parameters = list(stack.model.parameters())
    parameters[0].requires_grad_(False)
    flags = [p.requires_grad for p in parameters]
    find_parts(stack)
    assert [p.requires_grad for p in parameters] == flags
    assert all(p.grad is None for p in parameters)


def test_a_bias_that_all_blocks_share_counts_as_embeddings(tiny_model):
    parts = find_parts(load_model(str(tiny_model("mpnet")), ["no", "yes"]).stack)
    assert "mpnet.encoder.relative_attention_bias.weight" in parts.embeddings


def test_pooler_and_final_norm_follow_the_blocks(tiny_model):
    bert = find_parts(load_model(str(tiny_model("bert")), ["no", "yes"]).stack)
    assert bert.after == (
        "bert.pooler.dense.weight",
        "bert.pooler.dense.bias",
        "classifier.weight",
        "classifier.bias",
    )
    assert bert.pooler == bert.after[:2]
    opt = find_parts(load_model(str(tiny_model("opt")), ["no", "yes"]).stack)
    assert opt.after == (
        "model.decoder.final_layer_norm.weight",
        "model.decoder.final_layer_norm.bias",
        "score.weight",
    )
    assert opt.pooler == ()
