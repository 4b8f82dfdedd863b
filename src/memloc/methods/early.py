"""Chooses the best early epoch as a donor, for runs that have no reference.

Clean labels are mostly learnt before noisy ones. The epoch that predicts many clean labels and few
noisy ones is therefore much like a model that never saw the noise.
"""

from dataclasses import dataclass

import numpy as np

from memloc.methods.result import Result
from memloc.model.device import suitable_threads
from memloc.run.folder import Run
from memloc.store import paths

LEAST_GAP = 0.3
"""Clean minus noisy accuracy below which no epoch can replace a reference."""

COMPARED = (
    "In 12 runs of the embedded models, layer shares by such a donor had a correlation of 0.72 to "
    "0.99 (median 0.95) with those by a reference; in 7 runs of a real encoder, of -0.80 to 0.99 "
    "(median -0.00): train a reference before you rely on the layers."
)
"""Sentence on how answers by early donors compared with those by references.

The comparisons are in `studies/tables/timeline/donors.csv` and `studies/tables/evidence`.
"""


@dataclass(frozen=True)
class EarlyDonor:
    """A kept epoch, with the shares of noisy and clean labels that it predicts."""

    epoch: int
    noisy: float
    clean: float

    @property
    def gap(self) -> float:
        """Clean minus noisy accuracy."""
        return self.clean - self.noisy

    def __str__(self) -> str:
        return (
            f"epoch {self.epoch}, which predicts {self.clean:.0%} of the clean labels and "
            f"{self.noisy:.0%} of the noisy ones"
        )

    @property
    def checkpoint(self) -> str:
        """Name of the epoch's weights in the run."""
        return paths.epoch(self.epoch)


def early_donor(run: Run) -> EarlyDonor | None:
    """Return the kept epoch with the largest clean minus noisy accuracy; None without any."""
    donors = [_measured(run, epoch) for epoch in run.epochs()]
    return max(donors, key=lambda donor: donor.gap) if donors else None


def early_sentence(run: Run, donor: str, found: Result) -> str:
    """Return a sentence on what an early donor undid and damaged, and on how far to trust such
    answers.

    It is empty for other donors.
    """
    epochs = {paths.epoch(epoch): epoch for epoch in run.epochs()}
    if donor not in epochs:
        return ""
    undone, damaged = _lost(found)
    return (
        f"The donor is {_measured(run, epochs[donor])}. Exchanging all layers with it undoes "
        f"{undone:.0%} of the noisy labels and {damaged:.0%} of the clean ones. {COMPARED}"
    )


def _lost(found: Result) -> tuple[float, float]:
    """Return the shares of noisy and of clean labels lost by exchanging all layers."""
    if "labels" in found.tables:
        lost = found["labels"].groupby("is_noisy")["lost"].mean()
        return float(lost[True]), float(lost[False])
    windows = found["windows"]
    widest = int(np.argmax((windows["last"] - windows["first"]).to_numpy()))
    return float(windows["error"].iloc[widest]), float(windows["clean_error"].iloc[widest])


def _measured(run: Run, epoch: int) -> EarlyDonor:
    """Return a kept epoch with its accuracies, from the training curve or measured now.

    For texts they are shares of the tokens that the final model predicts: hardly any ordinary text
    is recalled as a whole.
    """
    if run.task.is_texts:
        return EarlyDonor(epoch, *_tokens_said(run, paths.epoch(epoch)))
    curve = run.training()
    row = curve[(curve["training"] == "noisy") & (curve["epoch"] == epoch)]
    if len(row):
        return EarlyDonor(epoch, *(float(row[f"{k}_accuracy"].iloc[0]) for k in ("noisy", "clean")))
    from memloc.model.predict import predict

    loaded = run.load(paths.epoch(epoch))
    with suitable_threads(run.record.width):
        predicted = np.asarray(predict(loaded.stack, run.encode(loaded)).argmax(1))
    right = predicted == run.noisy.assigned
    rows = run.noisy_rows, run.clean_rows
    return EarlyDonor(epoch, *(float(right[some].mean()) for some in rows))


def _tokens_said(run: Run, checkpoint: str) -> tuple[float, float]:
    """Return the share of the final model's tokens that an epoch predicts, of noisy and of clean
    texts.
    """
    from memloc.model.predict import continued

    predicted = []
    for name in ("final", checkpoint):
        loaded = run.load(name)
        with suitable_threads(run.record.width):
            predicted.append(continued(loaded.stack, run.encode(loaded)).is_said)
        del loaded
    final, early = predicted
    noisy, clean = (
        float((early & final)[rows].sum() / max(1, final[rows].sum()))
        for rows in (run.noisy_rows, run.clean_rows)
    )
    return noisy, clean
