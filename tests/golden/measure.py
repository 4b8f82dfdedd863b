"""What a micro study gives on one family; `python tests/golden/measure.py` records it anew.

The record guards against changes that nobody meant. A change of the method changes it on purpose:
then record it again in the same commit, and say why.
"""

import hashlib
import json
import platform
import sys
import tempfile
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np
import torch
from safetensors.torch import load_file

from fixtures.models import PAPER_FAMILIES, write_model
from fixtures.tasks import fast_protocol, make_recipe, make_task, train_run
from memloc.methods.apply import apply
from memloc.run.plant import make_null, make_plant
from memloc.run.spec import TaskSpec

RECORD = Path(__file__).with_name("golden.json")
WEIGHTS = ("memorised", "final", "reference", "frozen")
METHODS = ("swapping", "retraining", "gradients", "probing")
SETTINGS = {
    "finetune__epochs": 10,
    "finetune__learning_rate": 5e-3,
    "finetune__near_ceiling": 0.5,
    "verdict__noisy_at_least": 0.001,
    "retraining__epochs": 1,
    "retraining__learning_rate": 5e-3,
    **{
        f"{method}__{name}": value
        for method in ("probing", "label_probes")
        for name, value in (("epochs", 20), ("first_epoch", 2), ("learning_rate", 3e-2))
    },
    "generalisation__models": 3,
    "generalisation__epochs": 2,
    "generalisation__learning_rate": 5e-3,
    "control__accuracy_above": 0.2,
    "control__auxiliary_learning_rate": 1e-3,
}


def machine() -> str:
    """Where weights are the same to the bit: the processor's kind and the libraries' versions."""
    kind = torch.backends.cpu.get_cpu_capability()
    named = " ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "numpy"))
    return f"{platform.machine()} {kind} {named} {_processor()}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if "model name" in line), "")


def measure(family: str, folder: Path) -> dict:
    """Everything that is recorded of one family."""
    model = str(write_model(folder / f"model-{family}", family, 3, 0.1, 0))
    recipe = make_recipe(model, make_task(60, 3), 1, fast_protocol(**SETTINGS))
    run = train_run(recipe, folder / "run")
    other = make_task(24, 2, "other")
    spec = recipe.spec.planted("2-2", TaskSpec.of_training(other), recipe.protocol)
    tasks = {"task": recipe.task, "auxiliary": other}
    planted = make_plant(spec, folder / "plant", WEIGHTS, **tasks, device="cpu")
    null = make_null(planted, folder / "null", WEIGHTS, auxiliary=other)
    return {
        "run": _run(run, METHODS),
        **_analyses(run),
        "plant": _run(planted, ("swapping", "gradients")),
        "null": _run(null, ("swapping", "gradients")),
    }


def _run(run, methods) -> dict:
    found = _found(run, methods)
    return {
        "weights": {name: _of_weights(run.path(name)) for name in WEIGHTS},
        "layers": {name: _numbers(scores.weights) for name, scores in found.items()},
        "mcog": {
            name: _numbers([s.mcog.estimate, s.mcog.low, s.mcog.high]) for name, s in found.items()
        },
    }


def _found(run, methods) -> dict:
    protocol = fast_protocol(**SETTINGS)
    chosen = [protocol.method(name) for name in methods]
    return apply(replace(run, device="cpu"), chosen, protocol.verdict, force=True).results


def _of_weights(folder: Path) -> dict:
    tensors = load_file(folder / "model.safetensors")
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode() + tensors[name].contiguous().numpy().tobytes())
    size = sum(float(t.double().abs().sum()) for t in tensors.values())
    return {"hash": digest.hexdigest()[:16], "size": size}


def _analyses(run) -> dict:
    found = _found(run, ("centroids", "label_probes", "generalisation"))
    centroids, probes, halves = found.values()
    events = [*_events(centroids["events"]), *_events(probes["events"])]
    return {
        "events": events,
        "positions": _numbers(centroids["layers"]["mean"]),
        "label probes": _numbers(probes["layers"]["f1"]),
        "generalisation": _numbers(halves["summary"][["score", "clean_score"]].iloc[0]),
        "held out": _numbers(halves["examples"]["held_out"]),
    }


def _events(table) -> list:
    rows = table[["source", "variant", "event", "layer", "never"]].to_dict("records")
    return [{k: _plain(v) for k, v in row.items()} for row in rows]


def _numbers(values) -> list:
    return [_plain(float(v)) for v in np.asarray(values, dtype=float)]


def _plain(value):
    return None if isinstance(value, float) and np.isnan(value) else value


def record() -> None:
    """Write down what every family gives on this machine."""
    found = {}
    for family in PAPER_FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            found[family] = measure(family, Path(folder))
    text = json.dumps({"machine": machine(), "families": found}, indent=1)
    RECORD.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    record()
