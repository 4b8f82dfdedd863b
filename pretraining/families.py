"""What differs between the four families: configuration, special tokens, how they learn."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import WordLevel
from tokenizers.processors import TemplateProcessing
from transformers import (
    BertConfig,
    GPTNeoConfig,
    GPTNeoXConfig,
    OPTConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
)

WIDTH, DEPTH, HEADS, POSITIONS = 64, 12, 4, 128
SCALE = 0.02 * (768 / WIDTH) ** 0.5
"""Standard deviation of initial weights: that of the large models, corrected for the width."""


@dataclass(frozen=True)
class Family:
    """How the models of one family are built and pre-trained."""

    config: PreTrainedConfig
    """Without the vocabulary, which is filled in later."""
    special: dict[str, str]
    """Special tokens by role; several roles may share a token."""
    template: str | None
    """What surrounds a text, `$A` being the text."""
    residual_outputs: tuple[str, ...]
    """Ends of the names of the layers that write into the residual stream."""
    masked: bool = False
    """Learns from masked words as well as from next words."""
    steps: int = 1200
    learning_rate: float = 2e-3


_SHAPE: dict[str, Any] = {
    "hidden_size": WIDTH,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": HEADS,
    "max_position_embeddings": POSITIONS,
}

FAMILIES: dict[str, Family] = {
    "tiny-bert": Family(
        BertConfig(
            **_SHAPE,
            intermediate_size=4 * WIDTH,
            initializer_range=SCALE,
            hidden_dropout_prob=0.0,  # with .1, as in the large model, pairs are not memorised
            attention_probs_dropout_prob=0.0,
        ),
        special={
            "pad_token": "[PAD]",
            "unk_token": "[UNK]",
            "cls_token": "[CLS]",
            "sep_token": "[SEP]",
            "mask_token": "[MASK]",
        },
        template="[CLS] $A [SEP]",
        residual_outputs=("attention.output.dense", "output.dense"),
        masked=True,
        steps=1600,
    ),
    "tiny-opt": Family(
        OPTConfig(
            **_SHAPE,
            ffn_dim=4 * WIDTH,
            word_embed_proj_dim=WIDTH,
            init_std=SCALE,
            dropout=0.1,
            attention_dropout=0.0,
        ),
        special={
            "pad_token": "<pad>",
            "bos_token": "</s>",
            "eos_token": "</s>",
            "unk_token": "</s>",
        },
        template="</s> $A",
        residual_outputs=("out_proj", "fc2"),
        steps=1500,
    ),
    "tiny-gpt-neo": Family(
        GPTNeoConfig(
            hidden_size=WIDTH,
            num_layers=DEPTH,
            num_heads=HEADS,
            intermediate_size=4 * WIDTH,
            max_position_embeddings=POSITIONS,
            attention_types=[[["global", "local"], DEPTH // 2]],
            window_size=16,
            initializer_range=SCALE,
            resid_dropout=0.0,
            embed_dropout=0.0,
            attention_dropout=0.0,
        ),
        special=dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>"),
        template=None,
        residual_outputs=("out_proj", "c_proj"),
    ),
    "tiny-gpt-neox": Family(
        GPTNeoXConfig(
            **_SHAPE,
            intermediate_size=4 * WIDTH,
            initializer_range=SCALE,
            hidden_dropout=0.0,
            attention_dropout=0.0,
        ),
        special=dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>"),
        template=None,
        residual_outputs=("attention.dense", "dense_4h_to_h"),
    ),
}


def make_tokenizer(family: Family, words: Sequence[str]) -> PreTrainedTokenizerFast:
    """A tokenizer that knows whole words only, with the family's special tokens first."""
    special = list(dict.fromkeys(family.special.values()))
    ids = {word: at for at, word in enumerate([*special, *words])}
    backend = Tokenizer(WordLevel(ids, unk_token=family.special["unk_token"]))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    if family.template is not None:
        used = [token for token in special if token in family.template.split()]
        backend.post_processor = TemplateProcessing(
            single=family.template, special_tokens=[(token, ids[token]) for token in used]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=POSITIONS,
        padding_side="right",
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
        **family.special,
    )


def make_config(family: Family, tokenizer: PreTrainedTokenizerFast) -> PreTrainedConfig:
    """The family's configuration, completed by the tokenizer's size and special tokens."""
    config = family.config
    config.vocab_size = len(tokenizer)
    for role in ("pad_token_id", "bos_token_id", "eos_token_id"):
        setattr(config, role, getattr(tokenizer, role))
    return config
