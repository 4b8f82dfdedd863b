"""Runs localisers on a subject: checks first, then each method, then its file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from memloc.data.own import read_noisy_examples
from memloc.errors import StoreError, TrainingError, lookup
from memloc.localise.base import Subject, localiser, score_layers
from memloc.localise.scores import LayerScores
from memloc.localise.subjects import Weights, checkpoint_subject, run_subject
from memloc.models.check import require_agreement
from memloc.models.device import suitable_threads
from memloc.train.evaluate import predict
from memloc.train.provenance import of_the_same
from memloc.train.run import Run

METHODS = ("swapping", "retraining", "gradients", "probing")
"""The paper's four, which are run where none is named."""


@dataclass(frozen=True)
class Localised:
    """What came out: scores by method, and why a method could not run."""

    scores: dict[str, LayerScores]
    skipped: dict[str, str] = field(default_factory=dict)
    folder: Path = Path()


def localise_run(
    folder: Path, methods: Sequence[str] = (), *, force: bool = False, device: str = "auto"
) -> Localised:
    """Score the layers of a run made by memloc; results are kept in its folder."""
    run = Run.open(Path(folder))
    run.require_memorised(force)
    return localise(run_subject(run, device), run.folder / "localise", methods, force=force)


def localise_checkpoints(  # noqa: PLR0913
    weights: Weights,
    data: Path,
    columns: Mapping[str, str | None],
    *,
    out: Path = Path("memloc-localise"),
    methods: Sequence[str] = (),
    force: bool = False,
    device: str = "auto",
) -> Localised:
    """Score the layers of checkpoints that somebody already has.

    `columns` names the columns of the data file: text, label (as trained on), noisy (true and
    false, or the labels before noise) and, for pairs, pair.
    """
    read = read_noisy_examples(Path(data), known=weights.labels(), **_named(columns))
    subject = checkpoint_subject(weights, read, work=Path(out), device=device)
    return localise(subject, Path(out), methods, force=force)


def _named(columns: Mapping[str, str | None]) -> dict[str, Any]:
    usual = {"text": "text", "label": "label", "noisy": "noisy", "pair": None}
    for name in columns:
        lookup("column", name, usual)
    return usual | dict(columns)


def localise(
    subject: Subject, out: Path, methods: Sequence[str] = (), *, force: bool = False
) -> Localised:
    """Run the methods that were named, or those of the paper whose weights are there."""
    chosen, skipped = _choose(subject, methods)
    noisy_accuracy = _memorised_share(subject, force)
    scores: dict[str, LayerScores] = {}
    for method in chosen:
        path = out / f"{method}.parquet"
        found = _there_already(path, subject)
        if found is None:
            with suitable_threads(subject.load("final").stack.width):
                found = score_layers(subject, method)
            forced = noisy_accuracy < subject.protocol.finetune.noisy_at_least
            mark = {"final_noisy_accuracy": noisy_accuracy, "forced": forced}
            found = replace(found, about={**found.about, **mark})
            found.write(path)
        scores[method] = found
    return Localised(scores, skipped, out)


def _choose(subject: Subject, methods: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    if methods:
        for method in methods:
            for weights in localiser(method).needs:
                subject.require(weights)
        return list(methods), {}
    chosen, skipped = [], {}
    for method in METHODS:
        lacking = [w for w in localiser(method).needs if w not in subject.loaders]
        if lacking:
            skipped[method] = f"needs {' and '.join(lacking)} weights"
        else:
            chosen.append(method)
    if not chosen:
        reasons = "; ".join(f"{method} {why}" for method, why in skipped.items())
        raise StoreError(f"No method can run on {subject.name}: {reasons}.")
    return chosen, skipped


def _memorised_share(subject: Subject, force: bool) -> float:
    """Share of noisy labels that the final weights predict; too little is refused unless forced."""
    final = subject.load("final")
    with suitable_threads(final.stack.width):
        require_agreement(final)
        predicted = predict(final.stack, subject.encode(final)).argmax(1)
    share = float((predicted == subject.noisy.assigned)[subject.noisy.is_noisy].mean())
    needed = subject.protocol.finetune.noisy_at_least
    if share < needed and not force:
        raise TrainingError(
            f"The final weights predict {share:.1%} of the noisy labels, so they did not memorise "
            f"them ({needed:.0%} are needed) and nothing can be localised. Use --force to go on."
        )
    return share


def _there_already(path: Path, subject: Subject) -> LayerScores | None:
    if not path.is_file():
        return None
    found = LayerScores.read(path)
    return found if of_the_same(found.about, subject.about()) else None
