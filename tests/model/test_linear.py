"""Tests of memloc.model.linear."""

import pytest
import torch
from torch import nn

from memloc.model import linear as module
from memloc.model.linear import PLAIN, linear
from memloc.model.predict import evaluating

WIDTH = 256


@pytest.fixture
def matrices() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    drawn = torch.Generator().manual_seed(0)
    sizes = (3, 7, WIDTH), (2 * WIDTH, WIDTH), (2 * WIDTH,)
    states, weight, bias = (torch.randn(size, generator=drawn) for size in sizes)
    return states, weight, bias


def in_both_ways(*given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.no_grad():
        return linear(*given), PLAIN(*given)


def is_noise(found: torch.Tensor, plain: torch.Tensor) -> bool:
    return bool((found - plain).abs().max() <= 1e-5 * plain.abs().max())


def test_products_are_those_of_torch(matrices):
    states, weight, bias = matrices
    for given in ((states, weight, bias), (states, weight), (states[0, 0], weight, bias)):
        found, plain = in_both_ways(*given)
        assert found.shape == plain.shape
        assert is_noise(found, plain)


def test_matrices_need_not_be_in_one_piece(matrices):
    states, weight, bias = matrices
    turned = weight.t().contiguous().t()
    cut = torch.cat([states, states], 1)[:, ::2]
    assert not turned.is_contiguous()
    assert not cut.is_contiguous()
    assert is_noise(*in_both_ways(cut, turned, bias))
    assert is_noise(*in_both_ways(states.transpose(0, 1), weight, bias))


def test_gradients_and_other_numbers_are_left_to_torch(matrices, monkeypatch):
    monkeypatch.setattr(module, "_has_wide_vectors", lambda: True)
    states, weight, bias = matrices
    with torch.no_grad():
        assert module._is_plain(states, weight, bias)
        assert not module._is_plain(states.double(), weight.double(), None)
        assert not module._is_plain(states[..., :64], weight[:, :64], None)
        assert not module._is_plain(states[:0], weight, bias)
        with torch.autocast("cpu", torch.bfloat16):
            assert not module._is_plain(states, weight, bias)
    assert not module._is_plain(states, weight, bias)
    weight.requires_grad_()
    assert linear(states, weight, bias).requires_grad


def test_it_is_in_use_only_while_a_model_is_evaluated():
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout())
    assert nn.functional.linear is PLAIN
    with evaluating(model), evaluating(model):
        assert nn.functional.linear is linear
    assert nn.functional.linear is PLAIN
    with pytest.raises(ValueError, match="ended"), evaluating(model):
        raise ValueError("ended")
    assert nn.functional.linear is PLAIN
