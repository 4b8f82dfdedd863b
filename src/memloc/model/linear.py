"""Linear layers by oneDNN where no gradient is asked for, which some processors compute faster.

torch computes linear layers in float32 by MKL, which uses vectors of 256 bits on processors of
other makers, whatever they can do. oneDNN uses 512 where there are as many: in one core, products
of matrices 384 to 768 wide took less than half as long. Both compute in float32, so that answers
differ by float noise.
"""

from functools import cache

import torch
from torch import Tensor, nn

from memloc.model.device import NARROW

PLAIN = nn.functional.linear


def linear(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return what `torch.nn.functional.linear` returns, by oneDNN where that can be faster."""
    if not (_has_wide_vectors() and _is_plain(states, weight, bias)):
        return PLAIN(states, weight, bias)
    product: Tensor = torch.ops.mkldnn._linear_pointwise(states, weight, bias, "none", [], "")
    return product


def _is_plain(states: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Return whether a product of plain matrices on the processor is asked for, in float32 and
    without gradients. For narrow ones, a new shape costs more than a product saves (measured).
    """
    given = [states, weight] if bias is None else [states, weight, bias]
    return (
        # First: weights of several models have a type of their own, which knows few questions.
        all(type(each) in (Tensor, nn.Parameter) for each in given)
        and all(each.device.type == "cpu" and each.dtype == torch.float32 for each in given)
        and min(weight.shape) >= NARROW
        and states.numel() > 0
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
    )


@cache
def _has_wide_vectors() -> bool:
    """Return whether this processor has vectors of 512 bits, and torch has oneDNN."""
    is_there = hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return is_there and torch.backends.cpu.get_cpu_capability() == "AVX512"
