"""What a study will cost: seconds, bytes on disk and in memory, and how sure that is."""

import math
import platform
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import Field, NonNegativeFloat, ValidationError

from memloc.errors import StoreError
from memloc.methods import Sizes
from memloc.model.device import NARROW
from memloc.protocol import Protocol
from memloc.run.folder import TRAININGS, WEIGHTS
from memloc.settings import Settings
from memloc.store import paths
from memloc.store.records import read_json, write_json
from memloc.study.inputs import Shape, training_examples
from memloc.study.plan import Plan, Step
from memloc.study.records import StepRecord, Store

UNSURE = 2.0
"""Factor by which an estimate without any finished step may be off (see the guide on studies)."""
SURE = 1.2
"""The least that is ever promised."""
GAIN = 0.6
"""Of a core that each thread beyond the first gains a wide model. Measured at width 384 on a quiet
machine: two threads are 1.2 to 1.7 times as fast as one. Finished steps correct it."""
STOPPED = 10.0
"""A step that took so many times its processor's time was not only slow: its process was stopped,
or the machine slept."""
BASE = 700e6
"""Bytes of a process that has loaded everything and no model yet (measured)."""
USUAL_TOKENS = 48.0
"""Assumed of a task whose texts are not on this machine."""


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

    def duration(self, seconds: Mapping[str, float], cores: int, jobs: int) -> float:
        """Time until steps of so many seconds are done: shared by cores, or the longest step."""
        work = sum(self.threads[name] * each for name, each in seconds.items())
        widest = max((self.threads[name] for name in seconds), default=1)
        return max([work / min(cores, jobs * widest), *seconds.values()])


def machine() -> str:
    """What a calibration is valid for."""
    return f"{platform.node()} {platform.machine()} {platform.processor()}".strip()


class Speed(Settings):
    """What is measured of a model on one thread: seconds, and the batch and texts they are of."""

    update: float = Field(ge=0)
    predict: float = Field(ge=0)
    probe: float = Field(ge=0)
    batch: float = Field(gt=0)
    length: float = Field(gt=0)


class Calibration(Settings):
    """What was measured on one machine."""

    machine: str
    speeds: dict[str, Speed] = {}
    """By the sizes of models."""
    tokens: dict[str, NonNegativeFloat] = {}
    """Of a text, by task."""


def calibration(plan: Plan) -> Calibration:
    """What was measured on this machine for this study; measured now where that is missing."""
    shapes = {step.run.shape.name for step in plan.steps.values()}
    known = measured_here(plan.file.folder)
    if shapes <= set(known.speeds):
        return known
    command = [sys.executable, "-m", "memloc.study.calibrate", str(plan.file.folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        reason = last.removeprefix("memloc.errors.").partition("Error: ")[2] or last
        raise StoreError(f"This machine could not be calibrated: {reason}")
    return measured_here(plan.file.folder)


def measured_here(folder: Path) -> Calibration:
    """What a folder says of this machine's speed: what was measured on others does not count."""
    with suppress(StoreError, ValidationError):  # a damaged one is measured again
        values = read_json(folder / paths.CALIBRATION)
        known = Calibration.model_validate({k: v for k, v in values.items() if k != "format"})
        if known.machine == machine():
            return known
    return Calibration.model_validate({"machine": machine()})


def keep(folder: Path, found: Mapping[str, Any]) -> Calibration:
    """Add to what was measured on this machine; speeds of other models stay."""
    known = measured_here(folder).model_dump()
    known |= {**found, "speeds": {**known["speeds"], **found.get("speeds", {})}}
    write_json(folder / paths.CALIBRATION, known)
    return Calibration.model_validate(known)


def estimate(plan: Plan, measured: Calibration, threads: Mapping[str, int]) -> Estimate:
    """From the calibration, corrected by the steps that are done."""
    store, steps = Store(plan.file.folder), plan.steps.values()
    count = cache(partial(training_examples, plan.file))
    work = {step.name: _seconds(step, count, measured) for step in steps}
    records = {s.name: r for s in steps if (r := store.record(s.name)) and r.state == "done"}
    sorts = {step.name: _sort(step) for step in steps}
    ratios, peaks = defaultdict[str, list[float]](list), defaultdict[str, float](float)
    for name, record in records.items():
        expected = on_cores(record.threads, work[name])
        ratios[sorts[name]].append(_busy(record) / max(0.1, expected))
        peaks[sorts[name]] = max(peaks[sorts[name]], record.peak_mb * 1e6)
    factors = {sort: median(many) for sort, many in ratios.items()}
    usual, pace = median(chain(*ratios.values())) if ratios else 1.0, _pace(records.values())
    return Estimate(
        seconds={
            name: pace * factors.get(sort, usual) * on_cores(threads[name], work[name])
            for name, sort in sorts.items()
        },
        memory={s.name: peaks.get(sorts[s.name], _memory(s, plan)) for s in steps},
        disk={step.name: _disk(step) for step in steps},
        threads=threads,
        factor=_factor(ratios, factors, set(sorts.values())),
        compared=len(records),
    )


def on_cores(threads: int, seconds: float) -> float:
    """How long work takes on so many threads that takes these seconds on one."""
    return seconds / (1 + GAIN * (threads - 1))


def _busy(record: StepRecord) -> float:
    """Seconds that a step would have taken with its cores to itself, and never stopped."""
    used = record.seconds if record.processor is None else record.processor
    return max(1e-3, min(record.seconds, used))


def _pace(records: Iterable[StepRecord]) -> float:
    """How many times longer steps take than estimated; those that were stopped say nothing."""
    slower = [record.seconds / _busy(record) for record in records]
    return median([1.0, *(each for each in slower if each < STOPPED)])


def urgency(plan: Plan, seconds: Mapping[str, float]) -> dict[str, float]:
    """Of every step: its seconds, with those of the longest step that waits for it."""
    found = dict(seconds)
    for step in plan.steps.values():
        if step.needs is not None:
            need = step.needs.name
            found[need] = max(found[need], seconds[need] + seconds[step.name])
    return found


def _sort(step: Step) -> str:
    """Steps of one sort are off by the same factor."""
    return f"{step.kind} {step.method} {step.run.shape.width}"


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


def _seconds(step: Step, count: Callable[[str], int], measured: Calibration) -> float:
    run, protocol = step.run, step.run.protocol
    examples = count(run.task) if run.there is None else run.there.record.task.train
    tokens = measured.tokens.get(run.task, USUAL_TOKENS)
    sizes = sizes_of(run.shape, protocol, examples, tokens, measured)
    if step.kind == "train":
        epochs = dict.fromkeys((WEIGHTS[w] for w in run.weights), protocol.finetune.epochs)
        return training_seconds(protocol, sizes, epochs)
    methods = [step.method] if step.method else run.methods
    looking = float(sum(protocol.method(name).cost(sizes) for name in methods))
    if step.kind != "plant":
        return looking
    control = protocol.control
    auxiliary = control.auxiliary_examples or count(control.auxiliary)
    epochs = dict.fromkeys(TRAININGS, control.epochs or protocol.finetune.epochs)
    once = training_seconds(protocol, sizes, epochs, auxiliary) + looking
    null = training_seconds(protocol, sizes, {"noisy": epochs["noisy"]}, auxiliary) + looking
    return once + null * (len(step.folders) - 1)


def sizes_of(
    shape: Shape, protocol: Protocol, examples: int, tokens: float, measured: Calibration
) -> Sizes:
    """What a model and a task's training examples take, from what was measured."""
    speed = measured.speeds[shape.name]
    read = min(tokens, protocol.text.max_tokens)
    longer = 1.0 if shape.width < NARROW else read / speed.length
    return Sizes(
        examples=examples,
        noisy=examples * protocol.noise.rate,
        depth=shape.depth,
        update=speed.update * longer / speed.batch,
        predict=speed.predict * longer,
        probe=speed.probe,
        all_gradients=protocol.finetune.clip_over == "all",
    )


def training_seconds(
    protocol: Protocol, sizes: Sizes, epochs: Mapping[str, int], auxiliary: int = 0
) -> float:
    """Of so many epochs of each training, with other examples in addition to the task's."""
    own, validation = protocol.finetune, 0.25 * sizes.examples
    looking = (sizes.examples + validation) * sizes.predict / own.measure_every
    once = (sizes.examples + auxiliary) * sizes.update + looking
    # Of the frozen model only the head learns, on vectors that are kept if nothing varies.
    kept = not own.frozen_dropout and own.clip_over == "trained"
    share = {"frozen": 0.1 if kept else 1.0}
    return float(once * sum(n * share.get(t, 1.0) for t, n in epochs.items()))


def _disk(step: Step) -> float:
    weights = step.run.shape.bytes
    if step.kind == "train":
        return weights * len(step.run.weights)
    return 4 * weights * len(step.folders) if step.kind == "plant" else 2e6


def _memory(step: Step, plan: Plan) -> float:
    """A process, the weights with gradients and two moments, and what a batch leaves behind."""
    shape, protocol = step.run.shape, plan.file.study.protocol
    tokens = protocol.finetune.batch_size * min(protocol.text.max_tokens, 256)
    each = 20.0 * shape.parameters + 4.0 * 34 * tokens * shape.width * shape.depth
    if shape.width >= NARROW:
        return BASE + each
    return BASE + 2 * each  # narrow ones learn two sets of labels in one pass
