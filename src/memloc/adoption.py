"""Makes a run of checkpoints and a data file that somebody already has."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from memloc.data.own import Columns, read_rows
from memloc.errors import SettingsError
from memloc.identity import hash_checkpoint, hash_loaded, hash_weights
from memloc.lock import RUN, Lock
from memloc.progress import request
from memloc.protocol import Protocol, protocol_of_run
from memloc.records import Examples, IntArray, NoisyLabels, Task
from memloc.run import Accuracies, Checkpoint, Run, RunRecord, TaskRecord, begin

if TYPE_CHECKING:
    from memloc.models.load import Classifier

NO_EXAMPLES = Examples((), np.zeros(0, dtype=np.int64))


def adopt(  # noqa: PLR0913 - each is something that people have or do not have
    folder: str | Path,
    *,
    final: str | Path,
    data: str | Path,
    text: str = "text",
    pair: str | None = None,
    label: str = "label",
    original: str | None = None,
    flag: str | None = None,
    held_out: str | Path | None = None,
    reference: str | Path | None = None,
    pretrained: str | Path | None = None,
    memorised: str | Path | None = None,
    frozen: str | Path | None = None,
    seed: int = 1,
    preset: str = "paper",
    settings: Mapping[str, Any] | None = None,
    train_missing: bool = False,
    device: str = "auto",
    announce: Callable[[Any, Any, Any], None] = lambda _recipe, _model, _left: None,
) -> Run:
    """Make a run in `folder` of checkpoints and of the file that they were trained on.

    `final` was fine-tuned on the noisy labels (column `label`); `original` names the column of the
    labels before noise, or `flag` one that is true where the label is wrong. The other weights are
    needed by some methods only: `reference` (fine-tuned on the original labels), `pretrained`,
    `memorised` (at near-ceiling accuracy), `frozen` (only the head trained). `train_missing` makes
    reference and frozen weights from `pretrained`, by the settings of `preset` with `settings`.

    Checkpoints stay where they are and are known by their contents; the data are copied.
    `announce` is told before training: the recipe, the model, and the epochs of each training.
    """
    given = {"final": final, "reference": reference, "memorised": memorised, "frozen": frozen}
    places = {name: Path(place) for name, place in given.items() if place is not None}
    if train_missing and pretrained is None:
        raise SettingsError("--train-missing starts from pre-trained weights: give --pretrained.")
    protocol = protocol_of_run(preset, settings or {})
    loaded = _load(places, pretrained)
    named = Columns(text, label, pair, original, flag)
    task, noisy = _read(Path(data), named, held_out, loaded["final"].label_names)
    record = RunRecord(
        **_facts(loaded["final"], pretrained or final, seed),
        task=TaskRecord.of(task, noisy),
        settings=protocol.for_run(),
        adopted=_checkpoints(places, pretrained, loaded),
        command=request(),
    )
    with Lock(Path(folder), RUN):
        run = _noted(begin(Path(folder), task, noisy, record), record, device)
        return _with_missing(run, protocol, device, announce) if train_missing else run


def _noted(run: Run, record: RunRecord, device: str) -> Run:
    """The run with what may be new: more weights, or the same ones elsewhere; its accuracies."""
    known = {**run.record.adopted, **record.adopted}
    if known != run.record.adopted:
        run = run.note(adopted=known)
    if run.record.final is None:
        run = run.note(final=_accuracies(run, device))
    if run.record.reference is None and "reference" in known:
        run = run.note(reference=_reference_accuracy(run, device))
    return run


def _read(
    data: Path, columns: Columns, held_out: str | Path | None, names: Sequence[str]
) -> tuple[Task, NoisyLabels]:
    """The examples that the final weights know by heart, and unseen ones if there are any."""
    columns.require_noise(data)
    rows = read_rows(data, columns, names)
    noisy = columns.noise(rows.original, rows.assigned)
    unseen = NO_EXAMPLES
    if held_out is not None:
        held = read_rows(Path(held_out), columns.right, names)
        unseen = Examples(held.parts, held.original)
    train = Examples(rows.parts, noisy.original)
    name = data.name.split(".")[0]
    return Task(name, "own", tuple(names), train, unseen, unseen, f"file: {data}"), noisy


def _facts(final: "Classifier", model: str | Path, seed: int) -> dict[str, Any]:
    facts = {"made_by": "adopt", "model": str(model), "depth": final.stack.depth, "seed": seed}
    hashed = hash_weights(final.model.named_parameters())
    return {**facts, "width": final.stack.width, "weights_hash": hashed}


def _load(places: Mapping[str, Path], pretrained: str | Path | None) -> "dict[str, Classifier]":
    """Every set of weights, each checked against the final one."""
    from memloc.models.check import check_pair, require_agreement
    from memloc.models.load import LoadOptions, load_checkpoint, load_model

    loaded = {"final": load_checkpoint(places["final"])}
    require_agreement(loaded["final"])
    for name, place in places.items():
        if name != "final":
            loaded[name] = load_checkpoint(place)
    if pretrained is not None:
        depth = loaded["final"].stack.depth
        loaded["pretrained"] = load_model(
            str(pretrained), loaded["final"].label_names, options=LoadOptions(depth=depth)
        )
    for name, other in loaded.items():
        if name != "final":
            check_pair(loaded["final"], other, name)
    return loaded


def _checkpoints(
    places: Mapping[str, Path], pretrained: str | Path | None, loaded: "Mapping[str, Classifier]"
) -> dict[str, Checkpoint]:
    found = {
        name: Checkpoint(
            path=str(place.resolve()),
            files=hash_checkpoint(place),
            hash=hash_weights(loaded[name].model.named_parameters()),
        )
        for name, place in places.items()
    }
    if pretrained is not None:
        place = Path(pretrained)
        found["pretrained"] = Checkpoint(
            path=str(place.resolve()) if place.is_dir() else str(pretrained),
            files=hash_checkpoint(place) if place.is_dir() else "",
            hash=hash_loaded(loaded["pretrained"]),
        )
    return found


def _accuracies(run: Run, device: str) -> Accuracies:
    from memloc.training.predict import accuracies

    found = accuracies(_predicted(run, "final", device), run.noisy.assigned, run.noisy)
    names = {"noisy": "noisy_accuracy", "clean": "clean_accuracy", "training": "accuracy"}
    return Accuracies(**{name: found[column] for name, column in names.items()})


def _reference_accuracy(run: Run, device: str) -> float:
    """Share of the original labels that the reference predicts, of those that are known."""
    predicted = _predicted(run, "reference", device)
    known = run.noisy.original >= 0
    return float((predicted == run.noisy.original)[known].mean())


def _predicted(run: Run, weights: str, device: str) -> IntArray:
    from memloc.models.device import suitable_threads
    from memloc.training.predict import predict

    loaded = Run.open(run.folder, device).load(weights)
    with suitable_threads(run.record.width):
        return np.asarray(predict(loaded.stack, run.encode(loaded)).argmax(1))


def _with_missing(
    run: Run, protocol: Protocol, device: str, announce: Callable[[Any, Any, Any], None]
) -> Run:
    """Train the reference and frozen weights that were not given."""
    from memloc.models.load import LoadOptions
    from memloc.training.recipe import Recipe, make_weights

    adopted = run.record.adopted["pretrained"]
    options = LoadOptions(depth=run.depth)
    recipe = Recipe(adopted.path, run.task, run.seed, protocol, run.noisy, options, device)
    missing = {"reference": "original", "frozen": "frozen"}
    trainings = [training for name, training in missing.items() if not run.has(name)]
    left = dict.fromkeys(trainings, protocol.finetune.epochs)
    if left:
        announce(recipe, run.load_pretrained(run.seed), left)
    return make_weights(recipe, run, left)
