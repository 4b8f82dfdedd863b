"""Models that memloc knows by name; any other Hugging Face classifier works as well."""

import json
from dataclasses import dataclass
from pathlib import Path

from memloc.data import hub
from memloc.errors import ModelError, SettingsError, in_words, lookup, nearest

TINY: tuple[str, ...] = ("tiny-bert", "tiny-opt", "tiny-gpt-neo", "tiny-gpt-neox")
"""Embedded models: four families, twelve layers each, small enough to be part of the package."""
ADAPTER = "adapter_config.json"
"""File that marks a folder as an adapter."""


@dataclass(frozen=True)
class ModelRow:
    """A row of `memloc models`."""

    name: str
    layers: str
    width: str
    where: str


KNOWN = (
    *(ModelRow(name, "12", "64", "embedded") for name in TINY),
    ModelRow("google-bert/bert-base-cased", "12", "768", "hub"),
    ModelRow("facebook/opt-125m", "12", "768", "hub"),
    ModelRow("EleutherAI/gpt-neo-125m", "12", "768", "hub"),
    ModelRow("EleutherAI/pythia-160m-deduped", "12", "768", "hub"),
    ModelRow("facebook/opt-1.3b", "24", "2048", "hub"),
)
"""The embedded models, then those of the paper; the last one is from its appendix B."""


def tiny_folder(name: str) -> Path:
    """Return the folder of an embedded model, in the format of `save_pretrained`."""
    home = Path(__file__).parent / "tiny"
    return lookup("embedded model", name, {known: home / known for known in TINY})


def default_preset(model: str) -> str:
    """Return the name of the preset that suits a model."""
    return "demo" if model in TINY else "paper"


def place_of(name: str) -> str:
    """Return where a model is loaded from: a local folder, or else its name on the hub."""
    if name.startswith("tiny-") and not Path(name).is_dir():
        return str(tiny_folder(name))
    path = Path(name).expanduser()
    if path.is_dir():
        _refuse_folder(name, path)
        return str(path)
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ModelError(
            f"There is no folder {name}; give a folder with config.json or a hub name."
        )
    return name


def checkpoint_folder(folder: Path) -> None:
    """Refuse a folder that holds neither a model nor an adapter."""
    if not folder.is_dir():
        raise ModelError(f"There is no folder {folder}; give one that `save_pretrained` wrote.")
    if not is_adapter(folder):
        _refuse_folder(str(folder), folder)


def refuse_language_model(folder: Path) -> None:
    """Refuse a causal language model where labels are asked about, and say how texts are.

    A configuration that cannot be read is left to whatever loads the model.
    """
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        names = [str(name) for name in config["architectures"]]
    except (OSError, ValueError, KeyError, TypeError):
        return
    if any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in names):
        raise ModelError(
            f"{folder} is a language model ({names[0]}), which has texts and no labels. Where "
            "labels are asked about, give a classifier. To ask about texts, name their columns "
            "with --prompt COLUMN (prompt=) and --continuation COLUMN (continuation=), or give "
            "--tokens NUMBER (tokens=) to recall the end of whole texts, and with --flag COLUMN "
            "(flag=) which of them may be memorised."
        )


def is_adapter(folder: Path) -> bool:
    """Return whether a folder holds an adapter rather than a model."""
    return (folder / ADAPTER).is_file()


def adapter_base(folder: Path) -> str:
    """Return the base model named in an adapter's configuration."""
    try:
        name = json.loads((folder / ADAPTER).read_text(encoding="utf-8"))["base_model_name_or_path"]
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{folder / ADAPTER} is damaged: {in_words(error)}.") from error
    if not isinstance(name, str) or not name:
        raise ModelError(f"{folder / ADAPTER} does not name its base model: give --pretrained.")
    return name


def start_of(final: Path, pretrained: str | Path | None, *, needed: bool) -> str | Path | None:
    """Return the pre-trained weights that were given, or else the base model of an adapter."""
    if pretrained is None and is_adapter(final):
        return adapter_base(final)
    if needed and pretrained is None:
        raise SettingsError("--train-missing starts from pre-trained weights: give --pretrained.")
    return pretrained


def _refuse_folder(name: str, folder: Path) -> None:
    if is_adapter(folder):
        raise ModelError(
            f"{name} holds an adapter (PEFT) where a model is needed: give its base model "
            f"({adapter_base(folder)}), or merge the two and save the result "
            "(`model.merge_and_unload().save_pretrained(...)`)."
        )
    has_weights = any(folder.glob("*.safetensors")) or any(folder.glob("*.bin"))
    if not has_weights and (gguf := next(folder.glob("*.gguf"), None)):
        raise ModelError(
            f"{name} holds {gguf.name}, weights in llama.cpp's format GGUF, which memloc does not "
            "read: give the model that it was converted from, with config.json and safetensors."
        )
    if not (folder / "config.json").is_file():
        raise ModelError(f"{name} is not a model folder: it has no config.json.")


def no_such_model(name: str, reason: str) -> str:
    """Return the error message for a name that is neither a folder nor a model on the hub."""
    known = {row.name for row in KNOWN}
    near = "" if name in known else nearest(name, known)
    why = hub.unreachable() or reason
    return (
        f"Model {name!r} is no folder here, and the hub did not give it ({why}).{near} Without "
        "access to the hub, give the path of a folder that `save_pretrained` wrote."
    )
