"""Commands: parse, call one library function, print. Results go to stdout, progress to stderr."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from memloc import console
from memloc.errors import SettingsError

if TYPE_CHECKING:
    from memloc.protocol import Protocol
    from memloc.records import NoisyLabels, Task

app = typer.Typer(
    cls=console.Commands,
    help="Which layers of a fine-tuned transformer hold the labels it memorised?",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
main = app

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
ModelName = Annotated[str, typer.Argument(help="Embedded name, hub name or folder.")]
Depth = Annotated[int | None, typer.Option(help="Use only the first so many layers.")]
RemoteCode = Annotated[
    bool, typer.Option("--remote-code", help="Run code that the model's repository brings.")
]
AnyFormat = Annotated[
    bool, typer.Option("--any-format", help="Read weights that are not safetensors, too.")
]


@app.command()
def tasks(category: Annotated[str | None, typer.Option()] = None, as_json: AsJson = False) -> None:
    """List the tasks: the embedded suite and the paper's twelve.

    Example: `memloc tasks --category nlu`
    """
    from memloc.data.tasks import known_tasks
    from memloc.errors import lookup

    rows = [asdict(row) for row in known_tasks().values()]
    if category is not None:
        lookup("category", category, dict.fromkeys(row["category"] for row in rows))
        rows = [row for row in rows if row["category"] == category]
    console.show_rows(rows, as_json)


@app.command()
def models(as_json: AsJson = False) -> None:
    """List the embedded models and those of the paper; any other classifier works as well.

    Example: `memloc models`
    """
    from memloc.models.catalogue import known_models

    console.show_rows([asdict(row) for row in known_models()], as_json)


@app.command()
def check(
    model: ModelName,
    depth: Depth = None,
    remote_code: RemoteCode = False,
    any_format: AnyFormat = False,
    as_json: AsJson = False,
) -> None:
    """Say whether memloc can work with a model, and what it found there.

    Example: `memloc check tiny-opt`
    """
    from memloc.models.check import check_model
    from memloc.models.load import LoadOptions

    report = check_model(model, LoadOptions(remote_code, any_format, depth))
    console.show_record(asdict(report), as_json)


@app.command()
def protocol(
    preset: Annotated[str, typer.Argument(help="paper, reference or demo.")] = "paper",
    diff: Annotated[str | None, typer.Option(help="Only what differs from this preset.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print every constant of the method and where it comes from.

    Example: `memloc protocol paper --diff reference`
    """
    from memloc.explain import compare, describe
    from memloc.protocol import preset as named

    rows = describe(named(preset)) if diff is None else compare(named(preset), named(diff))
    console.show_rows(rows, as_json)


@app.command()
def train(  # noqa: PLR0913, PLR0917 - one option a thing that people vary
    model: ModelName,
    task: Annotated[str | None, typer.Argument(help="Name of a task; or give --data.")] = None,
    seed: Annotated[int, typer.Option(help="Order of the data, initial head, dropout.")] = 1,
    out: Annotated[Path, typer.Option(help="Runs are kept in here.")] = Path("runs"),
    weights: Annotated[
        list[str] | None,
        typer.Option(help="memorised, final, reference or frozen; left out: all."),
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="Left out: demo for embedded models, else paper.")
    ] = None,
    change: Annotated[
        list[str] | None, typer.Option("--set", help="A setting, e.g. finetune.epochs=30.")
    ] = None,
    examples: Annotated[int | None, typer.Option(help="Train on a random so many.")] = None,
    data_folder: Annotated[
        Path | None, typer.Option(help="Folder with the paper's tasks (or MEMLOC_DATA).")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Own file: csv, tsv, jsonl or parquet.", show_default=False)
    ] = None,
    text: Annotated[str, typer.Option(help="Own file: column of texts.")] = "text",
    pair: Annotated[str | None, typer.Option(help="Own file: column of second texts.")] = None,
    label: Annotated[str, typer.Option(help="Own file: column of labels.")] = "label",
    original: Annotated[
        str | None, typer.Option(help="Own file: column of labels before noise that is there.")
    ] = None,
    held_out: Annotated[Path | None, typer.Option(help="Own file: unseen data.")] = None,
    depth: Depth = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    remote_code: RemoteCode = False,
    any_format: AnyFormat = False,
    as_json: AsJson = False,
) -> None:
    """Fine-tune on labels of which a share is wrong, and on the original ones.

    Makes the missing ones of the weights memorised, final, reference and frozen. A run that was
    interrupted goes on where it was.

    Example: `memloc train tiny-opt tiny-topic`

    Own data: `memloc train roberta-base --data mine.csv --text review --label stars`
    """
    from memloc.models.load import LoadOptions
    from memloc.progress import bars
    from memloc.train.training import Recipe, default_protocol, train_run

    settings = _settings(preset, change, default_protocol(model))
    columns = {"text": text, "pair": pair, "label": label, "original": original}
    chosen, noisy = _read_task(task, data, data_folder, {**columns, "held_out": held_out}, settings)
    if examples is not None:
        chosen, noisy = _fewer(chosen, noisy, examples, settings)
    recipe = Recipe(
        model,
        chosen,
        seed,
        settings,
        noisy,  # type: ignore[arg-type]
        LoadOptions(remote_code, any_format, depth),
        device,
    )
    name = Path(model).name + (f"-depth-{depth}" if depth else "")
    with bars():
        run = train_run(recipe, out / chosen.name / name / f"seed-{seed}", **_only(weights))
    console.show_run(run, as_json)


@app.command()
def localise(  # noqa: PLR0913, PLR0917 - a run, or the parts of one
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN] [METHOD]...", help="Run folder, then methods; left out: all."
        ),
    ] = None,
    final: Annotated[str | None, typer.Option(help="Checkpoint that memorised.")] = None,
    reference: Annotated[str | None, typer.Option(help="Trained on original labels.")] = None,
    pretrained: Annotated[str | None, typer.Option(help="Before fine-tuning.")] = None,
    memorised: Annotated[str | None, typer.Option(help="At near-ceiling accuracy.")] = None,
    frozen: Annotated[str | None, typer.Option(help="With only the head trained.")] = None,
    data: Annotated[Path | None, typer.Option(help="The training examples.")] = None,
    text: Annotated[str, typer.Option(help="Column of texts.")] = "text",
    pair: Annotated[str | None, typer.Option(help="Column of second texts.")] = None,
    label: Annotated[str, typer.Option(help="Column of labels trained on.")] = "label",
    noisy: Annotated[
        str, typer.Option(help="Column of true and false, or of the labels before noise.")
    ] = "noisy",
    out: Annotated[Path, typer.Option(help="For results.")] = Path("memloc-localise"),
    force: Annotated[bool, typer.Option(help="Go on without memorisation; marked.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    as_json: AsJson = False,
) -> None:
    """Say for every layer how much it matters for the memorised labels.

    Example: `memloc localise runs/tiny-topic/tiny-opt/seed-1 swapping gradients`

    Checkpoints of one's own: `memloc localise --final noisy/ --reference clean/ --data train.csv`
    """
    from memloc.localise.localise import localise_checkpoints, localise_run
    from memloc.localise.subjects import Weights
    from memloc.progress import bars

    given = list(words or [])
    if final is None:
        if not given:
            raise SettingsError("Give a run's folder, or a checkpoint with --final.")
        with bars():
            found = localise_run(Path(given[0]), given[1:], force=force, device=device)
    else:
        if data is None:
            raise SettingsError("Give the training examples of --final with --data FILE.")
        with bars():
            found = localise_checkpoints(
                Weights(final, reference, pretrained, memorised, frozen),
                data,
                columns={"text": text, "pair": pair, "label": label, "noisy": noisy},
                out=out,
                methods=given,
                force=force,
                device=device,
            )
    console.show_localised(found, as_json)


@app.command()
def analyse(  # noqa: PLR0913, PLR0917 - one option a thing that people vary
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    analyses: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ANALYSIS]...",
            help="centroids, label-probes or generalisation; left out: all.",
        ),
    ] = None,
    window: Annotated[
        list[str] | None,
        typer.Option(help="Centroids with these layers, such as 3-6, of the reference, too."),
    ] = None,
    change: Annotated[
        list[str] | None, typer.Option("--set", help="A setting, e.g. generalisation.models=10.")
    ] = None,
    force: Annotated[bool, typer.Option(help="Go on without memorisation; marked.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    as_json: AsJson = False,
) -> None:
    """Say how noisy examples drift from their original class to the assigned one.

    Centroids and label probes name the layers where that happens; generalisation trains models
    on halves of the data to see which labels they can only know by heart.

    Example: `memloc analyse runs/tiny-topic/tiny-opt/seed-1 centroids label-probes`
    """
    from memloc.analyse.analyse import analyse_run
    from memloc.progress import bars

    with bars():
        found = analyse_run(
            run,
            analyses or (),
            windows=window or (),
            changes=dict(_setting(text) for text in change or ()),
            force=force,
            device=device,
        )
    console.show_analysed(found, as_json)


@app.command()
def control(  # noqa: PLR0913, PLR0917 - one option a thing that people vary
    model: Annotated[list[str], typer.Option(help="Embedded name, hub name or folder.")],
    task: Annotated[list[str], typer.Option(help="Task whose noise is planted.")],
    window: Annotated[
        list[str] | None,
        typer.Option(help="Layers such as 6-7; left out: first, middle and last two."),
    ] = None,
    every: Annotated[
        list[int] | None, typer.Option(help="Plant windows of this width at every position.")
    ] = None,
    method: Annotated[list[str] | None, typer.Option(help="Left out: the paper's four.")] = None,
    nulls: Annotated[
        str, typer.Option(help="Windows whose null is made, too: none, middle or all.")
    ] = "middle",
    out: Annotated[Path, typer.Option(help="Plants are kept in its folder control.")] = Path(
        "runs"
    ),
    seed: Annotated[int | None, typer.Option(help="Left out: the protocol's.")] = None,
    preset: Annotated[
        str | None, typer.Option(help="Left out: demo for embedded models, else paper.")
    ] = None,
    change: Annotated[
        list[str] | None, typer.Option("--set", help="A setting, e.g. control.auxiliary=rte.")
    ] = None,
    examples: Annotated[int | None, typer.Option(help="Train on a random so many.")] = None,
    data_folder: Annotated[
        Path | None, typer.Option(help="Folder with the paper's tasks (or MEMLOC_DATA).")
    ] = None,
    depth: Depth = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    as_json: AsJson = False,
) -> None:
    """Plant memorisation in known layers and see which methods find it.

    The noisy task may change a window of layers only, another task changes all of them. Trains
    what is missing, runs the methods, and sums up all plants of the folder.

    Example: `memloc control --model tiny-opt --task tiny-topic --method swapping`
    """
    from memloc.data.sources import load_task
    from memloc.experiment.control import Control, run_control
    from memloc.localise.localise import METHODS
    from memloc.models.load import LoadOptions
    from memloc.progress import bars
    from memloc.train.training import default_protocol
    from memloc.train.windows import read_window

    settings = _settings(preset, change, default_protocol(model[0]))
    noise = settings.noise.seed
    tasks = [load_task(name, folder=data_folder, seed=noise) for name in task]
    if examples is not None:
        tasks = [_fewer(each, None, examples, settings)[0] for each in tasks]
    what = Control(
        models=model,
        tasks=tasks,
        windows=[read_window(text) for text in window or ()],
        every=every or (),
        methods=method or METHODS,
        nulls=_one_of("nulls", nulls, ("none", "middle", "all")),
        protocol=settings,
        seed=seed,
        options=LoadOptions(depth=depth),
        data_folder=data_folder,
        device=device,
    )
    with bars():
        found = run_control(what, out)
    console.show_control(found, as_json)


Study = Annotated[Path, typer.Argument(help="A study's folder, or one run's.")]


@app.command()
def figures(
    study: Study,
    kind: Annotated[str, typer.Option("--format", help="png, svg or pdf.")] = "png",
    only: Annotated[list[str] | None, typer.Option(help="Name of a figure, e.g. layers.")] = None,
    out: Annotated[Path | None, typer.Option(help="Left out: report/figures in the study.")] = None,
    as_json: AsJson = False,
) -> None:
    """Draw every figure of a study, one file for each model, task and method.

    Example: `memloc figures runs --format svg --only layers`
    """
    from memloc.progress import bars
    from memloc.report.figures.writing import write_figures
    from memloc.results import load_results

    folder = study / "report" / "figures" if out is None else out
    with bars():
        written, missing = write_figures(load_results(study), folder, kind, only or ())
    console.show_files(folder, written, [figure.name for figure in missing], as_json)


@app.command()
def tables(
    study: Study,
    kind: Annotated[str, typer.Option("--format", help="csv, parquet, markdown or latex.")] = "csv",
    only: Annotated[list[str] | None, typer.Option(help="Name of a table, e.g. mcog.")] = None,
    out: Annotated[Path | None, typer.Option(help="Left out: report/tables in the study.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write every table of a study, ready for a paper.

    Example: `memloc tables runs --format latex`
    """
    from memloc.report.tables import write_tables
    from memloc.results import load_results

    folder = study / "report" / "tables" if out is None else out
    written, missing = write_tables(load_results(study), folder, kind, only or ())
    console.show_files(folder, written, [table.name for table in missing], as_json)


@app.command()
def report(
    study: Study,
    out: Annotated[
        Path | None, typer.Option(help="Left out: report/index.html in the study.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write one page with everything, to be opened in a browser without a network.

    Example: `memloc report runs`
    """
    from memloc.report.page import write_report

    console.show_report(write_report(study, out), as_json)


StudyFolder = Annotated[Path, typer.Argument(help="A study's folder, with its study.yaml.")]
Jobs = Annotated[int | None, typer.Option(help="Steps at once; left out: one a core.")]


@app.command()
def init(
    example: Annotated[str, typer.Argument(help="demo, small or paper.")],
    folder: Annotated[Path | None, typer.Argument(help="Left out: named like it.")] = None,
) -> None:
    """Write a commented study.yaml to start from.

    Example: `memloc init demo`
    """
    from memloc.experiment.study import init_study

    path = init_study(example, folder)
    typer.echo(f"{path} is written; next: memloc plan {path.parent}")


@app.command()
def plan(
    study: StudyFolder,
    jobs: Jobs = None,
    steps: Annotated[bool, typer.Option(help="List every step.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say what a study consists of, what is done, and what the rest will cost.

    Example: `memloc plan demo`
    """
    from memloc.experiment.study import checked_jobs, estimate_study, open_plan, study_states
    from memloc.experiment.view import plan_rows, plan_sentences, step_rows

    found, at_once = open_plan(study), checked_jobs(jobs)
    states, expected = study_states(found), estimate_study(found, jobs)
    if steps or as_json:
        console.show_rows(step_rows(found, states, expected), as_json)
    if not as_json:
        console.show_rows(plan_rows(found, states, expected), as_json)
        typer.echo("\n" + "\n".join(plan_sentences(found, states, expected, at_once)))


@app.command()
def run(  # noqa: PLR0913, PLR0917 - one option a thing that people vary
    study: StudyFolder,
    jobs: Jobs = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Steps whose names have these words, and what they need."),
    ] = None,
    retry: Annotated[bool, typer.Option(help="Try again what failed before.")] = False,
    on: Annotated[str, typer.Option(help="local or ray.")] = "local",
    address: Annotated[str | None, typer.Option(help="Of the Ray cluster, e.g. auto.")] = None,
    as_json: AsJson = False,
) -> None:
    """Do what is missing of a study: in parallel, in order, and from where it was left.

    Example: `memloc run demo --only "localise tiny-topic" --only report`
    """
    from memloc.experiment.study import How, checked_jobs, open_plan, run_study
    from memloc.experiment.view import View, end_sentences, progress_record
    from memloc.report.page import read_report

    at_once = checked_jobs(jobs)
    with View() as view:
        progress = run_study(study, How(jobs, only or (), retry, on, address), view)
    found = open_plan(study)
    if as_json:
        console.show_record(progress_record(found, progress), as_json)
    else:
        typer.echo("\n".join(end_sentences(found, progress, at_once)))
        report = read_report(found.file.folder)
        if report is not None:
            typer.echo("")
            console.show_report(report, as_json)
    if progress.count("failed"):
        raise typer.Exit(1)


@app.command()
def status(study: StudyFolder, as_json: AsJson = False) -> None:
    """Say how far a study is, from any terminal.

    Example: `memloc status demo`
    """
    from memloc.experiment.study import study_status
    from memloc.experiment.view import status_sentences

    found = study_status(study)
    if as_json:
        console.show_record(found, as_json)
    else:
        typer.echo("\n".join(status_sentences(found)))


@app.command()
def logs(
    study: StudyFolder,
    step: Annotated[str, typer.Argument(help="Name of a step; `memloc plan --steps` lists them.")],
) -> None:
    """Print what a step has said.

    Example: `memloc logs demo train/tiny-topic/tiny-opt/seed-1`
    """
    from memloc.experiment.study import read_log

    typer.echo(read_log(study, step), nl=False)


def _one_of(option: str, value: str, known: tuple[str, ...]) -> Any:
    from memloc.errors import lookup

    return lookup(f"value of --{option}", value, {name: name for name in known})


def _only(weights: list[str] | None) -> dict[str, Any]:
    return {"weights": weights} if weights else {}


def _settings(name: str | None, changes: list[str] | None, usual: "Protocol") -> "Protocol":
    from memloc.protocol import preset

    base = preset(name) if name else usual
    return base.replace(dict(_setting(change) for change in changes or []))


def _setting(change: str) -> tuple[str, Any]:
    import yaml

    key, equals, text = change.partition("=")
    if not equals:
        raise SettingsError(f"--set {key} has no value: write --set {key}=VALUE.")
    try:
        return key, yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SettingsError(
            f"--set {key} cannot read {text!r}: check brackets and quotes, e.g. --set {key}=[1, 2]."
        ) from error


def _read_task(
    name: str | None,
    data: Path | None,
    folder: Path | None,
    columns: dict[str, Any],
    settings: "Protocol",
) -> "tuple[Task, NoisyLabels | None]":
    from memloc.data.sources import load_file, load_noisy_file, load_task

    seed = settings.noise.seed
    if name is not None and data is None:
        return load_task(name, folder=folder, seed=seed), None
    if data is None or name is not None:
        raise SettingsError("Name a task, or give a file with --data: one of the two.")
    if columns["original"] is not None:
        return load_noisy_file(data, seed=seed, **columns)
    return load_file(data, seed=seed, **columns), None


def _fewer(
    task: "Task", noisy: "NoisyLabels | None", n: int, settings: "Protocol"
) -> "tuple[Task, NoisyLabels | None]":
    from memloc.data.sources import subsample

    if noisy is not None:
        raise SettingsError("--examples cannot be used with --original: shorten the file instead.")
    return subsample(task, n, settings.noise.seed), None
