"""Writes the generated parts of the reference: `python docs/generated.py`.

A page says `<!-- generated: settings noise finetune -->`, and the text up to `<!-- end -->` is
written anew from the code: docstrings, the help of the commands, the fields of the settings and of
the files' records. The pages are committed, so that they can be read where they are; a test
compares them with the code.
"""

import ast
import inspect
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import is_dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memloc.settings import Settings

MARK = re.compile(r"<!-- generated: (\w+)([^>\n]*?) -->\n(?:.*?\n)?<!-- end -->", re.DOTALL)
WIDTH = 118
"""Characters of a line."""


def main() -> None:
    """Write the generated parts of all pages."""
    for page in sorted(Path(__file__).parent.rglob("*.md")):
        made = {page: filled(page.read_text(encoding="utf-8"))}
        if page.parent.name == "notebooks":
            made[page.with_suffix(".ipynb")] = as_notebook(made[page])
        for path, text in made.items():
            if not path.is_file() or path.read_text(encoding="utf-8") != text:
                path.write_text(text, encoding="utf-8")
                print(f"written: {path}")


def filled(text: str) -> str:
    """Return a page with its generated parts as they should be."""

    def part(found: re.Match[str]) -> str:
        name, words = found[1], found[2].split()
        return f"<!-- generated: {name}{found[2]} -->\n\n{PARTS[name](words)}\n\n<!-- end -->"

    return MARK.sub(part, text)


def as_notebook(page: str) -> str:
    """Return a page as a notebook of Jupyter without outputs: its Python becomes cells of code."""
    install = "%pip install --quiet memloc  # where it is not installed yet"
    parts = re.split(r"```python\n(.*?)```\n", MARK.sub("", page), flags=re.DOTALL)
    cells = [("markdown", parts[0]), ("code", install)]
    cells += [("code" if n % 2 else "markdown", text) for n, text in enumerate(parts[1:], start=1)]
    shown = [_notebook_cell(n, kind, text.strip()) for n, (kind, text) in enumerate(cells)]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {"cells": [each for each in shown if each["source"]], "nbformat": 4}
    whole |= {"nbformat_minor": 5, "metadata": {"kernelspec": kernel}}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def _notebook_cell(number: int, kind: str, text: str) -> dict[str, Any]:
    found = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}}
    found |= {"source": text.splitlines(keepends=True)}
    return found | ({"execution_count": None, "outputs": []} if kind == "code" else {})


def notebook(names: Sequence[str]) -> str:
    """Return the links to a notebook: to download it and, once there is an address, to open it."""
    (name,) = names
    here = Path(__file__).parents[1] / "pyproject.toml"
    project = tomllib.loads(here.read_text(encoding="utf-8"))["project"]
    repository = project["urls"].get("Repository", "").rstrip("/")
    links = [f"[Download this page as a notebook]({name}.ipynb)"]
    if repository.startswith("https://github.com/"):
        place = repository.removeprefix("https://github.com/")
        hosted = f"https://colab.research.google.com/github/{place}/blob/main/docs/notebooks"
        links.append(f"[open it in Colab]({hosted}/{name}.ipynb)")
    return f"{', or '.join(links)}."


def api(names: Sequence[str]) -> str:
    """Public names, each with its parameters one by one."""
    import memloc

    return "\n\n".join(_documented(name, getattr(memloc, name)) for name in names)


def types(names: Sequence[str]) -> str:
    """Types in the signatures of public names, with their members."""
    from memloc import types as public

    return "\n\n".join(_documented(name, getattr(public, name)) for name in names)


def _documented(name: str, found: Any) -> str:
    if not isinstance(found, type):
        return "\n\n".join([f"## {name}", *_function(found)])
    settings: Any = getattr(found, "model_fields", {})
    items = [_field(n, f.default, f.description) for n, f in settings.items()]
    if "needs" in dir(found):  # a method, whose other members are those of Method
        needs = f"Needs the weights {', '.join(found().needs)}. Settings:"
        return "\n\n".join([f"## {name}", _paragraphs(found.__doc__), needs, "\n".join(items)])
    items += [_item(f"`{n}`", says) for n, says in _fields_of(found) if n not in settings]
    own = [n for n in vars(found) if not n.startswith(("_", "model_")) and _said(found, n)]
    items += [_member(found, n) for n in own if n not in HIDDEN]
    return "\n\n".join(filter(None, [f"## {name}", *_class(found), "\n".join(items)]))


HIDDEN = {"card", "report", "found", "told", "picture", "on_train_begin", "on_epoch_end"}
HIDDEN |= {"load_start", "load_pretrained", "planted_groups", "files", "require", "encode"}
HIDDEN |= {"on_train_end", "check_unchanged", "check_whole", "identity", "note", "work"}
"""Members that programs on top of memloc do not need."""


def _fields_of(found: type) -> Iterator[tuple[str, str]]:
    """Yield the fields of a dataclass that are described below their line."""
    if not is_dataclass(found):
        return
    (tree,) = ast.parse(inspect.cleandoc(inspect.getsource(found))).body
    assert isinstance(tree, ast.ClassDef)
    for field, below in pairwise(tree.body):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
            yield ast.unparse(field.target), ast.literal_eval(below.value)


def _inner(owner: Any, name: str) -> Any:
    """Return the function behind a member; None if it is no function or property."""
    member = vars(owner)[name]
    inner = getattr(member, "fget", None) or getattr(member, "func", None) or member
    inner = getattr(inner, "__func__", inner)
    return inner if callable(inner) and not isinstance(inner, type) else None


def _said(owner: Any, name: str) -> str:
    """Return the first sentence of a member's docstring; empty if it is no function or property."""
    return " ".join((inspect.getdoc(_inner(owner, name)) or "").split("\n\n")[0].split())


def _member(owner: Any, name: str) -> str:
    """Return a line on a property or method, with the method's parameters one by one."""
    is_method = not isinstance(vars(owner)[name], property | cached_property)
    inner = _inner(owner, name)
    first = 0 if isinstance(vars(owner)[name], staticmethod) else 1
    given = list(inspect.signature(inner).parameters.items())[first:] if is_method else []
    call = ", ".join(n if p.default is p.empty else f"{n}=…" for n, p in given)
    said = _arguments(inspect.getdoc(inner) or "")
    lines = [_item(f"`{name}({call})`" if is_method else f"`{name}`", _said(owner, name))]
    below = [_field(n, p.default, said[n]) for n, p in given if n in said]
    return "\n".join([*lines, *(f"  {line}" for item in below for line in item.splitlines())])


def _arguments(text: str) -> dict[str, str]:
    """Return what a docstring says of each argument."""
    _, _, arguments = text.partition("Args:\n")
    return dict(re.findall(r"^ {4}(\w+): (.*?)(?=\n {4}\w|\Z)", arguments, re.DOTALL | re.M))


def _class(found: Any) -> list[str]:
    """Return the description of a class, and the arguments of its constructor."""
    text = inspect.getdoc(found) or ""
    if "Args:" in text:
        return _with_arguments(found, text)
    return [_paragraphs(text)]


def _function(found: Any) -> list[str]:
    return _with_arguments(found, inspect.getdoc(found) or "")


def _with_arguments(found: Any, text: str) -> list[str]:
    described, _, _ = text.partition("Args:\n")
    parameters, said = inspect.signature(found).parameters, _arguments(text)
    call = ", ".join(n if p.default is p.empty else f"{n}=…" for n, p in parameters.items())
    usage = f"```text\nmemloc.{found.__name__}({call})\n```"
    if len(call) > 90:
        usage = "```text\n" + "\n".join(wrap(f"memloc.{found.__name__}({call})", 100)) + "\n```"
    items = [_field(n, p.default, said.get(n, "")) for n, p in parameters.items()]
    return [usage, _paragraphs(described), *(["\n".join(items)] if said else [])]


def _field(name: str, default: Any, says: str | None) -> str:
    plain = isinstance(default, str | int | float | tuple | list) and default != ""
    shown = f" Default: `{default!r}`." if plain and "default" not in str(says) else ""
    return _item(f"`{name}`", f"{says or ''}{shown}")


def _item(name: str, says: str) -> str:
    return "\n".join(wrap(f"- {name}: {' '.join(says.split())}", WIDTH, subsequent_indent="  "))


def _paragraphs(text: str | None) -> str:
    """Return the paragraphs and lists of a docstring, in lines of the pages' width."""
    return "\n\n".join(map(_wrapped, inspect.cleandoc(text or "").split("\n\n")))


def _wrapped(part: str) -> str:
    items = re.split(r"\n(?=- )", part)
    indent = "  " if part.startswith("- ") else ""
    whole = (" ".join(item.split()) for item in items)
    return "\n".join("\n".join(wrap(item, WIDTH, subsequent_indent=indent)) for item in whole)


def commands(groups: Sequence[str]) -> str:
    """Return the commands of these groups (the first words of their names), with their options."""
    from typer.main import get_command

    from memloc.cli import COMMANDS, app

    known: Any = get_command(app)
    chosen = [fs for group, fs in COMMANDS.items() if group.split()[0] in groups]
    names = [function.__name__ for functions in chosen for function in functions]
    return "\n\n".join(_command(name, known.commands[name]) for name in names)


def _command(name: str, command: Any) -> str:
    words = [p.name.upper() for p in command.params if p.param_type_name == "argument"]
    usage = " ".join(["memloc", name, *words, "[OPTIONS]"])
    items = [_item(_spelled(p), _help_of(p)) for p in command.params if not p.hidden]
    text = _paragraphs(command.help)
    return "\n\n".join([f"## {name}", f"```text\n{usage}\n```", text, "\n".join(items)])


def _spelled(param: Any) -> str:
    return f"`{param.name.upper() if param.param_type_name == 'argument' else param.opts[0]}`"


def _help_of(param: Any) -> str:
    says = (param.help or "").strip()
    plain = isinstance(param.default, str | int | float | Path) and param.default is not False
    return says + (f" Default: {param.default}." if plain and "efault" not in says else "")


def settings(groups: Sequence[str]) -> str:
    """Return the settings of these groups, with the presets in which they differ."""
    from memloc.methods.protocol import preset, preset_rows
    from memloc.protocol import PRESETS, readable

    paper, *others = map(preset, PRESETS)
    found: dict[str, list[str]] = {}
    for row in preset_rows(paper.preset):
        group, _, leaf = row["setting"].partition(".")
        values = {other.preset: readable(other.flat()[row["setting"]]) for other in others}
        differ = [f"; {p}: {v}" for p, v in values.items() if v != row["value"]]
        value = f"{row['value']}{''.join(differ)} ({row['source']}). {row['meaning']}"
        found.setdefault(group, []).append(_item(f"`{leaf}`", value))
    return "\n\n".join(_group(paper, group, found[group]) for group in groups)


def _group(preset: Any, group: str, items: Sequence[str]) -> str:
    first = (type(getattr(preset, group)).__doc__ or "").strip().splitlines()[0]
    return "\n\n".join([f"## {group}", first, "\n".join(items)])


def run(_: Sequence[str]) -> str:
    """Return the record of a run, `run.json`, and what became of it, `status.json`."""
    from memloc.run.records import Accuracies, Attempt, Checkpoint, RunRecord, RunStatus, TaskRecord
    from memloc.run.spec import PlantSpec, RunSpec, TaskSpec

    kinds = (RunRecord, RunSpec, TaskSpec, PlantSpec, TaskRecord)
    return _records((*kinds, RunStatus, Accuracies, Attempt, Checkpoint))


def study(_: Sequence[str]) -> str:
    """Return the keys of `study.yaml`."""
    from memloc.run.spec import DataFile
    from memloc.study.config import ControlBlock, Study

    return _records((Study, DataFile, ControlBlock))


def _records(kinds: "Sequence[type[Settings]]") -> str:
    def items(kind: "type[Settings]") -> Iterator[str]:
        for name, field in kind.model_fields.items():
            says = (field.description or "").strip()
            yield _item(f"`{name}`", f"`{_type(field.annotation)}`. {says}".strip())

    return "\n\n".join(f"**{k.__name__}.** {k.__doc__}\n\n" + "\n".join(items(k)) for k in kinds)


def _type(annotation: Any) -> str:
    name = str(getattr(annotation, "__name__", "")) if isinstance(annotation, type) else ""
    spelled = str(annotation)
    return name if name and "[" not in spelled else re.sub(r"(\w+\.)+", "", spelled)


def results(_: Sequence[str]) -> str:
    """Return the columns of every table of results."""
    from memloc.reporting.reading import COLUMNS

    return "\n".join(_item(f"`{name}`", ", ".join(columns)) for name, columns in COLUMNS.items())


PARTS: dict[str, Callable[[Sequence[str]], str]] = {
    part.__name__: part for part in (notebook, api, types, commands, settings, run, study, results)
}

if __name__ == "__main__":
    main()
