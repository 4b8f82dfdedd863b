"""Finds labels that a model can only know by heart, in data where nobody marked what is wrong.

Models are trained on random halves of the data. What those that did not see an example say of it
is compared with its label, and with what those say that did see it.
"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from memloc.arrays import FloatArray, IntArray, Table
from memloc.data.own import Columns, read_rows
from memloc.data.tables import (
    Data,
    Source,
    source_of,
    write_csv,
)
from memloc.data.task import Examples
from memloc.errors import (
    MemlocWarning,
    ModelError,
    SettingsError,
    StoreError,
    counted,
)
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
from memloc.model.device import suitable_threads
from memloc.model.known import default_preset
from memloc.model.load import Classifier, load_model
from memloc.progress import tell
from memloc.protocol import Protocol
from memloc.protocol import preset as preset_called
from memloc.run.folder import Run
from memloc.stats.intervals import wilson
from memloc.store import paths
from memloc.store.files import whole_file
from memloc.store.identity import hash_files
from memloc.store.lock import RUN, locked
from memloc.store.records import read_table, write_table

SHOWN = 100
"""So many examples are on the page."""
FEW = 10
"""A class with fewer examples is named in a warning: a half may hold none of them."""
ENOUGH = 8
"""With fewer models hardly any example can be called wrong: half of them hold it out."""
PAGE = Path(__file__).with_suffix(".html")
"""What the page of suspects looks like."""
WRONG, UNCLEAR, FITS = "likely wrong", "unclear", "fits"
NUMBERS = ("held_out", "trained", "counterfactual", "low", "high")


@dataclass(frozen=True)
class Suspects:
    """Every example, the ones to look at first on top, and where the files are."""

    folder: Path
    examples: Table
    models: int
    remarks: tuple[str, ...] = ()

    @property
    def wrong(self) -> Table:
        """The examples whose label is likely wrong."""
        return self.examples[self.examples["group"] == WRONG]

    def sentences(self) -> list[str]:
        """What was found, for people."""
        wrong, unclear = len(self.wrong), int((self.examples["group"] == UNCLEAR).sum())
        found = (
            f"{counted(wrong, 'label')} of {len(self.examples):,} {'is' if wrong == 1 else 'are'} "
            "likely wrong: models that did not see the example give it another label. "
            f"{counted(unclear, 'example')} cannot be decided with {self.models} models."
        )
        return [found, *self.remarks]


Announce = Callable[[Pool, Any, int], None]
"""Told before work begins: the data, the model, and how many models are trained."""


def find(  # noqa: PLR0913 - each names something that varies between people's files
    model: str | Run,
    folder: str | Path | None = None,
    *,
    data: Data | None = None,
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
    is left out); `data` is a file, a pandas DataFrame or a `datasets.Dataset`. `folder` gets the
    table, a page with the examples to look at first, and
    `suspects.csv`: correct its column `corrected` and give it to `memloc.load_csv` or
    `memloc.adopt` with `original="corrected"`, or with `flag="wrong"` to leave examples out of the
    reference's training. `settings` are those that differ from the preset, such as
    `{"generalisation.models": 12}`.
    """
    changes = settings or {}
    if isinstance(model, Run) or (Path(model) / paths.RUN).is_file():
        run = open_run(model, None if device == "auto" else device)
        _refuse_choices(run, data, seed, changes)
        protocol = preset_called(preset or run.settings.preset).replace(changes)
        method: Any = protocol.method("generalisation")
        home, lock = folder or run.folder / paths.FOUND, run.folder
        pool, start = pool_of(run, method), run.load_pretrained(run.seed)
    else:
        if data is None or folder is None:
            raise SettingsError("Give the file with the examples (data) and a folder for results.")
        protocol = preset_called(preset or default_preset(model)).replace(changes)
        method = protocol.method("generalisation")
        home = lock = Path(folder)
        columns, first = Columns(text, label, pair), 1 if seed is None else seed
        pool, start = _of_file(model, source_of(data), columns, protocol, home, first)
        pool = replace(pool, device=device)
    _refuse_corrected(Path(home))
    with locked(lock, RUN):
        remarks = _remarks(pool, method.models)
        if len(kept_halves(pool, method.models)) < method.models:
            announce(pool, start, method.models)
        with suitable_threads(start.stack.width):
            halves = half_models(pool, method.models)
        table = suspects_table(halves, pool.examples, pool.label_names)
        return _written(Suspects(Path(home), table, method.models, remarks), pool.name)


def _refuse_choices(run: Run, data: Any, seed: int | None, settings: Mapping[str, Any]) -> None:
    """A run's data, its seed and how it was trained stay as they are."""
    if data is not None:
        raise SettingsError(f"{run.folder} is a run, which has its data: leave out --data.")
    others = [name for name in settings if name.split(".")[0] != "generalisation"]
    if others or seed not in {None, run.seed}:
        what = others[0] if others else f"seed {seed}"
        raise SettingsError(
            f"{what} cannot be chosen for {run.name}, which has its own (seed {run.seed}): "
            "settings of generalisation can, such as generalisation.models."
        )


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


def _pretrained(model: str, names: tuple[str, ...], seed: int, data: Source) -> Classifier:
    """The pre-trained model with a head for these classes; one that may know labels is refused."""
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


def _of_file(
    model: str, data: Source, columns: Columns, protocol: Protocol, folder: Path, seed: int
) -> tuple[Pool, Classifier]:
    """The examples of a file with how models learn halves of them, and what these start from."""
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
    return pool, start


def suspects_table(halves: list[Half], examples: Examples, names: tuple[str, ...]) -> Table:
    """One row per example, those first whose label the others would least give.

    `low` and `high` are the ends of a 95 % interval of `counterfactual` (Newcombe's, for as many
    models as there are); groups are by intervals, too, so that few models decide little.
    """
    labels, every, names_of = examples.labels, np.arange(len(examples)), np.array(names)
    table, chances = examples_table(halves, labels), mean_chances(halves, trained=False)
    unseen = np.isnan(chances[:, 0])
    above = chances - _usual(chances[~unseen], labels[~unseen])
    above[unseen] = 0
    others = np.where(labels[:, None] == np.arange(len(names)), -np.inf, above).argmax(1)
    doubt = above[every, others] - above[every, labels]
    suggested = np.where(unseen, labels, above.argmax(1))
    # Whether the intervals of the given label's chance and of the other's are apart.
    held, trained = (
        wilson(table[kind].to_numpy(), table[f"n_{kind}"].to_numpy(np.float64))
        for kind in ("held_out", "trained")
    )
    other = wilson(chances[every, others], table["n_held_out"].to_numpy(np.float64))
    wrong, fits = other.low > held.high, held.low > other.high
    # Newcombe's interval of a difference, from Wilson's of both.
    below = np.hypot(trained.estimate - trained.low, held.high - held.estimate)
    beyond = np.hypot(trained.high - trained.estimate, held.estimate - held.low)
    parts = [list(part) for part in zip(*examples.parts, strict=True)]
    texts = dict(zip(PARTS[: len(parts)], parts, strict=True))
    table = table.assign(
        **texts,
        row=every + 1,
        label=names_of[labels],
        suggested=names_of[suggested],
        corrected=names_of[np.where(wrong, others, labels)],
        wrong=wrong,
        group=np.select([wrong, fits], [WRONG, FITS], UNCLEAR),
        doubt=np.where(unseen, np.nan, doubt),
        low=table["counterfactual"] - below,
        high=table["counterfactual"] + beyond,
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


def _usual(chances: FloatArray, labels: IntArray) -> FloatArray:
    """(classes,): the mean chance of a class among the examples that have it; 0 without any.

    Chances count relative to it, as models are surer of some classes than of others.
    """
    of_class = labels[:, None] == np.arange(chances.shape[1])
    return np.asarray((chances * of_class).sum(0) / np.maximum(1, of_class.sum(0)))


def _remarks(pool: Pool, models: int) -> tuple[str, ...]:
    """What is unusual about the data: said before the work begins, and again with the results."""
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
    if models < ENOUGH:
        remarks.append(
            f"With {models} models, hardly any label can be called wrong: {ENOUGH} are the fewest "
            "that decide something, and 30 decide more (--models 30)."
        )
    for remark in remarks:
        tell(remark)
    return tuple(remarks)


def _written(found: Suspects, name: str) -> Suspects:
    """The table, the file to correct, and the page."""
    for_people = found.examples.round(dict.fromkeys((*NUMBERS, "doubt"), 3))
    for_people["wrong"] = np.where(for_people["wrong"], "yes", "no")
    with whole_file(found.folder / paths.TO_CORRECT) as draft:
        write_csv(draft, for_people)
    about = {"models": found.models, "remarks": list(found.remarks)}
    about |= {"to_correct": hash_files([found.folder / paths.TO_CORRECT])}
    write_table(found.folder / paths.SUSPECTS, found.examples, about)
    with whole_file(found.folder / paths.PAGE) as draft:
        draft.write_text(_page(found, for_people.head(SHOWN), name), encoding="utf-8")
    return found


def _page(found: Suspects, shown: Table, name: str) -> str:
    """Plain HTML: sentences, and a table of the examples to look at first."""
    import jinja2

    columns = [c for c in shown.columns if c not in {"rank", "wrong", "corrected"}]
    table = shown[columns].to_html(index=False, border=0, na_rep="–")
    page = jinja2.Template(PAGE.read_text(encoding="utf-8"), autoescape=True)
    return str(page.render(name=name, sentences=found.sentences(), table=table))
