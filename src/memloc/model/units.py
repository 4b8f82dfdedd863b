"""Units: named groups of block parameters that are exchanged as one.

A layer is the default unit. A sublayer is a block's attention or its MLP, each with its norm. The
two are told apart by their function and not by their names: attention is the only place in a block
where positions exchange information. One position of a short text is made NaN, and where NaN
spreads to other positions, there is attention. So blocks of any family can be taken apart,
including those that compute attention and MLP in parallel.
"""

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from memloc.errors import ModelError, SettingsError
from memloc.model.stack import BlockCall, Stack, undropped
from memloc.model.streamed import with_sources
from memloc.stats.windows import SUBLAYERS

Units = dict[str, tuple[str, ...]]
"""Parameter names by the name of their unit, in the order in which a text meets the units."""
ATTENTION, MLP = SUBLAYERS


def find_units(stack: Stack, units: str | Mapping[str, Sequence[str]]) -> Units:
    """Return a model's units: `layers`, `sublayers`, or groups of parameters named by a user."""
    if units == "layers":
        return {f"{i + 1}": names for i, names in enumerate(_names_by_block(stack))}
    if units == "sublayers":
        return sublayer_units(stack)
    if isinstance(units, str):
        raise SettingsError(
            f"No units are called {units!r}: use layers or sublayers, or map names of units to "
            "names of parameters."
        )
    return own_units(stack, units)


def own_units(stack: Stack, given: Mapping[str, Sequence[str]]) -> Units:
    """Return the units that a user named; each block parameter must be in exactly one."""
    in_blocks = [name for names in _names_by_block(stack) for name in names]
    every = dict(stack.model.named_parameters())
    owner: dict[str, str] = {}
    for unit, patterns in given.items():
        for pattern in [patterns] if isinstance(patterns, str) else patterns:
            fitting = [name for name in every if fnmatchcase(name, pattern)]
            if not fitting:
                raise SettingsError(
                    f"Unit {unit!r}: no parameter of {type(stack.model).__name__} fits "
                    f"{pattern!r}; one of them is called {in_blocks[0]}."
                )
            for name in fitting:
                if name not in in_blocks:
                    raise SettingsError(
                        f"Unit {unit!r} has the parameter {name}, which is outside the blocks: "
                        "embeddings and head are always those of the final model."
                    )
                if owner.setdefault(name, unit) != unit:
                    raise SettingsError(
                        f"Units {owner[name]!r} and {unit!r} both have the parameter {name}: give "
                        "each parameter to one unit."
                    )
    if left_out := [name for name in in_blocks if name not in owner]:
        raise SettingsError(
            f"{len(left_out)} parameters of the blocks are in no unit, {left_out[0]} among them: "
            "give each parameter to one unit."
        )
    units = dict.fromkeys(owner[name] for name in in_blocks)
    return {unit: tuple(n for n in in_blocks if owner[n] == unit) for unit in units}


def sublayer_units(stack: Stack) -> Units:
    """Return the attention and the MLP of every layer, each with its norm."""
    names = {id(p): name for name, p in stack.model.named_parameters()}
    units: Units = {}
    with torch.inference_mode(), undropped(stack.model):
        prepared = stack.prepare(stack.sample(1))
        state = prepared.state
        for index, call in enumerate(prepared.calls):
            parts = _Taken(stack, index, state, call).parts()
            for part in SUBLAYERS:
                units[f"{part} {index + 1}"] = tuple(names[id(p)] for p in parts[part])
            state = stack.run(index, state, call)
    return units


def met_by(stack: Stack, units: Units) -> list[int]:
    """Return, for each layer of a model, the units that it has a part of, as bits."""
    owner = {name: 1 << bit for bit, names in enumerate(units.values()) for name in names}
    names = {id(p): name for name, p in stack.model.named_parameters()}
    return [sum({owner[names[id(p)]] for p in block.parameters()}) for block in stack.blocks]


def exchanged(block: nn.Module, donor: nn.Module, names: Collection[str]) -> nn.Module:
    """Return a block with the named parameters taken from the donor.

    No weight is copied: the new block shares the parameters and buffers of both blocks.
    """
    lent = dict(donor.named_parameters())
    shared: dict[int, Any] = {id(buffer): buffer for buffer in block.buffers()}
    for name, parameter in block.named_parameters():
        shared[id(parameter)] = lent[name] if name in names else parameter
    return with_sources(copy.deepcopy(block, shared), block, donor, names)


def _names_by_block(stack: Stack) -> list[tuple[str, ...]]:
    names = {id(p): name for name, p in stack.model.named_parameters()}
    return [tuple(names[id(p)] for p in block.parameters()) for block in stack.blocks]


@dataclass
class _Call:
    """A call of a module that has parameters of its own."""

    module: nn.Module
    given: tuple[Tensor, ...]
    returned: tuple[Tensor, ...]


class _Taken:
    """A block that is run on a short text to tell its attention modules from its MLP modules."""

    def __init__(self, stack: Stack, index: int, state: Tensor, call: BlockCall) -> None:
        self.stack, self.index, self.state, self.call = stack, index, state, call
        self.block = stack.blocks[index]
        self.modules = [m for m in self.block.modules() if m is not self.block and _has_own(m)]

    def parts(self) -> dict[str, list[nn.Parameter]]:
        """Divide the block's parameters into those of attention and those of the MLP."""
        calls = self._run(poisoned=True)
        order = list(dict.fromkeys(id(call.module) for call in calls))
        by_id = {id(m): m for m in self.modules}
        met_before = {id(c.module) for c in calls if self._has_met(c.given)}
        mixes = {id(c.module) for c in calls if self._has_met(c.returned)} - met_before
        behind = [i for i in order if i in met_before]
        end = next((i for i in behind if _is_matrix(by_id[i])), None)
        if end is None or mixes:
            raise self._cannot()  # positions meet inside a module: it may be more than attention
        attention = {i for i in order if i not in met_before and self._feeds(by_id[i], end)}
        attention |= {*behind[: behind.index(end) + 1]}
        attention |= self._norms_of_attention(by_id, behind[behind.index(end) + 1 :], end)
        kind = {i: ATTENTION if i in attention else MLP for i in order}
        by_part: dict[str, list[nn.Parameter]] = {ATTENTION: [], MLP: []}
        seen: set[int] = set()
        for module, path in self._with_path():
            owner = next((kind[id(m)] for m in reversed(path) if id(m) in kind), None)
            if owner is None:
                raise self._cannot()
            parameters = [p for p in module.parameters(recurse=False) if id(p) not in seen]
            seen |= {id(p) for p in parameters}
            by_part[owner] += parameters
        if not all(by_part.values()):
            raise self._cannot()
        return by_part

    def _feeds(self, module: nn.Module, end: int) -> bool:
        """Return whether attention depends on the output of a module."""
        plain, other = (
            [c.given for c in self._run(broken=part) if id(c.module) == end]
            for part in (None, module)
        )
        return not all(torch.equal(a, b) for a, b in zip(plain[0], other[0], strict=True))

    def _norms_of_attention(
        self, by_id: Mapping[int, nn.Module], behind: Sequence[int], end: int
    ) -> set[int]:
        """Return the norms between attention's last matrix and the MLP that belong to attention.

        A norm (or scale) that works on attention's output alone belongs to it. So does the first
        norm of a block that normalises after adding (as BERT does), but not that of one which
        normalises before.
        """
        of_attention: set[int] = set()
        silent = {id(c.module): c for c in self._run(silent=by_id[end])}
        normalises_first = not _is_matrix(self._run()[0].module)
        for i in behind:
            if _is_matrix(by_id[i]):
                break
            is_alone = i in silent and all(bool((t == 0).all()) for t in silent[i].given)
            if is_alone or (not normalises_first and not of_attention):
                of_attention.add(i)
            else:
                break
        return of_attention

    def _run(
        self,
        *,
        poisoned: bool = False,
        broken: nn.Module | None = None,
        silent: nn.Module | None = None,
    ) -> list[_Call]:
        """Run the block and record the calls of its modules.

        Args:
            poisoned: Whether the first position is made NaN.
            broken: Module that returns other numbers.
            silent: Module that returns zeros.
        """
        calls: list[_Call] = []
        state = self.state.clone()
        if poisoned:
            state[:, 0] = torch.nan

        def note(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            calls.append(_Call(module, _floats((args, kwargs)), _floats(output)))
            if module is broken and isinstance(output, Tensor):
                return output.flip(-1) + 1
            return torch.zeros_like(output) if module is silent else output

        with _hooked(self.modules, note):
            self.stack.run(self.index, state, self.call)
        return calls

    def _has_met(self, tensors: tuple[Tensor, ...]) -> bool:
        """Return whether NaN has spread beyond the one position that was made NaN."""
        return any(float(t.isnan().float().mean()) > 1.01 / self.state.shape[1] for t in tensors)

    def _with_path(self) -> Iterator[tuple[nn.Module, list[nn.Module]]]:
        """Yield each module with parameters of its own, and its path: the modules around it and
        itself.
        """
        named = dict(self.block.named_modules())
        for name, module in named.items():
            if not _has_own(module):
                continue
            ends = [i for i, letter in enumerate(name) if letter == "."]
            yield module, [*(named[name[:i]] for i in ends), module]

    def _cannot(self) -> ModelError:
        return ModelError(
            f"Layer {self.index + 1} of {type(self.stack.model).__name__} cannot be taken apart "
            "into attention and MLP: use layers, or name the parameters of your own units."
        )


@contextmanager
def _hooked(modules: Sequence[nn.Module], hook: Any) -> Iterator[None]:
    with ExitStack() as hooks:
        for module in modules:
            hooks.enter_context(module.register_forward_hook(hook, with_kwargs=True))
        yield


def _has_own(module: nn.Module) -> bool:
    return any(True for _ in module.parameters(recurse=False))


def _is_matrix(module: nn.Module) -> bool:
    """Return whether a module has a matrix of parameters; norms and scales have vectors only."""
    return any(p.ndim > 1 for p in module.parameters(recurse=False))


def _floats(value: Any) -> tuple[Tensor, ...]:
    """Return the floating-point tensors with positions among a module's arguments or outputs."""
    leaves = tree_leaves(value)
    return tuple(t for t in leaves if isinstance(t, Tensor) and t.is_floating_point() and t.ndim)
