"""The centroid analysis of a run: of its final weights, and with layers of the reference put in."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from memloc.analyse.centroids import KINDS, Positions, positions
from memloc.analyse.drift import LEVEL, RESAMPLES, SHUFFLES, drift, pooled_separability
from memloc.analyse.material import Material
from memloc.analyse.store import Analysis
from memloc.models.hidden import Vectors
from memloc.models.load import Classifier
from memloc.progress import track
from memloc.train.windows import check_inside, read_window, window_name

if TYPE_CHECKING:
    import pandas as pd

PLAIN = "plain"
TABLES = ("layers", "events", "positions", "pairs")


def variants(material: Material, windows: Sequence[str] = ()) -> dict[str, range | None]:
    """What is analysed, by name: the final weights, and windows of layers that are swapped in.

    The bottom and the top half are among them where the run has reference weights; `windows` are
    others, such as `3-6`, layers counted from 1.
    """
    depth = int(material.run.about["depth"])
    found: dict[str, range | None] = {PLAIN: None}
    half = depth // 2
    if half and material.run.path("reference").is_dir():
        found |= {"bottom": range(half), "top": range(depth - half, depth)}
    for window in map(read_window, windows):
        check_inside(window, depth)
        found[f"window {window_name(window)}"] = window
    return found


def centroids(material: Material, wanted: Mapping[str, range | None]) -> Analysis:
    """Positions between class centroids for every variant in `wanted`."""
    import pandas as pd

    parts: dict[str, list[pd.DataFrame]] = {name: [] for name in TABLES}
    remarks: list[str] = []
    if "bottom" not in wanted and int(material.run.about["depth"]) > 1:
        remarks.append(
            "Without the bottom and the top half swapped in: the run has no reference weights, "
            "which `memloc train` makes."
        )
    with track(f"{material.run.name} · centroids", len(wanted)) as advance:
        for name, window in wanted.items():
            vectors = variant_vectors(material, window)
            found = positions(vectors, material.noisy, material.task.n_classes)
            for table, frame in _tables(material, vectors, found).items():
                parts[table].append(frame.assign(variant=name))
            said = found.remarks(material.task.label_names)
            remarks += [sentence if window is None else f"{name}: {sentence}" for sentence in said]
            advance(1)
    tables = {name: _joined(frames) for name, frames in parts.items()}
    about = {"level": LEVEL, "resamples": RESAMPLES, "shuffles": SHUFFLES, "remarks": remarks}
    return Analysis("centroids", tables, about)


def variant_vectors(material: Material, window: range | None) -> Vectors:
    """The vectors of all layers when `window` comes from the reference."""
    if window is None:
        return material.final_vectors
    return material.vectors(swapped(material, window))


def swapped(material: Material, window: range) -> Classifier:
    """The final weights with the blocks of `window` (from 0) replaced by the reference's."""
    final, reference = material.load("final"), material.load("reference")
    for index in window:
        final.stack.blocks[index].load_state_dict(reference.stack.blocks[index].state_dict())
    return final


def _tables(material: Material, vectors: Vectors, found: Positions) -> "dict[str, pd.DataFrame]":
    separability = pooled_separability(found, vectors, material.noisy)
    settings = material.protocol.centroids
    layers, events = drift(found, separability, settings, len(vectors))
    return {
        "layers": layers,
        "events": events,
        "positions": positions_table(found),
        "pairs": pairs_table(found),
    }


def positions_table(found: Positions) -> "pd.DataFrame":
    """A row an example, pair and layer; `a` is the assigned class, `b` the original one."""
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
    """A row a pair and layer: how many examples there are and how far apart the centroids."""
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
