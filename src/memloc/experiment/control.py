"""The control set-up: plant memorisation where we know it is, and see who finds it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from memloc.data.sources import load_task, subsample
from memloc.errors import SettingsError, StoreError
from memloc.experiment.plants import Planted, make_null, make_plant, plant_folder
from memloc.localise.base import localiser
from memloc.localise.gradients import variants
from memloc.localise.localise import METHODS, localise
from memloc.localise.scores import LayerScores
from memloc.localise.subjects import run_subject
from memloc.models.load import LoadOptions, load_model
from memloc.progress import track
from memloc.protocol import ControlSettings, Protocol
from memloc.records import Task, write_table
from memloc.score.agreement import accuracy_at_k
from memloc.score.planted import mean_scores, null_claims, plant_scores
from memloc.train.planting import Plant
from memloc.train.run import BY_REFERENCE, CHECKPOINTS, Run, at_the_end
from memloc.train.training import Recipe, default_protocol
from memloc.train.windows import check_windows, every_window, usual_windows

if TYPE_CHECKING:
    import pandas as pd

POST_PROCESSED_AT = 2
"""Appendix E reports accuracy@2."""


@dataclass(frozen=True)
class Control:
    """What is planted, in which models, and which methods are to find it."""

    models: Sequence[str]
    tasks: Sequence[Task]
    windows: Sequence[range] = ()
    """Layers from 0; none given: the first, the middle and the last two, as the protocol says."""
    every: Sequence[int] = ()
    """Plant at every position, in windows of so many layers."""
    methods: Sequence[str] = METHODS
    nulls: Literal["none", "middle", "all"] = "middle"
    """For which of the windows the null is made, too: the same, with nothing to memorise."""
    protocol: Protocol | None = None
    """Left out: `demo` for the embedded models, `paper` for others."""
    seed: int | None = None
    """Left out: the protocol's."""
    options: LoadOptions = field(default_factory=LoadOptions)
    auxiliary: Task | None = None
    """Left out: the protocol's, read from `data_folder` if it is one of the paper's."""
    data_folder: Path | None = None
    device: str = "auto"


@dataclass(frozen=True)
class Controlled:
    """What came out, over all plants that are in the folder."""

    folder: Path
    layers: "pd.DataFrame"
    """A row a plant, method and layer."""
    scores: "pd.DataFrame"
    """accuracy@k, reciprocal rank and AUROC a plant and method."""
    nulls: "pd.DataFrame"
    """What each method claims where nothing was planted."""
    post_processing: "pd.DataFrame"
    """Appendix E: accuracy@2 of gradients with each step on and off, on the validation tasks."""
    gradients: "pd.DataFrame"
    """Norms a layer: noisy, clean, their difference, and those of the frozen model."""
    plants: "pd.DataFrame"
    """A row a plant: the rate that was needed, the accuracies, whether it was used."""

    def accuracy(self, by: Sequence[str] = ("method",)) -> "pd.DataFrame":
        """Mean accuracy@k with intervals for each value of `by`."""
        return mean_scores(self.scores, by)


def run_control(what: Control, out: Path = Path("runs")) -> Controlled:
    """Make what is missing of the plants, let every method look for them, and sum up."""
    make_plants(what, Path(out))
    return read_control(Path(out))


def make_plants(what: Control, out: Path) -> None:
    """Make what is missing of the plants and let every method look for them."""
    for method in what.methods:
        localiser(method)
    plans = list(_plans(what))
    with track("control", len(plans)) as advance:
        for recipe, window, with_null in plans:
            _one(what, recipe, window, with_null=with_null, out=out)
            advance(1)


def _plans(what: Control) -> Iterator[tuple[Recipe, range, bool]]:
    """Every planted run to be made, and whether its null is made, too."""
    if not what.models or not what.tasks:
        raise SettingsError("The control set-up needs a model and a task.")
    for model in what.models:
        protocol = what.protocol or default_protocol(model)
        seed = protocol.control.seed if what.seed is None else what.seed
        for task in what.tasks:
            _check_auxiliary(what, protocol, task)
            loaded = load_model(model, task.label_names, options=what.options)
            planted = _windows(what, loaded.stack.depth, protocol.control.width)
            middle = planted[len(planted) // 2]
            for window in planted:
                recipe = Recipe(
                    model, task, seed, protocol, options=what.options, device=what.device
                )
                null = what.nulls == "all" or (what.nulls == "middle" and window == middle)
                yield recipe, window, null


def _check_auxiliary(what: Control, protocol: Protocol, task: Task) -> None:
    name = what.auxiliary.name if what.auxiliary else protocol.control.auxiliary
    if name == task.name:
        raise SettingsError(
            f"The auxiliary task is {name}, which is the noisy one, too: choose another task, or "
            "another auxiliary one with --set control.auxiliary=NAME."
        )


def _windows(what: Control, depth: int, width: int) -> list[range]:
    check_windows(what.windows, depth)
    found = [*what.windows, *(w for each in what.every for w in every_window(depth, each))]
    return list(dict.fromkeys(found)) or usual_windows(depth, width)


def _one(what: Control, recipe: Recipe, window: range, *, with_null: bool, out: Path) -> None:
    auxiliary = what.auxiliary or _auxiliary(what, recipe.protocol)
    needed = {w for method in what.methods for w in localiser(method).needs}
    weights = tuple(name for name in CHECKPOINTS if name in {*needed, "final"})
    plant = Plant(window, auxiliary)
    planted = make_plant(recipe, plant, plant_folder(recipe, plant, out), weights)
    if not planted.enough:
        return
    _localise(planted, what)
    if with_null:
        folder = plant_folder(recipe, Plant(window, auxiliary, null=True), out)
        null = make_null(recipe, planted, folder, weights)
        if null.enough:
            _localise(null, what)


def _auxiliary(what: Control, protocol: Protocol) -> Task:
    settings, seed = protocol.control, protocol.noise.seed
    task = load_task(settings.auxiliary, folder=what.data_folder, seed=seed)
    few = settings.auxiliary_examples
    return task if few is None or few >= len(task.train) else subsample(task, few, seed)


def _localise(planted: Planted, what: Control) -> None:
    subject = run_subject(planted.run, what.device)
    localise(subject, planted.run.folder / "localise", what.methods)


def read_control(out: Path, settings: ControlSettings | None = None) -> Controlled:
    """Sum up all plants in a folder, and write the tables beside them.

    Settings that are left out are those that the plants were made with.
    """
    folder = out / "control"
    runs = [Run.open(path.parent) for path in sorted(folder.glob("*/*/*/*-*/run.json"))]
    if not runs:
        raise StoreError(f"{folder} holds no planted run; `memloc control` makes them.")
    found = [_scores_of(run) for run in runs]
    layers = _frame([row for run, each in found for row in _layer_rows(run, each)], LAYERS)
    # Protocols of one study agree in what is read here.
    settings = settings or runs[0].protocol.control
    validating = [(r, s) for r, s in found if r.about["task"]["name"] in settings.validation_tasks]
    tables = Controlled(
        folder=folder,
        layers=layers,
        scores=plant_scores(layers, settings.ks, settings.validation_tasks),
        nulls=null_claims(layers),
        post_processing=_post_processing(validating),
        gradients=_frame([row for run, each in found for row in _norm_rows(run, each)], NORMS),
        plants=_frame([_plant_row(run, each) for run, each in found], PLANTS),
    )
    for name in ("layers", "scores", "nulls", "post_processing", "gradients", "plants"):
        about = {"plants": len(runs), "control": settings.model_dump(mode="json")}
        write_table(folder / f"{name}.parquet", getattr(tables, name), about)
    return tables


KEY = ("task", "category", "model", "seed", "first", "last", "null")
LAYERS = (*KEY, "method", "layer", "weight", "low", "high", "undone")
NORMS = (*KEY, "norm", "kind", "layer", "value")
PLANTS = (
    *KEY,
    "learning_rate",
    "tries",
    "training_accuracy",
    "noisy_accuracy",
    "methods",
    "used",
)

Scores = dict[str, LayerScores]


def _scores_of(run: Run) -> tuple[Run, Scores]:
    files = sorted((run.folder / "localise").glob("*.parquet"))
    usable = [path for path in files if path.stem not in BY_REFERENCE or _reference_learnt(run)]
    return run, {path.stem: LayerScores.read(path) for path in usable}


def _reference_learnt(run: Run) -> bool:
    """Layers of weights that did not learn undo anything, so they say nothing of the planted."""
    if not (run.folder / "training.parquet").is_file():
        return True
    share = at_the_end(run.training(), "original", "accuracy")
    return not share < run.protocol.finetune.noisy_at_least


def _key(run: Run) -> dict[str, Any]:
    task, control = run.about["task"], run.about["control"]
    first, last = control["window"]
    return {
        "task": task["name"],
        "category": task["category"],
        "model": Path(run.about["model"]).name,
        "seed": run.seed,
        "first": first,
        "last": last,
        "null": control["null"],
    }


def _layer_rows(run: Run, scores: Scores) -> Iterator[dict[str, Any]]:
    for method, found in scores.items():
        for index, weight in enumerate(found.weights):
            yield {
                **_key(run),
                "method": method,
                "layer": index + 1,
                "weight": weight,
                "low": found.low[index],
                "high": found.high[index],
                "undone": found.outcomes.errors.max() if found.outcomes else float("nan"),
            }


def _norm_rows(run: Run, scores: Scores) -> Iterator[dict[str, Any]]:
    details = scores["gradients"].details if "gradients" in scores else {}
    for name, values in details.items():
        norm, _, kind = name.partition(" ")
        for index, value in enumerate(values):
            row = {"norm": norm, "kind": kind, "layer": index + 1, "value": float(value)}
            yield {**_key(run), **row}


def _plant_row(run: Run, scores: Scores) -> dict[str, Any]:
    verdict, tries = run.verdict(), run.about.get("tries", [])
    return {
        **_key(run),
        "learning_rate": run.protocol.finetune.learning_rate,
        "tries": len(tries),
        "training_accuracy": verdict.get("training_accuracy"),
        "noisy_accuracy": verdict.get("noisy_accuracy"),
        "methods": ", ".join(scores),
        "used": bool(scores),
    }


def _post_processing(found: Sequence[tuple[Run, Scores]]) -> "pd.DataFrame":
    rows = []
    for run, scores in found:
        key = _key(run)
        if key["null"] or "gradients" not in scores:
            continue
        planted = range(key["first"] - 1, key["last"])
        for norm in ("L1", "L2"):
            for steps, weights in variants(scores["gradients"].details, norm).items():
                accuracy = accuracy_at_k(weights, planted, POST_PROCESSED_AT)
                step = dict(zip(("subtract_clean", "divide_frozen"), steps, strict=True))
                rows.append({**key, "norm": norm, **step, "accuracy": accuracy})
    steps_by = ["model", "norm", "subtract_clean", "divide_frozen"]
    table = _frame(rows, (*KEY, "norm", "subtract_clean", "divide_frozen", "accuracy"))
    grouped = table.groupby(steps_by, sort=False)["accuracy"]
    means = grouped.agg(["mean", "size"]).reset_index()
    return means.rename(columns={"mean": "accuracy", "size": "plants"})


def _frame(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> "pd.DataFrame":
    import pandas as pd

    return pd.DataFrame(rows, columns=list(columns))
