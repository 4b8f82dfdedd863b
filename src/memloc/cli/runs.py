"""Commands that make runs, and commands that analyse one run."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from memloc.cli import console
from memloc.cli.options import (
    AsJson,
    Checkpoints,
    Constants,
    DataFolder,
    Device,
    Fewer,
    Force,
    Labelled,
    Loading,
    Marked,
    ModelName,
    changes_of,
    check_checkpoints,
    check_model,
    check_training,
    option_by_option,
)
from memloc.errors import SettingsError
from memloc.progress import showing_bars
from memloc.store import paths
from memloc.verbs import telling_cost

if TYPE_CHECKING:
    from memloc.data.task import Task
    from memloc.protocol import RunSettings
    from memloc.run.folder import Run

CheckpointNames = Annotated[
    list[str] | None, typer.Option(help="memorised, final, reference or frozen. Default: all.")
]
Repeat = Annotated[
    int | None, typer.Option(help="Times that each noisy label or memorised text is seen an epoch.")
]
Flip = Annotated[
    float | None, typer.Option(help="Own file: share of the labels to make wrong, e.g. 0.15.")
]
TrainMissing = Annotated[
    bool, typer.Option("--train-missing", help="Train reference and frozen weights if not given.")
]
Stream = Annotated[bool, typer.Option("--stream", help="Read one block at a time, to save memory.")]


@option_by_option
def train(  # noqa: PLR0913 - one option for each thing that people vary
    model: ModelName,
    task: Annotated[str | None, typer.Argument(help="Name of a task; or give --data.")] = None,
    *,
    seed: Annotated[int, typer.Option(help="Seed of data order, initial head and dropout.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder in which runs are kept.")] = Path("runs"),
    checkpoints: CheckpointNames = None,
    constants: Constants,
    examples: Fewer = None,
    data_folder: DataFolder = None,
    own: Marked,
    flip: Flip = None,
    repeat: Repeat = None,
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

    Texts: `memloc train tiny-opt --data texts.csv --prompt start --continuation rest --flag
    memorised --repeat 10`; with `--text whole --tokens 10`, the last ten tokens are recalled.
    """
    from memloc.data.perturb import noisy_task
    from memloc.data.sources import subsample
    from memloc.model.known import default_preset
    from memloc.protocol import settings_of_run

    changes = _with_flip(_with_repeat(constants.changes, repeat), task, own, flip)
    name = constants.preset or default_preset(model)
    settings = settings_of_run(name, changes, has_noise=own.is_marked)
    check_model(model, loading.depth)
    clean_task = _read_task(task, data_folder, own, settings.noise.seed)
    if examples is not None:
        clean_task = subsample(clean_task, examples, settings.noise.seed)
    noisy = noisy_task(clean_task, settings.noise)
    folder = paths.run_folder(out, noisy.name, model, seed, loading.depth)
    check_training(folder, checkpoints or ())

    with showing_bars(), telling_cost("training", out):
        what = (model, noisy, seed, settings)
        run = _trained(what, loading, folder, checkpoints, constants.device)
    _show(run, name, as_json)


def _show(run: "Run", preset: str, as_json: bool, *, recall: bool = True) -> None:
    """Print a run; with `recall`, also how well its weights recall its texts, if it has any."""
    from memloc.protocol import common_preset

    rows = run.recall().to_dict("records") if recall and run.task.is_texts else []
    console.show_run(run, common_preset(preset).verdict.noisy_at_least, as_json, rows)


def _trained(
    what: tuple[str, "Task", int, "RunSettings"],
    loading: Loading,
    folder: Path,
    checkpoints: list[str] | None,
    device: str,
) -> "Run":
    """Train the run that the arguments describe; torch is loaded only here."""
    from memloc.model.load import LoadOptions
    from memloc.run.records import WEIGHTS
    from memloc.run.spec import RunSpec
    from memloc.run.train import make_run

    spec = RunSpec.of(*what, options=LoadOptions(**asdict(loading)))
    return make_run(spec, folder, checkpoints or tuple(WEIGHTS), task=what[1], device=device)


def _read_task(name: str | None, folder: Path | None, own: Marked, seed: int) -> "Task":
    from memloc.data.own import load_csv
    from memloc.data.sources import load_task

    if own.data is None:
        return load_task(str(name), folder=folder, seed=seed)
    return load_csv(own.data, seed=seed, **own.columns)


def _with_repeat(changes: Mapping[str, Any], repeat: int | None) -> Mapping[str, Any]:
    """Return the settings with `--repeat` among them; refuse both it and its own setting."""
    if repeat is None:
        return changes
    if "finetune.repeat" in changes:
        raise SettingsError(
            "--repeat and --set finetune.repeat say the same thing: give one of them."
        )
    return {**changes, "finetune.repeat": repeat}


def _with_flip(
    changes: Mapping[str, Any], task: str | None, own: Marked, flip: float | None
) -> dict[str, Any]:
    """Return the settings, with the share of labels to flip among them.

    It refuses two sources of texts and, for a user's own file, two ways to mark wrong labels.
    """
    noise = {"flip": flip, "original": own.original, "flag": own.flag}
    given = [f"--{name}" for name, value in noise.items() if value is not None]
    if (task is None) == (own.data is None):
        raise SettingsError("Name a task, or give a file with --data: one of the two.")
    if task is not None and given:
        raise SettingsError(
            f"{given[0]} is for a file given with --data: the share of wrong labels in a task is "
            "set by --set noise.rate=0.15."
        )
    if task is None and len(given) != 1:
        raise SettingsError(
            f"Say in one way which labels of {own.data} are wrong: --flip 0.15 makes that share "
            "of them wrong, --original COLUMN names the labels before noise, --flag COLUMN a "
            "column that is true or 1 where the label is wrong. If it holds texts for a language "
            "model, name them with --prompt COLUMN and --continuation COLUMN, or with --text "
            "COLUMN and --tokens NUMBER, and with --flag COLUMN which of them are memorised."
        )
    if flip is not None and not 0 < flip < 1:
        raise SettingsError(
            f"--flip {flip:g}: a share above 0 and below 1 is needed, such as 0.15."
        )
    if flip is not None and "noise.rate" in changes:
        raise SettingsError("--flip and --set noise.rate say the same thing: give one of them.")
    return {**changes, **({} if flip is None else {"noise.rate": flip})}


@option_by_option
def adopt(  # noqa: PLR0913 - each is something that people have or do not have
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of the run that is made.")],
    *,
    checkpoints: Checkpoints,
    own: Marked,
    seed: Annotated[
        int | None, typer.Option(help="Seed of random choices. Default: the Trainer's, or 1.")
    ] = None,
    train_missing: TrainMissing = False,
    stream: Stream = False,
    constants: Constants,
    as_json: AsJson = False,
) -> None:
    """Make a run from your checkpoints and the file they were trained on.

    Every command then works on it as on a run that memloc trained. Checkpoints stay where they
    are; which methods can run depends on the weights you give. A RunCallback's folder needs no
    file.

    Example: `memloc adopt runs/mine --final noisy/ --reference clean/ --data train.csv
    --original corrected`
    """
    from memloc.data.own import check_noisy_file
    from memloc.model.known import default_preset
    from memloc.protocol import settings_of_run

    name = constants.preset or default_preset(checkpoints.pretrained or "")
    settings_of_run(name, constants.changes, has_noise=True)
    check_training(run, ())
    if own.data is not None:
        check_checkpoints(checkpoints, needs_start=train_missing, texts=own.is_texts)
        check_noisy_file(own.data, **own.columns)

    from memloc.run.adopt import adopt as adopt_checkpoints
    from memloc.run.callback import adopt_trainer

    given: dict[str, Any] = {
        "preset": name,
        "settings": constants.changes,
        "train_missing": train_missing,
        **{"device": constants.device, "stream": stream},
        **({} if seed is None else {"seed": seed}),
    }
    with showing_bars(), telling_cost("training"):
        if own.data is None:
            adopted = adopt_trainer(run, **_of_trainer(checkpoints, own), **given)
        else:
            adopted = adopt_checkpoints(run, **checkpoints.by_name, **asdict(own), **given)
    _show(adopted, name, as_json, recall=not stream)  # streamed weights would be read once more


def _of_trainer(checkpoints: Checkpoints, own: Marked) -> dict[str, Any]:
    """Return the arguments that may go with a Trainer's output folder; refuse others."""
    columns = (own.text, own.pair, own.label, own.original, own.flag)
    if (
        columns != ("text", None, "label", None, None)
        or checkpoints.pretrained
        or checkpoints.memorised
        or checkpoints.epoch
    ):
        raise SettingsError(
            "The folder of a memloc.RunCallback names its columns, pre-trained, memorised and "
            "early weights itself: leave them out, or give the file with these columns (--data)."
        )
    weights = {"reference": checkpoints.reference, "frozen": checkpoints.frozen}
    return {"output": checkpoints.final, "held_out": own.held_out, **weights}


@option_by_option
def find(  # noqa: PLR0913 - one option for each thing that people vary
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Pre-trained model, or the folder of a run.")
    ],
    *,
    own: Labelled,
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
    given = _data_and_model(model, own)
    changes = constants.changes | ({} if models is None else {"generalisation.models": models})

    from memloc.labels.find import find as look

    with showing_bars(), telling_cost("halves"):
        suspects = look(
            *given,
            out,
            **own.columns,
            seed=seed,
            preset=constants.preset,
            settings=changes,
            device=constants.device,
        )
    console.show_suspects(suspects, as_json)


def _data_and_model(model: str, own: Labelled) -> tuple[Any, str | None]:
    """Return the file and the model, or the run's folder without a model."""
    from memloc.data.own import Columns
    from memloc.data.tables import read_values

    if (Path(model) / paths.RUN).is_file():
        if own.data is not None:
            raise SettingsError(f"{model} is a run, which has its data: leave out --data.")
        return model, None
    check_model(model)
    if own.data is None:
        raise SettingsError("Give the file with texts and labels: --data FILE.")
    read_values(own.data, Columns(**own.columns).all)
    return own.data, model


RunFolder = Annotated[
    Path, typer.Argument(metavar="RUN", help="Folder of a run made by train or adopt.")
]
Details = Annotated[
    bool, typer.Option("--details", help="Print the result of every method, with its caveats.")
]
SettingOption = Annotated[
    list[str] | None, typer.Option("--set", help="A method's setting, as METHOD.NAME=VALUE.")
]


def localise(  # noqa: PLR0913, PLR0917 - one option for each thing that people vary
    run: RunFolder,
    methods: Annotated[
        list[str] | None, typer.Argument(metavar="METHOD", help="Default: all that can run.")
    ] = None,
    change: SettingOption = None,
    force: Force = False,
    device: Device = "auto",
    details: Details = False,
    as_json: AsJson = False,
) -> None:
    """Measure how much each layer matters for the memorised labels.

    The methods are shares, swapping, retraining, gradients and probing; those of other packages
    run where you name them. `memloc adopt` makes a run from your own checkpoints.

    Shares and swapping exchange parts of the final model and count what is lost. Three choices
    make that question: the units (`--set shares.units=sublayers`), the donor of the weights that
    come in (`--set shares.donor=epoch-4`; without a reference, the best early epoch), and the
    outcome (labels, or the tokens of memorised texts).

    Example: `memloc localise runs/tiny-topic/tiny-opt/seed-1 swapping gradients`
    """
    from memloc.methods.apply import localise as look

    with showing_bars(), telling_cost("methods"):
        findings = look(
            run, methods or None, settings=changes_of(change), force=force, device=device
        )
    if as_json or details:
        console.show_found(findings, "methods", as_json)
    else:
        console.show_layers(findings)


def analyse(
    run: RunFolder,
    analyses: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ANALYSIS",
            help="Names of analyses. Default: all that can run.",
        ),
    ] = None,
    change: SettingOption = None,
    force: Force = False,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Show how noisy examples drift from their original class to the assigned one.

    Centroids and label probes find the layers where this happens; generalisation trains models
    on halves of the data to see which labels must have been memorised. To repeat centroids
    with layers 3 to 6 of the reference weights, add `--set centroids.windows=[3-6]`.

    Example: `memloc analyse runs/tiny-topic/tiny-opt/seed-1 centroids label_probes`
    """
    from memloc.methods.apply import analyse as look

    with showing_bars(), telling_cost("methods"):
        findings = look(
            run, analyses or None, settings=changes_of(change), force=force, device=device
        )
    console.show_found(findings, "analyses", as_json)


def timeline(
    run: RunFolder,
    change: SettingOption = None,
    force: Force = False,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Show in which epochs and layers noisy and clean labels were learnt.

    The final weights are compared with every kept epoch (`finetune.keep_epochs=early` keeps them).
    To compare with some epochs only, add `--set timeline.epochs=[1,2,4,8]`.

    Example: `memloc timeline runs/tiny-topic/tiny-opt/seed-1`
    """
    from memloc.methods.timeline import Timeline

    analyse(run, [Timeline.name], change, force=force, device=device, as_json=as_json)


def repair(
    run: RunFolder,
    out: Annotated[Path, typer.Option(help="Folder of the repaired checkpoint.")],
    way: Annotated[
        str, typer.Option(help="layers (insert the reference's) or retrain (on clean examples).")
    ] = "layers",
    change: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of repair, e.g. epochs=5.")
    ] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Remove memorised labels or texts from a model, and test if they are gone or only hidden.

    The smallest set of layers that holds them is found by exact shares and replaced. The repaired
    model is compared with repairs of other layers, of the head, and with fine-tuning again: are the
    labels still predicted, and are they learnt again sooner than by a model that never saw them?

    Example: `memloc repair runs/tiny-topic/tiny-opt/seed-1 --out repaired`
    """
    from memloc.labels.repair import repair as mend

    settings = {"way": way, **changes_of(change)}
    with showing_bars(), telling_cost("repair"):
        repaired = mend(run, out, settings=settings, device=device)
    console.show_repaired(repaired, as_json)


def push(
    run: RunFolder,
    repository: Annotated[str, typer.Argument(help="Repository of the hub, as user/name.")],
    public: Annotated[
        bool,
        typer.Option(
            "--public", help="Let everybody read the repository, training texts included."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Upload a run with its data, weights and results to the Hugging Face hub.

    Everything is sent that others need to repeat or add to the results. A new repository is
    private, as the training texts are in it. Code and pickled weights are not sent.

    Example: `memloc push runs/tiny-topic/tiny-opt/seed-1 me/tiny-topic`
    """
    from memloc.run.folder import Run

    address = Run.open(run).push(repository, private=not public)
    console.show(as_json, {"address": address}, address)


def pull(
    repository: Annotated[str, typer.Argument(help="Repository of the hub, as user/name.")],
    folder: Annotated[Path, typer.Argument(help="Folder of the run that is made.")],
    revision: Annotated[
        str | None, typer.Option(help="Branch, tag or commit. Default: the newest state.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fetch a run that somebody pushed to the Hugging Face hub, and check every file of it.

    Every command then works on it as on a run that was made here.

    Example: `memloc pull me/tiny-topic runs/theirs`
    """
    from memloc.protocol import common_preset
    from memloc.run.folder import Run

    needed = common_preset("paper").verdict.noisy_at_least
    console.show_run(Run.pull(repository, folder, revision), needed, as_json)
