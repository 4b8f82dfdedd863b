"""A plant: the layers that the noisy task of a run may change, and the task that changes all."""

from dataclasses import dataclass

from memloc.data.task import Task, hash_examples
from memloc.protocol import ControlSettings
from memloc.run.folder import PlantRecord
from memloc.stats.windows import plant_name, read_plant


@dataclass(frozen=True)
class Plant:
    """Where the noisy task may change a model, and the task that changes it everywhere."""

    planted: str
    """Layers from 1, such as 6-7, 2+9, or 2-3/9-10 for two groups of noisy examples."""
    auxiliary: Task
    """Trained in turns with it, with its original labels."""
    null: bool = False
    """Nothing is memorised: the labels are the original ones, learnt in another order."""

    def record(self, settings: ControlSettings) -> PlantRecord:
        """What identifies it, for a run to say."""
        return PlantRecord(
            planted=plant_name(read_plant(self.planted)),
            null=self.null,
            auxiliary=self.auxiliary.name,
            auxiliary_data=hash_examples(self.auxiliary.train),
            auxiliary_learning_rate=settings.auxiliary_learning_rate,
            trains_pooler_and_norm=settings.trains_pooler_and_norm,
            frozen_with_auxiliary=settings.frozen_with_auxiliary,
        )
