"""Self-check: does memloc's view of a model agree with the model itself?"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from memloc.data.encode import require_places
from memloc.errors import ModelError, listed
from memloc.model.checkpoints import load_checkpoint
from memloc.model.known import is_adapter
from memloc.model.load import Classifier, LoadOptions, load_model
from memloc.model.stack import (
    TOLERANCE,
    Batch,
    Stack,
    forward,
    in_sentences,
    optional_setting,
    setting,
)
from memloc.seeds import generator

READOUTS = {
    "first": "first token",
    "last": "last attended token",
    "all": "all tokens",
    "each": "every token, to say the next one",
}
THOROUGH, QUICK = (24, 3, 12, 23), (9, 3)
"""Lengths in tokens of the texts that a model is tried on, in a full and in a quick check."""


@dataclass(frozen=True)
class CheckReport:
    """Result of the self-check; differences are relative to the largest logit."""

    model: str
    architecture: str
    depth: int
    width: int
    parameters: int
    block: str
    readout: str
    head: str
    """Origin of the head: saved with the model, or new, so that it has to be trained."""
    separator: str
    padding: str
    max_tokens: int
    parity: float
    """Difference between blocks run one by one and the plain forward pass, each text alone."""
    batch_invariance: float
    """Difference between a padded batch and each text alone."""
    shared_weights: tuple[str, ...]
    """Parameters that are used in more than one place."""


def check_model(
    name: str, options: LoadOptions | None = None, *, texts: bool = False
) -> CheckReport:
    """Load a model with a head for two classes, compare memloc's view with it, and raise if they
    differ.

    With `texts`, load a language model with its own head.
    """
    folder = Path(name).expanduser()
    if is_adapter(folder):
        loaded = load_checkpoint(folder, options, texts=texts)
    else:
        loaded = load_model(name, [] if texts else ["no", "yes"], options=options)
    if texts:
        require_places(loaded.tokenizer)
    report = examine(loaded)
    _refuse(name, report.parity, report.batch_invariance)
    return report


def require_agreement(loaded: Classifier) -> None:
    """Refuse a model that `check_model` would refuse, judged by two short texts: cheap for any
    model.
    """
    _refuse(loaded.name, *_differences(loaded, QUICK))


def examine(loaded: Classifier) -> CheckReport:
    """Compare memloc's view of a loaded model with the model itself, without refusing it."""
    model = loaded.model.eval()
    stack = loaded.stack
    parity, invariance = _differences(loaded, THOROUGH)
    return CheckReport(
        model=loaded.name,
        architecture=type(model).__name__,
        depth=stack.depth,
        width=stack.width,
        parameters=sum(p.numel() for p in model.parameters()),
        block=type(stack.blocks[0]).__name__,
        readout=READOUTS[stack.readout],
        head=_head(loaded),
        separator=loaded.separator,
        padding=str(loaded.tokenizer.pad_token),
        max_tokens=loaded.max_tokens,
        parity=parity,
        batch_invariance=invariance,
        shared_weights=_shared(model),
    )


def _head(loaded: Classifier) -> str:
    if not loaded.new_weights:
        return "saved with the model"
    saved_as = listed(getattr(loaded.model.config, "architectures", None) or ["a base model"])
    new = ", ".join(loaded.new_weights)
    return f"new ({new}), to be trained: the weights were saved as {saved_as}"


def _refuse(name: str, parity: float, invariance: float) -> None:
    differences = {"run block by block": parity, "run in a padded batch": invariance}
    for what, difference in differences.items():
        if not difference <= TOLERANCE:
            raise ModelError(
                f"{name} is not supported: {what}, its logits differ by {difference:.2g} of their "
                f"size from its plain forward pass (at most {TOLERANCE:g} is float noise)."
            )


@torch.inference_mode()
def _differences(loaded: Classifier, lengths: Sequence[int]) -> tuple[float, float]:
    stack = loaded.stack
    with in_sentences(loaded.model):
        texts = _sample_texts(stack, lengths)
        with _untouched(stack.model):
            plain = [forward(stack.model, {"input_ids": text})[0] for text in texts]
        by_block = [stack.undropped_logits(_padded([text], 0))[0] for text in texts]
        padded = stack.logits(_padded(texts, stack.model.config.pad_token_id))
    # A language model has logits for each token; those at padding are left out.
    alone = [row[: len(logits)] for row, logits in zip(padded, plain, strict=True)]
    scale = torch.cat([logits.flatten() for logits in plain]).abs().max().clamp_min(1e-6)
    parity, invariance = (
        torch.stack([(a - b).abs().max() for a, b in zip(answers, plain, strict=True)]).max()
        / scale
        for answers in (by_block, alone)
    )
    return float(parity), float(invariance)


@contextmanager
def _untouched(model: Any) -> Iterator[None]:
    """Run a model exactly as its classes define it while active, without memloc's replacements."""
    put = [(m.__dict__, m.__dict__.pop("forward")) for m in model.modules() if "forward" in vars(m)]
    try:
        yield
    finally:
        for attributes, replacement in put:
            attributes["forward"] = replacement


def _sample_texts(stack: Stack, lengths: Sequence[int]) -> list[Tensor]:
    rng = generator(0, "check")
    config = stack.model.config
    longest = optional_setting(config, "max_position_embeddings") or max(lengths) + 2
    n_tokens = min(setting(config, "vocab_size"), 5000)
    tokens = [i for i in range(n_tokens) if i != config.pad_token_id]
    sizes = [min(n, longest - 2) for n in lengths]
    return [torch.tensor(rng.choice(tokens, (1, n)), device=stack.device) for n in sizes]


def _padded(texts: list[Tensor], pad: int) -> Batch:
    rows = [text[0] for text in texts]
    ids = pad_sequence(rows, batch_first=True, padding_value=pad)
    mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    return {"input_ids": ids, "attention_mask": mask}


def _shared(model: torch.nn.Module) -> tuple[str, ...]:
    places: dict[int, list[str]] = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        places[id(parameter)].append(name)
    return tuple(" = ".join(names) for names in places.values() if len(names) > 1)


def check_pair(final: Classifier, other: Classifier, what: str) -> None:
    """Refuse two sets of weights that belong to different models or vocabularies."""
    sizes, kinds = (final.stack, other.stack), (final.model.config, other.model.config)
    pairs = {"model_type": kinds, "depth": sizes, "width": sizes, "vocab_size": kinds}
    for name, pair in pairs.items():
        here, theirs = (getattr(loaded, name) for loaded in pair)
        if here != theirs:
            raise ModelError(
                f"The final weights have {name} {here}, the {what} ones {theirs}: both must be one "
                "model, trained on different labels or for different times."
            )
    here, theirs = (
        {i: token for token, i in loaded.tokenizer.get_vocab().items()} for loaded in (final, other)
    )
    for i in sorted(here.keys() & theirs.keys()):
        if here[i] != theirs[i]:
            raise ModelError(
                f"Token {i} is {here[i]!r} for the final weights and {theirs[i]!r} for the {what} "
                "ones: both must have the same vocabulary."
            )
    check_same_labels(final.label_names, other.label_names, what)


def check_same_labels(final: Sequence[str], other: Sequence[str], what: str) -> None:
    """Refuse weights whose labels differ from the final model's, or come in another order."""
    if len(final) != len(other):
        raise ModelError(
            f"The final weights have num_labels {len(final)}, the {what} ones {len(other)}."
        )
    defaults = [f"LABEL_{i}" for i in range(len(final))]
    if defaults in (list(final), list(other)):
        return  # transformers gave these names because nobody else did: they say nothing
    for i, (here, theirs) in enumerate(zip(final, other, strict=True)):
        if here != theirs:
            advice = (
                "train both with the labels in one order."
                if sorted(final) == sorted(other)
                else "if these mean the same, give them one name in `id2label` of both config.json "
                "files."
            )
            raise ModelError(
                f"Label {i} is {here!r} for the final weights and {theirs!r} for the {what} ones: "
                f"{advice}"
            )
