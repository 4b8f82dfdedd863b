"""Hashes the contents of weights and files, which identify what can be reused, unlike paths.

Trainings, results, steps of a study and unfinished work are reused only if the hash of everything
that decides them is the same.
"""

import hashlib
import time
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def hash_weights(named: "Iterable[tuple[str, Tensor]]") -> str:
    """Return the hash of parameters by name and value."""
    digest = hashlib.sha256()
    for name, values in named:
        digest.update(name.encode())
        digest.update(values.detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()[:16]


def hash_files(files: Iterable[Path]) -> str:
    """Return the hash of files by name, size and contents, independent of their folder."""
    digest = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        digest.update(_contents(path))
    return digest.hexdigest()[:16]


def _contents(path: Path) -> bytes:
    """Return the hash of a file's contents; a large file is read again only after a change."""
    stat = path.stat()
    if stat.st_size < LARGE or time.time() - stat.st_ctime < SETTLED:
        return _read(path)
    return _read_once(path, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


@lru_cache(maxsize=1000)
def _read_once(path: Path, *_version: int) -> bytes:
    return _read(path)


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


LARGE = 2**10
"""Size in bytes from which on a file's hash is remembered while its times and size stay the
same.
"""
SETTLED = 0.1
"""Seconds after which another change of a file is sure to change its time."""


MODEL_FILES = (
    *("*.safetensors*", "pytorch_model*", "adapter_*", "config.json"),
    *("*token*", "*vocab*", "merges.txt", "*.model"),
)
"""Patterns of the files in a model's folder that decide what it computes, unlike logs or
results.
"""


def hash_checkpoint(folder: Path) -> str:
    """Return the hash of the files in a model's folder that decide what the model computes."""
    return hash_files(model_files(folder))


def model_files(folder: Path) -> list[Path]:
    """Return the files in a model's folder that decide what the model computes, sorted by name."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    return [path for path in files if any(map(path.match, MODEL_FILES))]
