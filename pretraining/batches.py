"""Documents as batches of token ids, for guessing next words and masked words."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad as pad_to
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerFast

IGNORED = -100
MASKED_SHARE = 0.2


@dataclass(frozen=True)
class Batch:
    """One step's input; rows with masked words, if any, come last."""

    ids: Tensor
    """(rows, length) token ids."""
    attention: Tensor | None
    """(rows, 1, length, length), true where a position may look; None leaves it to the model."""
    targets: Tensor
    """(rows, length) the word to guess at each position, or IGNORED."""
    gist: Tensor | None = None
    """(masked rows, vocabulary) frequencies of the row's own words and of the next sentence's."""


class Batches:
    """An endless supply of batches from a stream of documents."""

    def __init__(
        self, documents: Iterator[list[str]], tokenizer: PreTrainedTokenizerFast, shape: list[int]
    ) -> None:
        self.documents = documents
        self.tokenizer = tokenizer
        self.rows, self.length = shape
        self.ids_of: dict[str, int] = tokenizer.get_vocab()
        self.starts_with_token = len(tokenizer("").input_ids) > 0
        self.rng = torch.Generator().manual_seed(0)

    def next_words(self) -> Iterator[Batch]:
        """Every row guesses its next words."""
        while True:
            yield self._causal(self.rows)

    def next_then_masked_words(self, n_next: int) -> Iterator[Batch]:
        """First `n_next` batches of next words alone, looking back only; then half of the rows
        guess masked words and the gist, looking both ways.
        """
        look_back = torch.ones(self.length, self.length, dtype=torch.bool).tril()
        for _ in range(n_next):
            causal = self._causal(self.rows)
            yield replace(causal, attention=look_back.expand(self.rows, 1, -1, -1))
        while True:
            causal, masked = self._causal(self.rows // 2), self._masked(self.rows // 2)
            assert masked.attention is not None
            yield Batch(
                torch.cat([causal.ids, masked.ids]),
                torch.cat([look_back.expand_as(masked.attention), masked.attention]),
                torch.cat([causal.targets, masked.targets]),
                masked.gist,
            )

    def _causal(self, rows: int) -> Batch:
        ids = torch.tensor([self._packed() for _ in range(rows)])
        targets = torch.full_like(ids, IGNORED)
        targets[:, :-1] = ids[:, 1:]
        return Batch(ids, None, targets)

    def _packed(self) -> list[int]:
        """Documents one after the other, with a boundary token each, cut at the length."""
        boundary = self.tokenizer.cls_token_id
        if boundary is None:
            boundary = self.tokenizer.eos_token_id
        ids: list[int] = []
        while len(ids) < self.length:
            content = self._ids(" ".join(next(self.documents)))
            ids += [boundary, *content] if self.starts_with_token else [*content, boundary]
        return ids[: self.length]

    def _masked(self, rows: int) -> Batch:
        """Parts of documents with some words masked, and what they are about."""
        cut = [self._beginning() for _ in range(rows)]
        beginnings = [torch.tensor(ids) for ids, _ in cut]
        pad = self.tokenizer.pad_token_id
        ids = pad_sequence(beginnings, batch_first=True, padding_value=pad)
        ids = pad_to(ids, (0, self.length - ids.shape[1]), value=pad)
        special = torch.tensor(self.tokenizer.all_special_ids)
        hidden = torch.rand(ids.shape, generator=self.rng) < MASKED_SHARE
        hidden &= ~torch.isin(ids, special)
        targets = torch.where(hidden, ids, IGNORED)
        attention = (ids != pad)[:, None, None, :].expand(-1, 1, self.length, -1)
        gist = torch.zeros(rows, len(self.tokenizer))
        for row, (_, words) in enumerate(cut):
            gist[row].index_add_(0, torch.tensor(words), torch.full((len(words),), 1 / len(words)))
        return Batch(
            torch.where(hidden, self.tokenizer.mask_token_id, ids), attention, targets, gist
        )

    def _beginning(self) -> tuple[list[int], list[int]]:
        """Some sentences of a document, one at least, and their words with the next sentence's."""
        sentences = next(self.documents)
        if len(sentences) < 2:
            return self._beginning()
        cut = int(torch.randint(1, len(sentences), (1,), generator=self.rng))
        first = int(torch.randint(0, cut, (1,), generator=self.rng))
        text = " ".join(sentences[first:cut]).replace("|", self.tokenizer.sep_token)
        body = self._ids(text)[: self.length - 2]
        cls, sep = self.tokenizer.cls_token_id, self.tokenizer.sep_token_id
        return [cls, *body, sep], body + self._ids(sentences[cut])

    def _ids(self, text: str) -> list[int]:
        return [self.ids_of[word] for word in text.split()]
