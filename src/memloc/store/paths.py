"""Every file and folder that memloc writes, by its place."""

from pathlib import Path

OUTCOMES = "outcomes.parquet"
STUDY = "study.yaml"
RUN, LABELS, TRAINING, CURVE = "run.json", "labels.parquet", "training.parquet", "training.png"
STATUS = "status.json"
"""Next to a run's record: what became of the run."""
LISTED = "files.json"
"""In a repository of the hub: the run's files with their checksums."""
ADOPTED = "adopted"
"""In a run from the hub: weights that its owner had adopted."""
CHECKPOINTS, RESULTS, WORK = "checkpoints", "results", "work"
ABOUT, PROVENANCE = "about.json", "memloc.json"
"""In the folders of results and of weights: how these came to be."""
ANY_TABLE = "*.parquet"
STEPS, LOGS, CALIBRATION = "steps", "logs", "calibration.json"
CONTROL = "control"
"""The folder of a study with its planted runs."""
REPORT = "report"
TRAINER, TRAINER_RECORD, PREDICTIONS = "memloc", "trainer.json", "predictions.parquet"
"""In the output folder of a Hugging Face Trainer: what `RunCallback` kept, and its record."""
FOUND, SUSPECTS, TO_CORRECT = "found", "suspects.parquet", "suspects.csv"
"""What `find` leaves: its folder in a run, the table, and the file to correct by hand."""
REPAIR, REPAIRS = "repair.json", "repair.csv"
RELEARNING, RELEARNING_FIGURE = "relearning.csv", "relearning.svg"
"""Next to a repaired checkpoint: how it was made, how repairs compare, and how they relearn."""
PAGE = "index.html"


def run_folder(out: Path, task: str, model: str, seed: int, depth: int | None = None) -> Path:
    """Where a run is kept below `out`; a model from a folder is called like the folder."""
    name = Path(model).name + (f"-depth-{depth}" if depth else "")
    return out / task / name / f"seed-{seed}"


def plant_folder(out: Path, run: Path, planted: str, *, null: bool) -> Path:
    """Where a planted run is kept; `run` is where the same run without a plant would be."""
    kind = "null" if null else "window"
    name = planted.replace("/", "_").replace(":", "-").replace(" ", "-")
    return out / CONTROL / run.relative_to(out) / f"{kind}-{name}"


def checkpoint(run: Path, weights: str) -> Path:
    """A set of weights that a run made."""
    return run / CHECKPOINTS / weights


def epoch(number: int | str) -> str:
    """The name of the weights that are kept after an epoch; `*` for the pattern of all."""
    return f"epoch-{number}"


def training_state(run: Path, *trainings: str) -> Path:
    """A training that is not finished, or several that are carried out as one."""
    return run / CHECKPOINTS / f"{'-'.join(trainings)}.state"


def result(run: Path, method: str) -> Path:
    """The tables that a method left."""
    return run / RESULTS / method


def table(folder: Path, name: str) -> Path:
    """One table of a result."""
    return folder / f"{name}.parquet"


def work(run: Path, method: str) -> Path:
    """What a method keeps of half-done work."""
    return run / WORK / method


def kept_windows(folder: Path, first: str) -> Path:
    """Outcomes of retrained windows that were trained in one pass, named after the first window."""
    return folder / f"windows-{first}.npz"


def kept_models(folder: Path, first: int) -> Path:
    """Answers of models on halves that were trained in one pass, named after the first model."""
    return folder / f"models-{first}.npz"


def kept_batch(folder: Path, number: int) -> Path:
    """Values of one batch of examples for `shares`."""
    return folder / f"batch-{number}.npz"


def kept_donor(folder: Path, donor: str) -> Path:
    """Shares of a timeline against one donor."""
    return folder / f"against-{donor}.npz"


def kept_repairs(folder: Path, number: int) -> Path:
    """What became of one group of repaired models."""
    return folder / f"group-{number}.json"


def page(study: Path) -> Path:
    """The report."""
    return study / REPORT / PAGE
