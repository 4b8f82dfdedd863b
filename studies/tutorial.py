"""Plays the tutorial and the README: `python -m studies.tutorial`.

Runs the Python and the commands of docs/tutorial.md in an empty folder, puts what each block prints
into the block of text below it, and keeps the figures that the page shows. Then does the same with
README.md, whose checkpoints are those that the tutorial trained.
"""

import re
import shlex
import shutil
import tempfile
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path
from textwrap import fill
from time import perf_counter
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
PAGE, README = ROOT / "docs" / "tutorial.md", ROOT / "README.md"
STEP = re.compile(r"```(python|sh)\n(.*?)```(\n\n```text\n.*?```)?", re.DOTALL)

WIDTH = 100
"""Columns of a block of text."""


def main() -> None:
    """Play both pages and write them anew."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _renew(PAGE, folder)
        for drawn in sorted((folder / "figures").glob("training*.svg")):
            shutil.copy(drawn, PAGE.parent / "images" / "tutorial-training.svg")
        hand_over(folder / "runs" / "first", folder)
        _renew(README, folder, only="python")


def _renew(page: Path, folder: Path, only: str = "") -> None:
    text = page.read_text(encoding="utf-8")
    said = iter(play(text, folder, only))

    def renewed(step: re.Match[str]) -> str:
        language, code, shown = step.groups()
        output = next(said) if only in language else ""
        block = f"\n\n```text\n{_folded(output)}\n```" if shown else ""
        return f"```{language}\n{code}```{block}"

    page.write_text(STEP.sub(renewed, text), encoding="utf-8")


def _folded(output: str) -> str:
    """Return a text with long lines folded, as a terminal shows it."""
    lines = output.rstrip().splitlines()
    return "\n".join(fill(line, WIDTH) if len(line) > WIDTH else line for line in lines)


def hand_over(run_folder: Path, folder: Path) -> None:
    """Write a run's checkpoints and data as a user would have them: `noisy`, `clean` and
    `train.csv`.
    """
    import pandas as pd

    import memloc

    run = memloc.Run.open(run_folder)
    (folder / "noisy").symlink_to(run.path("final"))
    (folder / "clean").symlink_to(run.path("reference"))
    names = np.array(run.task.label_names)
    columns = {
        "text": [parts[0] for parts in run.task.train.parts],
        "label": names[run.noisy.assigned],
        "fixed": names[run.noisy.original],
    }
    pd.DataFrame(columns).to_csv(folder / "train.csv", index=False)


def play(text: str, folder: Path, only: str = "") -> list[str]:
    """Return the output of each block, run one after the other in one namespace."""
    names: dict[str, Any] = {"__name__": "tutorial"}
    said = []
    with chdir(folder):
        for language, code, _ in STEP.findall(text):
            if only not in language:
                continue
            began = perf_counter()
            with redirect_stdout(StringIO()) as out:
                if language == "python":
                    exec(compile(code, str(PAGE), "exec"), names)
                else:
                    _call(code)
            said.append(out.getvalue())
            print(f"{perf_counter() - began:.0f} s: {code.splitlines()[0]}", flush=True)
    return said


def _call(commands: str) -> None:
    from memloc.cli import app

    for line in commands.splitlines():
        app(shlex.split(line)[1:], standalone_mode=False)


if __name__ == "__main__":
    main()
