"""Games: units of a model are exchanged with a donor's, and the labels that are lost are counted.

Three choices make a game. *Units* are the parts that are exchanged: layers, the attention and the
MLP of each layer, or groups of parameters that a user names. The *donor* gives the weights that
come in: the reference, the pre-trained model, an earlier epoch, the base of an adapter, or any
checkpoint in a folder. The *outcome* is counted for each example in each mixture of the two models
(`memloc.methods.mixtures`). `Shares` and `Swapping` play the same games and differ in their design,
which says which mixtures are computed.
"""

import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate
from operator import or_
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.filesize import decimal

from memloc.arrays import FloatArray, IntArray, Table
from memloc.data.encode import Encoded
from memloc.errors import DataError, ScoreError, SettingsError
from memloc.methods import Method, Sizes
from memloc.model.known import is_adapter
from memloc.progress import duration, tell, track
from memloc.run.folder import Run
from memloc.settings import ours
from memloc.stats.subsets import control, count_layers
from memloc.store import paths
from memloc.store.memo import ARRAYS, Maker, memo, unfinished_key
from memloc.store.records import as_table

if TYPE_CHECKING:
    from memloc.methods.mixtures import MixedBatch, Mixtures, Outcome
    from memloc.model.load import Classifier

BASE = "base"
"""Donor: the base model that an adapter was trained on."""
TIMED = 8
"""Number of mixtures that are timed to estimate the time of all."""
MOST_MEMORY = 4
"""Largest memory in GiB for the values of all mixtures."""


@dataclass(frozen=True)
class Selection:
    """Examples that a game is played with; one by default, for estimating its cost."""

    rows: Sequence[int] | IntArray = (0,)
    """Rows of the examples, noisy ones first."""
    n_noisy: float = 1
    """Number of noisy examples."""
    run: str = ""
    """Name of the run, which decides its random orders."""


@dataclass(frozen=True)
class Design:
    """Mixtures that a game computes, the same ones for all examples."""

    met: tuple[int, ...]
    """Units, as bits, that each layer has a part of."""
    listed: Sequence[int]
    """Subsets of units that come from the donor, as bits, from none to all."""

    @property
    def n_units(self) -> int:
        """Number of units."""
        return max(self.met).bit_length()

    @property
    def n_values(self) -> int:
        """Number of values kept per example; the first is for no unit and the last for all
        units.
        """
        return len(self.listed)

    @property
    def sizes(self) -> IntArray | None:
        """Number of exchanged units for each value; None if each example has its own mixtures."""
        return np.array([subset.bit_count() for subset in self.listed])

    @property
    def layers(self) -> int:
        """Number of layer computations that one text takes over all mixtures."""
        return count_layers(self.met, self.listed)

    @cached_property
    def in_layers(self) -> FloatArray:
        """Share of each unit in each layer, (units, layers): spread evenly over the unit's
        layers.
        """
        has = np.array([[met >> unit & 1 for met in self.met] for unit in range(self.n_units)])
        return np.asarray(has / has.sum(1, keepdims=True), dtype=np.float64)

    @property
    def announced(self) -> str:
        """Sentence to print before long work begins; empty if the work is not unusual."""
        return ""

    def subsets(self, example: int = 0) -> Sequence[int]:  # noqa: ARG002
        """Return the subsets that an example needs."""
        return self.listed

    def kept(self, values: FloatArray, example: int) -> FloatArray:  # noqa: ARG002
        """Arrange the values (..., subsets) of an example in the order in which they are kept."""
        return values


@dataclass(frozen=True)
class Played:
    """Outcomes of each example in each mixture."""

    design: Design
    rows: IntArray
    """Rows of the examples, noisy ones first."""
    n_noisy: int
    values: FloatArray
    """(values, examples, mixtures): whether the label is lost, and its margin.

    For texts: the share of tokens that are lost, and their log-probability.
    """
    outcome: "Outcome"
    names: list[str]
    """Names of the units; empty if they are layers."""
    about: dict[str, Any]

    @property
    def noisy(self) -> FloatArray:
        """Values of the noisy examples."""
        return self.values[:, : self.n_noisy]

    @property
    def clean(self) -> FloatArray:
        """Values of the clean examples."""
        return self.values[:, self.n_noisy :]

    def named(self, table: Table) -> Table:
        """Return a table of numbered units with their names, first and last layers."""
        has = self.design.in_layers > 0
        first = has.argmax(1) + 1
        last = has.shape[1] - has[:, ::-1].argmax(1)
        unit = table["layer"].to_numpy() - 1
        names = np.array(self.names, dtype=object)[unit]
        return table.drop(columns="layer").assign(unit=names, first=first[unit], last=last[unit])

    def example_tables(self, by_layer: FloatArray) -> dict[str, Table]:
        """Return tables of what each layer holds of each noisy example, and which labels are lost.

        `by_layer` (lost and margin, noisy examples, layers) becomes the columns `lost` and `share`
        (of the margin). The table `labels` has the final model's margin and whether exchanging all
        units loses the label, for noisy and clean examples.
        """
        depth = by_layer.shape[-1]
        lost, margin = (layers_of_one.ravel() for layers_of_one in by_layer)
        shares = {
            "example": np.repeat(self.rows[: self.n_noisy].astype(np.int32), depth),
            "layer": np.tile(np.arange(1, depth + 1), self.n_noisy),
            "share": -margin,
            "lost": lost,
        }
        (before, margins), (after, _) = self.values[:, :, [0, -1]].transpose(2, 0, 1)
        labels = {"example": self.rows, "is_noisy": np.arange(len(self.rows)) < self.n_noisy}
        labels |= {"margin": margins, "lost": after - before}
        return {"example_shares": as_table(shares), "labels": as_table(labels)}


class Game(Method):
    """A method that exchanges units of the final model with a donor's."""

    scratch = True
    labels_only = ""

    units: str | dict[str, tuple[str, ...]] = ours("layers")
    """Parts that are exchanged: `layers`, `sublayers` (attention and MLP of each layer, each with
    its norm), or names of your own units with the parameters (patterns such as `*.mlp.*`) of
    each.
    """
    donor: str = ours("reference", min_length=1)
    """Weights that come in: `reference`, `pretrained`, `epoch-3` (of the noisy training), `base`
    (of an adapter), or the folder of a checkpoint, such as `./other`."""
    clean_examples: int | None = ours(None, ge=1)
    """Number of clean examples whose error is measured, drawn at random."""
    stream: bool = ours(False)
    """Read blocks from disk when they run: on the CPU, in less memory than one model takes, with
    the same numbers.
    """

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        """Weights that the game needs: the final ones and the donor's."""
        return "final", "pretrained" if self.donor == BASE else self.donor

    @abstractmethod
    def examples(self, run: Run) -> tuple[IntArray, IntArray]:
        """Draw the rows of the noisy and of the clean examples."""

    @abstractmethod
    def design(self, met: Sequence[int], examples: Selection) -> Design:
        """Choose the mixtures; `met` has the units, as bits, that each layer has a part of."""

    def guess(self, depth: int, n_noisy: float = 1) -> Design:
        """Return the design for one of `n_noisy` examples, as far as the settings determine it."""
        if isinstance(self.units, Mapping):
            met = [(1 << len(self.units)) - 1] * depth
        else:
            nest = self.nest
            met = [((1 << nest) - 1) << nest * layer for layer in range(depth)]
        return self.design(met, Selection(n_noisy=n_noisy))

    @property
    def nest(self) -> int:
        """Number of units that make up one layer."""
        return 2 if self.units == "sublayers" else 1

    def check(self, run: Run) -> None:
        """Refuse the donor `base` for a run without an adapter."""
        if self.donor == BASE and not is_adapter(run.path("final")):
            raise DataError(
                f"The final weights of {run.name} are not an adapter, so they have no base: use "
                f"{self.name}.donor=pretrained, or another donor."
            )

    def play(self, run: Run) -> Played:
        """Compute the outcome of every example in every mixture of the design."""
        from memloc.methods.mixtures import LABELS, TOKENS, Mixtures
        from memloc.model.units import find_units, met_by

        noisy, clean = self.examples(run)
        rows = np.concatenate([noisy, clean])
        self._check_memory(self.guess(run.depth, len(noisy)), len(rows))
        final, donor = (self._load(run, weights) for weights in self.needs)
        remarks = self._compare(run, final, donor)
        units = find_units(final.stack, self.units)
        design = self.design(met_by(final.stack, units), Selection(rows, len(noisy), run.name))
        outcome = TOKENS if run.task.is_texts else LABELS
        mixtures = Mixtures(final.stack, donor.stack, units, outcome)
        values = self._walk(run, mixtures, run.encode(final), design, rows)
        names = [] if self.units == "layers" else list(units)
        about = {
            "units": names or "layers",
            "donor": self.donor,
            "layers_per_text": design.layers,
            "control": control(values[0, len(noisy) :], design.sizes),
            "remarks": remarks,
        }
        return Played(design, rows, len(noisy), values, outcome, names, about)

    def _load(self, run: Run, checkpoint: str) -> "Classifier":
        if not self.stream:
            return run.load(checkpoint)
        from memloc.model.streamed import load_streamed

        run.require(checkpoint)
        run.check_unchanged([checkpoint])
        if not run.path(checkpoint).is_dir():
            raise SettingsError(
                f"The {checkpoint} weights are in no folder of their own, so they cannot be "
                f"streamed: set {self.name}.stream to false, or give a folder by {self.name}.donor."
            )
        is_donor = checkpoint != "final"
        return load_streamed(run.path(checkpoint), texts=run.task.is_texts, is_donor=is_donor)

    def _compare(self, run: Run, final: "Classifier", donor: "Classifier") -> list[str]:
        """Refuse a donor that does not fit; return remarks on the two models for the reader."""
        from memloc.model.check import check_pair
        from memloc.model.parts import find_parts
        from memloc.model.streamed import weight

        check_pair(final, donor, self.donor)

        def are_equal(names: Iterable[str]) -> bool:
            return all(weight(final.model, n).equal(weight(donor.model, n)) for n in names)

        in_blocks = {id(p) for p in final.stack.blocks.parameters()}
        inside = [name for name, p in final.model.named_parameters() if id(p) in in_blocks]
        if not run.is_null and are_equal(inside):
            raise ScoreError(
                f"The layers of the {self.donor} weights are those of the final ones, so nothing "
                f"can be exchanged: give other weights by {self.name}.donor."
            )
        if are_equal(find_parts(final.stack).embeddings):
            return []
        return [
            "The two models have different embeddings. All mixtures begin with those of the final "
            "model, so what is kept when one layer stays (alone_in) includes its embeddings."
        ]

    def _check_memory(self, design: Design, n_texts: int) -> None:
        """Refuse a design whose values need too much memory: labels and margins, 4 bytes each."""
        if (memory := n_texts * design.n_values * 8 / 2**30) > MOST_MEMORY:
            raise SettingsError(
                f"All subsets of {design.n_units} units take {design.layers:,} layers for each "
                f"text, and {memory:,.0f} GiB of memory for their values, where {MOST_MEMORY} GiB "
                "are allowed: set shares.subsets to sampled, or shares.noisy_examples to fewer."
            )

    def _walk(
        self, run: Run, mixtures: "Mixtures", encoded: Encoded, design: Design, rows: IntArray
    ) -> FloatArray:
        """Return the values (values, examples, mixtures); finished batches are kept on disk."""
        from memloc.methods.mixtures import MixedBatch, goals_of

        labels = goals_of(run, mixtures.stacks[0], encoded)[rows]
        folder, maker = run.work(self.name), Maker(self.name, self.version)
        decided_by = self._decided_by(run, design, rows)
        n_values = len(mixtures.outcome.names)
        outcomes = np.empty((n_values, len(rows), design.n_values), dtype=np.float32)

        batches = list(mixtures.batches(encoded, rows))
        if design.sizes is None:  # each example has mixtures of its own
            batches = [np.array([place]) for places in batches for place in places]
        asked = [MixedBatch(rows[p], labels[p], design.subsets(int(p[0]))) for p in batches]
        groups = mixtures.groups(encoded, asked)
        if design.announced or self.stream:
            first = partial(mixtures.values, encoded, asked[0].rows, asked[0].labels)
            seconds = _seconds_per_layer(design, asked[0].subsets[:TIMED], first) * len(batches)
            read = len(groups) * mixtures.bytes_read(encoded, groups[0])
            tell(_announced(design, len(rows), seconds, _streamed(mixtures, read)))
        left = iter(batches)
        with track(f"{run.name} · {self.name}", len(rows)) as advance:
            for number, group in enumerate(groups):
                own = [next(left) for _ in group]
                places = np.concatenate(own)
                key = unfinished_key(maker, {**decided_by, "places": places.tolist()})

                make = partial(_values, mixtures, encoded, group, design, own)
                batch = memo(paths.kept_batch(folder, number), key, make, ARRAYS)
                outcomes[:, places] = batch["values"]
                advance(len(places))
        if not np.isfinite(outcomes).all():
            raise ScoreError(
                f"Some mixtures of {run.name} give no numbers: its weights are damaged."
            )
        return outcomes.astype(np.float64)

    def _decided_by(self, run: Run, design: Design, rows: IntArray) -> dict[str, Any]:
        """Return everything that decides the values of mixtures."""
        return {
            "run": run.identity(self.needs),
            "files": run.files(self.needs),
            "name": run.name,
            "settings": self.model_dump(mode="json"),
            "met": design.met,
            "rows": rows.tolist(),
        }


def _values(
    mixtures: "Mixtures",
    encoded: Encoded,
    group: "Sequence[MixedBatch]",
    design: Design,
    places: Sequence[IntArray],
) -> dict[str, Any]:
    """Return the values of the batches of a group as they are kept, by the places of their rows."""
    pairs = zip(mixtures.values_of(encoded, group), places, strict=True)
    kept = [design.kept(values.cpu().numpy(), int(own[0])) for values, own in pairs]
    return {"values": np.concatenate(kept, axis=1)}


def _seconds_per_layer(design: Design, subsets: Sequence[int], play: Callable[..., Any]) -> float:
    """Return the measured seconds per layer, from a few mixtures of one batch."""
    began = time.perf_counter()
    play(subsets)
    return (time.perf_counter() - began) / count_layers(design.met, subsets)


def _announced(design: Design, n_texts: int, per_layer: float, streamed: str) -> str:
    """Return a sentence on a design's work; `per_layer`: seconds of a layer for all texts."""
    work = design.announced or "Streaming"
    said = f"{work}: {design.layers:,} layers for each of {n_texts} texts, "
    return f"{said}about {duration(per_layer * design.layers)}{streamed}."


def _streamed(mixtures: "Mixtures", read: float) -> str:
    """Return what models that are streamed need of memory and disk; nothing of models in memory.

    `read` are the bytes of blocks that are read in all.
    """
    if not mixtures.is_streamed:
        return ""
    sizes = mixtures.bytes_held, read, mixtures.bytes_on_disk
    held, in_all, files = (decimal(int(size)) for size in sizes)
    return (
        f"; at most {held} of memory besides libraries; about {in_all} will be read, of {files} of "
        "files, as far as these are not in memory"
    )


def seconds_per_text(design: Design, sizes: Sizes) -> float:
    """Return the seconds to compute the mixtures of a design for a text: each ends in a last
    layer.
    """
    last = len(design.subsets())
    return float((design.layers - last) * sizes.layer + last * sizes.last_layer)


def all_layers(met: Sequence[int]) -> int:
    """Return the number of layers to compute for a text when every subset of units is exchanged."""
    return sum(2 ** seen.bit_count() for seen in accumulate(met, or_))
