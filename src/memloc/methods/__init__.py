"""The contract of a method.

A method is a group of settings with a name, the weights that it needs, what it costs, and one
verb. Planner, estimates, command line and report read these facts from it and from nowhere else.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import numpy as np
from pydantic import ValidationError

from memloc.arrays import FloatArray, IntArray, Table
from memloc.errors import ModelError, SettingsError, counted
from memloc.methods.result import Result
from memloc.run.folder import Run
from memloc.seeds import generator
from memloc.settings import Settings, first_fault
from memloc.store.records import as_table

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass

Tables = Mapping[str, Table]
LayerWeights = Sequence[float] | FloatArray
Kind = Literal["localiser", "analysis"]


@dataclass(frozen=True)
class Sizes:
    """The sizes that decide how long a method takes: of data, model and machine."""

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
    """Name of the method in commands, study files and tables."""
    kind: ClassVar[Kind] = "localiser"
    """A localiser weighs layers; an analysis leaves other tables."""
    needs: ClassVar[tuple[str, ...]]
    """Weights without which it cannot run: pretrained, frozen, reference, memorised, final.

    Where settings decide it, this is a property; so ask the method, and not its class.
    """
    version: ClassVar[int] = 1
    """Raised when the same settings give other results, so that stored results are made again."""
    labels_only: ClassVar[str] = "it was written for labels"
    """Why it has no meaning for memorised texts; empty if it has one."""
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
    """Facts of the method for the report, by the names below; our own are in a YAML file.

    `columns` of the tables that it shows, `figures` and `tables` (described as in
    `reporting/assets`), `rows` (by figure: a function of its table that returns what is drawn),
    `derives` (by table: a function of a study's results), `events` (what they are called and what
    they mean), `scores` (the table that says how well a task generalises), `by` (how a sentence
    names the method) and `intervals` (how the ends of its weights come about).
    """

    @abstractmethod
    def run(self, run: Run) -> Result | Tables | LayerWeights:
        """Look at a run, and give what was found; nothing is written.

        A localiser gives the weight of each layer, or its tables by name: `layers` has a row per
        layer with its `weight` and, if known, the ends `low` and `high` of its interval. An
        analysis gives its tables by name. The report draws its `layers`, rows with a `layer` and a
        number, counts its `events` among those of others, and has its `summary` as a table.
        """

    def found(self, run: Run) -> Result:
        """Return what `run` gives as a result."""
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

    def used(self, run: Run) -> list[str]:
        """Name the weights of a run that it looks at."""
        return [*self.needs, *(weights for weights in self.uses if run.has(weights))]

    def check(self, run: Run) -> None:
        """Refuse settings that do not fit a run, before any weights are loaded."""

    def cost(self, sizes: Sizes) -> float:
        """About how many seconds it takes."""
        return sizes.depth * sizes.examples * sizes.predict


Named: TypeAlias = str | Method | type[Method]
"""How a method may be given: by its name, or as an object or class, registered or not."""


def _scores(method: str, made: Tables | LayerWeights, depth: int) -> Result:
    """Return what a localiser gave as a result."""
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
