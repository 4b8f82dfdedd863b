"""Counts the size and the import cycles of the package: `python tests/figures.py`.

Code lines exclude blank lines, comments and docstrings. Frames are counted by running a study of
seconds until its first gradient. `tests/test_figures.py` holds the figures that reached their aim.
"""

import ast
import contextlib
import io
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
COATS = {
    *("Block", "Asked", "Product", "Step", "Order", "Recipe", "Wanted", "Member", "Objective"),
    *("RunSpec", "RunRecord", "Run", "_Read"),
}
"""Classes that carry an intended run on its way from the study's file to its folder; other classes
count as well if they hold a seed with a model or a task, or one of these classes. What holds a
`Run` does not count: that run is there, and the class looks at it."""
AIMS = {
    "code lines": 12_000,
    "classes": 95,
    "functions": 1_050,
    "coats of a run": 4,
    "identities": 1,
    "frames to the first gradient": 9,
    "modules in import cycles": 0,
    "words of the engine elsewhere": 0,
}
"""Largest number aimed at; figures without one are not listed."""
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


def coats(classes: list[ast.ClassDef]) -> list[str]:
    """Names of the classes that carry one intended run."""
    fields = {node.name: _fields(node) for node in classes}
    holds_run = {
        name
        for name, own in fields.items()
        if ("seed" in own and own.keys() & {"model", "task"}) or name in COATS
    }
    intended = holds_run - {"Run"}
    return sorted(holds_run | {n for n, own in fields.items() if intended & {*own.values()}})


def _fields(node: ast.ClassDef) -> dict[str, str]:
    """Annotations of a class's fields by name, without quotes and `None`."""
    own = [part for part in node.body if isinstance(part, ast.AnnAssign)]
    types = [ast.unparse(part.annotation).strip("'\"").removesuffix(" | None") for part in own]
    return dict(zip((ast.unparse(part.target) for part in own), types, strict=True))


def identities(trees: dict[str, ast.Module]) -> list[str]:
    """Functions that hash a description of what decides a result, and callers of `hashed`.

    Callers of `store.memo.key`, which list what decides their own result, are not counted.
    """
    return sorted(
        f"{module}.{node.name}"
        for module, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and _hashes(node)
    )


def _hashes(function: ast.FunctionDef) -> bool:
    calls = {ast.unparse(c.func) for c in ast.walk(function) if isinstance(c, ast.Call)}
    own = {"json.dumps"} < calls and any(name.startswith("hashlib.") for name in calls)
    return own or any(name.split(".")[-1] == "hashed" for name in calls)


def count() -> dict[str, int | list[str]]:
    """All figures that reading the package gives: numbers, or the things that are counted."""
    files = sorted(PACKAGE.rglob("*.py"))
    texts = {_module(path): path.read_text(encoding="utf-8") for path in files}
    trees = {module: ast.parse(text) for module, text in texts.items()}
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    edges = {_module(path): imports(path) for path in files if path.name != "__main__.py"}
    words = {
        module: len(WORDS.findall(text))
        for module, text in texts.items()
        if not module.startswith("memloc.engine")
    }
    return {
        "code lines": sum(map(code_lines, texts.values())),
        "classes": len(classes),
        "functions": sum(isinstance(node, ast.FunctionDef) for node in nodes),
        "coats of a run": coats(classes),
        "identities": identities(trees),
        "modules in import cycles": [name for knot in knots(edges) for name in knot],
        "words of the engine elsewhere": [name for name, n in words.items() for _ in range(n)],
    }


def frames() -> list[str]:
    """Functions of memloc between `memloc run` and the first gradient, the outermost first.

    A step is a copy of the process that runs the study, so its frames begin at the command.
    """
    sys.path.insert(0, str(PACKAGE.parent))  # this package, not one that is installed
    import torch

    from memloc.cli import main

    with tempfile.TemporaryDirectory() as home:
        study, told = Path(home, "study"), Path(home, "frames")
        study.mkdir()
        study.joinpath("study.yaml").write_bytes((ROOT / ".ci" / "micro.yaml").read_bytes())

        real = torch.Tensor.backward

        def backward(*given: object, **more: object) -> None:
            if any(frame.name == "calibrate" for frame in traceback.extract_stack()):
                return real(*given, **more)
            stack = [f for f in traceback.extract_stack() if str(PACKAGE) in f.filename]
            told.write_text("\n".join(f"{Path(f.filename).stem}.{f.name}" for f in stack))
            os._exit(1)

        torch.Tensor.backward = backward
        # The study says that its step failed: the step ended itself, see above.
        silent = contextlib.redirect_stderr(io.StringIO())
        with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()), silent:
            main(["run", str(study), "--only", "train", "--jobs", "1"])
        return told.read_text().splitlines()


if __name__ == "__main__":
    found = count() | {"frames to the first gradient": frames()}
    for figure, aim in AIMS.items():
        value = found[figure]
        number = value if isinstance(value, int) else len(value)
        print(f"{figure:32}{number:>8,}   aim ≤ {aim:,}")
        if isinstance(value, list):
            for name in dict.fromkeys(value):
                times = value.count(name)
                print(f"    {name}{f' ({times})' if times > 1 else ''}")
