"""Runs whose weights are tiny random models: their folder is real, only loading is not."""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification

from memloc.data.encode import random_batches
from memloc.data.task import Examples, NoisyLabels, Task
from memloc.engine.loop import schedule
from memloc.model.load import Classifier
from memloc.model.predict import to_batch
from memloc.protocol import RunSettings, preset
from memloc.run.folder import (
    Accuracies,
    Run,
    RunRecord,
    TaskRecord,
    begin,
)
from memloc.seeds import generator
from support import WIDTH, WORDS, make_config, make_tokenizer

DEPTH, CLASSES = 3, 3


def make_classifier(family="bert", seed=0, dropout=0.0, depth=DEPTH):
    """Random, with weights large enough that a wrong one would show."""
    tokenizer = make_tokenizer(family)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    config = make_config(family, depth, dropout, tokenizer)
    config.num_labels, config.pad_token_id = CLASSES, tokenizer.pad_token_id
    model = AutoModelForSequenceClassification.from_config(config).eval()
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=rng)
            parameter.copy_(0.3 * noise if parameter.dim() > 1 else parameter + 0.1 * noise)
    return Classifier(family, model, tokenizer)


def make_data(n=24, n_noisy=5, seed=0):
    """Texts of one to nine words; the labels are random."""
    rng = np.random.default_rng(seed)
    texts = tuple((" ".join(rng.choice(WORDS, rng.integers(1, 10))),) for _ in range(n))
    original = rng.integers(0, CLASSES, n)
    is_noisy = np.isin(np.arange(n), rng.choice(n, n_noisy, replace=False))
    assigned = np.where(is_noisy, (original + 1) % CLASSES, original)
    return Examples(texts, original), NoisyLabels(original, assigned, is_noisy)


@dataclass(frozen=True)
class StandIn(Run):
    """A run whose weights are made by functions."""

    loaders: Mapping[str, Callable[[], Classifier]] = field(default_factory=dict)

    def has(self, weights: str) -> bool:
        return weights in self.loaders

    def load(self, weights: str) -> Classifier:
        self.require(weights)
        return self.loaders[weights]()


def make_run(home, data=None, *, loaders=None, depth=DEPTH, seed=1, changes=None):
    """A run in a folder of its own below `home`; it memorised all its labels."""
    examples, noisy = data or make_data()
    names = tuple(f"label {i}" for i in range(CLASSES))
    task = Task("tiny", "words", names, examples, examples, examples, "made up", noisy)
    run = begin(Path(tempfile.mkdtemp(dir=home)), task, make_record(task, seed, depth))
    settings = run.settings.replace(changes or {})
    run = run.note(final=Accuracies(noisy=1, clean=1, training=1), settings=settings)
    return StandIn(run.folder, run.record, "cpu", loaders or {})


def make_record(task, seed=1, depth=DEPTH, model="random", **facts):
    """What `memloc train` writes down of a run before it starts."""
    usual = {"weights_hash": f"hash of {model}", "width": WIDTH, "settings": DEMO}
    return RunRecord(
        model=model,
        depth=depth,
        seed=seed,
        task=TaskRecord.of(task),
        **(usual | facts),
    )


DEMO: RunSettings = preset("demo").for_run()


def random_run(
    home, family="bert", *, weights=("memorised", "frozen"), data=None, dropout=0.0, **more
):
    """Each set of weights is another random model of the family."""

    def loader(seed):
        return lambda: make_classifier(family, seed, dropout)

    loaders = {name: loader(seed) for seed, name in enumerate(weights, 1)}
    return make_run(home, data, loaders=loaders, **more)


def plainly_retrained(setup, encoded, window, rows):
    """Logits after retraining a window the published way: every batch from its tokens on."""
    stack, settings = setup.stack, setup.settings
    with torch.no_grad():
        for i in window:
            for p, before in zip(stack.blocks[i].parameters(), setup.pretrained[i], strict=True):
                p.copy_(before)
    named = dict(stack.model.named_parameters())
    learning = [named[n] for n in setup.after]
    learning += [p for i in window for p in stack.blocks[i].parameters()]
    optimiser = torch.optim.AdamW(learning, weight_decay=settings.weight_decay)
    done, total = 0, settings.epochs * -(-len(setup.train) // settings.batch_size)
    for epoch in range(1, settings.epochs + 1):
        rng = generator(setup.seed, "order", "first", epoch)
        for picked in random_batches(len(setup.train), settings.batch_size, rng):
            stack.model.zero_grad()
            batch = setup.train[picked]
            logits = stack.logits(to_batch(encoded, batch, stack.device))
            torch.nn.functional.cross_entropy(logits, setup.labels[batch]).backward()
            everything = settings.clip_over == "all"
            clipped = stack.model.parameters() if everything else learning
            torch.nn.utils.clip_grad_norm_(clipped, settings.clip)
            for group in optimiser.param_groups:
                group["lr"] = settings.learning_rate * schedule(done, total, settings.warmup)
            optimiser.step()
            done += 1
    with torch.no_grad():
        return stack.logits(to_batch(encoded, rows, stack.device))


def one_at_a_time(run, weights, objective="loss"):
    """Mean gradient of noisy and of clean examples: for every parameter of every block."""
    loaded = run.load(weights)
    encoded, model = run.encode(loaded), loaded.model
    rng = generator(run.seed, "gradients clean")
    clean = rng.choice(run.clean_rows, len(run.noisy_rows), replace=False)
    inside = [list(block.parameters()) for block in loaded.stack.blocks]
    found = []
    for rows in (run.noisy_rows, clean):
        model.zero_grad()
        for row in rows:
            ids = torch.from_numpy(encoded.batch(np.array([row]))[0])
            # A text alone, so that no padding misleads the model's own readout.
            logits = loaded.stack.logits(
                {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
            )[0]
            label = run.noisy.assigned[row]
            value = logits[label] if objective == "logit" else logits.log_softmax(0)[label]
            (value / len(rows)).backward()
        found.append([[p.grad.clone() for p in block] for block in inside])
    return found
