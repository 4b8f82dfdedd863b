"""Plays the tutorial: `python -m benchmarks.tutorial`.

Runs the Python and the commands of docs/tutorial.md in an empty folder, puts what each block prints
into the block of text below it, and keeps the figures that the page shows.
"""

import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path
from time import perf_counter
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "tutorial.md"
STEP = re.compile(r"```(python|sh)\n(.*?)```(\n\n```text\n.*?```)?", re.DOTALL)


def main() -> None:
    """Play the page and write it anew."""
    text = PAGE.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        said = play(text, Path(folder))
        for drawn in sorted((Path(folder) / "figures").glob("training*.svg")):
            shutil.copy(drawn, DOCS / "images" / "tutorial-training.svg")
    PAGE.write_text(STEP.sub(lambda step: _with_output(step, next(said)), text), encoding="utf-8")


def play(text: str, folder: Path) -> Iterator[str]:
    """What each block prints, one after the other; they share their names."""
    names: dict[str, Any] = {"__name__": "tutorial"}
    said = []
    with chdir(folder):
        for language, code, _ in STEP.findall(text):
            began = perf_counter()
            with redirect_stdout(StringIO()) as out:
                if language == "python":
                    exec(compile(code, str(PAGE), "exec"), names)
                else:
                    _call(code)
            said.append(out.getvalue())
            print(f"{perf_counter() - began:.0f} s: {code.splitlines()[0]}", flush=True)
    return iter(said)


def _call(commands: str) -> None:
    from memloc.cli import app

    for line in commands.splitlines():
        app(shlex.split(line)[1:], standalone_mode=False)


def _with_output(step: re.Match[str], said: str) -> str:
    language, code, shown = step.groups()
    block = f"\n\n```text\n{said.rstrip()}\n```" if shown else ""
    return f"```{language}\n{code}```{block}"


if __name__ == "__main__":
    main()
