"""Where models are, found without loading torch; names that lead nowhere are refused."""

import difflib
from pathlib import Path

from memloc.errors import ModelError
from memloc.models import tiny
from memloc.models.known import known_models


def source_of(name: str) -> str:
    """What a model is loaded from: a folder that holds one, or else its name on the hub."""
    if name.startswith("tiny-") and not Path(name).is_dir():
        return str(tiny.folder(name))
    looks_local = name.startswith((".", "/", "~")) or name.count("/") > 1
    path = Path(name).expanduser()
    if path.is_dir():
        _refuse_folder(name, path)
        return str(path)
    if looks_local:
        raise ModelError(
            f"There is no folder {name}; give a folder with config.json or a hub name."
        )
    return name


def checkpoint_folder(folder: Path) -> None:
    """Refuse what is no folder with a model."""
    if not folder.is_dir():
        raise ModelError(f"There is no folder {folder}; give one that `save_pretrained` wrote.")
    _refuse_folder(str(folder), folder)


def _refuse_folder(name: str, folder: Path) -> None:
    if (folder / "adapter_config.json").is_file():
        raise ModelError(
            f"{name} holds an adapter (PEFT), which memloc does not read: merge it into its base "
            "model and save that (`model.merge_and_unload().save_pretrained(...)`)."
        )
    if not (folder / "config.json").is_file():
        raise ModelError(f"{name} is not a model folder: it has no config.json.")


def no_such_model(name: str, reason: str) -> str:
    """The sentence for a name that is no folder and that the hub does not give."""
    known = [row.name for row in known_models()]
    near = "".join(f" Did you mean {n!r}?" for n in difflib.get_close_matches(name, known, n=1))
    return (
        f"Model {name!r} is no folder here, and the hub did not give it.{near} Without access to "
        f"the hub, give the path of a folder that `save_pretrained` wrote. (Hub: {reason})"
    )
