import pytest
import torch

from fixtures.models import FAMILIES
from memloc.errors import ModelError
from memloc.model.calls import Repeater
from memloc.model.load import load_model
from memloc.model.stack import BlockCall, sample_batch


@pytest.fixture(params=FAMILIES)
def stack(request, tiny_model):
    return load_model(str(tiny_model(request.param)), ["no", "yes"]).stack


@torch.no_grad()
def test_a_block_runs_on_several_states_of_a_padded_batch_at_once(stack):
    prepared = stack.prepare(sample_batch(stack.model))
    states = torch.randn(3, *prepared.state.shape)
    repeater = Repeater(stack)
    for index, call in enumerate(prepared.calls):
        together = stack.run(index, states.flatten(0, 1), repeater.repeated(index, call, 3))
        alone = torch.cat([stack.run(index, state, call) for state in states])
        assert torch.allclose(together, alone, atol=1e-5)


@torch.no_grad()
def test_a_batch_of_one_is_repeated_as_well(stack):
    ids = sample_batch(stack.model)["input_ids"][:1]
    prepared = stack.prepare({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    states = torch.randn(3, *prepared.state.shape)
    call = Repeater(stack).repeated(1, prepared.calls[1], 3)
    alone = torch.cat([stack.run(1, state, prepared.calls[1]) for state in states])
    assert torch.allclose(stack.run(1, states.flatten(0, 1), call), alone, atol=1e-5)


class Given:
    """A stack whose blocks are given the tensors that `make` makes for n examples."""

    def __init__(self, model, make):
        self.model, self.make = model, make

    def sample(self, n):
        return n

    def prepare(self, batch):
        self.n = batch
        return self

    @property
    def calls(self):
        return (BlockCall((self.make(self.n),), {"inner": (None, (self.make(self.n), "x"))}),)


def test_what_has_a_row_an_example_is_repeated_however_deep_it_lies(tiny_model):
    model = load_model(str(tiny_model("bert")), ["no", "yes"]).model
    repeater = Repeater(Given(model, lambda n: torch.zeros(n, 4)))
    rows = torch.arange(8.0).view(2, 4)
    call = repeater.repeated(0, BlockCall((rows,), {"inner": (None, (rows, "x"))}), 2)
    assert torch.equal(call.args[0], torch.cat([rows, rows]))
    none, (inner, x) = call.kwargs["inner"]
    assert (none, x) == (None, "x")
    assert torch.equal(inner, torch.cat([rows, rows]))


def test_what_all_examples_share_is_left_alone(tiny_model):
    model = load_model(str(tiny_model("bert")), ["no", "yes"]).model
    repeater = Repeater(Given(model, lambda _n: torch.zeros(2, 4)))
    shared = torch.zeros(2, 4)
    call = repeater.repeated(0, BlockCall((shared,), {"inner": (None, (shared, "x"))}), 2)
    assert call.args[0] is shared
    assert call.kwargs["inner"][1][0] is shared


def test_a_tensor_with_examples_elsewhere_is_refused_in_one_sentence(tiny_model):
    model = load_model(str(tiny_model("bert")), ["no", "yes"]).model
    with pytest.raises(ModelError, match=r"not supported.*\(4, 2\) for 2 examples and \(4, 3\)"):
        Repeater(Given(model, lambda n: torch.zeros(4, n)))
