"""Runs: trained, or made of checkpoints that are there; and what methods find in them."""

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from memloc import console, paths
from memloc.cli.options import (
    AsJson,
    Checkpoints,
    Columns,
    Constants,
    DataFolder,
    Device,
    Fewer,
    Force,
    Labelled,
    Loading,
    ModelName,
    changes_of,
    check_checkpoints,
    check_device,
    check_model,
    check_training,
    option_by_option,
)
from memloc.errors import SettingsError
from memloc.progress import bars, tell

if TYPE_CHECKING:
    from memloc.methods.halves import Pool
    from memloc.models.load import Classifier
    from memloc.protocol import NoiseSettings
    from memloc.records import NoisyTask
    from memloc.training.recipe import Recipe

Weights = Annotated[
    list[str] | None, typer.Option(help="memorised, final, reference or frozen. Default: all.")
]
Flip = Annotated[
    float | None, typer.Option(help="Own file: share of the labels to make wrong, e.g. 0.15.")
]
TrainedOn = Annotated[
    Path | None,
    typer.Option(help="File with its training examples. A RunCallback's folder needs none."),
]
TrainMissing = Annotated[
    bool, typer.Option("--train-missing", help="Train reference and frozen weights if not given.")
]


@option_by_option
def train(  # noqa: PLR0913 - one option for each thing that people vary
    model: ModelName,
    task: Annotated[str | None, typer.Argument(help="Name of a task; or give --data.")] = None,
    *,
    seed: Annotated[int, typer.Option(help="Seed of data order, initial head and dropout.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder in which runs are kept.")] = Path("runs"),
    weights: Weights = None,
    constants: Constants,
    examples: Fewer = None,
    data_folder: DataFolder = None,
    data: Annotated[Path | None, typer.Option(help="Own file: csv, tsv, jsonl or parquet.")] = None,
    columns: Columns,
    flip: Flip = None,
    loading: Loading,
    as_json: AsJson = False,
) -> None:
    """Fine-tune a model on labels of which some are wrong, and on the original ones.

    Makes the weights memorised, final, reference and frozen, unless they are there already. A run
    that was interrupted continues where it stopped.

    Example: `memloc train tiny-opt tiny-topic`

    Own data: `memloc train roberta-base --data mine.csv --text review --label stars --flip 0.15`
    makes 15 % of the labels wrong. If some are wrong already, say which with `--original COLUMN`
    (the labels before noise) or `--flag COLUMN` (true where the label is wrong).
    """
    from memloc.models.known import default_preset
    from memloc.protocol import protocol_of_run

    _check_source(task, data, columns, flip)
    changes = constants.changes | _rate(flip, constants.changes)
    protocol = protocol_of_run(constants.preset or default_preset(model), changes)
    check_device(constants.device)
    check_model(model, loading.depth)
    chosen = _read_task((task, data, data_folder), columns, protocol.noise, examples)
    folder = paths.run_folder(out, chosen.name, model, seed, loading.depth)
    check_training(folder, weights or ())

    from memloc.models.load import LoadOptions
    from memloc.run import WEIGHTS
    from memloc.training.recipe import Recipe, train_run

    options = LoadOptions(**asdict(loading))
    recipe = Recipe(model, chosen, seed, protocol, options, constants.device)
    with bars():
        run = train_run(recipe, folder, weights or tuple(WEIGHTS), partial(_announce, out, recipe))
    console.show_run(run, protocol.verdict.noisy_at_least, as_json)


def _announce(out: Path, recipe: "Recipe", loaded: "Classifier", left: Mapping[str, int]) -> None:
    """What training will cost, measured on this machine."""
    from memloc.study.calibrate import expected_of

    for sentence in expected_of(recipe, loaded, left, out):
        tell(sentence)


def _check_source(
    task: str | None,
    data: Path | None,
    columns: Columns,
    flip: float | None,
) -> None:
    """One source of texts; for a file of one's own, one way to say which labels are wrong."""
    noise = {"flip": flip, "original": columns.original, "flag": columns.flag}
    given = [f"--{name}" for name, value in noise.items() if value is not None]
    if (task is None) == (data is None):
        raise SettingsError("Name a task, or give a file with --data: one of the two.")
    if task is not None and given:
        raise SettingsError(
            f"{given[0]} is for a file given with --data: the share of wrong labels in a task is "
            "set by --set noise.rate=0.15."
        )
    if data is not None and len(given) != 1:
        raise SettingsError(
            f"Say in one way which labels of {data} are wrong: --flip 0.15 makes that share "
            "of them wrong, --original COLUMN names the labels before noise, --flag COLUMN a "
            "column that is true or 1 where the label is wrong."
        )


def _rate(flip: float | None, changes: Mapping[str, Any]) -> dict[str, float]:
    """The share of labels to flip as a setting."""
    if flip is None:
        return {}
    if not 0 < flip < 1:
        raise SettingsError(
            f"--flip {flip:g}: a share above 0 and below 1 is needed, such as 0.15."
        )
    if "noise.rate" in changes:
        raise SettingsError("--flip and --set noise.rate say the same thing: give one of them.")
    return {"noise.rate": flip}


def _read_task(
    where: tuple[str | None, Path | None, Path | None],
    columns: Columns,
    noise: "NoiseSettings",
    examples: int | None,
) -> "NoisyTask":
    from memloc.data.own import load_csv
    from memloc.data.perturb import noisy_task
    from memloc.data.sources import load_task, subsample

    name, data, folder = where
    if data is None:
        found = load_task(str(name), folder=folder, seed=noise.seed)
    else:
        found = load_csv(data, seed=noise.seed, **asdict(columns))
    if examples is not None:
        found = subsample(found, examples, noise.seed)
    return noisy_task(found, noise)


@option_by_option
def adopt(  # noqa: PLR0913 - each is something that people have or do not have
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of the run that is made.")],
    *,
    checkpoints: Checkpoints,
    data: TrainedOn = None,
    columns: Columns,
    seed: Annotated[int, typer.Option(help="Seed of random choices.")] = 1,
    train_missing: TrainMissing = False,
    constants: Constants,
    as_json: AsJson = False,
) -> None:
    """Make a run from your checkpoints and the file they were trained on.

    Every command then works on it as on a run that memloc trained. Checkpoints stay where they
    are; which methods can run depends on the weights you give.

    Example: `memloc adopt runs/mine --final noisy/ --reference clean/ --data train.csv
    --original corrected`
    """
    from memloc.data.own import check_noisy_file
    from memloc.models.known import default_preset
    from memloc.protocol import protocol_of_run

    name = constants.preset or default_preset(checkpoints.pretrained or "")
    needed = protocol_of_run(name, constants.changes).verdict.noisy_at_least
    check_device(constants.device)
    check_training(run, ())
    if data is not None:
        check_checkpoints(checkpoints)
        check_noisy_file(data, **asdict(columns))

    from memloc.adoption import adopt as adopt_checkpoints

    with bars():
        made = adopt_checkpoints(
            run,
            data=data,
            **asdict(checkpoints),
            **asdict(columns),
            seed=seed,
            preset=name,
            settings=constants.changes,
            train_missing=train_missing,
            device=constants.device,
            announce=partial(_announce, run.parent),
        )
    console.show_run(made, needed, as_json)


@option_by_option
def find(  # noqa: PLR0913 - one option for each thing that people vary
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Pre-trained model, or the folder of a run.")
    ],
    *,
    file: Labelled,
    out: Annotated[Path | None, typer.Option(help="Folder for results. Default: found.")] = None,
    models: Annotated[int | None, typer.Option(help="Number of models. Default: 30.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the halves. Default: 1.")] = None,
    constants: Constants,
    as_json: AsJson = False,
) -> None:
    """Find labels that are likely wrong, where nobody marked them.

    Models are trained on random halves of the data. A label is suspected if models that did not
    see the example would give it another one. You get a table, a page with the examples to look at
    first, and suspects.csv to correct by hand. Give that to `memloc train` or `memloc adopt` with
    `--original corrected`, or with `--flag wrong` to leave suspects out of the reference.

    Example: `memloc find tiny-opt --data train.csv --label label --out found`
    """
    check_device(constants.device)
    if not (Path(model) / paths.RUN).is_file():
        check_model(model)
        _check_labelled(file)
        out = out or Path("found")
    changes = constants.changes | ({} if models is None else {"generalisation.models": models})

    from memloc.suspects import find as look

    with bars():
        found = look(
            model,
            out,
            **asdict(file),
            seed=seed,
            preset=constants.preset,
            settings=changes,
            device=constants.device,
            announce=_announce_halves,
        )
    console.show_suspects(found, as_json)


def _check_labelled(file: Labelled) -> None:
    from memloc.data.own import Columns as Named
    from memloc.data.tables import read_columns

    if file.data is None:
        raise SettingsError("Give the file with texts and labels: --data FILE.")
    read_columns(file.data, Named(file.text, file.label, file.pair).all)


def _announce_halves(pool: "Pool", loaded: "Classifier", models: int) -> None:
    """What models on halves will cost, measured on this machine."""
    from memloc.study.calibrate import expected_halves

    tell(expected_halves(pool, loaded, models))


RunFolder = Annotated[
    Path, typer.Argument(metavar="RUN", help="Folder of a run made by train or adopt.")
]
Details = Annotated[
    bool, typer.Option("--details", help="Print what every method found, and what to bear in mind.")
]
Change = Annotated[
    list[str] | None, typer.Option("--set", help="A method's setting, e.g. gradients.norm=L2.")
]


def localise(  # noqa: PLR0913, PLR0917 - one option for each thing that people vary
    run: RunFolder,
    methods: Annotated[
        list[str] | None,
        typer.Argument(metavar="METHOD", help="Default: all that can run."),
    ] = None,
    change: Change = None,
    force: Force = False,
    device: Device = "auto",
    details: Details = False,
    as_json: AsJson = False,
) -> None:
    """Measure how much each layer matters for the memorised labels.

    The methods are swapping, retraining, gradients, probing and shares; those of other packages
    run where you name them. `memloc adopt` makes a run from your own checkpoints.

    Example: `memloc localise runs/tiny-topic/tiny-opt/seed-1 swapping gradients`
    """
    check_device(device)

    from memloc.methods.apply import localise as look

    with bars():
        found = look(run, methods or (), settings=changes_of(change), force=force, device=device)
    if as_json or details:
        console.show_found(found, "methods", as_json)
    else:
        console.show_layers(found)


def analyse(
    run: RunFolder,
    analyses: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ANALYSIS",
            help="centroids, label_probes or generalisation. Default: all that can run.",
        ),
    ] = None,
    change: Change = None,
    force: Force = False,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Show how noisy examples drift from their original class to the assigned one.

    Centroids and label probes find the layers where this happens; generalisation trains models
    on halves of the data to see which labels can only be known by heart. To repeat centroids
    with layers 3 to 6 of the reference weights, add `--set centroids.windows=[3-6]`.

    Example: `memloc analyse runs/tiny-topic/tiny-opt/seed-1 centroids label_probes`
    """
    check_device(device)

    from memloc.methods.apply import analyse as look

    with bars():
        found = look(run, analyses or (), settings=changes_of(change), force=force, device=device)
    console.show_found(found, "analyses", as_json)


def repair(
    run: RunFolder,
    out: Annotated[Path, typer.Option(help="Folder of the repaired checkpoint.")],
    way: Annotated[
        str, typer.Option(help="layers (put in the reference's) or retrain (on clean examples).")
    ] = "layers",
    change: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of repair, e.g. epochs=5.")
    ] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Take memorised labels out of a model, and test whether they are gone or only hidden.

    The smallest set of layers that holds them is found by exact shares and replaced. The repaired
    model is compared with repairs of other layers, of the head, and with fine-tuning again: are the
    labels still predicted, and are they learnt again sooner than by a model that never saw them?

    Example: `memloc repair runs/tiny-topic/tiny-opt/seed-1 --out repaired`
    """
    check_device(device)

    from memloc.repairs import repair as mend

    with bars():
        found = mend(run, out, settings={"way": way, **changes_of(change)}, device=device)
    console.show_repaired(found, as_json)
