"""The embedded models: four families, twelve layers, small enough to come with the package."""

from pathlib import Path

from memloc.errors import lookup

__all__ = ["NAMES", "folder"]

NAMES: tuple[str, ...] = ("tiny-bert", "tiny-opt", "tiny-gpt-neo", "tiny-gpt-neox")


def folder(name: str) -> Path:
    """The folder of an embedded model, in the format of `save_pretrained`."""
    here = Path(__file__).parent
    return lookup("embedded model", name, {known: here / known for known in NAMES})
