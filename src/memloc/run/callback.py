"""Makes runs of fine-tunings with the Hugging Face Trainer: a callback, and what reads it."""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from transformers import TrainerCallback

from memloc.arrays import IntArray
from memloc.data.tables import Data
from memloc.data.task import Examples, NoisyLabels
from memloc.errors import DataError, SettingsError, checked_arguments, counted, shortened
from memloc.model.load import Classifier, quiet_loading, settle_padding
from memloc.model.predict import accuracies, encode_for, predict
from memloc.progress import say
from memloc.protocol import FineTuneSettings
from memloc.run.adopt import adopt
from memloc.run.folder import Run
from memloc.run.recipe import keeps_epoch
from memloc.run.records import WEIGHTS
from memloc.store import paths
from memloc.store.files import whole_folder
from memloc.store.identity import hash_checkpoint
from memloc.store.records import (
    as_stored,
    as_table,
    read_json,
    versions,
    write_json,
    write_table,
)

Texts = Sequence[str] | Sequence[Sequence[str]]


class RunCallback(TrainerCallback):  # type: ignore[misc] # transformers has no types
    """Keeps the data and weights of a training with the Trainer, for `memloc.adopt` to read
    afterwards.

    After each epoch, the model's predictions for the training texts are kept; so are the weights of
    the first epoch whose training accuracy is near the ceiling, and the last ones.

    Args:
        texts: Training texts in the order of the Trainer's data set, as strings or as tuples of the
            parts of a text.
        labels: Labels to train on, as numbers.
        original: Labels before noise; to train the reference, give them as `labels` as well.
        near_ceiling: Training accuracy above which weights count as memorised.
        keep_epochs: With `early`, the weights of every epoch are kept until 95 % of the noisy
            labels are learnt, and those of epochs 2, 4, 8, … after that. They show when labels were
            learnt, and one of them can replace a reference.
        max_tokens: Largest number of tokens of a text; longer ones are cut.
    """

    def __init__(
        self,
        texts: Texts,
        labels: Sequence[int],
        original: Sequence[int],
        *,
        near_ceiling: float = FineTuneSettings().near_ceiling,
        keep_epochs: Literal["none", "early"] = "early",
        max_tokens: int = 512,
    ) -> None:
        for name, given in {"texts": texts, "labels": labels, "original": original}.items():
            is_list = hasattr(given, "__len__") and hasattr(given, "__iter__")
            if not is_list or isinstance(given, str | bytes):
                raise DataError(f"RunCallback: {name} must be a list, not {type(given).__name__}.")
        parts = tuple((text,) if isinstance(text, str) else tuple(text) for text in texts)
        if not len(parts) == len(labels) == len(original):
            raise DataError(
                f"RunCallback was given {counted(len(parts), 'text')}, {len(labels)} labels and "
                f"{len(original)} labels before noise; it needs one of each per example."
            )
        if any(len(text) not in {1, 2} for text in parts):
            raise DataError("RunCallback needs texts of one part, or all of two parts.")
        assigned, before = _numbers(labels), _numbers(original)
        self.examples = Examples(parts, assigned)
        self.noisy = NoisyLabels(before, assigned, before != assigned, "given to RunCallback")
        if self.noisy.is_noisy.all():
            raise DataError(
                f"All of {counted(len(parts), 'example')} have another label than before noise; "
                "clean examples are needed, too."
            )
        if not isinstance(keep_epochs, str) or keep_epochs not in {"none", "early"}:
            raise SettingsError(f"RunCallback: keep_epochs is none or early, not {keep_epochs!r}.")
        self.near_ceiling, self.max_tokens = near_ceiling, max_tokens
        self.keeps_early = keep_epochs == "early"

    def on_train_begin(self, args: Any, state: Any, _control: Any, **given: Any) -> None:
        """Refuse a training whose folder could not be read afterwards."""
        if args.world_size > 1:
            raise SettingsError("RunCallback works with one process; train without others.")
        if state.global_step > 0:
            raise SettingsError(
                f"RunCallback has to see every epoch, and this training goes on after update "
                f"{state.global_step}: train from the start, or adopt your checkpoints by name "
                "(`memloc adopt --final … --data …`)."
            )
        if args.load_best_model_at_end:
            raise SettingsError(
                "RunCallback keeps the last weights, and load_best_model_at_end puts others in "
                "their place: train without it."
            )
        self._classifier(given)
        self.folder = Path(args.output_dir) / paths.TRAINER
        self.rows: list[dict[str, Any]] = []
        self.predicted: dict[str, IntArray] = {}
        self.kept: list[str] = []
        self.epochs: list[int] = []
        self.began = time.perf_counter()

    def on_epoch_end(self, _args: Any, state: Any, _control: Any, **given: Any) -> None:
        """Predict the training texts; keep the weights when they are first near the ceiling."""
        trained = self._classifier(given)
        encoded = encode_for(trained, self.examples, self.max_tokens)
        predicted = predict(trained.stack, encoded).argmax(1)
        measured = accuracies(predicted, self.noisy.assigned, self.noisy)
        losses = [np.nan, *(entry["loss"] for entry in state.log_history if "loss" in entry)]
        epoch = len(self.rows) + 1
        self.predicted[f"epoch {epoch}"] = predicted
        what = {"training": "noisy", "epoch": epoch, "loss": float(losses[-1])}
        began = self.began
        self.began = time.perf_counter()
        times = {"validation_accuracy": np.nan, "seconds": self.began - began}
        self.rows.append({**what, **measured, **times})
        if self.keeps_early and keeps_epoch(self.rows, state.num_train_epochs):
            self._save(paths.epoch(epoch), given)
            self.epochs.append(epoch)
            if epoch == 1:
                self._tell_size()
        if "memorised" not in self.kept and measured["accuracy"] > self.near_ceiling:
            self._save("memorised", given)

    def on_train_end(self, args: Any, _state: Any, _control: Any, **given: Any) -> None:
        """Keep the last weights, the data, the predictions, and a record of how they belong to each
        other.
        """
        self._save("final", given)
        trained = self._classifier(given)
        write_table(self.folder / paths.PREDICTIONS, as_table(self.predicted), {})
        write_table(self.folder / paths.TRAINING, as_table(self.rows), {})
        data = f"{Path(args.output_dir).resolve().name}.parquet"
        write_table(self.folder / data, self._data(trained.label_names), {})
        record = {
            "pretrained": _pretrained(given["model"]),
            "seed": int(args.seed),
            "data": data,
            "parts": len(self.examples.parts[0]),
            "max_tokens": self.max_tokens,
            "epochs": self.epochs,
            "files": {name: hash_checkpoint(self.folder / name) for name in self.kept},
            "versions": versions(),
        }
        write_json(self.folder / paths.TRAINER_RECORD, record)

    def _classifier(self, given: dict[str, Any]) -> Classifier:
        """Return the model as it is now, with its tokenizer; an adapter stays in it."""
        model = given["model"]
        tokenizer = given.get("processing_class")
        if tokenizer is None:
            raise SettingsError(
                "RunCallback reads texts with the model's tokenizer: give it to the Trainer "
                "(`Trainer(..., processing_class=tokenizer)`)."
            )
        inner = model.get_base_model() if hasattr(model, "peft_config") else model
        name = str(_pretrained(model))
        settle_padding(name, inner, tokenizer)
        return Classifier(name, inner, tokenizer)

    def _save(self, checkpoint: str, given: dict[str, Any]) -> None:
        with whole_folder(self.folder / checkpoint) as draft, quiet_loading():
            given["model"].save_pretrained(draft)
            if hasattr(given["model"], "peft_config"):
                given["model"].get_base_model().config.save_pretrained(draft)  # for the labels
            given["processing_class"].save_pretrained(draft)
        self.kept.append(checkpoint)

    def _tell_size(self) -> None:
        """Print, at the first early checkpoint, how much disk space such checkpoints take."""
        files = (self.folder / paths.epoch(1)).rglob("*")
        taken = sum(file.stat().st_size for file in files) / 1e6
        say(
            f"RunCallback keeps the weights of every epoch ({taken:,.0f} MB each) until the noisy "
            f"labels are learnt; keep_epochs='none' keeps none. They are in {self.folder}.",
            to=sys.stderr,
        )

    def _data(self, names: Sequence[str]) -> Any:
        parts = [list(part) for part in zip(*self.examples.parts, strict=True)]
        columns: dict[str, Any] = dict(zip(("text", "pair")[: len(parts)], parts, strict=True))
        labels = {"label": self.noisy.assigned, "original": self.noisy.original}
        return as_table(columns | {k: [names[i] for i in v] for k, v in labels.items()})


def _numbers(labels: Sequence[int]) -> IntArray:
    """Return labels as an array; refuse anything but numbers of classes."""
    numbers = np.asarray(labels)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or (len(numbers) and numbers.min() < 0):
        raise DataError(
            f"RunCallback needs labels as the model's numbers of classes, from 0, and was given "
            f"{shortened(repr(labels[0]))}: use model.config.label2id for names."
        )
    return numbers.astype(np.int64)


def _pretrained(model: Any) -> str:
    """Return the name of the pre-trained model that is stored in a model."""
    if hasattr(model, "peft_config"):
        return str(model.peft_config[model.active_adapter].base_model_name_or_path)
    return str(model.name_or_path)


@checked_arguments
def adopt_trainer(  # noqa: PLR0913 - each is something that people have or do not have
    folder: str | Path,
    output: str | Path,
    *,
    reference: str | Path | None = None,
    frozen: str | Path | None = None,
    held_out: Data | None = None,
    seed: int | None = None,
    preset: str = "paper",
    settings: Mapping[str, Any] | None = None,
    train_missing: bool = False,
    device: str = "auto",
    stream: bool = False,
) -> Run:
    """Make a run from the output folder of a Hugging Face Trainer that had a `memloc.RunCallback`.

    The callback kept the data, the final, memorised and early weights and the name of the
    pre-trained model, so nothing else is needed.

    Args:
        folder: Folder of the run.
        output: The Trainer's output folder (`output_dir`).
        reference: Checkpoint that was fine-tuned on the original labels, or such an output folder.
        frozen: Checkpoint in which only the head was trained.
        held_out: Unseen examples with columns `text`, `pair` if texts have two parts, and `label`.
        seed: Seed of random choices and of trainings; by default the Trainer's.
        preset: `paper`, `reference` or `demo`.
        settings: Settings that differ from the preset.
        train_missing: Whether to train reference and frozen weights from the pre-trained model.
        device: `auto`, `cpu`, `cuda` or `mps`.
        stream: Whether to read blocks from disk when they run, for models larger than memory.
    """
    kept = _of_trainer(Path(output))
    tokens = {"text.max_tokens": kept.pop("max_tokens")}
    kept |= {"reference": reference, "frozen": frozen, "held_out": held_out, "preset": preset}
    kept |= {"settings": {**tokens, **(settings or {})}, "train_missing": train_missing}
    kept |= {"device": device, "stream": stream}
    return adopt(folder, **{**kept, **({} if seed is None else {"seed": seed})})


def _of_trainer(output: Path) -> dict[str, Any]:
    """Return the files that `RunCallback` left in a Trainer's output folder, as arguments of
    `adopt`.
    """
    kept = output / paths.TRAINER
    if not (kept / paths.TRAINER_RECORD).is_file():
        raise SettingsError(
            f"Give the file that {output} was trained on (--data), or the output folder of a "
            "finished Trainer that had a memloc.RunCallback."
        )
    record = read_json(kept / paths.TRAINER_RECORD)
    with as_stored(kept / paths.TRAINER_RECORD):
        for name, files in record["files"].items():
            if hash_checkpoint(kept / name) != files:
                raise ValueError(f"the {name} weights next to it have changed since")
        return {
            **{name: kept / name for name in record["files"] if name in WEIGHTS},
            "epochs": {n: kept / paths.epoch(n) for n in record.get("epochs", ())},
            **{"data": kept / record["data"], "original": "original"},
            "pair": "pair" if record["parts"] == 2 else None,
            "pretrained": record["pretrained"] or None,
            "seed": record["seed"],
            "max_tokens": record["max_tokens"],
        }
