"""Estimates the cost of a study: time, disk, memory, and how certain the estimate is."""

import math
import platform
import shutil
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import Field, NonNegativeFloat

from memloc.errors import StoreError
from memloc.methods import Sizes
from memloc.model.device import NARROW
from memloc.model.shape import Shape
from memloc.progress import size
from memloc.protocol import FineTuneSettings, RunSettings
from memloc.run.records import TRAININGS, WEIGHTS
from memloc.settings import Settings, read_record
from memloc.store import paths
from memloc.store.records import write_json
from memloc.study.inputs import training_examples
from memloc.study.plan import Plan, Step
from memloc.study.records import StepRecord, Store

UNSURE = 2.0
"""Factor by which an estimate without any finished step may be off (see the guide on studies)."""
SURE = 1.2
"""Lower bound of the factor by which an estimate may be off."""
GAIN = 0.6
"""Speed-up of a wide model by each thread beyond the first, in cores.

Measured at width 384 on a quiet machine: two threads are 1.2× to 1.7× faster than one. Finished
steps correct it.
"""
STOPPED = 10.0
"""Ratio of clock time to processor time from which on a step counts as stopped.

Its process was halted, or the machine slept.
"""
BASE = 700e6
"""Bytes of a process that has loaded all libraries but no model (measured)."""
EARLY = 0.5
"""Share of the epochs kept as early checkpoints (.33 to .47 in embedded models)."""
USUAL_TOKENS = 48.0
"""Assumed number of tokens per text for a task whose texts are not on this machine."""


@dataclass(frozen=True)
class Estimate:
    """Costs of every step, and the factor by which their sum may be off."""

    seconds: Mapping[str, float]
    memory: Mapping[str, float]
    """Peak memory of each step in bytes."""
    disk: Mapping[str, float]
    """Bytes of the files that each step leaves."""
    threads: Mapping[str, int]
    factor: float = UNSURE
    compared: int = 0
    """Number of finished steps that corrected the estimate."""

    def duration(self, seconds: Mapping[str, float], cores: int, jobs: int) -> float:
        """Return the time until these steps are done when they share the cores."""
        work = sum(self.threads[name] * time for name, time in seconds.items())
        widest = max((self.threads[name] for name in seconds), default=1)
        return max([work / min(cores, jobs * widest), *seconds.values()])


def machine() -> str:
    """Return the name of this machine, for which a calibration is valid."""
    return f"{platform.node()} {platform.machine()} {platform.processor()}".strip()


class Speed(Settings):
    """Seconds measured for a model on one thread, with the batch size and length of the texts."""

    update: float = Field(ge=0)
    predict: float = Field(ge=0)
    layer: float = Field(ge=0)
    """Seconds of a layer of mixtures, for each token."""
    last_layer: float = Field(ge=0)
    """Seconds of their last layer, for each token."""
    probe: float = Field(ge=0)
    batch: float = Field(gt=0)
    length: float = Field(gt=0)


class Calibration(Settings):
    """Measurements of one machine."""

    machine: str
    speeds: dict[str, Speed] = {}
    """Speeds by the size of the model."""
    tokens: dict[str, NonNegativeFloat] = {}
    """Mean tokens of a text, by task."""


def measured_here(folder: Path) -> Calibration:
    """Return this machine's measurements stored in a folder; those of other machines are
    ignored.
    """
    with suppress(StoreError):  # a damaged one is measured again
        known = read_record(folder / paths.CALIBRATION, Calibration)
        if known.machine == machine():
            return known
    return Calibration.model_validate({"machine": machine()})


def keep(folder: Path, found: Mapping[str, Any]) -> Calibration:
    """Add measurements of this machine to the stored ones; speeds of other models stay."""
    known = measured_here(folder).model_dump()
    known |= {**found, "speeds": {**known["speeds"], **found.get("speeds", {})}}
    write_json(folder / paths.CALIBRATION, known)
    return Calibration.model_validate(known)


def estimate(plan: Plan, measured: Calibration, threads: Mapping[str, int]) -> Estimate:
    """Estimate the cost of a plan from the calibration, corrected by finished steps."""
    store, steps = Store(plan.file.folder), plan.steps.values()
    work = {step.name: _seconds(step, plan, measured) for step in steps}
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
        memory={s.name: peaks.get(sorts[s.name], _memory(s)) for s in steps},
        disk={step.name: _disk(step) for step in steps},
        threads=threads,
        factor=_factor(ratios, factors, set(sorts.values())),
        compared=len(records),
    )


def on_cores(threads: int, seconds: float) -> float:
    """Return the seconds on `threads` threads of work that takes `seconds` on one."""
    return seconds / (1 + GAIN * (threads - 1))


def _busy(record: StepRecord) -> float:
    """Return the seconds that a step would have taken with its cores to itself and without
    stops.
    """
    used = record.seconds if record.processor is None else record.processor
    return max(1e-3, min(record.seconds, used))


def _pace(records: Iterable[StepRecord]) -> float:
    """Return how many times longer steps take than estimated; stopped steps do not count."""
    slower = [record.seconds / _busy(record) for record in records]
    return median([1.0, *(factor for factor in slower if factor < STOPPED)])


def disk_sentences(disk: float, folder: Path) -> list[str]:
    """Return sentences on how much disk space results take, and whether it is free."""
    free = shutil.disk_usage(folder).free
    more = "THAT IS MORE THAN THERE IS: choose another folder or free space first."
    taken = f"Results will take {size(disk)} of disk; {size(free)} are free."
    return [taken, more] if disk > free else [taken]


def urgency(plan: Plan, seconds: Mapping[str, float]) -> dict[str, float]:
    """Return, for each step, its seconds plus those of the longest chain of steps that waits for
    it.
    """
    waiting = dict(seconds)
    for step in plan.steps.values():
        if step.needs:
            longest = seconds[step.needs] + seconds[step.name]
            waiting[step.needs] = max(waiting[step.needs], longest)
    return waiting


def _sort(step: Step) -> str:
    """Return the sort of a step; estimates of steps of one sort are off by the same factor."""
    method = "" if step.action == "plant" else " ".join(step.methods)
    return f"{step.action} {method} {step.shape.width}"


def _factor(
    ratios: Mapping[str, list[float]], factors: Mapping[str, float], sorts: set[str]
) -> float:
    """Return how far off finished steps were after correction; unseen sorts stay uncertain."""
    off = [abs(math.log(r / factors[sort])) for sort, many in ratios.items() for r in many]
    if not off:
        return UNSURE
    spread = max(SURE, math.exp(sum(off) / len(off)))
    unseen = len(sorts - set(ratios)) / len(sorts)
    return float(spread ** (1 - unseen) * UNSURE**unseen)


def _seconds(step: Step, plan: Plan, measured: Calibration) -> float:
    spec, run = step.spec, plan.there.get(step.folder)
    examples = training_examples(spec.task) if run is None else run.record.task.train
    tokens = measured.tokens.get(spec.task.name, USUAL_TOKENS)
    sizes = sizes_of(step.shape, spec.settings, examples, tokens, measured)
    epochs = spec.settings.finetune.epochs
    if step.action == "train":
        epochs_of = dict.fromkeys((WEIGHTS[name] for name in step.checkpoints), epochs)
        return training_seconds(spec.settings, sizes, epochs_of)
    looking = float(sum(method.cost(sizes) for method in step.methods_with_settings()))
    if spec.plant is None:
        return looking
    other = spec.plant.auxiliary
    auxiliary = 0 if other is None else training_examples(other)
    epochs_of = dict.fromkeys(TRAININGS, epochs)
    once = training_seconds(spec.settings, sizes, epochs_of, auxiliary) + looking
    null = training_seconds(spec.settings, sizes, {"noisy": epochs}, auxiliary) + looking
    return once + (null if step.null else 0.0)


def sizes_of(
    shape: Shape, settings: RunSettings, examples: int, tokens: float, measured: Calibration
) -> Sizes:
    """Return the sizes of a model and a task's training examples from the measurements.

    Args:
        shape: Size of the model.
        settings: Settings of the run.
        examples: Number of training examples.
        tokens: Mean number of tokens per text.
        measured: Measurements of this machine.
    """
    speed = measured.speeds[shape.name]
    read = min(tokens, settings.text.max_tokens)
    longer = 1.0 if shape.width < NARROW else read / speed.length
    return Sizes(
        examples=examples,
        noisy=examples * settings.noise.rate,
        depth=shape.depth,
        update=speed.update * longer / speed.batch,
        predict=speed.predict * longer,
        layer=speed.layer * read,
        last_layer=speed.last_layer * read,
        probe=speed.probe,
        all_gradients=settings.finetune.clip_over == "all",
    )


def training_seconds(
    settings: RunSettings, sizes: Sizes, epochs: Mapping[str, int], auxiliary: int = 0
) -> float:
    """Return the seconds of these epochs of each training.

    Args:
        settings: Settings of the run.
        sizes: Sizes of data and model.
        epochs: Number of epochs of each training.
        auxiliary: Number of examples per epoch of the auxiliary task.
    """
    finetune, validation = settings.finetune, 0.25 * sizes.examples
    looking = (sizes.examples + validation) * sizes.predict / finetune.measure_every
    once = (sizes.examples + auxiliary) * sizes.update + looking
    # In the frozen model only the head is trained, on vectors that are kept if nothing varies.
    kept = not finetune.frozen_dropout and finetune.clip_over == "trained"
    share = {"frozen": 0.1 if kept else 1.0}
    return float(once * sum(n * share.get(t, 1.0) for t, n in epochs.items()))


def early_checkpoints(settings: FineTuneSettings) -> float:
    """Return about how many early checkpoints a training on noisy labels keeps."""
    keeps = settings.keep_epochs == "early"
    return EARLY * settings.epochs / settings.measure_every if keeps else 0.0


def _disk(step: Step) -> float:
    if step.action not in {"train", "plant"}:
        return 2e6
    checkpoints = len(step.checkpoints) if step.action == "train" else 4
    copies = checkpoints + early_checkpoints(step.spec.settings.finetune)
    return step.shape.bytes * copies * (2 if step.null else 1)


def _memory(step: Step) -> float:
    """Return the bytes of a process with what its methods take or, without methods, a training."""
    shape, settings = step.shape, step.spec.settings
    tokens = settings.finetune.batch_size * min(settings.text.max_tokens, 256)
    at_once = 2 if shape.width < NARROW else 1  # narrow ones learn two sets of labels in one pass
    training = at_once * (5 * shape.bytes + shape.states(tokens))
    asked = [method.memory(shape, training) for method in step.methods_with_settings()]
    return BASE + max(asked, default=training)
