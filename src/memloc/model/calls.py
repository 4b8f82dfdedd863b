"""Calls of blocks for more states, or fewer positions, than the model's own pass has.

`Repeater` repeats a block's arguments, so that the block runs on several states of one batch in one
call. `LastBlock` runs the last block at the readout positions alone: a head that reads one position
of a text needs the block's output at that position only, and keys and values at all positions. So
the block runs up to its attention for all positions, without the projections that neither keys nor
values depend on, and then as a whole for the readout positions, which attend to the keys and values
of the first call. If a projection's outputs are the keys or values themselves, it is not computed
for all positions either: few queries are projected back instead, and few sums of attended states.
This works for models that use the standard attention function of transformers.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from memloc.errors import ModelError
from memloc.model.stack import TOLERANCE, BlockCall, Prepared, Stack, undropped

Tokens = slice | Tensor
"""Tokens to compute: one slice for all texts, or an array (texts, positions)."""
SDPA = "sdpa"
"""Name of the attention implementation that can be run in two steps."""
FEW = 4
"""Number of tokens for each position read from which on keys and values are not computed first."""
CALLED_OTHERWISE = TypeError, ValueError, RuntimeError, IndexError
"""Errors of a block whose attention is called in another way."""


class Repeater:
    """Repeats the arguments of a stack's blocks for several states, stored one after the other."""

    def __init__(self, stack: Stack) -> None:
        self.name = type(stack.model).__name__
        with torch.no_grad():
            small, large = (stack.prepare(stack.sample(n)).calls for n in (2, 3))
        self._by_example = [
            self._compare(_values(a), _values(b)) for a, b in zip(small, large, strict=True)
        ]

    def repeated(self, index: int, call: BlockCall, times: int) -> BlockCall:
        """Return the arguments of block `index`, repeated for this many states of the recorded
        batch.
        """
        if times == 1:
            return call
        values = self._repeat(_values(call), self._by_example[index], times)
        n = len(call.args)
        return BlockCall(values[:n], dict(zip(call.kwargs, values[n:], strict=True)))

    def _compare(self, small: Any, large: Any) -> Any:
        """Return whether a tensor has one row per example; for a tuple, the answer for each
        element.
        """
        if isinstance(small, tuple) and isinstance(large, tuple):
            return tuple(self._compare(a, b) for a, b in zip(small, large, strict=True))
        if not isinstance(small, Tensor) or small.shape == large.shape:
            return False
        # For 2 and 3 examples; tensors with several rows per example (one per head) count, too.
        if small.shape[1:] == large.shape[1:] and 3 * len(small) == 2 * len(large):
            return True
        raise ModelError(
            f"{self.name} is not supported: its blocks are given a tensor that is "
            f"{tuple(small.shape)} for 2 examples and {tuple(large.shape)} for 3."
        )

    def _repeat(self, value: Any, by_example: Any, times: int) -> Any:
        if isinstance(value, tuple) and isinstance(by_example, tuple):
            inner = zip(value, by_example, strict=True)
            return tuple(self._repeat(v, b, times) for v, b in inner)
        if isinstance(value, Tensor) and by_example:
            return value.repeat(times, *[1] * (value.ndim - 1))
        return value


def _values(call: BlockCall) -> tuple[Any, ...]:
    return (*call.args, *call.kwargs.values())


class LastBlock:
    """The last block of a stack, or of several copies that run in one pass."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.idle: tuple[str, ...] = ()
        """Names of the block's projections that neither keys nor values depend on."""
        self.late: dict[str, str] = {}
        """Names of the projections whose outputs are the block's `key` and `value`."""
        self.is_short = stack.readout != "all" and self._can_be_short()
        """True if readout positions can be computed alone; otherwise the block runs on all."""

    def read(
        self, state: Tensor, call: BlockCall, here: Tokens, copies: Stack | None = None
    ) -> Tensor:
        """Return the block's output at some positions, or all of it where the head reads every
        position.

        Args:
            state: State before the last block.
            call: The block's other arguments.
            here: Tokens to compute.
            copies: Copies of the stack that run in one pass; the stack itself by default.
        """
        stack = self.stack if copies is None else copies
        if self.is_short:
            return self._at(stack, state, call, here)
        output = stack.run(stack.depth - 1, state, call)
        return output if stack.readout == "all" else _taken(output, here, 1)

    def _at(self, stack: Stack, state: Tensor, call: BlockCall, here: Tokens) -> Tensor:
        usual = AttentionInterface()[SDPA]
        last = stack.depth - 1
        block, length = stack.blocks[last], state.shape[1]
        late = self._late_in(block, here, length)
        with _idling([*map(block.get_submodule, self.idle), *late.values()]) as given:
            _, _, key, value, mask = _given_to_attention(stack, state, call)
        if "key" in late:
            key = _Late(late["key"], given[late["key"]], key.shape[1])
        if "value" in late:
            value = _Late(late["value"], given[late["value"]], value.shape[1])

        def attend(module: Any, query: Tensor, *_: Any, **settings: Any) -> Any:
            reached = mask if mask is None or mask.shape[-2] == 1 else _taken(mask, here, 2)
            if mask is None and isinstance(here, slice) and getattr(module, "is_causal", False):
                every = torch.arange(length, device=state.device)
                reached = every <= every[here, None]  # attention would take them for the first
            if isinstance(value, _Late):
                return _attended(query, key, value, reached, settings.get("scaling")), None
            return usual(module, query, key, value, reached, **settings)

        args, kwargs = _cut((call.args, call.kwargs), length, here)
        with _attention(attend):
            # Where states are in one piece, it does not matter whether weights have gradients.
            return stack.run(last, _taken(state, here, 1).contiguous(), BlockCall(args, kwargs))

    def _late_in(self, block: nn.Module, here: Tokens, length: int) -> dict[str, nn.Linear]:
        """Return the projections that need not be computed for all positions of a block.

        Without gradients only: those of a keys' bias are 0, but callers expect that it has some.
        """
        n = here.stop - here.start if isinstance(here, slice) else here.shape[1]
        if FEW * n > length or block.training or torch.is_grad_enabled():
            return {}
        found = {what: block.get_submodule(name) for what, name in self.late.items()}
        # Weights of several models have a type of their own.
        is_plain = all(
            type(each) is nn.Linear and type(each.weight) is nn.Parameter for each in found.values()
        )
        return found if is_plain else {}  # type: ignore[return-value]

    def _can_be_short(self) -> bool:
        """Try the short way on one text and on two padded ones; return whether it gives the block's
        output.
        """
        self._look()
        with torch.inference_mode(), undropped(self.stack.model):
            one, two = (self.stack.prepare(self.stack.sample(n)) for n in (1, 2))
            place = int(one.positions[0])
            several = torch.stack([two.positions, torch.ones_like(two.positions)], 1)
            padded = two.positions[:, None]
            if not (self._is_right(one, slice(place, place + 1)) and self._is_right(two, padded)):
                self.late = {}
            first = 1 if self.stack.is_language_model else place  # one reads several positions
            return self._is_right(one, slice(first, place + 1)) and self._is_right(two, several)

    def _look(self) -> None:
        """Find the projections that keys and values have no gradients with respect to, and those
        whose outputs they are.
        """
        stack = self.stack
        matrices = dict[str, Tensor]()
        with ExitStack() as while_noted, undropped(stack.model), torch.inference_mode(False):
            while_noted.enter_context(torch.enable_grad())
            one = stack.prepare(stack.sample(1))
            for name, module in stack.blocks[-1].named_modules():
                if isinstance(module, nn.Linear):
                    note = partial(_note, matrices, name)
                    while_noted.enter_context(module.register_forward_hook(note))
            state = one.state.detach().requires_grad_()
            try:
                attention, _, key, value, _ = _given_to_attention(stack, state, one.calls[-1])
            except CALLED_OTHERWISE:
                return
            outputs = [*matrices.values()]
            total = key.sum() + value.sum()
            ways = torch.autograd.grad(total, outputs, allow_unused=True) if outputs else ()
        self.idle = tuple(name for name, way in zip(matrices, ways, strict=True) if way is None)
        for what, made in (("value", value), ("key", key)):
            flat = made.transpose(1, 2).flatten(2)
            for name, output in matrices.items():
                # A projection within another module, such as an adapter's, may be a part of it.
                parent = stack.blocks[-1].get_submodule(name.rpartition(".")[0])
                if parent is attention and flat.equal(output) and (what == "value" or self.late):
                    self.late[what] = name

    def _is_right(self, prepared: Prepared, here: Tokens) -> bool:
        stack = self.stack
        before = prepared.state
        call = prepared.calls[-1]
        for layer, other in enumerate(prepared.calls[:-1]):
            before = stack.run(layer, before, other)
        whole = _taken(stack.run(stack.depth - 1, before, call), here, 1)
        try:
            short = self._at(stack, before, call, here)
        except CALLED_OTHERWISE:
            return False
        return bool((short - whole).abs().max() <= TOLERANCE * whole.abs().max())


def _note(found: dict[str, Tensor], name: str, _module: Any, _given: Any, output: Tensor) -> None:
    found[name] = output


def _given_to_attention(stack: Stack, state: Tensor, call: BlockCall) -> list[Any]:
    """Return the attention module and what the last block gives to it, where the block then
    stops.
    """
    given: list[Any] = []

    def stop(module: Any, *tensors: Any, **_: Any) -> Any:
        given.extend((module, *tensors))
        raise _Reached

    with _attention(stop), suppress(_Reached):
        stack.run(stack.depth - 1, state, call)
    return given


class _Reached(Exception):
    """Raised when the block has come to its attention."""


@contextmanager
def _idling(projections: Sequence[Any]) -> Iterator[dict[Any, Tensor]]:
    """While active, these linear modules compute nothing and return zeros; yield what they are
    given.
    """
    given: dict[Any, Tensor] = {}

    def zeros(module: nn.Linear, states: Tensor) -> Tensor:
        given[module] = states
        return states.new_zeros(1).expand(*states.shape[:-1], module.out_features)

    # A library may have put a `forward` of its own on a module, which must come back.
    before = [each.__dict__.get("forward") for each in projections]
    try:
        for each in projections:
            each.forward = partial(zeros, each)
        yield given
    finally:
        for each, own in zip(projections, before, strict=True):
            if own is None:
                del each.forward
            else:
                each.forward = own


@dataclass(frozen=True)
class _Late:
    """Keys or values that were not computed: their projection and the states that it was given."""

    linear: nn.Linear
    states: Tensor
    heads: int

    def scores(self, query: Tensor) -> Tensor:
        """Return products of queries (texts, heads, queries, size) and keys, by token.

        The keys' bias adds the same to all tokens, which does not change attention.
        """
        back = torch.einsum("bhqs,hsw->bhqw", query, self._by_head(self.linear.weight, query))
        return torch.einsum("bhqw,btw->bhqt", back, self.states)

    def mixed(self, attention: Tensor) -> Tensor:
        """Return means of values, weighted by attention (texts, heads, queries, tokens)."""
        means = torch.einsum("bhqt,btw->bhqw", attention, self.states)
        found = torch.einsum("bhqw,hsw->bhqs", means, self._by_head(self.linear.weight, attention))
        if self.linear.bias is not None:
            found = found + self._by_head(self.linear.bias[:, None], attention).transpose(1, 2)
        return found

    def _by_head(self, matrix: Tensor, attention: Tensor) -> Tensor:
        """Return the rows of each head; several heads of queries may share one of keys."""
        rows = matrix.view(self.heads, -1, matrix.shape[-1])
        return rows.repeat_interleave(attention.shape[1] // self.heads, 0)


def _attended(
    query: Tensor,
    key: "Tensor | _Late",
    value: _Late,
    reached: Tensor | None,
    scale: float | None,
) -> Tensor:
    """Return what a few queries attend to, (texts, queries, heads, size)."""
    if isinstance(key, _Late):
        scores = key.scores(query)
    else:
        shared = query.shape[1] // key.shape[1]
        scores = query @ key.repeat_interleave(shared, 1).transpose(2, 3)
    scores = scores * (query.shape[-1] ** -0.5 if scale is None else scale)
    if reached is not None:
        is_mask = reached.dtype == torch.bool
        scores = scores.masked_fill(~reached, -torch.inf) if is_mask else scores + reached
    return value.mixed(scores.softmax(-1)).transpose(1, 2).contiguous()


@contextmanager
def _attention(function: Callable[..., Any]) -> Iterator[None]:
    """Replace the standard attention function by this one while active."""
    usual = AttentionInterface()[SDPA]
    AttentionInterface.register(SDPA, function)
    try:
        yield
    finally:
        AttentionInterface.register(SDPA, usual)


def _cut(value: Any, tokens: int, here: Tokens) -> Any:
    """Cut a block's arguments to some positions: position ids and rotations have one row per
    token.
    """
    if isinstance(value, dict):
        return {name: _cut(inner, tokens, here) for name, inner in value.items()}
    if isinstance(value, tuple):
        return tuple(_cut(inner, tokens, here) for inner in value)
    if isinstance(value, Tensor) and value.ndim in (2, 3) and value.shape[1] == tokens:
        return _taken(value, here, 1)
    return value


def _taken(value: Tensor, here: Tokens, axis: int) -> Tensor:
    if isinstance(here, slice):
        return value[(slice(None),) * axis + (here,)]
    shape = [1] * value.ndim
    shape[0], shape[axis] = here.shape
    return value.take_along_dim(here.view(shape), axis)
