"""The models that have a name here; any other Hugging Face classifier works as well."""

import json
from dataclasses import dataclass

from memloc.models import tiny

PAPER_MODELS = (
    ("google-bert/bert-base-cased", 12, 768),
    ("facebook/opt-125m", 12, 768),
    ("EleutherAI/gpt-neo-125m", 12, 768),
    ("EleutherAI/pythia-160m-deduped", 12, 768),
    ("facebook/opt-1.3b", 24, 2048),
)
"""Name, layers and width; the last one is of appendix B."""


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


def default_preset(model: str) -> str:
    """The preset that suits a model."""
    return "demo" if model in tiny.NAMES else "paper"


def _embedded(name: str) -> ModelRow:
    config = json.loads((tiny.folder(name) / "config.json").read_text(encoding="utf-8"))
    layers = config.get("num_hidden_layers", config.get("num_layers"))
    return ModelRow(name, str(layers), str(config["hidden_size"]), "embedded")


def _paper() -> list[ModelRow]:
    return [ModelRow(name, str(depth), str(width), "hub") for name, depth, width in PAPER_MODELS]
