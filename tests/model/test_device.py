import pytest
import torch

from memloc.errors import SettingsError
from memloc.model.device import pick_device, suitable_threads


def test_a_device_is_picked_by_name():
    assert pick_device("cpu") == torch.device("cpu")
    assert pick_device("auto").type in ("cpu", "cuda", "mps")


@pytest.mark.parametrize("name", ["tpu", "gpu", ""])
def test_a_device_that_is_not_there_is_refused(name):
    with pytest.raises(SettingsError, match="not on this machine; there is: cpu"):
        pick_device(name)


def test_threads_are_put_back():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with suitable_threads(64) as n:
            assert n == 1
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
