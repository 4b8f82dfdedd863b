"""Adapters (PEFT): a folder with adapter_config.json is a checkpoint like any other.

An adapter is merged into its base model when it is loaded. So a layer's adapter is exchanged with
the layer, and every function that works on a checkpoint works on an adapter. While an adapter is
trained it stays apart: only its weights and the head learn, and only they are saved.
"""

import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForSequenceClassification
from transformers.pytorch_utils import Conv1D

from memloc.data.hub import asked_once
from memloc.errors import ModelError
from memloc.model.known import adapter_base, place_of
from memloc.model.load import (
    Classifier,
    LoadOptions,
    label_names_of,
    load_model,
    quiet_loading,
    read_config,
    read_tokenizer,
    settle_padding,
    with_option,
)
from memloc.model.stack import Stack, as_model_error, setting
from memloc.protocol import FineTuneSettings
from memloc.seeds import torch_seeded
from memloc.store.identity import hash_weights

WEIGHTS = "adapter_model.safetensors"
_MANY = 7919
"""Number of labels that no other dimension of a model is likely to have."""


def load_adapter(folder: Path, options: LoadOptions, *, texts: bool = False) -> Classifier:
    """Load the base model and merge the adapter of this folder into it."""
    peft = _peft(str(folder))
    base = options.base or adapter_base(folder)
    if not (folder / WEIGHTS).is_file() and not options.any_format:
        raise ModelError(
            f"{folder} has no {WEIGHTS}: weights in other formats, which can carry code, are read "
            "with --any-format."
        )
    with quiet_loading(), warnings.catch_warnings(action="ignore"), _merging(folder):
        labels: list[str] = []
        depth = None
        if texts:
            depth = options.depth
        elif (folder / "config.json").is_file():
            config = read_config(folder, options)
            labels = label_names_of(config)
            depth = int(setting(config, "num_hidden_layers"))
        else:
            labels = _labels(folder, place_of(base), options)
        loaded = load_model(base, labels, options=replace(options, depth=depth))
        before = _layer_hashes(loaded.model)
        adapted = peft.PeftModel.from_pretrained(loaded.model, folder)
        _refuse_other_weights(folder, adapted, loaded)
        hashed = hash_weights(adapted.named_parameters())
        merged = adapted.merge_and_unload().requires_grad_(True).eval()
        after = _layer_hashes(merged)
        tokenizer = loaded.tokenizer
        if (folder / "tokenizer_config.json").is_file():
            tokenizer = read_tokenizer(folder, options)
            settle_padding(str(folder), loaded.model, tokenizer)
    same = tuple(n for n, (a, b) in enumerate(zip(before, after, strict=True), 1) if a == b)
    return Classifier(str(folder), merged, tokenizer, adapter_hash=hashed, unchanged_layers=same)


def _merging(folder: Path) -> AbstractContextManager[None]:
    sentence = f"The adapter in {folder} cannot be merged into its base model"
    return as_model_error(lambda error: f"{sentence}: {with_option(error)}.")


def with_adapter(start: Classifier, settings: FineTuneSettings, seed: int) -> Classifier:
    """Return the classifier, with a new adapter in its blocks if the settings ask for one.

    Then only the adapter and the head learn.
    """
    if settings.adapter == "none":
        return start
    peft = _peft(start.name)
    targets = _targets(start, settings.adapter_targets)
    transposed = {isinstance(start.model.get_submodule(name), Conv1D) for name in targets}
    config = peft.LoraConfig(
        task_type="SEQ_CLS",
        r=settings.adapter_rank,
        lora_alpha=settings.adapter_alpha,
        lora_dropout=settings.adapter_dropout,
        target_modules=targets,
        modules_to_save=_head_modules(start),
        fan_in_fan_out=transposed == {True},
    )
    with warnings.catch_warnings(action="ignore"), torch_seeded(seed, "adapter"):
        adapted = peft.get_peft_model(start.model, config)
    here = Path(start.name).expanduser()
    name = str(here.resolve()) if here.is_dir() else start.name
    adapted.peft_config["default"].base_model_name_or_path = name
    return replace(start, model=adapted.get_base_model(), adapted=adapted)


def _peft(name: str) -> Any:
    try:
        import peft
    except ImportError as error:
        raise ModelError(
            f"{name}: adapters take the library peft, which is not installed: "
            "pip install 'memloc[peft]'."
        ) from error
    return peft


def _labels(folder: Path, base: str, options: LoadOptions) -> list[str]:
    """Return the class names for an adapter that has none: the base model's, or numbered ones."""
    with asked_once(base):
        config = read_config(base, options)
    named = label_names_of(config)
    config.num_labels = _MANY
    with torch.device("meta"):
        empty = AutoModelForSequenceClassification.from_config(
            config, trust_remote_code=options.remote_code
        )
    shapes = empty.state_dict()
    heads = [name for name, value in shapes.items() if value.shape[:1] == (_MANY,)]
    saved = _saved(folder)
    (size,) = {len(saved[name]) for name in heads if name in saved} or {len(named)}
    return named if size == len(named) else [f"LABEL_{i}" for i in range(size)]


def _saved(folder: Path) -> dict[str, torch.Tensor]:
    from peft.utils import load_peft_weights

    weights: dict[str, torch.Tensor] = load_peft_weights(str(folder), device="cpu")
    return {name.removeprefix("base_model.model."): value for name, value in weights.items()}


def _refuse_other_weights(folder: Path, adapted: Any, loaded: Classifier) -> None:
    """Refuse a file that lacks a weight of the adapter or has another, or has no head where
    needed.
    """
    from peft import get_peft_model_state_dict

    needed = {n.removeprefix("base_model.model.") for n in get_peft_model_state_dict(adapted)}
    saved = set(_saved(folder))
    for what, names in (("missing", needed - saved), ("not part of the adapter", saved - needed)):
        if names:
            raise ModelError(
                f"{folder} is damaged or of another base model: the weight {min(names)} is {what}."
            )
    if missing := set(loaded.new_weights) - saved:
        raise ModelError(
            f"{folder} has no classification head ({min(missing)} is not there): train the adapter "
            "with task_type='SEQ_CLS', or name the head in its modules_to_save."
        )


def _layer_hashes(model: Any) -> list[str]:
    return [hash_weights(block.named_parameters()) for block in Stack(model).blocks]


def _targets(start: Classifier, wanted: Sequence[str] | None) -> list[str]:
    """Return the full names of the linear layers in the blocks that have one of the wanted
    names.
    """
    inside = {id(module) for module in start.stack.blocks.modules()}
    linear = {
        name: name.rsplit(".", maxsplit=1)[-1]
        for name, module in start.model.named_modules()
        if id(module) in inside and isinstance(module, nn.Linear | Conv1D)
    }
    if unknown := sorted(set(wanted or ()) - set(linear.values())):
        known = ", ".join(sorted(set(linear.values())))
        raise ModelError(
            f"finetune.adapter_targets: no linear layer in the blocks of {start.name} is called "
            f"{unknown[0]!r}; there are: {known}."
        )
    return [name for name, last in linear.items() if wanted is None or last in wanted]


def _head_modules(start: Classifier) -> list[str]:
    """Return the modules outside the model's body, and those in it that the pre-trained model
    lacks.
    """
    body = f"{start.model.base_model_prefix}."
    named = [name for name, _ in start.model.named_parameters()]
    head = [name.split(".")[0] for name in named if not name.startswith(body)]
    new = [name.rpartition(".")[0] for name in start.new_weights if name.startswith(body)]
    return list(dict.fromkeys([*head, *new]))
