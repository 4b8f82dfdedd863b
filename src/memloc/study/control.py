"""The control set-up as a study: plant memorisation where we know it is, and see who finds it."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memloc import paths
from memloc.errors import SettingsError, StoreError
from memloc.models.known import default_preset
from memloc.records import whole_file
from memloc.study.checks import check_names
from memloc.study.config import parse_study, read_study


def control_study(out: Path, study: Mapping[str, Any], block: Mapping[str, Any]) -> Path:
    """Write a study that does nothing but plant; its folder is returned.

    What is None is left to the study's defaults. A folder with another study is refused.
    """
    import yaml

    models = [_found(model) for model in study["models"]]
    preset = study["preset"] or default_preset(models[0])
    asked = _given({**study, "preset": preset, "models": models})
    planted = _given({"tasks": [*study["tasks"]], **block})  # a copy: YAML would refer to it
    asked |= {"methods": [], "analyses": [], "report": False, "control": planted}
    text = yaml.safe_dump(asked, sort_keys=False, allow_unicode=True)
    path = out / paths.STUDY
    try:
        file = parse_study(text, out)
        check_names(file)
    except SettingsError as error:  # of a file that nobody has seen
        said = re.sub(r"^line \d+, ", "", str(error).removeprefix(f"{path}, "))
        raise SettingsError(said) from None
    if not path.is_file():
        with whole_file(path) as draft:
            draft.write_text(text, encoding="utf-8")
    elif read_study(out).study != file.study:
        raise StoreError(
            f"{path} describes another study: choose another folder with --out, or edit that file "
            f"and use `memloc run {out}`."
        )
    return out


def _found(model: str) -> str:
    """A folder by its whole path: in a study's file, paths are from the study's folder."""
    path = Path(model).expanduser()
    return str(path.resolve()) if path.is_dir() else model


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value not in (None, {}, [])}
