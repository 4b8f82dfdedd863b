"""What can be localised: a run made by memloc, or checkpoints that somebody already has."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

from memloc.localise.base import Subject, check_labels
from memloc.models.device import pick_device
from memloc.models.load import Classifier, load_checkpoint, load_model
from memloc.protocol import Protocol, preset
from memloc.records import Examples, NoisyLabels
from memloc.train.run import CHECKPOINTS, Run


def run_subject(run: Run, device: str = "auto") -> Subject:
    """A run's training examples and weights."""
    task, noisy = run.data()
    loaders = {name: _run_loader(run, name) for name in run.weights()}
    loaders["pretrained"] = lambda: run.load_pretrained(run.seed)
    without = run.about.get("without", {})
    return Subject(
        name=run.name,
        examples=task.train,
        noisy=noisy,
        protocol=run.protocol,
        seed=run.seed,
        loaders=loaders,
        work=run.folder / "localise" / "work",
        inputs=run.inputs,
        missing={n: without.get(n, "`memloc train` makes them.") for n in CHECKPOINTS},
        device=str(pick_device(device)),
    )


@dataclass(frozen=True)
class Weights:
    """Checkpoints that somebody already has; no method needs all of them."""

    final: str
    """The fine-tuned model that memorised (θ_M2)."""
    reference: str | None = None
    """The same, fine-tuned on the original labels (θ_O)."""
    pretrained: str | None = None
    """Before fine-tuning (θ_P): name or folder."""
    memorised: str | None = None
    """At the first epoch with near-ceiling accuracy (θ_M1)."""
    frozen: str | None = None
    """With only the head trained (θ_F)."""

    def labels(self) -> list[str]:
        """The classes that the final model knows, in its order."""
        return load_checkpoint(Path(self.final)).label_names


def checkpoint_subject(
    weights: Weights,
    data: tuple[Examples, NoisyLabels],
    *,
    protocol: Protocol | None = None,
    work: Path = Path("memloc-localise"),
    device: str = "auto",
) -> Subject:
    """Anybody's checkpoints, with the examples that they were trained on."""
    labels = weights.labels()
    given = {f.name: getattr(weights, f.name) for f in fields(weights)}
    loaders = {kind: _loader(kind, place, labels) for kind, place in given.items() if place}
    return Subject(
        name=Path(weights.final).name,
        examples=data[0],
        noisy=data[1],
        protocol=protocol or preset("paper"),
        seed=1,
        loaders=loaders,
        work=work / "work",
        inputs={kind: str(place) for kind, place in given.items()},
        device=str(pick_device(device)),
    )


def _run_loader(run: Run, name: str) -> Callable[[], Classifier]:
    return lambda: run.load(name)


def _loader(kind: str, place: str, labels: list[str]) -> Callable[[], Classifier]:
    if kind == "pretrained":
        return lambda: load_model(place, labels)

    def load() -> Classifier:
        loaded = load_checkpoint(Path(place))
        check_labels(labels, loaded.label_names, kind)
        return loaded

    return load
