"""The results of a study as pandas tables: what figures, tables and the report are made of."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from memloc import paths
from memloc.errors import StoreError
from memloc.methods.base import by_reference
from memloc.methods.result import check_origin, read_about
from memloc.protocol import Protocol, preset
from memloc.records import as_stored, read_columns
from memloc.results.columns import COLUMNS, KEY, PLANT
from memloc.results.planted import control_tables
from memloc.run import Run, RunRecord, at_the_end
from memloc.study.config import read_study

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

LOCALISED = ("layers", "mcog", "windows", "gradients", "noise_probes")
"""Tables of localisers, which keep their name and get a column with the method's."""
ANALYSED = {
    "centroids": {"layers": "centroids", "events": "events"},
    "label_probes": {"layers": "label_probes", "events": "events"},
    "generalisation": {"summary": "generalisation", "examples": "memorisation"},
}
"""Tables of analyses, and what each is called here."""
TABLES = (*LOCALISED, "centroids", "events", "label_probes", "generalisation", "memorisation")


@dataclass(frozen=True)
class Results:
    """A study's tidy tables; one whose files are not there is empty with its columns.

    `examples` and `reverted` are read when they are first asked for: they are large.
    """

    folder: Path
    runs: "pd.DataFrame"
    training: "pd.DataFrame"
    layers: "pd.DataFrame"
    mcog: "pd.DataFrame"
    windows: "pd.DataFrame"
    gradients: "pd.DataFrame"
    noise_probes: "pd.DataFrame"
    centroids: "pd.DataFrame"
    events: "pd.DataFrame"
    label_probes: "pd.DataFrame"
    generalisation: "pd.DataFrame"
    memorisation: "pd.DataFrame"
    control: "pd.DataFrame"
    control_layers: "pd.DataFrame"
    control_gradients: "pd.DataFrame"
    nulls: "pd.DataFrame"
    plants: "pd.DataFrame"
    post_processing: "pd.DataFrame"
    commands: tuple[str, ...] = ()
    """What was asked for, in the order to repeat it: runs first, then methods, then plants."""
    method_settings: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Method and its settings as JSON, and how many runs it looked at with them."""

    @cached_property
    def protocol(self) -> Protocol:
        """The settings of the study; of runs without one, the first run's preset."""
        return _protocol(self.folder, self.records)

    @cached_property
    def examples(self) -> "pd.DataFrame":
        """The training examples of every run, labels by name."""
        return self.examples_of(self.runs)

    @cached_property
    def reverted(self) -> "pd.DataFrame":
        """For every noisy example and window: is its assigned label no longer predicted?"""
        return self.reverted_of(self.runs)

    def examples_of(self, runs: "pd.DataFrame", *, noisy_only: bool = False) -> "pd.DataFrame":
        """The part of `examples` that belongs to some rows of `runs`."""
        opened = self._opened(runs)
        return _stacked("examples", [(key, _examples(run, noisy_only)) for key, run in opened])

    def reverted_of(self, runs: "pd.DataFrame") -> "pd.DataFrame":
        """The part of `reverted` that belongs to some rows of `runs`."""
        opened = self._opened(runs)
        parts = [(key, o.table()) for key, run in opened for o in _reverted(run)]
        return _stacked("reverted", parts)

    def outcomes_of(self, run: "pd.DataFrame") -> "list[Reverted]":
        """The same of one run as matrices, which are smaller; a row of `runs` is given."""
        ((_, opened),) = self._opened(run)
        return _reverted(opened)

    @cached_property
    def records(self) -> list[RunRecord]:
        """The records of the runs, in the order of `runs`: settings, task, accuracies."""
        return [run.record for _, run in self._opened(self.runs)]

    @cached_property
    def versions(self) -> list[dict[str, str]]:
        """The versions that the runs were made with, each set of them once."""
        files = [self.folder / folder / paths.LABELS for folder in self.runs["folder"]]
        notes = [read_columns(path, []).schema.metadata[b"memloc"] for path in files]
        found = [_versions(note) for note in notes]
        return list({tuple(each.items()): each for each in found}.values())

    def only(self, **values: object) -> "Results":
        """The rows of one task, model or seed, e.g. `only(model="tiny-opt")`."""
        tables = {f.name: getattr(self, f.name) for f in fields(self) if f.name in COLUMNS}
        chosen: dict[str, Any] = {name: _rows(t, values) for name, t in tables.items()}
        return replace(self, **chosen)

    def _opened(self, runs: "pd.DataFrame") -> Iterator[tuple[dict[str, Any], Run]]:
        for row in runs.to_dict("records"):
            yield {name: row[name] for name in KEY}, Run.open(self.folder / row["folder"])


NOISY = [("is_noisy", "==", True)]


@dataclass(frozen=True)
class Reverted:
    """Which windows of layers undo which noisy example, by one method."""

    method: str
    examples: "np.ndarray[Any, Any]"
    """(n,)."""
    windows: "np.ndarray[Any, Any]"
    """(W, 2): first and last layer, from 1."""
    wrong: "np.ndarray[Any, Any]"
    """(n, W): the assigned label is no longer predicted."""

    def take(self, rows: "np.ndarray[Any, Any]") -> "Reverted":
        """Some of the examples, in that order."""
        return replace(self, examples=self.examples[rows], wrong=self.wrong[rows])

    def table(self) -> "pd.DataFrame":
        """One row per example and window."""
        import pandas as pd

        first, last = np.tile(self.windows.astype(np.int16), (len(self.examples), 1)).T
        example = np.repeat(self.examples.astype(np.int32), len(self.windows))
        places = {"example": example, "first": first, "last": last}
        return pd.DataFrame({"method": self.method, **places, "wrong": self.wrong.ravel()})


def load_results(path: str | Path) -> Results:
    """The results in a study's folder, `runs/` as `memloc train` fills it, or one run's folder."""
    folder = Path(path)
    if not folder.is_dir():
        raise StoreError(f"{folder} is not a folder: give a study, e.g. `runs`.")
    with as_stored(folder):
        return _load(folder)


def _load(folder: Path) -> Results:
    every = _find_runs(folder)
    runs = _keyed([run for run in every if run.record.plant is None], folder)
    protocol = _protocol(folder, [run.record for run in every])
    curves = [(key, run.training()) for key, run in runs]
    needed = protocol.verdict.noisy_at_least
    rows = [
        (key, _run_row(run, folder, curve, needed))
        for (key, run), (_, curve) in zip(runs, curves, strict=True)
    ]
    planted = _keyed([run for run in every if run.record.plant is not None], folder)
    return Results(
        folder=folder,
        runs=_stacked("runs", rows),
        training=_stacked("training", [(key, curve) for key, curve in curves if len(curve)]),
        **{name: _stacked(name, found) for name, found in _collected(runs).items()},
        **control_tables(planted, _collected(planted, needed), protocol.control),
        commands=(*_commands(runs), *_commands(planted)),
        method_settings=_method_settings(runs),
    )


def _commands(runs: Sequence[tuple[dict[str, Any], Run]]) -> Iterator[str]:
    yield from (run.record.command for _, run in runs)
    yield from (about["about"].get("command", "") for _, run in runs for about in _abouts(run))


def _method_settings(runs: Sequence[tuple[dict[str, Any], Run]]) -> dict[tuple[str, str], int]:
    found = Counter(
        (about["method"], json.dumps(about["about"].get("settings", {}), sort_keys=True))
        for _, run in runs
        for about in _abouts(run)
    )
    return dict(found)


def _abouts(run: Run) -> list[dict[str, Any]]:
    """What is written about the results of a run, method by method."""
    found = []
    for path in sorted((run.folder / paths.RESULTS).glob(f"*/{paths.ABOUT}")):
        about = read_about(path.parent)
        with as_stored(path):
            if about["method"] != path.parent.name:
                raise ValueError(f"it is a result of {about['method']}")
            inputs, record = about["about"].get("inputs", {}), run.record
            own = {"data": record.task.hash, "weights": record.weights_hash, "seed": run.seed}
            if any(inputs.get(name, value) != value for name, value in own.items()):
                raise ValueError("it is of another run")
        found.append({**about, "folder": path.parent})
    return found


def _find_runs(folder: Path) -> list[Run]:
    places = [
        p.parent
        for p in folder.rglob(paths.RUN)
        if paths.CHECKPOINTS not in p.relative_to(folder).parts
    ]
    # Deepest first: what stands where `memloc train` puts it keeps the plain name.
    places.sort(key=lambda p: (-len(p.parts), str(p)))
    return [Run.open(place) for place in places]


def _keyed(runs: Sequence[Run], folder: Path) -> list[tuple[dict[str, Any], Run]]:
    seen: set[tuple[Any, ...]] = set()
    found = []
    for run in runs:
        key = _key(run)
        if tuple(key.values()) in seen:  # two runs of one task, model, seed and plant never merge
            key["model"] += f" ({run.folder.relative_to(folder)})"
        seen.add(tuple(key.values()))
        found.append((key, run))
    return sorted(found, key=lambda pair: [str(pair[0][n]) for n in ("task", "model", "seed")])


def _key(run: Run) -> dict[str, Any]:
    """What its rows begin with; of a planted run, the layers and whether it is a null as well."""
    task, plant = run.record.task, run.record.plant
    key = dict(zip(KEY, (task.name, task.category, run.model_name, run.seed), strict=True))
    return key if plant is None else {**key, **{name: getattr(plant, name) for name in PLANT}}


def _protocol(folder: Path, records: Sequence[RunRecord]) -> Protocol:
    if (folder / paths.STUDY).is_file():
        return read_study(folder).study.protocol
    return preset(records[0].settings.preset if records else "paper")


def _collected(
    runs: Iterable[tuple[dict[str, Any], Run]], reference_at_least: float = 0.0
) -> dict[str, list[Any]]:
    """The tables of all methods of some runs, each with its run's key, by what they are here.

    Layers of a reference that did not learn its own labels undo anything, so such are left out.
    """
    found: dict[str, list[Any]] = {name: [] for name in TABLES}
    every = list(runs)
    learnt = {_without_null(key): run.reference_accuracy for key, run in every if not run.is_null}
    for key, run in every:
        # A null has the reference weights of its plant.
        accuracy = learnt.get(_without_null(key), run.reference_accuracy)
        for about in _abouts(run):
            if accuracy < reference_at_least and about["method"] in by_reference():
                continue
            is_localiser = "mcog" in about["tables"]
            names = ANALYSED.get(about["method"], {})
            if is_localiser:
                names = {name: name for name in LOCALISED}
            for table, name in names.items():
                if table in about["tables"]:
                    rows = read_columns(about["folder"] / f"{table}.parquet")
                    note = json.loads(rows.schema.metadata[b"memloc"])
                    check_origin(about["folder"], about, table, note)
                    remark = " ".join(about["about"].get("remarks", []))
                    method = {"method": about["method"], "remark": remark} if is_localiser else {}
                    found[name].append(({**key, **method}, rows))
    return found


def _without_null(key: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(value for name, value in key.items() if name != "null")


def _stacked(name: str, parts: "Sequence[tuple[Mapping[str, Any], Any]]") -> "pd.DataFrame":
    """The table of this name from its parts, each with the key that stands before its rows."""
    import pandas as pd

    if not parts:
        return pd.DataFrame(columns=list(COLUMNS[name]))
    keys, tables = zip(*parts, strict=True)
    for key, table in parts:
        there = {*key, *(table.columns if isinstance(table, pd.DataFrame) else table.column_names)}
        if lacking := sorted(set(COLUMNS[name]) - there):
            raise StoreError(
                f"A table of {name} ({key['task']}, {key['model']}) has no column {lacking[0]}: it "
                "is damaged or of another version; run what made it again."
            )
    body = joined(tables)
    rows = np.repeat(np.arange(len(keys)), [len(table) for table in tables])
    before = pd.DataFrame([dict(key) for key in keys]).take(rows).reset_index(drop=True)
    extra = [column for column in before if column in body]
    whole = pd.concat([before, body.drop(columns=extra)], axis=1)
    return whole[list(COLUMNS[name])]


def joined(tables: "Sequence[pa.Table | pd.DataFrame]") -> "pd.DataFrame":
    """Tables one below the other; as they are read, a study has thousands of small ones."""
    import pandas as pd
    import pyarrow as pa

    if isinstance(tables[0], pd.DataFrame):
        whole: pd.DataFrame = pd.concat(tables, ignore_index=True)
    else:
        whole = pa.concat_tables(tables, promote_options="permissive").to_pandas()
    return whole


def _run_row(run: Run, folder: Path, curve: "pd.DataFrame", needed: float) -> "pd.DataFrame":
    """What the run is of and what became of it; a run that is not finished memorised nothing."""
    import pandas as pd

    task, verdict = run.record.task, run.verdict(needed)
    final = run.record.final
    chance = 1 / len(task.label_names)
    unseen = at_the_end(curve, "noisy", "validation_accuracy")
    row = {
        "depth": run.depth,
        "n_classes": len(task.label_names),
        "train": task.train,
        "noisy": task.noisy,
        "validation": _n_validation(run),
        "memorised": verdict is not None and verdict.memorised,
        "noisy_accuracy": final.noisy if final else np.nan,
        "clean_accuracy": final.clean if final else np.nan,
        "training_accuracy": final.training if final else np.nan,
        "reference_accuracy": run.reference_accuracy,
        "validation_accuracy": unseen,
        "validation_score": (unseen - chance) / (1 - chance),
        "preset": run.settings.preset,
        "changes": ", ".join(f"{k}={v}" for k, v in run.settings.changes().items()),
        "folder": str(run.folder.relative_to(folder)),
    }
    return pd.DataFrame([row])


def _n_validation(run: Run) -> int:
    """How many examples the accuracy on unseen data is measured on."""
    path = run.folder / paths.LABELS
    unseen = [("split", "==", "validation")]
    return len(read_columns(path, ["split"], unseen)) if path.is_file() else 0


def _examples(run: Run, noisy_only: bool) -> "pd.DataFrame":
    """The training examples, labels by name."""
    import pandas as pd

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


def _reverted(run: Run) -> list[Reverted]:
    """Of the methods that change windows: which examples each window undoes."""
    found = []
    for path in sorted((run.folder / paths.RESULTS).glob("*/outcomes.parquet")):
        table = read_columns(path, ["example", "first", "last", "wrong"], NOISY)
        example, first, last, wrong = (table[n].to_numpy() for n in table.column_names)
        n = len(np.unique(example))  # as they are written: example by example, all windows of each
        ends = np.column_stack([first, last]).astype(np.int64).reshape(n, -1, 2)[0]
        rows = example.reshape(n, -1)[:, 0].astype(np.int64)
        wrong = wrong.astype(bool).reshape(n, -1)
        found.append(Reverted(path.parent.name, rows, ends, wrong))
    return found


def _versions(note: bytes) -> dict[str, str]:
    found: dict[str, str] = json.loads(note).get("versions", {})
    return found


def _rows(table: "pd.DataFrame", values: Mapping[str, object]) -> "pd.DataFrame":
    for name, value in values.items():
        if name in table.columns:
            table = table[table[name] == value]
    return table.reset_index(drop=True)
