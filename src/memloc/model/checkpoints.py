"""Saves and loads trained classifiers, in the ecosystem's own format with their provenance."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from memloc.errors import ModelError
from memloc.model.adapters import load_adapter
from memloc.model.known import checkpoint_folder, is_adapter, refuse_language_model
from memloc.model.load import (
    Classifier,
    LoadOptions,
    label_names_of,
    load_model,
    loading,
    quiet_loading,
    read_config,
    some_of,
)
from memloc.model.streamed import load_streamed
from memloc.store import paths
from memloc.store.files import whole_folder
from memloc.store.identity import hash_checkpoint
from memloc.store.records import versions, write_json


def save_checkpoint(folder: Path, trained: Classifier, about: Mapping[str, Any]) -> None:
    """Write a `save_pretrained` folder with tokenizer and provenance, whole or not at all."""
    with whole_folder(folder) as draft, quiet_loading(), _as_os_error():
        if trained.adapted is not None:
            # Embeddings never learn with it; left open, PEFT asks the hub for the base model.
            trained.adapted.save_pretrained(draft, save_embedding_layers=False)
            trained.model.config.save_pretrained(draft)  # for the labels
        else:
            trained.model.save_pretrained(draft)
        trained.tokenizer.save_pretrained(draft)
        facts = {**about, "files": hash_checkpoint(draft), "versions": versions()}
        write_json(draft / paths.PROVENANCE, facts)


@contextmanager
def _as_os_error() -> Iterator[None]:
    """Turn an error that safetensors raises while writing, such as a full disk, into an OSError."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(str(error)) from error


def load_checkpoint(
    folder: Path, options: LoadOptions | None = None, *, texts: bool = False
) -> Classifier:
    """Load a classifier that was trained and saved: the file must have exactly its weights.

    With `texts`, load a language model.
    """
    options = options or LoadOptions()
    checkpoint_folder(folder)
    if not texts:
        refuse_language_model(folder)
    if options.stream:
        return load_streamed(folder, options, texts=texts)
    if is_adapter(folder):
        return load_adapter(folder, options, texts=texts)
    with quiet_loading(), loading(str(folder)):
        label_names = [] if texts else label_names_of(read_config(folder, options))
    loaded = load_model(str(folder), label_names, options=options)
    _refuse_other_weights(loaded)
    return loaded


def load_start(name: str, label_names: Sequence[str], options: LoadOptions) -> Classifier:
    """Load pre-trained weights; of these, only language models can be streamed, as they have a
    head.
    """
    if options.stream and not label_names and Path(name).is_dir():
        return load_streamed(Path(name), options, texts=True)
    return load_model(name, label_names, options=options)


def _refuse_other_weights(loaded: Classifier) -> None:
    """Refuse a checkpoint that lacks weights of its classifier or has others."""
    body = f"{loaded.model.base_model_prefix}."
    head = [name for name, _ in loaded.model.named_parameters() if not name.startswith(body)]
    missing = set(loaded.new_weights) - set(loaded.resized_weights)
    if head and missing.issuperset(head):
        raise ModelError(
            f"{loaded.name} has no classification head ({head[0]} is not there): it was saved from "
            "a base model or from one for another purpose. Give the classifier that was "
            "fine-tuned, or fine-tune this one with `memloc train`."
        )
    for what, names in (
        ("missing", sorted(missing)),
        ("of another size than its config.json says", loaded.resized_weights),
        ("not part of the classifier", loaded.unused_weights),
    ):
        if names:
            raise ModelError(
                f"{loaded.name} is damaged or of another model: {some_of(names)} {what}. "
                "Train it again."
            )
