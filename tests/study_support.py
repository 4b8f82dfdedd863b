"""Synthetic studies on disk, written with the real writers: what reports are tested on."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from memloc.data.task import Examples, NoisyLabels, Task
from memloc.data.tasks import known_tasks
from memloc.methods.gradients import norms_table
from memloc.methods.result import (
    LayerScores,
    Outcomes,
    Result,
    from_outcomes,
)
from memloc.protocol import preset
from memloc.run.folder import (
    Accuracies,
    Checkpoint,
    PlantRecord,
    Run,
    RunRecord,
    TaskRecord,
    begin,
)
from memloc.seeds import generator
from memloc.stats.depth import centre_of_gravity
from memloc.stats.intervals import Interval
from memloc.stats.windows import windows
from memloc.store import paths
from memloc.store.records import write_table

METHODS = ("swapping", "retraining", "gradients", "probing")
NASTY = "<script>alert(1)</script></style><b>bold</b> & \"quoted\" </script> 'it' \\u003c"
"""A text that would break a page that does not escape it."""
WORDS = ("red", "dog", "house", "very", "good", "bad", "rain", "moon", "river", "small", "old")

CURVE = pd.DataFrame(
    {
        "training": ["noisy", "noisy", "original"],
        "epoch": [1, 2, 1],
        "accuracy": [0.5, 0.9, 0.1],
        "clean_accuracy": [0.5, 1.0, 0.11],
        "noisy_accuracy": [0.2, 0.7, 0.12],
        "noisy_as_original": [0.8, 0.3, 0.13],
        "validation_accuracy": [0.6, 0.65, 0.14],
    }
)
"""The training of a run, as `run.training()` gives it."""


@dataclass(frozen=True)
class Study:
    """What a synthetic study is made of."""

    tasks: tuple[str, ...] = ("tiny-topic", "tiny-acceptability")
    models: tuple[str, ...] = ("tiny-bert", "tiny-opt")
    seeds: tuple[int, ...] = (1, 2)
    methods: tuple[str, ...] = METHODS
    analyses: tuple[str, ...] = ("centroids", "label_probes", "generalisation")
    control: int = 2
    """Labels are planted for that many of the tasks."""
    depth: int = 4
    train: int = 40
    epochs: int = 5
    words: int = 6
    memorised: bool = True

    def write(self, folder: Path) -> Path:
        """Make it; the folder is returned."""
        for task in self.tasks:
            for model in self.models:
                for seed in self.seeds:
                    self.write_run(folder / task / model / f"seed-{seed}", task, model, seed)
        if self.control:
            write_control(folder, self)
        return folder

    def write_run(self, folder: Path, task: str, model: str, seed: int, **facts: object) -> Run:
        """One run with all its results."""
        data, noisy = make_data(task, self.train, self.words)
        run = begin(folder, data, record(data, model, seed, self.depth))
        share = 1.0 if self.memorised else 0.4
        run = run.note(final=Accuracies(noisy=share, clean=1.0, training=1.0), **facts)
        rng = generator(seed, "study", task, model)
        write_table(folder / paths.TRAINING, training(self.epochs, rng), {})
        for method in self.methods:
            scores = make_scores(method, noisy, self.depth, rng).with_verdict()
            scores.write(paths.result(folder, method))
        for analysis in self.analyses:
            tables = TABLES[analysis](noisy, self.depth, rng)
            Result(analysis, tables).write(paths.result(folder, analysis))
        return run


def record(task: Task, model: str, seed: int, depth: int) -> RunRecord:
    """What `memloc train` writes down of a run before it starts."""
    return RunRecord(
        model=model,
        weights_hash=f"hash of {model}",
        depth=depth,
        width=8,
        seed=seed,
        task=TaskRecord.of(task),
        settings=preset("demo").for_run(),
    )


def make_data(name: str, n: int, words: int) -> tuple[Task, NoisyLabels]:
    """Random texts, the first of which is a nasty one with a wrong label."""
    row = known_tasks()[name]
    names = row.label_names or ("no", "yes")
    rng = generator(0, "study", name)
    original = rng.integers(0, len(names), n)
    is_noisy = np.arange(n) % 6 == 0
    assigned = np.where(is_noisy, (original + 1) % len(names), original)
    texts = [" ".join(rng.choice(WORDS, words)) + f" {i}" for i in range(n)]
    texts[0] = NASTY
    train = Examples(tuple((text,) for text in texts), original)
    held = train.take(np.arange(4))
    noisy = NoisyLabels(original, assigned, is_noisy)
    return Task(name, row.category, names, train, held, held, "synthetic", noisy), noisy


def training(epochs: int, rng: np.random.Generator) -> pd.DataFrame:
    """Curves that rise, with some noise."""
    rows = []
    for kind in ("noisy", "original", "frozen"):
        for epoch in range(1, epochs + 1):
            rise = epoch / epochs
            rows.append(
                {
                    "training": kind,
                    "epoch": epoch,
                    "loss": 1 - rise,
                    "accuracy": rise,
                    "macro_f1": rise,
                    "noisy_accuracy": rise**2,
                    "clean_accuracy": rise**0.5,
                    "noisy_as_original": 1 - rise**2,
                    "validation_accuracy": 0.5 + 0.4 * rise * float(rng.uniform(0.8, 1)),
                    "seconds": 1.0,
                }
            )
    return pd.DataFrame(rows)


def make_scores(
    method: str, noisy: NoisyLabels, depth: int, rng: np.random.Generator, planted: range = range(0)
) -> LayerScores:
    """Random scores; layers that were planted weigh more."""
    if method in {"swapping", "retraining"}:
        return _from_windows(method, noisy, depth, rng, planted)
    if method == "shares":
        return _shares(noisy, depth, rng, planted)
    raw = rng.uniform(0.1, 1, depth)
    raw[list(planted)] += 2
    weights = raw / raw.sum()
    if method == "gradients":
        kinds = ("noisy", "clean", "difference")
        of = [k for kind in kinds for k in (kind, f"frozen {kind}")]
        norms = {f"{n} {k}": rng.uniform(1, 2, depth) for n in ("L1", "L2") for k in of}
        tables = {"gradients": norms_table(norms)}
    else:
        f1, chance = (
            np.sort(rng.uniform(0, 1, (depth + 1, 5)), 0),
            rng.uniform(0, 0.2, (depth + 1, 5)),
        )
        means = {"f1": f1.mean(1), "low": f1.min(1), "high": f1.max(1), "chance": chance.mean(1)}
        tables = {"noise_probes": pd.DataFrame({"layer": np.arange(depth + 1), **means})}
    return _scores(method, weights, tables)


def _shares(
    noisy: NoisyLabels, depth: int, rng: np.random.Generator, planted: range
) -> LayerScores:
    rows = np.flatnonzero(noisy.is_noisy)
    raw = rng.uniform(0.1, 1, (len(rows), depth))
    raw[:, list(planted)] += 5
    shares = raw / raw.sum(1, keepdims=True)
    mean, layer = shares.mean(0), np.arange(depth) + 1
    place = {"first": layer, "last": layer}
    ends = {"share": mean, "low": mean - 0.05, "high": mean + 0.05}
    kinds = [(d, v) for d in ("necessary", "sufficient") for v in ("labels", "margin")]
    parts = [pd.DataFrame({"direction": d, "value": v, **place, **ends}) for d, v in kinds]
    by_example = pd.DataFrame(
        {
            "example": np.repeat(rows, depth),
            **{name: np.tile(layer, len(rows)) for name in place},
            "share": 3 * shares.ravel(),
        }
    )
    return _scores("shares", mean, {"shares": pd.concat(parts), "example_shares": by_example})


def _from_windows(
    method: str, noisy: NoisyLabels, depth: int, rng: np.random.Generator, planted: range
) -> LayerScores:
    known = windows(depth)
    rows, clean = np.flatnonzero(noisy.is_noisy), np.flatnonzero(~noisy.is_noisy)[:10]
    width = np.array([len(w) for w in known]) / depth
    if len(planted):
        width = np.array([float(bool(set(w) & set(planted))) for w in known])
    wrong = rng.uniform(size=(len(rows), 1)) < width * rng.uniform(0.6, 1, len(known))
    wrong[:, -1] = True
    clean_wrong = rng.uniform(size=(len(clean), len(known))) < 0.02
    missed = np.zeros(len(rows) + len(clean), dtype=bool)
    every = np.concatenate([rows, clean])
    both = np.concatenate([wrong, clean_wrong])
    outcomes = Outcomes(tuple(known), every, noisy.is_noisy[every], both, missed)
    return from_outcomes(method, outcomes, depth, normalise=True, about={})


def _scores(method: str, weights: np.ndarray, tables: dict) -> LayerScores:
    centre = centre_of_gravity(weights)
    interval = Interval(centre, centre - 0.3, centre + 0.3, 0.95)
    return LayerScores.of(method, weights, (weights * 0.9, weights * 1.1), interval, tables=tables)


def _centroids(noisy: NoisyLabels, depth: int, rng: np.random.Generator) -> dict:
    rows, events = [], []
    for variant in ("plain", "bottom", "top"):
        for layer in range(depth + 1):
            apart = float(rng.uniform(0.2, 3))
            for kind, start, end in (("noisy", 1, 0.1), ("clean a", 0, 0), ("clean b", 1, 1)):
                mean = start + (end - start) * layer / depth + float(rng.normal(0, 0.05))
                rows.append(
                    {
                        "variant": variant,
                        "layer": layer,
                        "kind": kind,
                        "mean": mean,
                        "low": mean - 0.4,
                        "high": mean + 0.4,
                        "mean_low": mean - 0.05,
                        "mean_high": mean + 0.05,
                        "separability": apart,
                        "by_chance": 0.5,
                        "separable": apart > 0.5,
                    }
                )
        events += [
            _event("centroids", variant, "crossing", depth, rng),
            _event("centroids", variant, "initiation", depth, rng),
        ]
    return {"layers": pd.DataFrame(rows), "events": pd.DataFrame(events)}


def _event(source: str, variant: str, event: str, depth: int, rng: np.random.Generator) -> dict:
    layer = float(rng.integers(1, depth + 2))
    never = layer > depth
    return {
        "source": source,
        "variant": variant,
        "event": event,
        "layer": np.nan if never else layer,
        "low": np.nan if never else max(1.0, layer - 1),
        "high": np.nan if never else min(depth, layer + 1.0),
        "never": float(never),
        "separable": not never,
    }


def _label_probes(noisy: NoisyLabels, depth: int, rng: np.random.Generator) -> dict:
    kinds = (("noisy", "assigned"), ("noisy", "original"), ("clean", "original"))
    rows = [
        {
            "layer": layer,
            "examples": examples,
            "labels": labels,
            "f1": (f1 := float(rng.uniform(0.2, 0.9))),
            "low": f1 - 0.1,
            "high": f1 + 0.1,
            "chance": 0.2,
        }
        for layer in range(depth + 1)
        for examples, labels in kinds
    ]
    events = [
        _event("label probes", "plain", event, depth, rng) for event in ("memorisation", "ninety")
    ]
    return {"layers": pd.DataFrame(rows), "events": pd.DataFrame(events)}


def _generalisation(noisy: NoisyLabels, depth: int, rng: np.random.Generator) -> dict:
    score = float(rng.uniform(0.4, 0.9))
    summary = {
        "score": score,
        "clean_score": score + 0.05,
        "low": score - 0.05,
        "high": score + 0.05,
        "clean_low": score,
        "clean_high": score + 0.1,
        "majority": 0.5,
        "normalised": 2 * score - 1,
        "normalised_low": 2 * score - 1.1,
        "normalised_high": 2 * score - 0.9,
        "validation_score": score,
        "models": 4,
    }
    n = len(noisy.is_noisy)
    trained, held_out = rng.uniform(0.5, 1, n), rng.uniform(0, 0.6, n)
    examples = {
        "example": np.arange(n),
        "is_noisy": noisy.is_noisy,
        "trained": trained,
        "held_out": held_out,
        "counterfactual": trained - held_out,
        "n_trained": 2,
        "n_held_out": 2,
    }
    return {"summary": pd.DataFrame([summary]), "examples": pd.DataFrame(examples)}


TABLES = {
    "centroids": _centroids,
    "label_probes": _label_probes,
    "generalisation": _generalisation,
}


def write_control(folder: Path, study: Study) -> None:
    """Planted windows and null plants."""
    for task in study.tasks[: study.control]:
        for model in study.models:
            rng = generator(7, "control", task, model)
            for place in (range(2), range(study.depth - 2, study.depth)):
                for null in (False, True):
                    write_plant(folder, study, (task, model, place, null), rng)


def write_plant(
    folder: Path, study: Study, what: tuple[str, str, range, bool], rng: np.random.Generator
) -> Run:
    """One planted run with the results of all methods."""
    task, model, place, null = what
    first, last = place.start + 1, place.stop
    plain = paths.run_folder(folder, task, model, 1)
    home = paths.plant_folder(folder, plain, f"{first}-{last}", null=null)
    data, noisy = make_data(task, study.train, study.words)
    plant = PlantRecord(planted=f"{first}-{last}", null=null, auxiliary="rte")
    about = record(data, model, 1, study.depth).model_copy(update={"plant": plant})
    run = begin(home, data, about)
    for method in study.methods:
        scores = make_scores(method, noisy, study.depth, rng, range(0) if null else place)
        scores.with_verdict().write(paths.result(home, method))
    return run.note(final=Accuracies(noisy=1.0, clean=1.0, training=1.0))


def write_adopted(folder: Path, *, known: bool = True, held_out: bool = False) -> Run:
    """A run of somebody's own checkpoints (final and reference) and file, with what can be run.

    Without curves; where they are not `known`, labels before noise are -1.
    """
    data, noisy = make_data("tiny-topic", 40, 6)
    if not known:
        before = np.where(noisy.is_noisy, -1, noisy.original)
        noisy = NoisyLabels(before, noisy.assigned, noisy.is_noisy, "column 'wrong' read as flags")
    unseen = data.validation if held_out else Examples((), np.zeros(0, dtype=np.int64))
    train = Examples(data.train.parts, noisy.original)
    names = data.label_names
    task = Task("mine", "own", names, train, unseen, unseen, "file: mine.csv", noisy)
    places = {name: folder.parent / "checkpoints of mine" / name for name in ("final", "reference")}
    for place in places.values():
        place.mkdir(parents=True, exist_ok=True)
    about = record(task, str(places["final"]), 1, 4).model_copy(
        update={
            "made_by": "adopt",
            "adopted": {n: Checkpoint(path=str(p), files="", hash="") for n, p in places.items()},
            "command": f"memloc adopt {folder} --final final --data mine.csv",
        }
    )
    run = begin(folder, task, about)
    rng = generator(1, "study", "mine")
    make_scores("swapping", noisy, 4, rng).write(paths.result(folder, "swapping"))
    if known:
        Result("centroids", _centroids(noisy, 4, rng)).write(paths.result(folder, "centroids"))
    return run.note(final=Accuracies(noisy=1.0, clean=1.0, training=1.0))


def norms_from(table: pd.DataFrame) -> dict[str, np.ndarray]:
    """The norms that a table of gradients was made from."""
    return {
        f"{norm} {kind}": part.sort_values("layer")["value"].to_numpy(np.float64)
        for (norm, kind), part in table.groupby(["norm", "kind"])
    }
