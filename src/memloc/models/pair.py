"""Whether two sets of weights are of the same model and mean the same labels."""

from collections.abc import Sequence

from memloc.errors import ModelError
from memloc.models.load import Classifier


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
