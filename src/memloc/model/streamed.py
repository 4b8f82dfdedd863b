"""Classifiers in little memory: each block is read from disk while it runs.

Embeddings and head are held; the parameters of blocks have a shape only. When a block is called,
its weights are read from their safetensors file, and they are let go when it returns. Everything
that works on a model's blocks works on it, with the same numbers to the bit. Two models of 302 MB
each were mixed with a peak of 0.58 GB for the whole process, where whole models took 1.12 GB.
"""

import json
import math
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification

from memloc.errors import ModelError
from memloc.model.known import checkpoint_folder, is_adapter
from memloc.model.load import (
    Classifier,
    LoadOptions,
    loading,
    quiet,
    read_config,
    read_tokenizer,
    settle_padding,
    some_of,
)
from memloc.model.stack import find_blocks

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Kinds of numbers in safetensors files that weights are read from."""


@dataclass(frozen=True)
class Place:
    """Where a tensor is on disk."""

    file: Path
    start: int
    dtype: str
    shape: tuple[int, ...]

    def read(self) -> Tensor:
        """Return the tensor in full precision, as pages of its file if it has it there.

        Only this tensor is mapped. Its place in a page is that which it has where the whole file
        is mapped, so that libraries compute with it in the same way, to the bit.
        """
        dtype, count = DTYPES[self.dtype], math.prod(self.shape)
        first = self.start // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        size = self.start - first + count * dtype.itemsize
        with self.file.open("rb") as file:
            pages = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY, offset=first)
        found = torch.frombuffer(pages, dtype=dtype, count=count, offset=self.start - first)
        return found.view(self.shape).float()


def load_streamed(folder: Path, options: LoadOptions | None = None) -> Classifier:
    """Load a saved classifier whose blocks are read from disk whenever they run."""
    options = options or LoadOptions()
    checkpoint_folder(folder)
    if is_adapter(folder):
        raise ModelError(f"{folder} holds an adapter, which cannot be streamed: set stream=false.")
    places = dict(_places(folder))
    with quiet(), loading(str(folder)), torch.inference_mode(False):
        with _without_weights():
            model = AutoModelForSequenceClassification.from_config(
                read_config(folder, options),
                dtype=torch.float32,
                trust_remote_code=options.remote_code,
            )
        tokenizer = read_tokenizer(folder, options)
        settle_padding(str(folder), model, tokenizer)
    named = dict(model.named_parameters())
    lacking = [n for n, p in named.items() if n not in places or places[n].shape != p.shape]
    if lacking:
        raise ModelError(
            f"{folder} cannot be streamed: {some_of(lacking)} missing or of another size in its "
            "safetensors files. Save it with `save_pretrained`, or set stream=false."
        )
    _fill(model, places)
    return Classifier(str(folder), model.eval(), tokenizer)


def weight(model: Any, name: str) -> Tensor:
    """Return a parameter of a model, read from disk if the model is streamed."""
    found: Tensor = model.get_parameter(name)
    return model.places[name].read() if found.is_meta else found


def with_sources(block: nn.Module, own: nn.Module, donor: nn.Module, names: Any) -> nn.Module:
    """Let a block of two streamed ones read the parameters of these names from the donor's file."""
    if hasattr(own, "sources"):
        lent = donor.sources
        block.sources = {n: lent[n] if n in names else p for n, p in own.sources.items()}  # type: ignore[operator, index, assignment, union-attr]
    return block


def _places(folder: Path) -> Iterator[tuple[str, Place]]:
    """Yield where each tensor of a folder's safetensors files is: a header says it."""
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
        for name, about in header.items():
            if name != "__metadata__" and about["dtype"] in DTYPES:
                start = 8 + size + about["data_offsets"][0]
                yield name, Place(path, start, about["dtype"], tuple(about["shape"]))


@contextmanager
def _without_weights() -> Iterator[None]:
    """While active, parameters of new modules have a shape and no memory; buffers are whole."""
    plain = nn.Module.register_parameter

    def register(module: nn.Module, name: str, value: nn.Parameter | None) -> None:
        if value is not None:
            value = nn.Parameter(value.to("meta"), requires_grad=False)
        plain(module, name, value)

    nn.Module.register_parameter = register  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = plain  # type: ignore[method-assign]


def _fill(model: Any, places: dict[str, Place]) -> None:
    """Read what is outside the blocks; each block reads its own weights when it is called."""
    names = {id(p): name for name, p in model.named_parameters()}
    blocks = find_blocks(model)
    inside = {id(p) for p in blocks.parameters()}
    for block in blocks:
        own = {n: places[names[id(p)]] for n, p in block.named_parameters()}
        block.sources = own  # type: ignore[assignment]
        block.__class__ = type(type(block).__name__, (_Streamed, type(block)), {})
    for name, buffer in model.named_buffers():
        if name in places:
            buffer.copy_(places[name].read())
    for key, name in names.items():
        if key not in inside:
            _put(model, name, nn.Parameter(places[name].read(), requires_grad=False))
    model.places = places


class _Streamed(nn.Module):
    """Mixed into the class of a block: its weights are there while it runs."""

    sources: dict[str, Place]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        empty = dict(self.named_parameters())
        try:
            for name, place in self.sources.items():
                _put(self, name, nn.Parameter(place.read(), requires_grad=False))
            return super().forward(*args, **kwargs)
        finally:
            for name, parameter in empty.items():
                _put(self, name, parameter)


def _put(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
    """Make this the parameter of that name, however deep it lies."""
    inner, _, leaf = name.rpartition(".")
    module.get_submodule(inner)._parameters[leaf] = parameter
