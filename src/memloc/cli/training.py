"""From a task and a model, or from checkpoints that are there, to a run."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from memloc import console
from memloc.cli.checks import (
    check_checkpoints,
    check_device,
    check_model,
    check_training,
)
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
    changes_of,
)
from memloc.errors import SettingsError

if TYPE_CHECKING:
    from memloc.protocol import NoiseSettings
    from memloc.records import NoisyTask

Change = Annotated[
    list[str] | None, typer.Option("--set", help="A setting, e.g. finetune.epochs=30.")
]
Text = Annotated[str, typer.Option(help="Own file: column of texts.")]
Pair = Annotated[str | None, typer.Option(help="Own file: column of second texts.")]
Label = Annotated[str, typer.Option(help="Own file: column of labels to train on.")]
HeldOut = Annotated[Path | None, typer.Option(help="Own file: unseen data.")]


def train(  # noqa: PLR0913, PLR0917 - one option for each thing that people vary
    model: ModelName,
    task: Annotated[str | None, typer.Argument(help="Name of a task; or give --data.")] = None,
    seed: Annotated[int, typer.Option(help="Order of the data, initial head, dropout.")] = 1,
    out: Annotated[Path, typer.Option(help="Runs are kept in here.")] = Path("runs"),
    weights: Annotated[
        list[str] | None,
        typer.Option(help="memorised, final, reference or frozen; default: all."),
    ] = None,
    preset: Preset = None,
    change: Change = None,
    examples: Fewer = None,
    data_folder: DataFolder = None,
    data: Annotated[
        Path | None, typer.Option(help="Own file: csv, tsv, jsonl or parquet.", show_default=False)
    ] = None,
    text: Text = "text",
    pair: Pair = None,
    label: Label = "label",
    flip: Annotated[
        float | None, typer.Option(help="Own file: share of the labels to make wrong, e.g. 0.15.")
    ] = None,
    original: Original = None,
    flag: Flag = None,
    held_out: HeldOut = None,
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
    from memloc import paths
    from memloc.models.known import default_preset
    from memloc.protocol import preset as preset_called
    from memloc.run import WEIGHTS

    noise = {"flip": flip, "original": original, "flag": flag}
    _check_source(task, data, noise, examples)
    changes = changes_of(change) | _rate(flip, change)
    protocol = preset_called(preset or default_preset(model)).replace(changes)
    check_device(device)
    check_model(model, depth)
    columns: dict[str, Any] = {"text": text, "pair": pair, "label": label, "held_out": held_out}
    columns |= {"original": original, "flag": flag}
    where = (task, data, data_folder)
    chosen = _read_task(where, columns, protocol.noise, examples)
    folder = paths.run_folder(out, chosen.task.name, model, seed, depth)
    check_training(folder, weights or ())

    from memloc.models.load import Classifier, LoadOptions
    from memloc.progress import bars
    from memloc.study.calibrate import expected_of
    from memloc.training.recipe import Recipe, train_run

    options = LoadOptions(remote_code, any_format, depth)
    recipe = Recipe(model, chosen.task, seed, protocol, chosen.labels, options, device)

    def announce(loaded: Classifier, left: Mapping[str, int]) -> None:
        console.show_expected(expected_of(recipe, loaded, left, out))

    with bars():
        run = train_run(recipe, folder, weights or tuple(WEIGHTS), announce)
    console.show_run(run, protocol.verdict.noisy_at_least, as_json)


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


def _rate(flip: float | None, changes: list[str] | None) -> dict[str, float]:
    """The share of labels to flip as a setting."""
    if flip is None:
        return {}
    if not 0 < flip < 1:
        raise SettingsError(
            f"--flip {flip:g}: a share above 0 and below 1 is needed, such as 0.15."
        )
    if any(change.startswith("noise.rate=") for change in changes or ()):
        raise SettingsError("--flip and --set noise.rate say the same thing: give one of them.")
    return {"noise.rate": flip}


def _read_task(
    where: tuple[str | None, Path | None, Path | None],
    columns: dict[str, Any],
    noise: "NoiseSettings",
    examples: int | None,
) -> "NoisyTask":
    from memloc.data.own import load_csv
    from memloc.data.perturb import add_noise
    from memloc.data.sources import load_task, subsample
    from memloc.records import NoisyTask

    name, data, folder = where
    seed = noise.seed
    if data is None:
        found = load_task(str(name), folder=folder, seed=seed)
    else:
        read = load_csv(data, seed=seed, **columns)
        if isinstance(read, NoisyTask):
            return read
        found = read
    if examples is not None:
        found = subsample(found, examples, seed)
    return add_noise(found, noise.rate, noise.seed, noise.kind)


def adopt(  # noqa: PLR0913, PLR0917 - each is something that people have or do not have
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of the run that is made.")],
    final: Annotated[str, typer.Option(help="Checkpoint that memorised.")],
    data: Annotated[Path, typer.Option(help="The examples that it was trained on.")],
    reference: Annotated[str | None, typer.Option(help="Trained on original labels.")] = None,
    pretrained: Annotated[str | None, typer.Option(help="Before fine-tuning.")] = None,
    memorised: Annotated[str | None, typer.Option(help="At near-ceiling accuracy.")] = None,
    frozen: Annotated[str | None, typer.Option(help="With only the head trained.")] = None,
    text: Text = "text",
    pair: Pair = None,
    label: Label = "label",
    original: Original = None,
    flag: Flag = None,
    held_out: HeldOut = None,
    seed: Annotated[int, typer.Option(help="Of random choices.")] = 1,
    train_missing: Annotated[
        bool, typer.Option(help="Train reference and frozen weights that are not given.")
    ] = False,
    preset: Preset = None,
    change: Change = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Make a run of checkpoints and of the file that they were trained on.

    Everything works on it that works on a run that memloc trained. Checkpoints stay where they
    are and are known by their contents; which methods can run depends on the weights given.

    Example: `memloc adopt runs/mine --final noisy/ --reference clean/ --data train.csv
    --original corrected`
    """
    from memloc.adoption import adopt as adopt_checkpoints
    from memloc.progress import bars
    from memloc.protocol import preset as preset_called

    changes, name = changes_of(change), preset or "paper"
    needed = preset_called(name).replace(changes).verdict.noisy_at_least
    check_device(device)
    check_checkpoints((final, reference, memorised, frozen), pretrained)
    with bars():
        made = adopt_checkpoints(
            run,
            final=final,
            data=data,
            text=text,
            pair=pair,
            label=label,
            original=original,
            flag=flag,
            held_out=held_out,
            reference=reference,
            pretrained=pretrained,
            memorised=memorised,
            frozen=frozen,
            seed=seed,
            preset=name,
            settings=changes,
            train_missing=train_missing,
            device=device,
        )
    console.show_run(made, needed, as_json)
