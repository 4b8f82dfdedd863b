"""Weights in the ecosystem's own format, with how they came to be; and half-done trainings."""

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from memloc.engine.loop import Objective
from memloc.errors import StoreError
from memloc.model.load import Classifier, quiet
from memloc.store import paths
from memloc.store.files import whole_file, whole_folder
from memloc.store.identity import hash_checkpoint
from memloc.store.memo import recall
from memloc.store.records import as_stored, versions, write_json

UNREADABLE = (SafetensorError, OSError, KeyError, ValueError, TypeError)
"""What reading a damaged state may end in."""
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def save_checkpoint(folder: Path, trained: Classifier, about: Mapping[str, Any]) -> None:
    """A `save_pretrained` folder with tokenizer and provenance, whole or absent."""
    with whole_folder(folder) as draft, quiet(), _as_os_error():
        if trained.adapted is not None:
            # Embeddings never learn beside it; left open, PEFT asks the hub for the base model.
            trained.adapted.save_pretrained(draft, save_embedding_layers=False)
            trained.model.config.save_pretrained(draft)  # for the labels
        else:
            trained.model.save_pretrained(draft)
        trained.tokenizer.save_pretrained(draft)
        facts = {**about, "files": hash_checkpoint(draft), "versions": versions()}
        write_json(draft / paths.PROVENANCE, facts)


State = tuple[dict[str, Any], dict[str, torch.Tensor]]
"""What a state says of its training, and its tensors by name."""
Curves = dict[str, list[dict[str, Any]]]
"""Of each training, what was measured after every epoch."""


def save_state(path: Path, objectives: Sequence[Objective], curves: Curves, key: str) -> None:
    """Keep all that a training needs to go on after an epoch: weights, moments and counters."""
    tensors: dict[str, torch.Tensor] = {}
    for objective in objectives:
        for name, parameter in objective.tensors.items():
            tensors[f"weight/{name}"] = parameter.detach()
            for kind, moment in objective.optimiser.state[parameter].items():
                tensors[f"{objective.name}/{kind}/{name}"] = moment
    facts = {o.name: {"updates": o.updates, "learns": list(o.parameters)} for o in objectives}
    note = {"curves": curves, "objectives": facts}
    STATE.write(path, (note, tensors), key)


def load_state(path: Path, objectives: Sequence[Objective], key: str) -> Curves:
    """Put a kept state back into the objectives, and return what was measured so far.

    Without a state that is whole and has this key, training begins at the start.
    """
    kept = recall(path, key, STATE)
    if kept is None:
        return {}
    note, tensors = kept
    with as_stored(path):
        for objective in objectives:
            _restore(objective, tensors, note["objectives"][objective.name])
        curves: Curves = note["curves"]
    return curves


class _State:
    """A note and tensors in one safetensors file, with a checksum of both and the key."""

    def write(self, path: Path, value: State, key: str) -> None:
        note, tensors = json.dumps(value[0]), {k: v.contiguous() for k, v in value[1].items()}
        about = {"memloc": note, "key": key, "checksum": _checksum(key + note, tensors)}
        with whole_file(path) as draft, _as_os_error():
            save_file(tensors, draft, about)

    def read(self, path: Path) -> tuple[State, str]:
        try:
            with safe_open(path, framework="pt") as file:
                about = file.metadata()
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if about["checksum"] != _checksum(about["key"] + about["memloc"], tensors):
                raise ValueError("its checksum differs")
            return (json.loads(about["memloc"]), tensors), about["key"]
        except UNREADABLE as error:
            raise StoreError(f"{path} is damaged ({error}).") from error


STATE = _State()


def curves_kept(path: Path) -> Curves:
    """What was measured so far in a saved state; nothing where it is missing or damaged."""
    with suppress(*UNREADABLE), safe_open(path, framework="pt") as file:
        curves: Curves = json.loads(file.metadata()["memloc"])["curves"]
        return curves
    return {}


def _checksum(note: str, tensors: Mapping[str, torch.Tensor]) -> str:
    """Of a note and of tensors by name, type, shape and values."""
    found = zlib.crc32(note.encode())
    for name, tensor in sorted(tensors.items()):
        found = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), found)
        values = tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy()
        found = zlib.crc32(values.data, found)
    return f"{found:08x}"


@torch.no_grad()
def _restore(
    objective: Objective, saved: Mapping[str, torch.Tensor], facts: dict[str, Any]
) -> None:
    if facts["learns"] != list(objective.parameters):
        raise ValueError("it is of another model")
    objective.updates = facts["updates"]
    for name, parameter in objective.tensors.items():
        weight = saved[f"weight/{name}"]
        if weight.shape != parameter.shape:
            raise ValueError(f"{name} has another size there")
        parameter.copy_(weight)
        keys = {kind: f"{objective.name}/{kind}/{name}" for kind in _MOMENTS}
        # A parameter that the model never uses has no moments.
        objective.optimiser.state[parameter] = {
            kind: saved[key].to(parameter.device) for kind, key in keys.items() if key in saved
        }


@contextmanager
def _as_os_error() -> Iterator[None]:
    """What safetensors cannot write (a full disk, say) it reports as an error of its own."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(str(error)) from error
