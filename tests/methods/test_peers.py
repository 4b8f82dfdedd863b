"""Localisers of other papers beside plain computations."""

import numpy as np
import pytest
import torch

from fixtures.models import PAPER_FAMILIES
from fixtures.runs import DEPTH, random_run
from memloc.methods.blends import Blend
from memloc.methods.effects import patched
from memloc.methods.peers import (
    PEERS,
    ActivationPatching,
    FisherDistance,
    IntegratedGradients,
    LayerMasks,
    LogitLens,
    MeanAblation,
)
from memloc.methods.registry import find_method, method_names
from memloc.model.predict import predict

BOTH = ("final", "reference")


def mean_log_probability(run, weights):
    """Of the noisy examples' assigned labels."""
    model = run.load(weights)
    logits = torch.from_numpy(predict(model.stack, run.encode(model), run.noisy_rows))
    labels = torch.from_numpy(run.noisy.assigned[run.noisy_rows])
    return float(logits.log_softmax(1).gather(1, labels[:, None]).mean())


@pytest.mark.parametrize("family", PAPER_FAMILIES)
def test_patching_all_layers_gives_what_the_reference_says_with_the_final_head(family, tmp_path):
    run = random_run(tmp_path, family, weights=BOTH)
    weights = ActivationPatching().effects(run)
    final, reference = (run.load(name) for name in BOTH)
    # The last state of the reference's blocks, on the final model's embeddings, with its head.
    for block, other in zip(final.stack.blocks, reference.stack.blocks, strict=True):
        block.load_state_dict(other.state_dict())
    before = mean_log_probability(run, "final")
    run.loaders["final"] = lambda: final
    assert weights.sum() == pytest.approx(before - mean_log_probability(run, "final"), abs=1e-4)


@pytest.mark.parametrize("family", ["bert", "gpt_neox"])
def test_integrated_gradients_sum_to_what_all_layers_change(family, tmp_path, monkeypatch):
    run = random_run(tmp_path, family, weights=BOTH)
    monkeypatch.setattr("memloc.methods.blends.POINTS", 200)
    whole = ActivationPatching().effects(run).sum()
    assert IntegratedGradients().effects(run).sum() == pytest.approx(whole, rel=0.01)


def test_the_path_of_one_layer_s_state_gives_what_activation_patching_gives(tmp_path):
    """Completeness: why a path of its own for each layer is not another method."""
    run = random_run(tmp_path, weights=BOTH)
    blend = Blend(run)
    layer, points, found = 1, 400, 0.0
    for prepared, labels in blend.batches:
        ends = []
        for stack_run in blend.blocks[::-1]:
            state = prepared.state
            for index in range(layer + 1):
                state = stack_run(index, state, prepared.calls[index])
            ends.append(state.detach())
        for at in (np.arange(points) + 0.5) / points:
            state = torch.lerp(*ends, at).requires_grad_()
            last = blend.stack.run_all(prepared, layer + 1, state)
            logits = blend.stack.finish(blend.stack.read(last, prepared), prepared.batch)
            said = logits.log_softmax(1).gather(1, labels[:, None]).sum()
            (slope,) = torch.autograd.grad(said, state)
            found += float((slope * (ends[1] - ends[0])).sum()) / points
    effect = patched(run)  # of the reference's state after 0, 1, ... layers
    assert found / len(run.noisy_rows) == pytest.approx(effect[0] - effect[layer + 1], rel=0.01)


def test_masks_need_the_layer_that_differs_and_no_other(tmp_path):
    run = random_run(tmp_path, weights=BOTH)
    final, reference = (run.load(name) for name in BOTH)
    for index in (0, 2):
        reference.stack.blocks[index].load_state_dict(final.stack.blocks[index].state_dict())
    run.loaders.update(final=lambda: final, reference=lambda: reference)
    head = [m for m in final.model.modules() if isinstance(m, torch.nn.Linear)][-1]
    with torch.no_grad():  # layer 2 makes a difference of some nats
        head.weight.mul_(200)
        ours = predict(final.stack, run.encode(final), run.noisy_rows)
        final.stack.blocks[1], mine = reference.stack.blocks[1], final.stack.blocks[1]
        others = predict(final.stack, run.encode(final), run.noisy_rows)
        final.stack.blocks[1] = mine
    run.noisy.assigned[run.noisy_rows] = (ours - others).argmax(1)
    weights = LayerMasks().effects(run)
    assert weights[1] > 0.9
    assert weights[[0, 2]].max() < 0.2


def test_a_lens_sees_nothing_in_a_layer_that_does_nothing(tmp_path):
    run = random_run(tmp_path, "opt", weights=("final",))
    final = run.load("final")
    with torch.no_grad():
        block = final.stack.blocks[1]
        for module in (block.self_attn.out_proj, block.fc2):
            module.weight.zero_()
            module.bias.zero_()
    run.loaders["final"] = lambda: final
    rise = LogitLens().effects(run)
    assert rise[1] == pytest.approx(0, abs=1e-6)
    assert np.abs(rise[[0, 2]]).min() > 1e-6


def test_the_mean_ablation_of_a_layer_that_adds_a_constant_changes_nothing(tmp_path):
    run = random_run(tmp_path, "opt", weights=("final",))
    final = run.load("final")
    with torch.no_grad():
        block = final.stack.blocks[1]
        for module in (block.self_attn.out_proj, block.fc2):
            module.weight.zero_()
            module.bias.fill_(0.3)
    run.loaders["final"] = lambda: final
    weights = MeanAblation().effects(run)
    assert weights[1] == pytest.approx(0, abs=1e-5)
    assert np.abs(weights[[0, 2]]).min() > 1e-5


def test_a_fisher_distance_is_zero_where_weights_are_equal(tmp_path):
    run = random_run(tmp_path, weights=BOTH)
    final, reference = (run.load(name) for name in BOTH)
    reference.stack.blocks[2].load_state_dict(final.stack.blocks[2].state_dict())
    run.loaders.update(final=lambda: final, reference=lambda: reference)
    weights = FisherDistance().effects(run)
    assert weights[2] == 0
    assert (weights[:2] > 0).all()


@pytest.mark.parametrize("kind", PEERS, ids=lambda kind: kind.name)
def test_peers_are_methods_that_run_only_where_they_are_named(kind, tmp_path):
    assert find_method(kind.name) is kind
    assert kind.name not in method_names("localiser")
    assert len(kind().found(random_run(tmp_path, weights=BOTH)).weights) == DEPTH
