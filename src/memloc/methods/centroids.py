"""Centroids: where are noisy examples between their original class and the assigned one?

Positions are taken for the final weights and, where there are reference weights, with the bottom
and the top half of the layers swapped in from there.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from memloc.methods import Method, Sizes
from memloc.methods.drift import SHUFFLES, drift, pooled_separability
from memloc.methods.positions import KINDS, Positions, check_labels, positions
from memloc.methods.result import Result
from memloc.progress import track
from memloc.settings import ours, paper, published
from memloc.stats.depth import LEVEL
from memloc.stats.intervals import RESAMPLES
from memloc.stats.windows import check_inside, read_window, window_name

if TYPE_CHECKING:
    import pandas as pd

    from memloc.run import Run
    from memloc.training.predict import Vectors

PLAIN = "plain"
TABLES = ("layers", "events", "positions", "pairs")
FIXED = 5.0
"""Seconds of its statistics, whatever the model (measured on one core)."""


class Centroids(Method):
    """Positions between class centroids, layer by layer, and the events they make; section 5."""

    name = "centroids"
    kind = "analysis"
    needs = ("final",)
    uses = ("reference",)

    crossing_at: float = paper(0.5, "§5", gt=0, lt=1)
    """The mean of noisy examples has crossed if it is below this (assigned class 0, original 1)."""
    events: Literal["first", "last"] = paper("first", "§5")
    """First crossing and first separation, or the last crossing and the start of the last
    uninterrupted separation."""
    central: float = published(0.75, gt=0, lt=1)
    """Classes are separated where the central shares of their positions do not overlap."""
    last_layer: Literal["block output", "final norm"] = paper("block output", "§5")
    """Whether a decoder's last vector is the block's output or what the final norm makes of it."""
    windows: tuple[str, ...] = ours(())
    """Further windows of layers, such as `3-6`, that are swapped in from the reference weights."""

    def run(self, run: "Run") -> Result:
        """The tables `layers`, `events`, `positions` and `pairs` for every variant."""
        self.check(run)
        wanted = self.variants(run)
        parts: dict[str, list[pd.DataFrame]] = {name: [] for name in TABLES}
        remarks: list[str] = []
        if "bottom" not in wanted and run.depth > 1:
            remarks.append(
                "The bottom and the top half were not swapped in: the run has no reference weights."
            )
        with track(f"{run.name} · centroids", len(wanted)) as advance:
            for name, window in wanted.items():
                vectors = self.variant_vectors(run, window)
                found = positions(vectors, run.noisy, run.task.n_classes)
                for table, frame in self._tables(run, vectors, found).items():
                    parts[table].append(frame.assign(variant=name))
                said = found.remarks(run.task.label_names)
                remarks += [s if window is None else f"{name}: {s}" for s in said]
                advance(1)
        tables = {name: _joined(frames) for name, frames in parts.items()}
        about = {"level": LEVEL, "resamples": RESAMPLES, "shuffles": SHUFFLES, "remarks": remarks}
        return Result(self.name, tables, about)

    def check(self, run: "Run") -> None:
        """Refuse data without two kinds of labels, and windows that the model does not have."""
        check_labels(run.task, run.noisy)
        self.variants(run)

    def variants(self, run: "Run") -> dict[str, range | None]:
        """What is looked at, by name: the final weights, and windows of layers swapped in."""
        found: dict[str, range | None] = {PLAIN: None}
        half = run.depth // 2
        if half and run.has("reference"):
            found |= {"bottom": range(half), "top": range(run.depth - half, run.depth)}
        for window in map(read_window, self.windows):
            check_inside(window, window_name(window), run.depth)
            run.require("reference")
            found[f"window {window_name(window)}"] = window
        return found

    def variant_vectors(self, run: "Run", window: range | None) -> "Vectors":
        """The vectors of all layers when `window` comes from the reference."""
        from memloc.training.predict import vectors_of

        if window is None:
            return run.vectors("final", self.last_layer)
        final, reference = run.load("final"), run.load("reference")
        for index in window:
            final.stack.blocks[index].load_state_dict(reference.stack.blocks[index].state_dict())
        return vectors_of(final.stack, run.encode(final), last_layer=self.last_layer)

    def _tables(
        self, run: "Run", vectors: "Vectors", found: Positions
    ) -> "dict[str, pd.DataFrame]":
        separability = pooled_separability(found, vectors, run.noisy)
        layers, events = drift(found, separability, self, len(vectors))
        return {
            "layers": layers,
            "events": events,
            "positions": positions_table(found),
            "pairs": pairs_table(found),
        }

    def cost(self, sizes: Sizes) -> float:
        """The vectors of three variants, and statistics."""
        return FIXED + 3 * sizes.examples * sizes.predict


def positions_table(found: Positions) -> "pd.DataFrame":
    """One row per example, pair and layer; `a` is the assigned class, `b` the original one."""
    import pandas as pd

    rows, layer = (index.ravel() for index in np.indices(found.position.shape))
    ends = found.pairs[found.pair[rows]]
    return pd.DataFrame(
        {
            "layer": layer.astype(np.int16),
            "a": ends[:, 0].astype(np.int16),
            "b": ends[:, 1].astype(np.int16),
            "example": found.example[rows].astype(np.int32),
            "kind": np.array(KINDS)[found.kind[rows]],
            "position": found.position.ravel(),
        }
    )


def pairs_table(found: Positions) -> "pd.DataFrame":
    """One row per pair and layer: how many examples there are and how far apart the centroids."""
    import pandas as pd

    pair, layer = (index.ravel() for index in np.indices(found.separability.shape))
    return pd.DataFrame(
        {
            "layer": layer,
            "a": found.pairs[pair, 0],
            "b": found.pairs[pair, 1],
            "n_noisy": found.n_noisy[pair],
            "n_clean_a": found.n_clean[pair, 0],
            "n_clean_b": found.n_clean[pair, 1],
            "separability": found.separability.ravel(),
            "by_chance": found.by_chance[pair],
            "coincide": found.coincide.ravel(),
        }
    )


def _joined(frames: "Sequence[pd.DataFrame]") -> "pd.DataFrame":
    """One below the other, the variant first."""
    import pandas as pd

    joined = pd.concat(frames, ignore_index=True)
    return joined[["variant", *joined.columns.drop("variant")]]
