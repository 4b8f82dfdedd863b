"""Trains many small classifiers at once: on every layer, from every probe seed.

All that is random in a probe (split, order, dropout, first weights) comes from its seed, so the
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
"""Vectors that differ from their mean by less than this share of its length are hardly read."""
ROWS_AT_ONCE = 64
"""Number of rows per batch when nothing is learnt, which keeps memory small for any data."""


@dataclass(frozen=True)
class Target:
    """Labels that probes predict, and how the probes are scored."""

    labels: IntArray
    """(examples,), or (seeds, examples) where each probe seed has its own."""
    n_classes: int
    class_weights: tuple[float, ...] | None = None
    """In the loss; `None`: all alike."""
    f1_of: int | None = None
    """The class whose F1 counts; `None`: macro F1."""


@dataclass(frozen=True)
class Probes:
    """The answers of one target's probes to their test examples, each at its best epoch.

    That is the first of those with the best F1 on validation examples; where all have 0, the last.
    """

    rows: IntArray
    """(seeds, test examples): which examples they are."""
    truth: IntArray
    """(seeds, test examples): their labels."""
    predicted: IntArray
    """(layers, seeds, test examples)."""
    f1: FloatArray
    """(layers, seeds)."""
    best_epoch: IntArray
    """(layers, seeds), counted from 1."""


def train_probes(
    vectors: NDArray[np.float32],
    targets: Mapping[str, Target],
    settings: ProbeSettings,
    device: str = "cpu",
) -> dict[str, Probes]:
    """Probes of every target, layer and seed for `vectors` (examples, layers, width)."""
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
    """Each number of a layer's vectors with mean 0 and deviation 1 over examples; constant: 0."""
    found = np.zeros_like(vectors)
    for layer in range(vectors.shape[1]):
        # A number may be a million times as large as its deviation.
        exact = vectors[:, layer].astype(np.float64)
        deviation = exact.std(0)
        varies = deviation > 1e-6 * np.abs(exact).max(0)
        found[:, layer] = np.where(varies, exact - exact.mean(0), 0) / np.where(
            varies, deviation, 1
        )
    return found


def alike_remarks(vectors: NDArray[np.float32], name: str) -> list[str]:
    """A remark if vectors of some layers (of 0..L) can hardly be told apart by a probe.

    `name` is the method whose probes they are.
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
    """Rows for training, validation and test: random, by `shares` of `n`, at least one each."""
    if n < 3:
        raise DataError(f"Probes need examples to train, validate and test, found {n}.")
    order = generator(seed, "probe", "split").permutation(n)
    train = min(max(1, round(shares[0] * n)), n - 2)
    validation = min(max(1, round(shares[1] * n)), n - train - 1)
    return np.split(order, [train, train + validation])


def probe_order(n: int, seed: int, epoch: int) -> IntArray:
    """The order in which `n` training examples are seen."""
    return generator(seed, "probe", "order", epoch).permutation(n)


def epoch_dropout(n: int, width: int, rate: float, seed: int, epoch: int) -> NDArray[np.float32]:
    """Factors (n, width) of the inputs in that order: 0 where dropped, else 1 / (1 - rate)."""
    draws = generator(seed, "probe", "dropout", epoch).random((n, width), dtype=np.float32)
    return (draws >= rate) * np.float32(1 / (1 - rate))


def shuffled(labels: IntArray, seeds: tuple[int, ...]) -> IntArray:
    """The labels dealt out anew for each probe seed (seeds, examples): F1 by chance."""
    return np.stack([generator(s, "probe", "shuffled").permutation(labels) for s in seeds])


def f1_scores(truth: IntArray, predicted: IntArray, target: Target) -> FloatArray:
    """F1 over the last axis; classes that neither are nor are predicted do not count in the mean.

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
    """F1 (draws, layers, seeds) of test examples that are there `counts` (draws, examples) times.

    The mean over those of `classes` that are among them or predicted for them, as in `f1_scores`;
    NaN where none is.
    """
    n_layers, n_seeds, _ = probes.predicted.shape
    total, seen = np.zeros((2, len(counts), n_layers, n_seeds))
    for seed, rows in enumerate(probes.rows):
        drawn, predicted = counts[:, rows], probes.predicted[:, seed].T
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
    """The rows (seeds, batch) of an epoch's batches and what the probes are given there."""
    n, width, rate, seeds = train.shape[1], vectors.shape[2], settings.dropout, settings.seeds
    order = np.stack([probe_order(n, seed, epoch) for seed in seeds])
    rows = np.take_along_axis(train, order, axis=1)
    dropout = np.stack([epoch_dropout(n, width, rate, seed, epoch) for seed in seeds])
    for start in range(0, n, settings.batch_size):
        batch = slice(start, start + settings.batch_size)
        yield rows[:, batch], _inputs(vectors, rows[:, batch], dropout[:, batch])


def _inputs(vectors: Tensor, rows: IntArray, factors: NDArray[np.float32] | None = None) -> Tensor:
    """Vectors (seeds * layers, examples, width) of `rows` (seeds, examples), times factors."""
    picked = vectors[torch.from_numpy(rows).to(vectors.device)].transpose(1, 2)
    given = torch.empty(picked.shape, device=vectors.device)
    if factors is None:
        given.copy_(picked)
    else:
        torch.mul(picked, torch.from_numpy(factors).to(vectors.device).unsqueeze(1), out=given)
    return given.flatten(0, 1)


class _Learner:
    """The probes of one target while they learn, and each at its best epoch so far."""

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
        """One step on a batch, whose loss is the weighted mean of its cross-entropies."""
        labels = torch.from_numpy(self._labels_of(rows)).to(inputs.device)
        labels = labels.repeat_interleave(self.vectors.shape[1], 0)
        weights = self.class_weights[labels]
        self.networks.differentiate(inputs, labels, weights / weights.sum(1, keepdim=True))
        self.optimiser.step()

    def validate(self, rows: IntArray, epoch: int) -> None:
        """Remember the probes that are better than they ever were, the first of equals."""
        f1 = f1_scores(self._labels_of(rows), self._predict(self.networks, rows), self.target)
        self._keep(f1 > self.best_f1, epoch)
        self.best_f1 = np.maximum(self.best_f1, f1)

    def test(self, rows: IntArray, last: int) -> Probes:
        """Return the answers of the best epochs; without one above 0, those of the last."""
        self._keep(self.best_epoch == 0, last)
        truth, predicted = self._labels_of(rows), self._predict(self.best, rows)
        f1 = f1_scores(truth, predicted, self.target)
        return Probes(rows, truth, predicted, f1, self.best_epoch)

    def _keep(self, which: BoolArray, epoch: int) -> None:
        """Remember these probes (layers, seeds) as they are; networks are by seed, then layer."""
        self.best_epoch[which] = epoch
        flat = torch.from_numpy(which.T.reshape(-1)).to(self.vectors.device)
        self.best.copy_from(self.networks, flat)

    def _labels_of(self, rows: IntArray) -> IntArray:
        return np.take_along_axis(self.labels, rows, axis=1)

    def _predict(self, networks: "Perceptrons", rows: IntArray) -> IntArray:
        pieces = [rows[:, i : i + ROWS_AT_ONCE] for i in range(0, rows.shape[1], ROWS_AT_ONCE)]
        found = [networks.logits(_inputs(self.vectors, piece)).argmax(-1).cpu() for piece in pieces]
        by_network = torch.cat(found, 1).numpy()
        return by_network.reshape(len(rows), -1, rows.shape[1]).transpose(1, 0, 2)


class Perceptrons:
    """Networks of the same sizes, each a chain of linear layers with GELU in between.

    AdamW works number by number, so one optimiser over joined weights trains each network as if it
    were alone. The gradient of so small a network is a few products, and writing it into the place
    where the optimiser looks spares most of what a general backward pass costs.
    """

    def __init__(self, weights: Sequence[Sequence[Tensor]]) -> None:
        """`weights`: for each network, weight (out, in) and bias (1, out) of each layer in turn."""
        joined = [torch.stack(tensors) for tensors in zip(*weights, strict=True)]
        self._shapes = [tensor.shape for tensor in joined]
        self.flat = torch.nn.Parameter(torch.cat([tensor.reshape(-1) for tensor in joined]))
        self.flat.grad = torch.zeros_like(self.flat)
        self._weights = self._views(self.flat.data)
        self._gradients = self._views(self.flat.grad)

    @torch.no_grad()
    def logits(self, inputs: Tensor) -> Tensor:
        """`inputs` (networks, examples, width) to (networks, examples, classes)."""
        return self._forward(inputs)[-1]

    @torch.no_grad()
    def differentiate(self, inputs: Tensor, labels: Tensor, weights: Tensor) -> None:
        """Put the gradient of each network's loss into `flat.grad`.

        The loss is the sum of the cross-entropies under `weights`; they and `labels` are
        (networks, examples).
        """
        *before, logits = self._forward(inputs)
        error = torch.softmax(logits, -1)
        error.scatter_add_(-1, labels.unsqueeze(-1), torch.full_like(error[..., :1], -1.0))
        error *= weights.unsqueeze(-1)
        for layer in reversed(range(len(before) + 1)):
            entering = functional.gelu(before[layer - 1]) if layer else inputs
            torch.bmm(error.transpose(1, 2), entering, out=self._gradients[2 * layer])
            torch.sum(error, 1, keepdim=True, out=self._gradients[2 * layer + 1])
            if layer:
                passed = torch.bmm(error, self._weights[2 * layer])
                error = torch.ops.aten.gelu_backward(passed, before[layer - 1])

    @torch.no_grad()
    def copy_from(self, other: "Perceptrons", which: Tensor) -> None:
        """Take over the weights of the networks where `which` is true."""
        for mine, theirs in zip(self._weights, other._weights, strict=True):
            mine[which] = theirs[which]

    def _forward(self, inputs: Tensor) -> list[Tensor]:
        """Return what every layer gives, before GELU."""
        given: list[Tensor] = []
        for weight, bias in zip(self._weights[::2], self._weights[1::2], strict=True):
            entering = functional.gelu(given[-1]) if given else inputs
            given.append(torch.baddbmm(bias, entering, weight.transpose(1, 2)))
        return given

    def _views(self, flat: Tensor) -> list[Tensor]:
        pieces = torch.split_with_sizes(flat, [shape.numel() for shape in self._shapes])
        return [piece.view(shape) for piece, shape in zip(pieces, self._shapes, strict=True)]


def initial_weights(sizes: Sequence[int], seed: int) -> list[Tensor]:
    """Weights and biases as `torch.nn.Linear` draws them, from this seed alone."""
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
