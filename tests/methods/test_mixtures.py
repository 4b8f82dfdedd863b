"""Every mixture's logits are those of a model whose weights were really swapped."""

import copy

import numpy as np
import pytest
import torch

from memloc.data.encode import encode
from memloc.methods.mixtures import Mixtures
from memloc.models.stack import Stack
from memloc.training.predict import predict
from run_support import make_classifier, make_data
from support import PAPER_FAMILIES, SPECIAL

DEPTH = 4


def really_swapped(final, reference, layers):
    model = copy.deepcopy(final.model)
    stack = Stack(model)
    for layer in layers:
        stack.blocks[layer].load_state_dict(reference.stack.blocks[layer].state_dict())
    return stack


@pytest.mark.parametrize("family", [*PAPER_FAMILIES, *SPECIAL])
def test_mixtures_are_those_of_really_swapped_weights(family):
    final, reference = (make_classifier(family, seed, depth=DEPTH) for seed in (1, 2))
    examples, _ = make_data(n=12)
    encoded = encode(examples.parts, final.tokenizer, final.separator)
    rows = np.array([7, 2, 3, 11, 0])
    units = [range(0, 1), range(1, 2), range(2, 4)]
    mixtures = Mixtures(final.stack, reference.stack, units)
    found = np.empty((len(rows), 2 ** len(units), final.model.config.num_labels))
    by_reference = np.empty_like(found)
    for places in mixtures.batches(encoded, rows):
        mixed = mixtures.logits(encoded, rows, places)
        found[places], by_reference[places] = mixed.final.numpy(), mixed.reference.numpy()
    for subset in range(2 ** len(units)):
        layers = [layer for u, unit in enumerate(units) if subset >> u & 1 for layer in unit]
        plain = predict(really_swapped(final, reference, layers), encoded)[rows]
        np.testing.assert_allclose(found[:, subset], plain, atol=1e-5)
        others = sorted(set(range(DEPTH)) - set(layers))
        # The final model's embeddings go into both heads.
        plain = predict(_with_embeddings(really_swapped(reference, final, others), final), encoded)
        np.testing.assert_allclose(by_reference[:, subset], plain[rows], atol=1e-5)


def _with_embeddings(stack, final):
    """The other model's stack, given what the final model's embeddings make of a text."""
    from memloc.models.parts import find_parts

    names = find_parts(final.stack).embeddings
    own, given = dict(stack.model.named_parameters()), dict(final.model.named_parameters())
    with torch.no_grad():
        for name in names:
            own[name].copy_(given[name])
    return stack
