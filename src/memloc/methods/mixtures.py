"""Mixtures of two models: some units from one, the rest from the other.

A unit is a named group of block parameters: a layer, its attention or its MLP, or a group that a
user names. The requested mixtures form a tree: at each layer, a state continues in every requested
variant of the layer, where variants differ in which of the layer's units are the donor's. The tree
is walked depth first, several states at a time, so that no layer runs twice on the same state and
little memory is used. All windows of twelve layers need 376 layers per text, all subsets 8,190.
Texts of equal length share a batch, so they are read at one position, and the last layer runs there
alone where the model allows it. The outcome is counted at the end of each branch, so that logits
are never stored.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from operator import or_

import numpy as np
import torch
from torch import Tensor, nn

from memloc.arrays import IntArray
from memloc.data.encode import Encoded
from memloc.model.calls import LastBlock, Repeater
from memloc.model.device import NARROW
from memloc.model.load import Classifier
from memloc.model.predict import continued, evaluating, to_batch
from memloc.model.stack import Prepared, Stack, setting
from memloc.model.streamed import bytes_read, opened
from memloc.model.units import Units, exchanged, find_units
from memloc.run.folder import Run
from memloc.stats.subsets import beginnings

MEMORY = 2**30
"""Largest number of bytes of states held, besides the weights (at least one text's states)."""
CALL_TOKENS = 1024
"""Largest number of tokens in a call of a block (or one text): enough to keep a core busy
(measured). Narrow models take twice as many.
"""
BATCH_TOKENS = 512
"""Largest number of tokens in a batch (or one text), which its mixtures multiply."""
MOST_HELD = 128
"""Largest number of states continued at once: more would not make calls any fuller. Narrow models
take twice as many.
"""


@dataclass(frozen=True)
class Outcome:
    """How an example fares in a mixture of two models: the label is lost, or its tokens are."""

    names: tuple[str, ...]
    """Names of the values, in the order in which `count` returns them."""
    count: Callable[[Tensor, Tensor], Tensor]
    """Function that turns the head's output for some mixtures into the outcome's values.

    It gets the output (mixtures, texts, classes) and the labels (texts,), and returns (values,
    mixtures, texts), the share that is lost first. For a language model, output and tokens have one
    more axis, the position in a continuation.
    """
    weigh_by: int = 0
    """Index of the value by which units are weighed; what is undone is always counted by the
    first.
    """


def _lost_and_margin(logits: Tensor, labels: Tensor) -> Tensor:
    """Return whether each label is lost, and its logit minus the largest other one."""
    place = labels.expand(logits.shape[:-1])[..., None]
    margin = logits.gather(-1, place)[..., 0] - logits.scatter(-1, place, -torch.inf).amax(-1)
    return torch.stack([(logits.argmax(-1) != labels).to(logits.dtype), margin])


LABELS = Outcome(("labels", "margin"), _lost_and_margin)
"""Outcome for a classifier: whether each label is lost, and its margin."""


def _lost_and_log_probability(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return the share of tokens that are lost, and their mean log-probability; -1 does not count.

    Where no token counts, nothing could be kept, so all is lost in every mixture.
    """
    counts = tokens >= 0
    n = counts.sum(-1).clamp_min(1)
    place = tokens.clamp_min(0).expand(logits.shape[:-1])[..., None]
    kept = (logits.argmax(-1) == tokens).sum(-1) / n
    log_probability = logits.log_softmax(-1).gather(-1, place)[..., 0]
    return torch.stack([1 - kept, (log_probability * counts).sum(-1) / n])


TOKENS = Outcome(("tokens", "log-probability"), _lost_and_log_probability, weigh_by=1)
"""Outcome for a language model: lost tokens and log-probability.

A continuation needs each of its tokens, so by tokens alone many layers seem to hold it;
log-probability tells layers apart, but misleads where nothing is lost. What is undone is therefore
counted in tokens and weighed by log-probability.
"""
LOGITS = 2**24
"""Largest number of logits that the head of a language model returns at once."""


def goals_of(run: Run, final: Stack, encoded: Encoded) -> IntArray:
    """Return the label of each text; for continuations, the tokens that the final model predicts.

    Tokens are (texts, longest continuation), with -1 for tokens that it does not predict.
    """
    if not run.task.is_texts:
        return run.noisy.assigned
    predictions = continued(final, encoded)
    return np.where(predictions.is_said, predictions.tokens, -1)


def final_with(run: Run, layers: Iterable[int], checkpoint: str) -> Classifier:
    """Return the run's final model with these layers (from 0) taken from other weights of the
    run.
    """
    final, other = run.load("final"), run.load(checkpoint)
    for layer in layers:
        final.stack.blocks[layer].load_state_dict(other.stack.blocks[layer].state_dict())
    return final


class Mixtures:
    """The final model with some units replaced by the donor's."""

    def __init__(
        self,
        final: Stack,
        donor: Stack,
        units: Units | None = None,
        outcome: Outcome = LABELS,
        *,
        memory: int = MEMORY,
    ) -> None:
        """Prepare mixtures of two models; without `units`, layers are exchanged."""
        self.stacks = final, donor
        self.units = find_units(final, "layers") if units is None else units
        self.outcome = outcome
        self.memory = memory
        self.repeater = Repeater(final)
        self.last = LastBlock(final)
        self.variants = [_variants(final, donor, self.units, i) for i in range(final.depth)]
        self.met = tuple(max(variants) for variants in self.variants)
        before = [0, *accumulate(self.met[:-1], or_)]
        self.decided = [met & earlier for met, earlier in zip(self.met, before, strict=True)]
        """For each layer, its units that earlier layers have a part of: they are chosen there."""

    def batches(self, encoded: Encoded, rows: IntArray) -> Iterator[IntArray]:
        """Yield places in `rows` of texts (and continuations) of equal length, longest first."""
        starts = np.zeros_like(encoded.lengths) if encoded.starts is None else encoded.starts
        sizes = np.stack([encoded.lengths, starts], axis=1)[rows]
        final = self.stacks[0]
        token = final.width * next(final.model.parameters()).element_size()
        for length, start in np.unique(sizes, axis=0)[::-1].tolist():
            same = np.flatnonzero((sizes == [length, start]).all(1))
            fitting = self.memory // (self.most_grown * length * token)
            step = max(1, min(BATCH_TOKENS // length, fitting))
            yield from (same[first : first + step] for first in range(0, len(same), step))

    @property
    def most_grown(self) -> int:
        """Number of states that one state can become on its way, if continued one at a time."""
        return sum(len(variants) for variants in self.variants)

    @property
    def is_streamed(self) -> bool:
        """Return whether blocks are read from disk."""
        return bytes_read(self.stacks[0].blocks[0]) > 0

    def most_held(self, state_bytes: int) -> int:
        """Return how many states of this size are continued at once."""
        return max(1, self.memory // (self.most_grown * state_bytes))

    def groups(self, encoded: Encoded, batches: "Sequence[MixedBatch]") -> "list[list[MixedBatch]]":
        """Return the batches in groups that share each reading of a block.

        Models in memory have one batch per group; so have streamed ones if no more states fit.
        """
        if not self.is_streamed:
            return [[batch] for batch in batches]
        groups: list[list[MixedBatch]] = []
        room = 0.0
        for batch in batches:
            share = max(self._states(batch)) / self.most_held(self._state_bytes(encoded, batch))
            if share > room:
                groups.append([])
                room = 1.0
            groups[-1].append(batch)
            room -= share
        return groups

    def bytes_read(self, encoded: Encoded, group: "Sequence[MixedBatch]") -> int:
        """Return about how many bytes a group reads from disk; 0 for models held in memory."""
        held = [self.most_held(self._state_bytes(encoded, batch)) for batch in group]
        states = zip(*(self._states(batch) for batch in group), strict=True)
        times = [np.ceil(sum(np.divide(n, held))) for n in states]
        return sum(
            int(n) * sum(bytes_read(stack.blocks[layer]) for stack in variants.values())
            for layer, (n, variants) in enumerate(zip(times, self.variants, strict=True))
        )

    @property
    def bytes_held(self) -> int:
        """Largest number of bytes of weights and states that are held at once, if streamed."""
        final = self.stacks[0].model
        blocks = [sum(p.numel() for p in block.parameters()) for block in self.stacks[0].blocks]
        outside = sum(p.nbytes for p in final.parameters() if not p.is_meta)
        return int(outside) + 4 * max(blocks) + self.memory

    @property
    def bytes_on_disk(self) -> int:
        """Number of bytes of the files that both models are streamed from."""
        places = [place for stack in self.stacks for place in stack.model.places.values()]
        return sum(int(place.size) for place in {*places})

    def _states(self, batch: "MixedBatch") -> list[int]:
        """Return the number of states of each text that go into each layer."""
        return [1, *map(len, _tree(self.met, batch.asked).wanted[:-1])]

    def _state_bytes(self, encoded: Encoded, batch: "MixedBatch") -> int:
        return 4 * len(batch.rows) * int(encoded.lengths[batch.rows[0]]) * self.stacks[0].width

    def values(
        self, encoded: Encoded, rows: IntArray, labels: IntArray, subsets: Sequence[int]
    ) -> Tensor:
        """Return the outcome (values, texts, subsets) for texts of equal length.

        Args:
            encoded: All texts.
            rows: Rows of the texts to use.
            labels: Labels of these texts, or the tokens of their continuations.
            subsets: Numbers whose bits say which units are the donor's.
        """
        return self.values_of(encoded, [MixedBatch(rows, labels, subsets)])[0]

    def values_of(self, encoded: Encoded, group: "Sequence[MixedBatch]") -> list[Tensor]:
        """Return the outcome (values, texts, subsets) of each batch of a group."""
        final, donor = self.stacks
        with evaluating(final.model), evaluating(donor.model), torch.inference_mode():
            walks = []
            for batch in group:
                labels = batch.labels
                if encoded.starts is not None:
                    sizes = encoded.lengths - encoded.starts
                    labels = labels[:, : int(sizes[batch.rows[0]])]
                prepared = final.prepare(to_batch(encoded, batch.rows, final.device))
                goals = torch.from_numpy(labels).to(final.device)
                walks.append(_Walk(self, prepared, goals, _tree(self.met, batch.asked)))
            _go([_Part(walk, walk.prepared.state[None], [0]) for walk in walks], 0)
            return [walk.values for walk in walks]


@dataclass(frozen=True)
class MixedBatch:
    """Texts of equal length, and the mixtures that they need."""

    rows: IntArray
    labels: IntArray
    """Labels of these texts, or the tokens of their continuations."""
    subsets: Sequence[int]
    """Numbers whose bits say which units are the donor's."""

    @property
    def asked(self) -> range | tuple[int, ...]:
        """The subsets in a form that can be a key."""
        return self.subsets if isinstance(self.subsets, range) else tuple(self.subsets)


@dataclass(frozen=True)
class _Tree:
    """Requested subsets: their beginnings layer by layer, and the column of each one's values."""

    wanted: list[set[int]]
    places: dict[int, int]


@lru_cache(maxsize=2)
def _tree(met: tuple[int, ...], subsets: range | tuple[int, ...]) -> _Tree:
    return _Tree(beginnings(met, subsets), {subset: i for i, subset in enumerate(subsets)})


def _variants(final: Stack, donor: Stack, units: Units, layer: int) -> dict[int, Stack]:
    """Return a layer in every mixture of its units, by the bits of the donor's units.

    Each variant is a stack with the final model's other layers; only this layer is ever run.
    """
    names_by_id = {id(p): name for name, p in final.model.named_parameters()}
    local = {names_by_id[id(p)]: name for name, p in final.blocks[layer].named_parameters()}
    parts = {
        1 << bit: [local[name] for name in names if name in local]
        for bit, names in enumerate(units.values())
    }
    parts = {bit: names for bit, names in parts.items() if names}
    blocks = final.blocks[layer], donor.blocks[layer]
    variants = {0: final, sum(parts): _with_block(final, layer, blocks[1])}
    for bits in _mixed(list(parts)):
        names = {name for bit, of in parts.items() if bits & bit for name in of}
        variants[bits] = _with_block(final, layer, exchanged(*blocks, names))
    return variants


def _mixed(bits: list[int]) -> list[int]:
    """Return all sums of some of these bits, except of none and of all."""
    sums = [0]
    for bit in bits:
        sums += [total + bit for total in sums]
    return sums[1:-1]


def _with_block(stack: Stack, layer: int, block: nn.Module) -> Stack:
    changed = copy(stack)
    changed.blocks = nn.ModuleList([*stack.blocks[:layer], block, *stack.blocks[layer + 1 :]])
    return changed


@dataclass(frozen=True)
class _Part:
    """States (subsets, texts, tokens, width) of a batch, each with a subset of donor's units."""

    walk: "_Walk"
    states: Tensor
    subsets: list[int]

    def cut(self, size: int) -> "Iterator[_Part]":
        """Cut into parts of at most this many states."""
        for start in range(0, len(self.subsets), size):
            here = slice(start, start + size)
            yield _Part(self.walk, self.states[here], self.subsets[here])


def _joined(parts: list[_Part]) -> _Part:
    states = torch.cat([part.states for part in parts])
    return _Part(parts[0].walk, states, [s for part in parts for s in part.subsets])


def _go(parts: list[_Part], layer: int) -> None:
    """Continue parts from this layer on: one at a time, or as many as memory holds if streamed.

    The numbers of a part do not depend on which other parts pass a layer with it.
    """
    grown = _grown(parts, layer)
    mixtures = parts[0].walk.mixtures
    if layer + 1 == len(mixtures.variants):
        for part in grown:
            part.walk.finish(part.states, part.subsets)
        return
    cut = [piece for part in grown for piece in part.cut(part.walk.held)]
    del grown
    for some in _fitting(cut, streamed=mixtures.is_streamed):
        _go(some, layer + 1)


def _fitting(parts: list[_Part], *, streamed: bool) -> Iterator[list[_Part]]:
    """Yield parts that pass a layer at once: single ones, or what fits in memory if streamed."""
    some: list[_Part] = []
    used = 0.0
    for part in parts:
        share = len(part.subsets) / part.walk.most
        if some and (not streamed or used + share > 1 + 1e-9):
            yield some
            some, used = [], 0.0
        some.append(part)
        used += share
    if some:
        yield some


def _grown(parts: list[_Part], layer: int) -> list[_Part]:
    """Continue parts in every requested variant of a layer; each is read once if streamed."""
    mixtures = parts[0].walk.mixtures
    grown_parts: list[list[_Part]] = [[] for _ in parts]
    for bits, variant in mixtures.variants[layer].items():
        fits = [part.walk.fitting(part.subsets, bits, layer) for part in parts]
        if not any(fits):
            continue
        with opened(variant.blocks[layer]):
            for part, grown, places in zip(parts, grown_parts, fits, strict=True):
                if places:
                    is_all = len(places) == len(part.subsets)
                    chosen = part.states if is_all else part.states[places]
                    after = part.walk.run(variant, layer, chosen)
                    subsets = [part.subsets[i] | bits for i in places]
                    grown.append(_Part(part.walk, after, subsets))
    return [_joined(grown_parts.pop(0)) for _ in parts]


class _Walk:
    """The mixtures of one batch, computed layer by layer."""

    def __init__(self, mixtures: Mixtures, prepared: Prepared, labels: Tensor, tree: _Tree) -> None:
        self.mixtures, self.prepared, self.labels, self.tree = mixtures, prepared, labels, tree
        state = prepared.state
        place = int(prepared.positions[0])  # texts of one length are read at one place
        # Each token of a continuation is said at the place before it.
        self.here = slice(place, place + 1)
        if labels.ndim > 1:
            self.here = slice(place - labels.shape[1], place)
        self.most = mixtures.most_held(state.nbytes)
        """Largest number of states that memory holds."""
        times = 2 if state.shape[-1] < NARROW else 1
        self.held = min(times * MOST_HELD, self.most)
        """Largest number of states in a part."""
        self.at_once = max(1, times * CALL_TOKENS // state[..., 0].numel())
        n_values = len(mixtures.outcome.names)
        self.values = torch.empty(n_values, len(state), len(tree.places), device=state.device)

    def fitting(self, subsets: list[int], bits: int, layer: int) -> list[int]:
        """Return the places of the subsets that go on in this variant of a layer."""
        wanted, decided = self.tree.wanted[layer], self.mixtures.decided[layer]
        return [
            i
            for i, subset in enumerate(subsets)
            if subset | bits in wanted and (subset ^ bits) & decided == 0
        ]

    def run(self, variant: Stack, layer: int, states: Tensor) -> Tensor:
        """Return the states after a variant of this layer, or what the head reads of them."""
        parts = []
        for start in range(0, len(states), self.at_once):
            some = states[start : start + self.at_once]
            flat = some.flatten(0, 1)
            calls = self.prepared.calls[layer]
            call = self.mixtures.repeater.repeated(layer, calls, len(some))
            if layer + 1 < variant.depth:
                flat = variant.run(layer, flat, call)
            else:
                read = self.mixtures.last.read(flat, call, self.here, variant)
                flat = read[:, 0] if variant.readout in ("first", "last") else read
            parts.append(flat.view(*some.shape[:2], *flat.shape[1:]))
        return torch.cat(parts)

    def finish(self, read: Tensor, subsets: list[int]) -> None:
        final, outcome = self.mixtures.stacks[0], self.mixtures.outcome
        step = len(read)
        if final.is_language_model:
            words = setting(final.model.config, "vocab_size")
            step = max(1, LOGITS // (self.labels.numel() * words))
        for start in range(0, len(read), step):
            some = read[start : start + step]
            places = [self.tree.places[subset] for subset in subsets[start : start + step]]
            logits = final.finish(some.flatten(0, 1), self.prepared.batch)
            by_mixture = logits.float().view(*some.shape[:2], *logits.shape[1:])
            self.values[..., places] = outcome.count(by_mixture, self.labels).transpose(1, 2)
