"""A study's tables as small Parquet files: `python -m studies.stored STUDY FOLDER`.

They are kept in the repository, so that every number and figure that is made of them can be made
again without training. Runs that are kept already stay, unless the study has the same run: a long
study can be done in pieces, on several machines.
"""

import argparse
import shutil
from pathlib import Path

import pandas as pd

from memloc.reporting.reading import COLUMNS, KEY, compared
from memloc.reporting.results import READ, Results, load_results, settings_of
from memloc.store import paths
from memloc.store.files import whole_file

LEFT_OUT = {"made", "memorisation"}
"""Settings of methods, and a table with a row per example: nothing is made of them there."""
KEPT = [name for name in READ if name not in LEFT_OUT and "planted" not in COLUMNS[name]]
"""Tables of runs."""


def main() -> None:
    """Store the tables of a study's runs that were analysed, or that did not learn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", type=Path, help="folder of a study")
    parser.add_argument("folder", type=Path, help="where its tables are kept")
    options = parser.parse_args()
    keep(load_results(options.study), options.folder)


def keep(results: Results, folder: Path) -> None:
    """Add the tables of finished runs to the stored ones, replacing those of the same runs."""
    folder.mkdir(parents=True, exist_ok=True)
    if (results.folder / paths.STUDY).is_file():
        shutil.copyfile(results.folder / paths.STUDY, folder / paths.STUDY)
    before = kept(folder)
    found = [getattr(results, name) for name in KEPT if name not in {"runs", "training"}]
    nothing = results.runs[[*KEY]].iloc[:0]
    looked_at = pd.concat([nothing, *(table[[*KEY]] for table in found)]).drop_duplicates()
    trained = results.runs.dropna(subset="noisy_accuracy")
    # Nothing looks at runs that did not memorise.
    in_vain = trained.loc[~trained["memorised"].astype(bool), [*KEY]]
    finished = pd.concat([results.runs[[*KEY]].merge(looked_at), in_vain])
    for name in KEPT:
        old, new = getattr(before, name), getattr(results, name).merge(finished, on=[*KEY])
        same = pd.MultiIndex.from_frame(old[[*KEY]]).isin(pd.MultiIndex.from_frame(finished))
        table = pd.concat([part for part in (old[~same], new) if len(part)] or [new])
        if len(table):
            with whole_file(_file(folder, name)) as draft:
                table.to_parquet(draft, index=False, compression="zstd")


def kept(folder: Path) -> Results:
    """Return the tables stored in a folder, which has no texts or weights of the runs."""
    files = {name: _file(folder, name) for name in READ}
    tables = {
        name: pd.read_parquet(path) if path.is_file() else pd.DataFrame(columns=COLUMNS[name])
        for name, path in files.items()
    }
    # Runs may have come in several pieces; p-values are corrected over all of them.
    tables["answers"] = compared(tables["answers"], tables["layers"])
    return Results(folder, settings_of(folder, []), tables)


def _file(folder: Path, name: str) -> Path:
    return folder / f"{name}.parquet"


if __name__ == "__main__":
    main()
