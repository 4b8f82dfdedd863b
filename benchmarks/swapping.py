"""Layer swapping, all windows: one sweep beside one evaluation of a mixed model a window."""

import numpy as np
import torch

from benchmarks.harness import Measured, matmul_peak, middle, side_by_side
from benchmarks.samples import DEPTH, bert, questions
from memloc.arrays import IntArray
from memloc.data.encode import Encoded
from memloc.methods.mixtures import Mixtures, Outcome
from memloc.methods.swapping import window_subsets
from memloc.model.device import suitable_threads
from memloc.model.predict import to_batch
from memloc.model.stack import Stack
from memloc.stats.windows import windows

BATCH_SIZE = 8


def measure(hidden: int, examples: int, repeats: int) -> Measured:
    """Return the seconds of both ways for every example under every window, and differing
    predictions.
    """
    encoded, _ = questions(examples)
    final, reference = _model(hidden, seed=1), _model(hidden, seed=2)
    with suitable_threads(hidden) as threads:
        mine, plain = side_by_side(
            lambda: _memloc(final, reference, encoded),
            lambda: _published(final, reference, encoded),
            repeats,
        )
        peak = matmul_peak(threads)
    seconds = middle([m[0] for m in mine])
    forwards = _sweep_forwards(DEPTH)
    # Two operations a weight and token.
    work = 2 * int(encoded.lengths.sum()) * forwards * 12 * hidden**2
    return Measured(
        stage="swapping",
        hidden=hidden,
        ratio=middle([p[0] / m[0] for m, p in zip(mine, plain, strict=True)]),
        seconds=seconds,
        baseline_seconds=middle([p[0] for p in plain]),
        baseline="one state-dict load and one evaluation a window, batches of 8 in data order",
        difference=float((mine[0][2] != plain[0][2]).sum()),
        peak_mb=max(m[1] for m in mine),
        baseline_peak_mb=max(p[1] for p in plain),
        threads=threads,
        details={
            "examples": examples,
            "block_forwards": forwards,
            "baseline_block_forwards": DEPTH * len(windows(DEPTH)),
            "share_of_matmul_peak": work / seconds / peak,
            "predictions": mine[0][2].size,
            "difference_is": "number of predictions (examples × windows) that differ",
        },
    )


def _sweep_forwards(depth: int) -> int:
    """Blocks applied to an example: one a layer for the unchanged model, one a growing window,
    and one a window that has ended.
    """
    return sum(1 + (layer + 1) + layer * (layer + 1) // 2 for layer in range(depth))


def _model(hidden: int, seed: int) -> Stack:
    model = bert(hidden, seed).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Far enough from each other that mixtures predict different classes.
            if parameter.dim() > 1:
                parameter.mul_(4)
    return Stack(model)


def _memloc(final: Stack, reference: Stack, encoded: Encoded) -> IntArray:
    predicted = np.zeros((len(encoded), len(windows(final.depth))), dtype=np.int64)
    predictions = Outcome(("class",), lambda logits, _: logits.argmax(-1)[None].float())
    mixtures = Mixtures(final, reference, outcome=predictions)
    for rows in mixtures.batches(encoded, np.arange(len(encoded))):
        found = mixtures.values(encoded, rows, rows, window_subsets(final.depth))
        predicted[rows] = found[0].numpy()
    return predicted


def _published(final: Stack, reference: Stack, encoded: Encoded) -> IntArray:
    columns = []
    own = {name: value.clone() for name, value in final.model.state_dict().items()}
    other = reference.model.state_dict()
    inside = [_names(final, layer) for layer in range(final.depth)]
    for window in windows(final.depth):
        lent = {name: other[name] for layer in window for name in inside[layer]}
        final.model.load_state_dict(own | lent)
        columns.append(_evaluate(final, encoded))
    final.model.load_state_dict(own)
    return np.stack(columns, axis=1)


@torch.no_grad()
def _evaluate(stack: Stack, encoded: Encoded) -> IntArray:
    predicted = []
    for start in range(0, len(encoded), BATCH_SIZE):
        rows = np.arange(start, min(start + BATCH_SIZE, len(encoded)))
        predicted.append(stack.logits(to_batch(encoded, rows, stack.device)).argmax(-1).numpy())
    return np.concatenate(predicted)


def _names(stack: Stack, layer: int) -> list[str]:
    """Return the names of a block's tensors in the model's state dict."""
    (path,) = (n for n, m in stack.model.named_modules() if m is stack.blocks[layer])
    return [f"{path}.{name}" for name in stack.blocks[layer].state_dict()]
