"""Any classifier as embed → blocks → finish: finds the blocks, runs any of them on any state.

Nothing here knows an architecture. A model's own forward pass says how its blocks are called, and
its own forward pass with the blocks taken out computes what comes before and after them.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from memloc.errors import ModelError
from memloc.models.refuse import explained, setting

Batch = Mapping[str, Tensor]
"""`input_ids` and `attention_mask`, both (examples, tokens), padded on the right."""
Readout = Literal["first", "last"]
"""Which position the head reads: the first token, or the last attended one."""


@dataclass(frozen=True)
class BlockCall:
    """What a model passes to a block besides the state."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class Prepared:
    """A batch that has passed the embeddings: the first block's state and every block's call."""

    state: Tensor
    calls: tuple[BlockCall, ...]
    positions: Tensor
    """Readout position of each example."""


class Stack:
    """A classifier seen as its blocks, with what comes before and after them."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        with explained(model):
            self.blocks = find_blocks(model)
            self._answers, self.readout = _observe(model, self.blocks)

    def copied(self) -> "Stack":
        """The same for a copy of the model, which has weights of its own."""
        found = copy.copy(self)
        found.model = copy.deepcopy(self.model)
        found.blocks = find_blocks(found.model)
        return found

    @property
    def depth(self) -> int:
        """Number of blocks."""
        return len(self.blocks)

    @property
    def width(self) -> int:
        """Size of the state at one position."""
        return int(setting(self.model.config, "hidden_size"))

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = next(self.model.parameters()).device
        return device

    def positions(self, attention_mask: Tensor) -> Tensor:
        """The readout position of each example, by its mask and nothing else."""
        if self.readout == "first":
            return attention_mask.new_zeros(len(attention_mask))
        return attention_mask.sum(1) - 1

    def logits(self, batch: Batch) -> Tensor:
        """The model's own forward pass, read out by attention mask whatever the padding is."""
        if self.readout == "first":
            return forward(self.model, batch)
        positions = self.positions(batch["attention_mask"])
        # The head finds the state of the readout position wherever it looks.
        with self._replaced_output(lambda out: _spread(at_positions(out, positions), out)):
            return forward(self.model, batch)

    def undropped_logits(self, batch: Batch) -> Tensor:
        """The same with no dropout before the first block; each block is in its own mode."""
        with undropped(self.model):
            prepared = self.prepare(batch)
        return self.finish(at_positions(self.run_all(prepared), prepared.positions))

    def prepare(self, batch: Batch) -> Prepared:
        """Run the embeddings and note how each block would be called; the blocks do not run."""
        states: list[Tensor] = []
        calls: list[BlockCall] = []

        def note(state: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
            states.append(state)
            calls.append(BlockCall(args, kwargs))
            return state

        with self._replaced_blocks([note] * self.depth):
            forward(self.model, batch)
        return Prepared(states[0], tuple(calls), self.positions(batch["attention_mask"]))

    def run(self, index: int, state: Tensor, call: BlockCall) -> Tensor:
        """The output of block `index` (from 0) for a state."""
        return hidden_of(self.blocks[index](state, *call.args, **call.kwargs))

    def run_all(self, prepared: Prepared, first: int = 0, state: Tensor | None = None) -> Tensor:
        """The state after the last block, starting before block `first`."""
        current = prepared.state if state is None else state
        for index in range(first, self.depth):
            current = self.run(index, current, prepared.calls[index])
        return current

    def finish(self, vectors: Tensor) -> Tensor:
        """Logits for the last block's outputs at the readout position, (examples, width).

        What follows the blocks works position by position, so one position is enough: the model
        runs on texts of one token, with its blocks taken out and the vectors put in at the end.
        """
        ids = torch.zeros(len(vectors), 1, dtype=torch.long, device=vectors.device)
        passing: list[_BlockStandIn] = [lambda state, _args, _kwargs: state] * (self.depth - 1)
        with self._replaced_blocks([*passing, lambda *_: vectors.unsqueeze(1)]):
            return forward(self.model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})

    @contextmanager
    def watched(self, see: Callable[[int, Tensor], None]) -> Iterator[None]:
        """While active, `see(index, output)` is called with every block's output."""
        handles = [
            block.register_forward_hook(
                lambda _module, _inputs, out, index=index: see(index, hidden_of(out))
            )
            for index, block in enumerate(self.blocks)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @contextmanager
    def _replaced_output(self, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> Any:
            return _like(output, change(hidden_of(output)))

        handle = self.blocks[-1].register_forward_hook(hook)
        try:
            yield
        finally:
            handle.remove()

    @contextmanager
    def _replaced_blocks(self, stand_ins: "list[_BlockStandIn]") -> Iterator[None]:
        blocks = list(self.blocks)
        try:
            for block, stand_in, answer in zip(blocks, stand_ins, self._answers, strict=True):
                block.forward = _wrapped(stand_in, answer)
            yield
        finally:
            for block in blocks:
                block.__dict__.pop("forward", None)


_BlockStandIn = Callable[[Tensor, tuple[Any, ...], dict[str, Any]], Tensor]


@contextmanager
def undropped(model: nn.Module) -> Iterator[None]:
    """While active, nothing is dropped; the mode of every module is put back."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def find_blocks(model: PreTrainedModel) -> nn.ModuleList:
    """The transformer blocks: the one list of modules that is as long as the model is deep."""
    depth = setting(model.config, "num_hidden_layers")
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == depth]
    # Lists inside a block (experts, say) may be as long by chance: the outermost one counts.
    inner = {id(m) for found in lists for child in found for m in child.modules()}
    found = [m for m in lists if id(m) not in inner]
    if len(found) != 1:
        raise ModelError(
            f"{type(model).__name__} is not supported: it has {len(found)} lists of {depth} blocks "
            f"where exactly one is needed (layers with shared weights are not in a list)."
        )
    return found[0]


def hidden_of(output: Any) -> Tensor:
    """The state in a block's output, which is a tensor or a tuple that starts with it."""
    state = output[0] if isinstance(output, tuple) else output
    if not isinstance(state, Tensor):
        raise ModelError(
            f"The model is not supported: a block returned {type(state).__name__} where a state "
            "was expected."
        )
    return state


def at_positions(states: Tensor, positions: Tensor) -> Tensor:
    """One vector an example: `states` (n, tokens, width) at `positions` (n,)."""
    return states[torch.arange(len(states), device=states.device), positions]


def forward(model: PreTrainedModel, batch: Batch) -> Tensor:
    """The model's own logits for a batch."""
    logits = model(**batch, **_no_cache(model)).logits
    assert isinstance(logits, Tensor)
    return logits


def _no_cache(model: PreTrainedModel) -> dict[str, bool]:
    # A cache would keep states between direct calls of a block; encoders know no such argument.
    return {"use_cache": False} if hasattr(model.config, "use_cache") else {}


def _like(output: Any, state: Tensor) -> Any:
    return (state, *output[1:]) if isinstance(output, tuple) else state


def _spread(vectors: Tensor, states: Tensor) -> Tensor:
    return vectors.unsqueeze(1).expand_as(states)


def _wrapped(stand_in: _BlockStandIn, answer: int) -> Callable[..., Any]:
    def forward(*args: Any, **kwargs: Any) -> Any:
        if args:
            state, args = args[0], args[1:]
        else:
            state = kwargs.pop("hidden_states")
        out = stand_in(state, args, kwargs)
        return (out, *[None] * (answer - 1)) if answer else out

    return forward


def _observe(model: PreTrainedModel, blocks: nn.ModuleList) -> tuple[list[int], Readout]:
    """How the blocks answer and which position the head reads, seen on one small padded batch.

    The first: for each block, the length of the tuple it returns, 0 for a bare tensor.
    """
    outputs: list[Any] = []
    last: list[Tensor] = []

    def keep(_module: nn.Module, _inputs: Any, output: Any) -> Any:
        outputs.append(output)
        if len(outputs) < len(blocks):
            return None
        last.append(hidden_of(output).detach().requires_grad_())
        return _like(output, last[0])

    handles = [block.register_forward_hook(keep) for block in blocks]
    training = model.training
    model.eval()
    try:
        # Gradients are needed here, whatever mode the caller is in.
        with torch.inference_mode(False), torch.enable_grad():
            batch = sample_batch(model)
            logits = forward(model, batch)
            _check_outputs(model, outputs, blocks, batch)
            # Unequal weights: a head may be so made that its plain sum does not move.
            weights = torch.arange(1, logits.shape[1] + 1, device=logits.device)
            (gradient,) = torch.autograd.grad((logits * weights).sum(), last[0])
    finally:
        model.train(training)
        for handle in handles:
            handle.remove()
    answers = [len(output) if isinstance(output, tuple) else 0 for output in outputs]
    return answers, _readout(model, gradient.abs().sum(-1) > 0)


def _check_outputs(
    model: PreTrainedModel, outputs: list[Any], blocks: nn.ModuleList, batch: Batch
) -> None:
    if len(outputs) != len(blocks):
        raise ModelError(
            f"{type(model).__name__} is not supported: its forward pass calls the {len(blocks)} "
            f"blocks of its list {len(outputs)} times in all, where each must be called once, as a "
            "module."
        )
    shape, wanted = tuple(hidden_of(outputs[-1]).shape), tuple(batch["input_ids"].shape)
    if len(shape) != 3 or shape[:2] != wanted:
        raise ModelError(
            f"{type(model).__name__} is not supported: for {wanted[0]} texts of {wanted[1]} tokens "
            f"its last block returns a state of shape {shape}, not one vector a token."
        )


def sample_batch(model: PreTrainedModel) -> Batch:
    """A text of five tokens and one of three, padded."""
    pad = model.config.pad_token_id
    if pad is None:
        raise ModelError(
            f"{type(model).__name__} has no padding token: set `model.config.pad_token_id`, or "
            "load it with `memloc.load_model`, which does."
        )
    tokens = [i for i in range(min(8, setting(model.config, "vocab_size"))) if i != pad][:5]
    ids = torch.tensor([tokens, [*tokens[:3], pad, pad]])
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    device = next(model.parameters()).device
    return {"input_ids": ids.to(device), "attention_mask": mask.to(device)}


def _readout(model: PreTrainedModel, is_read: Tensor) -> Readout:
    positions = [row.nonzero().flatten().tolist() for row in is_read]
    if positions == [[0], [0]]:
        return "first"
    if positions in ([[4], [2]], [[4], [4]]):  # the second: a head that is misled by padding
        return "last"
    raise ModelError(
        f"{type(model).__name__} is not supported: its head reads the positions {positions[0]} of "
        f"a text of 5 tokens and {positions[1]} of one of 3, where memloc needs the first or the "
        "last of both."
    )
