"""Stacks several classifiers of one kind: one forward pass runs the texts of all of them.

A narrow model spends its time on calling small operations. Here K models share each call: their own
forward pass runs on K times as many texts, ordered by member, and every parameter holds K
parameters, so that products with weights are computed member by member. Attention, masks and
positions need no change. The members remain ordinary models: their parameters are views. Copies of
one model may have their own weights in some blocks only; the other blocks run through the model
itself.

`torch.func` (`stack_module_state` and `vmap`) does not fit: under `vmap` dropout draws from one
generator, and here each member draws what it would draw alone; models of transformers branch on the
values of masks, which `vmap` refuses; and members with fewer blocks or packed texts would need
passes of their own.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from memloc.engine.packing import Layout, can_pack, fastest_layout
from memloc.errors import ModelError
from memloc.model.device import MOST, NARROW
from memloc.model.stack import (
    Batch,
    BlockCall,
    Prepared,
    Stack,
    find_blocks,
    forward,
    hidden_of,
    sample_batch,
    undropped,
)
from memloc.seeds import number, torch_seeded


class CannotStack(ModelError):
    """Raised when a model uses its weights in a way for which there is no rule here."""


class Members(nn.Parameter):
    """One parameter of all members, (members, ...)."""

    own: Sequence[nn.Parameter] = ()
    """Each member's parameter, a view of this one."""
    by_text = True
    """True if a table is looked up for each text, and not once for all texts."""

    @classmethod
    def __torch_function__(
        cls, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Apply the rules of the active forward pass, which works member by member."""
        active = _ACTIVE.get()
        with torch._C.DisableTorchFunctionSubclass():
            if active is None:
                return func(*args, **(kwargs or {}))
            return active.call(func, args, kwargs or {})

    def share(self) -> None:
        """Make the members' own parameters views of this one again."""
        for k, parameter in enumerate(self.own):
            parameter.data = self.data[k]


class Stacked(Stack):
    """Classifiers of one architecture, each a member; batches hold equally many texts of each."""

    def __init__(
        self,
        members: Sequence[Stack],
        beside: "Stacked | None" = None,
        in_block: Sequence[int] | None = None,
    ) -> None:
        """Join models of one kind, which from then on are views of the joined parameters.

        `beside` is a stack whose members share parameters with these, as for tasks that train one
        body; shared parameters are joined once. `in_block` gives for each block the number of
        members (the first ones) that have their own weights there.
        """
        first = members[0]
        self.members = tuple(members)
        self.in_block = [len(members)] * first.depth if in_block is None else in_block
        """Number of members, the first ones, that are in each block: `run` is for these alone."""
        fewer = {
            id(parameter): max(number, 1)
            for block, number in zip(first.blocks, self.in_block, strict=True)
            for parameter in block.parameters()
        }
        wholes: dict[int, Any] = {}
        if beside is not None:
            wholes = {id(whole.own[0]): whole for whole in beside.model.parameters()}
        for same in zip(*(stack.model.parameters() for stack in members), strict=True):
            if id(same[0]) not in wholes:
                parameters = same[: fewer.get(id(same[0]))]
                numbers, learns = (
                    torch.stack([p.detach() for p in parameters]),
                    same[0].requires_grad,
                )
                whole = wholes[id(same[0])] = Members(numbers, requires_grad=learns)
                whole.own = parameters
        for key in _shared_tables(first):
            if key in wholes:  # not so for a table that never learns
                wholes[key].by_text = False
        # A copy in which each parameter of the first model is that of all.
        self.model = copy.deepcopy(first.model, dict(wholes))
        self.blocks = find_blocks(self.model)
        self._answers, self.readout = first._answers, first.readout
        self.width, self.pads = first.width, first.pads
        for whole in wholes.values():
            whole.share()

    def logits(self, batch: Batch) -> Tensor:
        """Return (members * examples, classes), for texts ordered by member."""
        mask = batch["attention_mask"]
        with self._together(mask) as mode:
            layout = self._layout(mask)
            if layout is None:
                return super().logits(batch)
            with self._replaced_blocks(self._packed_blocks(layout, self.positions(mask), mode)):
                return forward(self.model, batch)

    def prepare(self, batch: Batch) -> Prepared:
        """Prepare a batch as one model does; arguments of blocks have one row per text."""
        with self._together(batch["attention_mask"]):
            return super().prepare(batch)

    def run(self, index: int, state: Tensor, call: BlockCall) -> Tensor:
        """Return the output of a block for the states of all members that are in the block."""
        with self._together(state[..., 0], self.in_block[index]):
            return super().run(index, state, call)

    def finish(self, read: Tensor, batch: Batch | None = None) -> Tensor:
        """Return the logits of all members."""
        with self._together(read[:, :1]):
            return super().finish(read, batch)

    @cached_property
    def _packs(self) -> bool:
        return can_pack(self.members[0])

    def _layout(self, mask: Tensor) -> Layout | None:
        """Return the long texts in which a batch runs fastest; None if it runs fastest padded."""
        if not self._packs:
            return None
        return fastest_layout(self, mask, members=len(self.members))

    def _packed_blocks(
        self, layout: Layout, positions: Tensor, mode: "_Together"
    ) -> list[Callable[..., Tensor]]:
        """Return blocks that run on long texts, each made of several texts of one member, without
        padding.
        """
        current = torch.empty(0)
        pack = layout.once()

        def block(
            index: int, state: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> Tensor:
            nonlocal current
            call = BlockCall(tuple(map(pack, args)), {k: pack(v) for k, v in kwargs.items()})
            with mode.packed(layout):
                given = layout.pack(state) if index == 0 else current
                kind = self.blocks[index]
                current = hidden_of(type(kind).forward(kind, given, *call.args, **call.kwargs))
                if index < self.depth - 1:
                    return state
                vectors = current.flatten(0, 1)[layout.starts + positions]
            return vectors.unsqueeze(1).expand_as(state)

        return [partial(block, index) for index in range(self.depth)]

    def _together(self, given: Tensor, members: int | None = None) -> "_Together":
        """Return the rules for a batch: an attention mask (texts, tokens) or states (texts,
        tokens, width).

        A mask tells the length of each member's longest text.
        """
        members = len(self.members) if members is None else members
        # Members of fewer blocks have drawn less when it comes to the head.
        alike = min(self.in_block) == len(self.members)
        return _Together(len(given), given.shape[1], _lengths(given, members), alike=alike)


def _lengths(given: Tensor, members: int) -> list[int]:
    """Return the length of the longest text of each member."""
    if given.is_floating_point():
        return [given.shape[1]] * members
    lengths: list[int] = given.view(members, -1, given.shape[1]).sum(2).amax(1).tolist()
    return lengths


def together(
    members: Sequence[Stack],
    beside: Stack | None = None,
    in_block: Sequence[int] | None = None,
) -> Stack:
    """Return one model as it is, and several as a stack; see `Stacked`."""
    if len(members) == 1:
        return members[0]
    return Stacked(members, beside if isinstance(beside, Stacked) else None, in_block)


def most_members(stack: Stack, device: torch.device) -> int:
    """Return how many models like this one pass can train on a device, by width and memory."""
    most = _fitting(stack, device)
    return most if most > 1 and can_stack(stack) else 1  # it is tried where there is room for it


def _fitting(stack: Stack, device: torch.device) -> int:
    if device.type == "cpu":  # where arithmetic bounds wide models, and there is nothing to gain
        return 1 if stack.width >= NARROW else MOST
    # Weights, gradients and two moments; as much again for states, in a quarter of the memory.
    bytes_of_one = 2 * 16 * sum(p.numel() for p in stack.model.parameters())
    if device.type == "mps":
        memory = torch.mps.recommended_max_memory()
    else:
        memory = torch.cuda.get_device_properties(device).total_memory
    return int(min(MOST, max(1, memory // 4 // bytes_of_one)))


class _Streams:
    """Generators of the members' dropout, made when they are first used."""

    def __init__(self, device: torch.device, seeds: Sequence[int]) -> None:
        self.device, self.seeds = device, seeds
        self.made: list[torch.Generator] = []

    def get(self, *, shared: bool) -> list[torch.Generator]:
        """Return a generator per member; if `shared`, members with repeated seeds have none."""
        if not self.made:
            seeds = _first_of_repeated([*self.seeds]) if shared else self.seeds
            self.made = [torch.Generator(self.device).manual_seed(seed) for seed in seeds]
        return self.made


def _first_of_repeated(seeds: list[int]) -> list[int]:
    """Return the shortest list whose repetition makes up this list."""
    parts = (seeds[:n] for n in range(1, 1 + len(seeds)) if len(seeds) % n == 0)
    return next(part for part in parts if part * (len(seeds) // len(part)) == seeds)


_STREAMS: ContextVar[_Streams] = ContextVar("streams")


@contextmanager
def dropout_seeded(seeds: Sequence[int], device: torch.device, *names: str | int) -> Iterator[None]:
    """Draw dropout from each member's own seed while active, as if each member were alone."""
    if len(seeds) == 1:
        with torch_seeded(seeds[0], *names):
            yield
        return
    token = _STREAMS.set(_Streams(device, [number(seed, *names) for seed in seeds]))
    try:
        yield
    finally:
        _STREAMS.reset(token)


class _Together:
    """Makes functions that meet stacked parameters, or draw, work member by member while active.

    Functions of parameters are intercepted through the parameters' type. Functions that draw are
    replaced where models look them up: intercepting every function of torch (a `TorchFunctionMode`)
    took a third of the time of a forward pass. `can_stack` checks that a model draws in no other
    way.
    """

    def __init__(self, texts: int, tokens: int, lengths: Sequence[int], *, alike: bool) -> None:
        self.texts, self.tokens, self.lengths, self.alike = texts, tokens, lengths, alike
        self.layout: Layout | None = None

    def __enter__(self) -> "_Together":
        self._token = _ACTIVE.set(self)
        self._before = [(place, name, getattr(place, name)) for place, name in _DRAWING]
        for (place, name), replacement in _DRAWING.items():
            setattr(place, name, replacement)
        return self

    def __exit__(self, *_: object) -> None:
        for place, name, before in self._before:
            setattr(place, name, before)
        _ACTIVE.reset(self._token)

    @contextmanager
    def packed(self, layout: Layout) -> Iterator[None]:
        """Expect states of long texts, equally many of each member, while active."""
        before = self.texts, self.tokens
        (self.texts, self.tokens), self.layout = layout.example.shape, layout
        try:
            yield
        finally:
            (self.texts, self.tokens), self.layout = before, None

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function of torch that was given stacked parameters."""
        rule = _RULES.get(func)
        if rule is not None:
            output = rule(self, *args, **kwargs)
            if output is not NotImplemented:
                return output
        elif func not in _HARMLESS:
            raise CannotStack(f"no rule for {func} with the weights of several models")
        return func(*args, **kwargs)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
        return self._product(x, weight, bias, turned=True)

    def addmm(self, bias: Tensor, x: Tensor, weight: Tensor) -> Any:
        return self._product(x, weight, bias, turned=False)

    def _product(self, x: Tensor, weight: Tensor, bias: Tensor | None, *, turned: bool) -> Any:
        if type(weight) is not Members:
            return NotImplemented
        states = self._by_member(x, len(weight))
        factor = weight.transpose(1, 2) if turned else weight
        if bias is None:
            return torch.bmm(states, factor).view(*x.shape[:-1], -1)
        return torch.baddbmm(bias.unsqueeze(1), states, factor).view(*x.shape[:-1], -1)

    def _by_member(self, x: Tensor, members: int) -> Tensor:
        """Return states as (members, everything of one member, width)."""
        if x.shape[0] % self.texts:
            raise CannotStack(f"{x.shape[0]} rows where {self.texts} texts were expected")
        if members != len(self.lengths):
            raise CannotStack(f"weights of {members} models where {len(self.lengths)} are run")
        return x.reshape(members, -1, x.shape[-1])

    def layer_norm(
        self,
        x: Tensor,
        shape: Any,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Any:
        if type(weight) is not Members:
            return NotImplemented
        plain = self._by_member(functional.layer_norm(x, shape, None, None, eps), len(weight))
        factor = weight.unsqueeze(1)
        if bias is None:
            return (plain * factor).view_as(x)
        return torch.addcmul(bias.unsqueeze(1), plain, factor).view_as(x)

    def rms_norm(
        self, x: Tensor, shape: Any, weight: Tensor | None = None, eps: float | None = None
    ) -> Any:
        if type(weight) is not Members:
            return NotImplemented
        return self.mul(functional.rms_norm(x, shape, None, eps), weight)

    def mul(self, x: Any, y: Any) -> Any:
        """Multiply states by one factor per channel."""
        x, weight = (y, x) if type(x) is Members else (x, y)
        if type(weight) is not Members:
            return NotImplemented
        if weight.ndim != 2 or x.shape[-1] != weight.shape[-1]:
            raise CannotStack("no rule for this product with the weights of several models")
        return (self._by_member(x, len(weight)) * weight.unsqueeze(1)).view_as(x)

    def embedding(
        self, ids: Tensor, weight: Tensor, padding_idx: int | None = None, **others: Any
    ) -> Any:
        if type(weight) is not Members:
            return NotImplemented
        if any(others.get(name) for name in ("max_norm", "scale_grad_by_freq", "sparse")):
            raise CannotStack("no rule for a table that changes when it is looked up")
        if not weight.by_text:
            by_member = [
                functional.embedding(ids, row_ids, padding_idx) for row_ids in weight.unbind()
            ]
            return _PerMember(by_member, self.texts)
        first = torch.arange(len(weight), device=ids.device) * weight.shape[1]
        row_ids = self._by_member(ids.unsqueeze(-1), len(weight)) + first[:, None, None]
        looked_up = functional.embedding(row_ids, weight.flatten(0, 1)).view(*ids.shape, -1)
        if padding_idx is not None and weight.requires_grad:
            looked_up = torch.where(
                (ids == padding_idx).unsqueeze(-1), looked_up.detach(), looked_up
            )
        return looked_up

    def dropout(
        self,
        x: Tensor,
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,  # noqa: ARG002 - never
    ) -> Any:
        """Drop what each member would drop if it were alone and its texts were padded."""
        if not training or p == 0:
            return x
        noise = self._noise(x, 1 - p)
        return (x.view(-1, *noise.shape) * noise).view(x.shape)

    def rand(self, *args: Any, **kwargs: Any) -> Any:
        """Draw one number for all members, for models that may leave out layers but do not."""
        streams = _STREAMS.get().get(shared=self.alike)
        # A stream draws on its own device only, and a model may ask for a number on the CPU.
        wanted = kwargs.pop("device", None) or "cpu"
        drawn = [_rand(*args, **kwargs, generator=s, device=s.device) for s in streams]
        return drawn[0].to(wanted)

    def _noise(self, x: Tensor, keep: float) -> Tensor:
        """Return dropout noise (members, texts, ...), or of the first members only if it repeats.

        It is what each member would draw alone, with texts that are not packed and may have less
        padding.
        """
        members = len(self.lengths)
        streams = _STREAMS.get().get(shared=self.alike)[:members]
        assert [*self.lengths[: len(streams)]] * (members // len(streams)) == [*self.lengths]
        texts, tokens = self.layout.shape if self.layout else (self.texts, self.tokens)
        shape = list(x.shape)
        if x.ndim == 2 and len(x) == self.texts * self.tokens:
            shape = [self.texts, self.tokens, shape[1]]
        axes = [axis for axis in _TOKEN_AXES.get(len(shape), ()) if shape[axis] == self.tokens]
        drawn = [texts // members, *(tokens if i in axes else n for i, n in enumerate(shape) if i)]
        noise = torch.ones(len(streams), *drawn, device=x.device)
        for k, stream in enumerate(streams):
            part = noise[k]
            for axis in axes:
                part = part.narrow(axis, 0, self.lengths[k])
            draws = torch.empty(part.shape, device=x.device).bernoulli_(keep, generator=stream)
            torch.div(draws, keep, out=part)
        if self.layout is not None:
            noise = self._packed(noise.flatten(0, 1), len(streams))
        return noise.view(len(streams), -1, *x.shape[1:])

    def _packed(self, noise: Tensor, streams: int) -> Tensor:
        """Rearrange noise for padded texts into noise for the long texts of this many members."""
        assert self.layout is not None
        texts = self.texts // len(self.lengths) * streams
        example, token = self.layout.example[:texts], self.layout.token[:texts]
        if noise.ndim == 4:
            return replace(self.layout, example=example, token=token).pairs(noise)
        return noise[example, token]

    def attention(  # noqa: PLR0913, PLR0917 - torch's
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        """Compute attention with dropout step by step; without dropout, torch's own function is
        used.
        """
        if dropout_p == 0:
            arguments = query, key, value, attn_mask, dropout_p, is_causal
            return _attention(*arguments, scale=scale, enable_gqa=enable_gqa)
        if enable_gqa:
            times = query.shape[1] // key.shape[1]
            key, value = (x.repeat_interleave(times, 1) for x in (key, value))
        scores = query @ key.transpose(-1, -2) * (scale or query.shape[-1] ** -0.5)
        if is_causal:
            future = torch.ones(scores.shape[-2:], device=scores.device).triu(1).bool()
            scores = scores.masked_fill(future, -torch.inf)
        elif attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, -torch.inf)
        elif attn_mask is not None:
            scores = scores + attn_mask
        return self.dropout(torch.softmax(scores, -1), dropout_p) @ value


_TOKEN_AXES = {3: (1,), 4: (2, 3)}
"""Token axes of states (texts, tokens, width) and of scores (texts, heads, tokens, tokens)."""


class _PerMember:
    """A value that is the same for all texts of a member: positions, biases of attention.

    Operations on it are done for each member, until it is combined with the states of texts.
    """

    def __init__(self, values: Sequence[Any], texts: int) -> None:
        self._values, self._rows = values, texts

    def __getattr__(self, name: str) -> Any:
        attributes = [getattr(value, name) for value in self._values]
        if not callable(attributes[0]):
            return attributes[0]
        return lambda *args, **kwargs: self._like([one(*args, **kwargs) for one in attributes])

    def __add__(self, other: Tensor) -> Tensor:
        return self.by_text(other.ndim) + other

    __radd__ = __add__

    @classmethod
    def __torch_function__(
        cls, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        most = max((x.ndim for x in args if isinstance(x, Tensor)), default=0)
        given = [x.by_text(most) if isinstance(x, cls) else x for x in args]
        named = {k: x.by_text(most) if isinstance(x, cls) else x for k, x in (kwargs or {}).items()}
        return func(*given, **named)

    def _like(self, values: Sequence[Any]) -> Any:
        return _PerMember(values, self._rows) if isinstance(values[0], Tensor) else values[0]

    def by_text(self, ndim: int) -> Tensor:
        """Return one row per text, with as many dimensions as the tensor it is combined with."""
        texts = self._rows // len(self._values)
        values = [v.reshape(*[1] * (ndim - v.ndim), *v.shape) for v in self._values]
        return torch.cat([v.expand(self._rows, *v.shape[1:])[:texts] for v in values])


_RULES: dict[Any, Callable[..., Any]] = {
    functional.linear: _Together.linear,
    torch.addmm: _Together.addmm,
    functional.layer_norm: _Together.layer_norm,
    functional.rms_norm: _Together.rms_norm,
    functional.embedding: _Together.embedding,
    **dict.fromkeys((torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__), _Together.mul),
}
_ACTIVE: ContextVar[_Together | None] = ContextVar("active", default=None)


def _by_member(rule: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of torch that follows a rule in the forward pass of a stack."""

    def own(*args: Any, **kwargs: Any) -> Any:
        active = _ACTIVE.get()  # of this thread: another one may do something else
        return plain(*args, **kwargs) if active is None else rule(active, *args, **kwargs)

    return own


_rand, _attention = torch.rand, functional.scaled_dot_product_attention
_DRAWING: dict[tuple[Any, str], Callable[..., Any]] = {
    (functional, "dropout"): _by_member(_Together.dropout, functional.dropout),
    (functional, "scaled_dot_product_attention"): _by_member(_Together.attention, _attention),
    (torch, "rand"): _by_member(_Together.rand, _rand),
}
_HARMLESS = {
    getattr(Tensor, name).__get__
    for name in ("dtype", "device", "requires_grad", "is_cuda", "is_cpu", "is_meta", "layout")
}


class _Watch(TorchFunctionMode):
    """Records the tables that are looked up, and the number of rows looked up in each."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[int, int] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is functional.embedding:
            self.rows[id(args[1])] = args[0].shape[0] if args[0].ndim > 1 else 1
        return func(*args, **(kwargs or {}))


def _shared_tables(stack: Stack) -> list[int]:
    """Return the tables (by identity) that are looked up once for all texts, tried on two texts."""
    with torch.no_grad(), undropped(stack.model), _Watch() as watch:
        stack.logits(batch := sample_batch(stack.model))
    return [key for key, rows in watch.rows.items() if rows != len(batch["input_ids"])]


def can_stack(stack: Stack) -> bool:
    """Return whether a model computes the same numbers in a stack, tried on two changed copies."""
    if stack.readout == "all" or not stack.pads:
        return False
    names = tuple(name for name, _ in stack.model.named_parameters())  # adapters', too
    kind = (type(stack.model), stack.model.config.to_json_string(), names)
    if kind not in _KNOWN:
        leaves_out = any(getattr(module, "layerdrop", 0) for module in stack.model.modules())
        _KNOWN[kind] = not leaves_out and _tried(stack)
    return _KNOWN[kind]


_KNOWN: dict[Any, bool] = {}


def _tried(stack: Stack) -> bool:
    with torch.inference_mode(False), torch_seeded(0, "stacked"):
        copies = [_changed(stack) for _ in range(2)]
        batch = {name: values[[0, 1, 1]] for name, values in sample_batch(stack.model).items()}
        alone = [one.logits(batch) for one in copies]
        wanted = [_gradients(one.model, logits) for one, logits in zip(copies, alone, strict=True)]
        try:
            together = Stacked(copies)
            logits = together.logits({name: torch.cat([x, x]) for name, x in batch.items()})
            gradients = _gradients(together.model, logits)
            if _draws_otherwise(together, batch):
                return False
        except (CannotStack, RuntimeError, TypeError, AttributeError, IndexError):
            return False  # something is done with its weights that stacking does not know
    alone_gradients = [torch.stack(same) for same in zip(*wanted, strict=True)]
    # Some gradients are zero but for noise (of a bias that softmax takes out, say).
    noise = 1e-5 * max(float(gradient.abs().max()) for gradient in alone_gradients)
    pairs = [
        (logits.detach(), torch.cat(alone).detach()),
        *zip(gradients, alone_gradients, strict=True),
    ]
    return all(torch.allclose(one, other, rtol=1e-3, atol=noise) for one, other in pairs)


def _draws_otherwise(stack: Stacked, batch: Batch) -> bool:
    """Return whether a training forward pass draws numbers that are not each member's own."""
    stack.model.train()
    with torch.no_grad(), dropout_seeded([0, 1], stack.device, "tried"):
        before = _generator_states(stack.device)
        stack.logits({name: torch.cat([x, x]) for name, x in batch.items()})
    after = _generator_states(stack.device)
    return not all(map(torch.equal, before, after))


def _generator_states(device: torch.device) -> list[Tensor]:
    places = [torch] if device.type == "cpu" else [torch, torch.get_device_module(device)]
    return [place.get_rng_state() for place in places]


def _changed(stack: Stack) -> Stack:
    """Return a copy of the model with other weights, without dropout."""
    changed = stack.copied()
    changed.model.eval()
    with torch.no_grad():
        for parameter in changed.model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05).requires_grad_(True)
    return changed


def _gradients(model: nn.Module, logits: Tensor) -> list[Tensor]:
    parameters = list(model.parameters())
    weights = torch.arange(1, logits.numel() // len(logits) + 1, device=logits.device)
    gradients = torch.autograd.grad(
        (logits * weights).square().sum(), parameters, allow_unused=True
    )
    return [
        torch.zeros_like(p) if g is None else g for p, g in zip(parameters, gradients, strict=True)
    ]
