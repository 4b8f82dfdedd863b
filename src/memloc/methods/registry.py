"""Finds every method by name: memloc's own, and those that other packages register."""

import os
import sys
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from memloc.errors import MemlocError, ModelError, SettingsError, UnknownName, in_words, lookup
from memloc.methods import Kind, Method
from memloc.protocol import CommonSettings
from memloc.settings import checked

ENTRY_POINTS = "memloc.methods"
"""Entry point group under which other packages register methods."""
GIVEN = "MEMLOC_METHODS"
"""Environment variable with methods that no package registers, as `module:Class`, separated by
commas.
"""


@cache
def methods() -> dict[str, type[Method]]:
    """Return every method by name: memloc's own, then those of other packages that can be
    loaded.
    """
    theirs = {n: method for n, method in _theirs().items() if not isinstance(method, Exception)}
    return {**_ours(), **theirs}


def forget_methods() -> None:
    """Forget the known methods, so that newly added ones are found."""
    methods.cache_clear()
    _theirs.cache_clear()


def method_names(kind: Kind) -> tuple[str, ...]:
    """Return the names of memloc's own methods of a kind that run by default."""
    ours = _ours().items()
    return tuple(name for name, method in ours if method.kind == kind and method.by_default)


def trivial_names() -> tuple[str, ...]:
    """Return the names of the baselines that a method worth its name has to beat."""
    return tuple(name for name, method in methods().items() if method.is_trivial)


def by_reference() -> set[str]:
    """Return the localisers that insert the reference's weights, so depend on what it learnt."""
    return {name for name, method in methods().items() if "reference" in method().needs}


def exactness(name: str) -> int:
    """Return the exactness of the method called `name`; 0 if it is not installed."""
    return methods()[name].exactness if name in methods() else 0


def brought(what: str) -> dict[str, Any]:
    """Return what all installed methods add to the report under this name, such as `events`."""
    every = (method.report.get(what, {}) for method in methods().values())
    return {name: value for facts in every for name, value in facts.items()}


def find_method(name: str, kind: Kind | None = None) -> type[Method]:
    """Return the method called `name`; raise with the reason if it could not be loaded."""
    known = {n: m for n, m in methods().items() if kind in {None, m.kind}}
    broken = _theirs().get(name) if isinstance(name, str) else None
    if isinstance(broken, Exception) and name not in methods():
        message = str(broken) if isinstance(broken, MemlocError) else in_words(broken)
        why = message.rstrip(".")
        raise ModelError(f"Method {name!r} could not be loaded: {why}.") from broken
    if isinstance(name, str) and name in methods() and name not in known:
        raise UnknownName(f"{name} is not {OTHER_KIND[str(kind)]}.")
    return lookup("method" if kind != "analysis" else "analysis", name, known)


OTHER_KIND = {
    "localiser": "a localiser: use `memloc analyse`",
    "analysis": "an analysis: use `memloc localise`",
}
"""End of the message for a method that was given to the wrong command, by its kind."""


def _ours() -> dict[str, type[Method]]:
    from memloc.methods.centroids import Centroids
    from memloc.methods.gradients import Gradients
    from memloc.methods.halves import Generalisation
    from memloc.methods.label_probes import LabelProbes
    from memloc.methods.peers import PEERS
    from memloc.methods.probing import Probing
    from memloc.methods.retraining import Retraining
    from memloc.methods.shares import Shares
    from memloc.methods.swapping import Swapping
    from memloc.methods.timeline import Timeline
    from memloc.methods.trivial import TRIVIAL

    ours: tuple[type[Method], ...] = (
        *(Swapping, Retraining, Gradients, Probing, Shares),
        *(Centroids, LabelProbes, Generalisation, Timeline),
        *TRIVIAL,
        *PEERS,
    )
    return {method.name: method for method in ours}


@cache
def _theirs() -> dict[str, Any]:
    given = [place for place in os.environ.get(GIVEN, "").split(",") if place]
    registered = {point.name: _loaded(point) for point in entry_points(group=ENTRY_POINTS)}
    return {**registered, **{method.name: method for method in map(load_given, given)}}


def load_given(place: str) -> type[Method]:
    """Load the method at `module:Class`; modules in the current folder are found, too."""
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    try:
        loaded = EntryPoint("", place, ENTRY_POINTS).load()
    except Exception as error:
        raise ModelError(
            f"Method {place!r} could not be loaded: {in_words(error).rstrip('.')}. Give it as "
            "module:Class."
        ) from error
    _check(EntryPoint(getattr(loaded, "name", place), place, ENTRY_POINTS), loaded)
    method: type[Method] = loaded
    return method


def _loaded(point: EntryPoint) -> Any:
    """Return a method's class, or the error if it does not load, which must not stop the others."""
    try:
        method = point.load()
        _check(point, method)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is theirs
        return error
    return method


def _check(point: EntryPoint, found: Any) -> None:
    is_method = isinstance(found, type) and issubclass(found, Method)
    if not is_method or getattr(found, "name", None) != point.name:
        raise SettingsError(f"{point.value} is not a memloc.Method called {point.name!r}")
    if point.name in _ours() or point.name in {*dir(CommonSettings()), "method"}:
        raise SettingsError(f"memloc has something else called {point.name!r}")
    if not hasattr(found, "needs"):
        raise SettingsError(f"{point.value} does not say which weights it `needs`")
    checked(found, {})  # every setting has a default, as presets hold all methods
