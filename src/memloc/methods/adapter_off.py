"""An adapter is switched off in some layers: a baseline that takes no second fine-tuning."""

from typing import TYPE_CHECKING

from memloc.errors import DataError
from memloc.methods.swapping import Swapping
from memloc.models.known import is_adapter

if TYPE_CHECKING:
    from memloc.run import Run


class AdapterOff(Swapping):
    """Puts windows of the base model's layers into the final one; runs where it is named.

    The base model never learnt the task, so clean labels are lost as well: what counts is how many
    more noisy ones are.
    """

    name = "adapter_off"
    needs = ("final", "pretrained")
    version = 1

    def check(self, run: "Run") -> None:
        """Without an adapter there is nothing to switch off."""
        if not is_adapter(run.path("final")):
            raise DataError(
                f"The final weights of {run.name} are not an adapter, so there is nothing to "
                "switch off: use swapping or shares with a reference."
            )
