"""States of unfinished trainings: everything needed to continue one to the same bits."""

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from memloc.engine.learner import Curves
from memloc.engine.loop import Objective
from memloc.errors import StoreError
from memloc.store.files import whole_file
from memloc.store.memo import Format, recall
from memloc.store.records import as_stored

UNREADABLE = (SafetensorError, OSError, KeyError, ValueError, TypeError)
"""Errors that reading a damaged state may raise."""
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


Snapshot = tuple[dict[str, Any], dict[str, torch.Tensor]]
"""Facts about a training, and its tensors by name."""


def save_state(path: Path, objectives: Sequence[Objective], curves: Curves, key: str) -> None:
    """Save all that a training needs to continue: weights, AdamW's moments, counters.

    Args:
        path: File of the state.
        objectives: Objectives with their optimisers.
        curves: Measurements so far.
        key: Cache key of everything that decides the training.
    """
    tensors: dict[str, torch.Tensor] = {}
    for objective in objectives:
        for name, parameter in objective.tensors.items():
            tensors[f"weight/{name}"] = parameter.detach()
            for kind, moment in objective.optimiser.state[parameter].items():
                tensors[f"{objective.name}/{kind}/{name}"] = moment
    facts = {o.name: {"updates": o.updates, "learns": list(o.parameters)} for o in objectives}
    STATE.write(path, ({"curves": curves, "objectives": facts}, tensors), key)


def load_state(path: Path, objectives: Sequence[Objective], key: str) -> Curves:
    """Restore a saved state into the objectives, and return the measurements so far.

    If no whole state with this key exists, training begins at the start.
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


def _write(path: Path, value: Snapshot, key: str) -> None:
    note = json.dumps(value[0])
    tensors = {name: tensor.contiguous() for name, tensor in value[1].items()}
    about = {"memloc": note, "key": key, "checksum": _checksum(key + note, tensors)}
    with whole_file(path) as draft:
        try:
            save_file(tensors, draft, about)
        except SafetensorError as error:  # a full disk, say
            raise OSError(str(error)) from error


def _read(path: Path) -> tuple[Snapshot, str]:
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if about["checksum"] != _checksum(about["key"] + about["memloc"], tensors):
            raise ValueError("its checksum differs")
        return (json.loads(about["memloc"]), tensors), about["key"]
    except UNREADABLE as error:
        raise StoreError(f"{path} is damaged ({error}).") from error


STATE = Format(_write, _read)
"""Format of a state: one safetensors file with facts, tensors, a checksum of both and the key."""


def epochs_done(path: Callable[..., Path], names: Sequence[str]) -> dict[str, int]:
    """Return the number of finished epochs of each model whose training was interrupted.

    A model may have been trained in one pass with the others or alone. A missing or damaged state
    counts as no epochs.
    """
    epochs: dict[str, int] = {}
    for group in ([name] for name in names), [[*names]]:
        for some in group:
            with suppress(*UNREADABLE), safe_open(path(*some), framework="pt") as file:
                curves: Curves = json.loads(file.metadata()["memloc"])["curves"]
                epochs |= {name: len(rows) for name, rows in curves.items()}
    return epochs


def _checksum(note: str, tensors: Mapping[str, torch.Tensor]) -> str:
    """Return a checksum of the note and of the tensors by name, type, shape and values."""
    checksum = zlib.crc32(note.encode())
    for name, tensor in sorted(tensors.items()):
        checksum = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), checksum)
        values = tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy()
        checksum = zlib.crc32(values.data, checksum)
    return f"{checksum:08x}"


@torch.no_grad()
def _restore(
    objective: Objective, saved: Mapping[str, torch.Tensor], facts: dict[str, Any]
) -> None:
    if facts["learns"] != list(objective.parameters):
        raise ValueError("it is of another model")
    objective.continue_after(facts["updates"])
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
