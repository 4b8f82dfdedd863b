"""Mixtures of two models: some layers from the one, the others from the other.

The mixtures that are wanted are a tree: after each unit (a layer, or a group of neighbouring ones)
a state goes on in one model, in the other, or in both. The tree is walked depth first, some states
at a time, so that no unit runs twice on the same state and little is held at once. All windows of
twelve layers need 376 layers a text, all subsets 8,190. Texts of one length share a batch, so they
are read at one position, and the last layer runs there alone where the model allows it.
"""

from collections.abc import Iterable, Iterator, Sequence
from copy import copy

import numpy as np
import torch
from torch import Tensor

from memloc.arrays import IntArray
from memloc.data.encode import Encoded
from memloc.model.calls import LastBlock, Repeater
from memloc.model.load import Classifier
from memloc.model.predict import evaluating, to_batch
from memloc.model.stack import Prepared, Stack
from memloc.run.folder import Run
from memloc.stats.subsets import beginnings

MEMORY = 2**30
"""Bytes of states that are held at most, besides the weights (or what one text needs)."""
CALL_TOKENS = 1024
"""Most tokens that a block is called with (or one text): enough to keep a core busy (measured)."""
BATCH_TOKENS = 512
"""Most tokens of a batch (or one text): its mixtures make many more of them."""
MOST_HELD = 128
"""States that are continued at once: more would not make calls any fuller."""


def final_with(run: Run, layers: Iterable[int], weights: str) -> Classifier:
    """The run's final weights with these layers (from 0) taken from its other weights."""
    final, other = run.load("final"), run.load(weights)
    for layer in layers:
        final.stack.blocks[layer].load_state_dict(other.stack.blocks[layer].state_dict())
    return final


class Mixtures:
    """The final model with some of its units replaced by the reference's, in all ways wanted."""

    def __init__(
        self,
        final: Stack,
        reference: Stack,
        subsets: Sequence[int],
        units: Sequence[range] | None = None,
        *,
        memory: int = MEMORY,
    ) -> None:
        """`subsets` are numbers whose bits say which units are the reference's; default: layers."""
        self.stacks = final, reference
        layers = [range(layer, layer + 1) for layer in range(final.depth)]
        self.units = layers if units is None else list(units)
        self.memory = memory
        self.repeater = Repeater(final)
        self.last = LastBlock(final), LastBlock(reference)
        self._want(subsets)

    def of(self, subsets: Sequence[int]) -> "Mixtures":
        """The same two models, mixed in other subsets."""
        other = copy(self)
        other._want(subsets)
        return other

    def _want(self, subsets: Sequence[int]) -> None:
        self.subsets = subsets
        self.places = {subset: place for place, subset in enumerate(subsets)}
        self.wanted = beginnings(len(self.units), subsets)

    def batches(self, encoded: Encoded, rows: IntArray) -> Iterator[IntArray]:
        """Places in `rows` of texts of one length, longest first."""
        lengths = encoded.lengths[rows]
        final = self.stacks[0]
        token = final.width * next(final.model.parameters()).element_size()
        for length in sorted(set(lengths.tolist()), reverse=True):
            same = np.flatnonzero(lengths == length)
            fitting = self.memory // (2 * len(self.units) * length * token)
            step = max(1, min(BATCH_TOKENS // length, fitting))
            yield from (same[start : start + step] for start in range(0, len(same), step))

    def logits(self, encoded: Encoded, rows: IntArray) -> Tensor:
        """Return logits (texts, subsets, classes) of texts of one length, by the final head."""
        final, reference = self.stacks
        with evaluating(final.model), evaluating(reference.model), torch.inference_mode():
            prepared = final.prepare(to_batch(encoded, rows, final.device))
            walk = _Walk(self, prepared)
            walk.go(prepared.state[None], [0], 0)
            return walk.found


class _Walk:
    """The mixtures of one batch."""

    def __init__(self, mixtures: Mixtures, prepared: Prepared) -> None:
        self.mixtures, self.prepared = mixtures, prepared
        state = prepared.state
        place = int(prepared.positions[0])  # texts of one length are read at one place
        self.here = slice(place, place + 1)
        held = mixtures.memory // (2 * len(mixtures.units) * state.nbytes)
        self.held = max(1, min(MOST_HELD, held))
        self.at_once = max(1, CALL_TOKENS // state[..., 0].numel())
        self.head = mixtures.stacks[0]
        n_classes = self.head.model.config.num_labels
        self.found = state.new_empty((len(state), len(mixtures.subsets), n_classes))

    def go(self, states: Tensor, subsets: list[int], unit: int) -> None:
        """Continue states (streams, texts, tokens, width), which are of these subsets so far."""
        grown: list[int] = []
        parts = []
        for bit in range(2):
            longer = [subset | bit << unit for subset in subsets]
            wanted = [i for i, subset in enumerate(longer) if subset in self.mixtures.wanted[unit]]
            if wanted:
                grown += [longer[i] for i in wanted]
                chosen = states if len(wanted) == len(longer) else states[wanted]
                parts.append(self._run(bit, self.mixtures.units[unit], chosen))
        both = torch.cat(parts)
        if unit + 1 == len(self.mixtures.units):
            return self._finish(both, grown)
        for start in range(0, len(both), self.held):
            part = slice(start, start + self.held)
            self.go(both[part], grown[part], unit + 1)
        return None

    def _run(self, bit: int, layers: range, states: Tensor) -> Tensor:
        """The states after these layers of one of the models, or what the head reads of them."""
        stack, parts = self.mixtures.stacks[bit], []
        for start in range(0, len(states), self.at_once):
            some = states[start : start + self.at_once]
            flat = some.flatten(0, 1)
            for layer in layers:
                calls = self.prepared.calls[layer]
                call = self.mixtures.repeater.repeated(layer, calls, len(some))
                if layer + 1 < stack.depth:
                    flat = stack.run(layer, flat, call)
                else:
                    read = self.mixtures.last[bit].read(flat, call, self.here)
                    flat = read if stack.readout == "all" else read[:, 0]
            parts.append(flat.view(*some.shape[:2], *flat.shape[1:]))
        return torch.cat(parts)

    def _finish(self, read: Tensor, subsets: list[int]) -> None:
        places = [self.mixtures.places[subset] for subset in subsets]
        logits = self.head.finish(read.flatten(0, 1), self.prepared.batch)
        self.found[:, places] = logits.view(*read.shape[:2], -1).transpose(0, 1).float()
