"""The results of a study as pandas tables: what figures, tables and the report are made of."""

import json
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from memloc.errors import (
    MemlocWarning,
    StoreError,
    UnknownName,
    lookup,
)
from memloc.methods import by_reference, method_names, methods
from memloc.methods.result import (
    Outcomes,
    events_of,
    outcomes_from,
    read_about,
    stored_table,
)
from memloc.protocol import Protocol, preset
from memloc.run.folder import (
    Accuracies,
    Run,
    RunRecord,
    at_the_end,
)
from memloc.settings import packaged
from memloc.stats.answers import Answer, corrected
from memloc.stats.evenness import ALPHA
from memloc.stats.planted import null_claims, plant_scores, processed_accuracy
from memloc.stats.windows import planted_layers
from memloc.store import paths
from memloc.store.files import is_draft
from memloc.store.records import as_path, as_stored, read_columns
from memloc.study.config import read_study

_FILE = packaged(__file__)
KEY: tuple[str, ...] = tuple(_FILE["run"])
"""What a table starts with: which run a row is of."""
PLANT: tuple[str, ...] = tuple(_FILE["plant"])
"""Which layers of a control run may change (from 1), and whether nothing was planted there."""
COLUMNS: dict[str, list[str]] = {
    table: [name for each in columns for name in _FILE.get(each, [each])]
    for table, columns in _FILE["tables"].items()
}

Keyed = Sequence[tuple[Mapping[str, Any], Any]]
"""Parts of a table, each with the key that stands before its rows."""
LOCALISED = {name: name for name in ("layers", "mcog", "windows")}
"""Tables that localisers share: they keep their name."""


@dataclass(frozen=True)
class Results:
    """A study's tidy tables, each an attribute; one whose files are not there has its columns.

    `examples` and `reverted` are read when they are first asked for: they are large.
    """

    folder: Path
    protocol: Protocol
    """The settings of the study; of runs without one, the first run's preset."""
    tables: Mapping[str, pd.DataFrame]
    """By name: those of `COLUMNS`, and what other people's methods leave."""
    commands: tuple[str, ...] = ()
    """What was asked for, in the order to repeat it: runs first, then methods, then plants."""

    def __getattr__(self, name: str) -> pd.DataFrame:
        tables: Mapping[str, pd.DataFrame] = vars(self).get("tables", {})
        if name not in tables:
            raise AttributeError(f"There is no table {name!r}: there are {', '.join(tables)}.")
        return tables[name]

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.tables]

    def with_tables(self, **tables: pd.DataFrame) -> "Results":
        """The same with other tables in place of those of these names."""
        return replace(self, tables={**self.tables, **tables})

    @cached_property
    def control(self) -> pd.DataFrame:
        """How well each method finds the layers of each plant."""
        settings = self.protocol.control
        scores = plant_scores(self.control_layers, settings.ks, settings.validation_tasks)
        return scores[COLUMNS["control"]]

    @cached_property
    def nulls(self) -> pd.DataFrame:
        """What each method claims where nothing was planted."""
        return null_claims(self.control_layers).reindex(columns=COLUMNS["nulls"])

    @cached_property
    def post_processing(self) -> pd.DataFrame:
        """Appendix E: accuracy@2 of gradients with each step on and off."""
        tasks = self.protocol.control.validation_tasks
        chosen = self.control_gradients[self.control_gradients["task"].isin(tasks)]
        return processed_accuracy(chosen)[COLUMNS["post_processing"]]

    @cached_property
    def examples(self) -> pd.DataFrame:
        """The training examples of every run, labels by name."""
        return self.examples_of(self.runs)

    @cached_property
    def reverted(self) -> pd.DataFrame:
        """For every noisy example and window: is its assigned label no longer predicted?"""
        opened = self._opened(self.runs)
        found = [({**key, "method": m}, t) for key, run in opened for m, t in _reverted(run)]
        return stacked("reverted", found)

    def examples_of(self, runs: pd.DataFrame, *, noisy_only: bool = False) -> pd.DataFrame:
        """The part of `examples` that belongs to some rows of `runs`."""
        opened = self._opened(runs)
        return stacked("examples", [(key, _examples(run, noisy_only)) for key, run in opened])

    def outcomes_of(self, run: pd.DataFrame) -> dict[str, Outcomes]:
        """The same of one run as matrices by method; a row of `runs` is given."""
        ((_, opened),) = self._opened(run)
        return {method: outcomes_from(table.to_pandas()) for method, table in _reverted(opened)}

    def example_shares_of(self, run: pd.DataFrame) -> pd.DataFrame | None:
        """What each layer holds of each noisy example of one run: (examples, layers from 1).

        Shares of the margin that all layers together hold; None without the method `shares`.
        """
        ((_, opened),) = self._opened(run)
        path = paths.table(paths.result(opened.folder, "shares"), "example_shares")
        if not path.is_file():
            return None
        rows = read_columns(path).to_pandas()
        table = rows.pivot_table("share", "example", "layer", aggfunc="sum")
        whole = table.sum(axis=1)
        return table.div(whole.where(whole > 0), axis=0)

    @cached_property
    def records(self) -> list[RunRecord]:
        """The records of the runs, in the order of `runs`: settings, task, accuracies."""
        return [run.record for _, run in self._opened(self.runs)]

    @cached_property
    def versions(self) -> list[dict[str, str]]:
        """The versions that the runs were made with, each set of them once."""
        files = [self.folder / folder / paths.LABELS for folder in self.runs["folder"]]
        notes = [json.loads(read_columns(p, []).schema.metadata[b"memloc"]) for p in files]
        found = [note.get("versions", {}) for note in notes]
        return list({tuple(each.items()): each for each in found}.values())

    def only(self, **values: object) -> "Results":
        """The rows of one task, model or seed, e.g. `only(model="tiny-opt")`.

        A column or value that no table has is refused.
        """
        for column, value in values.items():
            self._require(column, value)

        def chosen(table: pd.DataFrame) -> pd.DataFrame:
            for column in values.keys() & set(table.columns):
                table = table[table[column] == values[column]]
            return table.reset_index(drop=True)

        return self.with_tables(**{name: chosen(table) for name, table in self.tables.items()})

    def _require(self, column: str, value: object) -> None:
        tables = [table for table in self.tables.values() if len(table.columns)]
        lookup("column", column, dict.fromkeys(str(c) for table in tables for c in table.columns))
        found = [table[column].dropna().unique() for table in tables if column in table.columns]
        known = list(dict.fromkeys(each for values in found for each in values.tolist()))
        if value not in known:
            lookup(column, value, dict.fromkeys(map(str, known)))
            raise UnknownName(f"No {column} is {value!r}: values of this column are no strings.")

    def _opened(self, runs: pd.DataFrame) -> Iterator[tuple[dict[str, Any], Run]]:
        for row in runs.to_dict("records"):
            yield {name: row[name] for name in KEY}, Run.open(self.folder / row["folder"])


READ = tuple(name for name in COLUMNS if not hasattr(Results, name))
"""Tables that are read at once; others follow from them or are read when they are asked for."""
NOISY = [("is_noisy", "==", True)]
UNSEEN = [("split", "==", "validation")]


def load_results(path: str | Path) -> Results:
    """The results in a study's folder, `runs/` as `memloc train` fills it, or one run's folder."""
    folder = as_path(path, "the folder of a study or run")
    if not folder.is_dir():
        raise StoreError(f"{folder} is not a folder: give a study, e.g. `runs`.")
    with as_stored(folder, "run again what was changed there"):
        return _load(folder)


def _load(folder: Path) -> Results:
    every = _find_runs(folder)
    protocol = settings_of(folder, [run.record for run in every])
    needed = protocol.verdict.noisy_at_least
    runs = _read([run for run in every if run.record.plant is None], folder)
    planted = _read([run for run in every if run.record.plant is not None], folder)
    curves = [(of.key, of.run.training()) for of in runs]
    rows = [
        {**of.key, **_run_row(of.run, folder, curve, needed)}
        for of, (_, curve) in zip(runs, curves, strict=True)
    ]
    found, of_plants = _collected(runs), _collected(planted, needed)
    made, judged = found.pop("made", []), found.pop("answers", [])
    parts = {
        **{name: [] for name in READ},
        **found,
        "training": [(key, curve) for key, curve in curves if len(curve)],
        **{f"control_{name}": of_plants[name] for name in ("layers", "gradients")},
    }
    tables = {name: stacked(name, keyed) for name, keyed in parts.items()}
    tables |= {
        "runs": pd.DataFrame(rows, columns=COLUMNS["runs"]),
        "made": pd.DataFrame(made, columns=COLUMNS["made"]),
        "answers": answers(judged),
        "control_answers": control_answers(of_plants["answers"]),
        "plants": _plants(planted, tables["control_layers"]),
    }
    return Results(folder, protocol, tables, (*_commands(runs), *_commands(planted)))


@dataclass(frozen=True)
class _Read:
    """A run with what its rows begin with, and what is written about its results by method."""

    key: dict[str, Any]
    run: Run
    abouts: list[dict[str, Any]]


def _commands(runs: Sequence[_Read]) -> Iterator[str]:
    yield from (of.run.record.command for of in runs)
    yield from (about["about"].get("command", "") for of in runs for about in of.abouts)


def _abouts(run: Run) -> Iterator[dict[str, Any]]:
    for path in _kept(run, paths.ABOUT):
        about = read_about(path.parent)
        with as_stored(path):
            if about["method"] != path.parent.name:
                raise ValueError(f"it is a result of {about['method']}")
            inputs, record = about["about"].get("inputs", {}), run.record
            own = {"data": record.task.hash, "weights": record.weights_hash, "seed": run.seed}
            if any(inputs.get(name, value) != value for name, value in own.items()):
                raise ValueError("it is of another run")
        yield {**about, "folder": path.parent}


def _kept(run: Run, name: str) -> list[Path]:
    """The files of this name of the run's results; drafts that a killed process left are none."""
    found = (run.folder / paths.RESULTS).glob(f"*/{name}")
    return sorted(path for path in found if not is_draft(path.relative_to(run.folder)))


def _find_runs(folder: Path) -> list[Run]:
    places = [
        p.parent
        for p in folder.rglob(paths.RUN)
        if paths.CHECKPOINTS not in p.relative_to(folder).parts
        and not is_draft(p.relative_to(folder))
    ]
    # Deepest first: what stands where `memloc train` puts it keeps the plain name.
    places.sort(key=lambda p: (-len(p.parts), str(p)))
    return [Run.open(place) for place in places]


def _read(runs: Sequence[Run], folder: Path) -> list[_Read]:
    """By task, model and seed; two runs with the same key never merge."""
    found: dict[tuple[Any, ...], _Read] = {}
    for run in runs:
        task, plant = run.record.task, run.record.plant
        own = (task.name, task.category, run.model_name, run.seed)
        key: dict[str, Any] = dict(zip(KEY, own, strict=True))
        if plant is not None:
            key |= {name: getattr(plant, name) for name in PLANT}
        if tuple(key.values()) in found:
            key["model"] += f" ({run.folder.relative_to(folder)})"
        found[tuple(key.values())] = _Read(key, run, list(_abouts(run)))
    names = ("task", "model", "seed")
    return sorted(found.values(), key=lambda of: [str(of.key[name]) for name in names])


COMPARING = {"verdict", "agreement", "summary"}
"""Settings by which the results of several runs are put together."""


def settings_of(folder: Path, records: Sequence[RunRecord]) -> Protocol:
    """The settings of a study; of runs without its file, the preset of the first."""
    if (folder / paths.STUDY).is_file():
        return read_study(folder).study.protocol
    used = list(dict.fromkeys(record.settings.preset for record in records)) or ["paper"]
    rules = [preset(name).model_dump(include=COMPARING) for name in used]
    if any(rule != rules[0] for rule in rules):
        warnings.warn(
            f"The runs in {folder} were made with the presets {' and '.join(used)}, and no study's "
            f"file says how to compare them: {used[0]} does. `memloc report` one folder for each.",
            MemlocWarning,
            stacklevel=2,
        )
    return preset(used[0])


def _collected(runs: Sequence[_Read], reference_at_least: float = 0.0) -> dict[str, list[Any]]:
    """The tables of all methods of some runs, each with its run's key, by what they are here.

    Layers of a reference that did not learn its own labels undo anything, so such are left out.
    """
    found: dict[str, list[Any]] = defaultdict(list)
    own = {_without_null(of.key): of.run.reference_accuracy for of in runs if not of.run.is_null}
    for of in runs:
        # A null has the reference weights of its plant.
        accuracy = own.get(_without_null(of.key), of.run.reference_accuracy)
        for made in of.abouts:
            method, about = made["method"], made["about"]
            if accuracy < reference_at_least and method in by_reference():
                continue
            key = {**of.key, "method": method, "remark": " ".join(about.get("remarks", []))}
            settings = json.dumps(about.get("settings", {}), sort_keys=True)
            found["made"].append({**key, "settings": settings})
            called = _called(made)
            shown = [name for name in made["tables"] if name in called]
            tables = {name: stored_table(made["folder"], made, name) for name in shown}
            undone = tables["windows"]["error"].to_numpy().max() if "windows" in tables else np.nan
            if "answer" in about:
                found["answers"].append((key, about["answer"]))
            for name, rows in tables.items():
                is_theirs = called[name] == "events" and method not in method_names("analysis")
                whole = _events(method, rows) if is_theirs else rows
                if whole is not None:
                    found[called[name]].append(({**key, "undone": undone}, whole))
    return found


def _called(made: Mapping[str, Any]) -> dict[str, str]:
    """The tables of a result that are shown, and what each is called here.

    That of a method that is not installed here is shown, too.
    """
    method = made["method"]
    usual = {name: f"{method}_{name}" for name in ("layers", "summary")}
    shared = LOCALISED if "mcog" in made["tables"] else {**usual, "events": "events"}
    return {**shared, **(methods()[method].shows if method in methods() else {})}


def _events(method: str, rows: Any) -> Any:
    """Events of somebody with the columns that memloc's have; None if it is no such table.

    They are called after the method, too, as others may have an event of the same name.
    """
    import pyarrow as pa

    whole = events_of(method, rows.to_pandas())
    if whole is None:
        return None
    whole["event"] += f" ({method})"
    return pa.Table.from_pandas(whole, preserve_index=False)


def _without_null(key: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(value for name, value in key.items() if name != "null")


def _run_row(run: Run, folder: Path, curve: pd.DataFrame, needed: float) -> dict[str, Any]:
    """What the run is of and what became of it; a run that is not finished memorised nothing."""
    task, final = run.record.task, run.record.final
    labels = run.folder / paths.LABELS
    chance = 1 / len(task.label_names)
    unseen = at_the_end(curve, "noisy", "validation_accuracy")
    accuracies = {f"{n}_accuracy": getattr(final, n, np.nan) for n in Accuracies.model_fields}
    return {
        "depth": run.depth,
        "n_classes": len(task.label_names),
        "train": task.train,
        "noisy": task.noisy,
        "validation": len(read_columns(labels, ["split"], UNSEEN)) if labels.is_file() else 0,
        "memorised": run.memorised(needed),
        **accuracies,
        "reference_accuracy": run.reference_accuracy,
        "validation_accuracy": unseen,
        "validation_score": (unseen - chance) / (1 - chance),
        "preset": run.settings.preset,
        "changes": ", ".join(f"{k}={v}" for k, v in run.settings.changes().items()),
        "folder": str(run.folder.relative_to(folder)),
    }


def _examples(run: Run, noisy_only: bool) -> pd.DataFrame:
    """The training examples, labels by name."""
    wanted = [("split", "==", "train"), *(NOISY if noisy_only else [])]
    columns = ["row", "parts", "original", "assigned", "is_noisy"]
    read = read_columns(run.folder / paths.LABELS, columns, wanted)
    rows = read.to_pandas().sort_values("row", kind="stable")
    # Where labels before noise are not known, the last name stands for them.
    names = np.array([*run.record.task.label_names, "not known"], dtype=object)
    return pd.DataFrame(
        {
            "example": rows["row"].to_numpy(np.int64),
            "text": [" ‖ ".join(parts) for parts in rows["parts"]],
            "original": names[rows["original"]],
            "assigned": names[rows["assigned"]],
            "is_noisy": rows["is_noisy"].to_numpy(bool),
        }
    )


def _reverted(run: Run) -> Iterator[tuple[str, Any]]:
    """Of the methods that change windows: which noisy examples each window undoes."""
    for path in _kept(run, paths.OUTCOMES):
        yield path.parent.name, read_columns(path, None, NOISY)


def stacked(name: str, parts: Keyed) -> pd.DataFrame:
    """The table of this name from its parts, which are all of pandas or all of Arrow."""
    columns = COLUMNS.get(name, [])
    if not parts:
        return pd.DataFrame(columns=columns)
    keys, tables = zip(*parts, strict=True)
    for key, table in parts:
        there = {*key, *(table.columns if isinstance(table, pd.DataFrame) else table.column_names)}
        if lacking := sorted(set(columns) - there):
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
    return whole[columns] if columns else whole.drop(columns="undone")


def _joined(name: str, parts: Keyed) -> pd.DataFrame:
    """Tables of Arrow one below another; the first that does not go with those before is named."""
    import pyarrow as pa

    schema = parts[0][1].schema
    for key, table in parts:
        try:
            schema = pa.unify_schemas([schema, table.schema], promote_options="permissive")
        except pa.ArrowException as error:
            method, reason = key["method"], " ".join(str(error).split())
            raise StoreError(
                f"The table {name} by {method} ({key['task']}, {key['model']}, seed {key['seed']}) "
                f"does not go together with others of that name ({reason}): delete "
                f"{paths.RESULTS}/{method} in the runs that {method} looked at and run it again."
            ) from error
    tables = [table for _, table in parts]
    whole: pd.DataFrame = pa.concat_tables(tables, promote_options="permissive").to_pandas()
    return whole


def answers(found: Keyed) -> pd.DataFrame:
    """Return what each method answers for each run, and whether it holds for all runs shown.

    `found` are records of answers. `corrected` are Holm's p-values over the runs that a method
    looked at, so that asking more methods weakens no finding; a finding is significant after that.
    """
    table = _answer_rows(found, COLUMNS["answers"])
    able = np.array([record["undone"] is not None for _, record in found], dtype=bool)
    table["corrected"] = 1.0
    for _, part in table[able].groupby("method"):
        table.loc[part.index, "corrected"] = corrected(part["p"].tolist())
    return table.assign(finding=table["corrected"] <= ALPHA)


def control_answers(found: Keyed) -> pd.DataFrame:
    """The same of planted runs; `right`: concentrated, and half of it in planted layers alone."""
    right = [
        record["word"] == "concentrated"
        and not key["null"]
        and {layer - 1 for layer in record["places"]["half"]}
        <= set(planted_layers(str(key["planted"])))
        for key, record in found
    ]
    return _answer_rows(found, COLUMNS["control_answers"]).assign(right=right)


def _answer_rows(found: Keyed, columns: Sequence[str]) -> pd.DataFrame:
    rows = [{**key, **Answer.of(record).row()} for key, record in found]
    return pd.DataFrame(rows, columns=list(columns))


def _plants(planted: Sequence[_Read], weights: pd.DataFrame) -> pd.DataFrame:
    """The rate that each plant needed, its accuracies, whether it was used."""
    used = weights.groupby([*KEY, *PLANT])["method"].unique()
    rows = []
    for of in planted:
        record, final = of.run.record, of.run.record.final
        methods = used.get(tuple(of.key.values()), [])
        row = {
            "learning_rate": record.settings.finetune.learning_rate,
            "tries": max(1, len(record.attempts)),
            "training_accuracy": getattr(final, "training", np.nan),
            "noisy_accuracy": getattr(final, "noisy", np.nan),
            "methods": ", ".join(methods),
            "used": len(methods) > 0,
        }
        rows.append({**of.key, **row})
    return pd.DataFrame(rows, columns=COLUMNS["plants"])
