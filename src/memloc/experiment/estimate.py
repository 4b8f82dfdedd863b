"""What a study will cost: seconds, bytes on disk and in memory, and how sure that is."""

import math
import platform
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from memloc.errors import StoreError
from memloc.experiment.plan import Plan, Step
from memloc.experiment.shapes import Shape, training_examples
from memloc.experiment.store import Store
from memloc.models.width import NARROW
from memloc.protocol import Protocol
from memloc.records import as_stored, read_json, write_json

CALIBRATION = "calibration.json"
UNSURE = 2.0
"""Factor by which an estimate without any finished step may be off (see docs/studies.md)."""
SURE = 1.2
"""The least that is ever promised."""
BASE = 700e6
"""Bytes of a process that has loaded everything and no model yet (measured)."""
FIXED = {"centroids": 5.0, "control": 5.0, "report": 20.0}
"""Seconds that do not depend on the model (measured on one core)."""


@dataclass(frozen=True)
class Estimate:
    """What every step costs, and by what factor the sum may be off."""

    seconds: Mapping[str, float]
    memory: Mapping[str, float]
    """Bytes at its peak."""
    disk: Mapping[str, float]
    """Bytes that it leaves."""
    threads: Mapping[str, int]
    factor: float = UNSURE
    compared: int = 0
    """Finished steps that the estimate was corrected by."""
    start: float = 0.0
    """Seconds until the first step begins."""

    def total(self, names: set[str], cores: int, jobs: int) -> float:
        """Seconds until these steps are done, so many at once."""
        work = sum(self.seconds[n] * self.threads[n] for n in names)
        alone = max((self.seconds[n] for n in names), default=0.0)
        widest = max((self.threads[n] for n in names), default=1)
        return self.start + max(work / max(1, min(cores, jobs * widest)), alone)


def machine() -> str:
    """What a calibration is valid for."""
    return f"{platform.node()} {platform.machine()} {platform.processor()}".strip()


def calibration(plan: Plan, threads: int) -> dict[str, Any]:
    """What was measured on this machine for this study; measured now where that is missing."""
    path = plan.file.folder / CALIBRATION
    shapes = {f"{s.shape.depth}x{s.shape.width}" for s in plan.steps.values() if s.shape}
    known = read_json(path) if path.is_file() else {}
    with as_stored(path):
        measured = "start" in known and shapes <= set(known["speeds"])
        if measured and known["machine"] == machine():
            _check_measured(known)
            return known
    command = [sys.executable, "-m", "memloc.experiment.calibrate", str(plan.file.folder)]
    began = time.perf_counter()
    done = subprocess.run([*command, str(threads)], capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise StoreError(f"This machine could not be calibrated: {last}")
    known = read_json(path)
    known["start"] = max(0.0, time.perf_counter() - began - known["seconds"])
    write_json(path, known)
    return known


def _check_measured(known: Mapping[str, Any]) -> None:
    numbers = [known["start"], known["length"], *known["tokens"].values()]
    names = ("update", "predict", "probe_epoch", "batch")
    numbers += [speed[name] for speed in known["speeds"].values() for name in names]
    if not all(0 <= float(number) < math.inf for number in numbers) or not known["length"] > 0:
        raise ValueError("a measured time is no number")


def estimate(plan: Plan, measured: Mapping[str, Any], threads: Mapping[str, int]) -> Estimate:
    """From the calibration, corrected by the steps that are done."""
    store, steps = Store(plan.file.folder), plan.steps.values()
    plain = {step.name: _seconds(step, plan, measured) for step in steps}
    records = {s.name: r for s in steps if (r := store.record(s.name)) and r["state"] == "done"}
    ratios: dict[str, list[float]] = {}
    for name, record in records.items():
        ratio = record["seconds"] / max(0.1, plain[name])
        ratios.setdefault(_sort(plan.steps[name]), []).append(ratio)
    usual = median(r for many in ratios.values() for r in many) if ratios else 1.0
    factors = {sort: median(many) for sort, many in ratios.items()}
    seconds = {
        step.name: plain[step.name] * factors.get(_sort(step), usual if ratios else 1.0)
        for step in steps
    }
    peaks: dict[str, float] = {}
    for name, record in records.items():
        sort = _sort(plan.steps[name])
        peaks[sort] = max(peaks.get(sort, 0.0), record["peak_mb"] * 1e6)
    return Estimate(
        seconds=seconds,
        memory={s.name: peaks.get(_sort(s), _memory(s, plan)) for s in steps},
        disk={step.name: _disk(step) for step in steps},
        threads=threads,
        factor=_factor(ratios, factors, {_sort(s) for s in steps}),
        compared=len(records),
        start=measured["start"],
    )


def critical_path(plan: Plan, seconds: Mapping[str, float]) -> dict[str, float]:
    """Of every step: its seconds and those of the longest chain of steps that wait for it."""
    after = dict.fromkeys(plan.steps, 0.0)
    for step in reversed(list(plan.steps.values())):
        total = seconds[step.name] + after[step.name]
        for name in step.inputs:
            after[name] = max(after[name], total)
    return {name: seconds[name] + after[name] for name in plan.steps}


def _sort(step: Step) -> str:
    """Steps of one sort are off by the same factor."""
    width = step.shape.width if step.shape else 0
    return f"{step.kind} {step.what.get('name', '')} {width}"


def _factor(
    ratios: Mapping[str, list[float]], factors: Mapping[str, float], sorts: set[str]
) -> float:
    """How far off finished steps were after correction; unseen sorts are as unsure as ever."""
    off = [abs(math.log(r / factors[sort])) for sort, many in ratios.items() for r in many]
    if not off:
        return UNSURE
    spread = max(SURE, math.exp(sum(off) / len(off)))
    unseen = len(sorts - set(ratios)) / len(sorts)
    return float(spread ** (1 - unseen) * UNSURE**unseen)


def _seconds(step: Step, plan: Plan, measured: Mapping[str, Any]) -> float:
    if step.shape is None:
        return FIXED[step.kind]
    return _Costs(step, plan, measured).seconds()


class _Costs:
    """Counts the updates, predictions and probe epochs of a step."""

    def __init__(self, step: Step, plan: Plan, measured: Mapping[str, Any]) -> None:
        assert step.shape is not None
        self.step, self.protocol, self.shape = step, plan.file.study.protocol, step.shape
        self.n = training_examples(str(step.what["task"]), plan.file.study.examples)
        self.noisy = self.n * self.protocol.noise.rate
        speed = measured["speeds"][f"{self.shape.depth}x{self.shape.width}"]
        tokens = measured["tokens"].get(step.what["task"], measured["length"])
        longer = 1.0 if self.shape.width < NARROW else tokens / measured["length"]
        self.update = speed["update"] * longer / speed["batch"]
        """Seconds of an update, an example."""
        self.predict = speed["predict"] * longer
        self.probe = speed["probe_epoch"]

    def seconds(self) -> float:
        """Of the whole step."""
        if self.step.kind == "train":
            return self._training(self.step.what["weights"], self.n, self._epochs())
        if self.step.kind == "plant":
            return self._plant()
        return self._of(str(self.step.what["name"]))

    def _epochs(self) -> int:
        return self.protocol.finetune.epochs

    def _training(self, weights: tuple[str, ...], n: float, epochs: int) -> float:
        validation = 0.25 * self.n
        looking = (self.n + validation) * self.predict / self.protocol.finetune.measure_every
        whole = epochs * (n * self.update + looking)
        trainings = ("final" in weights or "memorised" in weights) + ("reference" in weights)
        # Only the head learns, on vectors that are there.
        frozen = 0.1 * whole if "frozen" in weights else 0.0
        return float(trainings * whole + frozen)

    def _plant(self) -> float:
        control = self.protocol.control
        epochs = control.epochs or self._epochs()
        n = self.n + (control.auxiliary_examples or training_examples(control.auxiliary))
        once = self._training(("final", "reference", "frozen"), n, epochs)
        looking = sum(self._of(method) for method in self.step.what["methods"])
        again = self._training(("final",), n, epochs) + looking if self.step.what["null"] else 0
        return once + looking + again

    def _of(self, name: str) -> float:
        depth, protocol = self.shape.depth, self.protocol
        blocks = depth + depth * (depth + 1) / 2 + (depth - 1) * depth * (depth + 1) / 6
        windows = depth * (depth + 1) / 2
        retrained = protocol.retraining.epochs * (self.n - 2 * self.noisy) * self.update
        # A window learns from its first layer on: on average that many of all layers.
        share = (2 * depth + 1) / (3 * depth)
        probes = protocol.probes.epochs * self.n * self.probe
        own = protocol.generalisation
        half = own.epochs * own.share * self.n * self.update + self.n * self.predict
        costs = {
            "swapping": blocks / depth * self.n * self.predict,
            "retraining": windows * (share * retrained + 2 * self.noisy * self.predict),
            "gradients": 4 * self.noisy * self.update,
            "probing": probes + 2 * self.n * self.predict,
            "centroids": FIXED["centroids"] + 3 * self.n * self.predict,
            "label-probes": 3 * probes + self.n * self.predict,
            "generalisation": own.models * half,
        }
        return float(costs.get(name, max(costs.values())))


def _disk(step: Step) -> float:
    if step.shape is None:
        return 10e6
    weights = 4.0 * step.shape.parameters
    if step.kind == "train":
        return weights * len(step.what["weights"])
    if step.kind == "plant":
        return 4 * weights * len(step.what["folders"])
    return 2e6


def _memory(step: Step, plan: Plan) -> float:
    """A process, the weights with gradients and two moments, and what a batch leaves behind."""
    if step.shape is None:
        return BASE
    return BASE + 20.0 * step.shape.parameters + _batch_bytes(step.shape, plan.file.study.protocol)


def _batch_bytes(shape: Shape, protocol: Protocol) -> float:
    tokens = protocol.finetune.batch_size * min(protocol.text.max_tokens, 256)
    return 4.0 * 34 * tokens * shape.width * shape.depth


def free_bytes(folder: Path) -> float:
    """That the disk still takes."""
    import shutil

    return float(shutil.disk_usage(folder).free)
