"""Loads a model and its tokenizer from a folder or the hub, and settles padding and separator."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from memloc.data.hub import asked_once
from memloc.display import Card, Shown
from memloc.errors import ModelError, in_words
from memloc.model.known import TINY, no_such_model, place_of
from memloc.model.stack import Stack, as_model_error, optional_setting, setting
from memloc.seeds import torch_seeded
from memloc.store.identity import hash_weights


@dataclass(frozen=True)
class LoadOptions:
    """Permissions for loading a model, and changes to make on the way."""

    remote_code: bool = False
    """Permission to run Python code that comes with a model."""
    any_format: bool = False
    """Permission to read weights in formats that can carry code (pickle), not only safetensors."""
    depth: int | None = None
    """Number of first blocks to keep; all by default."""
    base: str | None = None
    """Base model of an adapter; by default the one that the adapter names."""
    stream: bool = False
    """Read the blocks of a saved model from disk whenever they run (see `model.streamed`)."""


@dataclass(frozen=True, repr=False)
class Classifier(Shown):
    """A classifier or language model with its tokenizer, and facts about how it was loaded."""

    name: str
    model: Any
    tokenizer: Any
    new_weights: tuple[str, ...] = ()
    """Parameters that the file lacked and that were drawn at random: the head."""
    unused_weights: tuple[str, ...] = ()
    """Parameters in the file that the model has no place for, such as another head."""
    resized_weights: tuple[str, ...] = ()
    """New parameters that the file had in another size."""
    adapter_hash: str = ""
    """Checksums of an adapter and of its base model, taken before merging them."""
    unchanged_layers: tuple[int, ...] = ()
    """Layers (from 1) that an adapter does not change: zero there, or missing."""
    adapted: Any = None
    """The PEFT model around `model`, needed to save an adapter; set while one is trained."""

    def card(self) -> Card:
        """Return the kind of model, its size, and which weights are new."""
        size = sum(parameter.numel() for parameter in self.model.parameters())
        new = [f"new weights: {', '.join(self.new_weights)}"] if self.new_weights else []
        return Card(f"{type(self.model).__name__} {self.name}, {size:,} parameters", new)

    @cached_property
    def stack(self) -> Stack:
        """The model as embed → blocks → finish."""
        return Stack(self.model)

    def copied(self, layers: Iterable[int] | None = None) -> "Classifier":
        """Return a copy of the classifier that has its own weights, except outside of `layers`."""
        stack = self.stack.copied(layers)
        copied = replace(self, model=stack.model)
        copied.__dict__["stack"] = stack  # observations of the model stay valid
        return copied

    @property
    def label_names(self) -> list[str]:
        """Class names in the order of the logits; empty for a language model."""
        return [] if self.stack.is_language_model else label_names_of(self.model.config)

    @property
    def separator(self) -> str:
        """Return the separator between the parts of a text.

        The tokenizer's own separator; failing that, the end token where the tokenizer puts special
        tokens around texts (OPT), and a plain `|` where it puts none (GPT-Neo, Pythia).
        """
        separator, end = self.tokenizer.sep_token, self.tokenizer.eos_token
        if separator:
            return str(separator)
        wraps = self.tokenizer.num_special_tokens_to_add(pair=False) > 0
        return str(end) if wraps and end else "|"

    @property
    def weights_hash(self) -> str:
        """Return a checksum of the loaded weights, without a new head, which depends on the seed
        alone.

        Merging an adapter may differ by float noise between machines, so its own hash counts.
        """
        named = self.model.named_parameters()
        places = getattr(self.model, "places", {})  # of a streamed model
        loaded = (
            (name, places[name].read() if values.is_meta else values)
            for name, values in named
            if name not in self.new_weights
        )
        return self.adapter_hash or hash_weights(loaded)

    @property
    def max_tokens(self) -> int:
        """Length in tokens of the longest text that the model can read."""
        positions = optional_setting(self.model.config, "max_position_embeddings")
        if positions is None:
            return int(self.tokenizer.model_max_length)
        return int(min(self.tokenizer.model_max_length, positions - _first_position(self.model)))


def load_model(
    name: str,
    label_names: Sequence[str],
    *,
    seed: int = 1,
    options: LoadOptions | None = None,
) -> Classifier:
    """Load a classifier with a head for these labels; a missing head is drawn at random.

    Without labels, load a language model with its own head.

    Args:
        name: Folder of the model, or its name on the hub.
        label_names: Class names in the order of the logits; empty for a language model.
        seed: Seed of a head that has to be drawn.
        options: Permissions for loading, and changes to make.
    """
    options = options or LoadOptions()
    source = place_of(name)
    # Weights that are made in inference mode could never be trained.
    with (
        quiet_loading(),
        asked_once(source),
        loading(name),
        torch_seeded(seed, "head"),
        torch.inference_mode(False),
    ):
        kind = AutoModelForSequenceClassification if label_names else AutoModelForCausalLM
        model, info = kind.from_pretrained(
            source,
            config=_config(source, label_names, options),
            dtype=torch.float32,
            use_safetensors=None if options.any_format else True,
            trust_remote_code=options.remote_code,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
        tokenizer = read_tokenizer(source, options)
        settle_padding(name, model, tokenizer)
        missing, resized = _new_weights(name, model, info, needs_head=not label_names)
        _refuse_no_numbers(name, model)
        return Classifier(
            name,
            model.eval(),
            tokenizer,
            new_weights=tuple(sorted({*missing, *resized})),
            unused_weights=tuple(sorted(info["unexpected_keys"])),
            resized_weights=resized,
        )


def read_config(source: str | Path, options: LoadOptions, **changes: Any) -> Any:
    """Read a model's configuration; code that comes with it runs only with `remote_code`.

    Without a plain False, transformers asks on the terminal whether to run such code.
    """
    return AutoConfig.from_pretrained(source, trust_remote_code=options.remote_code, **changes)


def read_tokenizer(source: str | Path, options: LoadOptions) -> Any:
    """Read a tokenizer; code that comes with it runs only with `remote_code`."""
    return AutoTokenizer.from_pretrained(source, trust_remote_code=options.remote_code)


def label_names_of(config: Any) -> list[str]:
    """Return the class names of a model's configuration, in the order of the logits."""
    return [str(config.id2label[i]) for i in sorted(config.id2label)]


def _config(source: str, label_names: Sequence[str], options: LoadOptions) -> Any:
    labels = dict(enumerate(label_names))
    head = {
        "num_labels": len(labels),
        "id2label": labels,
        "label2id": {label: i for i, label in labels.items()},
        "problem_type": "single_label_classification",
    }
    config = read_config(source, options, **(head if labels else {}))
    return config if options.depth is None else _cut(config, options.depth)


def some_of(names: Sequence[str]) -> str:
    """Return the name of the first weight and the number of others, with the verb "is" or "are"."""
    more = len(names) - 1
    return f"{names[0]} and {more} more weights are" if more else f"the weight {names[0]} is"


def _cut(config: Any, depth: int) -> Any:
    """Return the configuration for the model's first `depth` blocks."""
    whole = setting(config, "num_hidden_layers")
    if not 1 <= depth <= whole:
        raise ModelError(f"A depth of {depth} was asked for; this model has 1 to {whole} layers.")
    values = config.to_dict()
    per_layer = [k for k, v in values.items() if isinstance(v, list) and len(v) == whole]
    values |= {k: values[k][:depth] for k in per_layer}
    depth_key = config.attribute_map.get("num_hidden_layers", "num_hidden_layers")
    try:
        return type(config)(**{**values, depth_key: depth})
    except ValueError as error:
        raise ModelError(f"This model cannot be cut to {depth} layers: {error}") from error


def _first_position(model: Any) -> int:
    """Return the first position number; it is above 0 in families that also number the padding."""
    wanted = setting(model.config, "max_position_embeddings")
    tables = [m for m in model.modules() if isinstance(m, torch.nn.Embedding)]
    starts = [t.padding_idx + 1 for t in tables if t.num_embeddings == wanted and t.padding_idx]
    return max(starts, default=0)


def settle_padding(name: str, model: Any, tokenizer: Any) -> None:
    """Choose a padding token that tokenizer and model agree on, and pad on the right."""
    if not set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens):
        # Where a folder lacks the files, transformers makes a tokenizer that knows no words.
        raise ModelError(
            f"{name} has no tokenizer, or one without words: save the model's own into the same "
            "folder (`tokenizer.save_pretrained(...)`)."
        )
    if not isinstance(tokenizer.model_max_length, int | float):
        raise ModelError(
            f"{name}: model_max_length of its tokenizer is {tokenizer.model_max_length!r}, not a "
            "number; correct it in tokenizer_config.json."
        )
    if tokenizer.pad_token is None:
        # Which token pads does not matter: it is masked, and the readout goes by the mask.
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    if tokenizer.pad_token is None:
        raise ModelError(f"{name} has no token to pad with: its tokenizer knows no end token.")
    known = setting(model.config, "vocab_size")
    if len(tokenizer) > known:
        raise ModelError(
            f"{name}: the tokenizer knows {len(tokenizer)} tokens and the model {known}; they do "
            "not belong to each other."
        )
    tokenizer.padding_side = "right"
    for config in (model.config, model.config.get_text_config()):
        config.pad_token_id = tokenizer.pad_token_id


def _new_weights(
    name: str, model: Any, info: Any, *, needs_head: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the weights that the file lacks, and those it has in another size; refuse any outside
    the head.

    The head of a language model must be in the file.
    """
    missing = {str(k[0] if isinstance(k, tuple) else k) for k in info["missing_keys"]}
    resized = {str(k[0]) for k in info["mismatched_keys"]}
    body = f"{model.base_model_prefix}."
    lacking = sorted(k for k in missing | resized if k.startswith(body) and ".pooler." not in k)
    if lacking:
        raise ModelError(
            f"{name} is damaged or of another model: {some_of(lacking)} missing or of another size."
        )
    if needs_head and (new := sorted(missing | resized)):
        raise ModelError(
            f"{name} has no head that continues texts ({some_of(new)} not there): give a causal "
            "language model that was saved with its head."
        )
    return tuple(sorted(missing)), tuple(sorted(resized))


def _refuse_no_numbers(name: str, model: Any) -> None:
    for weight, values in model.named_parameters():
        # The smallest and the largest number of a tensor show it without a copy.
        if values.numel() and not torch.stack(torch.aminmax(values)).isfinite().all():
            raise ModelError(f"{name} cannot be used: {weight} holds NaN or infinite numbers.")


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Silence reports and progress bars of transformers while active; a new head is expected
    here.
    """
    library = transformers.logging
    hub = logging.getLogger("huggingface_hub")
    level = library.get_verbosity()
    hub_level = hub.level
    bars = library.is_progress_bar_enabled()
    library.set_verbosity_error()
    hub.setLevel(logging.ERROR)
    library.disable_progress_bar()
    try:
        yield
    finally:
        library.set_verbosity(level)
        hub.setLevel(hub_level)
        if bars:
            library.enable_progress_bar()


def loading(name: str) -> AbstractContextManager[None]:
    """Turn an error of transformers into one that says that this model cannot be loaded, and
    why.
    """
    return as_model_error(lambda error: _why_not(name, error))


def _why_not(name: str, error: Exception) -> str:
    is_here = Path(name).expanduser().is_dir() or name in TINY
    if is_here or not isinstance(error, OSError):
        return (
            f"{name} cannot be loaded, it may be damaged or of a kind that has no such head: "
            f"{with_option(error)}"
        )
    return no_such_model(name, with_option(error))


def with_option(error: Exception) -> str:
    """Return the text of an error of transformers, plus the memloc option that would help."""
    reason = in_words(error)
    if "trust_remote_code" in str(error):
        return "it brings code of its own, which runs only with --remote-code"
    if "model.safetensors" in reason:
        reason += " (weights in other formats, which can carry code, are read with --any-format)"
    return reason
