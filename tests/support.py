"""Tiny random models of every family, as folders that `save_pretrained` wrote."""

from contextlib import contextmanager
from pathlib import Path
from typing import Any

from memloc.model.stack import hidden_of
from studies.families import save_enlarged

WIDTH, HEADS, POSITIONS, DEPTH = 16, 2, 64, 3
WORDS = (
    *("a", "and", "apple", "bad", "bird", "blue", "book", "boy", "cat", "cloud", "cold", "dark"),
    *("day", "dog", "door", "fish", "fox", "girl", "good", "great", "green", "happy", "hat", "hot"),
    *("house", "is", "it", "lamp", "man", "moon", "not", "old", "rain", "red", "river", "sad"),
    *("sea", "sky", "small", "star", "stone", "sun", "the", "tree", "very", "was", "we", "wind"),
    *("woman", "|"),
)

BERT_LIKE = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
ROBERTA_LIKE = {
    "bos_token": "<s>",
    "pad_token": "<pad>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "cls_token": "<s>",
    "sep_token": "</s>",
}
OPT_LIKE = {"bos_token": "</s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "</s>"}
GPT_LIKE = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
LLAMA_LIKE = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}

TOKENIZERS: dict[str, tuple[dict[str, str], str | None]] = {
    "bert": (BERT_LIKE, "[CLS] $A [SEP]"),
    "distilbert": (BERT_LIKE, "[CLS] $A [SEP]"),
    "electra": (BERT_LIKE, "[CLS] $A [SEP]"),
    "roberta": (ROBERTA_LIKE, "<s> $A </s>"),
    "mpnet": (ROBERTA_LIKE, "<s> $A </s>"),
    "opt": (OPT_LIKE, "</s> $A"),
    "gpt_neo": (GPT_LIKE, None),
    "gpt_neox": (GPT_LIKE, None),
    "gpt2": (GPT_LIKE, None),
    "llama": (LLAMA_LIKE, "<s> $A"),
    "eurobert": (LLAMA_LIKE, "<s> $A"),
    "convbert": (BERT_LIKE, "[CLS] $A [SEP]"),
}
"""Special tokens, in the order of their ids, and what surrounds a text."""

SPECIAL = ("eurobert", "convbert")
"""A head that reads all tokens, and a model that changes its answer with padding."""
FAMILIES = tuple(family for family in TOKENIZERS if family not in SPECIAL)
PAPER_FAMILIES = ("bert", "opt", "gpt_neo", "gpt_neox")


def write_model(folder: Path, family: str, depth: int, dropout: float, seed: int) -> Path:
    """A random model without a head, and its tokenizer, as on the hub."""
    import torch
    from transformers import AutoModel

    tokenizer = make_tokenizer(family)
    config = make_config(family, depth, dropout, tokenizer)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        save_enlarged(AutoModel.from_config(config), tokenizer, folder)
    return folder


def make_tokenizer(family: str) -> Any:
    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers.models import WordLevel
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    special, template = TOKENIZERS[family]
    ids = {word: i for i, word in enumerate(dict.fromkeys([*special.values(), *WORDS]))}
    backend = Tokenizer(WordLevel(ids, unk_token=special["unk_token"]))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if template:
        around = [(t, ids[t]) for t in dict.fromkeys(special.values()) if t in template.split()]
        backend.post_processor = TemplateProcessing(single=template, special_tokens=around)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=POSITIONS,
        model_input_names=["input_ids", "attention_mask"],
        **special,
    )


def make_config(family: str, depth: int, dropout: float, tokenizer: Any) -> Any:
    import transformers as hf

    usual = {
        "hidden_size": WIDTH,
        "num_hidden_layers": depth,
        "num_attention_heads": HEADS,
        "max_position_embeddings": POSITIONS,
    }
    wide = {"intermediate_size": 2 * WIDTH}
    drop = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    offset = {"max_position_embeddings": POSITIONS + 2}  # these count positions from 2
    kinds: dict[str, tuple[Any, dict[str, Any]]] = {
        "bert": (hf.BertConfig, usual | wide | drop),
        "roberta": (hf.RobertaConfig, usual | wide | drop | offset),
        "electra": (hf.ElectraConfig, usual | wide | drop | {"embedding_size": WIDTH // 2}),
        "mpnet": (hf.MPNetConfig, usual | wide | drop | offset),
        "distilbert": (
            hf.DistilBertConfig,
            {
                "dim": WIDTH,
                "n_layers": depth,
                "n_heads": HEADS,
                "hidden_dim": 2 * WIDTH,
                "max_position_embeddings": POSITIONS,
                "dropout": dropout,
                "attention_dropout": dropout,
                "seq_classif_dropout": dropout,
            },
        ),
        "opt": (
            hf.OPTConfig,
            usual | {"ffn_dim": 2 * WIDTH, "word_embed_proj_dim": WIDTH, "dropout": dropout},
        ),
        "gpt_neo": (
            hf.GPTNeoConfig,
            wide
            | {
                "hidden_size": WIDTH,
                "num_layers": depth,
                "num_heads": HEADS,
                "max_position_embeddings": POSITIONS,
                "attention_types": [[["global"], 1], [["local"], depth - 1]],
                "window_size": 4,
                "resid_dropout": dropout,
                "embed_dropout": dropout,
                "attention_dropout": dropout,
            },
        ),
        "gpt_neox": (
            hf.GPTNeoXConfig,
            usual | wide | {"hidden_dropout": dropout, "attention_dropout": dropout},
        ),
        "gpt2": (
            hf.GPT2Config,
            {
                "n_embd": WIDTH,
                "n_layer": depth,
                "n_head": HEADS,
                "n_positions": POSITIONS,
                "resid_pdrop": dropout,
                "embd_pdrop": dropout,
                "attn_pdrop": dropout,
            },
        ),
        "llama": (
            hf.LlamaConfig,
            usual | wide | {"num_key_value_heads": 1, "attention_dropout": dropout},
        ),
        "eurobert": (
            hf.EuroBertConfig,
            usual | wide | {"num_key_value_heads": 1, "mask_token_id": 0},
        ),
        "convbert": (hf.ConvBertConfig, usual | wide | drop | {"embedding_size": WIDTH}),
    }
    kind, values = kinds[family]
    roles = ("pad_token_id", "bos_token_id", "eos_token_id")
    return kind(
        vocab_size=len(tokenizer), **{role: getattr(tokenizer, role) for role in roles}, **values
    )


@contextmanager
def watched(stack, see):
    """While active, `see(index, output)` is called with every block's output."""
    handles = [
        block.register_forward_hook(
            lambda _module, _inputs, out, index=index: see(index, hidden_of(out))
        )
        for index, block in enumerate(stack.blocks)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
