"""The board: a frozen recipe of easy and hard plants on which localisers are compared."""

import os
from collections.abc import Sequence
from pathlib import Path

from memloc.methods import Sizes
from memloc.methods import protocol as protocols
from memloc.methods.registry import GIVEN, find_method, load_given, method_names, methods
from memloc.settings import packaged
from memloc.study.plan import Plan, control_plan

RECIPES = packaged(__file__)
TYPICAL = Sizes(
    examples=96,
    noisy=14,
    depth=12,
    update=3.0,
    predict=1.0,
    layer=1 / 12,
    last_layer=1 / 12,
    probe=0.03,
)
"""Sizes of a plant of the board, with times in forward passes instead of seconds."""


def board_plan(out: Path, named: Sequence[str], *, small: bool = False) -> Plan:
    """Plan the board's plants for these methods, or for all of memloc's localisers.

    A method may be named as `module:Class`, which needs no package that registers it.
    """
    chosen = [add_method(name) if ":" in name else find_method(name).name for name in named]
    recipe = RECIPES["small" if small else "full"]
    trivial = [name for name, method in methods().items() if method.is_trivial]
    every = [*(chosen or [*method_names("localiser"), *_compared()]), *trivial]
    block = {**recipe["control"], "methods": list(dict.fromkeys(every))}
    return control_plan(out, recipe["study"], block)


def add_method(place: str) -> str:
    """Register the method at `module:Class` here and in child processes; return its name."""
    name = load_given(place).name
    known = [known_place for known_place in os.environ.get(GIVEN, "").split(",") if known_place]
    os.environ[GIVEN] = ",".join(dict.fromkeys([*known, place]))
    protocols.forget()
    return name


def cost(method: str) -> float:
    """Return about how many forward passes a method takes for each noisy example."""
    return find_method(method)().cost(TYPICAL) / TYPICAL.noisy


def _compared() -> list[str]:
    """Return the localisers of other papers, which run only if they are named."""
    return [
        name
        for name, method in methods().items()
        if method.kind == "localiser" and not method.by_default and not method.is_trivial
    ]
