"""The generated parts of the reference, as a Sphinx extension.

A page says `<!-- generated: settings -->`, and the build puts the tables there. They come from the
code: docstrings, the help of the commands, the fields of the settings and of the files' records.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

    from memloc.settings import Settings

MARK = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)


def setup(app: "Sphinx") -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("source-read", _fill)
    app.connect("autodoc-skip-member", _skip)
    return {"parallel_read_safe": True}


def _fill(_: "Sphinx", __: str, source: list[str]) -> None:
    source[0] = MARK.sub(lambda found: PARTS[found[1]](), source[0])


def _skip(*about: Any) -> bool | None:
    """Leave out what pydantic adds to a class."""
    return True if about[2].startswith("model_") else None


API = {
    "Data": ("load_task", "load_csv", "add_noise"),
    "Runs": ("train", "plant", "adopt", "adopt_trainer", "Run", "RunSpec", "RunCallback"),
    "Models": ("LoadOptions", "register_stack"),
    "Looking at a run": ("localise", "analyse", "Method"),
    "Labels that nobody marked": ("find", "repair"),
    "Results": ("load_results", "report"),
    "Errors": ("MemlocError",),
}
"""The public names that are not methods with their settings; those are all others."""


def api() -> str:
    """Every public name, by its docstring."""
    import memloc

    named = {name for names in API.values() for name in names}
    groups = {**API, "Methods": tuple(n for n in memloc.__all__ if n not in named)}
    parts = [
        f"## {title}\n\n" + "\n\n".join(map(_documented, names)) for title, names in groups.items()
    ]
    return "\n\n".join([*parts, f"## What these return\n\n{_returned()}"])


def _returned() -> str:
    """The types that public functions return, which are not public names themselves."""
    import memloc

    functions = (memloc.load_task, memloc.localise, memloc.load_results)
    kinds = [function.__annotations__["return"] for function in functions]
    scores = inspect.get_annotations(memloc.Swapping.run)["return"]
    kinds += [scores, inspect.get_annotations(_getter(scores, "answer"))["return"]]
    return "\n\n".join(
        f"```{{eval-rst}}\n.. autoclass:: {kind.__module__}.{kind.__name__}()\n   :members:\n```"
        for kind in kinds
    )


def _getter(kind: type, name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = vars(kind)[name].fget
    return found


CONTRACT = "name, kind, needs, uses, version, asked, scratch, check, cost"
"""What every method has: documented once, with `Method`."""


def _documented(name: str) -> str:
    import memloc

    found = getattr(memloc, name)
    if not isinstance(found, type):
        return f"```{{eval-rst}}\n.. autofunction:: memloc.{name}\n```"
    if issubclass(found, Exception):
        return f"```{{eval-rst}}\n.. autoexception:: memloc.{name}\n```"
    ours = issubclass(found, memloc.Method) and found is not memloc.Method
    hidden = f"\n   :exclude-members: {CONTRACT}" if ours else ""
    return f"```{{eval-rst}}\n.. autoclass:: memloc.{name}\n   :members:{hidden}\n```"


def commands() -> str:
    """Every command: what it does, an example, its arguments and options."""
    from typer.main import get_command

    from memloc.cli import app

    known: Any = get_command(app)
    return "\n\n".join(_command(name, command) for name, command in known.commands.items())


def _command(name: str, command: Any) -> str:
    words = [p.name.upper() for p in command.params if p.param_type_name == "argument"]
    usage = " ".join(["memloc", name, *words, "[OPTIONS]"])
    parts = [f"## {name}", "\n\n".join(_paragraphs(command.help)), f"```text\n{usage}\n```"]
    rows = [(_spelled(p), _help_of(p)) for p in command.params if not p.hidden]
    return "\n\n".join([*parts, table(("argument or option", "meaning"), rows)])


def _paragraphs(text: str) -> Iterable[str]:
    return (" ".join(part.split()) for part in text.split("\n\n"))


def _spelled(param: Any) -> str:
    return f"`{param.name.upper() if param.param_type_name == 'argument' else param.opts[0]}`"


def _help_of(param: Any) -> str:
    says = (param.help or "").strip()
    plain = isinstance(param.default, str | int | float | Path) and param.default is not False
    return says + (f" Default: {param.default}." if plain and "efault" not in says else "")


def settings() -> str:
    """Every setting of the protocol by group, with the presets in which it differs."""
    from memloc.methods.protocol import describe, preset
    from memloc.protocol import PRESETS, readable

    paper, *others = map(preset, PRESETS)
    groups: dict[str, list[tuple[str, ...]]] = {}
    for row in describe(paper.preset):
        name = row["setting"]
        values = {other.preset: readable(other.flat()[name]) for other in others}
        differ = [f"{p}: {v}" for p, v in values.items() if v != row["value"]]
        group, _, leaf = name.partition(".")
        shown = (f"`{leaf}`", row["value"], "; ".join(differ), row["source"], row["meaning"])
        groups.setdefault(group, []).append(shown)
    head = ("setting", "`paper`", "other presets", "source", "meaning")
    return "\n\n".join(
        f"## {group}\n\n{_first_line(getattr(paper, group))}\n\n{table(head, rows)}"
        for group, rows in groups.items()
    )


def _first_line(group: Any) -> str:
    return (type(group).__doc__ or "").strip().splitlines()[0]


def run() -> str:
    """The record of a run, `run.json`, and what became of it, `status.json`."""
    from memloc.run.folder import (
        Accuracies,
        Attempt,
        Checkpoint,
        RunRecord,
        RunStatus,
        TaskRecord,
    )
    from memloc.run.spec import PlantSpec, RunSpec, TaskSpec

    kinds = (RunRecord, RunSpec, TaskSpec, PlantSpec, TaskRecord)
    return _records((*kinds, RunStatus, Accuracies, Attempt, Checkpoint))


def study() -> str:
    """The keys of `study.yaml`."""
    from memloc.run.spec import DataFile
    from memloc.study.config import Block, ControlBlock, Study

    return _records((Study, Block, DataFile, ControlBlock))


def _records(kinds: "Sequence[type[Settings]]") -> str:
    return "\n\n".join(
        f"**{kind.__name__}.** {kind.__doc__}\n\n"
        + table(
            ("key", "type", "meaning"),
            [
                (f"`{name}`", f"`{_type(field.annotation)}`", field.description or "")
                for name, field in kind.model_fields.items()
            ],
        )
        for kind in kinds
    )


def _type(annotation: Any) -> str:
    name = str(getattr(annotation, "__name__", "")) if isinstance(annotation, type) else ""
    spelled = str(annotation)
    return name if name and "[" not in spelled else re.sub(r"(\w+\.)+", "", spelled)


def results() -> str:
    """The columns of every table of results."""
    from memloc.reporting.reading import COLUMNS

    rows = [(f"`{name}`", ", ".join(columns)) for name, columns in COLUMNS.items()]
    return table(("table", "columns"), rows)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = (head, ["---"] * len(head), *rows)
    return "\n".join(f"| {' | '.join(map(_cell, row))} |" for row in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


PARTS: dict[str, Callable[[], str]] = {
    part.__name__: part for part in (api, commands, settings, run, study, results)
}
