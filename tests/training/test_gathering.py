import pytest
import torch
from torch import nn

from memloc.training.gathering import clear_gradients, gathered


def make():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(3, 4), nn.Linear(4, 300), nn.Linear(300, 300), nn.Linear(300, 2)
        )


def groups_of(model):
    return [dict(layer.named_parameters()) for layer in model]


def test_small_parameters_become_one_tensor_and_large_ones_stay():
    model = make()
    groups = groups_of(model)
    with gathered(groups) as tensors:
        assert [len(t) for t in tensors] == [1, 1, 2, 1]
        assert tensors[2]["weight"] is model[2].weight  # 90,000 numbers
        assert sum(t.numel() for group in tensors for t in group.values()) == sum(
            p.numel() for p in model.parameters()
        )


def test_values_and_gradients_are_shared_while_gathered():
    model, plain = make(), make()
    inputs = torch.randn(5, 3)
    with gathered(groups_of(model)) as tensors:
        model(inputs).sum().backward()
        plain(inputs).sum().backward()
        for one, other in zip(model.parameters(), plain.parameters(), strict=True):
            assert torch.equal(one, other)
            assert torch.equal(one.grad, other.grad)
        whole = tensors[0]["group-0"]
        expected = torch.cat([p.grad.flatten() for p in plain[0].parameters()])[None]
        assert torch.equal(whole.grad, expected)
        with torch.no_grad():
            whole.fill_(7)
        assert (model[0].weight == 7).all()
        assert (model[0].bias == 7).all()


def test_cleared_gradients_do_not_add_up():
    model = make()
    inputs = torch.randn(5, 3)
    with gathered(groups_of(model)) as tensors:
        seen = []
        for _ in range(2):
            for group in tensors:
                clear_gradients(group)
            model(inputs).sum().backward()
            seen.append([p.grad.clone() for p in model.parameters()])
        assert all(torch.equal(a, b) for a, b in zip(*seen, strict=True))


def test_everything_is_put_back_after_an_error_too():
    model = make()
    expected = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(ZeroDivisionError), gathered(groups_of(model)):
        raise ZeroDivisionError
    for parameter, values in zip(model.parameters(), expected, strict=True):
        assert torch.equal(parameter, values)
        assert parameter.untyped_storage().nbytes() == 4 * parameter.numel()
        assert parameter.is_leaf
