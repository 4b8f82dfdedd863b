"""Measurements behind other papers' methods: patched and ablated states, early readouts,
gradients.
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from memloc.arrays import FloatArray, IntArray
from memloc.data.encode import Encoded
from memloc.engine.objectives import gradients_of_blocks
from memloc.model.load import Classifier
from memloc.model.predict import evaluating, length_batches, to_batch
from memloc.model.stack import Prepared, Stack
from memloc.run.folder import Run

LastStates = Callable[[Stack, Prepared], Iterator[Tensor]]
"""Function that yields the last states of several ways to run a batch, for the head to read."""


def patched(run: Run) -> FloatArray:
    """Return the mean log-probability when the reference's state replaces that after 0, 1, … L
    layers.
    """
    reference = run.load("reference").stack

    def last_states(stack: Stack, prepared: Prepared) -> Iterator[Tensor]:
        with evaluating(reference.model):
            patches = list(_states(reference, prepared))
        for index, patch in enumerate(patches):
            yield stack.run_all(prepared, index, patch)

    return _log_probabilities(run, run.load("final"), last_states)


def ablated(run: Run) -> FloatArray:
    """Return the mean log-probability of the final model, then without each of its layers.

    A layer's update of the state is replaced by its mean over all tokens of the clean examples.
    """
    final = run.load("final")
    means = _mean_updates(final.stack, run.encode(final), run.clean_rows)

    def last_states(stack: Stack, prepared: Prepared) -> Iterator[Tensor]:
        states = list(_states(stack, prepared))
        yield states[-1]
        for index in range(stack.depth):
            yield stack.run_all(prepared, index + 1, states[index] + means[index])

    return _log_probabilities(run, final, last_states)


def read_early(run: Run) -> FloatArray:
    """Return the mean log-probability when the head reads the state after 0, 1, … L layers."""
    return _log_probabilities(run, run.load("final"), _states)


def fisher_distances(run: Run) -> FloatArray:
    """Return, for each layer, the sum of squared distances times squared gradients of single
    examples.
    """
    final = run.load("final")
    stack = final.stack
    encoded = run.encode(final)
    others = run.load("reference").stack.blocks
    moved = [_moved(one, other) for one, other in zip(stack.blocks, others, strict=True)]
    fisher = torch.zeros(sum(map(len, moved)), device=stack.device)
    with gradients_of_blocks(stack) as summed, torch.enable_grad():
        for row in run.noisy_rows:
            logits = stack.logits(to_batch(encoded, np.array([row]), stack.device)).float()
            fisher += summed([logits.log_softmax(1)[0, int(run.noisy.assigned[row])]]) ** 2
    weighted = torch.split(fisher * torch.cat(moved) ** 2, [len(part) for part in moved])
    return np.array([float(part.sum()) for part in weighted]) / len(run.noisy_rows)


def _moved(block: torch.nn.Module, other: torch.nn.Module) -> Tensor:
    pairs = zip(block.parameters(), other.parameters(), strict=True)
    return torch.cat([(one - two).detach().flatten() for one, two in pairs])


def _log_probabilities(run: Run, final: Classifier, last_states: LastStates) -> FloatArray:
    """Return the mean log-probability of the noisy examples' assigned labels, for each last
    state.
    """
    stack = final.stack
    encoded = run.encode(final)
    rows = run.noisy_rows
    sums: FloatArray | float = 0.0
    with evaluating(stack.model):
        for picked in length_batches(stack, encoded.lengths[rows]):
            prepared = stack.prepare(to_batch(encoded, rows[picked], stack.device))
            labels = torch.from_numpy(run.noisy.assigned[rows[picked]]).to(stack.device)
            sums = sums + np.array(
                [
                    _log_probability(stack, state, prepared, labels)
                    for state in last_states(stack, prepared)
                ]
            )
    return np.asarray(sums / len(rows))


def _log_probability(stack: Stack, state: Tensor, prepared: Prepared, labels: Tensor) -> float:
    logits = stack.finish(stack.read(state, prepared), prepared.batch).float()
    return float(logits.log_softmax(1).gather(1, labels[:, None]).sum())


def _states(stack: Stack, prepared: Prepared) -> Iterator[Tensor]:
    """Yield the state before each block and after the last one."""
    state = prepared.state
    yield state
    for index in range(stack.depth):
        state = stack.run(index, state, prepared.calls[index])
        yield state


def _mean_updates(stack: Stack, encoded: Encoded, rows: IntArray) -> Tensor:
    """Return the mean update of the state by each layer, over all tokens of these texts."""
    total = torch.zeros(stack.depth, stack.width, device=stack.device)
    tokens = 0
    with evaluating(stack.model):
        for picked in length_batches(stack, encoded.lengths[rows]):
            prepared = stack.prepare(to_batch(encoded, rows[picked], stack.device))
            is_text = prepared.batch["attention_mask"].bool()
            states = torch.stack(list(_states(stack, prepared)))
            total += states.diff(dim=0)[:, is_text].sum(1)
            tokens += int(is_text.sum())
    return total / tokens
