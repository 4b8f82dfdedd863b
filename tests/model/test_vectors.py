import numpy as np
import pytest
import torch

from fixtures.models import DEPTH, FAMILIES, WIDTH, watched
from memloc.data.encode import Encoded
from memloc.errors import ModelError
from memloc.model import predict
from memloc.model.load import load_model
from memloc.model.predict import head_input, vectors_of

LENGTHS = (9, 4, 6, 1, 12, 2, 7)


@pytest.fixture(params=FAMILIES)
def stack(request, tiny_model):
    return load_model(str(tiny_model(request.param, dropout=0.1)), ["no", "yes"]).stack


def sample_texts(stack, lengths=LENGTHS, seed=0):
    pad = stack.model.config.pad_token_id
    tokens = [i for i in range(stack.model.config.vocab_size) if i != pad]
    rng = np.random.default_rng(seed)
    return [rng.choice(tokens, n).tolist() for n in lengths]


def encoded(stack, texts):
    tokens = np.concatenate([np.array(text, dtype=np.int32) for text in texts])
    offsets = np.cumsum([0, *map(len, texts)])
    return Encoded(tokens, offsets, stack.model.config.pad_token_id)


@torch.no_grad()
def one_by_one(stack, texts):
    """The plain way: hidden states and block outputs of each text alone, at the readout."""
    states, last = [], []
    for text in texts:
        place = 0 if stack.readout == "first" else len(text) - 1
        seen = {}
        with watched(stack, seen.__setitem__):
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
    found = vectors_of(stack, encoded(stack, texts))
    assert found.dtype == np.float32
    assert found.shape == (len(texts), DEPTH + 1, WIDTH)
    near(found[:, :-1], states[:, :-1])
    near(found[:, -1], last)


def test_after_the_final_norm_the_last_vector_is_the_last_hidden_state(stack):
    texts = sample_texts(stack)
    states, last = one_by_one(stack, texts)
    found = vectors_of(stack, encoded(stack, texts), last_layer="final norm")
    near(found, states)
    # Encoders end with their last block, decoders with a norm of their own.
    assert np.allclose(states[:, -1], last, atol=1e-5) == (stack.readout == "first")


def test_vectors_do_not_depend_on_batches_padding_and_order(stack, monkeypatch):
    texts = sample_texts(stack)
    whole = vectors_of(stack, encoded(stack, texts))
    near(vectors_of(stack, encoded(stack, texts[::-1]))[::-1], whole)
    for tokens in (1, 15):
        monkeypatch.setattr(predict, "TOKENS_PER_BATCH", tokens)
        near(vectors_of(stack, encoded(stack, texts)), whole)


def test_layers_above_the_wanted_one_do_not_run(stack):
    texts = sample_texts(stack)
    whole = vectors_of(stack, encoded(stack, texts))
    ran = []
    with watched(stack, lambda index, _state: ran.append(index)):
        # Taking blocks out is part of preparing a batch: those calls are seen as well.
        few = vectors_of(stack, encoded(stack, texts), up_to=1)
    assert ran.count(0) == 2
    assert all(ran.count(index) == 1 for index in range(1, DEPTH))
    near(few, whole[:, :2])


def test_looking_leaves_no_hook_behind(stack):
    texts = sample_texts(stack)
    vectors_of(stack, encoded(stack, texts), last_layer="final norm")
    assert not any(m._forward_hooks or "forward" in m.__dict__ for m in stack.model.modules())
    assert all(p.grad is None and not p.is_inference() for p in stack.model.parameters())


def test_where_all_tokens_are_read_the_vector_is_their_mean(tiny_model):
    stack = load_model(str(tiny_model("eurobert")), ["no", "yes"]).stack
    texts = sample_texts(stack)
    found = vectors_of(stack, encoded(stack, texts))
    seen = {}
    for row, text in enumerate(texts):
        with torch.no_grad(), watched(stack, seen.__setitem__):
            last = stack.model.base_model(torch.tensor([text])).last_hidden_state
        near(found[row, 1:], np.stack([seen[i][0].mean(0) for i in range(DEPTH)]))
        after = vectors_of(stack, encoded(stack, [text]), last_layer="final norm")[0, -1]
        near(after, last[0].mean(0).numpy())


def test_a_model_that_does_not_tell_what_its_head_is_given_is_refused(tiny_model):
    stack = load_model(str(tiny_model("opt")), ["no", "yes"]).stack
    stack.model.base_model_prefix = ""  # it is its own base then, and answers with logits
    with pytest.raises(ModelError, match="block output"):
        head_input(stack, torch.zeros(2, WIDTH), stack.prepare(stack.sample(2)))
