"""The index of fixtures names all of them."""

import ast
from pathlib import Path

import fixtures

HERE = Path(__file__).parent


def test_the_index_names_every_module_and_every_fixture():
    modules = {path.stem for path in HERE.glob("fixtures/[a-z]*.py")}
    functions = {
        node.name
        for path in HERE.rglob("conftest.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and "fixture" in map(_decorator, node.decorator_list)
    }
    assert not [n for n in sorted(modules | functions) if f"`{n}`" not in (fixtures.__doc__ or "")]


def _decorator(node: ast.expr) -> str:
    called = node.func if isinstance(node, ast.Call) else node
    return called.attr if isinstance(called, ast.Attribute) else ""
