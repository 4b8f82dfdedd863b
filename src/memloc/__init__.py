"""memloc: which layers of a fine-tuned transformer hold the labels or texts it memorised?"""

import ast
import importlib
import importlib.metadata
import sys
from pathlib import Path
from typing import Any

from memloc import display, verbs

if sys.platform == "win32":
    raise ImportError(
        "memloc needs Linux or macOS: files are locked and processes forked in ways that Windows "
        "lacks. On Windows, use memloc inside WSL."
    )
_IMPORTS = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
_HOMES = {
    public.name: str(home.module)
    for home in _IMPORTS
    if isinstance(home, ast.ImportFrom) and home.module != "memloc"
    for public in home.names
}
"""The public names, and the modules that they come from, as type checkers read them."""
__all__ = sorted(_HOMES)  # noqa: PLE0605 - written once, in `__init__.pyi`


display.Plotted.drawn_by = staticmethod(verbs.chart)


def __getattr__(name: str) -> Any:
    """Bring a public name in when it is first used: importing memloc loads no torch."""
    if name == "__version__":
        return importlib.metadata.version("memloc")
    if name == "types":
        return importlib.import_module("memloc.types")
    if name not in _HOMES:
        raise AttributeError(f"module 'memloc' has no attribute {name!r}")
    module = getattr(importlib.import_module(_HOMES[name]), name)
    return verbs.with_progress(module) if name in verbs.WORK else module


def __dir__() -> list[str]:
    return [*__all__, "__version__", "types"]
