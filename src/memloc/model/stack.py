"""Any classifier or language model as embed → blocks → finish: runs any block on any state.

Nothing here knows an architecture. A model's own forward pass shows how its blocks are called, and
the same forward pass without the blocks computes everything before and after them.
"""

import copy
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_structure, tree_unflatten
from transformers import PreTrainedModel

from memloc.errors import (
    MORE_MEMORY,
    MemlocError,
    ModelError,
    checked_arguments,
    in_words,
    is_out_of_memory,
)
from memloc.model.joined import joined_layers

Batch = Mapping[str, Tensor]
"""`input_ids` and `attention_mask`, both (examples, tokens), padded on the right."""
Readout = Literal["first", "last", "all", "each"]
"""Positions that the head reads: the first token, the last attended one, all at once, or each
alone.

`each` is a language model, whose head reads every token on its own and predicts the next one.
"""
TOLERANCE = 1e-4
"""Largest difference of logits, relative to the largest logit, that counts as float noise."""


def setting(config: Any, name: str) -> Any:
    """Return a value of a model's configuration; refuse the model if the value is missing."""
    if (value := optional_setting(config, name)) is not None:
        return value
    raise ModelError(
        f"Models of type {config.model_type} are not supported: their configuration has no "
        f"{name}; memloc needs one stack of blocks that reads the tokens of a text."
    )


def optional_setting(config: Any, name: str) -> Any:
    """Return a value of a model's configuration or of its text part; None if both lack it."""
    for part in (config, config.get_text_config()):
        if (value := getattr(part, name, None)) is not None:
            return value
    return None


@contextmanager
def as_model_error(sentence: Callable[[Exception], str]) -> Iterator[None]:
    """Turn any error of other people's code into a ModelError with this sentence while active."""
    try:
        yield
    except MemlocError:
        raise
    except Exception as error:
        message = MORE_MEMORY if is_out_of_memory(error) else sentence(error)
        raise ModelError(message) from error


def in_sentences(model: Any) -> AbstractContextManager[None]:
    """Turn any error of a model's own code into a sentence on what memloc did not expect of it."""
    return as_model_error(
        lambda error: (
            f"{type(model).__name__} cannot be used: tried on a few tokens, it ended with an "
            f"error: {in_words(error)}."
        )
    )


@contextmanager
def holding(objects: Iterable[Any], name: str, value: Any) -> Iterator[None]:
    """Set an attribute of these objects to a value while active; then put their own values back."""
    kept = [(holder, getattr(holder, name)) for holder in objects]
    try:
        for holder, _ in kept:
            setattr(holder, name, value)
        yield
    finally:
        for holder, before in reversed(kept):
            setattr(holder, name, before)


def undropped(model: nn.Module) -> AbstractContextManager[None]:
    """Turn off all dropout while active; put the mode of every module back."""
    return holding(model.modules(), "training", False)


@dataclass(frozen=True)
class BlockCall:
    """Arguments that a model passes to a block in addition to the state."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class Prepared:
    """A batch after the embeddings: the first block's state and every block's call."""

    state: Tensor
    calls: tuple[BlockCall, ...]
    positions: Tensor
    """Readout position of each example; where the head reads several, the last attended token."""
    batch: Batch


class Stack:
    """A classifier or language model as its blocks and the computations before and after them."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        with in_sentences(model):
            self.blocks = find_blocks(model)
            self._answers, self.readout, self.width = _observe(model, self.blocks)
            if self.is_language_model:
                self._refuse_both_directions()
            self.pads = True
            """True if padding changes nothing; otherwise only texts of one length share a batch."""
            self.pads = self._is_padding_harmless()

    def copied(self, layers: Iterable[int] | None = None) -> "Stack":
        """Return a stack of a copy of the model; with `layers`, other blocks are not copied."""
        copied = copy.copy(self)
        own = range(self.depth) if layers is None else layers
        shared = [block for index, block in enumerate(self.blocks) if index not in own]
        copied.model = copy.deepcopy(self.model, {id(block): block for block in shared})
        copied.blocks = find_blocks(copied.model)
        return copied

    @property
    def depth(self) -> int:
        """Number of blocks."""
        return len(self.blocks)

    @property
    def is_language_model(self) -> bool:
        """Return whether the model predicts the next token rather than the label of a text."""
        return self.readout == "each"

    @property
    def device(self) -> torch.device:
        """Device of the model's weights."""
        device: torch.device = next(self.model.parameters()).device
        return device

    def sample(self, n: int) -> Batch:
        """Return `n` short texts, padded unless padding changes the model's answer."""
        rows = [0, *[int(self.pads)] * (n - 1)]
        return {name: values[rows] for name, values in sample_batch(self.model).items()}

    def positions(self, attention_mask: Tensor) -> Tensor:
        """Return the readout position of each example, computed from its attention mask alone."""
        if self.readout == "first":
            return attention_mask.new_zeros(len(attention_mask))
        return attention_mask.sum(1) - 1

    def logits(self, batch: Batch) -> Tensor:
        """Run the model's own forward pass, read out by attention mask whatever the padding is."""
        return self._of_equal_length(self._logits, batch)

    def undropped_logits(self, batch: Batch) -> Tensor:
        """Compute logits without dropout before the first block; each block keeps its own mode."""
        return self._of_equal_length(self._undropped_logits, batch)

    def _logits(self, batch: Batch) -> Tensor:
        if self.readout != "last":
            return forward(self.model, batch)
        positions = self.positions(batch["attention_mask"])

        def spread(_module: nn.Module, _inputs: Any, output: Any) -> Any:
            """Put the state of the readout position at every position, wherever the head looks."""
            states = hidden_of(output)
            return _like(output, at_positions(states, positions).unsqueeze(1).expand_as(states))

        with self.blocks[-1].register_forward_hook(spread):
            return forward(self.model, batch)

    def _undropped_logits(self, batch: Batch) -> Tensor:
        with undropped(self.model):
            prepared = self.prepare(batch)
        return self.finish(self.read(self.run_all(prepared), prepared), prepared.batch)

    def _of_equal_length(self, compute: Callable[[Batch], Tensor], batch: Batch) -> Tensor:
        """Compute the logits of a batch, length by length if padding would change them."""
        if self.pads:
            return compute(batch)
        lengths = batch["attention_mask"].sum(1)
        rows = [(lengths == n).nonzero().flatten() for n in sorted(set(lengths.tolist()))]
        parts = [{k: v[r, : int(lengths[r[0]])] for k, v in batch.items()} for r in rows]
        answers = [logits for part in parts for logits in compute(part)]
        return pad_sequence(answers, batch_first=True)[torch.cat(rows).argsort()]

    @torch.no_grad()
    def _is_padding_harmless(self) -> bool:
        batch = sample_batch(self.model)
        short = {name: values[1:, :3] for name, values in batch.items()}
        with undropped(self.model):
            padded, alone = self.logits(batch)[1], forward(self.model, short)[0]
        return _is_same(padded[: len(alone)], alone)

    @torch.no_grad()
    def _refuse_both_directions(self) -> None:
        """Refuse a model that also reads the tokens behind a position: it cannot continue a
        text.
        """
        longer = {name: values[:1] for name, values in sample_batch(self.model).items()}
        shorter = {name: values[:, :3] for name, values in longer.items()}
        with undropped(self.model):
            seen, unseen = (forward(self.model, batch)[0] for batch in (longer, shorter))
        if not _is_same(seen[:3], unseen):
            raise ModelError(
                f"{type(self.model).__name__} reads texts in both directions, so it does not "
                "continue them: give a causal language model."
            )

    def prepare(self, batch: Batch) -> Prepared:
        """Run the embeddings and record how each block would be called; the blocks do not run."""
        assert self.pads or batch["attention_mask"].all(), "padding would change the states"
        states: list[Tensor] = []
        calls: list[BlockCall] = []

        def note(state: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
            states.append(state)
            calls.append(BlockCall(args, kwargs))
            return state

        with self._replaced_blocks([note] * self.depth):
            forward(self.model, batch)
        return Prepared(states[0], tuple(calls), self.positions(batch["attention_mask"]), batch)

    def run(self, index: int, state: Tensor, call: BlockCall) -> Tensor:
        """Return the output of block `index` (from 0) for a state."""
        return hidden_of(self.blocks[index](state, *call.args, **call.kwargs))

    def run_all(self, prepared: Prepared, first: int = 0, state: Tensor | None = None) -> Tensor:
        """Return the state after the last block, starting before block `first`."""
        current = prepared.state if state is None else state
        for index in range(first, self.depth):
            current = self.run(index, current, prepared.calls[index])
        return current

    def read(self, state: Tensor, prepared: Prepared) -> Tensor:
        """Return the part of the last block's output that the head reads: one vector per text, or
        all.
        """
        return state if self.readout in ("all", "each") else at_positions(state, prepared.positions)

    def vectors(self, state: Tensor, prepared: Prepared) -> Tensor:
        """Return one vector per example: at the readout position, or the mean where the head reads
        all.
        """
        if self.readout != "all":
            return at_positions(state, prepared.positions)
        mask = prepared.batch["attention_mask"].unsqueeze(-1).to(state.dtype)
        return (state * mask).sum(1) / mask.sum(1)

    def finish(self, read: Tensor, batch: Batch | None = None) -> Tensor:
        """Return the logits for what the head reads of the last block's outputs, (..., width).

        The computations after the blocks work position by position, so one position is enough: the
        model runs on texts of one token, with its blocks removed and the vectors inserted at the
        end. A head that reads several positions for one answer is given all of them, (examples,
        tokens, width), and their batch; the batch may be repeated several times, one after the
        other.
        """
        among = read.shape[:-1]
        if self.readout == "all":
            assert batch is not None, "a head that reads all positions needs their mask"
            times = len(read) // len(batch["input_ids"])
            batch = {name: values.repeat(times, 1) for name, values in batch.items()}
        else:
            read = read.reshape(-1, 1, self.width)
            ids = torch.zeros(len(read), 1, dtype=torch.long, device=read.device)
            batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        passing: list[_BlockStandIn] = [lambda state, _args, _kwargs: state] * (self.depth - 1)
        with self._replaced_blocks([*passing, lambda *_: read]):
            logits = forward(self.model, batch)
        return logits if self.readout == "all" else logits.view(*among, logits.shape[-1])

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


FindBlocks = Callable[[Any], Sequence[nn.Module]]
_REGISTERED: dict[str, FindBlocks] = {"xlm": joined_layers, "flaubert": joined_layers}


@checked_arguments
def register_stack(model_type: str, blocks: FindBlocks) -> None:
    """Register where the blocks of a model type are, if memloc does not find them by itself.

    Everything before the blocks counts as embeddings, everything after them as the head. `memloc
    check` tells whether the registered blocks are right.

    Args:
        model_type: The model type in the model's `config.json`.
        blocks: Function that is given the classifier and returns its blocks in the order in which a
            text passes them; each is a module that is called once and returns one vector per token.
    """
    _REGISTERED[model_type] = blocks


def find_blocks(model: PreTrainedModel) -> nn.ModuleList:
    """Return the transformer blocks: the registered ones, or the model's only list of blocks."""
    registered = _REGISTERED.get(model.config.model_type)
    blocks = nn.ModuleList(registered(model)) if registered else _listed_blocks(model)
    seen: dict[int, int] = {}
    for number, block in enumerate(blocks, 1):
        for name, parameter in block.named_parameters():
            if seen.setdefault(id(parameter), number) != number:
                raise ModelError(
                    f"{type(model).__name__} is not supported: its layers {seen[id(parameter)]} "
                    f"and {number} share the weights {name}, so neither can be changed alone."
                )
    return blocks


def _listed_blocks(model: PreTrainedModel) -> nn.ModuleList:
    """Return the only list of modules whose length is the model's depth."""
    if getattr(model.config, "is_encoder_decoder", False):
        raise ModelError(
            f"{type(model).__name__} is not supported: it has an encoder and a decoder, and memloc "
            "needs one stack of blocks that the text passes once."
        )
    depth = setting(model.config, "num_hidden_layers")
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == depth]
    # Lists inside a block (experts, say) may be as long by chance: the outermost one counts.
    inner = {id(m) for candidates in lists for child in candidates for m in child.modules()}
    candidates = [m for m in lists if id(m) not in inner]
    if len(candidates) > 1:
        # A text does not pass the blocks that read images, say.
        called = calls_of(model)
        candidates = [m for m in candidates if all(called[id(block)] == 1 for block in m)]
    if len(candidates) != 1:
        raise ModelError(_no_blocks(model, len(candidates), depth))
    return candidates[0]


def calls_of(model: PreTrainedModel) -> Counter[int]:
    """Count how often each module, by its id, is called for a short text."""
    called: Counter[int] = Counter()
    with ExitStack() as hooks, torch.no_grad(), undropped(model):
        for module in model.modules():
            hook = module.register_forward_hook(lambda m, *_: called.update([id(m)]))
            hooks.enter_context(hook)
        forward(model, sample_batch(model))
    return called


def _no_blocks(model: PreTrainedModel, lists: int, depth: int) -> str:
    called = calls_of(model) if depth > 1 else Counter()
    shared = [m for m in model.modules() if called[id(m)] == depth and [*m.parameters()]]
    if shared and not lists:
        return (
            f"{type(model).__name__} is not supported: its {depth} layers share their weights "
            f"({type(shared[0]).__name__} is called {depth} times), so none of them can be changed "
            "alone."
        )
    return (
        f"{type(model).__name__} is not supported: it has {lists} lists of {depth} blocks that a "
        "text passes once each, where exactly one is needed. If you know where its blocks are, "
        "say so with `memloc.register_stack`."
    )


def hidden_of(output: Any) -> Tensor:
    """Return the state in a block's output, which is a tensor or a collection starting with it."""
    state = output
    if isinstance(output, tuple | list):
        state = output[0]
    elif isinstance(output, Mapping):
        state = next(iter(output.values()))
    if not isinstance(state, Tensor):
        raise ModelError(
            f"The model is not supported: a block returned {type(state).__name__} where a state "
            "was expected."
        )
    return state


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Return whether two sets of logits are equal up to float noise."""
    return bool((one - other).abs().max() <= TOLERANCE * other.abs().max())


def at_positions(states: Tensor, positions: Tensor) -> Tensor:
    """Return one vector per example: `states` (..., n, tokens, width) at `positions` (n,)."""
    return states[..., torch.arange(len(positions), device=states.device), positions, :]


def forward(model: PreTrainedModel, batch: Batch) -> Tensor:
    """Run the model's own forward pass and return its logits."""
    # A cache would keep states between direct calls of a block; encoders know no such argument.
    named = "use_cache" in inspect.signature(model.forward).parameters
    configs = [] if named else [model.config, model.config.get_text_config()]
    with holding([c for c in configs if hasattr(c, "use_cache")], "use_cache", False):
        logits: Tensor = model(**batch, **({"use_cache": False} if named else {})).logits
    return logits


def _like(output: Any, state: Tensor) -> Any:
    """Return a block's output with its state replaced."""
    leaves, form = tree_flatten(output)
    return tree_unflatten([state, *leaves[1:]], form)


def _wrapped(stand_in: _BlockStandIn, answer: TreeSpec) -> Callable[..., Any]:
    def forward(*args: Any, **kwargs: Any) -> Any:
        if args:
            state, args = args[0], args[1:]
        else:
            state = kwargs.pop("hidden_states")
        output = stand_in(state, args, kwargs)
        return tree_unflatten([output, *[None] * (answer.num_leaves - 1)], answer)

    return forward


def _observe(model: PreTrainedModel, blocks: nn.ModuleList) -> tuple[list[TreeSpec], Readout, int]:
    """Run one small padded batch to see how the model uses its blocks.

    Return the form of each block's output, the positions that the head reads, and the width of a
    state.
    """
    outputs: list[Any] = []
    last: list[Tensor] = []

    def keep(_module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        before = [id(t) for out in outputs[-1:] for t in tensors_in(out)[1:]]
        if any(id(tensor) in before for tensor in tensors_in([args, kwargs])):
            raise ModelError(
                f"{type(model).__name__} is not supported: its blocks hand on more than a state "
                "to the next one, and memloc can continue and exchange states only."
            )
        outputs.append(output)
        if len(outputs) < len(blocks):
            return None
        last.append(hidden_of(output).detach().requires_grad_())
        return _like(output, last[0])

    # Gradients are needed here, whatever mode the caller is in.
    with ExitStack() as hooks, undropped(model), torch.inference_mode(False), torch.enable_grad():
        for block in blocks:
            hooks.enter_context(block.register_forward_hook(keep, with_kwargs=True))
        batch = sample_batch(model)
        logits = forward(model, batch)
        _check_outputs(model, outputs, blocks, batch)
        # Unequal weights: a head may be so made that its plain sum does not move.
        weights = torch.arange(1, logits.shape[-1] + 1, device=logits.device)
        total = (logits * weights).sum()
        (gradient,) = torch.autograd.grad(total, last[0], materialize_grads=True)
    is_text = logits.shape[:-1] == batch["input_ids"].shape
    readout = "each" if is_text else _readout(model, gradient.abs().sum(-1) > 0)
    return [tree_structure(output) for output in outputs], readout, gradient.shape[-1]


def tensors_in(value: Any) -> list[Tensor]:
    """Return all tensors among a block's arguments or outputs, however deeply nested."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


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
            f"its last block returns a state of shape {shape}, not one vector per token."
        )


def sample_batch(model: PreTrainedModel) -> Batch:
    """Return a padded batch of two texts, with five tokens and three."""
    pad = optional_setting(model.config, "pad_token_id")
    if pad is None:
        raise ModelError(
            f"{type(model).__name__} has no padding token: set `model.config.pad_token_id`, or "
            "give memloc the name of the model, or its folder, and memloc sets it."
        )
    tokens = [i for i in range(min(8, setting(model.config, "vocab_size"))) if i != pad][:5]
    ids = torch.tensor([tokens, [*tokens[:3], pad, pad]])
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    device = next(model.parameters()).device
    return {"input_ids": ids.to(device), "attention_mask": mask.to(device)}


def _readout(model: PreTrainedModel, is_read: Tensor) -> Readout:
    positions = [row.nonzero().flatten().tolist() for row in is_read]
    if not any(positions):
        raise ModelError(
            f"{type(model).__name__} is not supported: for a short text, its logits do not depend "
            "on what the last block returns."
        )
    if positions == [[0], [0]]:
        return "first"
    # The second: a head that is misled by padding.
    return "last" if positions in ([[4], [2]], [[4], [4]]) else "all"
