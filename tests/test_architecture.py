"""Tests which modules may import which (docs/explanation/architecture.md), and what is loaded by
whom.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

SRC = Path(__file__).parents[1] / "src"
PACKAGE = SRC / "memloc"

LEVELS = (
    {"arrays", "errors", "seeds"},
    {"progress"},
    {"display"},
    {"store"},
    {"settings"},
    {"protocol"},
    {"data", "stats"},
    {"model"},
    {"engine"},
    {"run"},
    {"methods"},
    {"reporting"},
    {"labels"},
    {"study"},
    {"verbs"},
    {"cli"},
    {"__init__", "__main__", "types"},
)
"""A room may import itself and those of earlier levels."""
LEVEL = {room: place for place, level in enumerate(LEVELS) for room in level}
FRONT = {"cli", "__init__", "__main__"}
WITHOUT_TORCH = ("memloc.stats", "memloc.reporting")
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


def test_every_room_has_a_level():
    rooms = {room_of(found.module) for found in IMPORTS}
    assert rooms <= set(LEVEL)
    assert {"data", "model", "engine", "stats", "run", "reporting", "errors", "store"} <= rooms
    there = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert set(LEVEL) == there - {"__pycache__", "py"}


def test_the_search_sees_imports_of_every_kind():
    seen = {(found.module, found.target, found.inside, found.typing_only) for found in IMPORTS}
    assert ("memloc.run.recipe", "memloc.run.folder", False, False) in seen
    assert ("memloc.cli", "memloc.model.check", True, False) in seen
    assert ("memloc.run.folder", "memloc.model.load", False, True) in seen
    assert ("memloc.methods.registry", "memloc.methods.shares", True, False) in seen


def upward(found: Import) -> bool:
    one, other = room_of(found.module), room_of(found.target)
    return one != other and LEVEL[other] >= LEVEL[one]


def test_imports_go_down():
    wrong = [
        where(found) for found in OURS if room_of(found.module) != "__init__" and upward(found)
    ]
    assert not wrong


def test_nobody_imports_the_command_line():
    wrong = [
        where(found)
        for found in OURS
        if room_of(found.target) == "cli" and room_of(found.module) not in {"cli", "__main__"}
    ]
    assert not wrong


def test_commands_import_inside_functions():
    light = {
        "memloc",
        "memloc.cli.console",
        "memloc.errors",
        "memloc.store.paths",
        "memloc.progress",
        "memloc.verbs",
        "memloc.display",
    }
    wrong = [
        where(found)
        for found in OURS
        if room_of(found.module) in {"cli", "__init__"}
        and not (found.inside or found.typing_only or found.target in light)
        and not room_of(found.module) == room_of(found.target) == "cli"
    ]
    assert not wrong


LOAD = """
import importlib, pkgutil, sys

for name in sys.argv[1:]:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(getattr(package, "__path__", []), f"{name}."):
        importlib.import_module(module.name)
print(*sorted({name.split(".")[0] for name in sys.modules}))
"""


def test_statistics_results_and_reports_never_load_torch():
    done = subprocess.run(
        [sys.executable, "-c", LOAD, *WITHOUT_TORCH], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert {"memloc", "pandas"} <= loaded
    assert not loaded & HEAVY
    wrong = [
        where(found)
        for found in IMPORTS
        if found.module.startswith(WITHOUT_TORCH)
        and found.target.split(".")[0] in HEAVY
        and not found.typing_only
    ]
    assert not wrong


def test_light_modules_load_nothing_heavy_when_imported():
    light = {room for room, level in LEVEL.items() if level <= LEVEL["protocol"]} | FRONT
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
def test_nothing_is_loaded_or_paired_in_part_and_nothing_as_pickle(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        assert called not in {"torch.load", "torch.save"}, f"{path}:{node.lineno}"
        loose = any(k.arg == "strict" and ast.unparse(k.value) == "False" for k in node.keywords)
        assert not loose, f"{path}:{node.lineno}: strict=False in {called}"


SENT = {("step.py", "main"): "outcomes go to the parent process"}
"""Functions that print something other than what people read."""


def test_everything_is_printed_by_the_function_that_makes_control_characters_visible():
    wrong = [
        f"{path.name}:{node.lineno}"
        for path in FILES
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(function, ast.FunctionDef)
        and (path.name, function.name) not in {("progress.py", "say"), *SENT}
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in PRINTING
    ]
    assert not wrong


PRINTING = {"print", "typer.echo", "typer.secho", "sys.stdout.write", "sys.stderr.write"}


WORDS = re.compile(r"(?<![a-z])(members?|stacked|together|beside)(?![a-z])", re.IGNORECASE)


def test_only_the_engine_knows_that_several_models_are_computed_in_one_pass():
    wrong = [
        f"{path.relative_to(PACKAGE)}:{number}: {line.strip()}"
        for path in FILES
        if path.relative_to(PACKAGE).parts[0] != "engine"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if WORDS.search(line)
    ]
    assert not wrong


def test_outside_of_the_engine_only_its_public_modules_are_used():
    public = {"fit", "learner", "passes", "objectives", "packing", "state"}
    names = {
        "memloc.engine.fit": {"fit", "fit_all", "whole"},
        "memloc.engine.passes": {"Trained"},
        "memloc.engine.objectives": {"gradients_of_blocks"},
        "memloc.engine.packing": {"can_pack", "logits_end_to_end"},
        "memloc.engine.state": {"epochs_done"},
    }
    for path in FILES:
        if path.relative_to(PACKAGE).parts[0] == "engine":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            module = node.module if isinstance(node, ast.ImportFrom) else None
            if module is not None and module.startswith("memloc.engine"):
                assert module.removeprefix("memloc.engine.") in public, f"{path}:{node.lineno}"
                used = {name.name for name in node.names}
                assert used <= names.get(module, used), f"{path}:{node.lineno}"


def code_lines(node: ast.FunctionDef) -> int:
    """Lines of a function without its docstring."""
    first = node.body[0]
    is_text = ast.get_docstring(node) is not None
    said = (first.end_lineno or 0) - first.lineno + 1 if is_text else 0
    return (node.end_lineno or 0) - node.lineno + 1 - said


def test_functions_are_short():
    long = {
        f"{path.name}: {node.name}"
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and code_lines(node) > 40
    }
    assert not long


def test_most_modules_have_a_test_of_their_name():
    tested = {path.name.removeprefix("test_") for path in Path(__file__).parent.rglob("test_*.py")}
    modules = [path.name for path in FILES if not path.name.startswith("__")]
    assert sum(name in tested for name in modules) >= 0.85 * len(modules)
