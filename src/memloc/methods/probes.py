"""Trains many small classifiers at once: on every layer, from every probe seed.

Everything random in a probe (split, order, dropout, first weights) comes from its seed, so the
probes of one seed differ in their layer alone, and none depends on what else is trained.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from memloc.arrays import BoolArray, FloatArray, IntArray
from memloc.errors import DataError, SettingsError
from memloc.model.device import pick_device
from memloc.progress import track
from memloc.protocol import ProbeSettings
from memloc.seeds import generator, number
from memloc.stats.windows import layers_name

ALIKE = 0.01
"""Share of its length by which vectors must differ from their mean to carry signal for a probe."""
ROWS_AT_ONCE = 64
"""Number of rows per batch for predictions, which keeps memory small for any data."""


@dataclass(frozen=True)
class Target:
    """Labels that probes predict, and how the probes are scored."""

    labels: IntArray
    """(examples,), or (seeds, examples) if each probe seed has its own labels."""
    n_classes: int
    class_weights: tuple[float, ...] | None = None
    """Weights of the classes in the loss; None for equal weights."""
    f1_of: int | None = None
    """Class whose F1 is the score; None for macro F1."""


@dataclass(frozen=True)
class Probes:
    """Predictions of one target's probes for their test examples, each probe at its best epoch.

    The best epoch is the first with the best F1 on validation examples; if all have 0, the last.
    """

    rows: IntArray
    """(seeds, test examples): rows of the examples."""
    truth: IntArray
    """(seeds, test examples): labels of the examples."""
    predicted: IntArray
    """(layers, seeds, test examples): predicted labels."""
    f1: FloatArray
    """(layers, seeds): F1 on the test examples."""
    best_epoch: IntArray
    """(layers, seeds): best epoch, counted from 1."""


def train_probes(
    vectors: NDArray[np.float32],
    targets: Mapping[str, Target],
    settings: ProbeSettings,
    device: str = "cpu",
) -> dict[str, Probes]:
    """Train probes of every target, layer and seed on `vectors` (examples, layers, width).

    Args:
        vectors: Vectors of all examples and layers.
        targets: Labels to predict, by name.
        settings: Settings of the probes.
        device: Device to train on.
    """
    _check(vectors, settings)
    entering = standardised(vectors) if settings.standardise else vectors
    given = torch.from_numpy(entering).to(pick_device(device))
    splits = [split_rows(len(vectors), settings.split, seed) for seed in settings.seeds]
    train, validation, test = (np.stack(rows) for rows in zip(*splits, strict=True))
    learners = {name: _Learner(target, given, settings) for name, target in targets.items()}
    with track("probing", settings.epochs) as advance:
        for epoch in range(1, settings.epochs + 1):
            for rows, inputs in _batches(given, train, epoch, settings):
                for learner in learners.values():
                    learner.update(rows, inputs)
            if epoch > settings.first_epoch:
                for learner in learners.values():
                    learner.validate(validation, epoch)
            advance(1)
    return {name: learner.test(test, settings.epochs) for name, learner in learners.items()}


def standardised(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return vectors in which each number has mean 0 and deviation 1 over examples; constants
    become 0.
    """
    scaled = np.zeros_like(vectors)
    for layer in range(vectors.shape[1]):
        # A number may be a million times as large as its deviation.
        exact = vectors[:, layer].astype(np.float64)
        deviation = exact.std(0)
        varies = deviation > 1e-6 * np.abs(exact).max(0)
        scaled[:, layer] = np.where(varies, exact - exact.mean(0), 0) / np.where(
            varies, deviation, 1
        )
    return scaled


def alike_remarks(vectors: NDArray[np.float32], name: str) -> list[str]:
    """Return a remark if a probe can hardly tell the vectors of some layers (0..L) apart.

    `name` is the method that uses the probes.
    """
    layers = [layer for layer in range(1, vectors.shape[1]) if _are_alike(vectors[:, layer])]
    if not layers:
        return []
    return [
        f"Vectors of different examples differ by less than {ALIKE:.0%} of their length after "
        f"{layers_name(layers)}, so probes read little there: try `{name}.standardise=true`."
    ]


def _are_alike(vectors: NDArray[np.float32]) -> bool:
    mean = vectors.mean(0, dtype=np.float64)
    spread = np.sqrt(np.square(vectors - mean).sum(1).mean())
    return bool(spread < ALIKE * np.linalg.norm(mean))


def split_rows(n: int, shares: tuple[float, float, float], seed: int) -> list[IntArray]:
    """Return random rows for training, validation and test, by `shares` of `n`, at least one
    each.
    """
    if n < 3:
        raise DataError(f"Probes need examples to train, validate and test, found {n}.")
    order = generator(seed, "probe", "split").permutation(n)
    train = min(max(1, round(shares[0] * n)), n - 2)
    validation = min(max(1, round(shares[1] * n)), n - train - 1)
    return np.split(order, [train, train + validation])


def probe_order(n: int, seed: int, epoch: int) -> IntArray:
    """Return the random order of the `n` training examples in an epoch."""
    return generator(seed, "probe", "order", epoch).permutation(n)


def epoch_dropout(n: int, width: int, rate: float, seed: int, epoch: int) -> NDArray[np.float32]:
    """Return factors (n, width) for the inputs of an epoch: 0 where dropped, else 1 / (1 - rate).

    Args:
        n: Number of training examples, in the epoch's order.
        width: Width of the vectors.
        rate: Share of numbers that are dropped.
        seed: Seed of the probe.
        epoch: Number of the epoch.
    """
    draws = generator(seed, "probe", "dropout", epoch).random((n, width), dtype=np.float32)
    return (draws >= rate) * np.float32(1 / (1 - rate))


def shuffled(labels: IntArray, seeds: tuple[int, ...]) -> IntArray:
    """Return the labels shuffled for each probe seed, (seeds, examples), for F1 by chance."""
    return np.stack([generator(s, "probe", "shuffled").permutation(labels) for s in seeds])


def f1_scores(truth: IntArray, predicted: IntArray, target: Target) -> FloatArray:
    """Return F1 over the last axis; classes neither true nor predicted are left out of the mean.

    F1 of a class is 2 * hits / (examples of it + predictions of it), 0 where there are none.
    """
    total, seen = np.zeros((2, *predicted.shape[:-1]))
    for label in range(target.n_classes) if target.f1_of is None else [target.f1_of]:
        is_it, is_predicted = truth == label, predicted == label
        count = is_it.sum(-1) + is_predicted.sum(-1)
        total += 2 * (is_it & is_predicted).sum(-1) / np.maximum(1, count)
        seen += count > 0
    return np.asarray(total / np.maximum(1, seen))


def drawn_f1(probes: Probes, counts: NDArray[np.floating], classes: Sequence[int]) -> FloatArray:
    """Return F1 (draws, layers, seeds) of test examples that occur `counts` (draws, examples)
    times.

    It is the mean over `classes` that are true or predicted for some example, as in `f1_scores`;
    NaN where there is none.
    """
    n_layers, n_seeds, _ = probes.predicted.shape
    total, seen = np.zeros((2, len(counts), n_layers, n_seeds))
    for seed, rows in enumerate(probes.rows):
        drawn = counts[:, rows]
        predicted = probes.predicted[:, seed].T
        for label in classes:
            is_it, is_predicted = probes.truth[seed] == label, predicted == label
            hits = drawn @ (is_predicted & is_it[:, None])
            count = drawn @ is_predicted + (drawn @ is_it)[:, None]
            total[..., seed] += 2 * hits / np.maximum(1, count)
            seen[..., seed] += count > 0
    return np.asarray(total / np.where(seen > 0, seen, np.nan))


def _batches(
    vectors: Tensor, train: IntArray, epoch: int, settings: ProbeSettings
) -> Iterator[tuple[IntArray, Tensor]]:
    """Yield the rows (seeds, batch) of an epoch's batches with the probes' inputs."""
    n = train.shape[1]
    width = vectors.shape[2]
    rate = settings.dropout
    seeds = settings.seeds
    order = np.stack([probe_order(n, seed, epoch) for seed in seeds])
    rows = np.take_along_axis(train, order, axis=1)
    dropout = np.stack([epoch_dropout(n, width, rate, seed, epoch) for seed in seeds])
    for start in range(0, n, settings.batch_size):
        batch = slice(start, start + settings.batch_size)
        yield rows[:, batch], _inputs(vectors, rows[:, batch], dropout[:, batch])


def _inputs(vectors: Tensor, rows: IntArray, factors: NDArray[np.float32] | None = None) -> Tensor:
    """Return vectors (seeds * layers, examples, width) of `rows` (seeds, examples), times
    factors.
    """
    picked = vectors[torch.from_numpy(rows).to(vectors.device)].transpose(1, 2)
    given = torch.empty(picked.shape, device=vectors.device)
    if factors is None:
        given.copy_(picked)
    else:
        torch.mul(picked, torch.from_numpy(factors).to(vectors.device).unsqueeze(1), out=given)
    return given.flatten(0, 1)


class _Learner:
    """Probes of one target while they learn, with a copy of each at its best epoch so far."""

    def __init__(self, target: Target, vectors: Tensor, settings: ProbeSettings) -> None:
        n, n_layers, width = vectors.shape
        sizes = [width, *[settings.hidden] * settings.hidden_layers, target.n_classes]
        drawn = [[t.to(vectors.device) for t in initial_weights(sizes, s)] for s in settings.seeds]
        weights = [tensors for tensors in drawn for _ in range(n_layers)]
        self.target, self.vectors = target, vectors
        self.labels = np.broadcast_to(target.labels, (len(drawn), n))
        alike = [1.0] * target.n_classes
        self.class_weights = torch.tensor(target.class_weights or alike, device=vectors.device)
        self.networks, self.best = Perceptrons(weights), Perceptrons(weights)
        self.best_f1 = np.zeros((n_layers, len(drawn)))
        self.best_epoch = np.zeros(self.best_f1.shape, dtype=np.int64)
        self.optimiser = torch.optim.AdamW(
            [self.networks.flat],
            lr=settings.learning_rate,
            weight_decay=settings.weight_decay,
            fused=True,
        )

    def update(self, rows: IntArray, inputs: Tensor) -> None:
        """Train on one batch, whose loss is the weighted mean of its cross-entropies."""
        labels = torch.from_numpy(self._labels_of(rows)).to(inputs.device)
        labels = labels.repeat_interleave(self.vectors.shape[1], 0)
        weights = self.class_weights[labels]
        self.networks.differentiate(inputs, labels, weights / weights.sum(1, keepdim=True))
        self.optimiser.step()

    def validate(self, rows: IntArray, epoch: int) -> None:
        """Keep the probes that are better than ever before; the first of equals stays."""
        f1 = f1_scores(self._labels_of(rows), self._predict(self.networks, rows), self.target)
        self._keep(f1 > self.best_f1, epoch)
        self.best_f1 = np.maximum(self.best_f1, f1)

    def test(self, rows: IntArray, last: int) -> Probes:
        """Return the predictions at the best epochs; if no F1 is above 0, at the last epoch."""
        self._keep(self.best_epoch == 0, last)
        truth = self._labels_of(rows)
        predicted = self._predict(self.best, rows)
        f1 = f1_scores(truth, predicted, self.target)
        return Probes(rows, truth, predicted, f1, self.best_epoch)

    def _keep(self, which: BoolArray, epoch: int) -> None:
        """Take the current weights of these probes (layers, seeds) for their best ones so far.

        Networks are ordered by seed, then by layer.
        """
        self.best_epoch[which] = epoch
        flat = torch.from_numpy(which.T.reshape(-1)).to(self.vectors.device)
        self.best.copy_from(self.networks, flat)

    def _labels_of(self, rows: IntArray) -> IntArray:
        return np.take_along_axis(self.labels, rows, axis=1)

    def _predict(self, networks: "Perceptrons", rows: IntArray) -> IntArray:
        pieces = [rows[:, i : i + ROWS_AT_ONCE] for i in range(0, rows.shape[1], ROWS_AT_ONCE)]
        predicted = [
            networks.logits(_inputs(self.vectors, piece)).argmax(-1).cpu() for piece in pieces
        ]
        by_network = torch.cat(predicted, 1).numpy()
        return by_network.reshape(len(rows), -1, rows.shape[1]).transpose(1, 0, 2)


class Perceptrons:
    """Networks of the same sizes, each a chain of linear layers with GELU in between.

    AdamW works number by number, so one optimiser over joined weights trains each network as if it
    were alone. The gradient of such a small network is a few products, and writing it directly into
    the optimiser's memory avoids most of the cost of a general backward pass.
    """

    def __init__(self, networks: Sequence[Sequence[Tensor]]) -> None:
        """`networks`: for each one, weight (out, in) and bias (1, out) of each layer in turn."""
        joined = [torch.stack(tensors) for tensors in zip(*networks, strict=True)]
        self._shapes = [tensor.shape for tensor in joined]
        self.flat = torch.nn.Parameter(torch.cat([tensor.reshape(-1) for tensor in joined]))
        self.flat.grad = torch.zeros_like(self.flat)
        self._weights = self._views(self.flat.data)
        self._gradients = self._views(self.flat.grad)

    @torch.no_grad()
    def logits(self, inputs: Tensor) -> Tensor:
        """Return logits (networks, examples, classes) of inputs (networks, examples, width)."""
        return self._forward(inputs)[-1]

    @torch.no_grad()
    def differentiate(self, inputs: Tensor, labels: Tensor, counts: Tensor) -> None:
        """Write the gradient of each network's loss into `flat.grad`.

        The loss is the sum of the cross-entropies, weighted by `counts`; `counts` and `labels`
        are (networks, examples).
        """
        *before, logits = self._forward(inputs)
        error = torch.softmax(logits, -1)
        error.scatter_add_(-1, labels.unsqueeze(-1), torch.full_like(error[..., :1], -1.0))
        error *= counts.unsqueeze(-1)
        for layer in reversed(range(len(before) + 1)):
            entering = functional.gelu(before[layer - 1]) if layer else inputs
            torch.bmm(error.transpose(1, 2), entering, out=self._gradients[2 * layer])
            torch.sum(error, 1, keepdim=True, out=self._gradients[2 * layer + 1])
            if layer:
                passed = torch.bmm(error, self._weights[2 * layer])
                error = torch.ops.aten.gelu_backward(passed, before[layer - 1])

    @torch.no_grad()
    def copy_from(self, other: "Perceptrons", which: Tensor) -> None:
        """Copy the weights of the networks where `which` is true."""
        for mine, theirs in zip(self._weights, other._weights, strict=True):
            mine[which] = theirs[which]

    def _forward(self, inputs: Tensor) -> list[Tensor]:
        """Return the output of every layer, before GELU."""
        given: list[Tensor] = []
        for weight, bias in zip(self._weights[::2], self._weights[1::2], strict=True):
            entering = functional.gelu(given[-1]) if given else inputs
            given.append(torch.baddbmm(bias, entering, weight.transpose(1, 2)))
        return given

    def _views(self, flat: Tensor) -> list[Tensor]:
        pieces = torch.split_with_sizes(flat, [shape.numel() for shape in self._shapes])
        return [piece.view(shape) for piece, shape in zip(pieces, self._shapes, strict=True)]


def initial_weights(sizes: Sequence[int], seed: int) -> list[Tensor]:
    """Draw weights and biases as `torch.nn.Linear` does, from this seed alone."""
    draw = torch.Generator().manual_seed(number(seed, "probe", "weights"))
    tensors = []
    for entering, leaving in pairwise(sizes):
        for shape in ((leaving, entering), (1, leaving)):
            uniform = torch.rand(shape, generator=draw) * 2 - 1
            tensors.append(uniform / entering**0.5)
    return tensors


def _check(vectors: NDArray[np.float32], settings: ProbeSettings) -> None:
    if settings.epochs <= settings.first_epoch:
        raise SettingsError(
            f"Probes learn for {settings.epochs} epochs, and the best one is sought after number "
            f"{settings.first_epoch} (first_epoch): none is left."
        )
    if not np.isfinite(vectors).all():
        raise DataError("Some vectors are not finite numbers: the model's weights are damaged.")
