"""From a task and a model to a run's weights."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from memloc import console
from memloc.cli.checks import check_device, check_model, check_training
from memloc.cli.options import (
    AnyFormat,
    AsJson,
    DataFolder,
    Depth,
    Device,
    Fewer,
    ModelName,
    Preset,
    RemoteCode,
    settings_of,
)
from memloc.errors import SettingsError

if TYPE_CHECKING:
    from memloc.protocol import Protocol
    from memloc.records import NoisyLabels, Task


def train(  # noqa: PLR0913, PLR0917 - one option a thing that people vary
    model: ModelName,
    task: Annotated[str | None, typer.Argument(help="Name of a task; or give --data.")] = None,
    seed: Annotated[int, typer.Option(help="Order of the data, initial head, dropout.")] = 1,
    out: Annotated[Path, typer.Option(help="Runs are kept in here.")] = Path("runs"),
    weights: Annotated[
        list[str] | None,
        typer.Option(help="memorised, final, reference or frozen; left out: all."),
    ] = None,
    preset: Preset = None,
    change: Annotated[
        list[str] | None, typer.Option("--set", help="A setting, e.g. finetune.epochs=30.")
    ] = None,
    examples: Fewer = None,
    data_folder: DataFolder = None,
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
    device: Device = "auto",
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
    from memloc.data.sources import subsample
    from memloc.models.catalogue import default_protocol
    from memloc.progress import bars

    settings = settings_of(preset, change, default_protocol(model))
    check_device(device)
    check_model(model, depth)
    columns = {"text": text, "pair": pair, "label": label, "original": original}
    chosen, noisy = _read_task(task, data, data_folder, {**columns, "held_out": held_out}, settings)
    if examples is not None:
        if noisy is not None:
            raise SettingsError(
                "--examples cannot be used with --original: shorten the file instead."
            )
        chosen = subsample(chosen, examples, settings.noise.seed)
    name = Path(model).name + (f"-depth-{depth}" if depth else "")
    folder = out / chosen.name / name / f"seed-{seed}"
    check_training(folder, weights or ())

    from memloc.experiment.alone import expected_of
    from memloc.models.load import Classifier, LoadOptions
    from memloc.train.run import CHECKPOINTS
    from memloc.train.training import Recipe, train_run

    recipe = Recipe(
        model,
        chosen,
        seed,
        settings,
        noisy,  # type: ignore[arg-type]
        LoadOptions(remote_code, any_format, depth),
        device,
    )

    def announce(model: Classifier, left: Mapping[str, int]) -> None:
        console.show_expected(expected_of(recipe, model, left, out))

    with bars():
        run = train_run(recipe, folder, weights or tuple(CHECKPOINTS), announce)
    console.show_run(run, as_json)


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
