"""The contract of a localiser, `score_layers(subject) -> LayerScores`, and how others register."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from memloc.data.encode import Encoded
from memloc.errors import MemlocError, ModelError, StoreError, lookup
from memloc.localise.scores import LayerScores
from memloc.models.load import Classifier
from memloc.protocol import Protocol as Settings
from memloc.records import Examples, IntArray, NoisyLabels
from memloc.train.evaluate import encode_for
from memloc.train.provenance import provenance

ENTRY_POINTS = "memloc.localisers"
"""Other packages register a localiser under this group."""


class Localiser(Protocol):
    """Anything that scores layers. It is called with nothing and has a name and one verb."""

    @property
    def name(self) -> str:
        """What it is called by."""

    @property
    def needs(self) -> tuple[str, ...]:
        """The weights it loads: of pretrained, frozen, reference, memorised, final."""

    def score_layers(self, subject: "Subject") -> LayerScores:
        """How much every layer matters for memorisation."""


@dataclass(frozen=True)
class Subject:
    """What a localiser looks at: training examples with noise, and sets of weights."""

    name: str
    examples: Examples
    noisy: NoisyLabels
    protocol: Settings
    seed: int
    loaders: Mapping[str, Callable[[], Classifier]]
    """How to get each set of weights that is there."""
    work: Path
    """A folder in which half-done work may be kept."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """What identifies data and weights, for results to say."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """For sets of weights that are not there: how to get them."""
    device: str = "cpu"

    def load(self, weights: str) -> Classifier:
        """A fresh copy of these weights, on the device, in evaluation mode."""
        self.require(weights)
        loaded = self.loaders[weights]()
        loaded.model.to(self.device).eval()
        return loaded

    def require(self, weights: str) -> None:
        """Raise where these weights are not there, and say how to get them."""
        if weights not in self.loaders:
            how = self.missing.get(weights, f"give them with --{weights}.")
            raise StoreError(f"There are no {weights} weights for {self.name}: {how}")

    def encode(self, model: Classifier) -> Encoded:
        """The training texts as this model reads them."""
        return encode_for(model, self.examples, self.protocol.text.max_tokens)

    @cached_property
    def noisy_rows(self) -> IntArray:
        """Rows of the noisy examples."""
        return np.flatnonzero(self.noisy.is_noisy)

    @cached_property
    def clean_rows(self) -> IntArray:
        """Rows of the clean examples."""
        return np.flatnonzero(~self.noisy.is_noisy)

    def about(self) -> dict[str, Any]:
        """What a result says of where it came from."""
        return provenance(self.name, self.seed, self.protocol, self.inputs)


def localisers() -> dict[str, Callable[[], Localiser]]:
    """Every method by name: the four of the paper, then those that other packages bring."""
    from memloc.localise.gradients import Gradients
    from memloc.localise.probing import Probing
    from memloc.localise.retraining import Retraining
    from memloc.localise.swapping import Swapping

    ours: dict[str, Callable[[], Localiser]] = {
        kind.name: kind for kind in (Swapping, Retraining, Gradients, Probing)
    }
    return ours | {point.name: _from(point) for point in entry_points(group=ENTRY_POINTS)}


def localiser(name: str) -> Localiser:
    """The method called `name`."""
    return lookup("method", name, localisers())()


def score_layers(subject: Subject, method: str) -> LayerScores:
    """Score the layers of a subject by a method's name."""
    scores = localiser(method).score_layers(subject)
    return replace(scores, about={**subject.about(), **scores.about})


def check_pair(final: Classifier, other: Classifier, what: str) -> None:
    """Refuse two sets of weights that are not of the same model."""
    for name in ("depth", "width"):
        here, there = getattr(final.stack, name), getattr(other.stack, name)
        if here != there:
            raise ModelError(f"The final weights have {name} {here}, the {what} ones {there}.")
    for name in ("vocab_size", "model_type"):
        here, there = getattr(final.model.config, name), getattr(other.model.config, name)
        if here != there:
            raise ModelError(f"The final weights have {name} {here}, the {what} ones {there}.")
    check_labels(final.label_names, other.label_names, what)


def check_labels(final: Sequence[str], other: Sequence[str], what: str) -> None:
    """Refuse weights with other labels, or with the same ones in another order."""
    if len(final) != len(other):
        raise ModelError(
            f"The final weights have num_labels {len(final)}, the {what} ones {len(other)}."
        )
    if _are_defaults(final) or _are_defaults(other):
        return
    for i, (here, there) in enumerate(zip(final, other, strict=True)):
        if here != there:
            raise ModelError(
                f"Label {i} is {here!r} for the final weights and {there!r} for the {what} ones: "
                + _same_labels(same_names=sorted(final) == sorted(other))
            )


def _same_labels(same_names: bool) -> str:
    if same_names:
        return "train both with the labels in one order."
    return "if these mean the same, give them one name in `id2label` of both config.json files."


def _are_defaults(names: Sequence[str]) -> bool:
    """Whether transformers gave these names because nobody else did: they say nothing."""
    return list(names) == [f"LABEL_{i}" for i in range(len(names))]


def _from(point: Any) -> Callable[[], Localiser]:
    def make() -> Localiser:
        try:
            found: Localiser = point.load()()
        except MemlocError:
            raise
        except Exception as error:
            raise ModelError(
                f"Method {point.name!r} of {point.value} could not be made: {error}"
            ) from error
        return found

    return make
