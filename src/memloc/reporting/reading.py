"""Reads the runs below a folder into tidy tables."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from memloc.errors import StoreError
from memloc.methods.registry import brought, by_reference, exactness, method_names, methods
from memloc.methods.result import can_mix, events_of, read_about, stored_table
from memloc.run.folder import Run
from memloc.run.records import Accuracies, at_the_end
from memloc.settings import packaged
from memloc.stats.answers import Answer, agrees, corrected, half_of
from memloc.stats.evenness import ALPHA
from memloc.stats.windows import planted_layers
from memloc.store import paths
from memloc.store.files import is_draft
from memloc.store.records import as_stored, read_columns

_FILE = packaged(__file__)
KEY: tuple[str, ...] = tuple(_FILE["run"])
"""First columns of a table, which identify the run of a row."""
PLANT: tuple[str, ...] = tuple(_FILE["plant"])
"""Columns of planted runs: the layers that may change, and whether the run is a null."""
COLUMNS: dict[str, list[str]] = {
    table: [name for each in columns for name in _FILE.get(each, [each])]
    for table, columns in (_FILE["tables"] | brought("columns")).items()
}
"""Columns of every table, which exist even without rows."""
LOCALISED = ("layers", "mcog", "windows")
"""Names of the tables that all localisers have."""
UNSEEN = [("split", "==", "validation")]

Row = dict[str, Any]
TableParts = Sequence[tuple[Row, Any]]
"""Parts of a table, each with the key to put before its rows."""


@dataclass(frozen=True)
class Stored:
    """A result in the folder of one run, whose tables are read when needed."""

    run: Row
    """Key of the run."""
    folder: Path
    method: str
    about: Mapping[str, Any]
    tables: Sequence[str]

    @property
    def key(self) -> Row:
        """Columns to put before the rows of its tables."""
        remark = " ".join(self.about.get("remarks", []))
        return {**self.run, "method": self.method, "remark": remark}

    @property
    def settings(self) -> str:
        """Settings of the method, as one text."""
        return json.dumps(self.about.get("settings", {}), sort_keys=True)

    @property
    def called(self) -> dict[str, str]:
        """Names of the result's tables among the tables of a study."""
        names = {name: name for name in LOCALISED}
        if "mcog" not in self.tables:
            names = {name: f"{self.method}_{name}" for name in ("layers", "summary")}
            names["events"] = "events"
        if self.method in methods():
            names |= methods()[self.method].shows
        return {name: names[name] for name in self.tables if name in names}

    def read(self, name: str) -> Any:
        """Read the table of this name with Arrow."""
        record = {"method": self.method, "about": self.about, "tables": self.tables}
        return stored_table(self.folder, record, name)


@dataclass(frozen=True)
class KeyedRun:
    """A run, with the key of its rows."""

    key: Row
    run: Run

    @cached_property
    def stored(self) -> list[Stored]:
        """Results of the methods that were applied to the run."""
        names = (paths.ABOUT, paths.ANY_TABLE)  # tables without a record are refused
        folders = {path.parent for name in names for path in kept_files(self.run, name)}
        return [_stored(self, folder) for folder in sorted(folders)]


def _stored(found: KeyedRun, folder: Path) -> Stored:
    record = read_about(folder)
    run = found.run
    with as_stored(folder / paths.ABOUT):
        if record["method"] != folder.name:
            raise ValueError(f"it is a result of {record['method']}")
        inputs = record["about"].get("inputs", {})
        expected = {
            "data": run.record.task.hash,
            "weights": run.record.weights_hash,
            "seed": run.seed,
        }
        if any(inputs.get(name, value) != value for name, value in expected.items()):
            raise ValueError("it is of another run")
    return Stored(found.key, folder, record["method"], record["about"], record["tables"])


def kept_files(run: Run, name: str) -> list[Path]:
    """Return files of this name in the results of a run, without drafts of killed processes."""
    files = (run.folder / paths.RESULTS).glob(f"*/{name}")
    return sorted(path for path in files if not is_draft(path.relative_to(run.folder)))


def find_runs(folder: Path) -> list[KeyedRun]:
    """Return the runs below a folder, sorted by task, model and seed; equal keys are kept apart."""
    places = [
        path.parent
        for path in (*folder.rglob(paths.RUN), *_without_record(folder))
        if paths.CHECKPOINTS not in path.relative_to(folder).parts
        and not is_draft(path.relative_to(folder))
    ]
    # The deepest first: a run at the place where `memloc train` puts it keeps the plain name.
    places.sort(key=lambda place: (-len(place.parts), str(place)))
    by_key: dict[tuple[Any, ...], KeyedRun] = {}
    for run in map(Run.open, places):
        key = _key(run)
        if tuple(key.values()) in by_key:
            key["model"] += f" ({run.folder.relative_to(folder)})"
        by_key[tuple(key.values())] = KeyedRun(key, run)
    names = ("task", "model", "seed")
    return sorted(by_key.values(), key=lambda each: [str(each.key[name]) for name in names])


def _without_record(folder: Path) -> list[Path]:
    """Return label files of runs that lost their record, which are refused rather than left out."""
    return [
        path
        for path in folder.rglob(paths.LABELS)
        if paths.checkpoint(path.parent, "final").is_dir()
        and not (path.parent / paths.RUN).is_file()
    ]


def _key(run: Run) -> Row:
    task, plant = run.record.task, run.plant
    values = (task.name, task.category, run.model_name, run.seed)
    key = dict(zip(KEY, values, strict=True))
    return key if plant is None else key | {name: getattr(plant, name) for name in PLANT}


def read_tables(folder: Path, every: Sequence[KeyedRun], needed: float) -> dict[str, pd.DataFrame]:
    """Return all tables of the runs.

    Args:
        folder: folder of the study, below which the runs are.
        every: the runs, planted ones as well.
        needed: accuracy from which labels count as learnt.
    """
    runs = [one for one in every if one.run.plant is None]
    planted = [one for one in every if one.run.plant is not None]
    stored = [result for one in runs for result in one.stored]
    of_plants = _by_good_references(planted, needed)
    layers = read_control_layers(of_plants)
    shown = read_shown([one for one in stored if can_mix(one.about)])
    curves = [(one.key, one.run.training()) for one in runs]
    return {
        "runs": _table("runs", [{**e.key, **_run_row(e.run, folder, needed)} for e in runs]),
        "training": join_parts("training", [(key, curve) for key, curve in curves if len(curve)]),
        "made": _table("made", [{**one.key, "settings": one.settings} for one in stored]),
        **shown,
        "answers": compared(read_answers("answers", stored), shown.get("layers")),
        **read_shown(of_plants, "control_"),
        "control_layers": layers,
        "control_answers": read_answers("control_answers", of_plants),
        "plants": read_plants(planted, layers),
    }


def _table(name: str, records: Sequence[Row]) -> pd.DataFrame:
    return pd.DataFrame(records, columns=COLUMNS[name])


def _run_row(run: Run, folder: Path, needed: float) -> Row:
    task, final = run.record.task, run.status.final
    labels = run.folder / paths.LABELS
    chance = 1 / len(task.label_names) if task.label_names else 0.0
    unseen = at_the_end(run.training(), "noisy", "validation_accuracy")
    accuracies = {f"{n}_accuracy": getattr(final, n, np.nan) for n in Accuracies.model_fields}
    return {
        "depth": run.depth,
        "n_classes": len(task.label_names),
        "train": task.train,
        "noisy": task.noisy,
        "validation": len(read_columns(labels, ["split"], UNSEEN)),
        "memorised": run.memorised(needed),
        **accuracies,
        "reference_accuracy": run.reference_accuracy,
        "validation_accuracy": unseen,
        "validation_score": (unseen - chance) / (1 - chance),
        "preset": run.settings.preset,
        "changes": ", ".join(f"{k}={v}" for k, v in run.settings.changes().items()),
        "folder": str(run.folder.relative_to(folder)),
    }


def read_shown(stored: Sequence[Stored], before: str = "") -> dict[str, pd.DataFrame]:
    """Return the tables of methods, by their names among the tables of a study.

    With `before`, only tables for which columns are defined under their name with that prefix. The
    layers of planted runs are left to `read_control_layers`.
    """
    parts: dict[str, list[tuple[Row, Any]]] = defaultdict(list)
    for result in stored:
        for table, name in result.called.items():
            if before and (before + name not in COLUMNS or name == "layers"):
                continue
            rows = result.read(table)
            if name == "events" and result.method not in method_names("analysis"):
                rows = _their_events(result.method, rows)
            if rows is not None:
                parts[before + name].append((result.key, rows))
    return {name: join_parts(name, keyed) for name, keyed in parts.items()}


def _their_events(method: str, given: Any) -> Any:
    """Return events of another package's method, named after it; None without events."""
    import pyarrow as pa

    events = events_of(method, given.to_pandas())
    if events is None:
        return None
    events["event"] += f" ({method})"
    return pa.Table.from_pandas(events, preserve_index=False)


def read_answers(name: str, stored: Sequence[Stored]) -> pd.DataFrame:
    """Return the answers of methods that weigh layers as the table `name`: one row per result."""
    rows = []
    for result in stored:
        if "answer" in result.about:
            stored_answer = Answer.of(result.about["answer"])
            rows.append(
                {**result.key, **stored_answer.row(), "right": is_right(result.run, stored_answer)}
            )
    return _table(name, rows)


def is_right(run: Row, found: Answer) -> bool:
    """Return whether a plant is called concentrated, with half of it in planted layers only."""
    if run.get("null", True) or found.word != "concentrated":
        return False
    return {layer - 1 for layer in found.layers} <= {*planted_layers(str(run["planted"]))}


def compared(answers: pd.DataFrame, layers: pd.DataFrame | None) -> pd.DataFrame:
    """Choose the primary method of a study, correct its answers, and compare the other methods.

    The most exact method that exchanges layers is primary. Its p-values are corrected over its runs
    alone (Holm), so applying more methods weakens no finding. Answers of other methods have no
    corrected p; they agree with the primary method or not. `layers` has the weights.
    """
    able = [name for name in answers["method"].unique() if exactness(name)]
    first = answers["method"] == max(able, key=exactness, default="")
    table = answers.assign(primary=first, corrected=np.nan, agrees="")
    table.loc[first, "corrected"] = corrected(table.loc[first, "p"].tolist())
    table["finding"] = table["corrected"] <= ALPHA
    if layers is None or not first.any():
        return table[COLUMNS["answers"]]
    weights = {
        key: rows["weight"].to_numpy(float) for key, rows in layers.groupby([*KEY, "method"])
    }
    best = {tuple(row[n] for n in KEY): row for row in table[first].to_dict("records")}
    for place, row in table[~first].iterrows():
        run = tuple(row[n] for n in KEY)
        if run in best:
            half = tuple(int(layer) for layer in row["half"].split(", ") if layer)
            half = half or half_of(weights[*run, row["method"]])
            profile = weights[*run, best[run]["method"]]
            table.loc[place, "agrees"] = agrees(best[run]["word"], profile, half)
    return table[COLUMNS["answers"]]


def _by_good_references(planted: Sequence[KeyedRun], needed: float) -> list[Stored]:
    """Return results of planted runs, without those that depend on a reference that learnt
    little.
    """
    # A null has the reference weights of its plant.
    accuracies = {
        _plant(keyed): keyed.run.reference_accuracy for keyed in planted if not keyed.run.is_null
    }
    kept = []
    for keyed in planted:
        weak = accuracies.get(_plant(keyed), keyed.run.reference_accuracy) < needed
        left_out = by_reference() if weak else set()
        kept += [result for result in keyed.stored if result.method not in left_out]
    return kept


def _plant(found: KeyedRun) -> tuple[Any, ...]:
    return tuple(value for name, value in found.key.items() if name != "null")


def read_control_layers(stored: Sequence[Stored]) -> pd.DataFrame:
    """Return layer weights of planted runs, with the largest share that a window undid."""
    parts = []
    for result in stored:
        if "layers" in result.tables and result.called.get("layers") == "layers":
            undone = np.nan
            if "windows" in result.tables:
                undone = result.read("windows")["error"].to_numpy().max()
            parts.append(({**result.key, "undone": undone}, result.read("layers")))
    return join_parts("control_layers", parts)


def read_plants(planted: Sequence[KeyedRun], layers: pd.DataFrame) -> pd.DataFrame:
    """Return one row per planted run: the learning rate that it needed, accuracies and methods."""
    used = layers.groupby([*KEY, *PLANT])["method"].unique()
    rows = []
    for keyed in planted:
        final = keyed.run.status.final
        looked = used.get(tuple(keyed.key.values()), [])
        row = {
            "learning_rate": keyed.run.settings.finetune.learning_rate,
            "tries": len(keyed.run.status.attempts) + 1,
            "training_accuracy": getattr(final, "training", np.nan),
            "noisy_accuracy": getattr(final, "noisy", np.nan),
            "methods": ", ".join(looked),
            "used": len(looked) > 0,
        }
        rows.append({**keyed.key, **row})
    return _table("plants", rows)


def join_parts(name: str, parts: TableParts) -> pd.DataFrame:
    """Join the parts of a table, which are all pandas or all Arrow tables."""
    columns = COLUMNS.get(name, [])
    if not parts:
        return pd.DataFrame(columns=columns)
    keys, tables = zip(*parts, strict=True)
    for key, table in parts:
        names = {*key, *(table.columns if isinstance(table, pd.DataFrame) else table.column_names)}
        if lacking := sorted(set(columns) - names):
            raise StoreError(
                f"A table of {name} ({key['task']}, {key['model']}) has no column {lacking[0]}: it "
                "is damaged or of another version; run what made it again."
            )
    if isinstance(tables[0], pd.DataFrame):
        body = pd.concat(tables, ignore_index=True)
    else:  # a study has thousands of small ones
        body = _joined(name, parts)
    rows = np.repeat(np.arange(len(keys)), [len(table) for table in tables])
    before = pd.DataFrame([dict(key) for key in keys]).take(rows).reset_index(drop=True)
    twice = [column for column in before if column in body]
    whole: pd.DataFrame = pd.concat([before, body.drop(columns=twice)], axis=1)
    return whole[columns] if columns else whole


def _joined(name: str, parts: TableParts) -> pd.DataFrame:
    """Join Arrow tables; an error names the first table that does not fit those before it."""
    import pyarrow as pa

    schema = parts[0][1].schema
    for key, table in parts:
        try:
            schema = pa.unify_schemas([schema, table.schema], promote_options="permissive")
        except pa.ArrowException as error:
            method = key["method"]
            reason = " ".join(str(error).split())
            raise StoreError(
                f"The table {name} by {method} ({key['task']}, {key['model']}, seed {key['seed']}) "
                f"does not fit the others of that name ({reason}): delete "
                f"{paths.RESULTS}/{method} in the runs that {method} looked at and run it again."
            ) from error
    tables = [table for _, table in parts]
    whole: pd.DataFrame = pa.concat_tables(tables, promote_options="permissive").to_pandas()
    return whole


def commands(runs: Sequence[KeyedRun]) -> Iterator[str]:
    """Yield the recorded commands in the order for repeating them: runs, methods, then planted
    runs.
    """
    for is_planted in (False, True):
        some = [keyed for keyed in runs if (keyed.run.plant is not None) == is_planted]
        yield from (keyed.run.record.command for keyed in some)
        yield from (r.about.get("command", "") for keyed in some for r in keyed.stored)
