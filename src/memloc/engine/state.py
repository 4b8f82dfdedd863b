"""Half-done trainings: everything that is needed to continue one to the same bits."""

import json
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from memloc.engine.learner import Curves, StateOf
from memloc.engine.loop import Objective
from memloc.errors import StoreError
from memloc.store.files import whole_file

UNREADABLE = (SafetensorError, OSError, KeyError, ValueError, TypeError)
"""The errors that reading a damaged state may raise."""
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def save_state(path: Path, objectives: Sequence[Objective], curves: Curves) -> None:
    """Write all that training needs to continue: weights, AdamW's moments, counters."""
    tensors: dict[str, torch.Tensor] = {}
    for objective in objectives:
        for name, parameter in objective.tensors.items():
            tensors[f"weight/{name}"] = parameter.detach()
            for kind, moment in objective.optimiser.state[parameter].items():
                tensors[f"{objective.name}/{kind}/{name}"] = moment
    facts = {o.name: {"updates": o.updates, "learns": list(o.parameters)} for o in objectives}
    note = json.dumps({"curves": curves, "objectives": facts})
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    with whole_file(path) as draft:
        try:
            save_file(whole, draft, {"memloc": note, "checksum": _checksum(note, whole)})
        except SafetensorError as error:  # a full disk, say
            raise OSError(str(error)) from error


def load_state(path: Path, objectives: Sequence[Objective]) -> Curves:
    """Put a saved state back into the objectives and return what was measured so far."""
    try:
        with safe_open(path, framework="pt") as file:
            note = _note(file)
            for objective in objectives:
                _restore(objective, file, note["objectives"][objective.name])
            curves: Curves = note["curves"]
    except UNREADABLE as error:
        raise StoreError(
            f"{path} cannot be continued from ({error}): delete it to train from the start."
        ) from error
    return curves


def epochs_done(state: StateOf, names: Sequence[str]) -> dict[str, int]:
    """Return the number of finished epochs of each model whose training was interrupted.

    A model may have been trained in one pass with the others or alone. A state that is missing or
    damaged has no epochs.
    """
    found: dict[str, int] = {}
    for group in ([name] for name in names), [[*names]]:
        for some in group:
            with suppress(*UNREADABLE), safe_open(state(*some), framework="pt") as file:
                curves: Curves = json.loads(file.metadata()["memloc"])["curves"]
                found |= {name: len(rows) for name, rows in curves.items()}
    return found


def _note(file: Any) -> dict[str, Any]:
    """Return what a state says about its tensors, all of which have to be as they were written."""
    about = file.metadata()
    tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    if about["checksum"] != _checksum(about["memloc"], tensors):
        raise ValueError("its checksum differs")
    note: dict[str, Any] = json.loads(about["memloc"])
    return note


def _checksum(note: str, tensors: Mapping[str, torch.Tensor]) -> str:
    """Return a checksum of the note and of the tensors by name, type, shape and values."""
    found = zlib.crc32(note.encode())
    for name, tensor in sorted(tensors.items()):
        found = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), found)
        values = tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy()
        found = zlib.crc32(values.data, found)
    return f"{found:08x}"


@torch.no_grad()
def _restore(objective: Objective, file: Any, facts: dict[str, Any]) -> None:
    if facts["learns"] != list(objective.parameters):
        raise ValueError("it is of another model")
    objective.continue_after(facts["updates"])
    saved = set(file.keys())
    for name, parameter in objective.tensors.items():
        weight = file.get_tensor(f"weight/{name}")
        if weight.shape != parameter.shape:
            raise ValueError(f"{name} has another size there")
        parameter.copy_(weight)
        keys = {kind: f"{objective.name}/{kind}/{name}" for kind in _MOMENTS}
        # A parameter that the model never uses has no moments.
        objective.optimiser.state[parameter] = {
            kind: file.get_tensor(key).to(parameter.device)
            for kind, key in keys.items()
            if saved.intersection(keys.values())
        }
