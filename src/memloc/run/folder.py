"""A run: one task, one model, one seed; its data, weights and results in one folder.

`memloc.train` trains a run, `memloc.adopt` makes one from a user's checkpoints; everything that
works on the first works on the second.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from memloc.arrays import IntArray, LastLayer, Table, Vectors
from memloc.data.encode import Encoded
from memloc.data.task import NoisyLabels, Task, hash_task
from memloc.display import Card, Plotted
from memloc.errors import (
    DataError,
    StoreError,
    TrainingError,
    checked_arguments,
    counted,
    listed,
    lookup,
)
from memloc.model.device import pick_device
from memloc.model.known import checkpoint_folder
from memloc.protocol import RunSettings
from memloc.run.records import (
    CURVES,
    WEIGHTS,
    Accuracies,
    Checkpoint,
    RunRecord,
    RunStatus,
    at_the_end,
    task_of,
)
from memloc.run.spec import RATE, PlantSpec, RunSpec
from memloc.seeds import generator
from memloc.settings import read_record
from memloc.stats.windows import read_plant
from memloc.store import paths
from memloc.store.files import whole_folder
from memloc.store.identity import hash_checkpoint
from memloc.store.records import as_stored, as_table, read_json, read_table, write_json

if TYPE_CHECKING:
    from memloc.model.load import Classifier


def is_folder(checkpoint: str) -> bool:
    """Return whether weights are named by a checkpoint's folder rather than by a name within the
    run.
    """
    return "/" in checkpoint or "\\" in checkpoint


@dataclass(frozen=True, repr=False)
class Run(Plotted):
    """An opened folder of a run."""

    folder: Path
    record: RunRecord
    device: str = "auto"
    status: RunStatus = RunStatus()  # noqa: RUF009 - frozen

    @classmethod
    def open(cls, folder: str | Path, device: str = "auto") -> "Run":
        """Open an existing run."""
        path, status = Path(folder) / paths.RUN, Path(folder) / paths.STATUS
        if not path.is_file():
            raise StoreError(_no_run(Path(folder)))
        record = read_record(path, RunRecord)
        if not status.is_file():  # `begin` writes it before the record
            raise StoreError(
                f"{status} does not exist: repeat the command that made the run, which trains "
                "again what nothing is known of."
            )
        return cls(Path(folder), record, device, read_record(status, RunStatus))

    @classmethod
    @checked_arguments
    def pull(
        cls, repository: str, folder: str | Path, revision: str | None = None, device: str = "auto"
    ) -> "Run":
        """Fetch a run that was pushed to the hub, check every file, and open it.

        Args:
            repository: Repository of the hub, as `user/name`.
            folder: Folder of the run that is made.
            revision: Branch, tag or commit; by default the newest state.
            device: `auto`, `cpu`, `cuda` or `mps`.
        """
        from memloc.run.exchange import check_fetched, download

        place = Path(folder)
        if place.exists():
            raise StoreError(f"{place} exists: choose another folder for the run.")
        with whole_folder(place) as draft:
            download(repository, draft, revision)
            check_fetched(cls.open(draft), repository)
        return cls.open(place, device)

    @checked_arguments
    def push(self, repository: str, *, private: bool = True) -> str:
        """Upload the run with its data, results and weights to the hub, and return its address.

        Args:
            repository: Repository of the hub, as `user/name`; it is made if it does not exist.
            private: Whether a new repository is private; the texts of the run are in it.
        """
        from memloc.run.exchange import upload

        return upload(self, repository, private=private)

    @property
    def spec(self) -> RunSpec:
        """Everything that decides the weights of the run."""
        return self.record.spec

    @property
    def plant(self) -> PlantSpec | None:
        """Plant of the run, the layers that noisy labels may change; None for ordinary runs."""
        return self.spec.plant

    @property
    def seed(self) -> int:
        """Seed of the order of the data, the initial head and dropout."""
        return self.spec.seed

    @property
    def depth(self) -> int:
        """Number of layers."""
        return self.record.depth

    @cached_property
    def settings(self) -> RunSettings:
        """Settings of the run's trainings; a plant that was repeated has a higher learning rate."""
        settings, plant = self.spec.settings, self.plant
        if plant is None or not self.status.attempts:
            return settings
        factor = plant.rate_factor ** len(self.status.attempts)
        return settings.replace({RATE: settings.finetune.learning_rate * factor})

    @property
    def model_name(self) -> str:
        """Name of the model for display; for a model from a folder, the name of the folder."""
        if self.record.made_by == "adopt" and "pretrained" not in self.status.adopted:
            return self.folder.resolve().name
        return Path(self.spec.model).name

    @property
    def name(self) -> str:
        """Name of the run for display: task, model and seed."""
        return f"{self.record.task.name} · {self.model_name} · seed {self.seed}"

    @property
    def table(self) -> Table:
        """Training curves: one row per training and epoch."""
        return self.training()

    def card(self) -> Card:
        """Return the facts shown for a run: its data, what it memorised, and its weights."""
        task, final = self.record.task, self.status.final
        outcome = "no final weights yet"
        if final is not None:
            outcome = f"the final weights predict {final.noisy:.0%} of the noisy labels"
        facts = [
            f"{task.noisy:,} of {counted(task.train, 'training example')} noisy; {outcome}",
            f"weights: {', '.join(self.checkpoints()) or 'none'}; {counted(self.depth, 'layer')}",
        ]
        return Card(f"Run {self.name} in {self.folder}", facts)

    @property
    def is_null(self) -> bool:
        """Return whether the run is the null of a planted run, with nothing to memorise."""
        return self.plant is not None and self.plant.null

    @cached_property
    def task(self) -> Task:
        """Task that the run was trained on, with its original labels."""
        table, _ = read_table(self.folder / paths.LABELS)
        with as_stored(self.folder / paths.LABELS):
            task = task_of(table, self.record.task)
            if hash_task(task) != self.record.task.hash:
                raise ValueError(f"its examples are not those that {paths.RUN} describes")
        return task

    @property
    def noisy(self) -> NoisyLabels:
        """Training labels before and after noise."""
        return self.task.labels

    @cached_property
    def noisy_rows(self) -> IntArray:
        """Rows of the noisy training examples."""
        return np.flatnonzero(self.noisy.is_noisy)

    @cached_property
    def clean_rows(self) -> IntArray:
        """Rows of the clean training examples."""
        return np.flatnonzero(~self.noisy.is_noisy)

    @cached_property
    def planted_groups(self) -> IntArray:
        """Group (from 0) of each training example in a plant with several groups.

        Both noisy and clean examples are divided among groups. All are in group 0 in ordinary runs,
        and in plants with one group.
        """
        groups = np.zeros(len(self.noisy.is_noisy), dtype=np.int64)
        plant = self.plant
        n_groups = 1 if plant is None else len(read_plant(plant.planted))
        for kind, rows in (("noisy", self.noisy_rows), ("clean", self.clean_rows)):
            order = generator(self.seed, "plant", kind).permutation(len(rows))
            groups[rows[order]] = np.arange(len(rows)) % n_groups
        return groups

    def training(self) -> Table:
        """Training curves, one row per training and epoch; empty if nothing was trained."""
        path = self.folder / paths.TRAINING
        # Where memloc trained the final weights, their curves must be there.
        if not path.is_file() and not paths.checkpoint(self.folder, "final").is_dir():
            return as_table([], columns=list(CURVES))
        with as_stored(path):
            table = read_table(path)[0]
            return table[[*CURVES, *table.columns.difference(list(CURVES))]]

    @cached_property
    def reference_accuracy(self) -> float:
        """Share of their own labels that the reference weights predict; NaN if unknown.

        Ordinary texts need not be recalled, so it means nothing for a task of texts.
        """
        if not self.record.task.label_names:
            return float("nan")
        if self.status.reference is not None:
            return self.status.reference
        return at_the_end(self.training(), "original", "accuracy")

    def path(self, checkpoint: str) -> Path:
        """Return the folder of these weights, whether it exists or not."""
        if checkpoint in self.status.adopted:
            return Path(self._at(self.status.adopted[checkpoint]))
        return (
            Path(checkpoint) if is_folder(checkpoint) else paths.checkpoint(self.folder, checkpoint)
        )

    def work(self, method: str) -> Path:
        """Return the folder in which a method may keep unfinished work."""
        return paths.work(self.folder, method)

    def has(self, checkpoint: str) -> bool:
        """Return whether the run has these weights."""
        checkpoint = self._stand_in(checkpoint)
        if checkpoint == "pretrained":
            return self.record.made_by == "train" or checkpoint in self.status.adopted
        return self.path(checkpoint).is_dir()

    def checkpoints(self) -> list[str]:
        """Return the names of the run's fine-tuned weights."""
        return [name for name in WEIGHTS if self.path(name).is_dir()]

    def _stand_in(self, checkpoint: str) -> str:
        """Return the name of the weights that stand for these.

        Frozen weights are those of which the head alone was trained. A language model has no new
        head, so they are its pre-trained ones.
        """
        is_texts = not self.record.task.label_names
        return "pretrained" if checkpoint == "frozen" and is_texts else checkpoint

    def epochs(self) -> list[int]:
        """Return the epochs whose weights were kept as `epoch-1`, `epoch-2` and so on."""
        folders = (self.folder / paths.CHECKPOINTS).glob(paths.epoch("*"))
        names = {*self.status.adopted, *(folder.name for folder in folders)}
        return sorted(n for name in names if (n := _epoch(name)) and self.has(name))

    def require(self, checkpoint: str) -> None:
        """Raise an error if these weights are missing, with advice on how to get them.

        Weights outside the run are named by their folder, such as `./other`.
        """
        if is_folder(checkpoint):
            return checkpoint_folder(Path(checkpoint))
        checkpoint = self._stand_in(checkpoint)
        if self.has(checkpoint):
            return None
        if _epoch(checkpoint):
            raise StoreError(self._no_epoch(checkpoint))
        kept = dict.fromkeys(map(paths.epoch, self.epochs()))
        lookup("set of weights", checkpoint, {"pretrained": "", **WEIGHTS, **kept})
        how = "`memloc train` with the same settings makes what is missing."
        if self.record.made_by == "adopt":
            is_made = checkpoint in {"reference", "frozen"}
            else_made = ", or have them made by --train-missing" if is_made else ""
            how = f"give them to `memloc adopt` with --{checkpoint}{else_made}."
        why = self.status.without.get(checkpoint, how)
        raise StoreError(f"{self.folder} has no {checkpoint} weights: {why}")

    def _no_epoch(self, checkpoint: str) -> str:
        kept = ", ".join(map(str, self.epochs()))
        if kept:
            return (
                f"{self.folder} has no {checkpoint} weights: the epochs that were kept are {kept}."
            )
        how = "train into another folder with --set finetune.keep_epochs=early"
        if self.record.made_by == "adopt":
            how = f"give them to `memloc adopt` with --epoch {_epoch(checkpoint)}=FOLDER"
        return f"{self.folder} has no {checkpoint} weights, as no early epochs were kept: {how}."

    def load(self, checkpoint: str) -> "Classifier":
        """Load a fresh copy of these weights on the run's device, in evaluation mode."""
        from memloc.model.checkpoints import load_checkpoint
        from memloc.model.load import LoadOptions

        self.require(checkpoint)
        checkpoint = self._stand_in(checkpoint)
        self.check_unchanged([checkpoint])
        if checkpoint == "pretrained":
            loaded = self.load_pretrained(self.seed)
        else:
            options = LoadOptions(remote_code=self.spec.remote_code, base=self._start[0])
            texts = not self.record.task.label_names
            loaded = load_checkpoint(self.path(checkpoint), options, texts=texts)
            known = self.status.adopted.get(checkpoint)
            # Files were compared; only the base of an adapter is elsewhere.
            if known and loaded.adapter_hash not in {"", known.hash}:
                raise self._changed(checkpoint)
        loaded.model.to(pick_device(self.device)).eval()
        return loaded

    def load_pretrained(self, seed: int) -> "Classifier":
        """Load the pre-trained weights with a new head from `seed`."""
        self.require("pretrained")
        loaded = self.load_start(seed, self.record.task.label_names)
        model, known = self._start
        if loaded.weights_hash != known:
            raise StoreError(
                f"The pre-trained weights of {model} have changed since {self.folder} was made "
                f"from them: {self.record.made_by} again, into another folder."
            )
        return loaded

    def load_start(self, seed: int, label_names: Sequence[str]) -> "Classifier":
        """Load the pre-trained weights without checking them, with a new head for these labels."""
        from memloc.model.load import LoadOptions, load_model

        spec = self.spec
        options = LoadOptions(spec.remote_code, spec.any_format, depth=self.record.depth)
        return load_model(self._start[0], label_names, seed=seed, options=options)

    @property
    def _start(self) -> tuple[str, str]:
        """Place and hash of the pre-trained weights."""
        given = self.status.adopted.get("pretrained")
        if given is None:
            return self.spec.model, self.record.weights_hash
        return self._at(given), given.hash

    def _at(self, known: Checkpoint) -> str:
        """Return the place of adopted weights; in a run from the hub, it is inside the run's
        folder.
        """
        inside = self.folder / known.path
        return str(inside) if inside.is_dir() else known.path

    def check_unchanged(self, checkpoints: Iterable[str]) -> None:
        """Refuse weights whose files, including the tokenizer's, have changed since they were
        recorded.
        """
        for name in checkpoints:
            folder = self.path(name)
            about, known = folder / paths.PROVENANCE, ""  # where nobody noted the hash
            if name in self.status.adopted:
                known = self.status.adopted[name].files
            elif folder.is_dir() and not is_folder(name):
                known = str(read_json(about).get("files", ""))
            if known and folder.is_dir() and hash_checkpoint(folder) != known:
                raise self._changed(name)

    def check_whole(self) -> None:
        """Refuse a run with a missing, damaged or changed part; its results are not checked."""
        _ = self.task, self.training()
        self.check_unchanged([*self.checkpoints(), *map(paths.epoch, self.epochs())])

    def files(self, checkpoints: Iterable[str]) -> dict[str, str]:
        """Return the hashes of the files of these weights, if they have a folder."""
        places = {name: self.path(self._stand_in(name)) for name in checkpoints}
        return {name: hash_checkpoint(place) for name, place in places.items() if place.is_dir()}

    def _changed(self, checkpoint: str) -> StoreError:
        folder = self.path(checkpoint)
        if checkpoint in self.status.adopted:
            return StoreError(
                f"The {checkpoint} weights at {folder} have changed since {self.folder} was made "
                "from them: adopt them into another folder."
            )
        return StoreError(
            f"The files in {folder} are not those that memloc wrote there: delete that folder and "
            "make the weights again with the command that made the run, or look at the changed "
            "ones with `memloc adopt`, as a run of their own."
        )

    def encode(self, model: "Classifier") -> Encoded:
        """Encode the training texts with the tokenizer of this model."""
        from memloc.model.predict import encode_for

        return encode_for(model, self.task.train, self.settings.text.max_tokens)

    def recall(self) -> Table:
        """Return how well final, reference and pre-trained weights recall the texts of the run.

        For memorised and for ordinary texts: the share that is recalled whole (greedily or token by
        token, which is the same), the share of tokens, and the mean log-probability of a token.
        """
        from memloc.run.texts import recall_of

        if not self.task.is_texts:
            raise DataError(f"{self.name} is about labels, and recall is of texts.")
        tables = [recall_of(self, name) for name in ("final", "reference", "pretrained")]
        return as_table(*(rows for rows in tables if rows))

    def vectors(self, checkpoint: str, last_layer: LastLayer = "block output") -> Vectors:
        """Return one vector per training text and layer 0..L; they are cached while the run is
        open.
        """
        from memloc.model.predict import vectors_of

        kept = self._vectors
        key = (checkpoint, last_layer)
        if key not in kept:
            model = self.load(checkpoint)
            kept[key] = vectors_of(model.stack, self.encode(model), last_layer=last_layer)
        return kept[key]

    @cached_property
    def _vectors(self) -> dict[tuple[str, str], Vectors]:
        return {}

    def memorised(self, needed: float) -> bool:
        """Return whether the run has final weights that predict enough of the noisy labels.

        The null of a plant of texts never sees these texts, so nothing is required of it.
        """
        is_unseen = self.is_null and not self.record.task.label_names
        final = self.status.final
        return final is not None and (is_unseen or final.noisy >= needed)

    def require_memorised(self, needed: float, *, force: bool = False) -> Accuracies:
        """Return the final accuracies; unless forced, refuse a run that did not memorise its
        labels.
        """
        final = self.status.final
        if final is None:
            raise StoreError(
                f"{self.folder} has no final weights yet: finish `memloc {self.record.made_by}`."
            )
        if not self.memorised(needed) and not force:
            raise TrainingError(
                f"{self.folder} is marked `not memorised`: its final weights predict "
                f"{final.noisy:.1%} of the noisy labels, and {needed:.0%} are needed. "
                "Train longer or with a higher rate, or use --force to continue all the same."
            )
        return final

    def identity(self, checkpoints: Iterable[str]) -> dict[str, Any]:
        """Return the facts that decide these weights and the data that methods read."""
        record, settings, adopted = self.record, self.settings, self.status.adopted
        facts: dict[str, Any] = {"data": record.task.hash, "text": settings.text.model_dump()}
        if record.made_by == "adopt":
            # Weights that memloc trained for the run came from the pre-trained weights.
            asked = map(self._stand_in, checkpoints)
            names = {name if name in adopted else "pretrained" for name in asked}
            given = [(name, c) for name, c in adopted.items() if name in names]
            facts["adopted"] = {name: [c.hash, c.files] for name, c in sorted(given)}
        return {
            **facts,
            "weights": record.weights_hash,
            "depth": record.depth,
            "seed": self.seed,
            "settings": settings.deciding(memorised="memorised" in checkpoints),
            "plant": plant_facts(record),
        }

    def note(self, **facts: Any) -> "Run":
        """Add facts to the run's status; its record is not changed."""
        status = RunStatus.model_validate({**dict(self.status), **facts})
        write_json(self.folder / paths.STATUS, status.model_dump(mode="json"))
        return replace(self, status=status)


def _epoch(checkpoint: str) -> int:
    """Return the epoch in a name of weights; 0 for other names."""
    match = re.fullmatch(r"epoch-([1-9]\d*)", checkpoint)
    return int(match[1]) if match else 0


def _no_run(folder: Path) -> str:
    """Return the error message for a folder that is no run; it names some runs inside, if any."""
    inside = ("*/" * depth + paths.RUN for depth in range(1, 4))
    runs = sorted(path.parent for pattern in inside for path in folder.glob(pattern))
    if runs:
        return (
            f"{folder} is not a run, but holds {counted(len(runs), 'run')}: give one of them, such "
            f"as {listed([str(run) for run in runs[:3]])}."
        )
    return (
        f"{folder} is not a run: it has no {paths.RUN}. `memloc train` makes one, `memloc adopt` "
        "makes one from your own checkpoints."
    )


def plant_facts(record: RunRecord) -> dict[str, Any] | None:
    """Return the facts that decide a plant; its auxiliary task is identified by its contents."""
    if record.spec.plant is None:
        return None
    return {**record.spec.plant.deciding(), "auxiliary": record.auxiliary, "sample": None}
