"""The contract of a method, and how others register theirs.

A method is a group of settings with a name, the weights that it needs, what it costs, and one
verb. Planner, estimates, command line and report read these facts from it and from nowhere else.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import numpy as np
from pydantic import ValidationError

from memloc.arrays import FloatArray, IntArray, Table
from memloc.errors import (
    MemlocError,
    ModelError,
    SettingsError,
    UnknownName,
    counted,
    in_words,
    lookup,
)
from memloc.methods.result import Result
from memloc.run.folder import Run
from memloc.seeds import generator
from memloc.settings import Settings, checked, first_fault
from memloc.store.records import as_table

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass

    from memloc.protocol import Protocol

Tables = Mapping[str, Table]
Weights = Sequence[float] | FloatArray
ENTRY_POINTS = "memloc.methods"
"""Other packages register a method under this group."""
Kind = Literal["localiser", "analysis"]


@dataclass(frozen=True)
class Sizes:
    """What decides how long a method takes: the data, the model and the machine."""

    examples: float
    noisy: float
    depth: int
    update: float
    """Seconds of an update, per example."""
    predict: float
    """Seconds of a prediction."""
    probe: float
    """Seconds of an epoch of probes on all layers, per example."""
    all_gradients: bool = False
    """Whether an update computes the gradients of all layers, trained or not."""


if TYPE_CHECKING:
    _Checked = ModelMetaclass
else:

    class _Checked(type(Settings)):
        """The class of methods: a wrong setting of `Shares(...)` is refused in a sentence."""

        def __call__(cls, *args: Any, **settings: Any) -> Any:
            """Make the method, or say which setting is wrong."""
            try:
                return super().__call__(*args, **settings)
            except ValidationError as error:
                raise SettingsError(f"{cls.__name__}: setting {first_fault(error)}") from None


class Method(Settings, ABC, metaclass=_Checked):
    """Anything that looks at a run and leaves tables; its settings are its fields."""

    name: ClassVar[str]
    """What it is called by, in commands, study files and tables."""
    kind: ClassVar[Kind] = "localiser"
    """A localiser weighs layers; an analysis leaves other tables."""
    needs: ClassVar[tuple[str, ...]]
    """Weights without which it cannot run: pretrained, frozen, reference, memorised, final."""
    version: ClassVar[int] = 1
    """Raised when the same settings give other results, so that stored results are made again."""
    by_default: ClassVar[bool] = True
    """Whether it runs where no method is named."""
    is_trivial: ClassVar[bool] = False
    """Whether it is a baseline that other methods have to beat."""
    scratch: ClassVar[bool] = False
    """Whether its unfinished work is large and can be deleted once the result is there."""
    uses: ClassVar[tuple[str, ...]] = ()
    """Weights that it also uses if they are there."""
    shows: ClassVar[Mapping[str, str]] = {}
    """Further tables for the report, and what each is called among the tables of a study.

    Of a localiser, `layers` is shown anyway; of an analysis `layers`, `events` and `summary`.
    """
    exactness: ClassVar[int] = 0
    """How exactly it tells layers apart by changing them; 0 if it changes no layer.

    The answer to a study is that of the most exact method.
    """
    report: ClassVar[Mapping[str, Any]] = {}
    """What the report knows of it, by the names below; our own methods keep it in a YAML file.

    `columns` of the tables that it shows, `figures` and `tables` (described as in
    `reporting/assets`), `rows` (by figure: a function of its table that returns what is drawn),
    `derives` (by table: a function of a study's results), `events` (what they are called and what
    they mean), `scores` (the table that says how well a task generalises), `by` (how a sentence
    names the method) and `intervals` (how the ends of its weights come about).
    """

    @abstractmethod
    def run(self, run: Run) -> Result | Tables | Weights:
        """Look at a run, and give what was found; nothing is written.

        A localiser gives the weight of each layer, or its tables by name: `layers` has a row per
        layer with its `weight` and, if known, the ends `low` and `high` of its interval. An
        analysis gives its tables by name. The report draws its `layers`, rows with a `layer` and a
        number, counts its `events` among those of others, and has its `summary` as a table.
        """

    def found(self, run: Run) -> Result:
        """What `run` gives, as a result."""
        made = self.run(run)
        if isinstance(made, Result):
            return made
        if isinstance(made, Mapping) and self.kind == "analysis":
            return Result(self.name, made)
        return _scores(self.name, made, run.depth)

    @classmethod
    def told(cls, found: Result) -> str:  # noqa: ARG003
        """Say in a sentence what it found; empty if the report's own words will do."""
        return ""

    @classmethod
    def picture(cls, found: Result) -> str:  # noqa: ARG003
        """Draw what it found for the terminal; empty if there is nothing to draw."""
        return ""

    def check(self, run: Run) -> None:
        """Refuse settings that do not fit a run, before any weights are loaded."""

    def cost(self, sizes: Sizes) -> float:
        """About how many seconds it takes."""
        return sizes.depth * sizes.examples * sizes.predict


Named: TypeAlias = str | Method | type[Method]
"""How a method may be given: by its name, or as an object or class, registered or not."""


def _scores(method: str, made: Tables | Weights, depth: int) -> Result:
    """What a localiser gave, as a result."""
    tables = made if isinstance(made, Mapping) else {"layers": as_table({"weight": made})}
    layers = tables.get("layers", as_table({"weight": []}))
    if len(layers) != depth:
        said = f"{counted(len(layers), 'weight')} for {counted(depth, 'layer')}"
        raise ModelError(f"{method} gave {said}: one for each is needed.")
    filled = layers.reindex(columns=["weight", "low", "high"]).to_numpy(dtype=float)
    weights, low, high = filled.T
    others = {name: table for name, table in tables.items() if name != "layers"}
    return Result.of(method, weights, (low, high), tables=others)


def drawn(rows: IntArray, n: int | None, seed: int, method: str, kind: str = "clean") -> IntArray:
    """At most `n` of the rows, drawn at random for a method; without `n`, all."""
    if n is None or n >= len(rows):
        return rows
    return np.sort(generator(seed, method, kind).choice(rows, n, replace=False))


@cache
def methods() -> dict[str, type[Method]]:
    """Every method by name: memloc's own, then those that other packages bring and that load."""
    theirs = {name: kind for name, kind in _theirs().items() if not isinstance(kind, Exception)}
    return {**_ours(), **theirs}


def method_names(kind: Kind) -> tuple[str, ...]:
    """memloc's own methods of a kind: those that run where none is named."""
    ours = _ours().items()
    return tuple(name for name, method in ours if method.kind == kind and method.by_default)


def by_reference() -> set[str]:
    """Localisers that put the reference's weights in: they count where it learnt its labels."""
    return {name for name, method in methods().items() if "reference" in method.needs}


def exactness(name: str) -> int:
    """Return the exactness of the method called `name`; of one that is not installed, 0."""
    return methods()[name].exactness if name in methods() else 0


def brought(what: str) -> dict[str, Any]:
    """Return what all installed methods bring to the report under this name, such as `events`."""
    every = (method.report.get(what, {}) for method in methods().values())
    return {name: value for each in every for name, value in each.items()}


def find_method(name: str, kind: Kind | None = None) -> type[Method]:
    """The method called `name`; one that could not be loaded says why."""
    known = {n: m for n, m in methods().items() if kind in {None, m.kind}}
    broken = _theirs().get(name) if isinstance(name, str) else None
    if isinstance(broken, Exception) and name not in methods():
        said = str(broken) if isinstance(broken, MemlocError) else in_words(broken)
        why = said.rstrip(".")
        raise ModelError(f"Method {name!r} could not be loaded: {why}.") from broken
    if isinstance(name, str) and name in methods() and name not in known:
        raise UnknownName(f"{name} is not {_OTHER[str(kind)]}.")
    return lookup("method" if kind != "analysis" else "analysis", name, known)


_OTHER = {
    "localiser": "a localiser: use `memloc analyse`",
    "analysis": "an analysis: use `memloc localise`",
}
"""What a method is not, if it was given to the command for the other kind."""
_NAME = re.compile("[A-Za-z0-9_-]{1,100}")
"""Names of methods are names of folders."""


def requested(
    named: Named | Sequence[Named], kind: Kind, protocol: "Protocol", settings: Mapping[str, Any]
) -> list["Method"]:
    """The methods that were asked for, with their settings; those of names are the protocol's."""
    alone = isinstance(named, str | Method | type)
    if not alone and not isinstance(named, Sequence):
        raise SettingsError(
            f"Methods are given by name, such as 'shares', or as memloc.Method objects, "
            f"not as {type(named).__name__}."
        )
    every: Sequence[Any] = [named] if alone else named  # type: ignore[assignment]
    if not every:
        raise SettingsError(
            "The list of methods is empty: name at least one, or leave it out to use all that can "
            "run."
        )
    return [_requested(method, kind, protocol, settings) for method in every]


def _requested(
    given: Any, kind: Kind, protocol: "Protocol", settings: Mapping[str, Any]
) -> "Method":
    is_class = isinstance(given, type) and issubclass(given, Method)
    if not is_class and not isinstance(given, Method):
        find_method(given, kind)
        return protocol.method(given)
    owner: Any = given if is_class else type(given)
    name = getattr(owner, "name", None)
    if not isinstance(name, str) or not _NAME.fullmatch(name) or not hasattr(owner, "needs"):
        raise SettingsError(
            f"{owner.__name__} needs a `name` (letters, digits, _ and -) and the weights that it "
            "`needs`, as every memloc.Method."
        )
    if owner.kind != kind:
        raise UnknownName(f"{name} is not {_OTHER[kind]}.")
    if methods().get(name, owner) is not owner:
        raise SettingsError(f"memloc has another method called {name!r}: rename {owner.__name__}.")
    if is_class and name in methods():
        return protocol.method(name)
    if any(key.split(".")[0] == name for key in settings):
        raise SettingsError(f"{name} was given as an object: change its settings there.")
    method: Method = checked(owner, {}) if is_class else given
    return method


def _ours() -> dict[str, type[Method]]:
    from memloc.methods.centroids import Centroids
    from memloc.methods.gradients import Gradients
    from memloc.methods.halves import Generalisation
    from memloc.methods.label_probes import LabelProbes
    from memloc.methods.probing import Probing
    from memloc.methods.retraining import Retraining
    from memloc.methods.shares import Shares
    from memloc.methods.swapping import AdapterOff, Swapping
    from memloc.methods.trivial import TRIVIAL

    kinds: tuple[type[Method], ...] = (
        *(Swapping, Retraining, Gradients, Probing, Shares),
        *(Centroids, LabelProbes, Generalisation, AdapterOff),
        *TRIVIAL,
    )
    return {kind.name: kind for kind in kinds}


@cache
def _theirs() -> dict[str, Any]:
    return {point.name: _loaded(point) for point in entry_points(group=ENTRY_POINTS)}


def _loaded(point: EntryPoint) -> Any:
    """A method's class, or what went wrong: one that does not load must not stop the others."""
    try:
        found = point.load()
        _check(point, found)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is theirs
        return error
    return found


def _check(point: EntryPoint, found: Any) -> None:
    from memloc.protocol import Protocol

    is_method = isinstance(found, type) and issubclass(found, Method)
    if not is_method or getattr(found, "name", None) != point.name:
        raise SettingsError(f"{point.value} is not a memloc.Method called {point.name!r}")
    if point.name in _ours() or hasattr(Protocol(), point.name):
        raise SettingsError(f"memloc has something else called {point.name!r}")
    if not hasattr(found, "needs"):
        raise SettingsError(f"{point.value} does not say which weights it `needs`")
    checked(found, {})  # every setting has a default, as presets hold all methods
