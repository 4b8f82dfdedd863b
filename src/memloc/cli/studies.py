"""Studies: many runs from one file."""

from pathlib import Path
from typing import Annotated

import typer

from memloc import console
from memloc.cli.options import AsJson

StudyFolder = Annotated[Path, typer.Argument(help="Folder with a study.yaml.")]
Jobs = Annotated[int | None, typer.Option(help="Steps at the same time. Default: one per core.")]


def init(
    example: Annotated[str, typer.Argument(help="demo, small or paper.")],
    folder: Annotated[Path | None, typer.Argument(help="Default: named like the example.")] = None,
) -> None:
    """Write a commented study.yaml to start from.

    Example: `memloc init demo`
    """
    from memloc.study.manage import init_study

    path = init_study(example, folder)
    typer.echo(f"{path} is written; next: memloc plan {path.parent}")


def plan(
    study: StudyFolder,
    jobs: Jobs = None,
    steps: Annotated[bool, typer.Option("--steps", help="List every step.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a study consists of, what is done, and what the rest will cost.

    Example: `memloc plan demo`
    """
    from memloc.study.manage import checked_jobs, estimate_study, open_plan, study_states
    from memloc.study.view import plan_rows, plan_sentences, step_rows

    found, at_once = open_plan(study), checked_jobs(jobs)
    states, expected = study_states(found), estimate_study(found, jobs)
    if steps or as_json:
        console.show_rows(step_rows(found, states, expected), as_json)
    if not as_json:
        console.show_rows(plan_rows(found, states, expected), as_json)
        typer.echo("\n" + "\n".join(plan_sentences(found, states, expected, at_once)))


def run(  # noqa: PLR0913, PLR0917 - one option for each thing that people vary
    study: StudyFolder,
    jobs: Jobs = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Only steps whose names have these words, and what they need."),
    ] = None,
    retry: Annotated[
        bool, typer.Option("--retry", help="Repeat steps that failed before.")
    ] = False,
    on: Annotated[str, typer.Option(help="Where: local or ray.")] = "local",
    address: Annotated[
        str | None, typer.Option(help="Address of the Ray cluster, e.g. auto.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run what is missing of a study, in parallel; continue where it stopped.

    Example: `memloc run demo --only "localise tiny-topic" --only report`
    """
    from memloc.reporting.page import read_report
    from memloc.study.manage import Options, checked_jobs, open_plan, run_study
    from memloc.study.view import View, end_sentences, progress_record

    at_once = checked_jobs(jobs)
    with View() as view:
        progress = run_study(study, Options(jobs, only or (), retry, on, address), view)
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


def status(study: StudyFolder, as_json: AsJson = False) -> None:
    """Show how far a study is, from any terminal.

    Example: `memloc status demo`
    """
    from memloc.study.manage import study_status
    from memloc.study.view import status_sentences

    found = study_status(study)
    if as_json:
        console.show_record(found, as_json)
    else:
        typer.echo("\n".join(status_sentences(found)))


def logs(
    study: StudyFolder,
    step: Annotated[str, typer.Argument(help="Name of a step; `memloc plan --steps` lists them.")],
) -> None:
    """Print the log of a step.

    Example: `memloc logs demo train/tiny-topic/tiny-opt/seed-1`
    """
    from memloc.study.manage import read_log

    typer.echo(read_log(study, step), nl=False)
