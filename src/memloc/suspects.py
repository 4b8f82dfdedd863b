"""Finds labels that a model can only know by heart, in data where nobody marked what is wrong.

Models are trained on random halves of the data. What those that did not see an example say of it
is compared with its label, and with what those say that did see it.
"""

import html
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from memloc import paths
from memloc.data.own import Columns, read_rows
from memloc.errors import MemlocWarning, ModelError, SettingsError, StoreError, counted
from memloc.identity import hash_files, hash_loaded
from memloc.lock import RUN, Lock
from memloc.methods.halves import (
    Half,
    Pool,
    examples_table,
    half_models,
    held_out_chances,
    pool_of,
)
from memloc.models.device import suitable_threads
from memloc.models.known import default_preset
from memloc.progress import tell
from memloc.protocol import preset as preset_called
from memloc.records import (
    BoolArray,
    Examples,
    FloatArray,
    IntArray,
    read_table,
    whole_file,
    write_table,
)
from memloc.run import Run
from memloc.stats.intervals import wilson

if TYPE_CHECKING:
    import pandas as pd

SHOWN = 100
"""So many examples are on the page."""
FEW = 10
"""A class with fewer examples is named in a warning: a half may hold none of them."""
ENOUGH = 8
"""With fewer models hardly any example can be called wrong: half of them hold it out."""
WRONG, UNCLEAR, FITS = "likely wrong", "unclear", "fits"
NUMBERS = ("held_out", "trained", "counterfactual", "low", "high")


@dataclass(frozen=True)
class Suspects:
    """Every example, the ones to look at first on top, and where the files are."""

    folder: Path
    examples: "pd.DataFrame"
    models: int
    remarks: tuple[str, ...] = ()

    @property
    def wrong(self) -> "pd.DataFrame":
        """The examples whose label is likely wrong."""
        return self.examples[self.examples["group"] == WRONG]

    def sentences(self) -> list[str]:
        """What was found, for people."""
        counts = self.examples["group"].value_counts()
        several = counted(int(counts.get(UNCLEAR, 0)), "example")
        found = (
            f"{counted(int(counts.get(WRONG, 0)), 'label')} of {len(self.examples):,} "
            f"{'is' if counts.get(WRONG, 0) == 1 else 'are'} likely wrong: models that did not see "
            f"the example give it another label. {several} cannot be decided with "
            f"{self.models} models."
        )
        return [found, *self.remarks]


Announce = Callable[[Pool, Any, int], None]
"""Told before work begins: the data, the model, and how many models are trained."""


def find(  # noqa: PLR0913 - each names something that varies between people's files
    model: str | Run,
    folder: str | Path | None = None,
    *,
    data: str | Path | None = None,
    text: str = "text",
    label: str = "label",
    pair: str | None = None,
    seed: int | None = None,
    preset: str | None = None,
    settings: Mapping[str, Any] | None = None,
    device: str = "auto",
    announce: Announce = lambda _pool, _model, _models: None,
) -> Suspects:
    """Say which labels of a file, or of a run, are likely wrong, and what they should be.

    `model` is the pre-trained model that is fine-tuned on halves of `data`, or a run (then `data`
    is left out). `folder` gets the table, a page with the examples to look at first, and
    `suspects.csv`: correct its column `corrected` and give it to `memloc.load_csv` or
    `memloc.adopt` with `original="corrected"`, or with `flag="wrong"` to leave examples out of the
    reference's training. `settings` are those that differ from the preset, such as
    `{"generalisation.models": 12}`.
    """
    run = _run_of(model, data)
    if run is not None:
        run = _as_asked(run, seed, settings or {}, device)
        protocol = preset_called(preset or run.settings.preset).replace(settings or {})
        method: Any = protocol.method("generalisation")
        pool = pool_of(run, method)
        home, lock = Path(folder or run.folder / paths.FOUND), run.folder
        names, start = run.task.label_names, run.load_pretrained(run.seed)
    else:
        if data is None or folder is None:
            raise SettingsError("Give the file with the examples (data) and a folder for results.")
        home = lock = Path(folder)
        protocol = preset_called(preset or default_preset(str(model))).replace(settings or {})
        method = protocol.method("generalisation")
        how = home, protocol, 1 if seed is None else seed, device
        pool, names, start = _pool(str(model), Path(data), Columns(text, label, pair), how)
    _refuse_corrected(home)
    with Lock(lock, RUN):
        remarks = _remarks(pool, names, method.models)
        if not all(pool.path(number).is_file() for number in range(1, method.models + 1)):
            announce(pool, start, method.models)
        with suitable_threads(start.stack.width):
            halves = half_models(pool, method.models)
        found = Suspects(home, suspects_table(halves, pool.examples, names), method.models, remarks)
        _write(found, pool.name)
    return found


def _as_asked(run: Run, seed: int | None, settings: Mapping[str, Any], device: str) -> Run:
    """A run on this device; its seed and how it was trained stay as they are."""
    others = [name for name in settings if name.split(".")[0] != "generalisation"]
    if others or seed not in {None, run.seed}:
        what = others[0] if others else f"seed {seed}"
        raise SettingsError(
            f"{what} cannot be chosen for {run.name}, which has its own (seed {run.seed}): "
            "settings of generalisation can, such as generalisation.models."
        )
    return run if device == "auto" else replace(run, device=device)


def _refuse_corrected(folder: Path) -> None:
    """Nobody's corrections are overwritten."""
    table, file = folder / paths.SUSPECTS, folder / paths.TO_CORRECT
    if not (table.is_file() and file.is_file()):
        return
    _, about = read_table(table)
    if about.get("to_correct") != hash_files([file]):
        raise StoreError(
            f"{file} was changed since memloc wrote it: rename it, or choose another folder with "
            "--out."
        )


def _run_of(model: str | Run, data: str | Path | None) -> Run | None:
    if isinstance(model, Run):
        return model
    is_run = (Path(model) / paths.RUN).is_file()
    if is_run and data is not None:
        raise SettingsError(f"{model} is a run, which has its data: leave out --data.")
    return Run.open(model) if is_run else None


def _pool(
    model: str, data: Path, columns: Columns, how: tuple[Path, Any, int, str]
) -> tuple[Pool, tuple[str, ...], Any]:
    """The examples of a file, and the pre-trained model with a head for their classes."""
    from memloc.models.load import load_model

    folder, protocol, seed, device = how
    rows = read_rows(data, columns)
    start = load_model(model, rows.names, seed=seed)
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
    method = protocol.method("generalisation")
    pool = Pool(
        name=data.name.split(".")[0],
        examples=replace(rows.examples, labels=rows.assigned),
        n_classes=len(rows.names),
        load=lambda number: load_model(model, rows.names, seed=number),
        weights_hash=hash_loaded(start),
        training=method.training(protocol.finetune),
        max_tokens=protocol.text.max_tokens,
        share=method.share,
        seed=seed,
        folder=paths.work(folder, method.name),
        device=device,
    )
    return pool, rows.names, start


def suspects_table(
    halves: list[Half], examples: Examples, names: tuple[str, ...]
) -> "pd.DataFrame":
    """One row per example, those first whose label the others would least give.

    `low` and `high` are the ends of a 95 % interval of `counterfactual` (Newcombe's, for as many
    models as there are); groups are by intervals, too, so that few models decide little.
    """
    labels, names_of = examples.labels, np.array(names)
    table = examples_table(halves, labels)
    other = _other_labels(halves, labels)
    low, high = _difference(table)
    group = _groups(table, other["chance"])
    wrong, given = group == WRONG, names_of[labels]
    parts = [list(part) for part in zip(*examples.parts, strict=True)]
    texts = dict(zip(PARTS[: len(parts)], parts, strict=True))
    table = table.assign(
        **texts,
        row=table["example"] + 1,
        label=given,
        suggested=names_of[other["suggested"]],
        corrected=np.where(wrong, names_of[other["others"]], given),
        wrong=wrong,
        group=group,
        doubt=other["doubt"],
        low=low,
        high=high,
    ).sort_values(["doubt", "row"], ascending=[False, True], ignore_index=True)
    return table.assign(rank=table.index + 1)[["rank", "row", *texts, *COLUMNS]]


PARTS = ("text", "pair", "third")
"""What the parts of a text are called."""
COLUMNS = (
    *("label", "suggested", "corrected", "wrong", "group", "doubt"),
    *(*NUMBERS, "n_held_out", "n_trained"),
)
"""After the texts. `doubt`: by how much the likeliest other label is above the given one, held
out, each relative to what is usual for its class."""


def _other_labels(halves: list[Half], labels: IntArray) -> "dict[str, Any]":
    """By models that held an example out: the likeliest other label and its chance, the likeliest
    of all, and how far the former is above the given label.

    Chances count relative to what is usual for their class, the mean chance of the label among
    examples that have it: models are surer of some classes than of others.
    """
    chances, every = held_out_chances(halves), np.arange(len(labels))
    unseen = np.isnan(chances[:, 0])
    above = chances - _usual(chances[~unseen], labels[~unseen])
    above[unseen] = 0
    without = above.copy()
    without[every, labels] = -np.inf
    others = without.argmax(1)
    doubt = above[every, others] - above[every, labels]
    return {
        "others": others,
        "suggested": np.where(unseen, labels, above.argmax(1)),
        "chance": chances[every, others],
        "doubt": np.where(unseen, np.nan, doubt),
    }


def _usual(chances: FloatArray, labels: IntArray) -> FloatArray:
    """(classes,): the mean chance of a class among the examples that have it; 0 without any."""
    of_class = labels[:, None] == np.arange(chances.shape[1])
    return np.asarray((chances * of_class).sum(0) / np.maximum(1, of_class.sum(0)))


def _difference(table: "pd.DataFrame") -> tuple[FloatArray, FloatArray]:
    """Newcombe's interval of trained minus held out, from Wilson's of both."""
    seen = wilson(table["trained"].to_numpy(), table["n_trained"].to_numpy(np.float64))
    unseen = wilson(table["held_out"].to_numpy(), table["n_held_out"].to_numpy(np.float64))
    difference = seen.estimate - unseen.estimate
    below = np.hypot(seen.estimate - seen.low, unseen.high - unseen.estimate)
    above = np.hypot(seen.high - seen.estimate, unseen.estimate - unseen.low)
    return difference - below, difference + above


def _groups(table: "pd.DataFrame", other: FloatArray) -> "BoolArray":
    """By whether the intervals of the given label's and the other's chance are apart."""
    n = table["n_held_out"].to_numpy(np.float64)
    given, another = wilson(table["held_out"].to_numpy(), n), wilson(other, n)
    fits, wrong = given.low > another.high, another.low > given.high
    return np.select([wrong, fits], [WRONG, FITS], UNCLEAR)


def _remarks(pool: Pool, names: tuple[str, ...], models: int) -> tuple[str, ...]:
    """What is unusual about the data: said before the work begins, and again with the results."""
    labels, groups = pool.examples.labels, pool.groups
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
    if models < ENOUGH:
        remarks.append(
            f"With {models} models, hardly any label can be called wrong: {ENOUGH} are the fewest "
            "that decide something, and 30 decide more (--models 30)."
        )
    for remark in remarks:
        tell(remark)
    return tuple(remarks)


def _write(found: Suspects, name: str) -> None:
    """The table, the file to correct, and the page."""
    for_people = found.examples.copy()
    for column in (*NUMBERS, "doubt"):
        for_people[column] = for_people[column].round(3)
    for_people["wrong"] = np.where(for_people["wrong"], "yes", "no")
    with whole_file(found.folder / paths.TO_CORRECT) as draft:
        for_people.to_csv(draft, index=False)
    about = {"models": found.models, "remarks": list(found.remarks)}
    about |= {"to_correct": hash_files([found.folder / paths.TO_CORRECT])}
    write_table(found.folder / paths.SUSPECTS, found.examples, about)
    with whole_file(found.folder / paths.PAGE) as draft:
        draft.write_text(_page(found, for_people.head(SHOWN), name), encoding="utf-8")


def _page(found: Suspects, shown: "pd.DataFrame", name: str) -> str:
    """Plain HTML: sentences, and a table of the examples to look at first."""
    columns = [c for c in shown.columns if c not in {"rank", "wrong", "corrected"}]
    said = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in found.sentences())
    title = f"{html.escape(name)}: labels to look at first"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style></head><body><h1>{title}</h1>{said}<p>{LEGEND}</p>"
        f"{shown[columns].to_html(index=False, border=0, na_rep='–')}</body></html>\n"
    )


STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:75rem;padding:0 1rem}"
    "table{border-collapse:collapse;font-size:.875rem}"
    "td,th{border-bottom:1px solid #ccc;padding:.3rem .5rem;text-align:left;vertical-align:top}"
)
LEGEND = (
    "<b>held_out</b> and <b>trained</b>: mean probability of the label by models that did not see "
    "the example in training, and by those that did. <b>counterfactual</b> is the difference, "
    "<b>low</b> to <b>high</b> its 95 % interval for this number of models: for a single example "
    "it is wide, so look at groups. <b>doubt</b> orders the table: how far the likeliest other "
    "label is above the given one, held out, each compared with what is usual for its class."
)
