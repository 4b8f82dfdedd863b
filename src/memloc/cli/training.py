"""From a task and a model to a run's weights."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from memloc import console
from memloc.cli.options import (
    AnyFormat,
    AsJson,
    DataFolder,
    Depth,
    Device,
    Fewer,
    Flag,
    ModelName,
    Original,
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
    flip: Annotated[
        float | None, typer.Option(help="Own file: share of the labels to make wrong, e.g. 0.15.")
    ] = None,
    original: Original = None,
    flag: Flag = None,
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

    Own data: `memloc train roberta-base --data mine.csv --text review --label stars --flip 0.15`
    with wrong labels that memloc makes, or `--original COLUMN` (labels before noise) or
    `--flag COLUMN` (true where the label is wrong) with those that are there.
    """
    from memloc.data.perturb import add_noise
    from memloc.data.sources import subsample
    from memloc.models.load import LoadOptions
    from memloc.progress import bars
    from memloc.train.training import Recipe, default_protocol, train_run

    noise = {"flip": flip, "original": original, "flag": flag}
    _check_source(task, data, noise, examples)
    settings = settings_of(preset, [*(change or ()), *_rate(flip, change)], default_protocol(model))
    columns = {"text": text, "pair": pair, "label": label, "held_out": held_out}
    columns |= {"original": original, "flag": flag} if data and flip is None else {}
    chosen, noisy = _read_task(task, data, data_folder, columns, settings)
    if examples is not None:
        chosen = subsample(chosen, examples, settings.noise.seed)
    if flip is not None:
        noisy = add_noise(chosen, flip, settings.noise.seed, settings.noise.kind)
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
    only = {"weights": weights} if weights else {}
    with bars():
        run = train_run(recipe, out / chosen.name / name / f"seed-{seed}", **only)
    console.show_run(run, as_json)


def _check_source(
    task: str | None, data: Path | None, noise: dict[str, Any], examples: int | None
) -> None:
    """One source of texts; for a file of one's own, one way to say which labels are wrong."""
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
            f"Say in one way which labels of {data} are wrong: --flip 0.15 makes that share of "
            "them wrong, --original COLUMN names the labels before noise, --flag COLUMN a column "
            "that is true or 1 where the label is wrong."
        )
    if examples is not None and given and given[0] != "--flip":
        raise SettingsError(f"--examples cannot be used with {given[0]}: shorten the file instead.")


def _rate(flip: float | None, changes: list[str] | None) -> list[str]:
    """The share of labels to flip as a setting."""
    if flip is None:
        return []
    if not 0 < flip < 1:
        raise SettingsError(
            f"--flip {flip:g}: a share above 0 and below 1 is needed, such as 0.15."
        )
    if any(change.startswith("noise.rate=") for change in changes or ()):
        raise SettingsError("--flip and --set noise.rate say the same thing: give one of them.")
    return [f"noise.rate={flip}"]


def _read_task(
    name: str | None,
    data: Path | None,
    folder: Path | None,
    columns: dict[str, Any],
    settings: "Protocol",
) -> "tuple[Task, NoisyLabels | None]":
    from memloc.data.sources import load_file, load_noisy_file, load_task

    seed = settings.noise.seed
    if data is None:
        return load_task(str(name), folder=folder, seed=seed), None
    if "flag" in columns:
        return load_noisy_file(data, seed=seed, **columns)
    return load_file(data, seed=seed, **columns), None
