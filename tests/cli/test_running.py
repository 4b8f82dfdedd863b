"""Commands as processes: two at once, and ended from outside."""

import subprocess
import sys

from command_support import COLUMNS, FAST

TWO = """
import contextlib, os, sys
from pathlib import Path
import memloc.experiment.work  # what takes long to load is loaded once for both
from memloc.cli import main

children = []
for number, words in enumerate(eval(sys.argv[1])):
    child = os.fork()
    if not child:
        said = os.open(f"said-{number}", os.O_WRONLY | os.O_CREAT)
        os.dup2(said, 1), os.dup2(said, 2)
        try:
            main(words)
        except SystemExit as end:
            os._exit(end.code or 0)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(99)
    children.append(child)
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
"""


def at_once(folder, *commands):
    """The exit codes of commands that run at the same time, and what each said."""
    words = repr([[str(word) for word in command] for command in commands])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", TWO, words],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
    )
    said = [(folder / f"said-{i}").read_text(encoding="utf-8") for i in range(len(commands))]
    return eval(done.stdout), said


def test_of_two_trainings_in_one_folder_one_says_who_the_other_is(model, mine, tmp_path):
    command = ["train", model, "--data", mine, *COLUMNS, *FAST, "--set=finetune.epochs=40"]
    codes, said = at_once(tmp_path, command, command)
    assert sorted(codes) == [0, 1], said
    (refusal,) = (text for code, text in zip(codes, said, strict=True) if code)
    assert refusal.count("\n") == 1
    assert "is being trained by process " in refusal
    folder = tmp_path / "runs" / "mine" / model.name / "seed-1"
    assert not list(folder.rglob("running*"))
