"""Weights in the ecosystem's own format, with how they came to be."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from memloc.model.load import Classifier, quiet
from memloc.store import paths
from memloc.store.files import whole_folder
from memloc.store.identity import hash_checkpoint
from memloc.store.records import versions, write_json


def save_checkpoint(folder: Path, trained: Classifier, about: Mapping[str, Any]) -> None:
    """A `save_pretrained` folder with tokenizer and provenance, whole or absent."""
    with whole_folder(folder) as draft, quiet(), _as_os_error():
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
    """What safetensors cannot write (a full disk, say) it reports as an error of its own."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(str(error)) from error
