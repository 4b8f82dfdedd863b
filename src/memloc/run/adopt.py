"""Makes a run from checkpoints and data that a user already has."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from memloc.data.own import Columns, read_rows
from memloc.data.perturb import OWN
from memloc.data.tables import Data, Source, source_of
from memloc.data.task import Examples, Task
from memloc.errors import ModelError, SettingsError, checked_arguments
from memloc.model.check import check_pair, require_agreement
from memloc.model.checkpoints import load_checkpoint, load_start
from memloc.model.device import pick_device, suitable_threads
from memloc.model.known import start_of
from memloc.model.load import Classifier, LoadOptions
from memloc.model.predict import accuracies, encode_for, predicted
from memloc.progress import announce, request, tell
from memloc.protocol import RunSettings, settings_of_run
from memloc.run.begin import begin
from memloc.run.folder import Run
from memloc.run.recipe import Training
from memloc.run.records import Accuracies, Checkpoint, RunRecord, RunStatus, TaskRecord, few_in
from memloc.run.spec import RunSpec
from memloc.run.texts import memorised_texts
from memloc.store import paths
from memloc.store.files import whole_file
from memloc.store.identity import hash_checkpoint
from memloc.store.lock import RUN, locked

NO_EXAMPLES = Examples((), np.zeros(0, dtype=np.int64))


@checked_arguments
def adopt(  # noqa: PLR0913 - each is something that people have or do not have
    folder: str | Path,
    *,
    final: str | Path | None = None,
    data: Data | None = None,
    text: str = "text",
    pair: str | None = None,
    label: str = "label",
    original: str | None = None,
    flag: str | None = None,
    prompt: str | None = None,
    continuation: str | None = None,
    tokens: int | None = None,
    held_out: Data | None = None,
    reference: str | Path | None = None,
    pretrained: str | Path | None = None,
    memorised: str | Path | None = None,
    frozen: str | Path | None = None,
    epochs: Mapping[int, str | Path] | None = None,
    seed: int = 1,
    preset: str = "paper",
    settings: Mapping[str, Any] | None = None,
    train_missing: bool = False,
    device: str = "auto",
    stream: bool = False,
) -> Run:
    """Make a run of checkpoints and of the data that they were trained on.

    Checkpoints, which may be adapters (PEFT), stay where they are; data (a file, DataFrame or
    Dataset) are copied.

    With columns `prompt` and `continuation`, checkpoints are language models. Texts that the final
    weights do not recall are left out, and so are those that the other weights recall as well.

    With a name alone, such as `memloc.adopt("user/run")`, the run that was pushed to this
    repository of the hub is fetched into a folder of the same name, or opened if it is there.

    Args:
        folder: Folder of the run, or `user/name` of a repository of the hub.
        final: Checkpoint that was fine-tuned on the noisy labels, or on the texts.
        data: The examples that `final` was trained on.
        text: Column of texts.
        pair: Column of second texts.
        label: Column of the labels that `final` was trained on.
        original: Column of the labels before noise; give this or `flag`.
        flag: Column that is true where the label is wrong, or where the text may be memorised.
        prompt: Column of the beginnings of texts.
        continuation: Column of what a language model should recall after each prompt.
        tokens: Number of last tokens of `text` to recall, in place of these two columns.
        held_out: Unseen examples with the same columns.
        reference: Checkpoint that was fine-tuned on the original labels, or on other texts.
        pretrained: Model that the fine-tuning started from; by default an adapter's base model.
        memorised: Checkpoint of the first epoch with near-ceiling training accuracy.
        frozen: Checkpoint of which only the head was trained.
        epochs: Earlier checkpoints of the training of `final`, by the epochs they were kept after.
        seed: Seed of random choices and of trainings.
        preset: `paper`, `reference` or `demo`.
        settings: Settings that differ from the preset.
        train_missing: Whether to train reference and frozen weights from `pretrained`.
        device: `auto`, `cpu`, `cuda` or `mps`.
        stream: Whether to read blocks from disk when they run, for models larger than memory.
    """
    if final is None or data is None:
        return _pull(folder, device, final, data, reference, pretrained, memorised, frozen, epochs)
    places = _places(epochs, final=final, reference=reference, memorised=memorised, frozen=frozen)
    how = _options(places["final"], pretrained, needed=train_missing, stream=stream)
    decided = settings_of_run(preset, settings or {}, has_noise=True)
    columns = Columns(text, label, pair, original, flag, prompt, continuation, tokens)
    require_agreement(loaded := load_checkpoint(places["final"], how, texts=columns.is_texts))
    task = _read(data, columns, held_out, loaded.label_names)
    task = memorised_texts(task, places, how, decided.text.max_tokens)
    status = _examined(loaded, places, how, partial(_measured, task, decided, device))
    record = _record(how.base or str(final), task, seed, decided, loaded, status)
    del loaded
    new = Run(Path(folder), record, device, status)
    return _begun(new, task, source_of(data), train_missing=train_missing)


def _pull(name: str | Path, device: str, final: Any, data: Any, *others: Any) -> Run:
    """Open the run in a folder, or fetch the repository of the hub that has this name.

    Anything that is given with the name asks for a run of checkpoints, so nothing is opened.
    """
    folder = Path(name)
    is_alone = all(value is None for value in (final, data, *others))
    if is_alone and (folder / paths.RUN).is_file():
        return Run.open(folder, device)
    if not is_alone or folder.is_absolute() or len(folder.parts) != 2:
        needed = {"final": final, "data": data}
        missing = [name for name, value in needed.items() if value is None]
        raise SettingsError(
            f"adopt: {' and '.join(missing)} must be given: the checkpoint that learnt the noisy "
            "labels, and the data. A name such as user/run alone is a run of the hub."
        )
    tell(f"Fetching {folder.as_posix()} from the hub, as no checkpoint is given.")
    return Run.pull(folder.as_posix(), folder, device=device)


def _keep_curves(run: Run, data: Source) -> None:
    """Copy into the run the training curve that `RunCallback` wrote next to the data."""
    if not isinstance(data, Path):
        return
    kept = data.parent
    if (kept / paths.TRAINER_RECORD).is_file() and not (run.folder / paths.TRAINING).is_file():
        with whole_file(run.folder / paths.TRAINING) as draft:
            shutil.copy(kept / paths.TRAINING, draft)


def _options(
    final: Path, pretrained: str | Path | None, *, needed: bool, stream: bool
) -> LoadOptions:
    """Return how checkpoints are loaded: upon the pre-trained model, or upon an adapter's base."""
    start = start_of(final, pretrained, needed=needed)
    return LoadOptions(base=None if start is None else str(start), stream=stream)


def _places(epochs: Any, **given: str | Path | None) -> dict[str, Path]:
    """Return the folder of each checkpoint by its name, such as `final` or `reference`.

    The output folder of a Hugging Face Trainer is replaced by that of the final weights in it.
    """
    given |= _early(epochs)
    places = {name: Path(place) for name, place in given.items() if place is not None}
    kept = {name: place / paths.TRAINER / "final" for name, place in places.items()}
    return {name: kept[name] if kept[name].is_dir() else places[name] for name in places}


def _early(epochs: Any) -> dict[str, str | Path]:
    """Return the folders of early checkpoints by name, such as `epoch-2`."""
    if not isinstance(epochs, Mapping | None):
        raise SettingsError(
            f"Give epochs as a dict of epoch numbers and folders, not a {type(epochs).__name__}."
        )
    return {paths.epoch(_number(n)): place for n, place in (epochs or {}).items()}


def _number(epoch: object) -> int:
    """Return the number of an epoch; refuse anything but a whole number from 1."""
    if not isinstance(epoch, int) or isinstance(epoch, bool) or epoch < 1:
        raise SettingsError(f"Epochs are whole numbers from 1, not {epoch!r}.")
    return epoch


def _begun(new: Run, task: Task, data: Source, *, train_missing: bool) -> Run:
    """Begin a run or open it, note its weights, and train those that are missing if asked to."""
    with locked(new.folder, RUN):
        run = begin(new.folder, task, new.record, new.status, new.device)
        run = _noted(run, new.status, data)
        return _with_missing(run) if train_missing else run


def _noted(run: Run, new: RunStatus, data: Source) -> Run:
    """Add weights, new folders of weights and accuracies to the status of a run."""
    _keep_curves(run, data)
    if few := few_in(run.task):
        tell(few)
    known = run.status
    adopted = {**run.status.adopted, **new.adopted}
    reference = new.reference if known.reference is None else known.reference
    return run.note(adopted=adopted, final=known.final or new.final, reference=reference)


def _read(given: Data, columns: Columns, held_out: Data | None, names: Sequence[str]) -> Task:
    """Read the examples that the final weights were trained on, and unseen ones if given."""
    data = source_of(given)
    columns.require_noise(data)
    rows = read_rows(data, columns, names)
    noisy = columns.noise(rows.examples.labels, rows.assigned)
    unseen = NO_EXAMPLES
    if held_out is not None:
        unseen = read_rows(source_of(held_out), columns.right, names).examples
    parts = (rows.examples, unseen, unseen)
    name = data.name.split(".")[0]
    return Task(name, OWN, rows.names, *parts, f"file: {data}", noisy)


def _examined(
    final: Classifier,
    places: Mapping[str, Path],
    how: LoadOptions,
    measure: Callable[[Classifier, str], dict[str, float]],
) -> RunStatus:
    """Check all weights against the final ones, and measure their accuracies.

    `how` names the pre-trained weights, if given, into which adapters are merged. Each checkpoint
    is loaded once and released before the next, so that at most two are in memory.
    """
    checkpoints = {"final": _compared(final, final, "final", places["final"])}
    reference = None
    for name, place in places.items():
        if name == "final":
            continue
        other = load_checkpoint(place, how, texts=not final.label_names)
        checkpoints[name] = _compared(final, other, name, place)
        if name == "reference":
            _refuse_copy(checkpoints)
            reference = measure(other, name)["accuracy"]
        del other
    if how.base is not None:
        cut = replace(how, base=None, depth=final.stack.depth)
        start = load_start(how.base, final.label_names, cut)
        checkpoints["pretrained"] = _compared(final, start, "pretrained", Path(how.base))
        del start
    ending = Accuracies.of(measure(final, "final"))
    return RunStatus(adopted=checkpoints, final=ending, reference=reference)


def _record(
    start: str, task: Task, seed: int, decided: RunSettings, final: Classifier, status: RunStatus
) -> RunRecord:
    return RunRecord(
        spec=RunSpec.of(start, task, seed, decided),
        made_by="adopt",
        weights_hash=status.adopted["final"].hash,
        depth=final.stack.depth,
        width=final.stack.width,
        task=TaskRecord.of(task),
        command=request(),
    )


def _refuse_copy(found: Mapping[str, Checkpoint]) -> None:
    if found["reference"].hash == found["final"].hash:
        raise ModelError(
            f"The reference weights in {found['reference'].path} are a copy of the final weights: "
            "give a checkpoint that was trained on the original labels."
        )


def _compared(final: Classifier, other: Classifier, name: str, place: Path) -> Checkpoint:
    """Check that weights suit the final ones, and describe them by their contents."""
    check_pair(final, other, name)
    if other.unchanged_layers and name != "frozen":
        layers = ", ".join(map(str, other.unchanged_layers))
        tell(f"The adapter of the {name} weights does nothing in layers {layers}.")
    return Checkpoint(
        path=str(place.resolve() if place.is_dir() else place),
        files=hash_checkpoint(place) if place.is_dir() else "",
        hash=other.weights_hash,
    )


def _measured(
    task: Task, settings: RunSettings, device: str, model: Classifier, checkpoint: str
) -> dict[str, float]:
    """Return the accuracies of weights on the labels that they were trained on."""
    labels = task.labels.original if checkpoint == "reference" else task.labels.assigned
    if not hasattr(model.model, "places"):  # a streamed model stays where its files are
        model.model.to(pick_device(device)).eval()
    with suitable_threads(model.stack.width):
        answers = predicted(model.stack, encode_for(model, task.train, settings.text.max_tokens))
    return accuracies(answers, labels, task.labels)


def _with_missing(run: Run) -> Run:
    """Train the reference and frozen weights that were not given."""
    missing = {"reference": "original", "frozen": "frozen"}
    left = [training for name, training in missing.items() if not run.has(name)]
    if not left:
        return run
    start = run.load_pretrained(run.seed)
    announce("training", run, start, dict.fromkeys(left, run.settings.finetune.epochs))
    with suitable_threads(run.record.width):
        return Training(run, start).make(left)
