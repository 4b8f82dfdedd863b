"""Texts and models for timing: nothing to download, the same on every machine."""

from typing import Any

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification

from memloc.arrays import IntArray
from memloc.data.encode import Encoded
from memloc.seeds import generator

SEED = 1
VOCABULARY = 2000
DEPTH = 12


def questions(n: int) -> tuple[Encoded, IntArray]:
    """Return texts as long as TREC's questions, with six classes that a few of their words give
    away.
    """
    rng = generator(SEED, "questions")
    lengths = np.clip(rng.gamma(9, 1.3, n).round(), 5, 40).astype(np.int64)
    labels = rng.integers(0, 6, n)
    texts = [rng.integers(100, VOCABULARY, length) for length in lengths]
    for text, label in zip(texts, labels, strict=True):
        text[rng.integers(1, len(text))] = 10 + label
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Encoded(np.concatenate(texts).astype(np.int32), offsets, 0), labels


def bert(hidden: int, seed: int = SEED) -> Any:
    """Return a random BERT for six classes."""
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        num_hidden_layers=DEPTH,
        num_attention_heads=hidden // 32 if hidden > 64 else 4,
        intermediate_size=4 * hidden,
        num_labels=6,
        # Without dropout two ways of training must follow the very same curve.
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    torch.manual_seed(seed)
    return BertForSequenceClassification(config)
