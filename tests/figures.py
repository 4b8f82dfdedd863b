"""Counts how large and how knotted the package is: `python tests/figures.py`.

Lines are those with code: no blank lines, comments or docstrings. `--frames` also runs a study of
seconds and counts the functions of memloc between its command and the first gradient.
"""

import argparse
import ast
import io
import json
import os
import re
import sys
import tempfile
import tokenize
import traceback
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "memloc"
WORDS = re.compile(r"\b(members?|stacked|together|beside)\b", re.IGNORECASE)
"""Words that belong to the engine alone."""
NOT_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}


def code_lines(text: str) -> int:
    """Lines of a module that hold code; a string that stands alone is documentation."""
    said = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NOT_CODE:
            lines |= {*range(token.start[0], token.end[0] + 1)}
    return len(lines - said)


def imports(path: Path) -> set[str]:
    """Modules of memloc that a module imports anywhere, but for type checkers alone."""
    found: set[str] = set()

    def walk(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.Import):
                found.update(name.name for name in child.names)
            elif isinstance(child, ast.ImportFrom):
                full = [f"{child.module}.{name.name}" for name in child.names]
                found.update(name if _file(name) else str(child.module) for name in full)
            walk(child)

    walk(ast.parse(path.read_text(encoding="utf-8")))
    return {name for name in found if name.split(".")[0] == "memloc"}


def _file(module: str) -> bool:
    place = PACKAGE.parent.joinpath(*module.split("."))
    return place.with_suffix(".py").is_file() or (place / "__init__.py").is_file()


def knots(edges: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import each other in a circle."""
    reach = {name: {*targets} & edges.keys() for name, targets in edges.items()}
    for through in edges:
        for name in edges:
            if through in reach[name]:
                reach[name] |= reach[through]
    circles = {frozenset({m for m in reach[n] if n in reach[m]}) for n in edges if n in reach[n]}
    return sorted(map(sorted, circles), key=len, reverse=True)


def _module(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def count() -> dict[str, object]:
    """All figures that reading the package gives."""
    files = sorted(PACKAGE.rglob("*.py"))
    texts = {path: path.read_text(encoding="utf-8") for path in files}
    nodes = [node for text in texts.values() for node in ast.walk(ast.parse(text))]
    elsewhere = [text for path, text in texts.items() if "engine" not in path.parts]
    edges = {_module(path): imports(path) for path in files if path.name != "__main__.py"}
    return {
        "code lines": sum(map(code_lines, texts.values())),
        "modules": len(files),
        "classes": sum(isinstance(node, ast.ClassDef) for node in nodes),
        "functions": sum(isinstance(node, ast.FunctionDef) for node in nodes),
        "modules in import cycles": [len(knot) for knot in knots(edges)],
        "words of the engine elsewhere": sum(len(WORDS.findall(text)) for text in elsewhere),
    }


def frames() -> int:
    """How many functions of memloc are between `memloc run` and the first gradient.

    A step is a copy of the process that runs the study, so its frames begin at the command.
    """
    import torch

    from memloc.cli import main

    with tempfile.TemporaryDirectory() as home:
        study, told = Path(home, "study"), Path(home, "frames")
        study.mkdir()
        study.joinpath("study.yaml").write_bytes((ROOT / ".ci" / "micro.yaml").read_bytes())

        def backward(*_given: object, **_more: object) -> None:
            stack = [frame.filename for frame in traceback.extract_stack()]
            told.write_text(str(sum(str(PACKAGE) in name for name in stack)))
            os._exit(1)

        torch.Tensor.backward = backward
        try:
            main(["run", str(study), "--only", "train", "--jobs", "1"])
        except SystemExit:
            return int(told.read_text())
        raise AssertionError("no training was begun")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", action="store_true", help="also run a small study")
    figures = count()
    if parser.parse_args().frames:
        sys.stdout.flush()
        figures["frames"] = frames()
    print(json.dumps(figures, indent=1))
