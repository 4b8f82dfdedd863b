"""Subjects made of tiny random models, for the methods that look at gradients and trainings."""

import numpy as np
import torch
from memloc.localise.base import Subject
from transformers import AutoModelForSequenceClassification

from memloc.data.encode import random_batches
from memloc.models.load import Classifier
from memloc.protocol import preset
from memloc.records import Examples, NoisyLabels
from memloc.seeds import generator
from memloc.training.loop import schedule
from memloc.training.predict import to_batch
from support import WORDS, make_config, make_tokenizer

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
    return Classifier(family, model, tokenizer, "|", ())


def make_data(n=24, n_noisy=5, seed=0):
    """Texts of one to nine words; the labels are random."""
    rng = np.random.default_rng(seed)
    texts = tuple((" ".join(rng.choice(WORDS, rng.integers(1, 10))),) for _ in range(n))
    original = rng.integers(0, CLASSES, n)
    is_noisy = np.isin(np.arange(n), rng.choice(n, n_noisy, replace=False))
    assigned = np.where(is_noisy, (original + 1) % CLASSES, original)
    return Examples(texts, original), NoisyLabels(original, assigned, is_noisy)


def make_subject(work, family="bert", *, weights=("memorised", "frozen"), data=None, **changes):
    """Each set of weights is another random model of the family; `a__b` is the setting `a.b`."""
    dropout = changes.pop("dropout", 0.0)
    examples, noisy = data or make_data()

    def loader(seed):
        return lambda: make_classifier(family, seed, dropout)

    return Subject(
        name="tiny",
        examples=examples,
        noisy=noisy,
        protocol=preset("demo").replace({k.replace("__", "."): v for k, v in changes.items()}),
        seed=1,
        loaders={name: loader(seed) for seed, name in enumerate(weights, 1)},
        work=work,
    )


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
