"""What planning needs to know of models without loading them: sizes, fingerprints, windows."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from memloc.errors import ModelError, SettingsError
from memloc.identity import hash_checkpoint
from memloc.models import tiny
from memloc.models.known import known_models, no_such_model, source_of
from memloc.protocol import Protocol
from memloc.stats.windows import check_plant, every_window, plant_name, read_plant, usual_plants
from memloc.study.config import ControlBlock


@dataclass(frozen=True)
class Shape:
    """How large a model is."""

    depth: int
    width: int
    vocabulary: int

    @property
    def name(self) -> str:
        """As a key of a JSON object."""
        return f"{self.depth}x{self.width}"

    @property
    def bytes(self) -> float:
        """Of its weights in single precision."""
        return 4.0 * self.parameters

    @property
    def block_parameters(self) -> int:
        """Of all blocks: attention and feed-forward of the usual proportions."""
        return 12 * self.depth * self.width**2

    @property
    def parameters(self) -> int:
        """With the embeddings."""
        return self.block_parameters + self.vocabulary * self.width


@cache
def shape_of(name: str, depth: int | None = None) -> Shape:
    """From the model's configuration: embedded, in a folder, known by name, or on the hub."""
    layers, width, vocabulary = _whole(name)
    if depth is not None and not 1 <= depth <= layers:
        raise SettingsError(
            f"A depth of {depth} was asked for; this model has 1 to {layers} layers."
        )
    return Shape(depth or layers, width, vocabulary)


def _whole(name: str) -> tuple[int, int, int]:
    known = {row.name: row for row in known_models() if row.where == "hub"}
    if name in known and not Path(name).is_dir():
        return int(known[name].layers), int(known[name].width), 50_000
    return _from_config(name, config_of(name))


def config_of(name: str) -> Path:
    """The configuration of a model: embedded, in a folder, or on the hub."""
    source = Path(source_of(name))
    return source / "config.json" if source.is_dir() else _from_hub(name)


def _from_config(name: str, path: Path) -> tuple[int, int, int]:
    try:
        config = dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ModelError(f"{name} is not a model: {path} cannot be read ({error}).") from error
    depth, width, vocabulary = (
        next((config[key] for key in keys if key in config), None)
        for keys in (
            ("num_hidden_layers", "num_layers", "n_layer", "n_layers"),
            ("hidden_size", "n_embd", "dim", "d_model"),
            ("vocab_size",),
        )
    )
    sizes = [n for n in (depth, width, vocabulary or 0) if type(n) is int and n >= 0]
    if len(sizes) < 3:
        raise ModelError(
            f"{path} does not say how many layers {name} has and how wide they are (it has "
            f"{str(depth)[:40]} and {str(width)[:40]}): take it from where the model came from."
        )
    return sizes[0], sizes[1], sizes[2]


def _from_hub(name: str) -> Path:
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(name, "config.json"))
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelError(no_such_model(name, reason)) from error


def model_fingerprint(name: str) -> str:
    """What identifies a model: its name, or what is in its folder wherever that is."""
    local = Path(name).expanduser()
    if name in tiny.NAMES or not local.is_dir():
        return name
    return f"{local.name} {hash_checkpoint(local)}"


def planted_windows(block: ControlBlock, depth: int, protocol: Protocol) -> list[str]:
    """The plants that a block asks for in a model of this depth; each makes a run of its own."""
    found = [plant_name(read_plant(text)) for text in block.windows]
    found += [window for width in block.every for window in every_window(depth, width)]
    for plant in found:
        check_plant(plant, depth)
    return list(dict.fromkeys(found)) or usual_plants(depth, protocol.control.width)
