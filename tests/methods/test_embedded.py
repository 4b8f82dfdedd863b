"""Exactness on the embedded models: their real weights, twelve layers, real texts."""

import copy

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fixtures.mixtures import logits_of, mixed, plain_logits
from memloc.data.encode import encode
from memloc.data.sources import load_task
from memloc.methods.forgetting import LabelledTexts, measure
from memloc.methods.gradients import Gradients
from memloc.methods.mixtures import Mixtures, Outcome
from memloc.methods.swapping import window_subsets
from memloc.model.known import TINY
from memloc.model.load import load_model
from memloc.model.predict import to_batch
from memloc.model.stack import Stack
from memloc.stats.windows import windows

ROWS = np.arange(6)
WINDOWS = [range(1), range(5, 7), range(3, 10), range(11, 12), range(12)]


@pytest.fixture(scope="module", params=TINY)
def pair(request):
    """An embedded model, one whose every weight is a little different, and texts of two parts."""
    task = load_task("tiny-entailment")
    final = load_model(request.param, task.label_names, seed=1)
    other = copy.deepcopy(final.model)
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in other.parameters():
            noise = torch.randn(parameter.shape, generator=rng)
            parameter.add_(noise, alpha=0.3 * float(parameter.std().nan_to_num(1.0)) + 0.01)
    texts = encode(task.train.take(ROWS).parts, final.tokenizer, final.separator, 128)
    return final.model, other, texts


def test_swapping_gives_the_logits_of_mixed_models(pair):
    final, reference, texts = pair
    both = Outcome(("no", "yes"), lambda logits, _labels: logits.movedim(-1, 0))
    mixtures = Mixtures(Stack(final), Stack(reference), outcome=both)
    found = logits_of(mixtures, texts, [*window_subsets(12), 0], ROWS)
    for window in WINDOWS:
        expected = plain_logits(mixed(final, reference, window), texts)
        here = found[:, windows(12).index(window)]
        assert (here - expected).abs().max() <= 1e-4
        assert torch.equal(here.argmax(-1), expected.argmax(-1))
    assert (found[:, -1] - plain_logits(final, texts)).abs().max() <= 1e-4


def test_batched_gradients_are_sums_over_single_examples(pair):
    final, _, texts = pair
    labels = torch.tensor([0, 1, 1, 0, 1, 0])
    data = LabelledTexts(texts, labels.numpy(), Gradients())
    noisy, clean = ROWS[:3], ROWS[3:]
    norms, _ = measure(Stack(final), data, [(noisy, clean)])
    model = copy.deepcopy(final)
    stack = Stack(model)
    means = []
    for rows in (noisy, clean):
        model.zero_grad()
        for row in rows:
            loss = cross_entropy(
                stack.logits(to_batch(texts, np.array([row]), stack.device)), labels[[row]]
            )
            (-loss / len(rows)).backward()
        means.append([[p.grad.clone() for p in block.parameters()] for block in stack.blocks])
    blocks = zip(*means, strict=True)
    difference = [[a - b for a, b in zip(*both, strict=True)] for both in blocks]
    by_name = {"L1 noisy": means[0], "L1 clean": means[1], "L1 difference": difference}
    for name, values in by_name.items():
        expected = [sum(float(g.abs().sum()) for g in block) for block in values]
        assert norms[name] == pytest.approx(expected, rel=1e-3), name
