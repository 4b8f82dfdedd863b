"""Models in little memory: each block is read from disk while it runs.

Embeddings and head are held in memory; the parameters of blocks have a shape only. When a block is
called, its weights are read from their safetensors file, and they are dropped when it returns.
Every function that works on a model's blocks works on a streamed model, with the same numbers to
the bit. Code that mixes models opens a block once for many calls (`opened`), and holds nothing of
the donor outside its blocks.
"""

import json
import math
import mmap
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
from transformers.core_model_loading import revert_weight_conversion

from memloc.errors import ModelError
from memloc.model.known import checkpoint_folder, is_adapter
from memloc.model.load import (
    Classifier,
    LoadOptions,
    loading,
    quiet_loading,
    read_config,
    read_tokenizer,
    settle_padding,
    some_of,
)
from memloc.model.stack import find_blocks

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Number types of safetensors files that weights can be read from."""


@dataclass(frozen=True)
class Place:
    """Position of a tensor in a file."""

    file: Path
    start: int
    dtype: str
    shape: tuple[int, ...]

    @cached_property
    def size(self) -> int:
        """Number of bytes on disk."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize

    def read(self) -> Tensor:
        """Return the tensor in full precision, mapped from its file if the file has that precision.

        Only this tensor is mapped. It keeps the offset within a memory page that it would have if
        the whole file were mapped, so that libraries compute with it in the same way, to the bit.
        """
        first = self.start // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        with self.file.open("rb") as file:
            size = self.start - first + self.size
            pages = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY, offset=first)
        count = math.prod(self.shape)
        tensor = torch.frombuffer(
            pages, dtype=DTYPES[self.dtype], count=count, offset=self.start - first
        )
        return tensor.view(self.shape).float()


def load_streamed(
    folder: Path, options: LoadOptions | None = None, *, texts: bool = False, is_donor: bool = False
) -> Classifier:
    """Load a saved model whose blocks are read from disk whenever they run.

    Args:
        folder: Folder of the checkpoint.
        options: Permissions for loading, and changes to make.
        texts: True for a language model.
        is_donor: True if only its blocks will be used: embeddings and head are then dropped as soon
            as it is known how the model works.
    """
    options = options or LoadOptions()
    checkpoint_folder(folder)
    if is_adapter(folder):
        raise ModelError(f"{folder} holds an adapter, which cannot be streamed: set stream=false.")
    kind = AutoModelForCausalLM if texts else AutoModelForSequenceClassification
    with quiet_loading(), loading(str(folder)), torch.inference_mode(False):
        given = {"dtype": torch.float32, "trust_remote_code": options.remote_code}
        for mode in (_NoMemory(), nullcontext()):
            with _without_weights(), mode:
                model = kind.from_config(read_config(folder, options), **given)
            if not any(buffer.is_meta for buffer in model.buffers()):
                break  # else buffers were made by torch.empty as well
        tokenizer = read_tokenizer(folder, options)
        settle_padding(str(folder), model, tokenizer)
    model.places = _places_of(model, folder)
    outside = _stream_blocks(model)
    for name in outside:
        _put(model, name, nn.Parameter(model.places[name].read(), requires_grad=False))
    loaded = Classifier(str(folder), model.eval(), tokenizer)
    if is_donor:
        _ = loaded.stack  # tries the model on a few tokens
        for name in outside:
            _put(model, name, nn.Parameter(model.get_parameter(name).to("meta"), False))
    return loaded


def weight(model: Any, name: str) -> Tensor:
    """Return a parameter of a model, read from disk if the model is streamed."""
    parameter: Tensor = model.get_parameter(name)
    return model.places[name].read() if parameter.is_meta else parameter


def with_sources(block: nn.Module, own: nn.Module, donor: nn.Module, names: Any) -> nn.Module:
    """Let a streamed block read the named parameters from the donor's file."""
    if isinstance(own, _Streamed) and isinstance(donor, _Streamed):
        lent = donor.sources
        block.sources = {n: lent[n] if n in names else p for n, p in own.sources.items()}  # type: ignore[assignment]
    return block


@contextmanager
def opened(block: nn.Module) -> Iterator[None]:
    """Hold the weights of a streamed block in memory while active; other blocks always hold
    theirs.
    """
    empty = dict(block.named_parameters())
    if not (isinstance(block, _Streamed) and any(p.is_meta for p in empty.values())):
        yield
        return
    try:
        for name, place in block.sources.items():
            _put(block, name, nn.Parameter(place.read(), requires_grad=False))
        yield
    finally:
        for name, parameter in empty.items():
            _put(block, name, parameter)


def bytes_read(block: nn.Module) -> int:
    """Return the number of bytes read from disk whenever a block is opened."""
    return sum(p.size for p in block.sources.values()) if isinstance(block, _Streamed) else 0


def _places_of(model: Any, folder: Path) -> dict[str, Place]:
    """Return where each parameter and buffer is on disk; a parameter may have several names."""
    stored = dict(_places(folder))
    parameters = dict(model.named_parameters())
    known = {n: p for n, p in stored.items() if n not in parameters}
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    for name, parameter in _saved_as(model).items():
        names.get(id(parameter), []).append(name)
    lacking = []
    for name, parameter in parameters.items():
        place = next((stored[n] for n in names[id(parameter)] if n in stored), None)
        if place is None or place.shape != parameter.shape:
            lacking.append(name)
        else:
            known[name] = place
    if lacking:
        raise ModelError(
            f"{folder} cannot be streamed: {some_of(lacking)} missing or of another size in its "
            "safetensors files. Save it with `save_pretrained`, or set stream=false."
        )
    return known


def _places(folder: Path) -> Iterator[tuple[str, Place]]:
    """Yield the name and place of each tensor in a folder's safetensors files, from their
    headers.
    """
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
        for name, about in header.items():
            if name != "__metadata__" and about["dtype"] in DTYPES:
                start = 8 + size + about["data_offsets"][0]
                yield name, Place(path, start, about["dtype"], tuple(about["shape"]))


class _NoMemory(TorchFunctionMode):
    """Makes `torch.empty` take no memory while active: memory freed later would leave holes in the
    heap.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.empty:
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


@contextmanager
def _without_weights() -> Iterator[None]:
    """Give parameters of new modules a shape but no memory while active; buffers are whole."""
    plain = nn.Module.register_parameter

    def register(module: nn.Module, name: str, value: nn.Parameter | None) -> None:
        if value is not None and not value.is_meta:  # one that is may be shared
            value = nn.Parameter(value.to("meta"), requires_grad=False)
        plain(module, name, value)

    nn.Module.register_parameter = register  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = plain  # type: ignore[method-assign]


def _saved_as(model: Any) -> dict[str, Tensor]:
    """Return a model's parameters under the names that `save_pretrained` writes, where these
    differ.
    """
    renamed: dict[str, Tensor] = revert_weight_conversion(model, dict(model.named_parameters()))
    return renamed


def _stream_blocks(model: Any) -> list[str]:
    """Let blocks read their weights when they are called; return the parameters outside them."""
    names = {id(p): name for name, p in model.named_parameters()}
    blocks = find_blocks(model)
    for block in blocks:
        places = {n: model.places[names.pop(id(p))] for n, p in block.named_parameters()}
        block.sources = places  # type: ignore[assignment]
        block.__class__ = type(type(block).__name__, (_Streamed, type(block)), {})
    for name, buffer in model.named_buffers():
        if name in model.places:
            buffer.copy_(model.places[name].read())
    return list(names.values())


class _Streamed(nn.Module):
    """Mix-in for the class of a block that holds its weights in memory only while it runs."""

    sources: dict[str, Place]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with opened(self):
            return super().forward(*args, **kwargs)


def _put(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
    """Set the parameter of this name, and of every name that shares its weights."""
    before = module.get_parameter(name)
    for inner in module.modules():
        for leaf, value in inner._parameters.items():
            if value is before:
                inner._parameters[leaf] = parameter
