"""Commands for studies of many runs, and for their results."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from memloc.cli import console
from memloc.cli.options import (
    AsJson,
    Constants,
    DataFolder,
    Depth,
    Fewer,
    Marked,
    Plants,
    option_by_option,
)
from memloc.errors import SettingsError
from memloc.progress import say, showing_bars
from memloc.store import paths

if TYPE_CHECKING:
    from memloc.reporting.results import Results
    from memloc.study.execute import Execution

StudyFolder = Annotated[Path, typer.Argument(help="Folder with a study.yaml.")]
Jobs = Annotated[int | None, typer.Option(help="Number of parallel steps. Default: one per core.")]


def init(
    example: Annotated[str, typer.Argument(help="demo, small, paper or sequences.")],
    folder: Annotated[Path | None, typer.Argument(help="Default: named like the example.")] = None,
) -> None:
    """Write a commented study.yaml to start from.

    Example: `memloc init demo`
    """
    from memloc.study.config import init_study

    path = init_study(example, folder)
    say(f"{path} is written; next: memloc plan {path.parent}")


def plan(
    study: StudyFolder,
    jobs: Jobs = None,
    steps: Annotated[bool, typer.Option("--steps", help="List every step.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the steps of a study, how many are done, and what the rest will cost.

    Example: `memloc plan demo`
    """
    from memloc.study.execute import open_study
    from memloc.study.view import plan_rows, plan_sentences, step_rows

    opened = open_study(study, jobs=jobs)
    every = step_rows(opened)
    shown = [every] if steps else []
    console.show(as_json, every, *shown, plan_rows(opened), "", *plan_sentences(opened))


def run(  # noqa: PLR0913, PLR0917 - one option for each thing that people vary
    study: StudyFolder,
    jobs: Jobs = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Run matching steps and their dependencies."),
    ] = None,
    retry: Annotated[
        bool, typer.Option("--retry", help="Repeat steps that failed before.")
    ] = False,
    on: Annotated[str, typer.Option(help="Where to run: local or ray.")] = "local",
    address: Annotated[
        str | None, typer.Option(help="Address of the Ray cluster, e.g. auto.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run the missing steps of a study in parallel; continue where it stopped.

    Example: `memloc run demo --only "localise tiny-topic" --only plant`
    """
    from memloc.store.lock import STUDY, locked
    from memloc.study.execute import open_study, page_of
    from memloc.study.view import end_record, end_sentences, shown

    opened = open_study(study, jobs=jobs, only=only or (), retry=retry, on=on, address=address)
    with locked(opened.plan.file.folder, STUDY):  # until its report is written
        with shown() as watch:
            ended = opened.run(watch)
        console.show(as_json, end_record(ended), *end_sentences(ended))
        report = page_of(ended)
    if report is not None and not as_json:
        say("")
        console.show_report(report, as_json)
    if ended.count("failed"):
        raise typer.Exit(1)


def status(study: StudyFolder, as_json: AsJson = False) -> None:
    """Show how far a study is, from any terminal.

    Example: `memloc status demo`
    """
    from memloc.study.view import status_sentences, study_status

    facts = study_status(study)
    console.show(as_json, facts, *status_sentences(facts))


def logs(
    study: StudyFolder,
    step: Annotated[
        str, typer.Argument(help="Name of a step; `memloc plan STUDY --steps` lists them.")
    ],
) -> None:
    """Print the log of a step.

    Example: `memloc logs demo train/tiny-topic/tiny-opt/seed-1`
    """
    from memloc.study.view import read_log

    say(read_log(study, step).removesuffix("\n"))


PlantedTask = Annotated[
    list[str] | None, typer.Option(help="Task whose noise is planted; or give --data.")
]


@option_by_option
def control(  # noqa: PLR0913 - one option for each thing that people vary
    model: Annotated[list[str], typer.Option(help="Embedded name, hub name or folder.")],
    task: PlantedTask = None,
    *,
    plants: Plants,
    own: Marked,
    out: Annotated[Path, typer.Option(help="Folder of the study that is written.")] = Path(
        "control"
    ),
    seed: Annotated[int | None, typer.Option(help="Model seed. Default: the preset's.")] = None,
    constants: Constants,
    examples: Fewer = None,
    data_folder: DataFolder = None,
    depth: Depth = None,
    as_json: AsJson = False,
) -> None:
    """Plant memorisation in known layers and see which methods find it.

    The noisy task may change only a window of layers; another task changes all of them. This
    writes a small study into a folder and runs it; `memloc run` continues it.

    Example: `memloc control --model tiny-opt --task tiny-topic --method swapping`

    Texts: `memloc control --model tiny-opt --data texts.csv --prompt start --continuation
    rest --flag memorised --window 6-7` plants texts; ordinary ones change all layers.
    """
    from memloc.study.execute import open_study
    from memloc.study.plan import control_plan

    seeded = {} if seed is None else {"control.seed": seed}
    data = _own_data(task, own)
    study: dict[str, Any] = {
        "preset": constants.preset,
        "overrides": _used(constants.changes, plants.methods) | seeded,
        "models": model,
        "tasks": [*(task or ()), *data],
        "data": data,
        "examples": examples,
        "depth": depth,
        "device": constants.device,
        "data_folder": None if data_folder is None else str(data_folder.resolve()),
    }
    opened = open_study(control_plan(out, study, asdict(plants)))
    _plant_and_show(opened, out, console.show_control, as_json)


def board(
    method: Annotated[
        list[str] | None,
        typer.Option(help="A localiser, or module:Class of your own. Default: all of them."),
    ] = None,
    small: Annotated[bool, typer.Option("--small", help="Only six plants, and no nulls.")] = False,
    jobs: Jobs = None,
    out: Annotated[Path, typer.Option(help="Folder of the study that is written.")] = Path("board"),
    as_json: AsJson = False,
) -> None:
    """Compare localisers on a frozen set of easy and hard plants.

    This writes a study into a folder and runs it; the same command continues it.

    Example: `memloc board --method my_package.method:MyMethod --small`
    """
    from memloc.study.board import board_plan
    from memloc.study.execute import open_study
    from memloc.study.view import plan_sentences

    study = open_study(board_plan(out, method or (), small=small), jobs=jobs)
    for sentence in plan_sentences(study):
        say(sentence, sys.stderr)
    _plant_and_show(study, out, console.show_board, as_json)


def _plant_and_show(
    opened: "Execution", out: Path, show: Callable[["Results", bool], None], as_json: bool
) -> None:
    """Run a study of plants and show its results; exit with code 1 if a step failed or none can
    run.
    """
    from memloc.reporting.results import load_results
    from memloc.study.view import failures, shown

    with shown() as watch:
        ended = opened.run(watch)
    for sentence in failures(ended):
        say(sentence, sys.stderr)
    results = load_results(out)
    show(results, as_json)
    if ended.count("failed") or not results.plants["used"].any():
        raise typer.Exit(1)


def _own_data(tasks: list[str] | None, own: Marked) -> dict[str, Any]:
    """Return the user's file to plant, by its name, in the form of a study file."""
    from memloc.protocol import NoiseSettings

    if own.data is None and not tasks:
        raise SettingsError("Say what is planted: a task with --task, or a file with --data.")
    if own.data is None:
        return {}
    files = {"file": own.data, "held_out": own.held_out}
    whole = {name: str(path.resolve()) for name, path in files.items() if path is not None}
    columns = {name: column for name, column in own.columns.items() if name != "held_out"}
    flip = {} if own.is_marked else {"flip": NoiseSettings().rate}
    given = {name: value for name, value in columns.items() if value is not None}
    return {own.data.name.split(".")[0]: {**given, **whole, **flip}}


def _used(changes: dict[str, Any], chosen: Sequence[str] | None) -> dict[str, Any]:
    """Return the settings; refuse settings of methods that are not tried on the plants."""
    from memloc.methods.protocol import preset
    from memloc.methods.registry import methods
    from memloc.protocol import refuse_idle

    if chosen:
        others = {*methods()} - {*chosen}
        used = [key for key in preset("paper").flat() if key.split(".")[0] not in others]
        unknown = {key for key in changes if key not in preset("paper").flat()}
        refuse_idle(changes, {*used, *unknown}, " and ".join(chosen))
    return changes


AnyFolder = Annotated[Path, typer.Argument(help="Folder of a study or of one run.")]


def figures(
    study: AnyFolder,
    file_format: Annotated[str, typer.Option("--format", help="png, svg or pdf.")] = "png",
    only: Annotated[list[str] | None, typer.Option(help="Name of a figure, e.g. layers.")] = None,
    out: Annotated[Path | None, typer.Option(help="Default: report/figures in the study.")] = None,
    as_json: AsJson = False,
) -> None:
    """Draw every figure of a study, one file for each model, task and method.

    Example: `memloc figures runs --format svg --only layers`
    """
    from memloc.reporting.figures import write_figures
    from memloc.reporting.results import load_results

    folder = study / paths.REPORT / paths.FIGURES if out is None else out
    with showing_bars():
        written, missing = write_figures(load_results(study), folder, file_format, only or ())
    console.show_files(folder, written, [figure.name for figure in missing], as_json)


def tables(
    study: AnyFolder,
    file_format: Annotated[
        str, typer.Option("--format", help="csv, parquet, markdown or latex.")
    ] = "csv",
    only: Annotated[list[str] | None, typer.Option(help="Name of a table, e.g. mcog.")] = None,
    out: Annotated[Path | None, typer.Option(help="Default: report/tables in the study.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write every table of a study, ready for a paper.

    Example: `memloc tables runs --format latex`
    """
    from memloc.reporting.results import load_results
    from memloc.reporting.tables import write_tables

    folder = study / paths.REPORT / paths.TABLES if out is None else out
    written, missing = write_tables(load_results(study), folder, file_format, only or ())
    console.show_files(folder, written, [table.name for table in missing], as_json)


def report(
    study: AnyFolder,
    out: Annotated[
        Path | None, typer.Option(help="Default: report/index.html in the study.")
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write one page with all results; it opens in any browser, without a network.

    Example: `memloc report runs --open`
    """
    from memloc.reporting.page import write_report

    written = write_report(study, out)
    console.show_report(written, as_json)
    if show and typer.launch(written.path.resolve().as_uri()):
        say("No browser could be started: open that file yourself.", sys.stderr)
