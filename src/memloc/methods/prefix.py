"""What frozen blocks give to the first one that learns: computed once, used in every epoch.

Frozen blocks without dropout give the same states every time. These are kept for all texts, end to
end without padding, in memory or, where they are too many, in a file.
"""

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from memloc.data.encode import Encoded
from memloc.models.shortcuts import Repeater, pack, training_logits, worth_packing
from memloc.models.stack import Batch, BlockCall, Stack, tensors_in
from memloc.models.stacked import Stacked
from memloc.records import IntArray, cannot_write
from memloc.seeds import torch_seeded
from memloc.training.predict import evaluating, length_batches, to_batch

CALLS_MEMORY = 2**28
"""Bytes for how blocks are called (masks, positions), which every window asks for again."""


class Plain:
    """Logits from the embeddings on, with or without dropout there; nothing is kept."""

    def __init__(self, encoded: Encoded, *, dropout: bool) -> None:
        self._encoded, self._dropout = encoded, dropout
        self._of: tuple[Stack, Callable[[Batch], Tensor]] | None = None

    def reach(self, layer: int) -> None:
        """Nothing to do: every pass starts from the embeddings."""

    def logits(self, rows: IntArray, stack: Stack) -> Tensor:
        """Of the texts at `rows`, by this model."""
        if self._of is None or self._of[0] is not stack:
            how = training_logits(stack) if self._dropout else stack.undropped_logits
            self._of = stack, how
        return self._of[1](to_batch(self._encoded, rows, stack.device))

    def close(self) -> None:
        """Nothing to do."""


class Prefix:
    """The state of every token before one block, and logits computed from there on."""

    def __init__(self, stack: Stack, encoded: Encoded, folder: Path, memory: int) -> None:
        self.stack, self.encoded = stack, encoded
        self.layer = stack.depth
        self._worth_packing = worth_packing(stack, once=False)
        self._repeater = Repeater(stack)
        self._inputs: dict[bytes, _Inputs] = {}
        self._room = CALLS_MEMORY
        self._file = folder / f"states-{os.getpid()}.bin"
        self.states = self._allocate(memory)

    def reach(self, layer: int) -> None:
        """Bring the states to before block `layer`, with the weights that the model has now."""
        with evaluating(self.stack.model):
            if layer < self.layer:
                self._embed()
            while self.layer < layer:
                self._advance()

    def logits(self, rows: IntArray, stack: Stack) -> Tensor:
        """Of the texts at `rows`, from the states on, by this model.

        Of several models as one, `rows` are the same for each, one after the other.
        """
        times = len(stack.members) if isinstance(stack, Stacked) else 1
        inputs = self._inputs_of(rows[: len(rows) // times])
        state = self._read(inputs)
        places = torch.arange(times, device=stack.device) * (state.shape[0] * state.shape[1])
        readout = (inputs.readout + places.unsqueeze(1)).flatten()
        state = state.repeat(times, 1, 1)
        for index in range(self.layer, stack.depth):
            call = inputs.calls[index]
            # What was packed is one long text: it is the same for all without being repeated.
            repeated = call if inputs.is_packed else self._repeater.repeated(index, call, times)
            state = stack.run(index, state, repeated)
        if stack.readout == "all":
            return stack.finish(state, inputs.batch)
        return stack.finish(state.flatten(0, 1)[readout])

    def close(self) -> None:
        """Give memory and file back."""
        self.states = torch.empty(0)
        self._inputs.clear()
        with suppress(OSError):
            self._file.unlink(missing_ok=True)

    def _embed(self) -> None:
        for rows in self._batches():
            self._write(*self._prepare(rows))
        self.layer = 0

    def _advance(self) -> None:
        for rows in self._batches():
            inputs = self._inputs_of(rows)
            call = inputs.calls[self.layer]
            self._write(inputs, self.stack.run(self.layer, self._read(inputs), call))
        self.layer += 1

    def _batches(self) -> list[IntArray]:
        return length_batches(self.stack, self.encoded.lengths)

    def _read(self, inputs: "_Inputs") -> Tensor:
        return self.states[inputs.places].to(self.stack.device)

    def _write(self, inputs: "_Inputs", state: Tensor) -> None:
        # Padding stands for a text's last token when read, and must not be written there.
        found = state.to(self.states.device)[inputs.is_token]
        self.states[inputs.places[inputs.is_token]] = found

    def _inputs_of(self, rows: IntArray) -> "_Inputs":
        key = rows.tobytes()
        if key in self._inputs:
            return self._inputs[key]
        inputs, _ = self._prepare(rows)
        self._room -= inputs.size()
        if self._room > 0:
            self._inputs[key] = inputs
        return inputs

    def _prepare(self, rows: IntArray) -> "tuple[_Inputs, Tensor]":
        """How blocks are called for a batch, and the state that the first one is given."""
        batch = to_batch(self.encoded, rows, self.stack.device)
        mask = batch["attention_mask"]
        # Whether this was kept or is done anew must not change the dropout that follows.
        with torch.no_grad(), torch_seeded(0, "prepare"):
            prepared = self.stack.prepare(batch)
        places, is_token = _places(self.encoded, rows), mask.bool().cpu()
        starts = torch.arange(len(rows), device=mask.device) * mask.shape[1]
        readout = starts + prepared.positions
        is_packed = self._worth_packing is not None and self._worth_packing(mask)
        if is_packed:
            prepared = pack(prepared, mask)
            places, readout = places[is_token][None], prepared.positions
            is_token = torch.ones_like(places, dtype=torch.bool)
        here = self.states.device
        given = places.to(here), is_token.to(here), prepared.calls, readout
        inputs = _Inputs(*given, is_packed=is_packed, batch=batch)
        return inputs, prepared.state

    def _allocate(self, memory: int) -> Tensor:
        tokens, width = len(self.encoded.tokens), self.stack.width
        size = 4 * tokens * width
        if size <= memory:
            return torch.empty(tokens, width, device=self.stack.device)
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(self._file.parent).free
            if size > free:
                raise OSError(f"{size / 1e9:.1f} GB are needed there and {free / 1e9:.1f} are free")
            states = torch.from_file(str(self._file), shared=True, size=tokens * width)
        except (OSError, RuntimeError) as error:
            raise cannot_write(self._file, OSError(str(error))) from error
        with suppress(OSError):  # where the system allows it, nothing is left behind by a crash
            self._file.unlink()
        return states.view(tokens, width)


@dataclass(frozen=True)
class _Inputs:
    """How blocks are called for a batch, and where the states of its positions are kept."""

    places: Tensor
    """(texts, tokens), or (1, tokens) for a packed batch."""
    is_token: Tensor
    """The same shape; not so for padding."""
    calls: tuple[BlockCall, ...]
    readout: Tensor
    """Of each text: the place of its readout position among all positions."""
    is_packed: bool
    batch: Batch

    def size(self) -> int:
        """Bytes."""
        calls = [(call.args, call.kwargs) for call in self.calls]
        given = tensors_in([self.places, self.is_token, self.readout, self.batch, calls])
        return sum({id(t): t.untyped_storage().nbytes() for t in given}.values())


def _places(encoded: Encoded, rows: IntArray) -> Tensor:
    """Places of the tokens of these texts among all tokens; padding repeats the last one."""
    lengths = encoded.lengths[rows][:, np.newaxis]
    columns = np.minimum(np.arange(lengths.max()), lengths - 1)
    return torch.from_numpy(encoded.offsets[rows][:, np.newaxis] + columns)
