"""All windows of one model's layers in another, in one sweep through the layers.

Before a layer there are three kinds of
states (streams) of a batch: the final model's own, those of windows that may still grow, and those
of windows that have ended. The reference's layer continues the first two (a window starts, a
window grows), the final model's layer continues the first and the last. So no layer runs twice on
the same state, and the streams of a batch go through a layer together.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from memloc.data.encode import Encoded
from memloc.models.packing import Repeater
from memloc.models.stack import Prepared, Stack
from memloc.records import IntArray
from memloc.stats.windows import windows
from memloc.training.predict import evaluating, to_batch

MEMORY = 2**30
"""Bytes that a sweep may use besides the weights."""
CALL_TOKENS = 1024
"""Most tokens that a block is called with (or one text): enough to keep a core busy (measured)."""
BATCH_TOKENS = 512
"""Most tokens of a batch (or one text): its streams make many more of them."""
WORKSPACE = 24
"""Numbers that a block needs for each number of its input while it runs (measured)."""


@dataclass(frozen=True)
class Room:
    """How much is held at once while texts of one length are swept."""

    examples: int
    """In a batch."""
    ended: int
    """Streams of windows that have ended, the unchanged model's included."""
    tokens: int
    """In one call of a block."""

    @classmethod
    def within(cls, memory: int, length: int, depth: int, token: int) -> "Room":
        """The largest that fits into `memory`; at least what one example needs.

        `token` is the size of a state at one position, in bytes as `memory` is.
        """
        growing, every = depth + 1, 1 + depth * (depth - 1) // 2
        tokens = max(length, min(CALL_TOKENS, memory // (4 * WORKSPACE * token)))
        # A call's workspace is not there for states.
        free = (memory // token - WORKSPACE * tokens) // length
        examples = min(free // (growing + every), min(tokens, BATCH_TOKENS) // length)
        examples = max(1, examples)
        ended = free // examples - growing
        return cls(examples, min(every, max(depth, ended)), tokens)


class Sweep:
    """All mixtures of two models in which a window of the final one's layers is the reference's."""

    def __init__(self, final: Stack, reference: Stack, memory: int = MEMORY) -> None:
        self.final, self.reference, self.memory = final, reference, memory
        self.windows = windows(final.depth)
        self.places = {window: place for place, window in enumerate(self.windows)}
        self.used = 0
        """Bytes that the largest batch so far needed, besides the weights."""
        self.repeater = Repeater(final)

    def logits(self, encoded: Encoded, rows: IntArray) -> Iterator[tuple[IntArray, Tensor]]:
        """Batch by batch: places in `rows`, and logits (examples, windows + 1, classes) for them.

        The last of the windows is none: the final model's own logits.
        """
        lengths = encoded.lengths[rows]
        token = self.final.width * next(self.final.model.parameters()).element_size()
        # Texts of one length make a batch without padding, which spares masks as well.
        for length in sorted(set(lengths.tolist()), reverse=True):
            same = np.flatnonzero(lengths == length)
            room = Room.within(self.memory, length, self.final.depth, token)
            for start in range(0, len(same), room.examples):
                places = same[start : start + room.examples]
                yield places, self._batch_logits(encoded, rows[places], room)

    def _batch_logits(self, encoded: Encoded, rows: IntArray, room: Room) -> Tensor:
        with (
            evaluating(self.final.model),
            evaluating(self.reference.model),
            torch.inference_mode(),
        ):
            prepared = self.final.prepare(to_batch(encoded, rows, self.final.device))
            streams = _Streams(self, prepared, room)
            self.used = max(self.used, streams.used)
            vectors = streams.vectors()
            logits = self.final.finish(vectors.flatten(0, 1), prepared.batch)
        return logits.view(len(vectors), len(rows), -1).transpose(0, 1)


class _Streams:
    """The states of one batch under all windows, layer by layer."""

    def __init__(self, sweep: Sweep, prepared: Prepared, room: Room) -> None:
        self.sweep, self.prepared, self.room = sweep, prepared, room
        self.depth = sweep.final.depth
        state = prepared.state
        self.at_once = max(1, room.tokens // state[..., 0].numel())
        self.growing = state.new_empty(self.depth + 1, *state.shape)
        """First the unchanged one, then those of the windows that end here, youngest first."""
        self.ended = state.new_empty(room.ended, *state.shape)
        """First the unchanged one, then those of `self.windows`."""
        self.windows: list[range] = []
        read = sweep.final.read(state, prepared).shape
        self.found = state.new_empty(len(sweep.windows) + 1, *read)

    @property
    def used(self) -> int:
        """Bytes of the states and of a block at work."""
        workspace = WORKSPACE * self.at_once * self.prepared.state.nbytes
        return self.growing.nbytes + self.ended.nbytes + workspace

    def vectors(self) -> Tensor:
        """What the head reads after the last layer, (windows + 1, examples, width)."""
        self.ended[0] = self.prepared.state
        for layer in range(self.depth):
            if len(self.windows) + layer >= self.room.ended:
                self._finish_ended(layer)
            self._pass(layer)
        self._keep(self._ending(self.depth), self.growing[1:])
        self._keep(self.windows, self.ended[1:])
        self.found[-1] = self.sweep.final.read(self.ended[0], self.prepared)
        return self.found

    def _pass(self, layer: int) -> None:
        start = len(self.windows) + 1
        self.windows += self._ending(layer)
        stop = len(self.windows) + 1
        self.ended[start:stop] = self.growing[1 : layer + 1]
        self.growing[0] = self.ended[0]
        self._run(
            self.sweep.reference, layer, self.growing[: layer + 1], self.growing[1 : layer + 2]
        )
        self._run(self.sweep.final, layer, self.ended[:stop], self.ended[:stop])

    def _finish_ended(self, layer: int) -> None:
        """Takes the ended windows to the end at once, where more would not fit."""
        states = self.ended[1 : len(self.windows) + 1]
        for later in range(layer, self.depth):
            self._run(self.sweep.final, later, states, states)
        self._keep(self.windows, states)
        self.windows = []

    def _ending(self, layer: int) -> list[range]:
        """The windows that end before `layer`, in the order of the growing streams."""
        return [range(start, layer) for start in reversed(range(layer))]

    def _run(self, stack: Stack, layer: int, states: Tensor, results: Tensor) -> None:
        # From the last to the first, as results may lie one place behind the states.
        for start in reversed(range(0, len(states), self.at_once)):
            part = states[start : start + self.at_once]
            call = self.sweep.repeater.repeated(layer, self.prepared.calls[layer], len(part))
            out = stack.run(layer, part.flatten(0, 1), call)
            results[start : start + self.at_once] = out.reshape(part.shape)

    def _keep(self, ended: list[range], states: Tensor) -> None:
        for window, state in zip(ended, states, strict=False):
            place = self.sweep.places[window]
            self.found[place] = self.sweep.final.read(state, self.prepared)
