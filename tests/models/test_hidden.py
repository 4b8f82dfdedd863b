import numpy as np
import pytest
import torch

from memloc.errors import ModelError
from memloc.models.hidden import head_input, readout_vectors
from memloc.models.load import load_model
from support import DEPTH, FAMILIES, WIDTH

LENGTHS = (9, 4, 6, 1, 12, 2, 7)


@pytest.fixture(params=FAMILIES)
def stack(request, tiny_model):
    return load_model(str(tiny_model(request.param, dropout=0.1)), ["no", "yes"]).stack


def sample_texts(stack, lengths=LENGTHS, seed=0):
    pad = stack.model.config.pad_token_id
    tokens = [i for i in range(stack.model.config.vocab_size) if i != pad]
    rng = np.random.default_rng(seed)
    return [rng.choice(tokens, n).tolist() for n in lengths]


def batch_of(texts, pad, longest=None):
    longest = longest or max(map(len, texts))
    ids = torch.tensor([text + [pad] * (longest - len(text)) for text in texts])
    mask = torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in texts])
    return {"input_ids": ids, "attention_mask": mask}


def batches(stack, texts, rows_of_batches, longest=None):
    pad = stack.model.config.pad_token_id
    for rows in rows_of_batches:
        yield np.array(rows), batch_of([texts[i] for i in rows], pad, longest)


@torch.no_grad()
def one_by_one(stack, texts):
    """The plain way: hidden states and block outputs of each text alone, at the readout."""
    states, last = [], []
    for text in texts:
        place = 0 if stack.readout == "first" else len(text) - 1
        seen = {}
        with stack.watched(seen.__setitem__):
            out = stack.model(input_ids=torch.tensor([text]), output_hidden_states=True)
        states.append(torch.stack([h[0, place] for h in out.hidden_states]).numpy())
        last.append(seen[stack.depth - 1][0, place].numpy())
    return np.stack(states), np.stack(last)


def near(found, expected):
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


def test_vectors_are_the_plain_hidden_states_of_each_text_alone(stack):
    texts = sample_texts(stack)
    states, last = one_by_one(stack, texts)
    found = readout_vectors(stack, batches(stack, texts, [[4, 0, 6, 2], [1, 5, 3]]), len(texts))
    assert found.dtype == np.float32
    assert found.shape == (len(texts), DEPTH + 1, WIDTH)
    near(found[:, :-1], states[:, :-1])
    near(found[:, -1], last)


def test_after_the_final_norm_the_last_vector_is_the_last_hidden_state(stack):
    texts = sample_texts(stack)
    states, last = one_by_one(stack, texts)
    given = batches(stack, texts, [range(len(texts))])
    found = readout_vectors(stack, given, len(texts), last_layer="final norm")
    near(found, states)
    # Encoders end with their last block, decoders with a norm of their own.
    assert np.allclose(states[:, -1], last, atol=1e-5) == (stack.readout == "first")


def test_vectors_do_not_depend_on_batches_padding_and_order(stack):
    texts = sample_texts(stack)
    whole = readout_vectors(stack, batches(stack, texts, [range(7)]), 7)
    for rows, longest in (([[i] for i in range(7)], None), ([[6, 5, 4], [0, 3, 1, 2]], 20)):
        near(readout_vectors(stack, batches(stack, texts, rows, longest), 7), whole)


def test_layers_above_the_wanted_one_do_not_run(stack):
    texts = sample_texts(stack)
    whole = readout_vectors(stack, batches(stack, texts, [range(7)]), 7)
    ran = []
    with stack.watched(lambda index, _state: ran.append(index)):
        # Taking blocks out is part of preparing a batch: those calls are seen as well.
        few = readout_vectors(stack, batches(stack, texts, [range(7)]), 7, up_to=1)
    assert ran.count(0) == 2
    assert all(ran.count(index) == 1 for index in range(1, DEPTH))
    near(few, whole[:, :2])


def test_looking_leaves_no_hook_behind(stack):
    texts = sample_texts(stack)
    readout_vectors(stack, batches(stack, texts, [range(7)]), 7, last_layer="final norm")
    assert not any(m._forward_hooks or "forward" in m.__dict__ for m in stack.model.modules())
    assert all(p.grad is None and not p.is_inference() for p in stack.model.parameters())


def test_where_all_tokens_are_read_the_vector_is_their_mean(tiny_model):
    stack = load_model(str(tiny_model("eurobert")), ["no", "yes"]).stack
    texts = sample_texts(stack)
    found = readout_vectors(stack, batches(stack, texts, [[4, 0, 6, 2], [1, 5, 3]]), len(texts))
    seen = {}
    for row, text in enumerate(texts):
        with torch.no_grad(), stack.watched(seen.__setitem__):
            last = stack.model.base_model(torch.tensor([text])).last_hidden_state
        near(found[row, 1:], np.stack([seen[i][0].mean(0) for i in range(DEPTH)]))
        given = batches(stack, texts, [[row]])
        after = readout_vectors(stack, given, len(texts), last_layer="final norm")[row, -1]
        near(after, last[0].mean(0).numpy())


def test_a_model_that_does_not_tell_what_its_head_is_given_is_refused(tiny_model):
    stack = load_model(str(tiny_model("opt")), ["no", "yes"]).stack
    stack.model.base_model_prefix = ""  # it is its own base then, and answers with logits
    with pytest.raises(ModelError, match="block output"):
        head_input(stack, torch.zeros(2, WIDTH), stack.prepare(stack.sample(2)))
