"""Joins the parts of texts, tokenises them once, and cuts them into batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from memloc.arrays import IntArray
from memloc.errors import DataError, ModelError, counted


@dataclass(frozen=True)
class Encoded:
    """Tokenised texts, end to end in one array; `offsets` says where each text begins and ends."""

    tokens: NDArray[np.int32]
    offsets: IntArray
    pad_id: int
    starts: IntArray | None = None
    """Number of tokens before the continuation of each text, in a task of texts."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> IntArray:
        """Number of tokens of every text."""
        return np.diff(self.offsets)

    @property
    def prompts(self) -> "Encoded":
        """The same texts without their continuations."""
        assert self.starts is not None, "continuations are of tasks of texts"
        place = np.arange(len(self.tokens)) - np.repeat(self.offsets[:-1], self.lengths)
        tokens = self.tokens[place < np.repeat(self.starts, self.lengths)]
        return Encoded(tokens, np.cumsum([0, *self.starts]), self.pad_id)

    def batch(self, rows: IntArray) -> tuple[IntArray, IntArray]:
        """Return token ids and attention mask (n, longest) of the texts at `rows`, padded right."""
        lengths = self.lengths[rows]
        columns = np.arange(lengths.max(initial=0))
        is_token = columns < lengths[:, None]
        ids = np.full(is_token.shape, self.pad_id, dtype=np.int64)
        ids[is_token] = self.tokens[(self.offsets[rows][:, None] + columns)[is_token]]
        return ids, is_token.astype(np.int64)


def encode(
    examples_parts: Sequence[Sequence[str]], tokenizer: Any, separator: str, max_tokens: int = 512
) -> Encoded:
    """Tokenise every example once, with the special tokens that `tokenizer` adds.

    The parts of a text become "{a} {sep} {b}", or "{word} {sep} {a} {sep} {b}" if there are three.

    A text without any token (an empty one, where no special tokens are added) becomes one
    end-of-text token that is attended to, so that there is a position to read a prediction from.

    Args:
        examples_parts: The parts of each text, such as the two sentences of a pair.
        tokenizer: The model's own tokenizer.
        separator: Text put between two parts.
        max_tokens: Length at which a text is cut, special tokens included.
    """
    pad_id, filler = _special_ids(tokenizer)
    lengths, flat = [np.zeros(1, np.int64)], [np.zeros(0, np.int32)]
    for start in range(0, len(examples_parts), AT_ONCE):
        some = examples_parts[start : start + AT_ONCE]
        texts = [f" {separator} ".join(parts) for parts in some]
        # verbose=False: the tokenizer would warn of long texts before they are cut.
        options = {"return_attention_mask": False, "verbose": False}
        cut = tokenizer(texts, truncation=True, max_length=max_tokens, **options)["input_ids"]
        ids = [tokens or [filler] for tokens in cut]
        lengths.append(np.array([len(tokens) for tokens in ids], np.int64))
        flat.append(np.fromiter(chain.from_iterable(ids), np.int32))
    tokenizer("")  # a tokenizer remembers how it cut texts, and would be saved like that
    return Encoded(np.concatenate(flat), np.cumsum(np.concatenate(lengths)), pad_id)


def encode_continued(
    examples_parts: Sequence[Sequence[str]],
    tokenizer: Any,
    max_tokens: int = 512,
    last_tokens: int | None = None,
) -> Encoded:
    """Tokenise texts to recall, and note where the continuation of each begins.

    Args:
        examples_parts: The prompt and the continuation of each text; the text alone if
            `last_tokens` is given.
        tokenizer: The model's own tokenizer.
        max_tokens: Length above which a text is refused.
        last_tokens: Number of last tokens of each text that are its continuation.
    """
    require_places(tokenizer)
    pad_id, _ = _special_ids(tokenizer)
    ids, starts = [], []
    for row, parts in enumerate(examples_parts, start=1):
        if last_tokens is None:
            tokens, start = _continued(row, parts[0], parts[1], tokenizer)
        else:
            tokens, start = _ended(row, parts[0], last_tokens, tokenizer)
        if len(tokens) > max_tokens:
            raise DataError(
                f"Text {row} has {start} tokens before its continuation and {len(tokens) - start} "
                f"in it; at most {max_tokens} are read: shorten its prompt, or raise "
                "text.max_tokens if the model reads more."
            )
        ids.append(tokens)
        starts.append(start)
    lengths = np.array([0, *map(len, ids)])
    flat = np.fromiter(chain.from_iterable(ids), np.int32)
    return Encoded(flat, np.cumsum(lengths), pad_id, np.array(starts, dtype=np.int64))


def _continued(
    row: int, prompt: str, continuation: str, tokenizer: Any
) -> tuple[Sequence[int], int]:
    """Return the tokens of a prompt with its continuation, and where the continuation begins.

    They are tokenised as one text, joined by a space unless one is there already. The continuation
    is every token that ends behind the prompt.
    """
    has_space = prompt[-1:].isspace() or continuation[:1].isspace()
    tokens, ends = _tokens(prompt + ("" if has_space else " ") + continuation, tokenizer)
    start = next((i for i, end in enumerate(ends) if end > len(prompt)), len(tokens))
    if start == len(tokens):
        raise DataError(
            f"Text {row} has no token in its continuation {continuation!r} for this tokenizer: "
            "give a continuation of at least one token."
        )
    if start == 0:
        raise DataError(
            f"Text {row} begins with its continuation for this tokenizer, so nothing precedes "
            "the first token to recall: give a longer prompt."
        )
    return tokens, start


def _ended(row: int, text: str, last_tokens: int, tokenizer: Any) -> tuple[Sequence[int], int]:
    """Return the tokens of a text, and where its last ones begin, before which it has others."""
    tokens, ends = _tokens(text, tokenizer)
    n_tokens = sum(end > 0 for end in ends)  # without special tokens
    if n_tokens <= last_tokens:
        raise DataError(
            f"Text {row} has {counted(n_tokens, 'token')}, and {last_tokens} are to be recalled "
            "after at least one other: give longer texts, or recall fewer tokens."
        )
    return tokens, len(tokens) - last_tokens


def _tokens(text: str, tokenizer: Any) -> tuple[Sequence[int], Sequence[int]]:
    """Return the tokens of a text and where each ends in it; nothing is added after the text."""
    encoding = tokenizer(text, return_offsets_mapping=True, verbose=False)
    ends = [end for _, end in encoding["offset_mapping"]]
    # A character of several tokens ends with the last of them; special tokens end at 0.
    last = len(ends) - ends[::-1].index(max(ends))
    return encoding["input_ids"][:last], ends[:last]


def require_places(tokenizer: Any) -> None:
    """Refuse a tokenizer that does not tell where in a text its tokens are."""
    if not tokenizer.is_fast:
        raise ModelError(
            f"{type(tokenizer).__name__} does not tell where in a text its tokens are, which is "
            "needed to know where a continuation begins: give a model with a fast tokenizer."
        )


AT_ONCE = 1000
"""Number of texts tokenised in one call: a tokenizer's output is far larger than the ids kept."""


def random_batches(n: int, batch_size: int, rng: Generator) -> list[IntArray]:
    """Return 0..n-1 in random order, in batches of `batch_size`; the last may be smaller."""
    return _cut(rng.permutation(n), batch_size)


def length_grouped_batches(
    lengths: IntArray, batch_size: int, rng: Generator, pool: int = 50
) -> list[IntArray]:
    """Return random batches of texts of similar length, every text once, in random order.

    Texts are shuffled, then sorted by length within pools of batches: there is little padding, and
    the batches still differ from epoch to epoch.

    Args:
        lengths: Number of tokens of each text.
        batch_size: Number of texts in a batch; the last batch may be smaller.
        rng: Generator of the random order.
        pool: Number of batches whose texts are sorted as one.
    """
    pools = _cut(rng.permutation(len(lengths)), batch_size * pool)
    by_length = (rows[np.argsort(lengths[rows], kind="stable")] for rows in pools)
    batches = [batch for rows in by_length for batch in _cut(rows, batch_size)]
    return [batches[i] for i in rng.permutation(len(batches))]


def sorted_batches(lengths: IntArray, max_tokens_per_batch: int) -> list[IntArray]:
    """Return batches of at most this many tokens (or of one long text), the longest texts first."""
    order = np.argsort(-lengths, kind="stable")
    batches, start = [], 0
    while start < len(order):
        # The first text of a batch is its longest, so it decides how many fit.
        size = max(1, max_tokens_per_batch // max(1, int(lengths[order[start]])))
        batches.append(order[start : start + size])
        start += size
    return batches


def _cut(rows: IntArray, size: int) -> list[IntArray]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def _special_ids(tokenizer: Any) -> tuple[int, int]:
    """Return the id of the padding token, and the id that stands for a text without tokens."""
    pad, end = tokenizer.pad_token_id, tokenizer.eos_token_id
    known = [token for token in (pad, end) if token is not None]
    if not known:
        raise ModelError(
            "The tokenizer has neither a padding nor an end-of-text token, but batches need one:"
            " set its pad_token."
        )
    return known[0], known[-1]
