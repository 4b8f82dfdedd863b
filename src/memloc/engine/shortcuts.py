"""Ways to the same numbers with less work.

*Packing* runs a padded batch without its padding: all texts end to end, each attending to itself
alone. In batches of random texts a third of the positions is padding. Everything but attention
works position by position, so the blocks can run on one long text of all attended positions, or on
several, under a mask that keeps the texts apart. It pays for wide models, and for several as one.

*The last block* runs at readout positions alone: a head that reads one position of a text needs
nothing else of it, and where all subsets of layers are run, every second step is one of the last
block. Only keys and values are needed at all positions. So the block runs up to its attention for
all of them, and then as a whole for these positions, which attend to the keys and values of the
first time. Attention can be taken apart like this where it is transformers' usual one.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from transformers import AttentionInterface

from memloc.arrays import IntArray
from memloc.errors import ModelError
from memloc.model.device import NARROW
from memloc.model.stack import (
    TOLERANCE,
    Batch,
    BlockCall,
    Prepared,
    Stack,
    optional_setting,
    sample_batch,
    undropped,
)

WORTH = 0.15
"""Share of the work from which packing gains more than it costs (measured)."""
Positions = slice | Tensor
"""Of all texts the same, or so many of each, (texts, positions)."""
SDPA = "sdpa"
"""The implementation of attention that is taken apart: the usual one."""


def training_logits(stack: Stack) -> Callable[[Batch], Tensor]:
    """The fastest exact way from batches to logits for this model."""
    if stack.width < NARROW or not can_pack(stack):
        return stack.logits
    last = LastBlock(stack)

    def logits(batch: Batch) -> Tensor:
        layout = fastest_layout(stack, batch["attention_mask"])
        return stack.logits(batch) if layout is None else packed_logits(last, batch, layout)

    return logits


def fastest_layout(
    stack: Stack, mask: Tensor, *, members: int = 1, worth: float = WORTH
) -> "Layout | None":
    """The long texts in which a batch takes least work; `None` if it takes least as it is.

    The batch has equally many texts of every member, one member's after another's, and each member
    gets equally many long texts. Few of them have little padding, and many let each position attend
    to few others. `worth`: the share of the work that has to be gained.
    """
    lengths = mask.sum(1).view(members, -1).cpu().numpy()
    most = optional_setting(stack.model.config, "max_position_embeddings") or 0
    least = (1 - worth) * work(stack.width, mask.numel(), mask.shape[1])
    best: IntArray | None = None
    for number in range(1, lengths.shape[1]):
        where = balanced(lengths, number)
        longest = int(np.bincount(where, lengths.flatten()).max())
        cost = work(stack.width, members * number * longest, longest)
        if cost < least and longest <= most:
            least, best = cost, where
    return None if best is None else Layout.of(mask, torch.from_numpy(best).to(mask.device))


def balanced(lengths: IntArray, number: int) -> IntArray:
    """For each text (members * texts) one of its member's long texts, which become about as long.

    The longest texts go to one long text each, the next ones in reverse order, and so on.
    """
    rank = np.argsort(np.argsort(-lengths, axis=1, kind="stable"), axis=1)
    turn, place = np.divmod(rank, number)
    place = np.where(turn % 2, number - 1 - place, place)
    found: IntArray = (place + number * np.arange(len(lengths))[:, None]).flatten()
    return found


def work(width: int, tokens: int, longest: int) -> float:
    """What a block costs for so many tokens, of which each attends to `longest`.

    In units of 2 width products, a token costs 6 width for the matrices, and one for each token
    that it attends to. The latter take 1.5 times as long, as if there were at least 40 (measured).
    """
    return tokens * (6 * width + 1.5 * max(longest, 40))


def can_pack(stack: Stack) -> bool:
    """Whether packing gives this model's own logits, tried on a small batch."""
    if stack.readout == "all" or not stack.pads:
        return False
    batch = sample_batch(stack.model)
    whole = Layout.of(batch["attention_mask"])
    try:
        with torch.no_grad(), undropped(stack.model):
            plain, packed = stack.logits(batch), packed_logits(LastBlock(stack), batch, whole)
    except (TypeError, ValueError, RuntimeError, IndexError):
        return False  # its blocks are called in a way that packing does not know
    return bool(torch.allclose(plain, packed, rtol=1e-4, atol=1e-4 * float(plain.abs().max())))


def packed_logits(last: "LastBlock", batch: Batch, layout: "Layout") -> Tensor:
    """The logits of a batch, computed on long texts by the model of this last block."""
    stack = last.stack
    packed = layout.packed(stack.prepare(batch))
    state = packed.state
    for index, call in enumerate(packed.calls[:-1]):
        state = stack.run(index, state, call)
    here, order = by_long_text(packed.positions, *layout.example.shape)
    return stack.finish(last.read(state, packed.calls[-1], here).flatten(0, 1)[order])


def by_long_text(places: Tensor, texts: int, tokens: int) -> tuple[Tensor, Tensor]:
    """Places among the positions of all long texts as positions in each, and where these are.

    A long text with fewer of them than others has its first position instead.
    """
    text, position = places // tokens, places % tokens
    number = (text.unsqueeze(1) == text).tril(-1).sum(1)
    most = int(number.max()) + 1
    found = places.new_zeros(texts, most)
    found[text, number] = position
    return found, text * most + number


@dataclass(frozen=True)
class Layout:
    """Where each attended position of a padded batch is in a long text, or in several.

    Long texts that are shorter than others are filled up with positions to which nothing attends.
    """

    shape: tuple[int, int]
    example: Tensor
    """(long texts, positions): the example to which each belongs."""
    token: Tensor
    """And its place there."""
    is_token: Tensor
    """Not so where a long text is filled up."""
    starts: Tensor
    """Where each example begins among the positions of all long texts."""

    @classmethod
    def of(cls, mask: Tensor, where: Tensor | None = None) -> "Layout":
        """The layout of a batch by its attention mask.

        `where` says in which long text each of its texts is; default: all in one.
        """
        where = mask.new_zeros(len(mask)) if where is None else where
        lengths = mask.sum(1)
        same = where.unsqueeze(1) == where
        before = (same.tril(-1) * lengths).sum(1)
        texts, longest = int(where.max()) + 1, int((before + lengths).max())
        starts = longest * where + before
        example, token = mask.nonzero(as_tuple=True)
        places = starts[example] + token
        kept = torch.zeros(3, texts * longest, dtype=torch.long, device=mask.device)
        kept[:, places] = torch.stack([example, token, torch.ones_like(token)])
        examples, tokens, used = kept.view(3, texts, longest)
        # What fills up is some token of the same long text.
        examples = torch.where(used.bool(), examples, examples[:, :1])
        shape = (mask.shape[0], mask.shape[1])
        return cls(shape, examples, tokens, used.bool(), starts)

    def packed(self, prepared: Prepared) -> Prepared:
        """What the blocks are given for the long texts."""
        once = self.once()
        calls = tuple(
            BlockCall(tuple(map(once, call.args)), {k: once(v) for k, v in call.kwargs.items()})
            for call in prepared.calls
        )
        rows = self.starts + prepared.positions
        return Prepared(self.pack(prepared.state), calls, rows, prepared.batch)

    def once(self) -> Callable[[Any], Any]:
        """`pack` that does each object once: blocks are often called with the very same."""
        done: dict[int, tuple[Any, Any]] = {}

        def pack(value: Any) -> Any:
            if id(value) not in done:
                done[id(value)] = (value, self.pack(value))  # kept, or its number may be another's
            return done[id(value)][1]

        return pack

    def pack(self, value: Any) -> Any:
        """What a block is given, for the long texts: states, positions, rotations and masks."""
        if isinstance(value, tuple):
            return tuple(self.pack(inner) for inner in value)
        if hasattr(value, "by_text"):
            value = value.by_text(value.ndim)
        if not isinstance(value, Tensor):
            return value
        n, tokens = self.shape
        if value.ndim == 4 and value.shape[2:] == (tokens, tokens):
            return self._pack_mask(value.expand(n, -1, -1, -1))
        if value.ndim >= 2 and value.shape[0] in (1, n) and value.shape[1] == tokens:
            return value.expand(n, *value.shape[1:])[self.example, self.token]
        raise ValueError(f"no rule to pack a tensor of shape {tuple(value.shape)}")

    def pairs(self, value: Tensor) -> Tensor:
        """(examples, heads, tokens, tokens) for pairs of positions of one long text."""
        example, token = self.example.unsqueeze(2), self.token
        return value[example, :, token.unsqueeze(2), token.unsqueeze(1)].permute(0, 3, 1, 2)

    def _pack_mask(self, mask: Tensor) -> Tensor:
        same = self.example.unsqueeze(2) == self.example.unsqueeze(1)
        reached = (same & self.is_token.unsqueeze(1)).unsqueeze(1)
        never = False if mask.dtype == torch.bool else torch.finfo(mask.dtype).min
        return torch.where(reached, self.pairs(mask), never)


def repeated_packed(call: BlockCall, times: int) -> BlockCall:
    """A packed call for so many states of its batch: everything has one row per long text."""

    def repeated(value: Any) -> Any:
        is_tensor = isinstance(value, Tensor)
        return value.repeat(times, *[1] * (value.ndim - 1)) if is_tensor else value

    args, kwargs = tree_map(repeated, (call.args, call.kwargs))
    return BlockCall(args, kwargs)


class Repeater:
    """Repeats the calls of a stack's blocks for states that are stacked stream by stream."""

    def __init__(self, stack: Stack) -> None:
        self.name = type(stack.model).__name__
        with torch.no_grad():
            small, large = (stack.prepare(stack.sample(n)).calls for n in (2, 3))
        self._by_example = [
            self._compare(_values(a), _values(b)) for a, b in zip(small, large, strict=True)
        ]

    def repeated(self, index: int, call: BlockCall, times: int) -> BlockCall:
        """The call of block `index` for so many states of the batch it was recorded for."""
        if times == 1:
            return call
        values = self._repeat(_values(call), self._by_example[index], times)
        n = len(call.args)
        return BlockCall(values[:n], dict(zip(call.kwargs, values[n:], strict=True)))

    def _compare(self, small: Any, large: Any) -> Any:
        """Whether a tensor has one row per example; of a tuple, the same for all that is in it."""
        if isinstance(small, tuple) and isinstance(large, tuple):
            return tuple(self._compare(a, b) for a, b in zip(small, large, strict=True))
        if not isinstance(small, Tensor) or small.shape == large.shape:
            return False
        # Of 2 and 3 examples: what has several rows an example (one a head, say) counts as well.
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
    """The last block of a stack, or of copies of it that are stacked."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.is_short = stack.readout != "all" and self._can_be_short()
        """Whether some positions are computed alone; if not, the block runs on all of them."""

    def read(
        self, state: Tensor, call: BlockCall, here: Positions, copies: Stack | None = None
    ) -> Tensor:
        """The block's output at some positions, or all of it where the head reads it all."""
        stack = self.stack if copies is None else copies
        if self.is_short:
            return self._at(stack, state, call, here)
        found = stack.run(stack.depth - 1, state, call)
        return found if stack.readout == "all" else _taken(found, here, 1)

    @staticmethod
    def _at(stack: Stack, state: Tensor, call: BlockCall, here: Positions) -> Tensor:
        usual = AttentionInterface()[SDPA]
        given: list[Tensor] = []

        def stop(_module: Any, *tensors: Any, **_: Any) -> Any:
            given.extend(tensors)
            raise _Reached

        def attend(module: Any, *_: Any, **settings: Any) -> Any:
            query, key, value, mask = given
            reached = mask if mask is None or mask.shape[-2] == 1 else _taken(mask, here, 2)
            return usual(module, _taken(query, here, 2), key, value, reached, **settings)

        last = stack.depth - 1
        with _attention(stop), suppress(_Reached):
            stack.run(last, state, call)
        args, kwargs = _cut((call.args, call.kwargs), state.shape[1], here)
        with _attention(attend):
            return stack.run(last, _taken(state, here, 1), BlockCall(args, kwargs))

    def _can_be_short(self) -> bool:
        """Whether it gives what the block gives, tried on one text and on two that are padded."""
        with torch.inference_mode(), undropped(self.stack.model):
            one, two = (self.stack.prepare(self.stack.sample(n)) for n in (1, 2))
            place = int(one.positions[0])
            several = torch.stack([two.positions, torch.ones_like(two.positions)], 1)
            return self._is_right(one, slice(place, place + 1)) and self._is_right(two, several)

    def _is_right(self, prepared: Prepared, here: Positions) -> bool:
        stack, before, call = self.stack, prepared.state, prepared.calls[-1]
        for layer, other in enumerate(prepared.calls[:-1]):
            before = stack.run(layer, before, other)
        whole = _taken(stack.run(stack.depth - 1, before, call), here, 1)
        try:
            short = self._at(stack, before, call, here)
        except (TypeError, ValueError, RuntimeError, IndexError):
            return False  # its attention is called in another way
        return bool((short - whole).abs().max() <= TOLERANCE * whole.abs().max())


class _Reached(Exception):
    """The block has come to its attention."""


@contextmanager
def _attention(function: Callable[..., Any]) -> Iterator[None]:
    """While active, this stands in for the usual attention."""
    usual = AttentionInterface()[SDPA]
    AttentionInterface.register(SDPA, function)
    try:
        yield
    finally:
        AttentionInterface.register(SDPA, usual)


def _cut(value: Any, tokens: int, here: Positions) -> Any:
    """What a block is given for some positions: places and rotations have one row a token."""
    if isinstance(value, dict):
        return {name: _cut(inner, tokens, here) for name, inner in value.items()}
    if isinstance(value, tuple):
        return tuple(_cut(inner, tokens, here) for inner in value)
    if isinstance(value, Tensor) and value.ndim in (2, 3) and value.shape[1] == tokens:
        return _taken(value, here, 1)
    return value


def _taken(value: Tensor, here: Positions, axis: int) -> Tensor:
    if isinstance(here, slice):
        return value[(slice(None),) * axis + (here,)]
    shape = [1] * value.ndim
    shape[0], shape[axis] = here.shape
    return value.take_along_dim(here.view(shape), axis)
