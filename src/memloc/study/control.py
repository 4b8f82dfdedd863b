"""The control set-up as a study: plant memorisation where we know it is, and see who finds it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memloc import paths
from memloc.errors import SettingsError, StoreError
from memloc.models.known import default_preset
from memloc.records import whole_file
from memloc.study.checks import check_names
from memloc.study.config import parse_study


def control_study(out: Path, study: Mapping[str, Any], block: Mapping[str, Any]) -> Path:
    """Write a study that does nothing but plant; its folder is returned.

    What is None is left to the study's defaults. A folder with another study is refused.
    """
    import yaml

    asked = _given({**study, "preset": study["preset"] or default_preset(study["models"][0])})
    asked |= {"methods": [], "analyses": [], "report": False, "control": _given(block)}
    text = yaml.safe_dump(asked, sort_keys=False, allow_unicode=True)
    path = out / paths.STUDY
    try:
        check_names(parse_study(text, out))
    except SettingsError as error:  # lines of a file that nobody wrote would help nobody
        said = str(error).removeprefix(f"{path}, line ")
        raise SettingsError(said.partition(", ")[2] or said) from None
    if path.is_file() and path.read_text(encoding="utf-8") != text:
        raise StoreError(
            f"{path} describes another study: choose another folder with --out, or edit that file "
            f"and use `memloc run {out}`."
        )
    with whole_file(path) as draft:
        draft.write_text(text, encoding="utf-8")
    return out


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value not in (None, {}, [])}
