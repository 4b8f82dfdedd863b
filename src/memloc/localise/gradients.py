"""Forgetting gradients: where would a model change most to unlearn its noisy labels?

A mean of gradients is the gradient of a mean, so examples go through in batches. Only the blocks'
parameters get gradients; what the first block is given is computed without a graph.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import torch
from scipy import stats
from torch import Tensor
from torch.nn.functional import cross_entropy

from memloc.data.encode import Encoded
from memloc.errors import ScoreError
from memloc.localise.base import Subject, check_pair
from memloc.localise.batches import cheapest_batches
from memloc.localise.scores import LayerScores
from memloc.models.device import suitable_threads
from memloc.models.load import Classifier
from memloc.models.stack import Stack, at_positions
from memloc.progress import Advance, track
from memloc.protocol import GradientSettings
from memloc.records import FloatArray, IntArray
from memloc.score.depth import centre_of_gravity, centres_of_gravity
from memloc.score.uncertainty import Interval
from memloc.seeds import generator
from memloc.train.evaluate import to_batch
from memloc.train.finetune import gradients_for
from memloc.train.gathering import Parameters, clear_gradients

TOKENS_PER_BATCH = 768
"""At most, with padding. Measured: 512 are slower for narrow models, no faster for wide ones."""
LEVEL = 0.95

Norms = dict[str, FloatArray]
"""By name, e.g. `L1 noisy`: the norm of each block's mean gradient, (layers,)."""
Group = tuple[IntArray, IntArray]
"""Rows of noisy examples, and of clean ones."""


@dataclass(frozen=True)
class Gradients:
    """Norms of each block's mean gradient, noisy minus clean, relative to those of θ_F."""

    memory: int = 2**30
    """Bytes for the groups' gradients; where fewer groups fit, intervals are wider."""
    name = "gradients"
    needs = ("memorised", "frozen")

    def score_layers(self, subject: Subject) -> LayerScores:
        """Layer weights that sum to 1, with intervals over examples."""
        settings = subject.protocol.gradients
        loaded = _load(subject)
        stack = loaded[""].stack
        groups, note = self._groups(subject, stack)
        data = Data(subject.encode(loaded[""]), torch.from_numpy(subject.noisy.assigned), settings)
        details: Norms = {}
        left_out: Norms = {}
        total = len(loaded) * sum(len(rows) for group in groups for rows in group)
        with (
            track(f"{subject.name} · gradients", total) as advance,
            suitable_threads(stack.width),
        ):
            for of, model in loaded.items():
                norms, left_out[of] = measure(model.stack, data, groups, advance)
                details |= {name.replace(" ", f" {of}", 1): n for name, n in norms.items()}
        return _scores(details, left_out, settings, note)

    def _groups(self, subject: Subject, stack: Stack) -> tuple[list[Group], str]:
        """Noisy examples and as many clean ones in random groups; what to say of intervals."""
        noisy, clean = _rows(subject)
        asked = subject.protocol.gradients.interval_groups
        size = 8 * sum(p.numel() for block in stack.blocks for p in block.parameters())
        fitting = min(asked, len(noisy), len(clean), self.memory // size)
        if fitting < 2:
            why = f"two examples of each kind and {2 * size / 1e6:.0f} MB are needed"
            if asked < 2:
                why = f"gradients.interval_groups is {asked}"
            return [(noisy, clean)], f"none: {why}"
        cut = np.array_split(noisy, fitting), np.array_split(clean, fitting)
        return list(zip(*cut, strict=True)), f"jackknife over {fitting} groups of examples"


def variants(details: Mapping[str, FloatArray], norm: str) -> dict[tuple[bool, bool], FloatArray]:
    """Layer weights for each (subtract clean, divide by frozen) that `details` can give."""
    divisions = (False, True) if f"{norm} frozen noisy" in details else (False,)
    return {
        (subtract, divide): variant(details, norm, subtract, divide)
        for subtract in (False, True)
        for divide in divisions
    }


def variant(
    details: Mapping[str, FloatArray], norm: str, subtract: bool, divide: bool
) -> FloatArray:
    """Layer weights with these steps of the post-processing."""
    frozen = details[f"{norm} frozen {_kind(subtract)}"] if divide else None
    return post_processed(details[f"{norm} {_kind(subtract)}"], frozen)


def post_processed(norms: FloatArray, frozen: FloatArray | None) -> FloatArray:
    """Norms (..., layers), divided by those of the frozen model if given, scaled to sum 1."""
    if frozen is not None and not (frozen > 0).all():
        layer = int(np.argwhere(~(frozen > 0))[0, -1]) + 1
        raise ScoreError(
            f"The frozen model's gradients are {frozen[..., layer - 1].min():g} in layer {layer}, "
            "so nothing can be divided by them: set gradients.divide_frozen to false."
        )
    weights = norms if frozen is None else norms / frozen
    total = weights.sum(axis=-1, keepdims=True)
    if not (np.isfinite(total) & (total > 0)).all():
        raise ScoreError(f"Layers cannot be weighed: their gradients sum to {total.min():g}.")
    return np.asarray(weights / total)


def jackknife(estimate: FloatArray, left_out: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Ends of the interval of `estimate` (...); `left_out` (G, ...) is it without each group.

    SE² = (G - 1) / G · Σ (value without g - their mean)²; the interval is estimate ± t · SE, where
    t is Student's with G - 1 degrees of freedom, as groups are few. NaN without groups.
    """
    n = len(left_out)
    if n < 2:
        return np.full_like(estimate, np.nan), np.full_like(estimate, np.nan)
    reach = stats.t.ppf((1 + LEVEL) / 2, n - 1) * np.sqrt((n - 1) * left_out.var(axis=0))
    return estimate - reach, estimate + reach


@dataclass(frozen=True)
class Data:
    """Texts, the labels that they were trained on, and what the gradient is of."""

    encoded: Encoded
    labels: Tensor
    settings: GradientSettings

    def value(self, stack: Stack, rows: IntArray) -> Tensor:
        """The sum over these examples of the negative loss, or of the label's raw logit."""
        with torch.no_grad():
            prepared = stack.prepare(to_batch(self.encoded, rows, stack.device))
        logits = stack.finish(at_positions(stack.run_all(prepared), prepared.positions)).float()
        labels = self.labels[rows].to(logits.device)
        if self.settings.objective == "logit":
            return logits.gather(1, labels[:, None]).sum()
        return -cross_entropy(logits, labels, reduction="sum")


@dataclass(frozen=True)
class Sums:
    """Gradients summed over noisy and over clean examples, those of all blocks end to end."""

    noisy: Tensor
    clean: Tensor
    n_noisy: int
    n_clean: int

    def plus(self, other: "Sums", sign: int = 1) -> "Sums":
        """With the examples of another one, or without them."""
        return Sums(
            self.noisy.add(other.noisy, alpha=sign),
            self.clean.add(other.clean, alpha=sign),
            self.n_noisy + sign * other.n_noisy,
            self.n_clean + sign * other.n_clean,
        )

    def mean(self, kind: str) -> Tensor:
        """The mean gradient of `noisy` or `clean` examples, or their `difference`."""
        if kind == "difference":
            return self.mean("noisy").sub_(self.clean, alpha=1 / self.n_clean)
        return self.noisy / self.n_noisy if kind == "noisy" else self.clean / self.n_clean

    def split(self, sizes: list[int]) -> "list[Sums]":
        """Each block's part, without a copy."""
        noisy, clean = (torch.split_with_sizes(v, sizes) for v in (self.noisy, self.clean))
        return [Sums(n, c, self.n_noisy, self.n_clean) for n, c in zip(noisy, clean, strict=True)]


def measure(
    stack: Stack, data: Data, groups: Sequence[Group], advance: Advance = lambda _: None
) -> tuple[Norms, FloatArray]:
    """Norms of the mean gradients of noisy and clean examples and of their difference.

    And the norm that is asked for without each group in turn, (groups, layers), if there are some.
    """
    blocks = [dict(block.named_parameters()) for block in stack.blocks]
    sizes = [sum(p.numel() for p in block.values()) for block in blocks]
    with gradients_for(stack.model, blocks) as tensors:
        every = [_sums(stack, data, group, tensors, advance) for group in groups]
    total = reduce(Sums.plus, every)
    kinds = ("noisy", "clean", "difference")
    norms = {f"{n} {kind}": v for kind in kinds for n, v in _norms(total, sizes, kind).items()}
    kind = _kind(data.settings.subtract_clean)
    without = (total.plus(part, -1) for part in every if len(every) > 1)
    left_out = [_norms(rest, sizes, kind)[data.settings.norm] for rest in without]
    return norms, np.array(left_out).reshape(-1, stack.depth)


def _sums(
    stack: Stack, data: Data, group: Group, tensors: Sequence[Parameters], advance: Advance
) -> Sums:
    vectors = []
    for rows in group:
        for block in tensors:
            clear_gradients(block)
        for picked in _batches(stack, data.encoded.lengths[rows]):
            with torch.enable_grad():
                data.value(stack, rows[picked]).backward()  # type: ignore[no-untyped-call]
            advance(len(picked))
        vectors.append(torch.cat([_gradient(t) for block in tensors for t in block.values()]))
    return Sums(vectors[0], vectors[1], len(group[0]), len(group[1]))


def _batches(stack: Stack, lengths: IntArray) -> list[IntArray]:
    # Measured: a batch of any size costs as much as 157 tokens at width 64, as 43 at width 384.
    return cheapest_batches(lengths, 20 + 9000 // stack.width, TOKENS_PER_BATCH)


def _gradient(tensor: Tensor) -> Tensor:
    """A parameter that the forward pass does not use has none."""
    found = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
    return found.detach().flatten()


def _norms(sums: Sums, sizes: list[int], kind: str) -> Norms:
    """L1 and L2 of each block's mean gradient."""
    found = [_both(block.mean(kind)) for block in sums.split(sizes)]
    return dict(zip(("L1", "L2"), np.array(found, dtype=np.float64).T, strict=True))


def _both(vector: Tensor) -> tuple[float, float]:
    # Plain sums are pairwise, so single precision is enough for millions of numbers.
    return float(vector.abs().sum()), float(vector.square().sum().sqrt())


def _kind(subtract_clean: bool) -> str:
    return "difference" if subtract_clean else "noisy"


def _load(subject: Subject) -> dict[str, Classifier]:
    """Under "" the memorised weights, under "frozen " those to divide by, where that is asked."""
    loaded = {"": subject.load("memorised")}
    if subject.protocol.gradients.divide_frozen:
        loaded["frozen "] = subject.load("frozen")
        check_pair(loaded[""], loaded["frozen "], "frozen")
    return loaded


def _rows(subject: Subject) -> Group:
    """All noisy examples and as many clean ones, both in random order."""
    noisy, clean = subject.noisy_rows, subject.clean_rows
    if len(noisy) == 0 or len(clean) == 0:
        raise ScoreError(
            f"{subject.name} has {len(noisy)} noisy and {len(clean)} clean examples; gradients "
            "compare the two."
        )
    rng = generator(subject.seed, "gradients clean")
    picked = rng.choice(clean, min(len(noisy), len(clean)), replace=False)
    return rng.permutation(noisy), picked


def _scores(details: Norms, left_out: Norms, settings: GradientSettings, note: str) -> LayerScores:
    divide = settings.divide_frozen
    weights = variant(details, settings.norm, settings.subtract_clean, divide)
    without = left_out[""]
    if len(without):
        without = post_processed(without, left_out["frozen "] if divide else None)
    low, high = jackknife(weights, without)
    mcog = centre_of_gravity(weights)
    ends = jackknife(np.array(mcog), centres_of_gravity(without))
    first, last = (float(np.clip(end, 1, len(weights))) for end in ends)
    return LayerScores(
        method="gradients",
        weights=weights,
        low=np.clip(low, 0, None),
        high=high,
        mcog=Interval(mcog, first, last, LEVEL),
        details=details,
        about={"level": LEVEL, "intervals": note, **settings.model_dump()},
    )
