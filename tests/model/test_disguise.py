"""Re-parametrised layers: other weights, the same function, in every family."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fixtures.mixtures import make_pair, make_texts, plain_logits, randomised
from fixtures.models import PAPER_FAMILIES
from fixtures.runs import make_run, random_run
from memloc.data.task import NoisyLabels
from memloc.errors import ModelError
from memloc.methods.shares import Shares
from memloc.methods.swapping import Swapping
from memloc.methods.trivial import WeightDistance
from memloc.model.disguise import disguise
from memloc.model.load import Classifier
from memloc.model.predict import predict
from memloc.model.stack import Stack
from memloc.seeds import generator
from memloc.stats.planted import planted_mass


@pytest.mark.parametrize("family", PAPER_FAMILIES)
def test_a_disguise_changes_the_weights_of_its_layers_and_no_logit(family):
    model, _ = make_pair(family)
    texts = make_texts(model)
    other = copy.deepcopy(model)
    disguise(Stack(other), [0, 2], generator(1, "test"))
    before, after = plain_logits(model, texts), plain_logits(other, texts)
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)
    for layer, (one, two) in enumerate(zip(Stack(model).blocks, Stack(other).blocks, strict=True)):
        moved = {
            n
            for (n, a), b in zip(one.named_parameters(), two.parameters(), strict=True)
            if not torch.equal(a, b)
        }
        matrices = {f"{n}.weight" for n, m in one.named_modules() if isinstance(m, nn.Linear)}
        # An MLP and the values with their projection: four matrices, whatever they are called.
        assert len(moved & matrices) == (4 if layer in {0, 2} else 0)


@pytest.mark.parametrize("family", PAPER_FAMILIES)
def test_methods_that_use_functions_cannot_see_a_disguise(family, tmp_path):
    plain = random_run(tmp_path, family, weights=("final", "reference"))
    final, reference = (plain.load(name) for name in ("final", "reference"))
    for seed, each in enumerate((final, reference)):
        randomised(each.model, seed)
    near = copy.deepcopy(final.model)  # differs from the final model in its second layer
    Stack(near).blocks[1].load_state_dict(reference.stack.blocks[1].state_dict())
    hidden = copy.deepcopy(near)
    disguise(Stack(hidden), [0, 2], generator(1, "test"))
    texts = plain.encode(final)
    said = [predict(Stack(model), texts).argmax(1) for model in (near, final.model)]
    train = replace(plain.task.train, labels=said[0])
    data = train, NoisyLabels(*said, said[0] != said[1])

    def run_with(model):
        loaders = {
            "final": lambda: Classifier("final", final.model, final.tokenizer),
            "reference": lambda: Classifier("reference", model, final.tokenizer),
        }
        return make_run(tmp_path, data, loaders=loaders)

    seen, unseen = run_with(near), run_with(hidden)
    for method in (Shares(), Swapping(normalise=False)):
        pair = [method.found(each).weights for each in (seen, unseen)]
        np.testing.assert_allclose(pair[1], pair[0], atol=1e-9)  # counts of labels
    mass = [planted_mass(WeightDistance().found(each).weights, [1]) for each in (seen, unseen)]
    assert mass[0] == 1
    assert mass[1] < 0.5


def test_a_block_that_memloc_cannot_take_apart_is_refused():
    model, _ = make_pair("opt")
    block = Stack(model).blocks[0]
    block.fc1 = nn.Sequential(block.fc1, nn.LayerNorm(block.fc1.out_features))
    with torch.no_grad():
        block.fc1[1].weight.copy_(torch.linspace(0.1, 2, block.fc2.in_features))
    with pytest.raises(ModelError, match="Layer 1 cannot be re-parametrised"):
        disguise(Stack(model), [0], generator(1, "test"))
