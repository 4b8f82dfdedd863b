import pytest
import torch
from torch import nn

from memloc.engine.gathering import (
    Gathered,
    clear_gradients,
    clip_gradients,
    gathered,
    merged,
)
from memloc.engine.stacked import Members


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


def members_of(*values):
    """Parameters of three members each, and of each member its own."""
    found = []
    for value in values:
        whole = Members(torch.stack([torch.full((2, 2), value + k) for k in range(3)]))
        whole.own = [torch.nn.Parameter(part.clone()) for part in whole.detach()]
        whole.share()
        found.append(whole)
    return found


def test_members_see_what_they_learn():
    one, two = members_of(1.0, 5.0)
    with gathered([{"one": one, "two": two}]) as (group,):
        (tensor,) = group.values()
        assert tensor.shape == (3, 8)
        one.grad.fill_(1)
        two.grad.fill_(2)
        tensor.data.sub_(tensor.grad)
        assert torch.equal(one[:, 0, 0], torch.tensor([0.0, 1.0, 2.0]))
        assert torch.equal(two[:, 0, 0], torch.tensor([3.0, 4.0, 5.0]))
        assert [float(own.data[0, 0]) for own in one.own] == [0.0, 1.0, 2.0]
    assert [float(own.data[0, 0]) for own in two.own] == [3.0, 4.0, 5.0]


def test_each_member_is_clipped_by_its_own_norm():
    (one,) = members_of(1.0)
    with gathered([{"one": one}]) as (group,):
        group["group-0"].grad.copy_(torch.tensor([[3.0, 4.0, 0, 0], [0.3, 0.4, 0, 0], [0] * 4]))
        clip_gradients(group, 3, 1.0)
        expected = torch.tensor([[0.6, 0.8, 0, 0], [0.3, 0.4, 0, 0], [0] * 4])
        torch.testing.assert_close(group["group-0"].grad, expected)


@pytest.mark.parametrize("small", [3, 100])
def test_a_group_of_the_first_members_counts_in_their_norms(monkeypatch, small):
    monkeypatch.setattr("memloc.engine.gathering.SMALL", small)
    (every,), few = members_of(1.0), Members(torch.ones(1, 2, 2))
    with gathered([{"every": every}, {"few": few}]) as groups:
        tensors = merged(groups)
        every.grad[:, 0, 0] = 3
        few.grad[:, 0, 0] = 4
        clip_gradients(tensors, 3, 1.0)
        assert every.grad[:, 0, 0].tolist() == pytest.approx([0.6, 1.0, 1.0], rel=1e-5)
        assert float(few.grad[0, 0, 0]) == pytest.approx(0.8, rel=1e-5)


def test_large_parameters_of_several_members_are_rows_as_well(monkeypatch):
    monkeypatch.setattr("memloc.engine.gathering.SMALL", 3)
    (one,) = members_of(1.0)
    with gathered([{"one": one}]) as (group,):
        assert isinstance(group["one"], Gathered)
