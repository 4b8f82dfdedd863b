"""What studies of plants have in common: tables that are kept, and the plants that were made."""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar, Self

import pandas as pd

from memloc.methods.shares import Shares
from memloc.reporting.results import load_results
from memloc.run.folder import Run
from memloc.stats.windows import read_plant, split_kind
from memloc.store import paths
from memloc.store.files import whole_file


class Kept:
    """Tables that are kept as small files; a subclass is a dataclass with a table in each field."""

    folder: ClassVar[Path]

    @classmethod
    def kept(cls) -> Self:
        """Read them as they were kept."""
        names = [each.name for each in fields(cls)]  # type: ignore[arg-type]
        return cls(**{name: pd.read_parquet(cls.folder / f"{name}.parquet") for name in names})

    def keep(self) -> None:
        """Keep them."""
        for name, table in vars(self).items():
            with whole_file(self.folder / f"{name}.parquet") as draft:
                table.to_parquet(draft, index=False, compression="zstd")


def found_in(studies: Sequence[Path]) -> list[pd.DataFrame]:
    """Return the weights of layers, the answers and the plants of studies, finished or not."""
    found = [load_results(study) for study in studies]
    names = ("control_layers", "control_answers", "plants")
    return [pd.concat([getattr(each, name) for each in found]) for name in names]


def plants_with(study: Path, table: str) -> Iterator[tuple[Run, Path]]:
    """Yield the real plants of a study that have this table of shares, with the folder it is in."""
    for place in sorted(study.rglob(paths.RUN)):
        run = Run.open(place.parent)
        shares = paths.result(run.folder, "shares")
        if run.plant is not None and not run.is_null and (shares / f"{table}.parquet").is_file():
            yield run, shares


def found_inside(run: Run, **settings: Any) -> dict[str, Any]:
    """Return how well shares of sublayers find a plant in the attention or the MLPs of layers.

    `mass` is the part of the positive shares that is on the planted parts, `right_kind` the part on
    all attention or all MLPs, whichever was planted, and `found` how many planted parts come first.
    """
    assert run.plant is not None
    (group,) = read_plant(split_kind(run.plant.planted)[1])
    result = Shares(units="sublayers", subsets="sampled", clean_examples=12, **settings).run(run)
    units = result["units"]
    held = units[units["value"] == "labels"].set_index("unit")["share"].clip(lower=0)
    own = [f"{group.part} {layer + 1}" for layer in group.layers]
    of_kind = [name for name in held.index if name.startswith(group.part)]
    first = held.sort_values(ascending=False).index[: len(own)]
    return {
        "control": result.about["control"]["kept"],
        "mass": held[own].sum() / held.sum(),
        "right_kind": held[of_kind].sum() / held.sum(),
        "found": len({*first} & {*own}),
    }
