"""Packing: runs a padded batch without its padding, which gives the same numbers with less work.

All texts are joined end to end, each attending to itself alone. In batches of random texts a third
of the positions is padding. Everything but attention works position by position, so the blocks can
run on one long text of all attended positions, or on several, under a mask that keeps the texts
apart. Packing pays for wide models, and for several narrow models in one pass.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from memloc.arrays import IntArray
from memloc.data.encode import Encoded
from memloc.model.calls import LastBlock
from memloc.model.device import NARROW
from memloc.model.predict import to_batch
from memloc.model.stack import (
    Batch,
    BlockCall,
    Prepared,
    Stack,
    optional_setting,
    sample_batch,
    undropped,
)

WORTH = 0.15
"""Share of the work that packing must save to be worth its cost (measured)."""


def training_logits(stack: Stack) -> Callable[[Batch], Tensor]:
    """Return the fastest exact function from batches to logits for this model."""
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
    """Return the long texts in which a batch takes the least work; None if the batch as it is does.

    The batch has equally many texts of every member, ordered by member, and each member gets
    equally many long texts. Few long texts have little padding, and with many each position attends
    to few others.

    Args:
        stack: The model.
        mask: Attention mask of the batch.
        members: Number of members.
        worth: Share of the work that must be saved.
    """
    lengths = mask.sum(1).view(members, -1).cpu().numpy()
    most = optional_setting(stack.model.config, "max_position_embeddings") or 0
    least = (1 - worth) * block_cost(stack.width, mask.numel(), mask.shape[1])
    best: IntArray | None = None
    for number in range(1, lengths.shape[1]):
        where = balanced(lengths, number)
        longest = int(np.bincount(where, lengths.flatten()).max())
        cost = block_cost(stack.width, members * number * longest, longest)
        if cost < least and longest <= most:
            least, best = cost, where
    return None if best is None else Layout.of(mask, torch.from_numpy(best).to(mask.device))


def balanced(lengths: IntArray, number: int) -> IntArray:
    """Distribute the texts (members * texts) of each member over long texts of about equal length.

    The longest texts go to one long text each, the next ones in reverse order, and so on.
    """
    rank = np.argsort(np.argsort(-lengths, axis=1, kind="stable"), axis=1)
    turn, place = np.divmod(rank, number)
    place = np.where(turn % 2, number - 1 - place, place)
    long_text: IntArray = (place + number * np.arange(len(lengths))[:, None]).flatten()
    return long_text


def block_cost(width: int, tokens: int, longest: int) -> float:
    """Return the cost of a block for `tokens` tokens, each of which attends to `longest`.

    The unit is 2 width products: a token costs 6 width for the matrices, and one for each token
    that it attends to. The latter take 1.5 times as long, as if there were at least 40 (measured).
    """
    return tokens * (6 * width + 1.5 * max(longest, 40))


def can_pack(stack: Stack) -> bool:
    """Return whether packing gives this model's own logits, tried on a small batch."""
    if stack.readout == "all" or not stack.pads:
        return False
    batch = sample_batch(stack.model)
    whole = Layout.of(batch["attention_mask"])
    try:
        with torch.no_grad(), undropped(stack.model):
            plain = stack.logits(batch)
            packed = packed_logits(LastBlock(stack), batch, whole)
    except (TypeError, ValueError, RuntimeError, IndexError):
        return False  # its blocks are called in a way that packing does not know
    return bool(torch.allclose(plain, packed, rtol=1e-4, atol=1e-4 * float(plain.abs().max())))


def packed_logits(last: "LastBlock", batch: Batch, layout: "Layout") -> Tensor:
    """Return the logits of a batch computed on long texts; `last` is the model's last block."""
    stack = last.stack
    packed = layout.packed(stack.prepare(batch))
    state = packed.state
    for index, call in enumerate(packed.calls[:-1]):
        state = stack.run(index, state, call)
    here, order = by_long_text(packed.positions, *layout.example.shape)
    return stack.finish(last.read(state, packed.calls[-1], here).flatten(0, 1)[order])


def by_long_text(places: Tensor, texts: int, tokens: int) -> tuple[Tensor, Tensor]:
    """Turn places among all positions into positions in each long text, and return their order.

    A long text with fewer of these places than others repeats its first position.
    """
    text, position = places // tokens, places % tokens
    number = (text.unsqueeze(1) == text).tril(-1).sum(1)
    most = int(number.max()) + 1
    positions = places.new_zeros(texts, most)
    positions[text, number] = position
    return positions, text * most + number


@dataclass(frozen=True)
class Layout:
    """The place of each attended position of a padded batch in one or several long texts.

    Shorter long texts are filled up with positions to which no position attends.
    """

    shape: tuple[int, int]
    example: Tensor
    """(long texts, positions): example that each position belongs to."""
    token: Tensor
    """(long texts, positions): place of each position in its example."""
    is_token: Tensor
    """(long texts, positions): true for tokens, false where a long text is filled up."""
    starts: Tensor
    """Start of each example among the positions of all long texts."""

    @classmethod
    def of(cls, mask: Tensor, where: Tensor | None = None) -> "Layout":
        """Return the layout of a batch by its attention mask.

        `where` has the long text of each of its texts; by default, all are in one.
        """
        where = mask.new_zeros(len(mask)) if where is None else where
        lengths = mask.sum(1)
        same = where.unsqueeze(1) == where
        before = (same.tril(-1) * lengths).sum(1)
        texts = int(where.max()) + 1
        longest = int((before + lengths).max())
        starts = longest * where + before
        example, token = mask.nonzero(as_tuple=True)
        places = starts[example] + token
        kept = torch.zeros(3, texts * longest, dtype=torch.long, device=mask.device)
        kept[:, places] = torch.stack([example, token, torch.ones_like(token)])
        examples, tokens, used = kept.view(3, texts, longest)
        # Positions are filled up with a token of the same long text.
        examples = torch.where(used.bool(), examples, examples[:, :1])
        shape = (mask.shape[0], mask.shape[1])
        return cls(shape, examples, tokens, used.bool(), starts)

    def packed(self, prepared: Prepared) -> Prepared:
        """Return the arguments of the blocks for the long texts."""
        once = self.once()
        calls = tuple(
            BlockCall(tuple(map(once, call.args)), {k: once(v) for k, v in call.kwargs.items()})
            for call in prepared.calls
        )
        rows = self.starts + prepared.positions
        return Prepared(self.pack(prepared.state), calls, rows, prepared.batch)

    def once(self) -> Callable[[Any], Any]:
        """Return a `pack` that packs each object once: blocks are often called with the very same
        object.
        """
        done: dict[int, tuple[Any, Any]] = {}

        def pack(value: Any) -> Any:
            if id(value) not in done:
                done[id(value)] = (value, self.pack(value))  # kept, or its number may be another's
            return done[id(value)][1]

        return pack

    def pack(self, value: Any) -> Any:
        """Rearrange an argument of a block (states, positions, rotations, masks) into the long
        texts.
        """
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
        """Return (examples, heads, tokens, tokens) for pairs of positions of one long text."""
        example = self.example.unsqueeze(2)
        token = self.token
        return value[example, :, token.unsqueeze(2), token.unsqueeze(1)].permute(0, 3, 1, 2)

    def _pack_mask(self, mask: Tensor) -> Tensor:
        same = self.example.unsqueeze(2) == self.example.unsqueeze(1)
        reached = (same & self.is_token.unsqueeze(1)).unsqueeze(1)
        never = False if mask.dtype == torch.bool else torch.finfo(mask.dtype).min
        return torch.where(reached, self.pairs(mask), never)


def repeated_packed(call: BlockCall, times: int) -> BlockCall:
    """Repeat a packed call for several states of its batch."""

    def repeated(value: Any) -> Any:
        is_tensor = isinstance(value, Tensor)
        return value.repeat(times, *[1] * (value.ndim - 1)) if is_tensor else value

    args, kwargs = tree_map(repeated, (call.args, call.kwargs))
    return BlockCall(args, kwargs)


def logits_end_to_end(stack: Stack, texts: Encoded, batch: Sequence[IntArray]) -> Tensor:
    """Return the logits of a batch of texts; the texts of each array of rows run as one long text.

    The first block's input is computed without a graph.
    """
    rows = np.concatenate(batch)
    with torch.no_grad():
        prepared = stack.prepare(to_batch(texts, rows, stack.device))
        mask = prepared.batch["attention_mask"]
        # Without padding, blocks may get no mask that could keep texts apart.
        is_packed = len(batch) < len(rows) and not bool(mask.all())
        if is_packed:
            where = np.repeat(np.arange(len(batch)), [len(some) for some in batch])
            layout = Layout.of(mask, torch.from_numpy(where).to(mask.device))
            prepared = layout.packed(prepared)
    state = stack.run_all(prepared)
    read = state.flatten(0, 1)[prepared.positions] if is_packed else stack.read(state, prepared)
    return stack.finish(read, prepared.batch)
