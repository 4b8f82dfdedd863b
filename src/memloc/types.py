"""The types in the signatures of public functions, for annotations and documentation."""

from memloc.data.encode import Encoded
from memloc.data.tables import Data
from memloc.data.task import Examples, NoisyLabels, Task
from memloc.labels.find import Suspects
from memloc.labels.repaired import Repaired
from memloc.methods import Sizes
from memloc.methods.apply import Found
from memloc.methods.result import Result
from memloc.model.load import Classifier
from memloc.model.shape import Shape
from memloc.protocol import CommonSettings, RunSettings
from memloc.reporting.results import Results
from memloc.run.records import Accuracies, RunRecord, RunStatus
from memloc.run.spec import PlantSpec, TaskSpec
from memloc.stats.answers import Answer

__all__ = [
    "Accuracies",
    "Answer",
    "Classifier",
    "CommonSettings",
    "Data",
    "Encoded",
    "Examples",
    "Found",
    "NoisyLabels",
    "PlantSpec",
    "Repaired",
    "Result",
    "Results",
    "RunRecord",
    "RunSettings",
    "RunStatus",
    "Shape",
    "Sizes",
    "Suspects",
    "Task",
    "TaskSpec",
]
