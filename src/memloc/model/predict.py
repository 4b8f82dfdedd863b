"""Predictions and vectors of many texts, in batches of similar length that memory allows."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import f1_score
from torch import Tensor, nn

from memloc.arrays import BoolArray, IntArray, LastLayer, Vectors
from memloc.data.encode import Encoded, encode, encode_continued, sorted_batches
from memloc.data.task import Examples, NoisyLabels
from memloc.errors import ModelError
from memloc.model.linear import linear
from memloc.model.load import Classifier
from memloc.model.stack import Batch, Prepared, Stack, holding, undropped
from memloc.model.streamed import opened

TOKENS_PER_BATCH = 2048
"""Tokens in a batch: enough to keep a device busy, few enough for any machine."""
NUMBERS_PER_STATE = 100_000
"""Largest number of values in a batch's state on a CPU.

Larger states leave the cache, and memory is fetched anew for each operation (measured: 1.6 times
slower at 2,048 tokens than at 256 for width 384).
"""

STATES_HELD = 2**28
"""Bytes of states held between blocks where each block runs on many batches before the next."""


def encode_for(model: Classifier, examples: Examples, max_tokens: int) -> Encoded:
    """Tokenise texts for this model, cut to `max_tokens` or to what the model can read.

    Prompts with continuations, for a language model, are refused if they are longer.
    """
    limit = min(max_tokens, model.max_tokens)
    if model.stack.is_language_model:
        return encode_continued(examples.parts, model.tokenizer, limit, examples.last_tokens)
    return encode(examples.parts, model.tokenizer, model.separator, limit)


def length_batches(stack: Stack, lengths: IntArray) -> list[IntArray]:
    """Return batches of texts of similar length, of a size that suits the model."""
    tokens = TOKENS_PER_BATCH
    if stack.device.type == "cpu":
        tokens = min(tokens, max(1, NUMBERS_PER_STATE // stack.width))
    return without_harm(stack, sorted_batches(lengths, tokens), lengths)


def without_harm(stack: Stack, batches: list[IntArray], lengths: IntArray) -> list[IntArray]:
    """Return the batches, split by length if padding would change the model's answers."""
    if stack.pads:
        return batches
    return [
        rows[lengths[rows] == length] for rows in batches for length in np.unique(lengths[rows])
    ]


def to_batch(encoded: Encoded, rows: IntArray, device: torch.device) -> Batch:
    """Return the texts at `rows` as tensors on the model's device."""
    ids, mask = encoded.batch(rows)
    return {
        "input_ids": torch.from_numpy(ids).to(device),
        "attention_mask": torch.from_numpy(mask).to(device),
    }


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Turn off dropout and gradients while active; put the modes of all modules back."""
    with undropped(model), torch.no_grad(), holding([nn.functional], "linear", linear):
        yield


def predict(stack: Stack, encoded: Encoded, rows: IntArray | None = None) -> NDArray[np.float32]:
    """Return the logits (texts, classes) of all texts, or of those at `rows`, without dropout."""
    chosen = np.arange(len(encoded)) if rows is None else rows
    logits = np.zeros((len(chosen), stack.model.config.num_labels), dtype=np.float32)
    with evaluating(stack.model):
        for picked in length_batches(stack, encoded.lengths[chosen]):
            computed = stack.logits(to_batch(encoded, chosen[picked], stack.device))
            logits[picked] = computed.float().cpu().numpy()
    return logits


@dataclass(frozen=True)
class Continued:
    """Predictions of a language model for continuations, token by token, given the tokens before.

    A text is recalled if every token is the most likely one; then greedy decoding gives it, too.
    All arrays are (texts, longest continuation), padded with False or 0.
    """

    tokens: IntArray
    is_token: BoolArray
    is_said: BoolArray
    """True where the token of the continuation is the most likely one."""
    log_probability: NDArray[np.float32]

    @property
    def recalled(self) -> BoolArray:
        """Return for each text whether every token of its continuation is the most likely one."""
        return np.asarray((self.is_said == self.is_token).all(1))


def continued(stack: Stack, encoded: Encoded) -> Continued:
    """Return a language model's predictions for the continuations of texts, without dropout."""
    assert encoded.starts is not None, "continuations are of tasks of texts"
    sizes = encoded.lengths - encoded.starts
    is_token = np.arange(sizes.max(initial=0)) < sizes[:, None]
    tokens = np.zeros(is_token.shape, np.int64)
    is_said = np.zeros_like(is_token)
    log_probability = np.zeros(is_token.shape, np.float32)
    with evaluating(stack.model):
        for rows, prepared, state in _last_states(stack, encoded):
            text, token = np.nonzero(is_token[rows])
            place = encoded.starts[rows][text] + token
            goal = prepared.batch["input_ids"][text, place]
            logits = stack.finish(state[text, place - 1]).float()
            of_goal = logits.log_softmax(-1).gather(1, goal[:, None])[:, 0]
            here = rows[text], token
            tokens[here] = goal.cpu()
            is_said[here] = (logits.argmax(-1) == goal).cpu()
            log_probability[here] = of_goal.cpu()
    return Continued(tokens, is_token, is_said, log_probability)


def _last_states(stack: Stack, encoded: Encoded) -> Iterator[tuple[IntArray, Prepared, Tensor]]:
    """Yield the rows of each batch, how it was prepared, and the states after the last block.

    A block runs on many batches before the next one does, as it may have to be read from disk.
    """
    batches = length_batches(stack, encoded.lengths)
    per_token = 4 * stack.width
    sizes = np.cumsum([per_token * encoded.lengths[rows].sum() for rows in batches])
    for group in np.unique(sizes // STATES_HELD):
        chosen = [rows for rows, g in zip(batches, sizes // STATES_HELD, strict=True) if g == group]
        prepared = [stack.prepare(to_batch(encoded, rows, stack.device)) for rows in chosen]
        states = [one.state for one in prepared]
        for layer, block in enumerate(stack.blocks):
            with opened(block):
                states = [
                    stack.run(layer, state, one.calls[layer])
                    for state, one in zip(states, prepared, strict=True)
                ]
        yield from zip(chosen, prepared, states, strict=True)


def log_probabilities(
    stack: Stack, encoded: Encoded, rows: IntArray, *, raw: bool = False
) -> Tensor:
    """Return the mean log-probability of the tokens of each continuation, with gradients.

    If `raw`, return their mean logit.
    """
    assert encoded.starts is not None, "continuations are of tasks of texts"
    batch = to_batch(encoded, rows, stack.device)
    ids = batch["input_ids"]
    places = torch.arange(batch["input_ids"].shape[1] - 1)
    starts = torch.from_numpy(encoded.starts[rows] - 1)
    is_read = (places >= starts[:, None]).to(ids.device) & (batch["attention_mask"][:, 1:] > 0)
    logits = stack.logits(batch)[:, :-1].float()
    said = logits if raw else logits.log_softmax(-1)
    of_tokens = said.gather(2, ids[:, 1:, None])[..., 0]
    return (of_tokens * is_read).sum(1) / is_read.sum(1)


def predicted(stack: Stack, encoded: Encoded) -> IntArray:
    """Return the predicted label of each text; for a language model, 0 if recalled, else 1."""
    if stack.is_language_model:
        return np.where(continued(stack, encoded).recalled, 0, 1)
    return np.asarray(predict(stack, encoded).argmax(1), dtype=np.int64)


def accuracies(predicted: IntArray, trained_on: IntArray, noisy: NoisyLabels) -> dict[str, float]:
    """Return accuracy and macro-F1 on the trained labels, and accuracies of noisy and clean
    examples.

    `noisy_as_original` is the share of noisy examples predicted as their original label. Unknown
    labels (below 0) are left out; a score is NaN where none is known.
    """
    learnt, known = trained_on >= 0, noisy.original >= 0
    hit, as_original = predicted == trained_on, predicted == noisy.original
    scored = trained_on[learnt], predicted[learnt]
    return {
        "accuracy": _share(hit[learnt]),
        "macro_f1": float(f1_score(*scored, average="macro", zero_division=0)),
        "noisy_accuracy": _share(hit[learnt & noisy.is_noisy]),
        "clean_accuracy": _share(hit[learnt & ~noisy.is_noisy]),
        "noisy_as_original": _share(as_original[known & noisy.is_noisy]),
    }


def _share(hits: BoolArray) -> float:
    return float(hits.mean()) if len(hits) else float("nan")


@torch.inference_mode()
def vectors_of(
    stack: Stack,
    encoded: Encoded,
    *,
    last_layer: LastLayer = "block output",
    up_to: int | None = None,
) -> Vectors:
    """Return one vector per text and layer, at the position that the head reads, in one pass.

    Where the head reads several positions, the vector is the mean over all attended positions.

    Args:
        stack: The model.
        encoded: Tokenised texts.
        last_layer: Vector to take for the last layer: its block's output, or the head's input.
        up_to: Last layer to return; the blocks above it do not run. All layers by default.
    """
    depth = stack.depth if up_to is None else up_to
    encoded = encoded if encoded.starts is None else encoded.prompts
    vectors = np.zeros((len(encoded), depth + 1, stack.width), dtype=np.float32)
    with evaluating(stack.model):
        for rows in length_batches(stack, encoded.lengths):
            prepared = stack.prepare(to_batch(encoded, rows, stack.device))
            state = prepared.state
            by_layer = [stack.vectors(state, prepared)]
            for index in range(depth):
                state = stack.run(index, state, prepared.calls[index])
                by_layer.append(stack.vectors(state, prepared))
            if last_layer == "final norm" and depth == stack.depth:
                is_mean = stack.readout == "all"
                read = stack.read(state, prepared) if is_mean else stack.vectors(state, prepared)
                by_layer[-1] = head_input(stack, read, prepared)
            vectors[rows] = torch.stack(by_layer, dim=1).float().cpu().numpy()
    return vectors


def head_input(stack: Stack, read: Tensor, prepared: Prepared) -> Tensor:
    """Return the last block's outputs as the model's head receives them, (n, width).

    That is the base model's last hidden state: after the final norm in a decoder, and the block's
    own output where nothing follows the blocks.
    """
    seen: list[Any] = []

    def keep(_module: nn.Module, _inputs: Any, output: Any) -> None:
        seen.append(getattr(output, "last_hidden_state", None))

    with stack.model.base_model.register_forward_hook(keep):
        stack.finish(read, prepared.batch)
    states = seen[0] if seen else None
    states_needed = read.shape if stack.readout == "all" else (len(read), 1, stack.width)
    if not isinstance(states, Tensor) or states.shape != states_needed:
        raise ModelError(
            f"{type(stack.model).__name__} does not say what its head is given as a vector of "
            f"{stack.width} numbers: set last_layer of the method to 'block output'."
        )
    return stack.vectors(states, prepared) if stack.readout == "all" else states[:, 0]
