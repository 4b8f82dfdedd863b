"""Names of classes, functions and types that modules offer each other mean one thing."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "memloc"
MODULES = {
    path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
    for path in sorted(PACKAGE.rglob("*.py"))
}
COMMANDS = ("cli/", "study/step.py")
"""Modules whose functions are commands, named like the functions of the library that they call."""


def offered(module: str, tree: ast.Module) -> Iterator[str]:
    """Names of a module's public classes, functions and type aliases."""
    for node in tree.body:
        name = ""
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            command = isinstance(node, ast.FunctionDef) and module.startswith(COMMANDS)
            name = "" if command else node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            name = ast.unparse(target)
            name = "" if name.isupper() else name  # constants are read within their module
        if name and not name.startswith("_"):
            yield name


def test_no_two_modules_offer_different_things_by_one_name():
    places = defaultdict(list)
    for module, tree in MODULES.items():
        for name in offered(module, tree):
            places[name].append(module)
    assert len(places) > 900
    assert not {name: where for name, where in places.items() if len(where) > 1}


MEANINGS = {
    "run": {"Run", "Run | str | Path", "Path", "Row", "str", "RunFolder", "Annotated"},
    "stack": {"Stack", "Stacked"},
    "weights": {"FloatArray", "Sequence[float]"},
    "plan": {"Plan"},
    "outcome": {"Outcome"},
    "table": {"Table", "pd.DataFrame"},
    "rows": {"IntArray", "tuple[IntArray, ...]"},
    "kind": {"Kind", "Literal['localiser', 'analysis']"},
}
"""What parameters of a name that could mean several things are: a run, its folder or its name; the
blocks of a model; numbers, one per layer; a study's steps; what is counted in a game; a data frame;
numbers of examples; localisers or analyses."""


def test_parameters_of_one_name_are_one_thing():
    wrong = [
        f"{module}:{node.lineno} {node.name}({given.arg}: {kind})"
        for module, tree in MODULES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        for given in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        if given.arg in MEANINGS and given.annotation is not None
        for kind in [ast.unparse(given.annotation).strip("'\"").removesuffix(" | None")]
        if kind.split("[")[0] != "Annotated" and kind not in MEANINGS[given.arg]
    ]
    assert not wrong


def test_documented_arguments_are_the_parameters():
    wrong = []
    for module, tree in MODULES.items():
        for node in ast.walk(tree):
            said = ast.get_docstring(node) if isinstance(node, ast.FunctionDef) else None
            if said is None or "Args:" not in said:
                continue
            every = node.args
            named = [*every.posonlyargs, *every.args, every.vararg, *every.kwonlyargs, every.kwarg]
            parameters = [one.arg for one in named if one and one.arg not in {"self", "cls"}]
            documented = re.findall(r"^    (\w+): ", said.partition("Args:")[2], re.MULTILINE)
            if documented != parameters:
                wrong.append(f"{module}:{node.lineno} {node.name}: {documented}, {parameters}")
    assert not wrong
