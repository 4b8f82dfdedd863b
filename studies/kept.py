"""What studies of plants have in common: tables that are kept, and the plants that were made."""

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import ClassVar, Self

import pandas as pd

from memloc.run.folder import Run
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


def plants_with(study: Path, table: str) -> Iterator[tuple[Run, Path]]:
    """Yield the real plants of a study that have this table of shares, with the folder it is in."""
    for place in sorted(study.rglob(paths.RUN)):
        run = Run.open(place.parent)
        shares = paths.result(run.folder, "shares")
        if run.plant is not None and not run.is_null and (shares / f"{table}.parquet").is_file():
            yield run, shares
