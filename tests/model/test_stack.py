from types import SimpleNamespace

import pytest
import torch
from transformers import BertConfig, PreTrainedModel

from fixtures.models import DEPTH, FAMILIES, WIDTH, watched
from memloc.errors import ModelError
from memloc.model.load import load_model
from memloc.model.parts import find_parts
from memloc.model.stack import (
    Stack,
    at_positions,
    find_blocks,
    hidden_of,
)

FIRST = {"bert", "distilbert", "electra", "roberta", "mpnet"}
LENGTHS = (9, 4, 6, 1)


@pytest.fixture(params=FAMILIES)
def loaded(request, tiny_model):
    return load_model(str(tiny_model(request.param)), ["no", "maybe", "yes"])


@pytest.fixture
def stack(loaded):
    return loaded.stack


def sample_texts(stack, lengths=LENGTHS, seed=0):
    """Token ids without the padding token; families with positions from pad + 1 need that."""
    pad = stack.model.config.pad_token_id
    tokens = torch.tensor([i for i in range(stack.model.config.vocab_size) if i != pad])
    rng = torch.Generator().manual_seed(seed)
    return [tokens[torch.randint(len(tokens), (1, n), generator=rng)] for n in lengths]


def padded(texts, pad):
    longest = max(t.shape[1] for t in texts)
    ids = torch.full((len(texts), longest), pad)
    mask = torch.zeros_like(ids)
    for row, text in enumerate(texts):
        ids[row, : text.shape[1]] = text
        mask[row, : text.shape[1]] = 1
    return {"input_ids": ids, "attention_mask": mask}


def alone(text):
    return {"input_ids": text, "attention_mask": torch.ones_like(text)}


def by_blocks(stack, batch):
    prepared = stack.prepare(batch)
    state = prepared.state
    for index, call in enumerate(prepared.calls):
        state = stack.run(index, state, call)
    return stack.finish(stack.read(state, prepared), prepared.batch)


def assert_same(found, expected):
    """Equal up to float noise, measured against the largest number."""
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


def traces(model):
    """Whatever a stack could leave behind on a model."""
    return {
        name: (
            "forward" in module.__dict__,
            len(module._forward_hooks),
            len(module._forward_pre_hooks),
            module.training,
        )
        for name, module in model.named_modules()
    }


def test_depth_width_and_readout_are_found(stack, request):
    family = request.node.callspec.params["loaded"]
    assert (stack.depth, stack.width) == (DEPTH, WIDTH)
    assert stack.readout == ("first" if family in FIRST else "last")


@torch.no_grad()
def test_blocks_one_by_one_give_the_plain_logits(stack):
    for text in sample_texts(stack):
        plain = stack.model(input_ids=text).logits
        assert_same(by_blocks(stack, alone(text)), plain)
        assert_same(stack.logits(alone(text)), plain)


@torch.no_grad()
def test_a_padded_batch_gives_the_same_logits_as_each_text_alone(stack):
    texts = sample_texts(stack)
    batch = padded(texts, stack.model.config.pad_token_id)
    expected = torch.cat([stack.model(input_ids=text).logits for text in texts])
    assert (
        expected.std(0) > 0.01 * expected.abs().max()
    ).all()  # texts differ, so a wrong position would show
    assert_same(stack.logits(batch), expected)
    assert_same(by_blocks(stack, batch), expected)


@torch.no_grad()
@pytest.mark.parametrize("family", ["gpt_neo", "gpt_neox", "gpt2", "llama"])
def test_a_text_that_ends_with_the_padding_token_is_read_at_its_end(tiny_model, family):
    stack = load_model(str(tiny_model(family)), ["no", "yes"]).stack
    pad = stack.model.config.pad_token_id
    short, long = sample_texts(stack, (4, 7))
    short[0, -1] = pad  # a word of the text that happens to be the token used for padding
    expected = stack.finish(hidden_after_blocks(stack, alone(short))[:, -1])
    batch = padded([long, short], pad)
    assert_same(stack.logits(batch)[1:], expected)
    assert_same(stack.logits(alone(short)), expected)
    misled = stack.model(**batch).logits[1:]
    assert (misled - expected).abs().max() > 0.01 * expected.abs().max()


def hidden_after_blocks(stack, batch):
    return stack.run_all(stack.prepare(batch))


@torch.no_grad()
def test_any_block_runs_on_any_state(stack):
    (text,) = sample_texts(stack, (5,))
    prepared = stack.prepare(alone(text))
    seen = {}
    with watched(stack, seen.__setitem__):
        plain = stack.logits(alone(text))
    assert sorted(seen) == list(range(DEPTH))
    state = seen[0]
    rest = stack.run_all(prepared, first=1, state=state)
    logits = stack.finish(at_positions(rest, prepared.positions))
    assert_same(logits, plain)
    other = stack.run_all(prepared, first=1, state=torch.randn_like(state))
    assert not torch.allclose(other, rest, atol=1e-3)


@pytest.mark.parametrize("training", [True, False])
def test_work_leaves_no_trace_on_the_model(loaded, training):
    model = loaded.model.train(training)
    before = traces(model)
    stack = Stack(model)
    batch = padded(sample_texts(stack), model.config.pad_token_id)
    with torch.no_grad():
        by_blocks(stack, batch)
        stack.logits(batch)
        with watched(stack, lambda _index, _state: None):
            stack.logits(batch)
    assert traces(model) == before


def test_an_error_inside_leaves_no_trace_either(loaded):
    model, stack = loaded.model, loaded.stack
    before = traces(model)
    (text,) = sample_texts(stack, (5,))

    def fail(*_):
        raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"), watched(stack, fail):
        stack.logits(alone(text))
    with pytest.raises((IndexError, RuntimeError)):
        stack.prepare(alone(text + 10_000))
    with pytest.raises((IndexError, RuntimeError)):
        stack.logits(alone(text + 10_000))
    with pytest.raises((IndexError, RuntimeError, ValueError)):
        stack.finish(torch.zeros(2, WIDTH + 3))
    assert traces(model) == before


def test_weights_are_not_changed_by_looking(loaded):
    before = {k: v.clone() for k, v in loaded.model.state_dict().items()}
    batch = padded(sample_texts(loaded.stack), loaded.model.config.pad_token_id)
    by_blocks(loaded.stack, batch)
    assert all(torch.equal(v, before[k]) for k, v in loaded.model.state_dict().items())
    assert all(p.grad is None for p in loaded.model.parameters())


def test_gradients_of_the_blocks_are_those_of_the_plain_forward(stack):
    (text,) = sample_texts(stack, (5,))
    parameter = next(stack.blocks[1].parameters())
    (plain,) = torch.autograd.grad(stack.model(input_ids=text).logits[0, 0], parameter)
    (ours,) = torch.autograd.grad(stack.logits(alone(text))[0, 0], parameter)
    (run,) = torch.autograd.grad(by_blocks(stack, alone(text))[0, 0], parameter)
    assert plain.abs().max() > 0
    assert_same(ours, plain)
    assert_same(run, plain)


def test_a_deep_model_is_seen_whole(tiny_model):
    stack = load_model(str(tiny_model("opt", depth=24)), ["no", "yes"]).stack
    assert stack.depth == 24
    texts = sample_texts(stack)
    batch = padded(texts, stack.model.config.pad_token_id)
    with torch.no_grad():
        expected = torch.cat([stack.model(input_ids=text).logits for text in texts])
        assert_same(by_blocks(stack, batch), expected)


def classifier(config):
    from transformers import AutoModelForSequenceClassification

    return AutoModelForSequenceClassification.from_config(config)


def test_layers_with_shared_weights_are_refused_in_one_sentence():
    from transformers import AlbertConfig

    model = classifier(
        AlbertConfig(
            vocab_size=30,
            embedding_size=8,
            hidden_size=16,
            num_hidden_layers=3,
            num_attention_heads=2,
            intermediate_size=16,
        )
    )
    with pytest.raises(ModelError, match=r"AlbertForSeq.*its 3 layers share their weights"):
        Stack(model)


@pytest.mark.parametrize("decoder_layers", [2, 3])
def test_encoder_decoders_are_refused_in_one_sentence(decoder_layers):
    from transformers import BartConfig

    model = classifier(
        BartConfig(
            vocab_size=30,
            d_model=16,
            encoder_layers=2,
            decoder_layers=decoder_layers,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=16,
            decoder_ffn_dim=16,
            max_position_embeddings=32,
        )
    )
    with pytest.raises(ModelError, match="not supported") as error:
        Stack(model)
    assert "\n" not in str(error.value)


def test_a_model_without_padding_token_is_refused_in_one_sentence(tiny_model):
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(tiny_model("gpt_neo"))
    model.config.pad_token_id = None
    with pytest.raises(ModelError, match=r"no padding token.*pad_token_id"):
        Stack(model)


def test_a_list_inside_a_block_does_not_count(tiny_model):
    model = load_model(str(tiny_model("bert")), ["no", "yes"]).model
    model.bert.encoder.layer[0].experts = torch.nn.ModuleList(
        torch.nn.Linear(2, 2) for _ in range(DEPTH)
    )
    assert find_blocks(model) is model.bert.encoder.layer


@torch.no_grad()
@pytest.mark.parametrize("pool", ["mean", "max"])
def test_a_head_that_reads_every_position_is_given_the_whole_state(tiny_model, pool):
    """What sentence encoders do: the states of all attended positions become one vector."""
    model = load_model(str(tiny_model("bert")), ["no", "yes"]).model
    pooled_by(model, pool)
    stack = Stack(model)
    texts = sample_texts(stack)
    batch = padded(texts, model.config.pad_token_id)
    expected = torch.cat([model(**alone(text)).logits for text in texts])
    assert stack.readout == "all"
    assert stack.pads
    assert_same(stack.logits(batch), expected)
    assert_same(by_blocks(stack, batch), expected)
    prepared = stack.prepare(batch)
    read = stack.read(stack.run_all(prepared), prepared)
    twice = stack.finish(torch.cat([read, read]), batch)
    assert_same(twice, torch.cat([expected, expected]))


def pooled_by(model, pool):
    """Replaces the pooler, which looks at the first token only."""

    def note(_module, args, kwargs):
        model.mask = kwargs["attention_mask"]

    def pooler(states):
        mask = model.mask.unsqueeze(-1)
        if pool == "mean":
            return (states * mask).sum(1) / mask.sum(1)
        return states.masked_fill(mask == 0, -torch.inf).max(1).values

    model.register_forward_pre_hook(note, with_kwargs=True)
    model.bert.pooler.forward = pooler


def test_a_head_that_reads_nothing_of_the_last_block_is_refused(tiny_model):
    model = load_model(str(tiny_model("bert")), ["no", "yes"]).model
    model.bert.pooler.register_forward_hook(lambda _m, _i, out: torch.zeros_like(out))
    with pytest.raises(ModelError, match="do not depend on what the last block returns"):
        Stack(model)


class Box(torch.nn.Module):
    """A block that returns its state in a collection."""

    def __init__(self, form):
        super().__init__()
        self.form, self.mix = form, torch.nn.Linear(8, 8)

    def forward(self, hidden_states):
        state = hidden_states + self.mix(hidden_states).tanh()
        return {"state": state, "more": None} if self.form is dict else self.form([state, None])


class Boxed(PreTrainedModel):
    config_class = BertConfig

    def __init__(self, config, form):
        super().__init__(config)
        self.words = torch.nn.Embedding(config.vocab_size, 8)
        self.layers = torch.nn.ModuleList(Box(form) for _ in range(config.num_hidden_layers))
        self.head = torch.nn.Linear(8, config.num_labels)

    def forward(self, input_ids, attention_mask=None):
        state = self.words(input_ids)
        for layer in self.layers:
            state = hidden_of(layer(hidden_states=state))
        return SimpleNamespace(logits=self.head(state[:, 0]))


@torch.no_grad()
@pytest.mark.parametrize("form", [tuple, list, dict])
def test_blocks_may_return_collections_that_start_with_the_state(form):
    model = Boxed(BertConfig(vocab_size=30, num_hidden_layers=3, pad_token_id=0), form).eval()
    stack = Stack(model)
    texts = sample_texts(stack)
    expected = torch.cat([model(text).logits for text in texts])
    assert_same(by_blocks(stack, padded(texts, 0)), expected)


def test_blocks_that_hand_on_more_than_a_state_are_refused(tiny_model):
    from transformers import T5Config, T5EncoderModel

    config = T5Config(
        vocab_size=30, d_model=16, d_kv=8, d_ff=16, num_layers=2, num_heads=2, pad_token_id=0
    )
    body = T5EncoderModel(config)
    encode = body.forward

    def classify(**batch):
        return SimpleNamespace(logits=encode(**batch).last_hidden_state.mean(1)[:, :2])

    body.forward = classify
    body.config.is_encoder_decoder = False
    with pytest.raises(ModelError, match="hand on more than a state"):
        Stack(body)


def test_a_model_is_looked_at_in_inference_mode_as_well(tiny_model):
    loaded, other = (load_model(str(tiny_model("opt")), ["no", "yes"]) for _ in range(2))
    with torch.inference_mode():
        stack = loaded.stack
        parts = find_parts(stack)
    assert (stack.readout, stack.depth) == (other.stack.readout, other.stack.depth)
    assert parts == find_parts(other.stack)


def test_blocks_that_are_not_called_once_each_are_refused(tiny_model):
    model = load_model(str(tiny_model("bert")), ["no", "yes"]).model
    first = model.bert.encoder.layer[0]
    model.bert.encoder.register_forward_pre_hook(
        lambda _m, args, kwargs: ((first(args[0], **kwargs), *args[1:]), kwargs), with_kwargs=True
    )
    with pytest.raises(ModelError, match="calls the 3 blocks of its list 4 times"):
        Stack(model)


def test_whatever_a_model_raises_is_a_sentence_with_its_type_and_kept(tiny_model):
    model = load_model(str(tiny_model("opt")), ["no", "yes"]).model

    def fail(*_):
        raise KeyError("two\nlines")

    model.score.register_forward_hook(fail)
    with pytest.raises(ModelError, match=r"OPTFor.*cannot be used.*two.*\(KeyError\)") as error:
        Stack(model)
    assert "\n" not in str(error.value)
    assert isinstance(error.value.__cause__, KeyError)


def test_a_block_that_returns_something_else_is_refused():
    with pytest.raises(ModelError, match="returned int"):
        hidden_of({"hidden_states": 1})
