"""What a thing is made from, as a short hash of its contents: every reuse asks here, never a path.

Training, results, steps of a study and half-done work are used again only where the hash of what
decides them is the same.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memloc.records import Examples, NoisyLabels, Task

if TYPE_CHECKING:
    from torch import Tensor

SAMPLES, SAMPLE = 256, 2**14
"""Pieces of a large file, and bytes of each, that its hash looks at; small ones are read whole."""


def hashed(value: Any) -> str:
    """Sixteen hexadecimal digits that a JSON value determines."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def hash_task(task: Task, noisy: NoisyLabels) -> str:
    """Of texts, labels and splits."""
    digest = hashlib.sha256()
    for examples in task.splits.values():
        digest.update(hash_examples(examples).encode())
    digest.update(noisy.assigned.astype("<i8").tobytes())
    # Where labels before noise are not known, the marks of noisy examples say more than labels do.
    digest.update(noisy.is_noisy.tobytes())
    return digest.hexdigest()[:16]


def hash_examples(examples: Examples) -> str:
    """Of texts and their labels, in their order."""
    digest = hashlib.sha256()
    for parts in examples.parts:
        digest.update(("\x1f".join(parts) + "\x1e").encode())
    digest.update(examples.labels.astype("<i8").tobytes())
    return digest.hexdigest()


def hash_weights(named: "Iterable[tuple[str, Tensor]]") -> str:
    """Of parameters by name."""
    digest = hashlib.sha256()
    for name, values in named:
        digest.update(name.encode())
        digest.update(values.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def hash_loaded(start: Any) -> str:
    """Of the weights of a `Classifier` that were loaded, without a new head: a seed decides it."""
    named = start.model.named_parameters()
    return hash_weights((n, p) for n, p in named if n not in start.new_weights)


def hash_files(files: Iterable[Path]) -> str:
    """Of files by name, size and contents, wherever they are."""
    digest = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            # Evenly spread: every layer of a checkpoint has some.
            for place in range(0, size, max(SAMPLE, size // SAMPLES)):
                file.seek(place)
                digest.update(file.read(SAMPLE))
    return digest.hexdigest()[:16]


MODEL_FILES = {".safetensors", ".json", ".bin", ".txt", ".model"}
"""Endings of the files of a model that decide what it does."""


def hash_checkpoint(folder: Path) -> str:
    """Of the files of a model's folder."""
    return hash_files(p for p in sorted(folder.iterdir()) if p.suffix in MODEL_FILES)
