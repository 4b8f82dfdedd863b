"""Every type in a public signature is public and documented."""

import inspect
import sys
import typing

import datasets
import pandas as pd

import memloc
from memloc import types


def kinds_in(annotation):
    """Yield the classes of memloc in an annotation."""
    if isinstance(annotation, type) and not typing.get_origin(annotation):
        if annotation.__module__.startswith("memloc"):
            yield annotation
    elif isinstance(annotation, list):
        for inner in annotation:
            yield from kinds_in(inner)
    else:
        yield from kinds_in(list(typing.get_args(annotation)))


def signatures():
    """Yield every public function, and every public method of a public class that is no method of
    localisation, with the types of its parameters and of what it returns."""
    for name in memloc.__all__:
        found = getattr(memloc, name)
        if not isinstance(found, type):
            yield name, found
        elif not issubclass(found, memloc.Method) or found is memloc.Method:
            for part, value in vars(found).items():
                function = getattr(value, "fget", None) or getattr(value, "func", value)
                function = getattr(function, "__func__", function)
                if not part.startswith("_") and part != "card" and inspect.isfunction(function):
                    yield f"{name}.{part}", function


def test_every_type_in_a_public_signature_is_public():
    later = {"pd": pd, "datasets": datasets, **{n: getattr(types, n) for n in types.__all__}}
    later |= {name: getattr(memloc, name) for name in memloc.__all__}
    public = {id(value) for value in later.values()}
    seen = {}
    for name, function in signatures():
        plain = inspect.unwrap(function)
        known = {**later, **vars(sys.modules[plain.__module__])}
        for annotation in typing.get_type_hints(plain, known).values():
            seen |= dict.fromkeys(kinds_in(annotation), name)
    assert types.Found in seen
    assert types.Task in seen
    assert not {kind.__name__: name for kind, name in seen.items() if id(kind) not in public}


def test_there_are_few_public_names_and_each_has_a_docstring():
    assert len(memloc.__all__) <= 26
    every = [getattr(memloc, name) for name in memloc.__all__]
    every += [getattr(types, name) for name in types.__all__ if name != "Data"]
    assert not [found for found in every if not inspect.getdoc(found)]
