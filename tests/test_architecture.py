"""The table of docs/architecture.md: who may import whom, found without importing anything."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

SRC = Path(__file__).parents[1] / "src"
PACKAGE = SRC / "memloc"

BASE = {"errors"}
PLAIN = {"records", "protocol", "explain", "config", "settings", "seeds", "progress", "lock"}
MIDDLE = {"data", "models", "score"}
LATE = {"localise", "analyse"}
GATHERING = {"results"}
"""Reads what the rooms before it wrote, without torch."""
FRONT = {"cli", "console", "__init__", "__main__"}

MAY_IMPORT: dict[str, set[str]] = {
    **{room: set() for room in BASE},
    **dict.fromkeys(PLAIN, BASE | PLAIN),
    **{room: BASE | PLAIN | {room} for room in MIDDLE},
    "train": BASE | PLAIN | MIDDLE | {"train"},
    **{room: BASE | PLAIN | MIDDLE | {"train", room} for room in LATE},
    **{room: BASE | PLAIN | MIDDLE | {"train"} | LATE | {room} for room in GATHERING},
    "report": BASE | PLAIN | MIDDLE | {"train"} | LATE | GATHERING | {"report"},
    "experiment": BASE | PLAIN | MIDDLE | {"train"} | LATE | GATHERING | {"report", "experiment"},
}
EXCEPTIONS = {("memloc.models.tiny.pretrain", "memloc.data.tiny")}
"""A script: it makes the embedded models out of the embedded suite's texts."""
WITHOUT_TORCH = {"score", "results", "report"}
HEAVY = {"torch", "transformers", "datasets", "safetensors", "tokenizers"}


class Import(NamedTuple):
    module: str
    target: str
    line: int
    inside: bool
    """In a function, so not when the module is loaded."""
    typing_only: bool


def imports_of(path: Path) -> Iterator[Import]:
    relative = path.relative_to(SRC).with_suffix("")
    module = ".".join(p for p in relative.parts if p != "__init__")

    def walk(node: ast.AST, inside: bool, typing_only: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for name in child.names:
                    yield Import(module, name.name, child.lineno, inside, typing_only)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{path}:{child.lineno} imports relatively"
                for name in child.names:
                    full = f"{child.module}.{name.name}"
                    target = full if is_module(full) else child.module
                    yield Import(module, target or "", child.lineno, inside, typing_only)
            else:
                is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                is_typing = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
                yield from walk(child, inside or is_function, typing_only or is_typing)

    yield from walk(ast.parse(path.read_text(encoding="utf-8")), False, False)


def is_module(dotted: str) -> bool:
    place = SRC.joinpath(*dotted.split("."))
    return place.with_suffix(".py").is_file() or (place / "__init__.py").is_file()


def room_of(module: str) -> str:
    return [*module.split("."), "__init__"][1]


FILES = sorted(PACKAGE.rglob("*.py"))
IMPORTS = [found for path in FILES for found in imports_of(path)]
OURS = [found for found in IMPORTS if found.target.split(".")[0] == "memloc"]


def where(found: Import) -> str:
    return f"{found.module}:{found.line} imports {found.target}"


def test_every_room_has_a_line_in_the_table():
    rooms = {room_of(found.module) for found in IMPORTS}
    assert rooms <= set(MAY_IMPORT) | FRONT
    assert {"data", "models", "score", "train", "report", "errors", "records"} <= rooms


def test_the_search_sees_imports_of_every_kind():
    seen = {(found.module, found.target, found.inside, found.typing_only) for found in IMPORTS}
    assert ("memloc.training.recipe", "memloc.training.run", False, False) in seen
    assert ("memloc.cli.names", "memloc.models.check", True, False) in seen
    assert ("memloc.training.run", "memloc.models.load", False, True) in seen
    assert ("memloc.models.tiny.pretrain", "memloc.data.tiny", True, False) in seen


def test_imports_go_one_way():
    wrong = [
        where(found)
        for found in OURS
        if room_of(found.module) not in FRONT
        and room_of(found.target) not in MAY_IMPORT[room_of(found.module)]
        and (found.module, found.target) not in EXCEPTIONS
    ]
    assert not wrong


def test_the_pretraining_script_asks_data_inside_a_function():
    found = [f for f in OURS if (f.module, f.target) in EXCEPTIONS]
    assert found
    assert all(f.inside for f in found)


def test_nobody_imports_the_command_line():
    wrong = [
        where(found)
        for found in OURS
        if room_of(found.target) in {"cli", "console"}
        and room_of(found.module) not in {"cli", "__main__"}
    ]
    assert not wrong


def test_commands_import_inside_functions():
    light = {"memloc", "memloc.console", "memloc.errors"}
    wrong = [
        where(found)
        for found in OURS
        if room_of(found.module) in {"cli", "console", "__init__"}
        and not (found.inside or found.typing_only or found.target in light)
        and not room_of(found.module) == room_of(found.target) == "cli"
    ]
    assert not wrong


def test_scores_and_reports_never_load_torch():
    wrong = [
        where(found)
        for found in IMPORTS
        if room_of(found.module) in WITHOUT_TORCH and found.target.split(".")[0] in HEAVY
    ]
    assert not wrong


def test_light_modules_load_nothing_heavy_when_imported():
    light = BASE | PLAIN | FRONT
    wrong = [
        where(found)
        for found in IMPORTS
        if room_of(found.module) in light
        and found.target.split(".")[0] in HEAVY | {"pandas", "pyarrow", "sklearn", "scipy"}
        and not (found.inside or found.typing_only)
    ]
    assert not wrong


def test_no_pickle_anywhere():
    banned = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
    assert not [where(f) for f in IMPORTS if f.target.split(".")[0] in banned]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_weights_are_never_loaded_in_part_or_as_pickle(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        assert called not in {"torch.load", "torch.save"}, f"{path}:{node.lineno}"
        loose = any(k.arg == "strict" and ast.unparse(k.value) == "False" for k in node.keywords)
        assert not loose or called == "zip", f"{path}:{node.lineno}: strict=False in {called}"
