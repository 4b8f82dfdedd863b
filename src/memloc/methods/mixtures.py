"""All mixtures of two models: every subset of layers from the one, the others from the other.

The mixtures are a tree: after each unit (a layer, or a group of neighbouring ones) a state goes on
in both models. It is walked depth first, a few states at a time, so that no unit runs twice on the
same state and little is held at once. Texts of one length go together.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from memloc.data.encode import Encoded
from memloc.models.packing import Repeater
from memloc.models.stack import Prepared, Stack
from memloc.records import IntArray
from memloc.training.predict import evaluating, to_batch

CALL_TOKENS = 1024
"""Most tokens that a block is called with (or one text): enough to keep a core busy."""
BATCH_TOKENS = 256
"""Most tokens of a batch (or one text): its mixtures make many more of them."""


@dataclass(frozen=True)
class Mixed:
    """Logits of some texts under all mixtures; bit u of a subset: unit u is the reference's."""

    places: IntArray
    """Which of the rows that were asked for they are."""
    final: Tensor
    """(texts, 2^U, classes), by the final model's head."""
    reference: Tensor
    """The same by the reference's head."""


class Mixtures:
    """Every subset of the final model's units replaced by the reference's."""

    def __init__(self, final: Stack, reference: Stack, units: Sequence[range]) -> None:
        self.final, self.reference, self.units = final, reference, tuple(units)
        self.repeater = Repeater(final)

    def batches(self, encoded: Encoded, rows: IntArray) -> Iterator[IntArray]:
        """Places in `rows` of texts of one length, longest first."""
        lengths = encoded.lengths[rows]
        for length in sorted(set(lengths.tolist()), reverse=True):
            same = np.flatnonzero(lengths == length)
            step = max(1, BATCH_TOKENS // length)
            yield from (same[start : start + step] for start in range(0, len(same), step))

    def logits(self, encoded: Encoded, rows: IntArray, places: IntArray) -> Mixed:
        """Logits of the texts at these places of `rows`, which have one length."""
        with (
            evaluating(self.final.model),
            evaluating(self.reference.model),
            torch.inference_mode(),
        ):
            batch = to_batch(encoded, rows[places], self.final.device)
            prepared = self.final.prepare(batch)
            walk = _Walk(self, prepared)
            walk.go(prepared.state[None], np.zeros(1, dtype=np.int64), 0)
            return Mixed(places, *walk.found)


class _Walk:
    """The mixtures of one batch."""

    def __init__(self, mixtures: Mixtures, prepared: Prepared) -> None:
        self.mixtures, self.prepared = mixtures, prepared
        n_texts, length = prepared.state.shape[:2]
        self.at_once = max(1, CALL_TOKENS // (n_texts * length))
        stacks = (mixtures.final, mixtures.reference)
        n_subsets, n_classes = 2 ** len(mixtures.units), mixtures.final.model.config.num_labels
        shape = (n_texts, n_subsets, n_classes)
        self.found = [prepared.state.new_empty(shape) for _ in stacks]

    def go(self, states: Tensor, subsets: IntArray, unit: int) -> None:
        """Continue states (streams, texts, tokens, width), which are of these subsets so far."""
        units = self.mixtures.units
        if unit == len(units):
            return self._finish(states, subsets)
        both = torch.cat([self._run(stack, units[unit], states) for stack in self._stacks()])
        grown = np.concatenate([subsets, subsets | 1 << unit])
        for start in range(0, len(both), self.at_once):
            part = slice(start, start + self.at_once)
            self.go(both[part], grown[part], unit + 1)
        return None

    def _stacks(self) -> tuple[Stack, Stack]:
        return self.mixtures.final, self.mixtures.reference

    def _run(self, stack: Stack, layers: range, states: Tensor) -> Tensor:
        flat = states.flatten(0, 1)
        for layer in layers:
            calls = self.prepared.calls[layer]
            call = self.mixtures.repeater.repeated(layer, calls, len(states))
            flat = stack.run(layer, flat, call)
        return flat.reshape(states.shape)

    def _finish(self, states: Tensor, subsets: IntArray) -> None:
        read = self.mixtures.final.read(states, self.prepared).flatten(0, 1)
        for kept, stack in zip(self.found, self._stacks(), strict=True):
            logits = stack.finish(read, self.prepared.batch)
            logits = logits.view(len(states), states.shape[1], -1)
            kept[:, torch.from_numpy(subsets).to(kept.device)] = logits.transpose(0, 1).float()
