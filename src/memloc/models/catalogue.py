"""The models that have a name here; any other Hugging Face classifier works as well."""

import json
from dataclasses import dataclass

from memloc.models import tiny
from memloc.protocol import Protocol, preset


@dataclass(frozen=True)
class ModelRow:
    """A line of `memloc models`."""

    name: str
    layers: str
    width: str
    where: str


def known_models() -> list[ModelRow]:
    """The embedded models, then the paper's."""
    return [*map(_embedded, tiny.NAMES), *_paper()]


def default_protocol(model: str) -> Protocol:
    """The preset that suits a model."""
    return preset("demo" if model in tiny.NAMES else "paper")


def _embedded(name: str) -> ModelRow:
    config = json.loads((tiny.folder(name) / "config.json").read_text(encoding="utf-8"))
    layers = config.get("num_hidden_layers", config.get("num_layers"))
    return ModelRow(name, str(layers), str(config["hidden_size"]), "embedded")


def _paper() -> list[ModelRow]:
    models = preset("paper").models
    small = [ModelRow(name, "12", "768", "hub") for name in models.small]
    return small + [ModelRow(name, "24", "2048", "hub") for name in models.large]
