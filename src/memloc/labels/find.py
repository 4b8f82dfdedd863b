"""Finds labels that must have been memorised, in data where no wrong labels are marked.

Models are trained on random halves of the data. Models that did not see an example predict its
label; `doubts` decides from their probabilities which labels are likely wrong.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import pandas as pd

from memloc.arrays import FloatArray, Table
from memloc.data.own import Columns, read_rows
from memloc.data.tables import Data, InMemory, Source, source_of, write_csv
from memloc.data.task import Examples
from memloc.display import MOST_ROWS, Card, Shown
from memloc.errors import (
    DataError,
    MemlocWarning,
    ModelError,
    SettingsError,
    StoreError,
    checked_arguments,
    counted,
)
from memloc.labels.doubts import CLEARLY, Judged, judge
from memloc.methods.apply import open_run
from memloc.methods.halves import (
    Half,
    Pool,
    examples_table,
    half_models,
    kept_halves,
    mean_chances,
    pool_of,
)
from memloc.methods.protocol import Protocol
from memloc.methods.protocol import preset as preset_called
from memloc.model.device import suitable_threads
from memloc.model.known import default_preset
from memloc.model.load import Classifier, load_model
from memloc.progress import announce, tell
from memloc.protocol import MEMORISED_ONLY, FineTuneSettings, refuse_idle
from memloc.run.folder import Run
from memloc.settings import packaged
from memloc.stats.intervals import wilson
from memloc.store import paths
from memloc.store.files import whole_file
from memloc.store.identity import hash_files
from memloc.store.lock import RUN, locked
from memloc.store.records import read_table, write_table

SHOWN = 100
"""Number of examples shown on the page."""
FEW = 10
"""Number of examples below which a warning names a class, as a half may hold none of them."""
PAGE = Path(__file__).with_suffix(".html")
"""Template of the page of suspects."""
WRONG, UNCLEAR, FITS = "likely wrong", "unclear", "fits"
NUMBERS = ("held_out", "trained", "counterfactual", "low", "high")
INSTEAD = {f"finetune.{name}": f"generalisation.{name}" for name in ("epochs", "learning_rate")}
"""Settings of fine-tuning that models on halves replace by settings of their own."""
USED = (
    *("preset", "generalisation", "text"),
    *(
        f"finetune.{name}"
        for name in FineTuneSettings.model_fields
        if not name.startswith("frozen")
    ),
)
"""Settings, or groups of them, that decide the result of `find` for a file."""


@dataclass(frozen=True, repr=False)
class Suspects(Shown):
    """Examples judged by `find`, the most doubtful first, and the folder with the written files."""

    folder: Path
    table: Table
    """One row per example; the index is the data frame's, or counts rows from 0."""
    models: int
    judged: Judged
    remarks: tuple[str, ...] = ()

    @property
    def wrong(self) -> Table:
        """Examples whose label is likely wrong."""
        return self.table[self.table["group"] == WRONG]

    @property
    def issues(self) -> Table:
        """Labels in the form of cleanlab's `Datalab.get_issues("label")`, in the data's order."""
        # By position: an index may be called `row` as well.
        rows = self.table.iloc[np.argsort(self.table["row"].to_numpy())]
        return pd.DataFrame(
            {
                "is_label_issue": rows["wrong"],
                "label_score": rows["held_out"],
                "given_label": rows["label"],
                "predicted_label": rows["suggested"],
            }
        )

    def card(self) -> Card:
        """Return what was found, with the labels to look at first."""
        columns = [*(name for name in PARTS if name in self.table), "label", "suggested", "doubt"]
        rows = self.table[columns].head(MOST_ROWS).to_dict("records")
        return Card(f"Suspects in {self.folder}", self.sentences(), rows=rows)

    def plot(self) -> Any:
        """Return the report's memorisation map, in which likely wrong labels are shown as noisy."""
        from memloc.reporting.charts import drawn_as

        named = self.table.assign(is_noisy=self.table["wrong"], example=self.table["row"])
        return drawn_as("memorisation", named)

    @property
    def random_errors(self) -> tuple[float, float, float]:
        """Estimated number of labels that are wrong as if drawn at random, with 95 % interval."""
        estimate, low, high = self.judged.random
        return (estimate, low, high) if self.judged.is_random else (0.0, 0.0, max(CLEARLY, high))

    def sentences(self) -> list[str]:
        """Return sentences on what was found, how certain it is, and how the list is ordered."""
        n, low, high = self.random_errors
        wrong = len(self.wrong)
        facts = {
            "wrong": counted(wrong, "label"),
            "all": f"{len(self.table):,}",
            "are": "is" if wrong == 1 else "are",
        }
        why = _said("errors" if self.judged.is_random else "rare")
        order = "by_class" if self.judged.by_class else "by_chance"
        return [
            _said("wrong", **facts),
            *([_said("measured", **measured(self.models))] if wrong and self.models else []),
            *([] if wrong else [_said("none")]),
            _said("random" if self.judged.is_random else "few", n=n, low=low, high=high),
            _said(order, why=why),
            *self.remarks,
        ]


def _said(name: str, **facts: Any) -> str:
    return str(_texts()["said"][name]).format(**facts)


@cache
def _texts() -> dict[str, Any]:
    return dict(packaged(__file__))


def measured(models: int) -> dict[str, Any]:
    """Return precision and recall of `likely wrong` on data whose wrong labels are known.

    They were measured for some numbers of models; the largest of these up to `models` is used, or
    else the smallest.
    """
    known: dict[int, dict[str, Any]] = _texts()["measured"]
    nearest = max((n for n in known if n <= models), default=min(known))
    return {"models": nearest, **known[nearest]}


@checked_arguments
def find(  # noqa: PLR0913 - each names something that varies between people's files
    data: Data | Run,
    model: str | None = None,
    folder: str | Path | None = None,
    *,
    predictions: Any = None,
    text: str = "text",
    label: str = "label",
    pair: str | None = None,
    seed: int | None = None,
    preset: str | None = None,
    settings: Mapping[str, Any] | None = None,
    device: str = "auto",
) -> Suspects:
    """Find likely wrong labels in a file or a run, and suggest what they should be.

    The folder gets the table, a page with the examples to look at first, and `suspects.csv`:
    correct its column `corrected` and give it to `memloc.load_csv` or `memloc.adopt` with
    `original="corrected"`, or with `flag="wrong"` to leave examples out of the reference's
    training.

    Args:
        data: A file, a pandas DataFrame (the result has its index), a `datasets.Dataset`, or a run.
        model: The pre-trained model that is fine-tuned on halves of the data; a run has its own.
        folder: Where results are written; by default `found`, or inside the run.
        predictions: In place of a model: probabilities (examples, classes) by models that did not
            see the example, as cleanlab's `pred_probs`. A DataFrame names its classes; the columns
            of an array are in the order of the sorted labels.
        text: The column of texts.
        label: The column of labels.
        pair: The column of second texts, if there is one.
        seed: The seed of the halves; 1 by default.
        preset: The preset that settings start from.
        settings: Settings that differ from the preset, such as `{"generalisation.models": 12}`.
        device: `auto`, `cpu`, `cuda` or `mps`.
    """
    changes = settings or {}
    if isinstance(data, Run) or _is_folder(data):
        run = open_run(data, None if device == "auto" else device)
        _refuse_choices(run, model, seed, changes)
        work = _of_run(run, folder, preset_called(preset or run.settings.preset).replace(changes))
    else:
        columns = Columns(text, label, pair)
        home = Path(folder or paths.FOUND)
        if predictions is not None:
            return _predicted(source_of(data), columns, predictions, home)
        if model is None:
            raise SettingsError(
                "Give the pre-trained model to train on halves of the data, such as "
                'model="roberta-base", or predictions=... of models that did not see the examples.'
            )
        protocol = preset_called(preset or default_preset(model)).replace(changes)
        refuse_idle(changes, {*USED} - {*INSTEAD, *MEMORISED_ONLY}, "find", INSTEAD)
        first = 1 if seed is None else seed
        work = _of_data(model, source_of(data), columns, protocol, home, first)
        work = replace(work, pool=replace(work.pool, device=device))
    _refuse_corrected(work.folder)
    with locked(work.locked, RUN):
        return _looked(work)


def _is_folder(data: Any) -> TypeGuard[str | Path]:
    """Return whether the data are given as the folder of a run."""
    return isinstance(data, str | Path) and (Path(data) / paths.RUN).is_file()


def _predicted(data: Source, columns: Columns, predictions: Any, folder: Path) -> Suspects:
    """Judge every label by probabilities that the user's own models gave."""
    rows = read_rows(data, columns)
    examples = replace(rows.examples, labels=rows.assigned)
    chances = _probabilities(predictions, len(examples), rows.names)
    _refuse_corrected(folder)
    held_out = np.zeros(len(examples), dtype=bool)
    half = Half(held_out, np.log(np.maximum(chances, LEAST)).astype(np.float32))
    table, judged = suspects_table([half], examples, rows.names)
    suspects = Suspects(folder, table, 0, judged)
    _write(suspects, data.name.split(".")[0])
    return replace(suspects, table=table.set_index(_index(data, len(examples))[table["row"] - 1]))


LEAST = 1e-12
"""Smallest probability that counts as different from 0."""


def _probabilities(given: Any, examples: int, names: tuple[str, ...]) -> FloatArray:
    """Return probabilities (examples, classes), the classes in the order of `names`."""
    if hasattr(given, "columns"):
        called = {str(name): name for name in given.columns}
        if lacking := [name for name in names if name not in called]:
            raise DataError(
                f"The predictions have no column {lacking[0]!r}: one for each label is needed, and "
                f"there are {', '.join(called)}."
            )
        given = given[[called[name] for name in names]]
    try:
        chances = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise DataError("Predictions are numbers: one row per example, one per label.") from None
    if chances.shape != (examples, len(names)):
        raise DataError(
            f"The predictions have the shape {chances.shape}, and {(examples, len(names))} is "
            f"needed: one row per example, one number for each of {', '.join(names)}."
        )
    if not (np.abs(chances.sum(1) - 1) < 0.01).all() or (chances < 0).any():
        row = int(np.argmin((np.abs(chances.sum(1) - 1) < 0.01) & (chances >= 0).all(1)))
        raise DataError(
            f"Row {row + 1} of the predictions sums to {chances[row].sum():g}: probabilities are "
            "needed, such as the softmax of logits."
        )
    return chances


@dataclass(frozen=True)
class _Work:
    """Data to judge, how its models are trained, their number, and the folder of the results."""

    pool: Pool
    start: Classifier
    models: int
    folder: Path
    locked: Path
    index: Any
    """Index of the resulting table, by the example's row from 0."""


def _looked(work: _Work) -> Suspects:
    """Train missing models, judge every label and write the files."""
    pool, models = work.pool, work.models
    remarks = _remarks(pool)
    if len(kept_halves(pool, models)) < models:
        tell(_before(pool, models))
        announce("halves", pool, work.start, models)
    with suitable_threads(work.start.stack.width):
        halves = half_models(pool, models)
    table, judged = suspects_table(halves, pool.examples, pool.label_names)
    suspects = Suspects(work.folder, table, models, judged, remarks)
    _write(suspects, pool.name)
    return replace(suspects, table=table.set_index(work.index[table["row"] - 1]))


def _before(pool: Pool, models: int) -> str:
    """Return a sentence on how many models judge each example, and how many examples none
    judges.
    """
    n = len(pool.examples)
    never = n * pool.share**models
    left_out = _said("never", n=f"{never:.0f}", all=f"{n:,}") if never >= 0.5 else ""
    judges = max(1, round((1 - pool.share) * models))
    return _said("before", models=models, judges=judges, never=left_out)


def _refuse_choices(run: Run, model: Any, seed: int | None, settings: Mapping[str, Any]) -> None:
    """Refuse a model, seed or training settings for a run, which has its own."""
    if model is not None:
        raise SettingsError(f"{run.folder} is a run, which has its model: leave {model} out.")
    others = [name for name in settings if name.split(".")[0] != "generalisation"]
    if others or seed not in {None, run.seed}:
        what = others[0] if others else f"seed {seed}"
        raise SettingsError(
            f"{what} cannot be chosen for {run.name}, which has its own (seed {run.seed}): "
            "settings of generalisation can, such as generalisation.models."
        )


def _refuse_corrected(folder: Path) -> None:
    """Refuse to overwrite a file that a user has corrected."""
    table, file = folder / paths.SUSPECTS, folder / paths.TO_CORRECT
    if not (table.is_file() and file.is_file()):
        return
    _, about = read_table(table)
    if about.get("to_correct") != hash_files([file]):
        raise StoreError(
            f"{file} was changed since memloc wrote it: rename it, or choose another folder with "
            "--out."
        )


def _pretrained(model: str, names: tuple[str, ...], seed: int, data: Source) -> Classifier:
    """Load a model with a new head for these classes; refuse one that may have seen the labels."""
    start = load_model(model, names, seed=seed)
    if not start.new_weights:
        raise ModelError(
            f"{model} is fine-tuned already: models that start from it may have seen every label. "
            "Give the pre-trained model that it was made from."
        )
    if start.resized_weights:
        warnings.warn(
            f"{model} has a head for other classes than {data}, which is replaced. If it was "
            "fine-tuned on these examples, its layers may know every label: give the pre-trained "
            "model that it was made from.",
            MemlocWarning,
            stacklevel=3,
        )
    return start


def _of_run(run: Run, folder: str | Path | None, protocol: Protocol) -> _Work:
    """Return the work on a run's examples with the labels it was trained on."""
    method: Any = protocol.method("generalisation")
    home = Path(folder or run.folder / paths.FOUND)
    rows = pd.RangeIndex(len(run.task.train))
    start = run.load_pretrained(run.seed)
    return _Work(pool_of(run, method), start, method.models, home, run.folder, rows)


def _of_data(
    model: str, data: Source, columns: Columns, protocol: Protocol, folder: Path, seed: int
) -> _Work:
    """Return the work on a file's or table's examples, with settings for models on halves."""
    method: Any = protocol.method("generalisation")
    rows = read_rows(data, columns)
    start = _pretrained(model, rows.names, seed, data)
    pool = Pool(
        name=data.name.split(".")[0],
        examples=replace(rows.examples, labels=rows.assigned),
        label_names=rows.names,
        load=lambda number: load_model(model, rows.names, seed=number),
        weights_hash=start.weights_hash,
        training=method.training(protocol.finetune),
        max_tokens=protocol.text.max_tokens,
        share=method.share,
        seed=seed,
        folder=paths.work(folder, method.name),
    )
    return _Work(pool, start, method.models, folder, folder, _index(data, len(rows.assigned)))


def _index(data: Source, examples: int) -> Any:
    """Return the index of a DataFrame; for other data, rows counted from 0."""
    index = getattr(data.table, "index", None) if isinstance(data, InMemory) else None
    return pd.RangeIndex(examples) if index is None else index


def suspects_table(
    halves: list[Half], examples: Examples, names: tuple[str, ...]
) -> tuple[Table, Judged]:
    """Return one row per example, the most doubtful first, and the judgement on held-out ones.

    `low` and `high` are the ends of a 95 % interval of `counterfactual` (Newcombe's, for this
    number of models).
    """
    labels = examples.labels
    every = np.arange(len(examples))
    names_of = np.array(names)
    table = examples_table(halves, labels)
    chances = mean_chances(halves, trained=False)
    held = np.flatnonzero(~np.isnan(chances[:, 0]))
    judged = judge(chances[held], labels[held])
    suggested = labels.copy()
    doubt = np.full(len(labels), np.nan)
    suggested[held], doubt[held] = judged.suggested, judged.doubt
    wrong = np.isin(every, held[judged.wrong])
    fits = np.isin(every, held) & (suggested == labels)
    parts = [list(part) for part in zip(*examples.parts, strict=True)]
    texts = dict(zip(PARTS[: len(parts)], parts, strict=True))
    low, high = _newcombe(table)
    order = [*held[judged.order], *np.setdiff1d(every, held)]
    table = table.assign(
        **texts,
        row=every + 1,
        label=names_of[labels],
        suggested=names_of[suggested],
        corrected=names_of[np.where(wrong, suggested, labels)],
        wrong=wrong,
        group=np.select([wrong, fits], [WRONG, FITS], UNCLEAR),
        doubt=doubt,
        low=low,
        high=high,
    ).iloc[order]
    table = table.reset_index(drop=True)
    return table.assign(rank=table.index + 1)[["rank", "row", *texts, *COLUMNS]], judged


def _newcombe(table: Table) -> tuple["pd.Series[float]", "pd.Series[float]"]:
    """Return Newcombe's interval of a difference, from Wilson's intervals of both shares."""
    held, trained = (
        wilson(table[kind].to_numpy(), table[f"n_{kind}"].to_numpy(np.float64))
        for kind in ("held_out", "trained")
    )
    below = np.hypot(trained.estimate - trained.low, held.high - held.estimate)
    above = np.hypot(trained.high - trained.estimate, held.estimate - held.low)
    return table["counterfactual"] - below, table["counterfactual"] + above


PARTS = ("text", "pair", "third")
"""Names of the columns for the parts of a text."""
COLUMNS = (
    *("label", "suggested", "corrected", "wrong", "group", "doubt"),
    *(*NUMBERS, "n_held_out", "n_trained"),
)
"""Columns after the texts.

`doubt` equals cleanlab's margin adjusted by class: how far the likeliest other label is above the
given one, held out, relative to the usual probabilities of both.
"""


def _remarks(pool: Pool) -> tuple[str, ...]:
    """Warn about what is unusual in the data, and return these sentences for the results."""
    labels, groups, names = pool.examples.labels, pool.groups, pool.label_names
    counts = np.bincount(labels, minlength=len(names))
    small = [f"{names[c]} ({counts[c]})" for c in np.flatnonzero(counts < FEW)]
    if small:
        warnings.warn(
            f"Few examples, so that a half may hold none of them: {', '.join(small[:5])}"
            f"{' and others' if len(small) > 5 else ''}. Their labels are hard to judge.",
            MemlocWarning,
            stacklevel=3,
        )
    remarks = []
    copies = len(groups) - len(np.unique(groups))
    if copies:
        pairs = np.unique(np.stack([groups, labels]), axis=1)
        torn = int((np.bincount(pairs[0]) > 1).sum())
        conflict = f". {counted(torn, 'text')} with different labels" if torn else ""
        remarks.append(
            f"{counted(copies, 'more copy', 'more copies')} of a text that is there already; all "
            f"copies of a text go to the same half{conflict}."
        )
    for remark in remarks:
        tell(remark)
    return tuple(remarks)


def _write(found: Suspects, name: str) -> None:
    """Write the table, the file to correct, and the page."""
    for_people = found.table.round(dict.fromkeys((*NUMBERS, "doubt"), 3))
    for_people["wrong"] = np.where(for_people["wrong"], "yes", "no")
    with whole_file(found.folder / paths.TO_CORRECT) as draft:
        write_csv(draft, for_people)
    about = {"models": found.models, "remarks": list(found.remarks)}
    about |= {"random_errors": list(found.random_errors)}
    about |= {"to_correct": hash_files([found.folder / paths.TO_CORRECT])}
    write_table(found.folder / paths.SUSPECTS, found.table, about)
    with whole_file(found.folder / paths.PAGE) as draft:
        draft.write_text(_page(found, for_people.head(SHOWN), name), encoding="utf-8")


def _page(found: Suspects, shown: Table, name: str) -> str:
    """Return a page of plain HTML with the sentences and a table of the examples to look at
    first.
    """
    import jinja2

    columns = [c for c in shown.columns if c not in {"rank", "wrong", "corrected"}]
    table = shown[columns].to_html(index=False, border=0, na_rep="–")
    page = jinja2.Template(PAGE.read_text(encoding="utf-8"), autoescape=True)
    return str(page.render(name=name, sentences=found.sentences(), table=table))
