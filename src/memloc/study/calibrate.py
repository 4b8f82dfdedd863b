"""Measures for a few seconds how fast this machine trains and predicts, and reports what work
costs.

A random model as wide as each of the study's models makes a few updates on texts of the usual
length. Narrow models are as deep as the real ones; for wide models two layers represent all. Time
is the processor's time on one thread. While other programs run, clock time says little, and threads
that wait for each other without a core of their own use up more than they compute. Only one thread
computes: a process in which torch has started threads cannot be copied.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from memloc.data.encode import Encoded
from memloc.engine.fit import fit_all
from memloc.engine.learner import Learner, Watch
from memloc.errors import MemlocError, listed
from memloc.labels.repair import Workshop
from memloc.methods import Method, Sizes
from memloc.methods.apply import roughly
from memloc.methods.halves import Pool, kept_halves
from memloc.methods.mixtures import CALL_TOKENS
from memloc.methods.probes import Target, train_probes
from memloc.methods.probing import Probing
from memloc.model.calls import LastBlock
from memloc.model.device import NARROW, on_threads, pick_device, usable_threads
from memloc.model.load import Classifier
from memloc.model.predict import evaluating, predict, to_batch
from memloc.model.shape import Shape
from memloc.model.stack import Stack
from memloc.progress import around, duration, hidden, tell
from memloc.protocol import FineTuneSettings
from memloc.run.folder import Run
from memloc.run.records import WEIGHTS
from memloc.seeds import generator, torch_seeded
from memloc.study.estimate import (
    UNSURE,
    USUAL_TOKENS,
    disk_sentences,
    early_checkpoints,
    keep,
    measured_here,
    on_cores,
    sizes_of,
    training_seconds,
)
from memloc.study.inputs import is_here, tokens_of
from memloc.study.plan import Plan, Step

Clock = Callable[[], float]
UPDATES = 4
"""Number of timed updates, after one that is not timed."""
LONGEST = 64
"""Largest number of tokens in a timed text; for longer texts, wide models take time in
proportion.
"""
HEADS, VOCABULARY, PROBED = 4, 500, 200
FOR_DEPTH, FEW = 2, 16
"""Layers of a wide model that are timed, and texts that it looks at."""


def calibrate(plan: Plan) -> dict[str, Any]:
    """Measure the tokens of every task, and how fast this machine is with every model."""
    tokens = {step.spec.task.name: 0.0 for step in plan.steps.values()}
    for step in {step.spec.task.name: step for step in plan.steps.values()}.values():
        tokens[step.spec.task.name] = _tokens(step, plan)
    usual = float(np.mean(list(tokens.values()) or [USUAL_TOKENS]))
    training, device = plan.file.study.protocol.finetune, plan.file.study.device
    shapes = {step.shape.name: step.shape for step in plan.steps.values()}
    speeds = {name: speed(shape, usual, training, device) for name, shape in shapes.items()}
    return {"tokens": tokens, "speeds": speeds}


def tell_cost(folder: Path, run: Run, model: Classifier, left: Mapping[str, int]) -> None:
    """Report the updates, time and disk space of the remaining trainings.

    The machine is measured for some seconds unless `folder` has its speed.

    Args:
        folder: Folder with measurements of this machine.
        run: The run that is trained.
        model: Its model.
        left: Remaining epochs of each training.
    """
    vocabulary = getattr(model.model.config, "vocab_size", None) or 0
    shape = Shape(model.stack.depth, model.stack.width, vocabulary)
    sizes = _sizes(folder, run, shape)
    seconds = training_seconds(run.settings, sizes, left)
    updates = sum(left.values()) * -(-int(sizes.examples) // run.settings.finetune.batch_size)
    many = "training is" if len(left) == 1 else "trainings are"
    tell(
        f"{len(left)} {many} left ({', '.join(left)}), {updates:,} updates in all: "
        f"{_about(seconds, shape)}."
    )
    weights = sum(training in left for training in WEIGHTS.values())
    early = early_checkpoints(run.settings.finetune) if "noisy" in left else 0.0
    for sentence in disk_sentences((weights + early) * shape.bytes, folder):
        tell(sentence)


def _sizes(folder: Path, run: Run, shape: Shape) -> Sizes:
    """Return the sizes of a run's model and data; measure the machine's speed if it is unknown."""
    tokens, measured = tokens_of(run.task.train, run.record.task.name), measured_here(folder)
    if shape.name not in measured.speeds:
        measured_speed = speed(shape, tokens, run.settings.finetune, run.device)
        measured = keep(folder, {"speeds": {shape.name: measured_speed}})
    return sizes_of(shape, run.settings, len(run.task.train), tokens, measured)


def _about(work: float, shape: Shape) -> str:
    """Return a phrase on how long work takes, from its seconds on one thread, and how certain that
    is.
    """
    seconds = on_cores(usable_threads(shape.width), work)
    range_ = around(seconds, UNSURE)
    return f"about {duration(seconds)} ({range_}; from a calibration alone)"


def tell_cost_of_halves(pool: Pool, model: Classifier, models: int) -> None:
    """Report the updates and time of the models on halves that are missing."""
    left = sorted({*range(1, models + 1)} - kept_halves(pool, models).keys())
    updates = sum(map(pool.updates, left))
    shape = Shape(model.stack.depth, model.stack.width, 0)
    measured = speed(shape, tokens_of(pool.examples), pool.training, pool.device)
    work = updates * measured["update"] + len(left) * len(pool.examples) * measured["predict"]
    seconds = on_cores(usable_threads(shape.width), work)
    tell(
        f"{len(left)} of {models} models on halves are left, {updates:,} updates in all: about "
        f"{duration(seconds)} (from a calibration alone)."
    )


AT_ONCE = 30.0
"""Largest number of seconds of methods on a narrow model for which no estimate is made."""


def tell_cost_of_methods(run: Run, methods: Sequence[Method]) -> None:
    """Report how long methods will take on a run, unless it is short."""
    rough, shape = roughly(run), Shape(run.depth, run.record.width, 0)
    if shape.width < NARROW and sum(method.cost(rough) for method in methods) < AT_ONCE:
        return
    tokens = tokens_of(run.task.train, run.record.task.name)
    seconds = speed(shape, tokens, run.settings.finetune, run.device)
    read = min(tokens, run.settings.text.max_tokens)
    sizes = replace(
        rough,
        update=seconds["update"] / seconds["batch"],
        predict=seconds["predict"],
        layer=seconds["layer"] * read,
        last_layer=seconds["last_layer"] * read,
        probe=seconds["probe"],
    )
    threads = usable_threads(shape.width)
    costs = {method.name: on_cores(threads, method.cost(sizes)) for method in methods}
    parts = [f"{name} {duration(costs[name])}" for name in sorted(costs, key=costs.__getitem__)]
    tell(
        f"{listed(parts)}: about {duration(sum(costs.values()))} in all (from a calibration "
        "alone). Finished methods are kept; name the methods you want if that is too long."
    )


def tell_cost_of_repair(workshop: Workshop) -> None:
    """Report how many models a repair compares, with updates and time."""
    run, names = workshop.run, workshop.names
    shape, tokens = Shape(run.depth, run.record.width, 0), tokens_of(run.task.train)
    making, again = workshop.updates(names)
    learnt = speed(shape, tokens, run.settings.finetune, run.device)
    relearnt = speed(shape, tokens, workshop.relearning, run.device)
    measured = relearnt["update"] + len(run.noisy_rows) * relearnt["predict"]
    seconds = on_cores(usable_threads(shape.width), making * learnt["update"] + again * measured)
    tell(
        f"{len(names)} models are compared, of which {workshop.settings.yardsticks} are trained "
        f"without the noisy examples: {making + again:,} updates and about {duration(seconds)} at "
        "most (from a calibration alone), once the shares of layers are known."
    )


def _tokens(step: Step, plan: Plan) -> float:
    """Return the mean number of tokens per text of a step's task, without fetching anything."""
    run, name = plan.there.get(step.folder), step.spec.task.name
    if run is not None:
        return tokens_of(run.task.train, name)
    if is_here(step.spec.task):
        with suppress(MemlocError):
            return tokens_of(step.spec.load_task().train, name)
    return USUAL_TOKENS


def speed(shape: Shape, tokens: float, training: FineTuneSettings, device: str) -> dict[str, float]:
    """Measure the seconds of an update, a prediction and a probe's epoch, for each example, and of
    layers of mixtures, for each token.

    All are measured on one thread.

    Args:
        shape: Size of the model.
        tokens: Mean number of tokens per text.
        training: Settings of fine-tuning.
        device: Device to measure.
    """
    is_narrow, length = shape.width < NARROW, max(4, min(LONGEST, round(tokens)))
    depth = shape.depth if is_narrow else FOR_DEPTH
    scale, settings = shape.depth / depth, training.replace({"epochs": 1 + UPDATES})
    texts, many = (_texts(n, length) for n in (settings.batch_size, PROBED if is_narrow else FEW))
    with on_threads(1), hidden():
        stack = _stand_in(shape.width, depth, pick_device(device))
        # If another device computes, the processor's time says little.
        clock = time.process_time if stack.device.type == "cpu" else time.perf_counter
        return {
            "update": scale * _update_seconds(clock, stack, texts, settings),
            "predict": scale * _timed(clock, lambda: predict(stack, many)) / len(many),
            **_layer_seconds(clock, stack, length),
            "probe": _probe_seconds(shape) / PROBED,
            "batch": settings.batch_size,
            "length": length,
        }


def _stand_in(width: int, depth: int, device: torch.device) -> Stack:
    config = transformers.OPTConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        word_embed_proj_dim=width,
        ffn_dim=4 * width,
        num_hidden_layers=depth,
        num_attention_heads=HEADS if width % HEADS == 0 else 1,
    )
    with torch_seeded(0, "calibration"):
        model = transformers.AutoModelForSequenceClassification.from_config(config)
    return Stack(model.to(device).eval())


def _texts(n: int, length: int) -> Encoded:
    rng = generator(0, "calibration")
    lengths = rng.integers(max(2, length // 2), length + length // 2, n)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    tokens = rng.integers(5, VOCABULARY, offsets[-1]).astype(np.int32)
    return Encoded(tokens, offsets, 1)


def _update_seconds(
    clock: Clock, stack: Stack, texts: Encoded, settings: FineTuneSettings
) -> float:
    times: list[float] = []
    model = Classifier("calibration", stack.model, None)
    learner = Learner("calibration", lambda: model, np.zeros(len(texts), np.int64), 0)
    watch = Watch(after_update=lambda _trained, _update: times.append(clock()))
    fit_all([learner], texts, settings, watch)
    return float(np.median(np.diff(times)[1:]))


def _layer_seconds(clock: Clock, stack: Stack, length: int) -> dict[str, float]:
    """Return the seconds of a layer and of the last one, for each token of a full call."""
    texts = np.arange(max(1, CALL_TOKENS // length))
    tokens = generator(0, "calibration").integers(5, VOCABULARY, len(texts) * length)
    encoded = Encoded(tokens.astype(np.int32), length * np.arange(len(texts) + 1), 1)
    last, here = LastBlock(stack), slice(length - 1, length)
    with evaluating(stack.model), torch.inference_mode():
        prepared = stack.prepare(to_batch(encoded, texts, stack.device))
        ways = {
            "layer": lambda: stack.run(0, prepared.state, prepared.calls[0]),
            "last_layer": lambda: last.read(prepared.state, prepared.calls[-1], here),
        }
        seconds = {name: [_timed(clock, way) for _ in range(UPDATES)] for name, way in ways.items()}
    return {name: float(np.median(each)) / len(tokens) for name, each in seconds.items()}


def _probe_seconds(shape: Shape) -> float:
    """Return the seconds of an epoch of the noise probes of all layers and seeds."""
    rng = generator(0, "calibration", "probes")
    vectors = rng.normal(size=(PROBED, shape.depth + 1, shape.width)).astype(np.float32)
    labels = np.arange(PROBED, dtype=np.int64) % 2
    settings = Probing(epochs=2, first_epoch=0)
    train = partial(train_probes, vectors, {"noise": Target(labels, 2)}, settings)
    return _timed(time.process_time, train) / 2


def _timed(clock: Clock, work: Callable[[], Any]) -> float:
    began = clock()
    work()
    return clock() - began


TELL: dict[str, Callable[..., None]] = {
    "training": tell_cost,
    "methods": tell_cost_of_methods,
    "halves": tell_cost_of_halves,
    "repair": tell_cost_of_repair,
}
"""Functions that report the cost of work, by the kind of work given to `announce`."""
