"""Names of all files and folders that memloc writes."""

from pathlib import Path

OUTCOMES = "outcomes.parquet"
STUDY = "study.yaml"
RUN, LABELS, TRAINING, CURVE = "run.json", "labels.parquet", "training.parquet", "training.png"
STATUS = "status.json"
"""File next to a run's record with its accuracies so far, and its failed attempts."""
CARD = "README.md"
"""Page of a repository of the hub."""
LISTED = "files.json"
"""File in a repository of the hub that lists the run's files with their checksums."""
ADOPTED = "adopted"
"""Folder, in a run from the hub, of the weights that its owner had adopted."""
CHECKPOINTS, RESULTS, WORK = "checkpoints", "results", "work"
ABOUT, PROVENANCE = "about.json", "memloc.json"
"""Files in the folders of results and of weights that say how these were made."""
ANY_TABLE = "*.parquet"
STEPS, LOGS, CALIBRATION = "steps", "logs", "calibration.json"
CONTROL = "control"
"""Folder of a study's planted runs."""
REPORT, FIGURES, TABLES = "report", "figures", "tables"
TRAINER, TRAINER_RECORD, PREDICTIONS = "memloc", "trainer.json", "predictions.parquet"
"""Folder in a Trainer's output folder, and the files in it, that `RunCallback` writes."""
FOUND, SUSPECTS, TO_CORRECT = "found", "suspects.parquet", "suspects.csv"
"""Output of `find`: its folder in a run, the table, and the file to correct by hand."""
REPAIR, REPAIRS = "repair.json", "repair.csv"
RELEARNING, RELEARNING_FIGURE = "relearning.csv", "relearning.svg"
"""Next to a repaired checkpoint: how it was made, how repairs compare, and how they relearn."""
PAGE = "index.html"


def run_folder(out: Path, task: str, model: str, seed: int, depth: int | None = None) -> Path:
    """Return the folder of a run below `out`; a model from a folder has the folder's name.

    Args:
        out: Folder of all runs.
        task: Name of the task.
        model: Name or folder of the model.
        seed: Seed of the run.
        depth: Number of first layers used; all by default.
    """
    name = Path(model).name + (f"-depth-{depth}" if depth else "")
    return out / task / name / f"seed-{seed}"


def plant_folder(out: Path, run: Path, planted: str, *, null: bool) -> Path:
    """Return the folder of a planted run.

    Args:
        out: Folder of the study.
        run: Folder of the same run without a plant.
        planted: Name of the plant.
        null: Whether it is the plant's null.
    """
    kind = "null" if null else "window"
    name = planted.replace("/", "_").replace(":", "-").replace(" ", "-")
    return out / CONTROL / run.relative_to(out) / f"{kind}-{name}"


def checkpoint(run: Path, name: str) -> Path:
    """Return the folder of weights that a run trained."""
    return run / CHECKPOINTS / name


def epoch(number: int | str) -> str:
    """Return the name of the weights kept after an epoch; `*` gives a pattern for all epochs."""
    return f"epoch-{number}"


def training_state(run: Path, *trainings: str) -> Path:
    """Return the file of an unfinished training, or of several that share a pass."""
    return run / CHECKPOINTS / f"{'-'.join(trainings)}.state"


def result(run: Path, method: str) -> Path:
    """Return the folder of a method's result."""
    return run / RESULTS / method


def table(folder: Path, name: str) -> Path:
    """Return the file of one table of a result."""
    return folder / f"{name}.parquet"


def work(run: Path, method: str) -> Path:
    """Return the folder of a method's unfinished work."""
    return run / WORK / method


def kept_windows(folder: Path, first: str) -> Path:
    """Return the file of retrained windows of one pass, named after the first window."""
    return folder / f"windows-{first}.npz"


def kept_models(folder: Path, first: int) -> Path:
    """Return the file of models on halves of one pass, named after the first model."""
    return folder / f"models-{first}.npz"


def kept_batch(folder: Path, number: int) -> Path:
    """Return the file of one batch of examples of a game."""
    return folder / f"batch-{number}.npz"


def kept_donor(folder: Path, donor: str) -> Path:
    """Return the file of a timeline's shares against one donor."""
    return folder / f"against-{donor}.npz"


def kept_repairs(folder: Path, number: int) -> Path:
    """Return the file of one group of repaired models."""
    return folder / f"group-{number}.json"


def page(study: Path) -> Path:
    """Return the path of the report's page."""
    return study / REPORT / PAGE
