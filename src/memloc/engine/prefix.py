"""Keeps the states that frozen blocks give to the first trained block, for every epoch.

Frozen blocks without dropout give the same states every time. These are kept for all texts, end to
end without padding, in memory or, if they are too large, in a file.
"""

import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from memloc.arrays import IntArray
from memloc.data.encode import Encoded
from memloc.engine.packing import by_long_text, can_pack, fastest_layout, repeated_packed
from memloc.engine.stacked import Stacked
from memloc.model.calls import LastBlock, Repeater
from memloc.model.predict import evaluating, length_batches, to_batch
from memloc.model.stack import Batch, BlockCall, Stack, tensors_in
from memloc.seeds import torch_seeded
from memloc.store.files import cannot_write, new_draft

MEMORY = 2**30
"""Largest number of bytes of states in memory; larger states go to a file."""
CALLS_MEMORY = 2**28
"""Largest number of bytes of blocks' arguments (masks, positions), which every window needs
again.
"""


class Prefix:
    """The state of every token before one block, and logits computed from there on."""

    def __init__(self, stack: Stack, encoded: Encoded, folder: Path) -> None:
        self.stack = stack
        self.encoded = encoded
        self.layer = stack.depth
        self._can_pack = can_pack(stack)
        self._repeater = Repeater(stack)
        self._last = LastBlock(stack)
        self._inputs: dict[bytes, _Inputs] = {}
        self._room = CALLS_MEMORY
        self._file = new_draft(folder / "states")
        self.states = self._allocate()

    def reach(self, layer: int, stack: Stack) -> None:
        """Advance the states to before block `layer`, with the blocks below it in this model.

        The same model also provides the unchanged blocks, see `logits`.
        """
        self.stack = stack
        with evaluating(self.stack.model):
            if layer < self.layer:
                for rows in self._batches():
                    self._write(*self._prepare(rows))
                self.layer = 0
            while self.layer < layer:
                self._advance()

    def logits(self, rows: IntArray, stack: Stack) -> Tensor:
        """Return the logits that this model computes from the states of the texts at `rows`.

        For several models in one pass, each has the same `rows`, one model after the other.
        """
        times = len(stack.members) if isinstance(stack, Stacked) else 1
        inputs = self._inputs_of(rows[: len(rows) // times])
        state = self._read(inputs).repeat(times, 1, 1)
        for index in range(self.layer, stack.depth):
            members = stack.in_block[index] if isinstance(stack, Stacked) else 1
            state = self._run(
                index, state, inputs, [(stack, members), (self.stack, times - members)]
            )
        if stack.readout == "all":
            return stack.finish(state, inputs.batch)
        return stack.finish(state.reshape(times, -1, stack.width)[:, inputs.order].flatten(0, 1))

    def _run(
        self, index: int, state: Tensor, inputs: "_Inputs", by: Sequence[tuple[Stack, int]]
    ) -> Tensor:
        """Return a block's output for all states; for the last block, what the head reads of it.

        `by` has the models whose weights the block takes, each with the number of members, in
        their order, whose states it computes.
        """
        parts = torch.split(state, [len(inputs.places) * members for _, members in by])
        outputs = [
            self._run_alike(index, part, inputs, stack, members)
            for part, (stack, members) in zip(parts, by, strict=True)
            if members
        ]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _run_alike(
        self, index: int, state: Tensor, inputs: "_Inputs", stack: Stack, members: int
    ) -> Tensor:
        call = inputs.calls[index]
        if inputs.is_packed:
            call = repeated_packed(call, members)
        else:
            call = self._repeater.repeated(index, call, members)
        if index < stack.depth - 1:
            return stack.run(index, state, call)
        return self._last.read(state, call, inputs.readout.repeat(members, 1), stack)

    def close(self) -> None:
        """Release memory and file."""
        self.states = torch.empty(0)
        self._inputs.clear()
        with suppress(OSError):
            self._file.unlink(missing_ok=True)

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
        tokens = state.to(self.states.device)[inputs.is_token]
        self.states[inputs.places[inputs.is_token]] = tokens

    def _inputs_of(self, rows: IntArray) -> "_Inputs":
        key = rows.tobytes()
        if key in self._inputs:
            return self._inputs[key]
        inputs, _ = self._prepare(rows)
        if (size := inputs.size()) < self._room:
            self._room -= size
            self._inputs[key] = inputs
        return inputs

    def _prepare(self, rows: IntArray) -> "tuple[_Inputs, Tensor]":
        """Return the arguments of the blocks for a batch, and the state of the first block."""
        batch = to_batch(self.encoded, rows, self.stack.device)
        mask = batch["attention_mask"]
        # Whether this was kept or is done anew must not change the dropout that follows.
        with torch.no_grad(), torch_seeded(0, "prepare"):
            prepared = self.stack.prepare(batch)
        places = _places(self.encoded, rows)
        is_token = mask.bool().cpu()
        readout, order = (
            prepared.positions.unsqueeze(1),
            torch.arange(len(rows), device=mask.device),
        )
        # The arguments of blocks are kept, so packing costs almost nothing.
        layout = fastest_layout(self.stack, mask, worth=0) if self._can_pack else None
        if layout is not None:
            prepared = layout.packed(prepared)
            places = places[layout.example.cpu(), layout.token.cpu()]
            is_token = layout.is_token
            readout, order = by_long_text(prepared.positions, *places.shape)
        here = self.states.device
        given = places.to(here), is_token.to(here), prepared.calls, readout, order
        inputs = _Inputs(*given, is_packed=layout is not None, batch=batch)
        return inputs, prepared.state

    def _allocate(self) -> Tensor:
        tokens = len(self.encoded.tokens)
        width = self.stack.width
        size = 4 * tokens * width
        if size <= MEMORY:
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
    """Arguments of the blocks for a batch, and the places of its positions' states."""

    places: Tensor
    """Places of the states, (texts, tokens); texts are those of the batch, or long ones."""
    is_token: Tensor
    """(texts, tokens): true for tokens, false for padding."""
    calls: tuple[BlockCall, ...]
    readout: Tensor
    """Positions that are read, (texts, positions), equally many for each text."""
    order: Tensor
    """Order of the texts of the batch among the read positions."""
    is_packed: bool
    batch: Batch

    def size(self) -> int:
        """Return the number of bytes of all tensors."""
        calls = [(call.args, call.kwargs) for call in self.calls]
        given = tensors_in(
            [self.places, self.is_token, self.readout, self.order, self.batch, calls]
        )
        return sum({id(t): t.untyped_storage().nbytes() for t in given}.values())


def _places(encoded: Encoded, rows: IntArray) -> Tensor:
    """Return the places of these texts' tokens among all tokens; padding repeats the last one."""
    lengths = encoded.lengths[rows][:, np.newaxis]
    columns = np.minimum(np.arange(lengths.max()), lengths - 1)
    return torch.from_numpy(encoded.offsets[rows][:, np.newaxis] + columns)
