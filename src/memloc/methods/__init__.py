"""The contract of a method.

A method is a group of settings with a name, the weights that it needs, its cost, and one function,
`run`. Planner, estimates, command line and report read these facts from the method only.
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
from memloc.model.shape import Shape
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
    """Sizes of data, model and machine that determine how long a method takes."""

    examples: float
    noisy: float
    depth: int
    update: float
    """Seconds of an update, per example."""
    predict: float
    """Seconds of a prediction, per example."""
    layer: float
    """Seconds of a layer of mixtures of two models, per example."""
    last_layer: float
    """Seconds of their last layer, of which the readout position alone is computed."""
    probe: float
    """Seconds of an epoch of probes on all layers, per example."""
    all_gradients: bool = False
    """True if an update computes the gradients of all layers, trained or not."""


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
    """A function of a run that returns tables; its settings are its fields."""

    name: ClassVar[str]
    """Name of the method in commands, study files and tables."""
    kind: ClassVar[Kind] = "localiser"
    """A localiser weighs layers; an analysis returns other tables."""
    needs: ClassVar[tuple[str, ...]]
    """Weights that the method cannot run without: pretrained, frozen, reference, memorised, final.

    Where settings decide them, this is a property; so ask an object of the class, not the class.
    """
    version: ClassVar[int] = 1
    """Version of the computation; raising it makes stored results out of date."""
    labels_only: ClassVar[str] = "it was written for labels"
    """Reason why the method has no meaning for memorised texts; empty if it has one."""
    by_default: ClassVar[bool] = True
    """True if the method runs when no method is named."""
    is_trivial: ClassVar[bool] = False
    """True for a baseline that other methods have to beat."""
    scratch: ClassVar[bool] = False
    """True if unfinished work is large and can be deleted once the result is stored."""
    uses: ClassVar[tuple[str, ...]] = ()
    """Weights that the method also uses if the run has them."""
    shows: ClassVar[Mapping[str, str]] = {}
    """Further tables for the report, with their names among a study's tables.

    The report always shows the `layers` of a localiser, and `layers`, `events` and `summary` of an
    analysis.
    """
    exactness: ClassVar[int] = 0
    """Rank of how exactly the method tells layers apart by changing them; 0 if it changes no layer.

    A study's answer is the answer of the most exact method.
    """
    report: ClassVar[Mapping[str, Any]] = {}
    """Facts about the method for the report, by the names below; memloc's own are in a YAML file.

    `columns` of the tables that it shows, `figures` and `tables` (described as in
    `reporting/assets`), `rows` (by figure: a function that turns its table into the drawn rows),
    `derives` (by table: a function of a study's results), `events` (their names and meanings),
    `scores` (the table that says how well a task generalises), `apart` (methods left out of means
    over methods, with the reason), `by` (the method's name in a
    sentence) and `intervals` (how the ends of its weights are computed).
    """

    @abstractmethod
    def run(self, run: Run) -> Result | Tables | LayerWeights:
        """Apply the method to a run and return its tables or weights; nothing is written.

        A localiser returns the weight of each layer, or its tables by name: `layers` has one row
        per layer with its `weight` and, if known, the ends `low` and `high` of its interval. An
        analysis returns its tables by name. The report draws its `layers` (rows with a `layer` and
        a number), counts its `events` with those of other methods, and prints its `summary` as a
        table.
        """

    def found(self, run: Run) -> Result:
        """Run the method and return its tables or weights as a result."""
        output = self.run(run)
        if isinstance(output, Result):
            return output
        if isinstance(output, Mapping) and self.kind == "analysis":
            return Result(self.name, output)
        return _scores(self.name, output, run.depth)

    @classmethod
    def told(cls, found: Result) -> str:  # noqa: ARG003
        """Return a sentence on the result; empty to use the report's own words."""
        return ""

    @classmethod
    def picture(cls, found: Result) -> str:  # noqa: ARG003
        """Draw the result for the terminal; empty if there is nothing to draw."""
        return ""

    def used(self, run: Run) -> list[str]:
        """Return the names of the run's weights that the method reads."""
        return [*self.needs, *(weights for weights in self.uses if run.has(weights))]

    def check(self, run: Run) -> None:
        """Refuse settings that do not suit a run, before any weights are loaded."""

    def cost(self, sizes: Sizes) -> float:
        """Return about how many seconds the method takes."""
        return sizes.depth * sizes.examples * sizes.predict

    def memory(self, shape: Shape, training: float) -> float:  # noqa: ARG002
        """Return the bytes that the method adds to its process; by default those of a
        training.

        Args:
            shape: Size of the model.
            training: Bytes of weights, gradients, two moments and the states of a batch.
        """
        return training


Named: TypeAlias = str | Method | type[Method]
"""A method as users may give it: its name, or an object or class, registered or not."""


def _scores(method: str, made: Tables | LayerWeights, depth: int) -> Result:
    """Return the tables or weights of a localiser as a result."""
    tables = made if isinstance(made, Mapping) else {"layers": as_table({"weight": made})}
    layers = tables.get("layers", as_table({"weight": []}))
    if len(layers) != depth:
        counts = f"{counted(len(layers), 'weight')} for {counted(depth, 'layer')}"
        raise ModelError(f"{method} gave {counts}: one for each is needed.")
    filled = layers.reindex(columns=["weight", "low", "high"]).to_numpy(dtype=float)
    weights, low, high = filled.T
    others = {name: table for name, table in tables.items() if name != "layers"}
    return Result.of(method, weights, (low, high), tables=others)


def drawn(
    rows: IntArray, n: int | None, seed: int, method: str, examples: str = "clean"
) -> IntArray:
    """Return at most `n` of the rows, drawn at random for a method; without `n`, all rows.

    Args:
        rows: Rows of the examples to draw from.
        n: Number of rows to return.
        seed: Seed of the run.
        method: Name of the method, which decides its random numbers.
        examples: Kind of the examples, so that noisy and clean ones are drawn independently.
    """
    if n is None or n >= len(rows):
        return rows
    return np.sort(generator(seed, method, examples).choice(rows, n, replace=False))
