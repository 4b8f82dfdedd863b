"""Tries every family of classifiers and language models in transformers with memloc.

Two tiny random models of each family are made and saved, in a process with limits of time and
memory, and then treated like a user's models: `memloc check` on the one, and all windows of the
other one's layers in it, compared with the plain forward pass of a model whose weights were
exchanged and which reads each text alone. Of a language model, the logits of two tokens of each
text are compared.

    python -m studies.families                     all of them: families.json and its page
    python -m studies.families bert opt            some classifiers, printed
    python -m studies.families --texts llama opt   some causal language models, printed
"""

import argparse
import json
import multiprocessing
import re
import resource
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from textwrap import fill
from typing import Any

from studies.pages import DOCS, STORED, put

PAGE = DOCS / "reference" / "families.md"
CLASSIFIER, CAUSAL = "sequence classifier", "causal language model"
TABLES = {CLASSIFIER: STORED / "families.json", CAUSAL: STORED / "families_causal.json"}
SECONDS, MEMORY = 60, 8 * 2**30
"""Of processor time and of address space, for each family."""
EXACT = 3e-5
"""Largest difference of logits, relative to the largest logit."""
TEXTS = ("red", "the old man was sad", "we like the sea", "a blue sky and a very small green tree")
CONTINUED = tuple((" ".join(t.split()[:-2]) or "sea", " ".join(t.split()[-2:])) for t in TEXTS[1:])
SAID = 2
"""Tokens of each continuation: two words."""

INDENT = "  "

WIDTH, DEPTH, HEADS, TOKENS = 32, 2, 4, 64
SIZES: dict[int, tuple[str, ...]] = {
    WIDTH: (
        *("hidden_size", "d_model", "n_embd", "dim", "emb_dim", "embedding_size"),
        *("word_embed_proj_dim", "input_embedding_size"),
    ),
    DEPTH: (
        *("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers"),
        *("encoder_layers", "decoder_layers", "num_key_value_heads", "num_kv_heads"),
        *("num_experts_per_tok", "eos_token_id", "sep_token_id", "num_labels"),
    ),
    HEADS: (
        *("num_attention_heads", "n_head", "n_heads", "num_heads", "rotary_dim"),
        *("encoder_attention_heads", "decoder_attention_heads"),
    ),
    WIDTH // HEADS: (
        *("head_dim", "d_kv", "d_head", "kv_channels"),
        *("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"),
    ),
    WIDTH // 2: ("q_lora_rank", "kv_lora_rank"),
    TOKENS: (
        *("intermediate_size", "ffn_dim", "hidden_dim", "d_ff", "n_inner", "dff"),
        *("encoder_ffn_dim", "decoder_ffn_dim", "moe_intermediate_size"),
        *("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"),
    ),
    28: ("image_size",),
    14: ("patch_size",),
    1: ("bos_token_id", "decoder_start_token_id", "cls_token_id"),
    0: ("pad_token_id",),
}
"""What makes a model tiny, under all the names that configurations have for it."""
ALL_HEADS = {"num_key_value_heads": HEADS}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8}
EXCEPTIONS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("axk1", "axk2", "deepseek_v2", "deepseek_v3", "minicpm3", "esmc"), ALL_HEADS),
    **dict.fromkeys(("deepseek_v32", "glm4_moe_lite", "glm_moe_dsa"), ALL_HEADS),
    **dict.fromkeys(("longcat_flash", "youtu"), ALL_HEADS),
    **dict.fromkeys(("bamba", "granitemoehybrid"), MAMBA),
    "mamba2": {"num_heads": 8, "head_dim": 8},
    "dots1": ALL_HEADS,
    "zaya": {"num_experts_per_tok": 1},
    "gemma4_assistant": {"hidden_size_per_layer_input": 0},
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "layoutlmv3": {"coordinate_size": 4, "shape_size": 8},
    "lilt": {"hidden_size": 48, "num_attention_heads": 2},
    "mistral4": ALL_HEADS | {"head_dim": WIDTH // 2},
    "mobilebert": {"classifier_activation": False},  # tanh of large numbers is 1
    "perceiver": {
        **{"num_latents": 4, "d_latents": 16, "num_self_attends_per_block": 2, "num_blocks": 1},
        **{"num_self_attention_heads": 2, "num_cross_attention_heads": 2},
    },
    "reformer": {
        **{"axial_pos_shape": [8, 8], "axial_pos_embds_dim": [16, 16]},
        "attn_layers": ["local", "lsh"],
    },
    "xmod": {"default_language": "en_XX"},
    "zamba": {"layers_block_type": ["hybrid", "hybrid"]},
    "zamba2": {"layers_block_type": ["hybrid", "hybrid"]},
}
"""What these families need besides."""


@dataclass(frozen=True)
class Outcome:
    """Result of trying one family."""

    family: str
    outcome: str
    """exact, refused, wrong, error, or not made (transformers itself cannot make one here)."""
    readout: str = ""
    padding: bool = True
    """Whether texts of different lengths go together."""
    difference: float = 0.0
    reason: str = ""
    sublayers: bool = False
    """Whether the attention and the MLP of its layers are told apart."""


def main() -> None:
    """Try some families, or all, and write down the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*")
    parser.add_argument("--texts", action="store_true")
    asked = parser.parse_args()
    if asked.families:
        tried(asked.families, CAUSAL if asked.texts else CLASSIFIER)
        return
    for kind, path in TABLES.items():
        found = tried(every(kind), kind)
        record = {"transformers": version("transformers"), "families": [asdict(o) for o in found]}
        path.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
        put(path.stem, table(kind), PAGE)


def every(kind: str) -> list[str]:
    """Return the families that transformers maps to a model of this kind."""
    from transformers.models.auto import modeling_auto

    if kind == CAUSAL:
        return sorted(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    return sorted(modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES)


def tried(names: Sequence[str], kind: str) -> list["Outcome"]:
    """Try these families and print what became of each."""
    found = []
    for outcome in outcomes(names, kind):
        print(f"{outcome.family:24}{outcome.outcome:10}{outcome.difference:.1e}  {outcome.reason}")
        found.append(outcome)
    print(dict(Counter(outcome.outcome for outcome in found)))
    print(f"{sum(outcome.sublayers for outcome in found)} with sublayers")
    return found


def outcomes(
    families: Sequence[str], kind: str = CLASSIFIER, seconds: int = SECONDS
) -> Iterator[Outcome]:
    """Each in a process of its own, forked from this one, which has imported transformers."""
    import torch

    import memloc.methods.mixtures
    import memloc.model.check  # noqa: F401

    torch.set_num_threads(1)
    context = multiprocessing.get_context("fork")
    for family in families:
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_limited, args=(family, kind, seconds, sender))
        process.start()
        sender.close()
        try:
            yield receiver.recv()
        except EOFError:
            yield Outcome(family, "error", reason="its process was ended by its limits")
        process.join()


def _limited(family: str, kind: str, seconds: int, sender: Any) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("ignore")
    sender.send(try_family(family, kind))


def try_family(family: str, kind: str = CLASSIFIER) -> Outcome:
    """Make two models, check one, and swap the other's layers into it."""
    from memloc.errors import MemlocError
    from memloc.model.check import check_model
    from memloc.model.checkpoints import load_checkpoint
    from memloc.model.load import quiet_loading

    with tempfile.TemporaryDirectory() as home, quiet_loading():
        folders = [Path(home, family, name) for name in ("one", "two")]
        try:
            for seed, folder in enumerate(folders):
                write_model(family, folder, seed, kind)
        except Exception as error:  # noqa: BLE001 - whatever a family does, the others go on
            return Outcome(family, "not made", reason=_words(error))
        try:
            is_texts = kind == CAUSAL
            report = check_model(str(folders[0]), texts=is_texts)
            final, reference = (load_checkpoint(folder, texts=is_texts) for folder in folders)
            swapped = swapped_difference(final, reference)
        except MemlocError as error:
            return Outcome(family, "refused", reason=str(error).replace(str(folders[0]), family))
        except Exception as error:  # noqa: BLE001
            return Outcome(family, "error", reason=_words(error))
    difference = max(report.parity, report.batch_invariance, swapped)
    outcome = "exact" if difference <= EXACT else "wrong"
    parts = has_sublayers(final)
    return Outcome(family, outcome, report.readout, final.stack.pads, difference, sublayers=parts)


def has_sublayers(model: Any) -> bool:
    """Return whether attention and MLP of a model's layers can be told apart."""
    from memloc.errors import ModelError
    from memloc.model.units import find_units

    try:
        find_units(model.stack, "sublayers")
    except ModelError:
        return False
    return True


def swapped_difference(final: Any, reference: Any) -> float:
    """Return how far logits of all windows of layers are from those of plainly built mixtures."""
    import numpy as np
    import torch

    from memloc.data.encode import encode, encode_continued
    from memloc.methods.mixtures import Mixtures, Outcome
    from memloc.methods.swapping import window_subsets
    from memloc.model.stack import forward
    from memloc.stats.windows import windows

    is_texts = final.stack.is_language_model
    if is_texts:
        encoded = encode_continued(CONTINUED, make_tokenizer(), TOKENS // 2)
        n_logits = SAID * final.model.config.get_text_config().vocab_size
    else:
        encoded = encode([(t,) for t in TEXTS], final.tokenizer, final.separator, TOKENS // 2)
        n_logits = final.model.config.num_labels
    outcome = Outcome(
        tuple(map(str, range(n_logits))),
        lambda logits, _: logits.flatten(2).movedim(-1, 0),
    )
    mixtures = Mixtures(final.stack, reference.stack, outcome=outcome)
    rows, subsets = np.arange(len(encoded)), [*window_subsets(final.stack.depth), 0]
    found = torch.zeros(len(rows), len(subsets), n_logits)
    for places in mixtures.batches(encoded, rows):
        labels = np.zeros((len(places), SAID), np.int64) if is_texts else places
        values = mixtures.values(encoded, rows[places], labels, subsets)
        found[places] = values.movedim(0, -1)
    own = {name: value.clone() for name, value in final.model.state_dict().items()}
    worst = 0.0
    for place, window in enumerate([*windows(final.stack.depth), range(0)]):
        final.model.load_state_dict(own)
        for layer in window:
            final.stack.blocks[layer].load_state_dict(reference.stack.blocks[layer].state_dict())
        with torch.inference_mode():
            ids = [torch.from_numpy(encoded.batch(rows[[row]])[0]) for row in rows]
            each = [forward(final.model, {"input_ids": text}) for text in ids]
        plain = torch.stack([(e[:, -1 - SAID : -1] if is_texts else e).flatten() for e in each])
        worst = max(worst, float((plain - found[:, place]).abs().max() / plain.abs().max()))
    return worst


def write_model(family: str, folder: Path, seed: int, kind: str) -> None:
    """Write a tiny random model of a family."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    tokenizer = make_tokenizer()
    config_of = CONFIG_MAPPING[family]
    # Some tokenizers add a token of their own.
    values = tiny_values(config_of, len(tokenizer) + 8) | EXCEPTIONS.get(family, {})
    if kind == CAUSAL and hasattr(config_of(), "is_decoder"):
        values["is_decoder"] = True  # a BERT, say, continues texts only then
    torch.manual_seed(seed)
    head = AutoModelForCausalLM if kind == CAUSAL else AutoModelForSequenceClassification
    save_enlarged(head.from_config(config_of(**values)), tokenizer, folder)


def save_enlarged(model: Any, tokenizer: Any, folder: Path) -> None:
    """Save a model with larger weights than usual, so that differences exceed float noise."""
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.2)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def tiny_values(kind: Any, vocabulary: int) -> dict[str, Any]:
    """Return the settings of a tiny model, including those of its parts."""
    usual = kind()
    other_names = usual.attribute_map
    known = {*usual.to_dict(), *other_names.values()}
    sizes = {name: size for size, names in SIZES.items() for name in names}
    values: dict[str, Any] = {
        name: size for name, size in sizes.items() if name in known and name not in other_names
    }
    if "vocab_size" in known:
        values[other_names.get("vocab_size", "vocab_size")] = vocabulary
    parts = {name: type(getattr(usual, name)) for name in kind.sub_configs if getattr(usual, name)}
    for name, part in parts.items():
        values[name] = {"model_type": part.model_type, **tiny_values(part, vocabulary)}
    return values


def make_tokenizer() -> Any:
    """Return a tokenizer that knows the words of the texts."""
    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers.models import WordLevel
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
    words = dict.fromkeys([*special, *" ".join(TEXTS).split()])
    tokenizer = Tokenizer(WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    names = ("pad_token", "cls_token", "sep_token", "unk_token", "mask_token")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=TOKENS,
        model_input_names=["input_ids", "attention_mask"],
        **dict(zip(names, special, strict=True)),
    )


def table(kind: str) -> str:
    """Return the latest results of the families of a kind, as Markdown."""
    record = json.loads(TABLES[kind].read_text("utf-8"))
    found = [Outcome(**row) for row in record["families"]]
    count = Counter(outcome.outcome for outcome in found)
    said = ", ".join(f"{n} {name}" for name, n in count.most_common())
    groups: dict[str, list[str]] = {}
    for outcome in sorted(found, key=lambda o: (o.outcome, not o.padding, o.readout, o.family)):
        readout = f"the head reads the {outcome.readout}".replace("the all", "all")
        readout = readout.replace("the every", "every")
        how = readout if outcome.padding else "only texts of one length share a batch"
        why = how if outcome.outcome == "exact" else _reason(outcome)
        groups.setdefault(f"{outcome.outcome}: {why}", []).append(outcome.family)
    known = f"{len(found)} families that transformers {record['transformers']} maps to a"
    parts = f"Attention and MLP are told apart in {sum(o.sublayers for o in found)} of them."
    lines = [f"Of {known} {kind}: {said}. {parts}", ""]
    lines += [f"- **{why}** ({len(names)}): {_listed(names)}" for why, names in groups.items()]
    wrapped = [fill(line, 118, subsequent_indent=INDENT * line.startswith("-")) for line in lines]
    return "\n".join(wrapped) + "\n"


REASONS = {
    "an encoder and a decoder": "an encoder and a decoder, of which you can choose one",
    "share (their|the) weights": "layers share weights, so none can be exchanged alone",
    "hand on more than a state": "blocks hand on more than a state",
    "blocks that a text passes|blocks of its list": "no single list of blocks that are called once",
    "not one vector a token": "states are not one vector per token",
    "configuration has no": "the configuration names no vocabulary or no number of layers",
    "both directions": "texts are read in both directions",
    "Unrecognized configuration": "transformers cannot load what it saved",
    "cannot be None": "needs the states of another model",
}
"""Classes of reasons, by what the sentences of memloc say."""


COMMON = (
    *("bloom", "falcon", "gemma", "gemma2", "gemma3_text", "gpt2", "gpt_neo", "gpt_neox", "gptj"),
    *("llama", "mamba", "mistral", "mixtral", "mpt", "olmo2", "opt", "phi", "phi3", "qwen2"),
    *("qwen3", "smollm3", "stablelm"),
)
"""Families that are named where there are too many to name them all."""
MANY = 50
"""Families of a group from which on it has all that are not named: only one can be as large."""


def _listed(names: Sequence[str]) -> str:
    """Name families, or the common ones of a group that has all others."""
    if len(names) <= MANY:
        return ", ".join(names)
    return f"all others, {', '.join(n for n in COMMON if n in names)} among them"


def _reason(outcome: Outcome) -> str:
    """Return the class of the reason why a family does not work."""
    if outcome.outcome == "not made":
        return "transformers makes none of this size here, or needs another package"
    return next((said for key, said in REASONS.items() if re.search(key, outcome.reason)), "other")


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split()).split('. ')[0]}"[:160]


if __name__ == "__main__":
    main()
