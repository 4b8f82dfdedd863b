"""A run on disk: one task, one model, one seed; its labels, weights and training curves."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from memloc.errors import StoreError, TrainingError, lookup
from memloc.protocol import Protocol
from memloc.records import (
    Examples,
    NoisyLabels,
    Task,
    as_stored,
    read_json,
    read_table,
    write_json,
    write_table,
)
from memloc.settings import checked

if TYPE_CHECKING:
    import pandas as pd

    from memloc.models.load import Classifier

TRAININGS = {"noisy": "final", "original": "reference", "frozen": "frozen"}
"""The trainings of a run, in order, and the weights that each ends with."""
CHECKPOINTS = {"memorised": "noisy"} | {weights: name for name, weights in TRAININGS.items()}
"""The weights of a run, and the training that makes each."""
DECIDING = ("noise", "splits", "text", "finetune")
"""The groups of settings that decide what a run's weights are, but for these:"""
BAR = "finetune.noisy_at_least"
"""What the verdict is by, and nothing else."""
NOT_DECIDING = ("finetune.seeds", "finetune.accumulate", BAR)
"""The seeds of a whole study; the pieces of a batch, whose update is the same; the bar."""
MEMORISED_ONLY = (
    *("finetune.near_ceiling", "finetune.near_ceiling_score"),
    *("finetune.without_near_ceiling", "finetune.measure_every"),
)
"""Settings that decide when the memorised weights are kept, and no other weights."""


def deciding_settings(settings: Mapping[str, Any], is_large: bool) -> dict[str, Any]:
    """Those of all settings that decide the weights, as they apply to a model of this size."""
    found = {
        name: value
        for name, value in settings.items()
        if name.split(".")[0] in DECIDING and name not in NOT_DECIDING
    }
    for name in ("learning_rate", "batch_size"):
        of_large = found.pop(f"finetune.large_{name}")
        if is_large:
            found[f"finetune.{name}"] = of_large
    return found


def at_the_end(training: "pd.DataFrame", name: str, column: str) -> float:
    """What was measured at the last epoch of a training; NaN where there is none."""
    rows = training[training["training"] == name].sort_values("epoch")
    return float(rows[column].iloc[-1]) if len(rows) else float("nan")


@dataclass(frozen=True)
class Run:
    """A run's folder, opened."""

    folder: Path
    about: dict[str, Any]

    @classmethod
    def open(cls, folder: Path) -> "Run":
        """A run that exists."""
        if not (folder / "run.json").is_file():
            raise StoreError(
                f"{folder} is not a run: it has no run.json. `memloc train` makes one."
            )
        about = read_json(folder / "run.json")
        _check_record(folder / "run.json", about)
        return cls(folder, about)

    @property
    def protocol(self) -> Protocol:
        """The settings that it was made with."""
        return checked(Protocol, self.about["protocol"])

    @property
    def seed(self) -> int:
        """The model seed."""
        return int(self.about["seed"])

    @property
    def name(self) -> str:
        """For people; a model from a folder is called like the folder."""
        return f"{self.about['task']['name']} · {Path(self.about['model']).name} · seed {self.seed}"

    @property
    def inputs(self) -> dict[str, str]:
        """What identifies its data and the weights that it started from."""
        return {"run": self.about["task"]["hash"], "weights": self.about["weights_hash"]}

    def data(self) -> tuple[Task, NoisyLabels]:
        """The task as it was trained on, and the labels before and after perturbation."""
        table, _ = read_table(self.folder / "labels.parquet")
        with as_stored(self.folder / "labels.parquet"):
            return self._data(table)

    def _data(self, table: "pd.DataFrame") -> tuple[Task, NoisyLabels]:
        train = table[table["split"] == "train"]
        noisy = NoisyLabels(
            train["original"].to_numpy(np.int64, copy=True),
            train["assigned"].to_numpy(np.int64, copy=True),
            train["is_noisy"].to_numpy(bool, copy=True),
        )
        about = self.about["task"]
        task = Task(
            name=about["name"],
            category=about["category"],
            label_names=tuple(about["label_names"]),
            train=_examples(train),
            validation=_examples(table[table["split"] == "validation"]),
            test=_examples(table[table["split"] == "test"]),
            source=about["source"],
        )
        if _hash(task, noisy) != about["hash"]:
            raise ValueError("its examples are not those that run.json describes")
        return task, noisy

    def training(self) -> "pd.DataFrame":
        """The training curves: a row a training and epoch."""
        return read_table(self.folder / "training.parquet")[0]

    def path(self, weights: str) -> Path:
        """The folder of these weights, there or not."""
        return self.folder / "checkpoints" / weights

    def state(self, training: str) -> Path:
        """The file of a training that is not finished, there or not."""
        return self.folder / "checkpoints" / f"{training}.state"

    def weights(self) -> list[str]:
        """The names of the weights that are there."""
        return [name for name in CHECKPOINTS if self.path(name).is_dir()]

    def load(self, weights: str) -> "Classifier":
        """These weights, with an error that says how to make them where they are missing."""
        from memloc.models.load import LoadOptions, load_checkpoint

        lookup("set of weights", weights, CHECKPOINTS)
        if not self.path(weights).is_dir():
            why = self.about.get("without", {}).get(weights)
            hint = why or "`memloc train` with the same settings makes what is missing."
            raise StoreError(f"{self.folder} has no {weights} weights: {hint}")
        options = LoadOptions(remote_code=self.about.get("remote_code", False))
        return load_checkpoint(self.path(weights), options)

    def load_pretrained(self, seed: int) -> "Classifier":
        """The weights that it started from, with a new head from `seed`."""
        from memloc.models.load import LoadOptions, load_model

        about = self.about
        allowed = (about.get("remote_code", False), about.get("any_format", False))
        options = LoadOptions(*allowed, depth=int(about["depth"]))
        return load_model(about["model"], about["task"]["label_names"], seed=seed, options=options)

    def verdict(self) -> dict[str, Any]:
        """Whether the final weights memorised the noisy labels, with the numbers."""
        return dict(self.about.get("verdict") or {})

    def judged(self, needed: float) -> "Run":
        """The run with its verdict by this bar, which decides nothing else."""
        if self.protocol.finetune.noisy_at_least == needed:
            return self
        protocol = self.protocol.replace({BAR: needed})
        facts = {"protocol": protocol.model_dump(mode="json"), "changes": protocol.changes()}
        if verdict := self.verdict():
            memorised = verdict["noisy_accuracy"] >= needed
            facts["verdict"] = {**verdict, "needed": needed, "memorised": memorised}
        return self.note(**facts)

    def require_memorised(self, force: bool = False) -> None:
        """Refuse to draw conclusions from a run that did not memorise."""
        verdict = self.verdict()
        if not verdict:
            raise StoreError(f"{self.folder} has no final weights yet: finish `memloc train`.")
        if not verdict["memorised"] and not force:
            raise TrainingError(
                f"{self.folder} is marked `not memorised`: its final weights predict "
                f"{verdict['noisy_accuracy']:.1%} of the noisy labels, and {verdict['needed']:.0%} "
                "are needed. Train longer or with a higher rate, or force it."
            )

    def note(self, **facts: Any) -> "Run":
        """The run with more facts in its record."""
        about = {**self.about, **facts}
        write_json(self.folder / "run.json", about)
        return Run(self.folder, about)


_RECORD: dict[str, type] = {"model": str, "depth": int, "seed": int, "task": dict, "protocol": dict}
_TASK: dict[str, type] = {
    **dict.fromkeys(("name", "category", "source", "hash"), str),
    **{"label_names": list, "train": int, "noisy": int},
}
_OPTIONAL: dict[str, type] = {
    **{"weights_hash": str, "width": int, "is_large": bool, "preset": str, "changes": dict},
    **dict.fromkeys(("verdict", "without", "control"), dict),
    **{"remote_code": bool, "any_format": bool},
}
_VERDICT: dict[str, type] = {"memorised": bool, "noisy_accuracy": float, "needed": float}
_CONTROL: dict[str, type] = {"window": list, "null": bool}


def _check_record(path: Path, about: Mapping[str, Any]) -> None:
    """Refuse a record that lacks what every run has, or holds it in another type."""
    _check_types(path, about, _RECORD)
    _check_types(path, about["task"], _TASK, "task.")
    there = {k: v for k, v in _OPTIONAL.items() if about.get(k) is not None}
    _check_types(path, about, there)
    for name, types in (("verdict", _VERDICT), ("control", _CONTROL)):
        if about.get(name):
            _check_types(path, about[name], types, f"{name}.")
    if not all(isinstance(label, str) for label in about["task"]["label_names"]):
        raise StoreError(f"{path} is damaged: its task.label_names are not all texts.")


def _check_types(
    path: Path, record: Mapping[str, Any], types: Mapping[str, type], where: str = ""
) -> None:
    for name, kind in types.items():
        if name not in record:
            raise StoreError(f"{path} is damaged: it does not say {where}{name}.")
        value = record[name]
        # An accuracy of exactly 1 may be an integer; true is no number.
        allowed = (int, float) if kind is float else (kind,)
        if type(value) not in allowed:
            raise StoreError(
                f"{path} is damaged: {where}{name} is {str(value)[:40]!r} and not of type "
                f"{kind.__name__}."
            )


def begin(folder: Path, task: Task, noisy: NoisyLabels, identity: dict[str, Any]) -> Run:
    """Open the run in this folder, or make it; one that belongs to other settings is refused."""
    wanted = {**identity, "task": describe_task(task, noisy)}
    if (folder / "run.json").is_file():
        run = Run.open(folder)
        _same_or_refuse(folder, run.about, wanted)
        return run
    write_table(folder / "labels.parquet", _labels_table(task, noisy), identity)
    write_json(folder / "run.json", wanted)
    return Run.open(folder)


def describe_task(task: Task, noisy: NoisyLabels) -> dict[str, Any]:
    """What identifies the data of a run: the hash covers texts, labels and splits."""
    return {
        "name": task.name,
        "category": task.category,
        "label_names": list(task.label_names),
        "source": task.source,
        "train": len(task.train),
        "noisy": int(noisy.is_noisy.sum()),
        "hash": _hash(task, noisy),
    }


def _hash(task: Task, noisy: NoisyLabels) -> str:
    digest = hashlib.sha256()
    for examples in (task.train, task.validation, task.test):
        for parts in examples.parts:
            digest.update(("\x1f".join(parts) + "\x1e").encode())
        digest.update(examples.labels.astype("<i8").tobytes())
    digest.update(noisy.assigned.astype("<i8").tobytes())
    return digest.hexdigest()[:16]


def _same_or_refuse(folder: Path, there: dict[str, Any], wanted: dict[str, Any]) -> None:
    for name, old, new in _differences(there, wanted):
        raise StoreError(
            f"{folder} belongs to other settings: {name} is {old!r} there and {new!r} here. "
            "Choose another folder with --out, or delete that one."
        )


def _differences(there: dict[str, Any], wanted: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    names = ("model", "depth", "weights_hash", "seed", "is_large", "control")
    pairs = [(k, there.get(k), wanted[k]) for k in names]
    pairs += [(f"task.{k}", there["task"].get(k), v) for k, v in wanted["task"].items()]
    old, new = (checked(Protocol, side["protocol"]).flat() for side in (there, wanted))
    was, is_now = (deciding_settings(flat, bool(wanted["is_large"])) for flat in (old, new))
    pairs += [(k, was[k], value) for k, value in is_now.items()]
    # These are for people: the same data or weights read from elsewhere are the same.
    for_people = {"task.source"} | ({"model"} if _same(there, wanted, "weights_hash") else set())
    return [(k, a, b) for k, a, b in pairs if a != b and k not in for_people]


def _same(there: dict[str, Any], wanted: dict[str, Any], key: str) -> bool:
    return bool(there.get(key) == wanted[key])


def _labels_table(task: Task, noisy: NoisyLabels) -> "pd.DataFrame":
    import pandas as pd

    tables = []
    for split in ("train", "validation", "test"):
        examples: Examples = getattr(task, split)
        is_train = split == "train"
        tables.append(
            pd.DataFrame(
                {
                    "split": split,
                    "row": np.arange(len(examples)),
                    "parts": [list(parts) for parts in examples.parts],
                    "original": noisy.original if is_train else examples.labels,
                    "assigned": noisy.assigned if is_train else examples.labels,
                    "is_noisy": noisy.is_noisy if is_train else False,
                }
            )
        )
    return pd.concat(tables, ignore_index=True)


def _examples(table: "pd.DataFrame") -> Examples:
    parts = tuple(tuple(row) for row in table["parts"])
    return Examples(parts, table["original"].to_numpy(np.int64, copy=True))
