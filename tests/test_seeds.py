import numpy as np
import pytest
import torch

from memloc.seeds import generator, number, torch_seeded


def test_a_number_is_the_same_on_every_machine():
    # printf '1/noise/rte' | sha256sum, the first 16 digits as little-endian bytes, halved.
    assert number(1, "noise", "rte") == 4498780223559606334


def test_numbers_fit_63_bits_and_differ_by_seed_and_name():
    numbers = {number(seed, *names) for seed in range(50) for names in ((), ("a",), ("a", 1))}
    assert len(numbers) == 150
    assert all(0 <= n < 2**63 for n in numbers)


def test_a_generator_depends_on_its_name_alone():
    first = generator(1, "order", 3).random(5)
    generator(1, "other").random(1000)
    np.random.default_rng().random(3)
    assert (generator(1, "order", 3).random(5) == first).all()
    assert not (generator(1, "order", 4).random(5) == first).any()
    assert not (generator(2, "order", 3).random(5) == first).any()


def test_torch_is_seeded_inside_and_untouched_outside():
    before = torch.random.get_rng_state()
    with torch_seeded(1, "dropout", 2):
        inside = torch.rand(4)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(7)
    with torch_seeded(1, "dropout", 2):
        assert torch.equal(torch.rand(4), inside)
    with torch_seeded(1, "dropout", 3):
        assert not torch.equal(torch.rand(4), inside)


def test_torch_is_put_back_after_an_error():
    before = torch.random.get_rng_state()
    with pytest.raises(TypeError), torch_seeded(1, "head"):
        torch.rand(4) + "text"
    assert torch.equal(torch.random.get_rng_state(), before)
