"""What an analysis found: a few tidy tables and how they came to be, in one file."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memloc.errors import StoreError
from memloc.records import as_stored, read_table, write_table

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Analysis:
    """The tables of one analysis, by name."""

    name: str
    tables: "Mapping[str, pd.DataFrame]"
    about: dict[str, Any] = field(default_factory=dict)
    """Settings and provenance."""

    def __getitem__(self, table: str) -> "pd.DataFrame":
        return self.tables[table]

    @property
    def remarks(self) -> list[str]:
        """What is odd about the data, a sentence each."""
        return list(self.about.get("remarks", []))

    def write(self, path: Path) -> None:
        """One file: the column `table` says of a row which table it belongs to."""
        import pandas as pd

        marked = [frame.assign(table=name) for name, frame in self.tables.items()]
        types = {name: _types(frame) for name, frame in self.tables.items()}
        note = {"name": self.name, "tables": types, "analysis": self.about}
        write_table(path, pd.concat(marked, ignore_index=True), note)

    @classmethod
    def read(cls, path: Path) -> "Analysis":
        """Read what `write` wrote."""
        rows, note = read_table(path)
        if "tables" not in note or "table" not in rows:
            raise StoreError(f"{path} holds no analysis.")
        with as_stored(path):
            tables = {
                name: rows.loc[rows["table"] == name, list(types)].astype(types)
                for name, types in note["tables"].items()
            }
            whole = {name: table.reset_index(drop=True) for name, table in tables.items()}
            return cls(note["name"], whole, dict(note["analysis"]))


def _types(frame: "pd.DataFrame") -> dict[str, str]:
    return {str(column): str(kind) for column, kind in frame.dtypes.items()}
